"""Ranks of torch.distributed that share tables."""

import datetime
import itertools
import math
import os
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from .. import errors
from ..ranks import HEADER_BYTES, header, mismatch, read_header

# What channels that have failed leave behind when they are closed, see Transport._start.
_unheard: List[Any] = []
_families: Dict[Tuple[int, ...], int] = {}  # how many of these ranks this process has made

_ABORTED = -1  # in a header, instead of a size


class _Family:
    """What the channels between the same ranks share."""

    def __init__(self, group: Any, store: Any, key: str, ranks: Sequence[int]) -> None:
        self.group = group
        self.ranks = list(ranks)  # as torch.distributed numbers them all
        # A clone, so that it waits for no other user of the store. torch < 2.9 has none.
        self._store = store.clone() if hasattr(store, "clone") else store
        self._key = key
        self._mutex = threading.Lock()
        self._channels: List["Transport"] = []
        self._numbers = itertools.count()
        self.failed = False

    def add(self, channel: "Transport") -> int:
        with self._mutex:
            self._channels.append(channel)
            return next(self._numbers)

    def remove(self, channel: "Transport") -> None:
        with self._mutex:
            if channel in self._channels:
                self._channels.remove(channel)

    def fail(self, message: str) -> None:
        """The first message of all ranks counts."""
        self.failed = True
        try:
            self._store.compare_set(self._key, "", message)
        except Exception:  # the rank that keeps the store is gone
            pass

    def failure(self) -> Optional[str]:
        try:
            if self._store.check([self._key]):
                return str(self._store.get(self._key).decode("utf-8", "replace"))
        except Exception:
            pass
        return None

    def tell(self) -> None:
        with self._mutex:
            channels = list(self._channels)
        for channel in channels:
            channel.poison()


def _head(size: int, operation: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(header(size, operation)), dtype=torch.uint8)


def _room(size: int) -> torch.Tensor:
    # Not on the default device, which may be another.
    return torch.empty(size, dtype=torch.uint8, device="cpu")


def _bytes(view: memoryview) -> torch.Tensor:
    """The memory itself."""
    return torch.from_numpy(np.frombuffer(view, dtype=np.uint8))


