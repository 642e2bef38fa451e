"""Batches of ids, as numpy arrays or Arrow arrays, and what tables make of them."""

import ctypes
import struct
from collections.abc import Mapping  # isinstance of typing's takes a microsecond
from typing import (
    Any, Callable, Collection, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union,
)

import numpy as np

from . import _abi, _arrow

# ids: one id a sample [B]; a fixed number of ids a sample [B, h]; or with lengths [B] in a tuple
FeatureIds = Union[np.ndarray, "Bags", Tuple[np.ndarray, np.ndarray]]


class Bags(NamedTuple):
    """The ids of one feature: B bags, one for each sample.

    values: [N] int64, uint64 or int32, which must not be negative. offsets: [B + 1] int64 or
    int32, where each bag begins; or lengths: [B]. weights: [N] float32, or None: all 1. scores: [N]
    float32, of features whose table keeps scores (hotrow.Table.score), or None: these lookups bring
    none. Arrays are read where they lie.
    """

    values: Any
    lengths: Any = None
    offsets: Any = None
    weights: Any = None
    scores: Any = None


class Jagged(NamedTuple):
    """All features in one pair of arrays, feature-major: all bags of feature 0, then of feature 1.

    As Bags, with F * B bags. Scores of tables that keep none are not looked at.
    """

    batch_size: int
    values: Any
    lengths: Any = None
    offsets: Any = None
    weights: Any = None
    scores: Any = None


class OfReader(Jagged):
    """What a reader of hotrow gives: it knows the names of its features, and nobody else writes to
    its arrays."""

    names: Sequence[str] = ()


Batch = Union[Mapping[str, Any], Jagged]

_ID_TYPES: Dict[Any, int] = {
    np.dtype(np.uint64): _abi.UINT64,
    np.dtype(np.int64): _abi.INT64,
    np.dtype(np.int32): _abi.INT32,
}
_BAG_TYPES: Dict[Any, int] = {np.dtype(np.int64): _abi.INT64, np.dtype(np.int32): _abi.INT32}
_FLOAT32 = np.dtype(np.float32)
_NOTHING = np.empty(1, dtype=np.int64)
_NOTHING_AT = _NOTHING.ctypes.data

_from_buffer: Callable[[Any], Any] = ctypes.c_char.from_buffer
_addressof = ctypes.addressof


def address(array: np.ndarray) -> int:
    """Where an array lies; three times as fast as array.ctypes.data, where numpy allows it."""
    try:
        return _addressof(_from_buffer(array))
    except (TypeError, ValueError, BufferError):  # read-only, empty, or not contiguous
        return array.ctypes.data


def _names(types: Mapping[np.dtype, int]) -> str:
    return " or ".join(str(dtype) for dtype in types)


def without_mask(data: Any, name: str) -> Any:
    """The data, unless numpy has it masked: the library would read what the mask hides."""
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        raise ValueError(
            f"{name}: has masked entries; fill or drop them first (.filled(...), .compressed())"
        )
    return data


def _array(
    data: Any, types: Mapping[Any, int], name: str, feature: str, ndim: int = 1
) -> np.ndarray:
    """The array itself; lists, and arrays of other libraries, as numpy sees them."""
    if type(data) is not np.ndarray:
        without_mask(data, f"{name} of feature {feature!r}")
        if isinstance(data, (list, tuple)):
            data = np.asarray(data, dtype=next(iter(types)) if not len(data) else None)
        else:
            data = np.asarray(data)
    if data.dtype not in types:
        hint = _arrow.HINT_OF_TEXTS if data.dtype.kind in "OSU" else ""
        raise TypeError(
            f"{name} of feature {feature!r}: is {data.dtype}, must be {_names(types)}{hint}"
        )
    if data.ndim != ndim:
        raise ValueError(
            f"{name} of feature {feature!r}: has shape {data.shape}, must have {ndim} dimension"
            + ("s" if ndim > 1 else "")
        )
    if not data.flags.c_contiguous:
        raise ValueError(
            f"{name} of feature {feature!r}: is not contiguous; take numpy.ascontiguousarray of it"
        )
    out: np.ndarray = data
    return out


