"""Passes of a model through tables: which step an output came from, and what its backward moves.

`Passes` is what the operators (ops.py) call. A *work* is one step of the collection with the
batches that it serves: one, or several whose gradients are collected. A *pass* is one lookup that
waits for its backward; its number is the token that the autograd graph keeps.
"""

import collections
import itertools
import weakref
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

from .. import batches, errors
from ..collection import EmbeddingCollection, Step
from .features import Encoded, decode, join, same, versions

_numbers = itertools.count(1)
_registry: "weakref.WeakValueDictionary[int, Passes]" = weakref.WeakValueDictionary()


def find(number: int) -> "Passes":
    passes = _registry.get(number)
    if passes is None:
        raise errors.FailedPrecondition("the tables of this model are gone")
    return passes


class _Buffer:
    """Outputs or gradients of one step, with the part of each of its batches."""

    def __init__(self, layout: batches.Layout, sizes: Sequence[Sequence[int]], device: Any) -> None:
        """sizes: of each batch: samples, then values of each unpooled feature."""
        self.layout = layout
        totals = [sum(column) for column in zip(*sizes)]
        dims = [layout.pooled_dim] + [dim for _, dim in layout.unpooled]
        pin = device.type == "cuda"
        self.whole = [
            torch.empty((rows, dim), dtype=torch.float32, pin_memory=pin)
            for rows, dim in zip(totals, dims)
        ]
        self._bounds = [[0, *itertools.accumulate(column)] for column in zip(*sizes)]

    def arrays(self) -> batches.Embeddings:
        parts = [tensor.numpy() for tensor in self.whole]
        names = (name for name, _ in self.layout.unpooled)
        return batches.Embeddings(self.layout, parts[0], dict(zip(names, parts[1:])))

    def part(self, index: int) -> List[torch.Tensor]:
        if len(self._bounds[0]) == 2:
            return self.whole
        # By numpy: autograd takes slices of a tensor for views of it, which a model may not change
        # in place.
        return [
            torch.from_numpy(tensor.numpy()[bounds[index] : bounds[index + 1]])
            for tensor, bounds in zip(self.whole, self._bounds)
        ]


class Work:
    """One step, and the batches that it serves."""

    def __init__(self, passes: "Passes", parts: Sequence[Encoded]) -> None:
        self.parts = list(parts)
        self.versions = [versions(part) for part in parts]
        self.looked_up = [False] * len(parts)
        self.waiting = len(parts)  # batches whose backward has not come
        self.updated = False
        self._passes = passes
        decoded = [decode(part, passes.names) for part in parts]
        self.sizes = [passes.sizes_of(batch) for batch in decoded] if len(parts) > 1 else []
        self.step: Step = passes.collection.prefetch(join(decoded, passes.names))
        if not self.sizes:
            self.sizes = [[self.step.batch_size, *self.step._sizes]]
        self._outputs: Optional[_Buffer] = None
        self._gradients: Optional[_Buffer] = None

    def lookup(self, index: int) -> List[torch.Tensor]:
        device = self.parts[index].values[0].device
        if self._outputs is None:
            self._outputs = _Buffer(self._passes.layout, self.sizes, device)
            self.step.lookup(out=self._outputs.arrays())
        self.looked_up[index] = True
        out = self._outputs.part(index)
        return [part.to(device) for part in out] if device.type != "cpu" else out

    def add(self, index: int, gradients: Sequence[Optional[torch.Tensor]]) -> None:
        """The backward of one batch; the last one moves the rows."""
        if len(self.parts) == 1:
            self.waiting = 0
            self._finish(self._passes.embeddings(gradients, self.sizes[0]))
            return
        if self._gradients is None:
            self._gradients = _Buffer(self._passes.layout, self.sizes, torch.device("cpu"))
            for tensor in self._gradients.whole:
                tensor.zero_()
        for place, gradient in zip(self._gradients.part(index), gradients):
            if gradient is not None:
                place.copy_(gradient)
        self._count()

    def skip(self, index: int) -> None:
        """A batch that the loop passed over: nothing to add."""
        if not self.looked_up[index]:
            self.looked_up[index] = True
            self._count()

    def _count(self) -> None:
        self.waiting -= 1
        if self.waiting == 0:
            if self._gradients is None:
                self.step.cancel()
            else:
                self._finish(
                    self._passes.embeddings(self._gradients.whole, self._gradients_sizes())
                )

    def _gradients_sizes(self) -> List[int]:
        return [sum(column) for column in zip(*self.sizes)]

    def _finish(self, gradient: batches.Embeddings) -> None:
        self.updated = True
        self._outputs = self._gradients = None
        self.step.update(gradient, lr_factor=self._passes.lr_factor)

    def drop(self) -> None:
        """Ends a step whose backward has not come."""
        if self.updated:
            return
        self.step.cancel()
        if self._gradients is not None and self.waiting:
            self._gradients = None
            raise errors.FailedPrecondition(
                f"{self.waiting} of the {len(self.parts)} batches of the step before had no "
                "backward; the gradients of the others are lost"
            )


