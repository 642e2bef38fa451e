"""Steps whose ids, vectors and gradients are tensors, described to the library by their addresses.
Arrays of numpy between would cost as much as the rest of a small step.
"""

from typing import List, Sequence

import torch

from .. import _abi
from ..batches import BatchReader, MatrixWriter
from ..collection import EMULATED, EmbeddingCollection, Step
from .features import FIXED, LENGTHS, OFFSETS, WEIGHTED, Encoded, decode

_TYPES = {torch.int64: _abi.INT64, torch.int32: _abi.INT32}


def _on_gpu(collection: EmbeddingCollection, tensor: torch.Tensor) -> bool:
    """Whether the tables' GPU has it."""
    return (
        not tensor.is_cpu and collection.device != "cpu" and tensor.device == device_of(collection)
    )


def _plain(tensor: torch.Tensor, like: torch.Tensor) -> bool:
    """Whether the library can read integers where they lie, which is where `like` does."""
    return (
        type(tensor) is torch.Tensor
        and tensor.dtype in _TYPES
        and tensor.is_contiguous()
        and (tensor.is_cpu if like.is_cpu else tensor.device == like.device)
    )


def _describe_equal(reader: BatchReader, values: Sequence[torch.Tensor]) -> bool:
    """The most usual batch: as many ids in every bag of every feature. False: it is another."""
    first = values[0]
    shape, dtype, in_host = first.shape, first.dtype, first.is_cpu
    if dtype not in _TYPES or not 1 <= len(shape) <= 2:
        return False
    plain = torch.Tensor
    for ids in values:
        if not (
            type(ids) is plain
            and ids.dtype is dtype
            and (ids.is_cpu if in_host else ids.device == first.device)
            and ids.is_contiguous()
            and ids.shape == shape
        ):
            return False
    hotness = shape[1] if len(shape) == 2 else 1
    reader.put_equal([ids.data_ptr() for ids in values], shape[0], hotness, _TYPES[dtype])
    return True


def _weights_at(weights: torch.Tensor, values: torch.Tensor) -> int:
    """0: they are not as the library reads them."""
    plain = (
        type(weights) is torch.Tensor
        and weights.dtype is torch.float32
        and weights.device == values.device
        and weights.is_contiguous()
        and weights.shape == values.shape
    )
    return weights.data_ptr() if plain else 0


