"""Passes of a model through tables: which step an output came from, and what its backward moves.

`Passes` is what the operators (ops.py) call. A *work* is one step of the collection with the
batches that it serves: one, or several whose gradients are collected. A *pass* is one lookup that
waits for its backward; its number is the token that the autograd graph keeps.
"""

import collections
import itertools
import weakref
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple

import torch

from .. import batches, errors
from ..collection import EmbeddingCollection, Step
from ..ranks import together
from . import direct
from .features import Encoded, decode, encode, join, same, versions

_numbers = itertools.count(1)
_registry: "weakref.WeakValueDictionary[int, Passes]" = weakref.WeakValueDictionary()


def find(number: int) -> "Passes":
    passes = _registry.get(number)
    if passes is None:
        raise errors.FailedPrecondition("the tables of this model are gone")
    return passes


class Work:
    """One step, and the batches that it serves."""

    def __init__(self, passes: "Passes", parts: Sequence[Encoded], ahead: bool) -> None:
        self.parts = parts
        self.versions = [versions(part) for part in parts] if ahead else []
        self.looked_up = [False] * len(parts)
        self.waiting = len(parts)  # batches whose backward has not come
        self.updated = False
        self._passes = passes
        if len(parts) == 1:
            self.step: Step = direct.prefetch(passes.collection, parts[0])
        else:
            decoded = [decode(part, passes.names) for part in parts]
            # Where each batch's part of an output begins, by output.
            self._bounds = [
                [0, *itertools.accumulate(column)]
                for column in zip(*(passes.sizes_of(batch) for batch in decoded))
            ]
            self.step = passes.collection.prefetch(join(decoded, passes.names))
        self.sizes = [self.step.batch_size, *self.step._sizes]
        self._outputs: Optional[List[torch.Tensor]] = None
        self._gradients: Optional[List[torch.Tensor]] = None

    def lookup(self, index: int, ids: torch.Tensor) -> List[torch.Tensor]:
        """On the device of the ids that the model looks up, which may have been elsewhere when they
        were prefetched."""
        whole = self._outputs
        if whole is None:
            whole = direct.empty(self._passes.collection, self.sizes, ids.is_cuda)
            direct.lookup(self.step, whole)
            if len(self.parts) > 1:  # a single one's become part of the graph, which leads here
                self._outputs = whole
        self.looked_up[index] = True
        return self._passes.place(self._part(whole, index), ids)

    def add(self, index: int, gradients: Sequence[Optional[torch.Tensor]]) -> None:
        """The backward of one batch; the last one moves the rows."""
        if len(self.parts) == 1:
            self.waiting = 0
            self._finish(self._passes.gradients(gradients, self.sizes))
            return
        if self._gradients is None:
            self._gradients = direct.empty(self._passes.collection, self.sizes)
            for tensor in self._gradients:
                tensor.zero_()
        for place, gradient in zip(self._part(self._gradients, index), gradients):
            if gradient is not None:
                place.copy_(gradient)
        self._count()

    def forget_gradients(self) -> None:
        self._gradients = None

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
                self._finish(self._passes.gradients(self._gradients, self.sizes))

    def _finish(self, gradients: Sequence[torch.Tensor]) -> None:
        self.updated = True
        self._outputs = self._gradients = None
        self._passes.move(self.step, gradients)

    def _part(self, whole: List[torch.Tensor], index: int) -> List[torch.Tensor]:
        if len(self.parts) == 1:
            return whole
        # By numpy: autograd takes slices of a tensor for views of it, which a model may not change
        # in place.
        if self._passes.device.type != "cpu":
            return [
                torch.utils.dlpack.from_dlpack(
                    torch.utils.dlpack.to_dlpack(tensor[bounds[index] : bounds[index + 1]])
                )
                for tensor, bounds in zip(whole, self._bounds)
            ]
        return [
            torch.from_numpy(tensor.numpy()[bounds[index] : bounds[index + 1]])
            for tensor, bounds in zip(whole, self._bounds)
        ]

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
        self._communicator = collection._communicator
        self.device = direct.device_of(collection)
        self.layout = collection._layout
        self.names = collection.feature_names
        self.optional = collection._optional
        self.number = next(_numbers)
        self.gradient_scale = gradient_scale
        self.grad_scaler: Any = None
        self.parameters: Dict[str, Any] = {"lr": 1.0}  # of the torch optimizer that schedules it
        self.collecting = False
        self._ahead: Deque[Work] = collections.deque()
        self._current: Optional[Work] = None
        self._waiting: Dict[int, Tuple[Any, int]] = {}  # token: (Work or _Collected, batch)
        self._collected: Set[int] = set()  # tokens of passes within no_update before their backward
        self._gathered: List[Tuple[batches.Batch, List[torch.Tensor]]] = []
        self._reader = batches.BatchReader(self.names, self.layout.unpooled_indices)
        self._tokens = itertools.count(1)
        _registry[self.number] = self

    def place(self, out: List[torch.Tensor], ids: torch.Tensor) -> List[torch.Tensor]:
        """Outputs where the model has them: on the tables' GPU, or on the device of the ids."""
        if self.device.type != "cpu" or ids.is_cpu:
            return out
        return [part.to(ids.device) for part in out]

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

    @together
    def encode(self, features: Any) -> Encoded:
        return encode(features, self.names, self.optional)

    @together
    def prefetch(self, group: Sequence[Any], find: Callable[[Any], Any]) -> Work:
        """find: from a batch of a loader to its features."""
        parts = [self.encode(find(batch)) for batch in group]
        work = self._current
        if work is not None and not work.updated:
            # Nobody may want its backward any more, as after a forward alone; a further lookup
            # would drop it, too.
            if len(self._ahead) + 1 > self.collection.prefetch_depth:
                self._drop_current()
        work = Work(self, parts, ahead=True)
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
        self._collected.clear()
        self._gathered.clear()
        for work in (self._current, *self._ahead):
            if work is not None and not work.updated:
                work.step.cancel()
        self._current = None
        self._ahead.clear()

    # ---- Operators ----

    @together
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
        elif self.collecting or self._gathered or self._collected:
            if not self.collecting and self._collected:
                raise errors.FailedPrecondition(
                    "no_update: a lookup within it has had no backward, and this one comes after "
                    "it; forward and backward of a pass are both within it. Look up both batches "
                    "as one, or those that need no gradient under torch.no_grad"
                )
            return self._lookup_beside(encoded)
        else:
            self._drop_current()
            work = self._current = Work(self, [encoded], ahead=False)
        index = work.looked_up.index(False)
        try:
            outputs = work.lookup(index, encoded.values[0])
        except BaseException:  # such a step can only be cancelled
            self._current = None
            work.step.cancel()
            raise
        return self._token(work, index), outputs

    @together
    def update(self, token: int, gradients: Sequence[Optional[torch.Tensor]]) -> None:
        self._collected.discard(token)
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
        scaled = self.gradients(gradients, self.sizes_of(origin.batch))
        if not origin.last:  # they wait, while the caller may write over its own
            scaled = [gradient.clone() for gradient in scaled]
        self._gathered.append((origin.batch, scaled))
        if origin.last:
            gathered, self._gathered = self._gathered, []
            self._update_gathered(gathered)

    @together
    def evaluate(self, encoded: Encoded) -> List[torch.Tensor]:
        """[pooled, unpooled of each feature]; nothing changes."""
        values = encoded.values[0]
        return self.place(direct.evaluate(self.collection, encoded, values.is_cuda), values)

    def abandon(self, token: int) -> None:
        """The backward of this pass will not come: nothing refers to its outputs."""
        self._collected.discard(token)

    def forget_gradients(self) -> None:
        """Those that wait for further passes. A pass whose backward has not come may still add."""
        self._gathered.clear()
        if self._current is not None:
            self._current.forget_gradients()

    # ---- Parts of these ----

    def move(self, step: Step, gradients: Sequence[torch.Tensor]) -> None:
        """Ends a step: moves its rows, or none where the scaler leaves the step out."""
        if self._leaves_out(gradients):
            step.cancel()
        else:
            direct.update(step, gradients, self.lr_factor)

    def _leaves_out(self, gradients: Sequence[torch.Tensor]) -> bool:
        """Whether gradients are not finite on any rank. All ranks have a scaler, or none."""
        if self.grad_scaler is None or not self.grad_scaler.is_enabled():
            return False
        mine = not all(bool(gradient.isfinite().all()) for gradient in gradients)
        return mine if self._communicator is None else self._communicator.any(mine)

    def gradients(
        self, gradients: Sequence[Optional[torch.Tensor]], sizes: Sequence[int]
    ) -> List[torch.Tensor]:
        """Those of a pass as the library reads them, scaled."""
        scale = self.gradient_scale
        if self.grad_scaler is not None and self.grad_scaler.is_enabled():
            scale /= self.grad_scaler.get_scale()
        out = []
        for gradient, rows, dim in zip(gradients, sizes, self.layout.output_dims):
            if gradient is None:
                gradient = torch.zeros((rows, dim), dtype=torch.float32, device=self.device)
            elif gradient.shape != (rows, dim):
                raise ValueError(
                    f"gradient: has shape {tuple(gradient.shape)}, must be {(rows, dim)}"
                )
            gradient = gradient.detach().to(self.device, torch.float32)
            if scale != 1.0:
                gradient = gradient * scale
            out.append(gradient.contiguous())
        return out

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

    def _lookup_beside(self, encoded: Encoded) -> Tuple[int, List[torch.Tensor]]:
        self._drop_current()
        batch = decode(encoded._replace(**{
            name: [tensor.clone() for tensor in getattr(encoded, name)]
            for name in ("values", "bags", "weights")
        }), self.names)
        outputs = self.evaluate(encoded)
        token = self._token(_Collected(batch, last=not self.collecting), 0)
        if self.collecting:
            self._collected.add(token)
        return token, outputs

    def _update_gathered(
        self, gathered: Sequence[Tuple[batches.Batch, List[torch.Tensor]]]
    ) -> None:
        columns = zip(*(gradients for _, gradients in gathered))
        step = self.collection.prefetch(join([batch for batch, _ in gathered], self.names))
        with step:
            step.lookup()
            self.move(step, [torch.cat(column) for column in columns])