_FLOAT_TYPES = {_FLOAT32: _abi.FLOAT32}


def _floats(data: Any, name: str, feature: str, values: np.ndarray) -> np.ndarray:
    """One number for each value."""
    out = _array(data, _FLOAT_TYPES, name, feature)
    if out.size != values.size:
        raise ValueError(
            f"{name} of feature {feature!r}: has {out.size} entries, values has {values.size}"
        )
    return out


_BAGS = struct.Struct(_abi.BAGS_FORMAT)
_BATCH = struct.Struct("@QqPqPii")


class BatchReader:
    """Turns batches into what the library reads. Each thread has its own.

    `keep` holds what the addresses point to until the call has returned.
    """

    def __init__(
        self,
        feature_names: Sequence[str],
        unpooled: Sequence[int],
        optional: Collection[str] = (),
    ) -> None:
        self._names = list(feature_names)
        self._optional = frozenset(optional)  # names that a batch may lack
        self._unpooled = list(unpooled)  # indices of features
        self._bags = ctypes.create_string_buffer(_BAGS.size * max(1, len(self._names)))
        self._batch = ctypes.create_string_buffer(_BATCH.size)
        self.batch_address = ctypes.addressof(self._batch)
        self._bags_address = ctypes.addressof(self._bags)
        self._scores = (ctypes.c_void_p * max(1, len(self._names)))()
        self._scores_address = 0  # of the batch that is being read: that of _scores, or 0
        self._pack_bags = _BAGS.pack_into
        self._fixed: Dict[Tuple[int, int], Tuple[np.ndarray, int]] = {}  # offsets of equal bags
        # For put_equal: where the addresses of the values stand, and what else it wrote last.
        words = np.frombuffer(self._bags, dtype=np.uint64)
        self._values_at = words.reshape(-1, _BAGS.size // 8)[: len(self._names), 0]
        self._equal: Dict[Tuple[int, int, int], bytes] = {}
        self.keep: List[Any] = []
        self.unpooled_sizes: List[int] = []
        self.batch_size = 0
        self.on_device = 0  # 1: the arrays of this batch may lie on the tables' GPU

    def read(self, batch: Batch) -> int:
        """Sets batch_size and unpooled_sizes; returns the address of a hotrow_batch."""
        self.keep = []
        self.unpooled_sizes = []
        self._scores_address = 0
        self.on_device = 0
        if isinstance(batch, OfReader) and list(batch.names) != self._names:
            self._read_features(self._by_name(batch))
        elif isinstance(batch, Jagged):
            self._read_jagged(batch)
        elif isinstance(batch, Mapping):
            self._read_features(batch)
        elif hasattr(batch, "__arrow_c_array__"):
            self._read_features(_arrow.columns(batch))
        else:
            raise TypeError(
                f"batch: is {type(batch).__name__}, must be a dict of features, a hotrow.Jagged or "
                "an Arrow record batch (those of a table: hotrow.arrow_batches)"
            )
        return self.batch_address

    def _by_name(self, batch: OfReader) -> Dict[str, Bags]:
        """The features of data whose order is another."""
        if sorted(batch.names) != sorted(self._names):
            raise ValueError(
                f"batch: its data have the features {list(batch.names)}, the tables {self._names}; "
                "name the tables' features as the data do, or give hotrow.Jagged(*batch), which "
                "goes by position"
            )
        out, size, offsets = {}, batch.batch_size, batch.offsets
        for index, name in enumerate(batch.names):
            bounds = offsets[index * size : (index + 1) * size + 1]
            part = slice(int(bounds[0]), int(bounds[-1]))
            weights = None if batch.weights is None else batch.weights[part]
            out[name] = Bags(batch.values[part], lengths=np.diff(bounds), weights=weights)
        return out

    def _read_jagged(self, batch: Jagged) -> None:
        size = batch.batch_size
        if not isinstance(size, (int, np.integer)) or size < 0:
            raise ValueError(f"batch_size: is {size!r}, must be a number of samples")
        size = int(size)  # numpy's wrap around
        values, bags, is_offsets, _ = self._put(
            0, "all", batch.values, batch.lengths, batch.offsets, batch.weights, batch.scores
        )
        num_bags = len(bags) - 1 if is_offsets else len(bags)
        if num_bags != len(self._names) * size:
            raise ValueError(
                f"{'offsets' if is_offsets else 'lengths'}: has {len(bags)} entries, must have "
                f"{len(self._names) * size + is_offsets}, for {len(self._names)} features of "
                f"{size} samples"
            )
        for index in self._unpooled:
            begin, end = index * size, (index + 1) * size
            count = bags[end] - bags[begin] if is_offsets else bags[begin:end].sum()
            self.unpooled_sizes.append(int(count))
        self.batch_size = size
        self._pack(0)

    def put(
        self, index: int, values: int, offsets: int, lengths: int, size: int, values_type: int,
        bags_type: int, weights: int = 0,
    ) -> None:
        """The addresses of a feature, whose arrays the caller keeps; `end` follows the last one."""
        self._pack_bags(
            self._bags, index * _BAGS.size, values, offsets, lengths, weights, size, values_type,
            bags_type,
        )

    def put_equal(
        self, values: Sequence[int], count: int, hotness: int, values_type: int
    ) -> None:
        """The addresses of all features, `count` bags of `hotness` ids each, in their order; the
        same as `put` of each and `end`, at a fraction of its time."""
        fixed, where = self.fixed_offsets(count, hotness)
        self.keep.append(fixed)
        size = count * hotness
        key = (count, hotness, values_type)
        equal = self._equal.get(key)
        if equal is None:
            bags = _BAGS.pack(0, where, 0, 0, size, values_type, _abi.INT64)
            equal = self._equal[key] = bags * len(self._names)
        ctypes.memmove(self._bags_address, equal, len(equal))
        self._values_at[:] = values
        self.end(count, [size] * len(self._names))

    def end(self, batch_size: int, sizes: Sequence[int]) -> None:
        """sizes: values of each feature."""
        self.unpooled_sizes = [sizes[index] for index in self._unpooled]
        self.batch_size = batch_size
        self._pack(len(self._names))

    def end_jagged(self, batch_size: int) -> None:
        """The same where `put` had all features in one, and none of them is unpooled."""
        self.unpooled_sizes = []
        self.batch_size = batch_size
        self._pack(0)

    def _pack(self, num_features: int) -> None:
        _BATCH.pack_into(
            self._batch, 0, _BATCH.size, self.batch_size, self._bags_address, num_features,
            self._scores_address, self.on_device, 0,
        )
        self._scores_address = 0

    def fixed_offsets(self, count: int, hotness: int) -> Tuple[np.ndarray, int]:
        """The offsets of bags of as many ids each, and where they lie while the caller keeps them."""
        fixed = self._fixed.get((count, hotness))
        if fixed is None:
            offsets = np.arange(count + 1, dtype=np.int64) * hotness
            if len(self._fixed) > 64:
                self._fixed.clear()
                self._equal.clear()  # which have their addresses
            fixed = self._fixed[(count, hotness)] = (offsets, address(offsets))
        return fixed

    def _read_features(self, batch: Mapping[str, Any]) -> None:
        names = self._names
        if len(batch) != len(names) and not isinstance(batch, _arrow.Columns):
            unknown = [name for name in batch if name not in names]
            if unknown:
                raise ValueError(f"batch: no table has a feature {unknown[0]!r}")
        batch_size = -1
        sizes = []
        lacking = []
        for index, name in enumerate(names):
            try:
                ids = batch[name]
            except KeyError:
                if name not in self._optional:
                    raise ValueError(f"batch: feature {name!r} is missing") from None
                lacking.append(index)
                sizes.append(0)
                continue
            size = self._put_plain(index, ids, batch_size)
            if size < 0:
                count, size = self._put_feature(index, name, ids)
                if count != batch_size:
                    if batch_size >= 0:
                        raise ValueError(
                            f"feature {name!r}: has {count} samples, those before have {batch_size}"
                        )
                    batch_size = count
            sizes.append(size)
        if lacking:
            if batch_size < 0:
                raise ValueError(f"batch: has none of the features {', '.join(names)}")
            fixed, where = self.fixed_offsets(batch_size, 0)  # empty bags
            self.keep.append(fixed)
            for index in lacking:
                self.put(index, _NOTHING_AT, where, 0, 0, _abi.INT64, _abi.INT64)
        self.end(batch_size, sizes)

    def _put_plain(self, index: int, ids: Any, batch_size: int) -> int:
        """The usual forms in one go: numpy arrays of the batch size [B], or values and lengths [B].
        Returns the number of values; -1: anything else, which _put_feature looks at closely."""
        kind = type(ids)
        if kind is tuple and len(ids) == 2:
            values, lengths = ids
            if type(lengths) is not np.ndarray or lengths.shape != (batch_size,):
                return -1
            bags_type = _BAG_TYPES.get(lengths.dtype)
            if bags_type is None or not lengths.flags.c_contiguous:
                return -1
        elif kind is np.ndarray and ids.shape == (batch_size,):
            values, lengths, bags_type = ids, None, _abi.INT64
        else:
            return -1
        if type(values) is not np.ndarray or values.ndim != 1 or not values.flags.c_contiguous:
            return -1
        values_type = _ID_TYPES.get(values.dtype)
        if values_type is None:
            return -1
        try:
            where = _addressof(_from_buffer(values))
            if lengths is not None:
                offsets_at, lengths_at = 0, _addressof(_from_buffer(lengths))
            else:
                fixed = self._fixed.get((batch_size, 1))
                if fixed is None:
                    return -1
                lengths, offsets_at = fixed
                lengths_at = 0
        except (TypeError, ValueError, BufferError):
            return -1
        self.keep += (values, lengths)
        size = len(values)
        self._pack_bags(
            self._bags, index * _BAGS.size, where, offsets_at, lengths_at, 0, size, values_type,
            bags_type,
        )
        return size

    def _put_feature(self, index: int, name: str, ids: Any) -> Tuple[int, int]:
        """Returns the numbers of samples and of values."""
        kind = type(ids)
        if kind is tuple:
            if len(ids) != 2:
                raise ValueError(
                    f"feature {name!r}: is a tuple of {len(ids)}, must be (values, lengths)"
                )
            ids = Bags(ids[0], ids[1])
        elif kind is not Bags:
            if kind is not np.ndarray:
                ids = _arrow.bags(without_mask(ids, f"values of feature {name!r}"), name)
                if type(ids) is tuple:
                    ids = Bags(ids[0], None, ids[1])
            if type(ids) is not Bags:
                return self._put_fixed(index, name, ids)
        values, bags, is_offsets, num_values = self._put(index, name, *ids)
        if is_offsets and not len(bags):
            raise ValueError(f"offsets of feature {name!r}: is empty, must have one entry more "
                             "than samples")
        return len(bags) - is_offsets, num_values

    def _put_fixed(self, index: int, name: str, ids: Any) -> Tuple[int, int]:
        """[B] or [B, h] ids: as many for each sample."""
        array = ids if type(ids) is np.ndarray else np.asarray(ids)
        if array.ndim not in (1, 2):
            raise ValueError(f"feature {name!r}: has shape {array.shape}, must be [B] or [B, h]")
        array = _array(array, _ID_TYPES, "values", name, array.ndim)
        count = array.shape[0]
        hotness = array.shape[1] if array.ndim == 2 else 1
        fixed = self.fixed_offsets(count, hotness)
        self.keep.append(array)
        self.keep.append(fixed[0])
        self._pack_bags(
            self._bags, index * _BAGS.size, address(array), fixed[1], 0, 0, array.size,
            _ID_TYPES[array.dtype], _abi.INT64,
        )
        return count, array.size

    def _put(
        self, index: int, name: str, values: Any, lengths: Any, offsets: Any, weights: Any,
        scores: Any,
    ) -> Tuple[np.ndarray, np.ndarray, bool, int]:
        values = _array(values, _ID_TYPES, "values", name)
        is_offsets = offsets is not None
        if is_offsets == (lengths is not None):
            raise ValueError(f"feature {name!r}: must have either lengths or offsets")
        bags = _array(
            offsets if is_offsets else lengths, _BAG_TYPES, "offsets" if is_offsets else "lengths",
            name,
        )
        where = address(bags)
        weights_address = 0
        if weights is not None:
            weights = _floats(weights, "weights", name, values)
            weights_address = address(weights)
        if scores is not None:
            scores = _floats(scores, "scores", name, values)
            if not self._scores_address:
                ctypes.memset(self._scores, 0, ctypes.sizeof(self._scores))
                self._scores_address = ctypes.addressof(self._scores)
            self._scores[index] = address(scores)
        self.keep += (values, bags, weights, scores)
        self._pack_bags(
            self._bags, index * _BAGS.size, address(values), where if is_offsets else 0,
            0 if is_offsets else where, weights_address, values.size, _ID_TYPES[values.dtype],
            _BAG_TYPES[bags.dtype],
        )
        return values, bags, is_offsets, values.size


class Layout:
    """Where each feature's vectors lie in outputs and gradients."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.pooled_dim: int = description["pooled_dim"]
        self.names: List[str] = []
        self.columns: Dict[str, slice] = {}  # pooled features
        self.unpooled: List[Tuple[str, int]] = []  # names and dims
        for feature in description["features"]:
            name, dim = feature["name"], feature["dim"]
            self.names.append(name)
            if feature["pooling"] == "none":
                self.unpooled.append((name, dim))
            else:
                self.columns[name] = slice(feature["column"], feature["column"] + dim)
        #: Columns of `pooled`, then of each unpooled feature.
        self.output_dims: List[int] = [self.pooled_dim, *(dim for _, dim in self.unpooled)]

    @property
    def unpooled_indices(self) -> List[int]:
        return [self.names.index(name) for name, _ in self.unpooled]


def shown(pooled_features: List[str], pooled: Any, unpooled: Mapping[str, Any]) -> str:
    """Embeddings for people: shapes alone."""
    parts = [f"{name}={list(rows.shape)}" for name, rows in unpooled.items()]
    if pooled_features:
        parts.insert(0, f"pooled={list(pooled.shape)} of {', '.join(pooled_features)}")
    return f"Embeddings({', '.join(parts)})"


class Embeddings:
    """What a lookup gives, and the shapes that a gradient has.

    pooled: float32 [B, sum of dims] of the features with pooling, side by side, in their order.
    unpooled: for each feature with pooling "none": float32 [N, dim], a row for each of its lookups.
    embeddings["item"]: the part of one feature: [B, dim] (a view of `pooled`) or [N, dim].
    """

    __slots__ = ("pooled", "unpooled", "_layout")

    def __init__(
        self, layout: Layout, pooled: np.ndarray, unpooled: Dict[str, np.ndarray]
    ) -> None:
        self.pooled = pooled
        self.unpooled = unpooled
        self._layout = layout

    def __getitem__(self, feature: str) -> np.ndarray:
        columns = self._layout.columns.get(feature)
        return self.unpooled[feature] if columns is None else self.pooled[:, columns]

    def __repr__(self) -> str:
        return shown(list(self._layout.columns), self.pooled, self.unpooled)

    def empty_like(self) -> "Embeddings":
        """Of the same shapes, to be filled: for gradients."""
        return Embeddings(
            self._layout,
            np.empty_like(self.pooled),
            {name: np.empty_like(rows) for name, rows in self.unpooled.items()},
        )


_MATRIX = struct.Struct(_abi.MATRIX_FORMAT)
_NO_ROWS = np.empty((0, 0), dtype=np.float32)


def _matrix(array: Any, rows: int, cols: int, name: str, out: Any, at: int) -> None:
    if type(array) is not np.ndarray:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name}: is {type(array).__name__}, must be a numpy array")
        without_mask(array, name)
    if array.dtype != _FLOAT32:
        raise TypeError(f"{name}: is {array.dtype}, must be float32")
    if array.shape != (rows, cols):
        raise ValueError(f"{name}: has shape {array.shape}, must be {(rows, cols)}")
    strides = array.strides  # of an array without elements some versions of numpy say 0
    if array.size and (
        cols > 1 and strides[1] != 4 or rows > 1 and (strides[0] % 4 or strides[0] < 4 * cols)
    ):
        raise ValueError(
            f"{name}: its rows are not contiguous; take numpy.ascontiguousarray of it"
        )
    _MATRIX.pack_into(
        out, at, address(array) if array.flags.c_contiguous else array.ctypes.data, rows, cols,
        strides[0] // 4 if rows > 1 and array.size else cols, _abi.FLOAT32, 0,
    )


class MatrixWriter:
    """Describes outputs and gradients to the library. Each thread has its own."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.num_unpooled = len(layout.unpooled)
        self._buffer = ctypes.create_string_buffer(_MATRIX.size * (1 + self.num_unpooled))
        self.pooled_address = ctypes.addressof(self._buffer) if layout.columns else 0
        self.unpooled_address = (
            ctypes.addressof(self._buffer) + _MATRIX.size if self.num_unpooled else 0
        )

    def put(self, place: int, where: int, rows: int, cols: int) -> None:
        """The address of `pooled` (place 0) or of an unpooled feature, whose array the caller
        keeps: float32 [rows, cols], contiguous."""
        _MATRIX.pack_into(
            self._buffer, place * _MATRIX.size, where, rows, cols, cols, _abi.FLOAT32, 0
        )

    def new(self, batch_size: int, sizes: Sequence[int]) -> Embeddings:
        layout = self._layout
        return Embeddings(
            layout,
            np.empty((batch_size, layout.pooled_dim), dtype=np.float32),
            {
                name: np.empty((rows, dim), dtype=np.float32)
                for (name, dim), rows in zip(layout.unpooled, sizes)
            },
        )

    def write(
        self, data: Union[Embeddings, np.ndarray, Mapping[str, np.ndarray]], batch_size: int,
        sizes: Sequence[int], name: str, writable: bool = False,
    ) -> Any:
        """Returns what must be kept until the call has returned."""
        layout = self._layout
        if isinstance(data, Embeddings):
            pooled: Any = data.pooled
            unpooled: Mapping[str, np.ndarray] = data.unpooled
        elif isinstance(data, np.ndarray):
            if layout.unpooled:
                raise TypeError(
                    f"{name}: is one array, but feature {layout.unpooled[0][0]!r} is not pooled; "
                    "give a dict with an array for each feature"
                )
            pooled, unpooled = data, {}
        elif isinstance(data, Mapping) and not writable:
            pooled, unpooled = self._gather(data, batch_size, name), data
        else:
            kinds = "an array or" if writable else "an array, a dict or"
            raise TypeError(f"{name}: is {type(data).__name__}, must be {kinds} hotrow.Embeddings")
        if layout.columns:
            _matrix(pooled, batch_size, layout.pooled_dim, name, self._buffer, 0)
            if writable and not pooled.flags.writeable:
                raise ValueError(f"{name}: is read-only")
        for index, (feature, dim) in enumerate(layout.unpooled):
            if feature not in unpooled:
                raise ValueError(f"{name}: feature {feature!r} is missing")
            rows = unpooled[feature]
            _matrix(
                rows, sizes[index], dim, f"{name}[{feature!r}]", self._buffer,
                (1 + index) * _MATRIX.size,
            )
            if writable and not rows.flags.writeable:
                raise ValueError(f"{name}[{feature!r}]: is read-only")
        return pooled, unpooled

    def _gather(
        self, data: Mapping[str, np.ndarray], batch_size: int, name: str
    ) -> Optional[np.ndarray]:
        """The pooled features of a dict side by side."""
        layout = self._layout
        pooled = np.empty((batch_size, layout.pooled_dim), dtype=np.float32)
        for feature, columns in layout.columns.items():
            if feature not in data:
                raise ValueError(f"{name}: feature {feature!r} is missing")
            part = np.asarray(without_mask(data[feature], f"{name}[{feature!r}]"))
            expected = (batch_size, columns.stop - columns.start)
            if part.dtype != _FLOAT32:
                raise TypeError(f"{name}[{feature!r}]: is {part.dtype}, must be float32")
            if part.shape != expected:
                raise ValueError(
                    f"{name}[{feature!r}]: has shape {part.shape}, must be {expected}"
                )
            pooled[:, columns] = part
        return pooled
