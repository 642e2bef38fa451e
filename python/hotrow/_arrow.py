"""Arrow arrays, by the C data and stream interfaces: of pyarrow, polars, duckdb and others, without
linking any of them. Nothing is copied but the offsets of lists that do not begin at 0.

https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html
"""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from typing import Any, Dict, Iterator, List, Tuple, Union

import numpy as np

HINT_OF_TEXTS = (
    "; hash texts to ids, or let hotrow.Data('table:SCHEMA.json') do so (docs/serving.md)"
)


class _Schema(Structure):
    pass


class _Array(Structure):
    pass


class _Stream(Structure):
    pass


_Schema._fields_ = [
    ("format", c_char_p),
    ("name", c_char_p),
    ("metadata", c_char_p),
    ("flags", c_int64),
    ("n_children", c_int64),
    ("children", POINTER(POINTER(_Schema))),
    ("dictionary", POINTER(_Schema)),
    ("release", CFUNCTYPE(None, POINTER(_Schema))),
    ("private_data", c_void_p),
]
_Array._fields_ = [
    ("length", c_int64),
    ("null_count", c_int64),
    ("offset", c_int64),
    ("n_buffers", c_int64),
    ("n_children", c_int64),
    ("buffers", POINTER(c_void_p)),
    ("children", POINTER(POINTER(_Array))),
    ("dictionary", POINTER(_Array)),
    ("release", CFUNCTYPE(None, POINTER(_Array))),
    ("private_data", c_void_p),
]
_Stream._fields_ = [
    ("get_schema", CFUNCTYPE(c_int, POINTER(_Stream), POINTER(_Schema))),
    ("get_next", CFUNCTYPE(c_int, POINTER(_Stream), POINTER(_Array))),
    ("get_last_error", CFUNCTYPE(c_char_p, POINTER(_Stream))),
    ("release", CFUNCTYPE(None, POINTER(_Stream))),
    ("private_data", c_void_p),
]

_capsule = ctypes.pythonapi.PyCapsule_GetPointer
_capsule.restype = c_void_p
_capsule.argtypes = [ctypes.py_object, c_char_p]

_INTEGERS = {b"l": np.dtype(np.int64), b"L": np.dtype(np.uint64), b"i": np.dtype(np.int32)}

# What a feature's ids become: one array, [B] or [B, h], or (values, offsets).
Ids = Union[np.ndarray, Tuple[np.ndarray, np.ndarray]]


class _Owned:
    """A struct that was filled for us; released with the last array that looks into it."""

    def __init__(self, struct: Any) -> None:
        self.struct = struct

    def __del__(self) -> None:
        if self.struct.release:
            self.struct.release(ctypes.byref(self.struct))


def _view(address: int, dtype: Any, begin: int, end: int, owner: Any) -> np.ndarray:
    if end <= begin or not address:
        return np.empty(0, dtype=dtype)
    where = address + begin * dtype.itemsize
    memory: Any = (ctypes.c_char * ((end - begin) * dtype.itemsize)).from_address(where)
    memory.owner = owner  # as long as an array looks into it
    out: np.ndarray = np.frombuffer(memory, dtype=dtype)
    return out


