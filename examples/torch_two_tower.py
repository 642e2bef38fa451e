"""Two towers for retrieval: which items does a user like? In PyTorch.

    python examples/torch_two_tower.py

A tower makes a vector of a user (id and what was bought lately), another one of an item (id and
category); their product is how well they fit. Each user's own item is told from those of the other
users of the batch (Yi et al. 2019). The data are made up: users and items have a taste each.
"""

import argparse
from typing import Any, Dict, Iterator

import torch
from torch import nn
from torch.nn import functional

import hotrow
import hotrow.torch
from training import Losses

TASTES = 40
HISTORY = 5


class Shop:
    """Made-up purchases. A user's taste is the number modulo TASTES, and an item's too; one
    purchase in ten has another."""

    def __init__(self, users: int, items: int, seed: int) -> None:
        self.users, self.items = users, items
        self._random = torch.Generator().manual_seed(seed)

    def _below(self, limit: int, *shape: int) -> torch.Tensor:
        return torch.randint(limit, shape, generator=self._random)

    def _bought(self, users: torch.Tensor, *shape: int) -> torch.Tensor:
        own = self._below(10, *shape) > 0
        taste = torch.where(own, users % TASTES, self._below(TASTES, *shape))
        return self._below(self.items // TASTES, *shape) * TASTES + taste

    def batch(self, size: int) -> Dict[str, Any]:
        users = self._below(self.users, size)
        items = self._bought(users, size)
        history = self._bought(users[:, None], size, HISTORY)
        return {"user": users, "history": history, "item": items, "category": items % TASTES // 4}

    def batches(self, size: int, count: int) -> Iterator[Dict[str, Any]]:
        return (self.batch(size) for _ in range(count))


class TwoTower(nn.Module):
    def __init__(self, tables: hotrow.torch.EmbeddingCollection, dim: int) -> None:
        super().__init__()
        self.tables = tables
        self.user_tower = nn.Sequential(nn.Linear(2 * dim, 64), nn.ReLU(), nn.Linear(64, dim))
        self.item_tower = nn.Sequential(nn.Linear(2 * dim, 64), nn.ReLU(), nn.Linear(64, dim))

    def forward(self, batch: Dict[str, Any]) -> torch.Tensor:
        """The vectors of users and of items, [2, B, dim], each of length 1."""
        rows = self.tables(batch)
        user = self.user_tower(torch.cat([rows["user"], rows["history"]], dim=1))
        item = self.item_tower(torch.cat([rows["item"], rows["category"]], dim=1))
        return functional.normalize(torch.stack([user, item]), dim=2)


def recall(model: TwoTower, shop: Shop, batch: Dict[str, Any], best: int) -> float:
    """How often the item that was bought is among the `best` of all items."""
    model.eval()
    items = torch.arange(shop.items)
    with torch.no_grad():
        vectors = [model({"item": part, "category": part % TASTES // 4})[1]  # of nobody
                   for part in items.split(1024)]
        users = model(batch)[0]
    model.train()
    top = (users @ torch.cat(vectors).T).topk(best, dim=1).indices
    return (top == batch["item"][:, None]).any(dim=1).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--plot", default="torch_two_tower.png")
    arguments = parser.parse_args()

    torch.manual_seed(1)
    adagrad = hotrow.RowwiseAdagrad(lr=0.1)
    first = hotrow.uniform(0.1)
    tables = hotrow.torch.EmbeddingCollection(
        [hotrow.Table("users", arguments.dim, ["user"], optimizer=adagrad, initializer=first),
         # A user's history has its own rows, pooled to their mean.
         hotrow.Table("histories", arguments.dim, ["history"], "mean", adagrad, first),
         hotrow.Table("items", arguments.dim, ["item"], optimizer=adagrad, initializer=first),
         hotrow.Table("categories", arguments.dim, ["category"], optimizer=adagrad,
                      initializer=first)],
        store=hotrow.Memory("1GB"), max_batch_size=max(1024, arguments.batch), seed=1,
        prefetch_depth=1, optional_features=["user", "history"],
    )
    with tables:
        model = TwoTower(tables, arguments.dim)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        shop = Shop(arguments.users, arguments.items, seed=1)
        held_out = Shop(arguments.users, arguments.items, seed=2).batch(min(1024, arguments.batch))
        losses = Losses(total=arguments.steps)
        source = shop.batches(arguments.batch, arguments.steps)
        for batch in losses.bar(hotrow.torch.prefetch(source, tables, depth=1)):
            optimizer.zero_grad()
            users, items = model(batch)
            scores = users @ items.T / 0.1
            # Other users may have bought the same item.
            same = batch["item"][:, None] == batch["item"]
            same.fill_diagonal_(False)
            loss = functional.cross_entropy(
                scores.masked_fill(same, -1e9), torch.arange(len(scores))
            )
            loss.backward()  # the rows move here
            optimizer.step()
            losses.add(loss.item())
        best = arguments.items // TASTES
        print(f"recall of the best {best} of {arguments.items} items: "
              f"{recall(model, shop, held_out, best):.2f}")
        losses.plot(arguments.plot)


if __name__ == "__main__":
    main()
