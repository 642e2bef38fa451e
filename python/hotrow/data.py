"""The readers of hotrow's trainers: packed data, click logs and synthetic clicks, as batches."""

import ctypes
import os
from ctypes import byref, c_void_p
from typing import Any, Dict, Iterator, List, Optional, Sequence, Type, Union

import numpy as np

from . import _abi
from ._checks import INT32, UINT64, integer
from .batches import Jagged, OfReader
from .options import Bytes, parse_bytes
from .saved import Path, text


class _Memory:
    """Memory of batches that nobody looks at any more, for the next ones of a reader: fresh memory
    costs as much as what is read into it."""

    def __init__(self) -> None:
        self.free: List[int] = []
        self.closed = False

    def take(self) -> int:
        if self.free:
            return self.free.pop()
        handle = c_void_p()
        _abi.samples_create(byref(handle))
        return int(handle.value or 0)

    def give(self, handle: int) -> None:
        if self.closed or len(self.free) >= 4:
            _abi.samples_destroy(handle)
        else:
            self.free.append(handle)

    def close(self) -> None:
        self.closed = True
        while self.free:
            _abi.samples_destroy(self.free.pop())


class _Samples(_abi.Owner):
    """Owns the memory of one batch."""

    def __init__(self, memory: _Memory) -> None:
        self._memory = memory
        self.handle = 0  # none to give, if there is no memory
        self.handle = memory.take()

    def __del__(self) -> None:
        self._memory.give(self.handle)


class Samples:
    """One batch of click data, or a rank's slice of it.

    ids: hotrow.Jagged, for `prefetch`. dense: float32 [B, num_dense]. labels: float32
    [B, num_labels]. global_size: samples of all ranks; len() is that of this one's.
    """

    __slots__ = ("ids", "dense", "labels", "global_size")

    def __init__(
        self, ids: Jagged, dense: np.ndarray, labels: np.ndarray, global_size: int
    ) -> None:
        self.ids = ids
        self.dense = dense
        self.labels = labels
        self.global_size = global_size

    def __len__(self) -> int:
        return self.ids.batch_size


def _view(address: Optional[int], dtype: Any, shape: Any, owner: _Samples) -> np.ndarray:
    count = int(np.prod(shape))
    if not count or not address:
        return np.empty(shape, dtype=dtype)
    memory = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address)
    memory.owner = owner  # as long as an array looks into it
    return np.frombuffer(memory, dtype=dtype).reshape(shape)


class Data:
    """What `--data` of the trainers names: Data("synthetic:tables=26,rows=100000").

    seed: of shuffling, and of generated data. reader_threads: how many parse text, or copy packed
    data; nothing that is read depends on them, and with 1 only the caller's does. shuffle: memory
    for training data that are mixed with each other, 512 MiB; 0: they come in the order of the files.
    rank, world_size: batches are this rank's slices of those of all.
    """

    def __init__(
        self,
        spec: str,
        seed: int = 0,
        reader_threads: int = 1,
        *,
        shuffle: Optional[Bytes] = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._handle = None
        self._arguments = dict(
            spec=spec, seed=seed, reader_threads=reader_threads, shuffle=shuffle, rank=rank,
            world_size=world_size,
        )
        options = _abi.default(_abi.DataOptions, "data_options")
        options.seed = integer(seed, "seed", *UINT64)
        options.reader_threads = integer(reader_threads, "reader_threads", *INT32)
        if shuffle is not None:
            options.shuffle_bytes = parse_bytes(shuffle, "shuffle")
        options.rank = integer(rank, "rank", *INT32)
        options.world_size = integer(world_size, "world_size", *INT32)
        handle = c_void_p()
        _abi.data_open_with(text(spec, "spec"), byref(options), byref(handle))
        self._handle = handle.value
        schema: Dict[str, Any] = _abi.json_of(_abi.data_describe, self._handle)
        self.name: str = schema["name"]
        self.num_dense: int = schema["num_dense"]
        #: Names of the dense columns; empty where they have none.
        self.dense: List[str] = schema["dense"]
        self.labels: List[str] = schema["labels"]
        #: {"name", "table", "num_embeddings", "max_hotness"} of each feature, in batch order.
        self.features: List[Dict[str, Any]] = schema["features"]
        self._names = [feature["name"] for feature in self.features]
        #: 0: not known before reading.
        self.num_samples: Dict[str, int] = {
            split: schema[split + "_samples"] for split in ("train", "valid", "test")
        }

    def batches(
        self, batch_size: int, split: str = "train", epoch: int = 0, first_sample: int = 0
    ) -> Iterator[Samples]:
        """The batches of a split, from a sample on; the last may be smaller. Their order depends on
        seed, epoch and `shuffle` alone. batch_size, first_sample: of all ranks."""
        return self._read(
            integer(batch_size, "batch_size"), text(split, "split"), integer(epoch, "epoch"),
            integer(first_sample, "first_sample"),
        )

    def _read(
        self, batch_size: int, split: Optional[bytes], epoch: int, first_sample: int
    ) -> Iterator[Samples]:
        reader = c_void_p()
        _abi.reader_open(self._handle, split, epoch, first_sample, byref(reader))
        memory = _Memory()
        try:
            while True:
                samples = _Samples(memory)
                view = _abi.SamplesView(struct_size=ctypes.sizeof(_abi.SamplesView))
                _abi.reader_next(reader, batch_size, samples.handle, byref(view))
                if view.global_batch_size == 0:
                    return
                yield self._samples(view, samples)
        finally:
            memory.close()
            _abi.reader_destroy(reader)

    def _samples(self, view: _abi.SamplesView, owner: _Samples) -> Samples:
        size = view.batch_size
        weights = None
        if view.weights:
            weights = _view(view.weights, np.float32, (view.num_values,), owner)
        ids = OfReader(
            size,
            _view(view.values, np.uint64, (view.num_values,), owner),
            offsets=_view(view.offsets, np.int64, (view.num_features * size + 1,), owner),
            weights=weights,
        )
        ids.names = self._names
        # The library reads them where they lie, and has looked at them once.
        ids.offsets.flags.writeable = False
        return Samples(
            ids,
            _view(view.dense, np.float32, (size, view.num_dense), owner),
            _view(view.labels, np.float32, (size, view.num_labels), owner),
            view.global_batch_size,
        )

    def __reduce__(self) -> Any:  # a copy opens it again, also one in a loader's process
        return _open_again, (type(self), self._arguments)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            _abi.data_destroy(self._handle)


def _open_again(kind: Type[Data], arguments: Dict[str, Any]) -> Data:
    out = kind.__new__(kind)
    Data.__init__(out, **arguments)
    return out


class Packed(Data):
    """Packed data, of `hotrow pack` or `hotrow.pack`: one directory, or several that are read one
    after another as if they were one. Batches are copied from blocks that a thread reads ahead, at
    some 10 million samples a second. Arguments as of Data."""

    def __init__(self, dirs: Union[Path, Sequence[Path]], *arguments: Any, **named: Any) -> None:
        several = [dirs] if isinstance(dirs, (str, os.PathLike)) else list(dirs)
        for each in several:
            if "," in os.fspath(each):
                raise ValueError(f"dirs: {os.fspath(each)!r} has a comma, which separates packs")
        super().__init__("packed:" + ",".join(map(os.fspath, several)), *arguments, **named)
