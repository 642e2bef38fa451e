#!/usr/bin/env python3
"""A torch DLRM with hotrow's tables against the same with the tables of others.

    python bench/python_vs_torch.py --dim=16 --optimizer=sgd [--peers=torch,fbgemm,torchrec]

torch: nn.EmbeddingBag(sparse=True) and a sparse optimizer; fbgemm: its table-batched bags;
torchrec: its FusedEmbeddingBagCollection. The latter two update rows in the backward pass. With
--ssd hotrow's rows are on a disk, and the next batch is prefetched. With --device=cuda the models
and torch's rows and ids are on the GPU; hotrow has a cache of --device_cache there, over memory or
the disk, and its ids come from the host, prefetched, as a loader gives them.

What bounds all: memory for the rows (random reads and writes of dim * 4 bytes, with their
optimizer state) and the dense layers, which are the same. Turns of all alternate in one process,
so that other load on the machine hits all; medians of the turns are printed. The ids are drawn
before, from a power law, one for each of 26 features.
"""

import argparse
import statistics
import time

import torch

import hotrow
import hotrow.torch

FEATURES = 26
DENSE = 13


class Bags(torch.nn.Module):
    """What a torch user writes."""

    def __init__(self, rows, dim):
        super().__init__()
        self.bags = torch.nn.ModuleList(
            torch.nn.EmbeddingBag(rows, dim, mode="sum", sparse=True) for _ in range(FEATURES)
        )

    def forward(self, ids):
        return torch.cat([bag(ids[f"f{i}"][:, None]) for i, bag in enumerate(self.bags)], dim=1)


class FbgemmBags(torch.nn.Module):
    def __init__(self, rows, dim, optimizer):
        super().__init__()
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen)
        kinds = {"sgd": EmbOptimType.EXACT_SGD, "adagrad": EmbOptimType.EXACT_ADAGRAD,
                 "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
        self.bags = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * FEATURES,
            optimizer=kinds[optimizer], learning_rate=0.01)
        self.bags.init_embedding_weights_uniform(-0.01, 0.01)

    def forward(self, ids):
        values = torch.cat([ids[f"f{i}"] for i in range(FEATURES)])
        return self.bags(values, torch.arange(len(values) + 1))


class TorchRecBags(torch.nn.Module):
    def __init__(self, rows, dim, optimizer):
        super().__init__()
        import torchrec
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
        from torchrec.optim import RowWiseAdagrad
        kinds = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad,
                 "rowwise_adagrad": RowWiseAdagrad}
        self.jagged = torchrec.KeyedJaggedTensor
        self.keys = [f"f{i}" for i in range(FEATURES)]
        self.bags = FusedEmbeddingBagCollection(
            [torchrec.EmbeddingBagConfig(name=f"t{i}", embedding_dim=dim, num_embeddings=rows,
                                         feature_names=[key]) for i, key in enumerate(self.keys)],
            optimizer_type=kinds[optimizer], optimizer_kwargs={"lr": 0.01},
            device=torch.device("cpu"), location=EmbeddingLocation.HOST)

    def forward(self, ids):
        values = torch.cat([ids[key] for key in self.keys])
        bags = self.jagged(keys=self.keys, values=values, offsets=torch.arange(len(values) + 1))
        return self.bags(bags).values()


class Rows(torch.nn.Module):
    def __init__(self, tables):
        super().__init__()
        self.tables = tables

    def forward(self, ids):
        return self.tables(ids).pooled


