"""What tables give a model."""

from typing import Dict, Iterator, List, Tuple

import torch


class Embeddings:
    """pooled: float32 [B, sum of dims] of the features with pooling, side by side, in their order.
    unpooled: for each feature with pooling "none": float32 [N, dim], a row for each of its lookups.
    embeddings["item"]: the part of one feature: [B, dim] (a view of `pooled`) or [N, dim].

    values, keys and to_dict are those of TorchRec's KeyedTensor.
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
