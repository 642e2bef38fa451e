"""Saved models and checkpoints, opened to be read."""

import os
from ctypes import byref, c_uint64, c_void_p
from typing import Any, Dict, Iterator, List, Mapping, Union

import numpy as np

from . import _abi


class Saved(Mapping[str, bytes]):
    """A checkpoint (a directory of them stands for its newest one) or a saved model.

    As a mapping, the bytes that `save_checkpoint` got: saved["model"].
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self._handle = None
        handle = c_void_p()
        _abi.saved_open(os.fsencode(os.fspath(path)), byref(handle))
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

    def __repr__(self) -> str:
        return f"hotrow.Saved({self.path!r})"

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            _abi.saved_destroy(self._handle)