class Dlrm(torch.nn.Module):
    def __init__(self, embeddings, dim):
        super().__init__()
        self.embeddings = embeddings
        self.dim = dim
        self.bottom = torch.nn.Sequential(
            torch.nn.Linear(DENSE, 64), torch.nn.ReLU(), torch.nn.Linear(64, dim), torch.nn.ReLU()
        )
        pairs = torch.triu_indices(FEATURES + 1, FEATURES + 1, 1)
        self.register_buffer("pairs", pairs[0] * (FEATURES + 1) + pairs[1])
        self.top = torch.nn.Sequential(
            torch.nn.Linear(len(self.pairs) + dim, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )

    def forward(self, dense, ids):
        below = self.bottom(dense)
        vectors = self.embeddings(ids).view(len(dense), FEATURES, self.dim)
        vectors = torch.cat([below[:, None], vectors], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.top(torch.cat([below, products], dim=1))[:, 0]


def batches_of(count, size, rows):
    random = torch.Generator().manual_seed(0)
    out = []
    for _ in range(count):
        draws = torch.rand(FEATURES, size, generator=random).double()
        ids = (rows * draws.pow(3)).long().clamp_(0, rows - 1)  # the smaller, the more frequent
        ids = (ids * 2654435761) % rows  # anywhere in the table
        dense = torch.rand(size, DENSE, generator=random)
        label = (torch.rand(size, generator=random) < 0.3).float()
        out.append((dense, {f"f{i}": ids[i].contiguous() for i in range(FEATURES)}, label))
    return out


def train(model, batches, optimizers, autocast):
    begin = time.perf_counter()
    for dense, ids, label in batches:
        with autocast:
            logits = model(dense, ids)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), label)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    if label.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--rows", type=int, default=100_000, help="of each table")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--optimizer", choices=["sgd", "adagrad", "rowwise_adagrad"], default="sgd",
                        help="rowwise_adagrad: torch has none and takes adagrad")
    parser.add_argument("--peers", default="torch", help="of torch, fbgemm, torchrec, by commas")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="of one turn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ssd", help="a new directory for hotrow's rows; torch's are in memory")
    parser.add_argument("--memory", default="128MiB", help="with --ssd, of cache and store each")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--device_cache", default="4GB", help="with --device=cuda")
    parser.add_argument("--bf16", action="store_true", help="autocast of the dense layers")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    device = torch.device(flags.device)
    size = FEATURES * flags.rows * (16 * flags.dim + 256)
    where = dict(store=hotrow.Memory(size))
    if flags.ssd:
        disk = hotrow.Ssd(flags.ssd, disk_bytes=4 * size, memory=flags.memory)
        where = dict(store=disk, cache=flags.memory)
    if device.type == "cuda":
        where.update(device=flags.device, device_cache=flags.device_cache)
    ahead = bool(flags.ssd) or device.type == "cuda"
    kinds = {"sgd": hotrow.Sgd, "adagrad": hotrow.Adagrad, "rowwise_adagrad": hotrow.RowwiseAdagrad}
    tables = hotrow.torch.EmbeddingCollection(
        [
            hotrow.Table(f"t{i}", flags.dim, [f"f{i}"], optimizer=kinds[flags.optimizer](lr=0.01))
            for i in range(FEATURES)
        ],
        max_batch_size=flags.batch, prefetch_depth=1 if ahead else 0, threads=flags.threads,
        **where,
    )
    ours = Dlrm(Rows(tables), flags.dim).to(device)
    contenders = {"hotrow": (ours, [torch.optim.Adam(ours.parameters(), lr=1e-3)])}
    for peer in flags.peers.split(","):
        if peer == "torch":
            model = Dlrm(Bags(flags.rows, flags.dim), flags.dim).to(device)
            sparse = torch.optim.SGD if flags.optimizer == "sgd" else torch.optim.Adagrad
            optimizers = [sparse(model.embeddings.parameters(), lr=0.01)]
        else:
            bags = {"fbgemm": FbgemmBags, "torchrec": TorchRecBags}[peer]
            model = Dlrm(bags(flags.rows, flags.dim, flags.optimizer), flags.dim).to(device)
            optimizers = []
        dense = [*model.bottom.parameters(), *model.top.parameters()]
        contenders[peer] = (model, [*optimizers, torch.optim.Adam(dense, lr=1e-3)])
    batches = batches_of(flags.steps * 4, flags.batch, flags.rows)
    batches = [(dense.to(device), ids, label.to(device)) for dense, ids, label in batches]
    there = [
        (dense, {name: part.to(device) for name, part in ids.items()}, label)
        for dense, ids, label in batches
    ]
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=flags.bf16)

    rates = {name: [] for name in contenders}
    for turn in range(-4, flags.turns):  # four to warm up: the rows of all batches are made
        first = turn % 4 * flags.steps
        for name, (model, optimizers) in contenders.items():
            fed = (batches if name == "hotrow" else there)[first : first + flags.steps]
            if name == "hotrow" and ahead:
                fed = hotrow.torch.prefetch(fed, tables, features=lambda batch: batch[1])
            seconds = train(model, fed, optimizers, autocast)
            if turn >= 0:
                rates[name].append(flags.batch * flags.steps / seconds)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"dim {flags.dim}, {flags.optimizer}, {FEATURES} tables of {flags.rows} rows, batch "
          f"{flags.batch}, {flags.threads} threads, {flags.device}"
          f"{' bf16' if flags.bf16 else ''}, torch {torch.__version__}")
    for name, values in rates.items():
        print(f"{name:8} {medians[name]:10.0f} samples/s (from {min(values):.0f} to "
              f"{max(values):.0f})")
    for name in list(rates)[1:]:
        print(f"hotrow / {name}: {medians['hotrow'] / medians[name]:.2f}")


if __name__ == "__main__":
    main()