def _refuse_nulls(array: _Array, offset: int, length: int, what: str) -> None:
    """Of the entries from `offset` on; whoever does not know the number of nulls says -1."""
    if not array.n_buffers or not array.buffers[0] or array.null_count == 0:
        return
    first = offset // 8
    valid = np.unpackbits(
        _view(array.buffers[0], np.dtype(np.uint8), first, (offset + length + 7) // 8, array),
        bitorder="little",
    )
    if not valid[offset - 8 * first :][:length].all():
        raise ValueError(f"{what}: has nulls; fill or drop them first")


def _ids(schema: _Schema, array: _Array, offset: int, length: int, name: str, owner: Any) -> Ids:
    """`offset`, `length`: the part of `array`, its own offset included."""
    kind = schema.format
    _refuse_nulls(array, offset, length, f"feature {name!r}")
    if schema.dictionary:
        raise TypeError(f"feature {name!r}: is a dictionary; take its indices")
    if kind in _INTEGERS:
        return _view(array.buffers[1], _INTEGERS[kind], offset, offset + length, owner)
    if kind in (b"+l", b"+L"):
        dtype = np.dtype(np.int32 if kind == b"+l" else np.int64)
        offsets = _view(array.buffers[1], dtype, offset, offset + length + 1, owner)
        if not len(offsets):
            offsets = np.zeros(1, dtype=dtype)
        child = array.children[0].contents
        first, last = int(offsets[0]), int(offsets[-1])
        values = _ids(
            schema.children[0].contents, child, child.offset + first, last - first, name, owner
        )
        if not isinstance(values, np.ndarray):
            raise TypeError(f"feature {name!r}: is a list of lists")
        return values, offsets if first == 0 else offsets - dtype.type(first)
    if kind.startswith(b"+w:"):
        width = int(kind[3:])
        child = array.children[0].contents
        values = _ids(
            schema.children[0].contents, child, child.offset + offset * width, length * width,
            name, owner,
        )
        if not isinstance(values, np.ndarray) or values.ndim != 1:
            raise TypeError(f"feature {name!r}: is a list of lists")
        return values.reshape(length, width)
    hint = HINT_OF_TEXTS if kind in (b"u", b"U", b"vu") else ""
    raise TypeError(
        f"feature {name!r}: has the Arrow type {kind.decode()!r}, must be int64, uint64 or int32, "
        f"or lists of these{hint}"
    )


# Numbers that are no ids.
_NUMBERS = {
    b"c": np.dtype(np.int8), b"C": np.dtype(np.uint8), b"s": np.dtype(np.int16),
    b"S": np.dtype(np.uint16), b"I": np.dtype(np.uint32), b"e": np.dtype(np.float16),
    b"f": np.dtype(np.float32), b"g": np.dtype(np.float64), **_INTEGERS,
}


def _column(
    schema: _Schema, array: _Array, offset: int, length: int, name: str, owner: Any
) -> np.ndarray:
    """Numbers [B], or [B, k] of lists that all have k. As _ids."""
    kind = schema.format
    _refuse_nulls(array, offset, length, f"column {name!r}")
    if kind in _NUMBERS and not schema.dictionary:
        return _view(array.buffers[1], _NUMBERS[kind], offset, offset + length, owner)
    if kind == b"b":  # bits
        first = offset // 8
        bits = _view(
            array.buffers[1], np.dtype(np.uint8), first, (offset + length + 7) // 8, owner
        )
        return np.unpackbits(bits, bitorder="little")[offset - 8 * first :][:length]
    if kind.startswith(b"+w:"):
        width = int(kind[3:])
        child = array.children[0].contents
        return _column(
            schema.children[0].contents, child, child.offset + offset * width, length * width,
            name, owner,
        ).reshape(length, width)
    raise TypeError(
        f"column {name!r}: has the Arrow type {kind.decode()!r}, must be numbers, or lists of "
        "fixed size of them"
    )


class Columns(Dict[str, Any]):
    """The columns of a record batch by name: features, and others that tables pass over."""


def _struct(schema: _Schema, array: _Array, owner: Any) -> Columns:
    if schema.format != b"+s":
        raise TypeError("batch: must be a record batch or an array of structs")
    _refuse_nulls(array, array.offset, array.length, "batch")  # of whole samples
    out = Columns()
    for i in range(schema.n_children):
        field, child = schema.children[i].contents, array.children[i].contents
        name = field.name.decode()
        if name in out:
            out[name] = _Twice(name)
            continue
        out[name] = _LazyIds(field, child, child.offset + array.offset, array.length, name, owner)
    return out


class _LazyIds:
    """A column that is looked at when a table asks for it: others may be of any type."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __arrow_ids__(self) -> Ids:
        return _ids(*self._arguments)

    def __arrow_numbers__(self) -> np.ndarray:
        return _column(*self._arguments)

    __arrow_c_array__ = None  # says that `bags` understands it


class _Twice:
    """A name that two columns have, which a table cannot tell apart."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __arrow_ids__(self) -> Ids:
        raise ValueError(
            f"batch: there are two columns {self._name!r}; drop or rename one of them"
        )

    __arrow_numbers__ = __arrow_ids__
    __arrow_c_array__ = None


def _pointers(data: Any) -> Tuple[_Schema, _Array, Any]:
    schema, array = data.__arrow_c_array__()
    return (
        _Schema.from_address(_capsule(schema, b"arrow_schema")),
        _Array.from_address(_capsule(array, b"arrow_array")),
        (schema, array),
    )


def columns(batch: Any) -> Columns:
    return _struct(*_pointers(batch))


def bags(data: Any, name: str) -> Any:
    """The ids of one feature, Ids; what is none of Arrow's as it is."""
    if isinstance(data, (_LazyIds, _Twice)):
        return data.__arrow_ids__()
    if hasattr(data, "__arrow_c_array__"):
        schema, array, owner = _pointers(data)
        return _ids(schema, array, array.offset, array.length, name, owner)
    if hasattr(data, "__arrow_c_stream__") and not _numpy_reads(data):
        return _join([
            _ids(schema, array, array.offset, array.length, name, owner)
            for schema, array, owner in _chunks(data)
        ])
    return data


def numbers(data: Any, name: str) -> np.ndarray:
    """A column that is none of ids."""
    if isinstance(data, (_LazyIds, _Twice)):
        return data.__arrow_numbers__()
    if hasattr(data, "__arrow_c_array__"):
        schema, array, owner = _pointers(data)
        return _column(schema, array, array.offset, array.length, name, owner)
    return np.asarray(data)


def _numpy_reads(data: Any) -> bool:
    """Whether an array in chunks, of polars say, is plain integers, which numpy copies as fast."""
    return np.asarray(data).dtype.kind in "iu"


def _join(chunks: List[Ids]) -> Ids:
    """Those of an array in chunks, copied where there are several."""
    if len(chunks) == 1:
        return chunks[0]
    lists = [chunk for chunk in chunks if not isinstance(chunk, np.ndarray)]
    if not lists:
        return np.concatenate([np.asarray(chunk) for chunk in chunks] or [np.empty(0, np.int64)])
    first, offsets = 0, [np.zeros(1, dtype=np.int64)]
    for _, own in lists:
        offsets.append(own[1:].astype(np.int64) + first)
        first += int(own[-1])
    return np.concatenate([values for values, _ in lists]), np.concatenate(offsets)


def batches(data: Any) -> Iterator[Columns]:
    """The record batches of a table or a reader, one after another, each for `prefetch`."""
    for chunk in _chunks(data):
        yield _struct(*chunk)


def _chunks(data: Any) -> Iterator[Tuple[_Schema, _Array, Any]]:
    capsule = data.__arrow_c_stream__()
    stream = _Stream.from_address(_capsule(capsule, b"arrow_array_stream"))

    def check(code: int) -> None:
        if code:
            text = stream.get_last_error(ctypes.byref(stream))
            raise OSError(code, (text or b"the Arrow stream failed").decode("utf-8", "replace"))

    schema = _Owned(_Schema())
    check(stream.get_schema(ctypes.byref(stream), ctypes.byref(schema.struct)))
    while True:
        array = _Owned(_Array())
        check(stream.get_next(ctypes.byref(stream), ctypes.byref(array.struct)))
        if not array.struct.release:
            return
        yield schema.struct, array.struct, (schema, array, capsule)


__all__: List[str] = ["Columns", "bags", "batches", "columns", "numbers"]
