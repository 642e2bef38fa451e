"""The operators hotrow::lookup, hotrow::update and hotrow::evaluate, with what torch.compile needs
to keep one graph around them. `tables` is a number of passes.find; the rest is Encoded.

lookup's first output is a token that names the pass; its backward gives it to update. `anchor` is a
tensor that requires a gradient, so that autograd records lookup, and update returns that (zero)
gradient, so that no compiler takes update for dead code.
"""

from typing import Any, List, Optional, Sequence

import torch

from . import passes
from .features import Encoded, batch_size_of

_LIBRARY = torch.library.Library("hotrow", "DEF")
_FEATURES = "Tensor[] values, Tensor[] bags, Tensor[] weights, int[] kinds, int[] keys"
_LIBRARY.define(f"lookup(Tensor anchor, int tables, {_FEATURES}) -> Tensor[]")
_LIBRARY.define(f"evaluate(int tables, {_FEATURES}) -> Tensor[]")
_LIBRARY.define("update(Tensor anchor, int tables, Tensor token, Tensor[] gradients) -> Tensor")


def _lookup(anchor, tables, values, bags, weights, kinds, keys):  # type: ignore[no-untyped-def]
    encoded = Encoded(values, bags, weights, list(kinds), list(keys))
    token, outputs = passes.find(tables).lookup(encoded)
    return [torch.tensor(token, device="cpu"), *outputs]


def _evaluate(tables, values, bags, weights, kinds, keys):  # type: ignore[no-untyped-def]
    return passes.find(tables).evaluate(Encoded(values, bags, weights, list(kinds), list(keys)))


def _update(anchor, tables, token, gradients):  # type: ignore[no-untyped-def]
    passes.find(tables).update(int(token), gradients)
    return torch.zeros_like(anchor)


for _name, _function in (("lookup", _lookup), ("evaluate", _evaluate), ("update", _update)):
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")


def _shapes(tables: int, encoded: Encoded) -> List[torch.Tensor]:
    found = passes.find(tables)
    layout = found.layout
    rows = batch_size_of(encoded)
    like = encoded.values[0]
    device = like.device if found.device.type == "cpu" else found.device
    out = [like.new_empty((rows, layout.pooled_dim), dtype=torch.float32, device=device)]
    for index, (_, dim) in zip(layout.unpooled_indices, layout.unpooled):
        count: Any  # may be symbolic
        if encoded.keys:
            count = torch.library.get_ctx().new_dynamic_size()
        else:
            count = encoded.values[index].numel()
        out.append(like.new_empty((count, dim), dtype=torch.float32, device=device))
    return out


@torch.library.register_fake("hotrow::lookup", lib=_LIBRARY)
def _(anchor, tables, values, bags, weights, kinds, keys):  # type: ignore[no-untyped-def]
    encoded = Encoded(values, bags, weights, kinds, keys)
    token = torch.empty((), dtype=torch.int64, device="cpu")
    return [token, *_shapes(tables, encoded)]


@torch.library.register_fake("hotrow::evaluate", lib=_LIBRARY)
def _(tables, values, bags, weights, kinds, keys):  # type: ignore[no-untyped-def]
    return _shapes(tables, Encoded(values, bags, weights, kinds, keys))


@torch.library.register_fake("hotrow::update", lib=_LIBRARY)
def _(anchor, tables, token, gradients):  # type: ignore[no-untyped-def]
    return torch.empty_like(anchor)


def _setup(ctx: Any, inputs: Any, output: List[torch.Tensor]) -> None:
    ctx.tables = inputs[1]
    # torch takes any empty list for one of tensors, also `keys`.
    ctx.lists = [len(inputs[2]), len(inputs[3]), len(inputs[4])]
    ctx.no_keys = not inputs[6]
    ctx.save_for_backward(inputs[0], output[0])


def _backward(ctx: Any, gradients: List[Optional[torch.Tensor]]) -> Any:
    anchor, token = ctx.saved_tensors
    moved = torch.ops.hotrow.update.default(anchor, ctx.tables, token, list(gradients[1:]))
    values, bags, weights = ([None] * count for count in ctx.lists)
    return moved, None, values, bags, weights, None, [] if ctx.no_keys else None


torch.library.register_autograd("hotrow::lookup", _backward, setup_context=_setup, lib=_LIBRARY)


class _Pass:
    """Goes with the graph of a pass, and says then that its backward will not come."""

    def __init__(self, tables: passes.Passes, token: int) -> None:
        self.tables = tables
        self.token = token

    def __del__(self) -> None:
        self.tables.abandon(self.token)


class _Lookup(torch.autograd.Function):
    """The same without torch.compile, at a tenth of the cost."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tables: passes.Passes, encoded: Encoded) -> Any:
        ctx.set_materialize_grads(False)
        token, outputs = tables.lookup(encoded)
        ctx.origin = _Pass(tables, token)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[torch.Tensor]) -> Any:
        ctx.origin.tables.update(ctx.origin.token, gradients)
        return None, None, None


def lookup(
    anchor: torch.Tensor, tables: passes.Passes, number: int, encoded: Encoded
) -> Sequence[torch.Tensor]:
    """[pooled, unpooled of each feature]."""
    if torch.compiler.is_compiling():
        return torch.ops.hotrow.lookup.default(anchor, number, *encoded)[1:]
    return _Lookup.apply(anchor, tables, encoded)


def evaluate(tables: passes.Passes, number: int, encoded: Encoded) -> Sequence[torch.Tensor]:
    if torch.compiler.is_compiling():
        return torch.ops.hotrow.evaluate.default(number, *encoded)
    return tables.evaluate(encoded)