def _describe_keyed(
    collection: EmbeddingCollection, reader: BatchReader, encoded: Encoded
) -> bool:
    """All features in one tensor, in the tables' order, none of them unpooled: nothing depends on
    numbers that the GPU has."""
    layout, count = collection._layout, encoded.keys[0]
    values, told = encoded.values[0], encoded.kinds[0] & ~WEIGHTED
    if told == FIXED or layout.unpooled or encoded.keys[1:] != list(range(count)):
        return False
    bags, num_bags = encoded.bags[0], encoded.bags[0].numel() - (told == OFFSETS)
    if not (_plain(values, values) and _plain(bags, values) and values.dim() == bags.dim() == 1):
        return False
    weights = _weights_at(encoded.weights[0], values) if encoded.weights else 0
    if count != len(layout.names) or num_bags % count or encoded.weights and not weights:
        return False
    at = bags.data_ptr()
    offsets, lengths = (0, at) if told == LENGTHS else (at, 0)
    reader.put(0, values.data_ptr(), offsets, lengths, values.numel(), _TYPES[values.dtype],
               _TYPES[bags.dtype], weights)
    reader.end_jagged(num_bags // count)
    return True


def _describe(collection: EmbeddingCollection, reader: BatchReader, encoded: Encoded) -> bool:
    """False: the batch has another form than the usual ones, or something is wrong with it."""
    first = encoded.values[0]
    reader.on_device = int(_on_gpu(collection, first))
    if not reader.on_device and (encoded.keys or encoded.weights or not first.is_cpu):
        return False
    reader.keep = []
    if encoded.keys:
        return _describe_keyed(collection, reader, encoded)
    if not encoded.bags and not encoded.weights and _describe_equal(reader, encoded.values):
        return True
    bags, weights = iter(encoded.bags), iter(encoded.weights)
    batch_size = -1
    sizes = []
    for index, (values, kind) in enumerate(zip(encoded.values, encoded.kinds)):
        if not _plain(values, first):
            return False
        weights_at = 0
        if kind & WEIGHTED:
            kind -= WEIGHTED
            weights_at = _weights_at(next(weights), values)
            if not weights_at and values.numel():
                return False
        shape = values.shape
        if kind == FIXED:
            if not 1 <= len(shape) <= 2:
                return False
            count = shape[0]
            fixed, where = reader.fixed_offsets(count, shape[1] if len(shape) == 2 else 1)
            reader.keep.append(fixed)
            bags_at, bags_type = (where, 0), _abi.INT64
        else:
            some = next(bags)
            if len(shape) != 1 or not _plain(some, first) or some.dim() != 1 or not len(some):
                return False
            count = len(some) - (kind == OFFSETS)
            where = some.data_ptr()
            bags_at = (0, where) if kind == LENGTHS else (where, 0)
            bags_type = _TYPES[some.dtype]
        if count != batch_size:
            if batch_size >= 0:
                return False
            batch_size = count
        size = values.numel()
        reader.put(
            index, values.data_ptr(), *bags_at, size, _TYPES[values.dtype], bags_type, weights_at
        )
        sizes.append(size)
    reader.end(batch_size, sizes)
    return True


def _read(collection: EmbeddingCollection, encoded: Encoded) -> BatchReader:
    """The tensors of `encoded` must outlive the call that this is for."""
    reader = collection._scratch.reader
    if not _describe(collection, reader, encoded):
        reader.read(decode(encoded, collection._layout.names))
    return reader


def _point_to(writer: MatrixWriter, tensors: Sequence[torch.Tensor]) -> None:
    for place, tensor in enumerate(tensors):
        rows, dim = tensor.shape
        writer.put(place, tensor.data_ptr(), rows, dim)


def device_of(collection: EmbeddingCollection) -> torch.device:
    """Where outputs and gradients lie."""
    return torch.device("cpu" if EMULATED else collection.device)


def empty(
    collection: EmbeddingCollection, sizes: Sequence[int], pin: bool = False
) -> List[torch.Tensor]:
    """[pooled, unpooled of each feature]. sizes: samples, then values of each of these features.
    pin: host memory alone."""
    # The device is told, since torch.set_default_device may name another, whose memory the library
    # does not reach.
    device = device_of(collection)
    dims = collection._layout.output_dims
    return [
        torch.empty(
            (rows, dim), dtype=torch.float32, device=device,
            pin_memory=pin and device.type == "cpu",
        )
        for rows, dim in zip(sizes, dims)
    ]


class _InOrder:
    """A call on tables of a GPU comes behind what torch's current stream has, and before what that
    gets later. The caching allocator then may give memory of the call to whom it likes."""

    def __init__(self, collection: EmbeddingCollection) -> None:
        self._collection = collection

    def __enter__(self) -> None:
        collection = self._collection
        if collection.device == "cpu":
            return
        stream = 0 if EMULATED else torch.cuda.current_stream(collection.device).cuda_stream
        if stream != collection._stream:
            _abi.collection_use_stream(collection._handle, stream or None)
            collection._stream = stream

    def __exit__(self, *_: object) -> None:
        if EMULATED:
            self._collection._wait()


def prefetch(collection: EmbeddingCollection, encoded: Encoded) -> Step:
    if not _read(collection, encoded).on_device:
        return collection._begin()
    with _InOrder(collection):
        return collection._begin()


def lookup(step: Step, out: Sequence[torch.Tensor]) -> None:
    """out: of `empty`."""
    _point_to(step._scratch.writer, out)
    with _InOrder(step._tables):
        step._lookup()


def update(step: Step, gradients: Sequence[torch.Tensor], lr_factor: float) -> None:
    """gradients: of the shapes of `empty`: float32, contiguous, where the tables are."""
    _point_to(step._scratch.writer, gradients)
    with _InOrder(step._tables):
        step._update(lr_factor)


def evaluate(
    collection: EmbeddingCollection, encoded: Encoded, pin: bool = False
) -> List[torch.Tensor]:
    reader = _read(collection, encoded)
    out = empty(collection, [reader.batch_size, *reader.unpooled_sizes], pin)
    _point_to(collection._scratch.writer, out)
    with _InOrder(collection):
        collection._evaluate()
    return out
