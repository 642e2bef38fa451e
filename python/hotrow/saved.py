"""Saved models and checkpoints: opened to be read, made portable and back."""

import os
from ctypes import byref, c_char_p, c_uint64, c_void_p
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Union

import numpy as np

from . import _abi
from .options import Bytes, Memory, RocksDb, Ssd, Store, parse_bytes, store_paths

Path = Union[str, "os.PathLike[str]"]


def text(value: Optional[Path], name: str) -> Optional[bytes]:
    """As the library takes texts and paths."""
    if value is None:
        return None
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise TypeError(f"{name}: is {value!r}, must be a string")
    if "\0" in value:
        raise ValueError(f"{name}: has a NUL in it")
    return os.fsencode(value)


def texts(values: Iterable[str], name: str) -> Any:
    """An array of them."""
    if isinstance(values, (str, bytes)):
        raise TypeError(f"{name}: is a string, must be a list of strings")
    encoded = [text(value, name) for value in values]
    return (c_char_p * max(1, len(encoded)))(*encoded)


def path_list(values: Iterable[Optional[Path]], name: str) -> bytes:
    """As the library takes directories: a comma between two, and twice where it is part of one."""
    parts = [(text(value, name) or b"").replace(b",", b",,") for value in values]
    return b",".join(b"./" + part if i and part[:1] == b"," else part for i, part in enumerate(parts))


def put_store(options: Any, store: Store) -> None:
    """Fills the fields of a store."""
    if not isinstance(store, (Memory, Ssd, RocksDb)):
        raise TypeError(
            f"store: is {store!r}, must be hotrow.Memory, hotrow.Ssd or hotrow.RocksDb"
        )
    options.store = store.kind.encode()
    options.store_memory_bytes = parse_bytes(store.memory, "store.memory")
    if isinstance(store, Memory):
        options.store_path = text(store.snapshot_dir, "store.snapshot_dir")
    else:
        options.store_path = path_list(store_paths(store), "store.path")
        options.store_disk_bytes = parse_bytes(store.disk_bytes, "store.disk_bytes")


class Saved(Mapping[str, bytes]):
    """A checkpoint (a directory of them stands for its newest one) or a saved model.

    As a mapping, the bytes that `save_checkpoint` got: saved["model"].
    """

    def __init__(self, path: Path) -> None:
        self._handle = None
        handle = c_void_p()
        _abi.saved_open(text(path, "path"), byref(handle))
        self._handle = handle.value
        description: Dict[str, Any] = _abi.json_of(_abi.saved_describe, self._handle)
        self.path: str = description["dir"]
        self.model: str = description["model"]
        #: Updates that the tables had seen.
        self.step: int = description["step"]
        self.tables: List[Dict[str, Any]] = description["tables"]
        self._sizes = {blob["name"]: blob["bytes"] for blob in description["blobs"]}

    def __getitem__(self, name: str) -> bytes:
        if name not in self._sizes:
            raise KeyError(name)
        out = np.empty(self._sizes[name], dtype=np.uint8)
        _abi.saved_blob(
            self._handle, name.encode(), out.ctypes.data, out.size, byref(c_uint64())
        )
        return out.tobytes()

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __reduce__(self) -> Any:  # a copy opens it again
        return Saved, (self.path,)

    def __repr__(self) -> str:
        return f"hotrow.Saved({self.path!r})"

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            _abi.saved_destroy(self._handle)


def export_portable(
    checkpoint: Path,
    to: Path,
    *,
    shard: Bytes = "1GiB",
    memory: Bytes = "256MiB",
    store_memory: Bytes = 0,
) -> None:
    """Writes a checkpoint or saved model as .npy arrays with a manifest in JSON.

    checkpoint: as `Saved` takes it; a store on a disk must be closed. to: the directory to make.
    shard: most bytes of an array in one file. memory: of buffers, for tables of any size.
    store_memory: of the index of an ssd store; 0: no limit. docs/formats/portable.md has the files.
    """
    options = _abi.default(_abi.Export, "export_options")
    options.from_ = text(checkpoint, "checkpoint")
    options.to = text(to, "to")
    options.shard_bytes = parse_bytes(shard, "shard")
    options.memory_bytes = parse_bytes(memory, "memory")
    options.store_memory_bytes = parse_bytes(store_memory, "store_memory")
    _abi.export_portable(byref(options))


def import_portable(
    arrays: Path,
    to: Path,
    *,
    store: Store = Memory(),
    memory: Bytes = "256MiB",
    edited: bool = False,
) -> None:
    """Makes a directory of checkpoints, with one in it, of what `export_portable` wrote.

    to: the directory to make, for checkpoint_dir with resume, or for init_from. store: where its
    rows lie. memory: of buffers. edited: arrays were changed on purpose, and are not compared with
    the checksums, hashes and numbers of rows of the manifest.
    """
    options = _abi.default(_abi.Import, "import_options")
    options.from_ = text(arrays, "arrays")
    options.to = text(to, "to")
    put_store(options, store)
    options.memory_bytes = parse_bytes(memory, "memory")
    options.edited = 1 if edited else 0
    _abi.import_portable(byref(options))
