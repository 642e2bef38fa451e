"""What comes next? Attention over histories of items, as SASRec has it, in PyTorch.

    python examples/torch_sequence.py

Histories have any length. Their rows come unpooled, one for each item (pooling="none"), and are put
into a padded tensor, which a transformer reads (Kang & McAuley 2018). The data are made up: from
each item most histories go on to one of a few others.
"""

import argparse
from typing import Any, Dict, Iterator

import torch
from torch import nn
from torch.nn import functional

import hotrow
import hotrow.torch
from training import Losses


class Walks:
    """Made-up histories: nine times in ten item i is followed by one of three that belong to it."""

    def __init__(self, items: int, length: int, seed: int) -> None:
        self.items, self.length = items, length
        self._random = torch.Generator().manual_seed(seed)

    def _below(self, limit: int, *shape: int) -> torch.Tensor:
        return torch.randint(limit, shape, generator=self._random)

    def batch(self, size: int) -> Dict[str, Any]:
        """history: (ids [N], lengths [B]), 1 to `length` items each; target: [B], the next one."""
        walk = [self._below(self.items, size)]
        for _ in range(self.length):
            follows = (7 * walk[-1] + 1 + self._below(3, size)) % self.items
            anything = self._below(self.items, size)
            walk.append(torch.where(self._below(10, size) > 0, follows, anything))
        items = torch.stack(walk, dim=1)
        lengths = 1 + self._below(self.length, size)
        kept = torch.arange(self.length) < lengths[:, None]
        target = items.gather(1, lengths[:, None])[:, 0]
        return {"history": (items[:, :-1][kept], lengths), "target": target}

    def batches(self, size: int, count: int) -> Iterator[Dict[str, Any]]:
        return (self.batch(size) for _ in range(count))


class Sequence(nn.Module):
    def __init__(
        self,
        tables: hotrow.torch.EmbeddingCollection,
        dim: int,
        length: int,
        heads: int,
        layers: int,
    ) -> None:
        super().__init__()
        self.tables = tables
        self.length = length
        self.places = nn.Parameter(torch.randn(length, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(dim),
                                             enable_nested_tensor=False)

    def forward(self, batch: Dict[str, Any]) -> torch.Tensor:
        """How well the target of each sample fits each history: [B, B]."""
        rows = self.tables(batch)
        lengths = batch["history"][1]
        size = len(lengths)
        there = torch.arange(self.length) < lengths[:, None]
        padded = rows["history"].new_zeros(size, self.length, self.places.shape[1])
        padded = padded.index_put(there.nonzero(as_tuple=True), rows["history"])
        hidden = self.encoder(padded + self.places, src_key_padding_mask=~there)
        last = hidden[torch.arange(size), lengths - 1]
        return last @ rows["target"].T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--plot", default="torch_sequence.png")
    arguments = parser.parse_args()

    torch.manual_seed(1)
    # Histories and targets share the rows of the items.
    tables = hotrow.torch.EmbeddingCollection(
        [hotrow.Table("items", arguments.dim, ["history", "target"], "none",
                      hotrow.Adam(lr=2e-3), hotrow.normal(0.05))],
        store=hotrow.Memory("1GB"), max_batch_size=arguments.batch, seed=1, prefetch_depth=1,
    )
    with tables:
        model = Sequence(tables, arguments.dim, arguments.length, heads=4, layers=arguments.layers)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
        walks = Walks(arguments.items, arguments.length, seed=1)
        losses = Losses(total=arguments.steps)
        source = walks.batches(arguments.batch, arguments.steps)
        for batch in losses.bar(hotrow.torch.prefetch(source, tables, depth=1)):
            optimizer.zero_grad()
            scores = model(batch)
            same = batch["target"][:, None] == batch["target"]
            same.fill_diagonal_(False)
            loss = functional.cross_entropy(
                scores.masked_fill(same, -1e9), torch.arange(len(scores))
            )
            loss.backward()  # the rows move here
            optimizer.step()
            losses.add(loss.item())

        model.eval()
        batch = Walks(arguments.items, arguments.length, seed=2).batch(arguments.batch)
        with torch.no_grad():
            best = model(batch).argmax(dim=1)
        right = (batch["target"][best] == batch["target"]).float().mean().item()
        print(f"the next item is the best of {arguments.batch} targets in {100 * right:.0f} % "
              "of histories not trained on")
        losses.plot(arguments.plot)


if __name__ == "__main__":
    main()
