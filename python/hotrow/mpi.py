"""Ranks of mpi4py that share tables:

    from mpi4py import MPI
    ranks = hotrow.Communicator(hotrow.mpi.Transport(MPI.COMM_WORLD))
    tables = hotrow.EmbeddingCollection(..., communicator=ranks)

MPI must allow calls from several threads, as it does when mpi4py starts it and it can.
"""

import threading
import time
from typing import Any, List, Optional, Sequence

from mpi4py import MPI

from . import errors
from .ranks import HEADER_BYTES, header, mismatch, read_header


class Transport:
    """comm: an intracommunicator, duplicated here; all of its ranks make this at the same point.

    MPI ends the job when a rank dies. A rank that is silent is named when the timeout has passed,
    as is one that makes another call.
    """

    def __init__(self, comm: Optional[Any] = None) -> None:
        if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            raise errors.FailedPrecondition(
                "MPI was started without MPI_THREAD_MULTIPLE, which tables need"
            )
        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._family: List["Transport"] = [self]
        self._failure: List[str] = []  # of the family
        self._start()

    def _start(self) -> None:
        self.rank: int = self._comm.Get_rank()
        self.world_size: int = self._comm.Get_size()
        self._others = [p for p in range(self.world_size) if p != self.rank]
        self._mutex = threading.Lock()
        self._sent: List[Any] = []  # with their memory, until they are out

    def exchange(
        self, send: Sequence[memoryview], recv: Sequence[memoryview], timeout: float, operation: str
    ) -> None:
        deadline = time.monotonic() + timeout
        works = []
        # Headers, and copies of bodies: after an error the library's memory goes, while MPI may
        # still read.
        parts = []
        with self._mutex:
            if self._failure:
                raise ConnectionError(self._failure[0])
            for p in self._others:
                parts.append(header(len(send[p]), operation))
                works.append(self._comm.Isend([parts[-1], MPI.BYTE], p, _HEAD))
                if len(send[p]):
                    parts.append(bytes(send[p]))
                    works.append(self._comm.Isend([parts[-1], MPI.BYTE], p, _DATA))
        try:
            self._receive(recv, deadline, timeout, operation)
            while not MPI.Request.Testall(works):
                self._rest(deadline, timeout, operation, self._others[0], 0.0)
        except BaseException:
            self._sent += [works, parts]
            raise

    def _receive(
        self, recv: Sequence[memoryview], deadline: float, timeout: float, operation: str
    ) -> None:
        waiting = set(self._others)
        pause = 0.0
        while waiting:
            for p in sorted(waiting):
                status = MPI.Status()
                # Taken out as it is found: another thread may look for words of an end.
                message = self._comm.Improbe(p, MPI.ANY_TAG, status)
                if message is None:
                    continue
                if status.Get_tag() == _ABORT:
                    raise ConnectionError(self._heard(message, status))
                head = bytearray(HEADER_BYTES)
                message.Recv([head, MPI.BYTE])
                wrong = mismatch(
                    read_header(bytes(head)), (len(recv[p]), operation), p, self.rank
                )
                if wrong:
                    raise errors.InvalidArgument(wrong)
                if len(recv[p]):
                    self._comm.Recv([recv[p], MPI.BYTE], p, _DATA)
                waiting.discard(p)
                pause = 0.0
            if waiting:
                self._rest(deadline, timeout, operation, min(waiting), pause)
                pause = min(0.001, pause + 0.00001)

    def duplicate(self) -> "Transport":
        out = Transport.__new__(Transport)
        out._comm = self._comm.Dup()
        out._comm.Set_errhandler(MPI.ERRORS_RETURN)
        out._family, out._failure = self._family, self._failure
        self._family.append(out)
        out._start()
        return out

    def abort(self, message: str) -> None:
        if not self._failure:
            self._failure.append(message)
        for channel in list(self._family):
            channel._poison(message.encode("utf-8", "replace"))

    def failure(self) -> Optional[str]:
        status = MPI.Status()
        message = self._comm.Improbe(MPI.ANY_SOURCE, _ABORT, status)
        if message is not None:
            self._heard(message, status)
        return self._failure[0] if self._failure else None

    def close(self) -> None:
        # Freeing a communicator is collective; those of a job are few, and end with it.
        if self in self._family:
            self._family.remove(self)

    def _heard(self, message: Any, status: Any) -> str:
        text = bytearray(status.Get_count(MPI.BYTE))
        message.Recv([text, MPI.BYTE])
        self._failure.append(text.decode("utf-8", "replace"))
        return self._failure[0]

    def _poison(self, text: bytes) -> None:
        with self._mutex:
            for p in self._others:
                self._sent.append((self._comm.Isend([text, MPI.BYTE], p, _ABORT), text))

    def _rest(
        self, deadline: float, timeout: float, operation: str, p: int, pause: float
    ) -> None:
        if self._failure:
            raise ConnectionError(self._failure[0])
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {p} was silent for {timeout:g} s in {operation}")
        time.sleep(pause)


_HEAD, _DATA, _ABORT = 1, 2, 3
