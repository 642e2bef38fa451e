"""Which of several items does a user like next? HSTU (Zhai et al. 2024), in PyTorch.

    python examples/torch_hstu.py                       # rows in memory
    python examples/torch_hstu.py --rows=/data/rows     # on an SSD; a second run goes on from there

A history says of each event the item, its genre, whether it was liked, and when. Rows come unpooled
and become one tensor of the batch; behind each history stand several targets, which see it and
nothing of each other. The data are made up: a user likes one genre, and after a long break another.
"""

import argparse
from typing import Any, Dict, Iterator

import torch
from torch import nn
from torch.nn import functional

import hotrow
import hotrow.torch
from training import Losses

GENRES = 4
BUCKETS = 16  # of times between two events: those of up to 1, 3, 7, ... minutes


class Viewers:
    def __init__(self, items: int, length: int, targets: int, seed: int) -> None:
        self.items, self.length, self.targets = items, length, targets
        self._random = torch.Generator().manual_seed(seed)

    def _uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self._random)

    def batch(self, size: int) -> Dict[str, Any]:
        """history, history_genre: ids of each sample's events, as Bags that share their offsets;
        target, target_genre: ids [B, T]; liked: [B, T].
        before: [B, L], whether the events of the history were liked, with holes behind short ones;
        times: [B, L + T], minutes, of the history's places and the targets; lengths: [B]."""
        shape = size, self.length + self.targets
        items = (self._uniform(*shape) * self.items).long()
        genres = items % GENRES
        breaks = self._uniform(*shape) < 0.15
        breaks[:, self.length :] = False
        times = (self._uniform(*shape) * 10 + breaks * 10_000).cumsum(1)
        favourites = (self._uniform(*shape) * GENRES).long().gather(1, breaks.cumsum(1))
        chance = torch.where(genres == favourites, 0.95, 0.05)
        liked = self._uniform(*shape) < chance
        # A history is the last of its events.
        lengths = 1 + (self._uniform(size) * self.length).long()
        place = torch.arange(self.length)
        there = place < lengths[:, None]
        at = (self.length - lengths[:, None] + place).clamp(max=self.length - 1)
        past = {"items": items, "genres": genres, "liked": liked, "times": times}
        past = {name: values.gather(1, at) for name, values in past.items()}
        offsets = functional.pad(lengths.cumsum(0), (1, 0))
        return {
            "history": hotrow.Bags(past["items"][there], offsets=offsets),
            "history_genre": hotrow.Bags(past["genres"][there], offsets=offsets),
            "target": items[:, self.length :].contiguous(),
            "target_genre": genres[:, self.length :].contiguous(),
            "liked": liked[:, self.length :].float(),
            "before": past["liked"].long(),
            "times": torch.cat([past["times"], times[:, self.length :]], 1),
            "lengths": lengths,
        }

    def batches(self, size: int, count: int) -> Iterator[Dict[str, Any]]:
        return (self.batch(size) for _ in range(count))


