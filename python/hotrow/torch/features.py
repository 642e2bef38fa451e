"""Ids of a batch as torch users keep them, flattened to the lists of tensors of an operator.

`encode` may be traced by torch.compile; the rest sees real tensors only.
"""

from collections.abc import Mapping
from typing import Any, Collection, List, NamedTuple, Sequence, Tuple

import numpy as np
import torch

from .. import batches

# What stands in `kinds`: how the bags of a feature are told. WEIGHTED is added.
FIXED, LENGTHS, OFFSETS, WEIGHTED = 0, 1, 2, 4


class Encoded(NamedTuple):
    """values: one tensor a feature, in the tables' order, or a single one with all features.
    bags, weights: of those that have them, in the same order. kinds: one for each of `values`.
    keys: [] or, for a single one, how many features it has and which of them each of ours is."""

    values: List[torch.Tensor]
    bags: List[torch.Tensor]
    weights: List[torch.Tensor]
    kinds: List[int]
    keys: List[int]


def _call(ids: Any, *names: str) -> Any:
    for name in names:
        method = getattr(ids, name, None)
        if method is not None:
            found = method()
            if found is not None:
                return found
    return None


def is_keyed(features: Any) -> bool:
    """Whether it looks like TorchRec's KeyedJaggedTensor."""
    return (
        not isinstance(features, (dict, Mapping, torch.Tensor))
        and callable(getattr(features, "keys", None))
        and callable(getattr(features, "values", None))
        and (hasattr(features, "lengths") or hasattr(features, "offsets"))
    )


def bags_of(ids: Any) -> Tuple[Any, Any, Any, Any]:
    """values, lengths, offsets, weights."""
    if isinstance(ids, torch.Tensor):
        if ids.is_nested:
            nested: Any = ids
            if ids.layout != torch.jagged or nested.lengths() is not None:
                raise ValueError(
                    "nested tensor: must have layout=torch.jagged, and no holes between its parts "
                    "(as torch.nested.narrow leaves); give (values, lengths)"
                )
            return nested.values(), None, nested.offsets(), None
        return ids, None, None, None
    if isinstance(ids, batches.Bags):
        return ids.values, ids.lengths, ids.offsets, ids.weights
    if isinstance(ids, (tuple, list)) and len(ids) == 2:
        return ids[0], ids[1], None, None
    if callable(getattr(ids, "values", None)):  # TorchRec's JaggedTensor
        lengths = _call(ids, "lengths_or_none", "lengths")
        offsets = _call(ids, "offsets") if lengths is None else None
        return ids.values(), lengths, offsets, _call(ids, "weights_or_none")
    return ids, None, None, None


def _check(tensor: Any, what: str, name: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what} of feature {name!r}: is {type(tensor).__name__}, must be a tensor")


def encode(
    features: Any, names: Sequence[str], optional: Collection[str] = frozenset()
) -> Encoded:
    """features: a mapping with tensors for each name (others are passed over), keyed, or a list of
    mappings. optional: names that a mapping may lack."""
    if isinstance(features, list):
        return joined([encode(part, names, optional) for part in features], names)
    out = Encoded([], [], [], [], [])
    if is_keyed(features):
        keys = list(features.keys())
        out.keys.append(len(keys))
        for name in names:
            if name not in keys:
                raise ValueError(f"batch: feature {name!r} is missing")
            out.keys.append(keys.index(name))
        lengths = _call(features, "lengths_or_none", "lengths")
        offsets = _call(features, "offsets") if lengths is None else None
        _add(out, "all", features.values(), lengths, offsets, _call(features, "weights_or_none"))
        return out
    if isinstance(features, batches.Jagged):
        raise TypeError(
            "batch: has arrays of numpy; hotrow.torch.Dataset(data, batch_size, split) gives tensors"
        )
    if not isinstance(features, Mapping):
        raise TypeError(
            f"batch: is {type(features).__name__}, must be a dict of features, a list of dicts or "
            "like TorchRec's KeyedJaggedTensor"
        )
    if optional:
        features = _with_empty(features, names, optional)
    for name in names:
        if name not in features:
            raise ValueError(f"batch: feature {name!r} is missing")
        ids = features[name]
        if type(ids) is torch.Tensor and not ids.is_nested:  # _add would do the same, later
            out.values.append(ids)
            out.kinds.append(FIXED)
        else:
            _add(out, name, *bags_of(ids))
    return out