class _Collected:
    """A lookup within no_update, or the one that ends it: read beside the steps."""

    def __init__(self, batch: batches.Batch, last: bool) -> None:
        self.batch = batch
        self.last = last


class Passes:
    """Not for several threads at once: a model has one forward or backward at a time."""

    def __init__(self, collection: EmbeddingCollection, gradient_scale: float) -> None:
        self.collection = collection
        self.layout = collection._layout
        self.names = collection.feature_names
        self.number = next(_numbers)
        self.gradient_scale = gradient_scale
        self.grad_scaler: Any = None
        self.parameters: Dict[str, Any] = {"lr": 1.0}  # of the torch optimizer that schedules it
        self.collecting = False
        self._ahead: Deque[Work] = collections.deque()
        self._current: Optional[Work] = None
        self._waiting: Dict[int, Tuple[Any, int]] = {}  # token: (Work or _Collected, batch)
        self._gathered: List[Tuple[batches.Batch, batches.Embeddings]] = []
        self._reader = batches.BatchReader(self.names, self.layout.unpooled_indices)
        self._tokens = itertools.count(1)
        _registry[self.number] = self

    @property
    def lr_factor(self) -> float:
        return float(self.parameters["lr"])

    def sizes_of(self, batch: batches.Batch) -> List[int]:
        """Samples, and values of each unpooled feature."""
        reader = self._reader
        reader.read(batch)
        reader.keep = []
        return [reader.batch_size, *reader.unpooled_sizes]

    # ---- Ahead of the model ----

    def prefetch(self, parts: Sequence[Encoded]) -> Work:
        work = Work(self, parts)
        self._ahead.append(work)
        return work

    def forget(self, work: Work) -> None:
        """Cancels a step of which batches were not looked up, and will not be."""
        if work in self._ahead:
            self._ahead.remove(work)
            work.step.cancel()
        elif work is self._current and False in work.looked_up:
            work.step.cancel()
            self._current = None

    def end(self) -> None:
        """Cancels what is under way."""
        self._waiting.clear()
        self._gathered.clear()
        for work in (self._current, *self._ahead):
            if work is not None and not work.updated:
                work.step.cancel()
        self._current = None
        self._ahead.clear()

    # ---- Operators ----

    def lookup(self, encoded: Encoded) -> Tuple[int, List[torch.Tensor]]:
        """The token, and [pooled, unpooled of each feature]."""
        work = self._current
        if work is not None and False in work.looked_up:
            self._expect(work, encoded)
        elif self._ahead:
            if self.collecting or self._gathered:
                raise errors.FailedPrecondition(
                    "no_update: these batches are prefetched; give hotrow.torch.prefetch the "
                    "argument accumulate instead"
                )
            self._expect(self._ahead[0], encoded)
            self._drop_current()
            work = self._current = self._ahead.popleft()
        elif self.collecting or self._gathered:
            return self._lookup_beside(encoded)
        else:
            self._drop_current()
            work = self._current = Work(self, [encoded])
        index = work.looked_up.index(False)
        try:
            outputs = work.lookup(index)
        except BaseException:  # such a step can only be cancelled
            self._current = None
            work.step.cancel()
            raise
        return self._token(work, index), outputs

    def update(self, token: int, gradients: Sequence[Optional[torch.Tensor]]) -> None:
        origin, index = self._waiting.pop(token, (None, 0))
        if origin is None:
            raise errors.FailedPrecondition(
                "backward: the rows of this lookup have been updated already, or the tables were "
                "looked up again before its backward; to add up the gradients of several passes "
                "see no_update and hotrow.torch.prefetch(accumulate=)"
            )
        if isinstance(origin, Work):
            origin.add(index, gradients)
            return
        sizes = self.sizes_of(origin.batch)
        self._gathered.append((origin.batch, self.embeddings(gradients, sizes)))
        if origin.last:
            gathered, self._gathered = self._gathered, []
            self._update_gathered(gathered)

    def evaluate(self, encoded: Encoded) -> List[torch.Tensor]:
        """[pooled, unpooled of each feature]; nothing changes."""
        return self._evaluate(decode(encoded, self.names), encoded.values[0].device)

    # ---- Parts of these ----

    def embeddings(
        self, gradients: Sequence[Optional[torch.Tensor]], sizes: Sequence[int]
    ) -> batches.Embeddings:
        """Gradients of a pass as the library reads them, scaled."""
        scale = self.gradient_scale
        scaled = self.grad_scaler is not None and self.grad_scaler.is_enabled()
        if scaled:
            scale /= self.grad_scaler.get_scale()
        arrays = []
        dims = [self.layout.pooled_dim] + [dim for _, dim in self.layout.unpooled]
        for gradient, rows, dim in zip(gradients, sizes, dims):
            if gradient is None:
                gradient = torch.zeros((rows, dim))
            gradient = gradient.detach().to("cpu", torch.float32)
            if scale != 1.0:
                gradient = gradient * scale
            arrays.append(gradient.contiguous().numpy())
        if scaled and not all(np.isfinite(a).all() for a in arrays):
            arrays = [np.zeros_like(a) for a in arrays]  # as the scaler skips the dense step
        names = (name for name, _ in self.layout.unpooled)
        return batches.Embeddings(self.layout, arrays[0], dict(zip(names, arrays[1:])))

    def _token(self, origin: Any, index: int) -> int:
        number = next(self._tokens)
        self._waiting[number] = (origin, index)
        return number

    def _expect(self, work: Work, encoded: Encoded) -> None:
        index = work.looked_up.index(False)
        if versions(work.parts[index]) != work.versions[index]:
            raise errors.FailedPrecondition(
                "batch: its ids were overwritten after they had been prefetched; a loader must "
                "give new tensors"
            )
        if not same(work.parts[index], encoded):
            raise errors.FailedPrecondition(
                "batch: its ids are not those of the batch that was prefetched and comes next; "
                "prefetched batches are looked up once each, in their order"
            )

    def _drop_current(self) -> None:
        work, self._current = self._current, None
        if work is None:
            return
        if not work.updated:
            self._waiting = {
                token: waiting for token, waiting in self._waiting.items() if waiting[0] is not work
            }
        work.drop()

    def _evaluate(self, batch: batches.Batch, device: torch.device) -> List[torch.Tensor]:
        out = self.collection.evaluate(batch)
        arrays = [out.pooled, *(out.unpooled[name] for name, _ in self.layout.unpooled)]
        return [torch.from_numpy(array).to(device) for array in arrays]

    def _lookup_beside(self, encoded: Encoded) -> Tuple[int, List[torch.Tensor]]:
        self._drop_current()
        batch = decode(encoded._replace(**{
            name: [tensor.clone() for tensor in getattr(encoded, name)]
            for name in ("values", "bags", "weights")
        }), self.names)
        outputs = self._evaluate(batch, encoded.values[0].device)
        return self._token(_Collected(batch, last=not self.collecting), 0), outputs

    def _update_gathered(
        self, gathered: Sequence[Tuple[batches.Batch, batches.Embeddings]]
    ) -> None:
        step = self.collection.prefetch(join([batch for batch, _ in gathered], self.names))
        with step:
            step.lookup()
            gradients = [gradient for _, gradient in gathered]
            step.update(
                batches.Embeddings(
                    self.layout,
                    np.concatenate([gradient.pooled for gradient in gradients]),
                    {
                        name: np.concatenate([gradient.unpooled[name] for gradient in gradients])
                        for name, _ in self.layout.unpooled
                    },
                ),
                lr_factor=self.lr_factor,
            )