class Block(nn.Module):
    """Attention without a softmax: weights are silu of scores, with a learned number for the time
    between two rows."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.projections = nn.Linear(dim, 4 * dim)
        self.time_bias = nn.Parameter(torch.zeros(BUCKETS, heads))
        self.attended_norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, dim)

    def by_head(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: torch.Tensor, sees: torch.Tensor, between: torch.Tensor) -> torch.Tensor:
        """x: [B, M, D]; sees, between: [B, M, M], which rows a row sees, and the bucket of time."""
        u, v, q, k = functional.silu(self.projections(self.norm(x))).chunk(4, dim=2)
        scores = self.by_head(q) @ self.by_head(k).transpose(2, 3)
        scores = scores + self.time_bias[between].permute(0, 3, 1, 2)
        weights = functional.silu(scores) * sees[:, None] / x.shape[1]
        attended = (weights @ self.by_head(v)).transpose(1, 2).flatten(2)
        return x + self.output(self.attended_norm(attended) * u)


class Hstu(nn.Module):
    def __init__(
        self,
        tables: hotrow.torch.EmbeddingCollection,
        dim: int,
        length: int,
        heads: int,
        blocks: int,
    ) -> None:
        super().__init__()
        self.tables = tables
        self.length = length
        self.actions = nn.Embedding(3, dim)  # not liked, liked; a target
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(blocks))
        self.head = nn.Linear(dim, 1)

    def forward(self, batch: Dict[str, Any]) -> torch.Tensor:
        """The logits of all targets, [B, T]."""
        rows = self.tables(batch)
        history = hotrow.torch.jagged(rows["history"], batch["history"])
        history = history + hotrow.torch.jagged(rows["history_genre"], batch["history_genre"])
        size, dim = history.shape[0], history.shape[2]
        history = history.to_padded_tensor(0.0, output_size=(size, self.length, dim))
        targets = (rows["target"] + rows["target_genre"]).view(size, -1, dim)
        actions = functional.pad(batch["before"], (0, targets.shape[1]), value=2)
        x = torch.cat([history, targets], dim=1) + self.actions(actions)

        place = torch.arange(x.shape[1])
        is_target = place >= self.length
        itself = place[:, None] == place
        there = (place < batch["lengths"][:, None]) | is_target
        sees = (place <= place[:, None]) & (~is_target | itself) & there[:, None]
        times = batch["times"]
        between = (times[:, :, None] - times[:, None]).abs().add(1).log2().long()
        between = between.clamp(max=BUCKETS - 1)
        for block in self.blocks:
            x = block(x, sees, between)
        return self.head(x[:, self.length :])[:, :, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", help="a directory on an SSD, for rows and checkpoints")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--targets", type=int, default=8)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--plot", default="torch_hstu.png")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    if arguments.rows:
        place = dict(
            store=hotrow.Ssd(arguments.rows, disk_bytes="20GB", memory="64MB"), cache="64MB",
            checkpoint_dir=arguments.rows + "/checkpoints", resume=True,
        )
    else:
        print("rows are in memory; --rows=DIRECTORY has them on an SSD")
        place = dict(store=hotrow.Memory("1GB"))
    tables = hotrow.torch.EmbeddingCollection(
        # Histories and targets share rows.
        [hotrow.Table("items", arguments.dim, ["history", "target"], "none",
                      hotrow.Adam(lr=2e-3), hotrow.normal(0.05)),
         hotrow.Table("genres", arguments.dim, ["history_genre", "target_genre"], "none",
                      hotrow.Adam(lr=5e-3), hotrow.normal(1.0))],
        max_batch_size=arguments.batch, seed=1, prefetch_depth=1, **place,
    )
    with tables:
        model = Hstu(tables, arguments.dim, arguments.length, arguments.heads, arguments.blocks)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        state = {"model": model, "optimizer": optimizer}
        tables.restore(state)

        def loss_of(batch: Dict[str, Any]) -> torch.Tensor:
            return functional.binary_cross_entropy_with_logits(model(batch), batch["liked"])

        kind = arguments.items, arguments.length, arguments.targets
        losses = Losses(total=arguments.steps)
        source = Viewers(*kind, seed=2 + tables.steps).batches(arguments.batch, arguments.steps)
        for batch in losses.bar(hotrow.torch.prefetch(source, tables, depth=1)):
            optimizer.zero_grad()
            loss = loss_of(batch)
            loss.backward()  # the rows move here
            optimizer.step()
            losses.add(loss.item())
        if arguments.rows:
            tables.save_checkpoint(state)

        model.eval()
        batch = Viewers(*kind, seed=1).batch(arguments.batch)
        with torch.no_grad():
            loss = loss_of(batch).item()
        rate = batch["liked"].mean().expand_as(batch["liked"])
        plain = functional.binary_cross_entropy(rate, batch["liked"]).item()
        print(f"loss of users not trained on: {loss:.3f} after {tables.steps} steps; who knows but "
              f"how often a target is liked has {plain:.3f}")
        losses.plot(arguments.plot)


if __name__ == "__main__":
    main()
