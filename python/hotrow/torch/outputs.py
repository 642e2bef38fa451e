"""What tables give a model."""

from typing import Any, Dict, Iterable, Iterator, List, Tuple

import torch
from torch.utils import _pytree

from .. import batches
from .features import bags_of


class Embeddings:
    """pooled: float32 [B, sum of dims] of the features with pooling, side by side, in their order.
    unpooled: for each feature with pooling "none": float32 [N, dim], a row for each of its lookups.
    embeddings["item"]: the part of one feature: [B, dim] (a view of `pooled`) or [N, dim].

    values, keys and to_dict are those of TorchRec's KeyedTensor. A pytree, so that torch.export and
    torch.compile take it as a model's input or output.
    """

    def __init__(
        self,
        columns: Dict[str, Tuple[int, int]],
        pooled: torch.Tensor,
        unpooled: Dict[str, torch.Tensor],
    ) -> None:
        self._columns = columns  # where a feature begins and ends
        self.pooled = pooled
        self.unpooled = unpooled

    def __getitem__(self, feature: str) -> torch.Tensor:
        if feature in self.unpooled:
            return self.unpooled[feature]
        begin, end = self._columns[feature]
        return self.pooled[:, begin:end]

    def keys(self) -> List[str]:
        """Of the pooled features, then of the others."""
        return list(self._columns) + list(self.unpooled)

    def values(self) -> torch.Tensor:
        """`pooled`."""
        return self.pooled

    def to_dict(self) -> Dict[str, torch.Tensor]:
        return {feature: self[feature] for feature in self.keys()}

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._columns) + len(self.unpooled)

    def __repr__(self) -> str:
        return batches.shown(list(self._columns), self.pooled, self.unpooled)


def jagged(rows: torch.Tensor, ids: Any) -> torch.Tensor:
    """The rows of an unpooled feature by samples: a nested tensor [B, j, dim], layout=torch.jagged.

        history = hotrow.torch.jagged(out["history"], batch["history"])

    rows: [N, dim], whose memory it shares, and which its gradients reach. ids: the feature as it was
    looked up, for how many each sample has: any form but a KeyedJaggedTensor, of which give the
    part of the feature. torch takes two such tensors for equally long, and adds them, where the
    offsets of both `ids` are one tensor, on the device of the rows.
    """
    values, lengths, offsets, _ = bags_of(ids)
    if not isinstance(values, torch.Tensor) or values.numel() != len(rows):
        raise ValueError(
            f"jagged: {len(rows)} rows are not those of these ids; give the feature as it was "
            "looked up"
        )
    if lengths is not None:
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    elif offsets is None:
        hotness = values.shape[1] if values.dim() == 2 else 1
        offsets = torch.arange(len(values) + 1, device=rows.device) * hotness
    return torch.nested.nested_tensor_from_jagged(rows, offsets.to(rows.device, torch.int64))


# Its tensors; and what else it has, as JSON can tell it for torch.export.save.
_Shape = Tuple[List[List[Any]], List[str]]


def _flatten(rows: Embeddings) -> Tuple[List[torch.Tensor], _Shape]:
    columns = [[name, *bounds] for name, bounds in rows._columns.items()]
    return [rows.pooled, *rows.unpooled.values()], (columns, list(rows.unpooled))


def _unflatten(tensors: Iterable[Any], shape: _Shape) -> Embeddings:
    pooled, *unpooled = tensors
    columns = {name: (begin, end) for name, begin, end in shape[0]}
    return Embeddings(columns, pooled, dict(zip(shape[1], unpooled)))


def _flatten_with_keys(rows: Embeddings) -> Tuple[List[Tuple[Any, torch.Tensor]], _Shape]:
    parts, shape = _flatten(rows)
    keys = [_pytree.GetAttrKey("pooled"), *map(_pytree.MappingKey, shape[1])]
    return list(zip(keys, parts)), shape


_pytree.register_pytree_node(
    Embeddings, _flatten, _unflatten, serialized_type_name="hotrow.torch.Embeddings",
    to_dumpable_context=list, from_dumpable_context=tuple,
    flatten_with_keys_fn=_flatten_with_keys,
)
torch.serialization.add_safe_globals([Embeddings])  # example inputs of torch.export.save
