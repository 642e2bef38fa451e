"""DLRM (Naumov et al. 2019) on data in the layout of Criteo's click logs, in PyTorch.

    python examples/torch_dlrm.py --data=criteo:day_0
    python examples/torch_dlrm.py                        # generated clicks
    python examples/torch_dlrm.py --device=cuda          # model and rows in use on a GPU
    python examples/torch_dlrm.py --export=model         # for hotrow serve model

13 counts go through an MLP, 26 categories through tables of any size, and a second MLP reads the
counts' vector and the products of all pairs of vectors.
"""

import argparse
from typing import Dict, List

import torch
from torch import nn

import hotrow
import hotrow.torch
from training import Losses


def mlp(sizes: List[int], last: bool) -> nn.Sequential:
    """last: with a ReLU behind the last layer, too."""
    layers: List[nn.Module] = []
    for at, (before, after) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(before, after))
        if last or at + 2 < len(sizes):
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    def __init__(
        self,
        tables: hotrow.torch.EmbeddingCollection,
        features: List[str],
        num_dense: int,
        dim: int,
    ) -> None:
        super().__init__()
        self.tables = tables
        self.features = features
        self.bottom = mlp([num_dense, 128, 64, dim], last=True)
        pairs = len(features) * (len(features) + 1) // 2
        self.top = mlp([dim + pairs, 256, 128, 1], last=False)
        vectors = len(features) + 1
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1), persistent=False)

    def forward(self, dense: torch.Tensor, ids: Dict[str, torch.Tensor]) -> torch.Tensor:
        """dense: [B, num_dense]. The logits [B]."""
        return self.over(self.tables(ids).pooled, dense)

    def over(self, pooled: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """What is above the tables, and exported with them."""
        counts = self.bottom(dense)
        embeddings = pooled.view(len(dense), len(self.features), -1)
        vectors = torch.cat([counts[:, None], embeddings], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        products = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([counts, products], dim=1))[:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="synthetic:tables=26,rows=100000,samples=400000")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--store", help="a directory on an SSD; without one rows are in memory")
    parser.add_argument("--checkpoints", help="a directory; a run that was killed goes on from it")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--device_cache", default="1GB", help="memory of the GPU for rows")
    parser.add_argument("--export", help="a directory to make: the model, to be served")
    parser.add_argument("--plot", default="torch_dlrm.png")
    arguments = parser.parse_args()

    if arguments.device == "cuda":
        cuda = hotrow.environment()["cuda"]
        if not torch.cuda.is_available() or cuda is None or not cuda["devices"]:
            print("there is no GPU for torch and hotrow: training on the CPU")
            arguments.device = "cpu"
    torch.manual_seed(1)
    data = hotrow.Data(arguments.data, seed=1)
    features = [feature["name"] for feature in data.features]
    if arguments.store:
        place = dict(
            store=hotrow.Ssd(arguments.store, disk_bytes="200GB", memory="2GB"), cache="2GB"
        )
    else:
        place = dict(store=hotrow.Memory("4GB"))
    if arguments.device == "cuda":
        place.update(device="cuda", device_cache=arguments.device_cache)
    tables = hotrow.torch.EmbeddingCollection(
        [hotrow.Table(name, arguments.dim, optimizer=hotrow.RowwiseAdagrad(lr=0.05))
         for name in features],
        feature_order=features, max_batch_size=arguments.batch, seed=1, prefetch_depth=2,
        checkpoint_dir=arguments.checkpoints, resume=arguments.checkpoints is not None, **place,
    )
    with tables:
        model = Dlrm(tables, features, data.num_dense, arguments.dim).to(arguments.device)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
        state = {"model": model, "optimizer": optimizer}
        tables.restore(state)

        def loss_of(
            ids: Dict[str, torch.Tensor], dense: torch.Tensor, labels: torch.Tensor
        ) -> torch.Tensor:
            logits = model(dense.to(arguments.device), ids)
            return nn.functional.binary_cross_entropy_with_logits(
                logits, labels[:, 0].to(arguments.device)
            )

        losses = Losses(total=-(-data.num_samples["train"] // arguments.batch))
        source = hotrow.torch.Dataset(data, arguments.batch)
        source.go_on(epoch=0, first_sample=tables.steps * arguments.batch)
        for batch in losses.bar(hotrow.torch.prefetch(source, tables, depth=2)):
            optimizer.zero_grad()
            loss = loss_of(*batch)
            loss.backward()  # the rows move here
            optimizer.step()
            losses.add(loss.item())
            if arguments.checkpoints and tables.steps % 1000 == 0:
                tables.collection.wait_checkpoint()
                tables.save_checkpoint(state, wait=False)

        model.eval()
        with torch.no_grad():
            held_out = [
                (loss_of(*batch).item(), len(batch[2]))
                for batch in hotrow.torch.Dataset(data, arguments.batch, "valid")
            ]
        if held_out:
            mean = sum(loss * size for loss, size in held_out) / sum(size for _, size in held_out)
            print(f"loss on data not trained on: {mean:.4f}")
        if arguments.export:
            hotrow.torch.export(tables, model.over, arguments.export, num_dense=data.num_dense)
        losses.plot(arguments.plot)


if __name__ == "__main__":
    main()