def _with_empty(features: Any, names: Sequence[str], optional: Collection[str]) -> Any:
    """The features, with empty bags for those of `optional` that are not there."""
    lacking = [name for name in names if name in optional and name not in features]
    present = [name for name in names if name in features]
    if not lacking or not present:
        return features
    some = encode({present[0]: features[present[0]]}, present[:1])
    ids, count = some.values[0], batch_size_of(some)
    nothing = (ids.new_empty(0, dtype=torch.int64), ids.new_zeros(count, dtype=torch.int64))
    return {**features, **{name: nothing for name in lacking}}


def _add(out: Encoded, name: str, values: Any, lengths: Any, offsets: Any, weights: Any) -> None:
    _check(values, "values", name)
    kind = FIXED
    if lengths is not None:
        _check(lengths, "lengths", name)
        out.bags.append(lengths)
        kind = LENGTHS
    elif offsets is not None:
        _check(offsets, "offsets", name)
        out.bags.append(offsets)
        kind = OFFSETS
    if weights is not None:
        _check(weights, "weights", name)
        if weights.requires_grad:
            raise ValueError(
                f"weights of feature {name!r}: require a gradient, which tables do not compute; "
                "detach them, or weight the rows of a table with pooling='none'"
            )
        out.weights.append(weights)
        kind += WEIGHTED
    out.values.append(values)
    out.kinds.append(kind)


def joined(parts: Sequence[Encoded], names: Sequence[str]) -> Encoded:
    """The samples of several batches one after the other."""
    if not parts or any(part.keys for part in parts):
        raise TypeError("batch: is a list, which must hold dicts of features")
    out = Encoded([], [], [], [], [])
    bags, weights = [iter(part.bags) for part in parts], [iter(part.weights) for part in parts]
    for index, name in enumerate(names):
        values, lengths, factors = [], [], []
        weighted = any(part.kinds[index] & WEIGHTED for part in parts)
        for part, its_bags, its_weights in zip(parts, bags, weights):
            ids, kind = part.values[index], part.kinds[index]
            some = next(its_weights) if kind & WEIGHTED else None
            if kind & ~WEIGHTED == FIXED:
                hotness = ids.shape[1] if ids.dim() == 2 else 1
                counts = ids.new_full((ids.shape[0],), hotness, dtype=torch.int64)
                ids = ids.reshape(-1)
            else:
                counts = next(its_bags)
                if kind & ~WEIGHTED == OFFSETS:
                    within = slice(counts[0], counts[-1])
                    ids, counts = ids[within], counts.diff()
                    some = None if some is None else some[within]
            values.append(ids)
            lengths.append(counts.to(torch.int64))
            factors.append(torch.ones_like(ids, dtype=torch.float32) if some is None else some)
        full = [ids for ids in values if ids.numel()] or values[:1]
        if any(ids.dtype != full[0].dtype for ids in full):
            raise TypeError(f"values of feature {name!r}: have several types in a list of batches")
        out.values.append(torch.cat(full))
        out.bags.append(torch.cat(lengths))
        out.kinds.append(LENGTHS + (WEIGHTED if weighted else 0))
        if weighted:
            out.weights.append(torch.cat(factors))
    return out


def batch_size_of(encoded: Encoded) -> Any:
    """Also of fake tensors."""
    kind = encoded.kinds[0] & ~WEIGHTED
    if kind == FIXED:
        return encoded.values[0].shape[0]
    bags = encoded.bags[0].shape[0] - (1 if kind == OFFSETS else 0)
    return bags // encoded.keys[0] if encoded.keys else bags


def same(a: Encoded, b: Encoded) -> bool:
    """Whether both name the same ids in the same form."""
    if a.kinds != b.kinds or a.keys != b.keys:
        return False
    for mine, theirs in zip(a[:3], b[:3]):
        for x, y in zip(mine, theirs):
            if x is y:
                continue
            if x.shape != y.shape:
                return False
            same_place = x.data_ptr() == y.data_ptr() and x.stride() == y.stride()
            if not (same_place and x.dtype == y.dtype) and not torch.equal(x.cpu(), y.cpu()):
                return False
    return True


def versions(encoded: Encoded) -> List[int]:
    """Numbers that change when ids are overwritten."""
    return [
        -1 if tensor.is_inference() else tensor._version
        for tensors in encoded[:3]
        for tensor in tensors
    ]


def _array(tensor: torch.Tensor, device: torch.device, what: str, name: str) -> np.ndarray:
    if tensor.device != device:
        raise ValueError(
            f"{what} of feature {name!r}: is on {tensor.device}, what stands before it in the "
            f"batch on {device}; a batch must be on one device"
        )
    if tensor.is_meta:
        raise ValueError(f"{what} of feature {name!r}: is on the device meta, and has no data")
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor.numpy() if tensor.device.type == "cpu" else tensor.cpu().numpy()