class Transport:
    """A process group's ranks, lent to tables:

        torch.distributed.init_process_group("gloo")      # or "nccl": torchrun, srun, ...
        ranks = hotrow.Communicator(hotrow.torch.Transport())
        tables = hotrow.torch.EmbeddingCollection(..., communicator=ranks)

    group: a process group; by default all ranks. Rows lie in host memory, so they travel by Gloo in
    their own group, with any backend of the model's gradients. All ranks of the group make it at
    the same point. A rank that ends, or is silent, ends the calls of all others with an error
    that names it, by its number in the job.
    """

    def __init__(self, group: Optional[Any] = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise errors.FailedPrecondition(
                "torch.distributed is not initialized; call torch.distributed.init_process_group "
                "first, in a job that torchrun or the like has started"
            )
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        if dist.get_rank() not in ranks:
            raise errors.InvalidArgument(f"group: does not have this rank, {dist.get_rank()}")
        made = _families[tuple(ranks)] = _families.get(tuple(ranks), 0) + 1
        own: Any = dist.new_group(
            ranks,
            backend="gloo",
            timeout=datetime.timedelta(minutes=30),
            use_local_synchronization=group is not None,
        )
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store may outlive it
        key = f"hotrow/{attempt}/{'-'.join(map(str, ranks))}/{made}"
        store = dist.distributed_c10d._get_default_store()
        self._start(_Family(own, store, key, ranks), dist.get_group_rank(own, dist.get_rank()))

    @classmethod
    def _of(cls, family: _Family, rank: int) -> "Transport":
        self = cls.__new__(cls)
        self._start(family, rank)
        return self

    def _start(self, family: _Family, rank: int) -> None:
        self._family = family
        self.rank = rank
        self.world_size = len(family.ranks)
        self._others = [p for p in range(self.world_size) if p != rank]
        self._mutex = threading.Lock()  # a header is sent whole, with what it announces
        # What the last call sends, with its memory. After an error some of it is still on its way,
        # and nobody may ever receive it: Gloo would read memory that is gone, or forget what is
        # sent behind it, the word of the error. An error ends the job, so it stays for good.
        self._sent: List[Any] = []
        self._words: List[Any] = []  # of errors, with their memory
        self._rooms: Dict[int, torch.Tensor] = {}  # of each rank, for what is sent to it
        # The last headers to come, with theirs: where one has nowhere to go Gloo reads no further,
        # and the other channels between the two ranks would hear no more.
        self._awaited: List[Any] = []
        number = family.add(self)
        self._head_tag, self._body_tag = 2 * number, 2 * number + 1

    def exchange(
        self, send: Sequence[memoryview], recv: Sequence[memoryview], timeout: float, operation: str
    ) -> None:
        # A header goes first. Gloo ends the process when a message is longer than was expected, as
        # it is when ranks make different calls. A message of another size is received all the same,
        # elsewhere: the rank that sends it waits for nothing else meanwhile.
        deadline = time.monotonic() + timeout
        group = self._family.group
        with self._mutex:
            if self._family.failed:
                raise self._error(None, "")
            sent: List[Any] = []
            self._sent = sent
            for p in self._others:
                head, tag = _head(len(send[p]), operation), self._head_tag
                sent.append((p, self._post(p, lambda: group.send([head], p, tag)), head))
                if len(send[p]):  # a copy, since the library's memory goes after an error
                    body, tag = self._copy(p, send[p]), self._body_tag
                    sent.append((p, self._post(p, lambda: group.send([body], p, tag)), body))
        heads = {p: _room(HEADER_BYTES) for p in self._others}
        waiting: List[Any] = []
        self._awaited = waiting
        for p in self._others:
            recv_head = self._post(p, lambda: group.recv([heads[p]], p, self._head_tag))
            waiting.append((p, recv_head, heads[p]))
        bodies, wrong = [], ""
        for p, work, _ in waiting:
            self._wait(p, work, deadline, timeout, operation)
            size, name = read_header(heads[p].numpy().tobytes())
            if size == _ABORTED:
                raise self._error(p, "ended the job")
            wrong = (
                mismatch(
                    (size, name), (len(recv[p]), operation), self._name(p), self._name(self.rank)
                )
                or wrong
            )
            if size:
                right = size == len(recv[p])
                bodies.append((p, _bytes(recv[p]) if right else _room(size)))
        works = []
        for p, body in bodies:
            works.append((p, self._post(p, lambda: group.recv([body], p, self._body_tag)), body))
        for p, work, _ in [*sent, *works]:
            self._wait(p, work, deadline, timeout, operation)
        sent.clear()
        if wrong:
            raise errors.InvalidArgument(wrong)

    def duplicate(self) -> "Transport":
        return Transport._of(self._family, self.rank)

    def abort(self, message: str) -> None:
        self._family.fail(message)
        self._family.tell()

    def failure(self) -> Optional[str]:
        return self._family.failure()

    def close(self) -> None:
        self._family.remove(self)
        if self._family.failed:
            _unheard.append((self._sent, self._words, self._awaited))

    def poison(self) -> None:
        """Instead of this rank's next header the others read that there will be none."""
        with self._mutex:
            for p in self._others:
                head = _head(_ABORTED, "")
                try:
                    work = self._family.group.send([head], p, self._head_tag)
                except RuntimeError:
                    continue  # it is gone
                self._words.append((work, head))

    def _copy(self, p: int, view: memoryview) -> torch.Tensor:
        room = self._rooms.get(p)
        if room is None or len(room) < len(view):
            room = self._rooms[p] = _room(len(view))
        out = room[: len(view)]
        out.numpy().data[:] = view
        return out

    def _name(self, p: int) -> int:
        return self._family.ranks[p]

    def _post(self, p: int, call: Any) -> Any:
        try:
            return call()
        except RuntimeError as error:
            raise self._error(p, _lost(error)) from None

    def _wait(self, p: int, work: Any, deadline: float, timeout: float, operation: str) -> None:
        # Gloo cuts off what is less than a millisecond: it would end before the deadline.
        left = max(1, math.ceil(1000 * (deadline - time.monotonic())))
        try:
            work.wait(datetime.timedelta(milliseconds=left))
        except RuntimeError as error:
            if time.monotonic() >= deadline:
                what = f"was silent for {timeout:g} s in {operation}"
                raise self._error(p, what, TimeoutError) from None
            raise self._error(p, _lost(error)) from None

    def _error(self, p: Optional[int], what: str, kind: type = ConnectionError) -> Exception:
        """What another rank said before, since it may have ended only because of that."""
        known = self._family.failure()
        if known is not None:
            self._family.failed = True
            return ConnectionError(known)
        message = "the job has ended" if p is None else f"rank {self._name(p)} {what}"
        self._family.fail(message)
        error: Exception = kind(message)
        return error


def _lost(error: BaseException) -> str:
    """With the first of Gloo's sentences, without its source line."""
    text = (str(error).splitlines() or ["?"])[0].split("] ", 1)[-1]
    return f"has ended, or its connection is lost ({text.split('. ')[0].strip().rstrip('.')})"
