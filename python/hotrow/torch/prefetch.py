"""Batches of a loader, whose rows are made ready while the model trains on those before."""

import collections
import itertools
from typing import Any, Callable, Deque, Iterable, Iterator, List, Mapping, Optional, Tuple

from .._checks import integer
from .features import is_keyed
from .module import EmbeddingCollection
from .passes import Work


def _looks_right(batch: Any, names: List[str]) -> bool:
    return is_keyed(batch) or isinstance(batch, Mapping) and all(name in batch for name in names)


def _find(batch: Any, names: List[str]) -> Any:
    """The features in what a loader gives."""
    if _looks_right(batch, names):
        return batch
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(parts, (tuple, list)) or isinstance(batch, Mapping):
        found = [part for part in parts if _looks_right(part, names)]
        if len(found) == 1:
            return found[0]
    raise TypeError(
        f"batch: is {type(batch).__name__}, in which the features of the tables are not found; "
        "give features=, a function from a batch to its features"
    )


def prefetch(
    loader: Iterable[Any],
    tables: EmbeddingCollection,
    depth: int = 1,
    *,
    accumulate: int = 1,
    features: Optional[Callable[[Any], Any]] = None,
) -> Iterator[Any]:
    """The batches of `loader`, as they are; rows of the next `depth` steps become resident.

        for batch in hotrow.torch.prefetch(loader, tables, depth=2):
            loss(model(batch)).backward()

    tables: with a prefetch_depth of at least `depth`. The model looks up each batch once and in
    order. In eval mode batches pass through.
    accumulate: so many batches are one step: their lookups see the same rows, their gradients add
    up, and the backward of the last one moves the rows. max_batch_size holds for all of them.
    features: from a batch to its features; by default the batch itself, or the only part of it that
    has features of all names.
    A batch that the loop passes over changes nothing; when the loop ends early, the steps ahead are
    cancelled.
    """
    depth = integer(depth, "depth", 0)
    accumulate = integer(accumulate, "accumulate", 1)
    most = tables.collection.prefetch_depth
    if depth > most:
        raise ValueError(
            f"depth: is {depth}, but the tables were made with prefetch_depth={most}"
        )
    return _iterate(iter(loader), tables, depth, accumulate, features)


def _iterate(
    batches: Iterator[Any],
    tables: EmbeddingCollection,
    depth: int,
    accumulate: int,
    features: Optional[Callable[[Any], Any]],
) -> Iterator[Any]:
    if not tables.training:
        yield from batches
        return
    passes = tables._passes
    names = [name for name in tables.feature_names if name not in passes.optional]
    ahead: Deque[Tuple[Work, List[Any]]] = collections.deque()

    def find(batch: Any) -> Any:
        return features(batch) if features else _find(batch, names)

    def give(work: Work, group: List[Any]) -> Iterator[Any]:
        for index, batch in enumerate(group):
            yield batch
            work.skip(index)
        passes.forget(work)

    try:
        while True:
            group = list(itertools.islice(batches, accumulate))
            if group:
                ahead.append((passes.prefetch(group, find), group))
            if not ahead:
                return
            if len(ahead) > depth or not group:
                yield from give(*ahead[0])
                ahead.popleft()
    finally:
        for work, _ in ahead:
            passes.forget(work)