def decode(encoded: Encoded, names: Sequence[str]) -> batches.Batch:
    """What EmbeddingCollection.prefetch takes; CPU tensors are read where they lie."""
    bags, weights = iter(encoded.bags), iter(encoded.weights)
    features: List[Any] = []
    device = encoded.values[0].device
    for values, kind, name in zip(
        encoded.values, encoded.kinds, ["all"] if encoded.keys else names
    ):
        told = kind & ~WEIGHTED
        array = _array(values, device, "values", name)
        if told == FIXED and not kind:
            features.append(array)
            continue
        how = "lengths" if told == LENGTHS else "offsets"
        some = _array(next(bags), device, how, name) if told else None
        features.append(
            batches.Bags(
                array,
                some if told == LENGTHS else None,
                some if told == OFFSETS else None,
                _array(next(weights), device, "weights", name) if kind & WEIGHTED else None,
            )
        )
    if not encoded.keys:
        return dict(zip(names, features))
    whole = features[0]
    if not isinstance(whole, batches.Bags):
        raise ValueError("batch: has neither lengths nor offsets")
    count, order = encoded.keys[0], encoded.keys[1:]
    if count == len(names) and order == list(range(count)):
        return batches.Jagged(int(batch_size_of(encoded)), *whole)
    parts = split(whole, count)
    return {name: parts[index] for name, index in zip(names, order)}


def split(jagged: batches.Bags, count: int) -> List[batches.Bags]:
    """The features of one that has `count`, feature-major."""
    offsets = jagged.offsets
    if offsets is None:
        offsets = np.concatenate([[0], np.cumsum(jagged.lengths)])
        if offsets[-1] != len(jagged.values):
            raise ValueError(
                f"lengths: are of {offsets[-1]} values, values has {len(jagged.values)}"
            )
    size, left = divmod(len(offsets) - 1, count)
    if left:
        raise ValueError(
            f"batch: has {len(offsets) - 1} bags, must have as many for each of {count} features"
        )
    out = []
    for index in range(count):
        bounds = offsets[index * size : (index + 1) * size + 1]
        begin, end = int(bounds[0]), int(bounds[-1])
        out.append(
            batches.Bags(
                jagged.values[begin:end],
                np.diff(bounds),
                None,
                None if jagged.weights is None else jagged.weights[begin:end],
                None if jagged.scores is None else jagged.scores[begin:end],
            )
        )
    return out


def join(several: Sequence[batches.Batch], names: Sequence[str]) -> batches.Batch:
    """The samples of several batches as one batch."""
    if len(several) == 1:
        return several[0]
    columns: List[List[batches.Bags]] = [[] for _ in names]
    for batch in several:
        if isinstance(batch, batches.Jagged):
            parts = split(batches.Bags(*batch[1:]), len(names))
        else:
            parts = [_by_lengths(batch[name]) for name in names]
        for column, part in zip(columns, parts):
            column.append(part)
    return {name: _concatenate(column) for name, column in zip(names, columns)}


def _by_lengths(ids: Any) -> batches.Bags:
    if not isinstance(ids, batches.Bags):
        hotness = ids.shape[1] if ids.ndim == 2 else 1
        return batches.Bags(ids.reshape(-1), np.full(len(ids), hotness, dtype=np.int64))
    if ids.lengths is None:
        part = slice(int(ids.offsets[0]), int(ids.offsets[-1]))
        weights, scores = (
            None if each is None else each[part] for each in (ids.weights, ids.scores)
        )
        return batches.Bags(ids.values[part], np.diff(ids.offsets), None, weights, scores)
    return ids


def _concatenate(parts: Sequence[batches.Bags]) -> batches.Bags:
    weights = None
    if any(part.weights is not None for part in parts):
        weights = np.concatenate(
            [
                np.ones(len(part.values), np.float32) if part.weights is None else part.weights
                for part in parts
            ]
        )
    scores = None
    if any(part.scores is not None for part in parts):
        if any(part.scores is None for part in parts):
            raise ValueError("scores: some batches of a step have them, others have none")
        scores = np.concatenate([part.scores for part in parts])
    values = [part.values for part in parts if len(part.values)] or [parts[0].values]
    if len({ids.dtype for ids in values}) > 1:  # numpy would widen -1 of int32, which has no key
        raise TypeError("values: have several types in the batches of a step")
    return batches.Bags(
        np.concatenate(values),
        np.concatenate([part.lengths for part in parts]),
        None,
        weights,
        scores,
    )
