"""Packed data of anything that has columns: what hotrow's readers read fastest."""

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_void_p
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _abi, _arrow
from ._checks import integer
from .batches import _MATRIX, BatchReader, _matrix, without_mask
from .data import Packed
from .saved import Path, text, texts


class _Packer(_abi.Owner):
    """Owns what is written; without `finish` nothing is left of it."""

    def __init__(self, options: _abi.PackerOptions) -> None:
        handle = c_void_p()
        _abi.packer_create(byref(options), byref(handle))
        self._handle = handle.value
        self._matrices = ctypes.create_string_buffer(2 * _MATRIX.size)

    def append(self, split: bytes, batch: int, dense: np.ndarray, labels: np.ndarray) -> None:
        """batch: the address of a hotrow_batch."""
        _matrix(dense, *dense.shape, "dense", self._matrices, 0)
        _matrix(labels, *labels.shape, "labels", self._matrices, _MATRIX.size)
        where = ctypes.addressof(self._matrices)
        _abi.packer_append(self._handle, split, batch, where, where + _MATRIX.size)

    def finish(self) -> None:
        _abi.packer_finish(self._handle)

    def __enter__(self) -> "_Packer":
        return self

    def __exit__(self, *_: Any) -> None:
        _abi.packer_destroy(self._handle)


def _batches(data: Any) -> Iterator[Mapping[str, Any]]:
    """The batches of what `pack` takes, each a mapping of columns."""
    if isinstance(data, Mapping):
        yield data
    elif hasattr(data, "__arrow_c_stream__"):
        yield from _arrow.batches(data)
    elif hasattr(data, "__arrow_c_array__"):
        yield _arrow.columns(data)
    elif isinstance(data, (str, bytes)) or not hasattr(data, "__iter__"):
        raise TypeError(
            f"data: is {type(data).__name__}, must be a dict of arrays, anything with Arrow's C "
            "stream (a table of pyarrow, polars or duckdb), or an iterable of these"
        )
    else:
        for part in data:
            yield from _batches(part)


def _column(batch: Mapping[str, Any], name: str) -> Any:
    try:
        return batch[name]
    except KeyError:
        raise ValueError(f"batch: column {name!r} is missing; it has {list(batch)}") from None


def _numbers(batch: Mapping[str, Any], name: str) -> np.ndarray:
    """A column of numbers: [B, 1], or [B, k] of one that has k a sample."""
    array = _arrow.numbers(without_mask(_column(batch, name), f"column {name!r}"), name)
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2):
        raise TypeError(
            f"column {name!r}: is {array.dtype} of shape {array.shape}, must be numbers [B] or "
            "[B, k]"
        )
    return array[:, None] if array.ndim == 1 else array


def _side_by_side(
    batch: Mapping[str, Any], names: Sequence[str], size: int, widths: Dict[str, int]
) -> np.ndarray:
    """Columns of numbers as one matrix, float32 [size, sum of their widths]. widths: of the columns
    of batches before."""
    columns = [_numbers(batch, name) for name in names]
    for name, column in zip(names, columns):
        if len(column) != size:
            raise ValueError(f"column {name!r}: has {len(column)} samples, the features {size}")
        if column.shape[1] != widths.setdefault(name, column.shape[1]):
            raise ValueError(
                f"column {name!r}: has {column.shape[1]} numbers a sample, {widths[name]} in the "
                "first batch"
            )
    out = np.empty((size, sum(column.shape[1] for column in columns)), dtype=np.float32)
    at = 0
    for column in columns:
        out[:, at : at + column.shape[1]] = column
        at += column.shape[1]
    return out


def _names(batch: Mapping[str, Any], columns: Sequence[str]) -> Iterator[str]:
    """Those of columns of numbers, of each where one has several."""
    for name in columns:
        width = _numbers(batch, name).shape[1]
        yield from [name] if width == 1 else (f"{name}[{i}]" for i in range(width))


def pack(
    train: Any,
    dir: Path,
    features: Union[Sequence[str], Mapping[str, str]],
    dense: Sequence[str] = (),
    labels: Sequence[str] = ("label",),
    *,
    valid: Any = None,
    test: Any = None,
    max_hotness: Optional[Mapping[str, int]] = None,
    block_samples: int = 8192,
    dense_precision: str = "fp32",
    source: str = "Python",
) -> Packed:
    """Writes samples as packed data, and returns them opened.

        hotrow.pack(pyarrow.dataset.dataset("logs/").scanner().to_reader(), "logs.packed",
                    features=["user", "item"], dense=["price"], labels=["click"])

    train, valid, test: a dict of arrays; or anything with Arrow's C stream interface: tables,
    frames and readers of pyarrow, polars, duckdb; or an iterable of these. Columns that are not
    named are passed over. Memory holds one batch at a time.
    features: names of columns of ids, in any form that `prefetch` takes (docs/python.md, Batches);
    a dict names the table of each, which features may share.
    dense: columns of numbers [B] or [B, k], read as float32. labels: columns of 0 and 1.
    dense_precision: "fp32", or "fp16", which takes half the bytes and refuses numbers beyond 65504.
    max_hotness: of features, the most lookups in a sample, where that is known; more are refused.
    dir: is created; if it exists, it must be empty. It appears when all of it is written.
    """
    if features is None or not features:
        raise ValueError("features: is empty, must have a name")
    names = list(features)
    tables = features.values() if isinstance(features, Mapping) else features
    options = _abi.default(_abi.PackerOptions, "packer_options")
    options.dir = text(dir, "dir")
    options.features = texts(names, "features")
    options.tables = texts(tables, "features")
    options.num_features = len(names)
    options.labels = texts(labels, "labels")
    options.num_labels = len(labels)
    if isinstance(dense, str):
        raise TypeError("dense: is a string, must be a list of strings")
    options.block_samples = integer(block_samples, "block_samples")
    options.dense_precision = text(dense_precision, "dense_precision")
    options.source = text(source, "source")

    unknown = set(max_hotness or ()) - set(names)
    if unknown:
        raise ValueError(f"max_hotness: {sorted(unknown)} are no features")
    most = [integer((max_hotness or {}).get(name, 0), f"max_hotness[{name!r}]") for name in names]
    options.max_hotness = (ctypes.c_int64 * len(names))(*most)

    reader = BatchReader(names, [])
    dense_names: List[str] = []
    widths: Dict[str, int] = {}

    def taken() -> Iterator[Tuple[bytes, int, np.ndarray, np.ndarray]]:
        """Split, address of a hotrow_batch, dense and labels of each batch; `reader` keeps it."""
        for split, data in ((b"train", train), (b"valid", valid), (b"test", test)):
            for batch in () if data is None else _batches(data):
                where = reader.read({name: _column(batch, name) for name in names})
                if not dense_names:
                    dense_names.extend(_names(batch, dense))
                yield (
                    split, where, _side_by_side(batch, dense, reader.batch_size, widths),
                    _side_by_side(batch, labels, reader.batch_size, widths),
                )

    batches = taken()
    first = next(batches, None)
    if first is None:
        raise ValueError("train: has no samples")
    options.num_dense = len(dense_names)
    options.dense = texts(dense_names, "dense")
    with _Packer(options) as packer:
        packer.append(*first)
        for batch in batches:
            packer.append(*batch)
        packer.finish()
    return Packed(dir)
