#!/usr/bin/env python3
"""Models of torch over hotrow's tables against the same models over the tables of others.

    python bench/python_vs_torch.py --dim=16 --optimizer=sgd --peers=torch,fbgemm,torchrec
    python bench/python_vs_torch.py --device=cuda --models=dlrm,two_tower,sequence --mlperf
        --precisions=fp32,tf32,bf16 --batches=2048,65536 --ways=eager,compiled,graphs
        --tiers=cache,memory,ssd --ssd=/data/new --peers=torch,unique --report=FILE

torch: nn.EmbeddingBag(sparse=True) and a sparse optimizer; unique: a dense table, gradients summed
by torch.unique and index_add; fbgemm: its table-batched bags; torchrec: its FusedEmbeddingBag-
Collection. The last two have the DLRM alone, on a CPU, and update rows in the backward pass.

--tiers, where hotrow's rows are. On a CPU: memory; ssd, with --memory of cache. On a GPU, over
memory: cache, which has room for all rows that the batches have; memory, for 80 % of them; ssd: 80
% over a disk. Its ids come from page-locked host memory there, prefetched, as a loader gives them;
those of the others are on the GPU. --ways: compiled: the layers by torch.compile; graphs: with
mode="reduce-overhead".

What bounds all: memory for the rows (random reads and writes of dim * 4 bytes, with their
optimizer state) and the dense layers, which are the same. Turns of all alternate in one process,
so that other load on the machine hits all; medians of the turns are printed. The ids are drawn
before, from a power law. "us of tables": what forward, backward and update of one sample take the
caller, without layers, by the clock, once its rows are ready. "GiB": what the tables took of the
GPU's memory (of the process's, on a CPU) by the end of their first turns.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from typing import NamedTuple

import torch
from torch.nn import functional

import hotrow
import hotrow.torch

DENSE = 13
HISTORY = 32  # of the sequence model
CHUNK = 2048  # samples of a softmax within the batch
EMULATED = bool(os.environ.get("HOTROW_EMULATED_GPU"))  # whose memory is the host's
KINDS = {"sgd": hotrow.Sgd, "adagrad": hotrow.Adagrad, "rowwise_adagrad": hotrow.RowwiseAdagrad}


class Feature(NamedTuple):
    """With its own table."""

    name: str
    hotness: int = 1
    pooling: str = "sum"


FEATURES = {
    "dlrm": [Feature(f"f{i}") for i in range(26)],
    "two_tower": [Feature("user"), Feature("bought", 8, "mean"), Feature("item"),
                  Feature("category")],
    "sequence": [Feature("history", HISTORY, "none"), Feature("target", 1, "none")],
}


# --- Tables: ids by feature -> pooled vectors [B, features * dim] or None, [unpooled vectors] ----


class Rows(torch.nn.Module):
    def __init__(self, tables):
        super().__init__()
        self.tables = tables

    def forward(self, ids):
        out = self.tables(ids)
        return out.pooled, list(out.unpooled.values())


class Bags(torch.nn.Module):
    """What a torch user writes."""

    def __init__(self, features, rows, dim):
        super().__init__()
        self.features = features
        self.bags = torch.nn.ModuleList(
            torch.nn.EmbeddingBag(rows, dim, mode="mean" if f.pooling == "mean" else "sum",
                                  sparse=True)
            for f in features
        )

    def forward(self, ids):
        pooled, unpooled = [], []
        for feature, bag in zip(self.features, self.bags):
            some = ids[feature.name]
            if feature.pooling == "none":
                unpooled.append(bag(some.reshape(-1, 1)))
            else:
                pooled.append(bag(some if some.dim() == 2 else some[:, None]))
        return torch.cat(pooled, dim=1) if pooled else None, unpooled


class UniqueRows(torch.nn.Module):
    """One table without autograd. It is its own optimizer."""

    def __init__(self, features, rows, dim, optimizer):
        super().__init__()
        self.features, self.rows, self.optimizer = features, rows, optimizer
        count = len(features) * rows
        self.register_buffer("weight", torch.empty(count, dim).uniform_(-0.01, 0.01))
        width = {"sgd": 0, "adagrad": dim, "rowwise_adagrad": 1}[optimizer]
        self.register_buffer("state", torch.zeros(count, width))
        self.ids = self.vectors = None

    def forward(self, ids):
        self.ids = torch.cat(
            [ids[f.name].reshape(-1) + i * self.rows for i, f in enumerate(self.features)])
        self.vectors = self.weight[self.ids].requires_grad_(True)
        pooled, unpooled = [], []
        parts = self.vectors.split([ids[f.name].numel() for f in self.features])
        for feature, part in zip(self.features, parts):
            if feature.pooling == "none":
                unpooled.append(part)
            elif feature.hotness > 1:
                pooled.append(part.view(-1, feature.hotness, part.shape[1]).mean(dim=1))
            else:
                pooled.append(part)
        return torch.cat(pooled, dim=1) if pooled else None, unpooled

    def zero_grad(self, set_to_none=True):
        pass

    @torch.no_grad()
    def step(self):
        unique, inverse = torch.unique(self.ids, return_inverse=True)
        gradient = torch.zeros(len(unique), self.weight.shape[1], device=self.weight.device)
        gradient.index_add_(0, inverse, self.vectors.grad)
        self.vectors = None
        if self.optimizer != "sgd":
            squares = gradient.square()
            if self.optimizer == "rowwise_adagrad":
                squares = squares.mean(dim=1, keepdim=True)
            self.state.index_add_(0, unique, squares)
            gradient /= self.state[unique].sqrt() + 1e-8
        self.weight.index_add_(0, unique, gradient, alpha=-0.01)


class FbgemmBags(torch.nn.Module):
    def __init__(self, features, rows, dim, optimizer):
        super().__init__()
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen)
        kinds = {"sgd": EmbOptimType.EXACT_SGD, "adagrad": EmbOptimType.EXACT_ADAGRAD,
                 "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
        self.keys = [feature.name for feature in features]
        self.bags = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * len(features),
            optimizer=kinds[optimizer], learning_rate=0.01)
        self.bags.init_embedding_weights_uniform(-0.01, 0.01)

    def forward(self, ids):
        values = torch.cat([ids[key] for key in self.keys])
        return self.bags(values, torch.arange(len(values) + 1)), []


class TorchRecBags(torch.nn.Module):
    def __init__(self, features, rows, dim, optimizer):
        super().__init__()
        import torchrec
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
        from torchrec.optim import RowWiseAdagrad
        kinds = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad,
                 "rowwise_adagrad": RowWiseAdagrad}
        self.jagged = torchrec.KeyedJaggedTensor
        self.keys = [feature.name for feature in features]
        self.bags = FusedEmbeddingBagCollection(
            [torchrec.EmbeddingBagConfig(name=f"t{i}", embedding_dim=dim, num_embeddings=rows,
                                         feature_names=[key]) for i, key in enumerate(self.keys)],
            optimizer_type=kinds[optimizer], optimizer_kwargs={"lr": 0.01},
            device=torch.device("cpu"), location=EmbeddingLocation.HOST)

    def forward(self, ids):
        values = torch.cat([ids[key] for key in self.keys])
        bags = self.jagged(keys=self.keys, values=values, offsets=torch.arange(len(values) + 1))
        return self.bags(bags).values(), []


# --- Models: what is above the tables, and the loss ----------------------------------------------


def mlp(sizes, last):
    """last: with a ReLU behind the last layer, too."""
    layers = []
    for i, (before, after) in enumerate(zip(sizes, sizes[1:])):
        layers.append(torch.nn.Linear(before, after))
        if last or i + 2 < len(sizes):
            layers.append(torch.nn.ReLU())
    return torch.nn.Sequential(*layers)


def softmax_within_chunks(left, right):
    """Which of `right` belongs to each of `left`: told from the others of its chunk."""
    size = min(CHUNK, len(left))
    if len(left) % size:
        raise ValueError(f"--batches: {len(left)} samples are no multiple of {size}")
    scores = torch.bmm(left.view(-1, size, left.shape[1]),
                       right.view(-1, size, right.shape[1]).transpose(1, 2))
    target = torch.arange(size, device=left.device).repeat(len(left) // size)
    return functional.cross_entropy(scores.float().flatten(0, 1), target)


class Dlrm(torch.nn.Module):
    def __init__(self, dim, bottom, top):
        super().__init__()
        self.dim = dim
        vectors = len(FEATURES["dlrm"]) + 1
        self.bottom = mlp([DENSE, *bottom, dim], last=True)
        pairs = torch.triu_indices(vectors, vectors, 1)
        self.register_buffer("pairs", pairs[0] * vectors + pairs[1])
        self.top = mlp([len(self.pairs) + dim, *top, 1], last=False)

    def forward(self, dense, label, pooled, unpooled):
        below = self.bottom(dense)
        vectors = pooled.view(len(dense), -1, self.dim).to(below.dtype)
        vectors = torch.cat([below[:, None], vectors], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)[:, self.pairs]
        logits = self.top(torch.cat([below, products], dim=1))[:, 0]
        return functional.binary_cross_entropy_with_logits(logits.float(), label)


class TwoTower(torch.nn.Module):
    def __init__(self, dim, bottom, top):
        super().__init__()
        self.user = mlp([2 * dim, *top, dim], last=False)
        self.item = mlp([2 * dim, *top, dim], last=False)

    def forward(self, dense, label, pooled, unpooled):
        user, item = pooled.chunk(2, dim=1)
        user = functional.normalize(self.user(user), dim=1)
        item = functional.normalize(self.item(item), dim=1)
        return softmax_within_chunks(user, item)


class Sequence(torch.nn.Module):
    def __init__(self, dim, bottom, top):
        super().__init__()
        self.places = torch.nn.Parameter(torch.randn(HISTORY, dim) * 0.02)
        self.layer = torch.nn.TransformerEncoderLayer(
            dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, dense, label, pooled, unpooled):
        history, target = unpooled
        hidden = self.layer(history.view(len(dense), HISTORY, -1) + self.places)
        return softmax_within_chunks(hidden[:, -1], target.to(hidden.dtype))


MODELS = {"dlrm": Dlrm, "two_tower": TwoTower, "sequence": Sequence}


class Contender:
    def __init__(self, embeddings, optimizers, upper, gigabytes, tables=None):
        self.embeddings, self.optimizers, self.upper = embeddings, optimizers, upper
        self.adam = torch.optim.Adam(upper.parameters(), lr=1e-3)
        self.gigabytes = gigabytes
        self.tables = tables  # hotrow's, where it prefetches
        self.forward = upper

    def take(self, way):
        modes = {"compiled": None, "graphs": "reduce-overhead"}
        self.forward = (
            self.upper if way == "eager" else torch.compile(self.upper, mode=modes[way]))

    def train(self, batches, autocast):
        """Seconds."""
        optimizers = [*self.optimizers, self.adam]
        if self.tables is not None:
            batches = hotrow.torch.prefetch(batches, self.tables, features=lambda batch: batch[1])
        begin = time.perf_counter()
        for dense, ids, label in batches:
            with autocast:
                loss = self.forward(dense, label, *self.embeddings(ids))
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        synchronize()
        return time.perf_counter() - begin

    def microseconds(self, ids, steps):
        """Of the caller: forward, backward and update of the tables alone."""
        batches = [ids] * steps
        if self.tables is not None:
            batches = hotrow.torch.prefetch(batches, self.tables, features=lambda batch: batch)
        seconds = []
        for batch in batches:
            synchronize()
            time.sleep(0.002)  # rows that are prefetched are ready
            begin = time.perf_counter()
            pooled, unpooled = self.embeddings(batch)
            outputs = [part for part in (pooled, *unpooled) if part is not None]
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(outputs, [torch.zeros_like(part) for part in outputs])
            for optimizer in self.optimizers:
                optimizer.step()
            seconds.append(time.perf_counter() - begin)
        return 1e6 * statistics.median(seconds)


# --- Data and memory -----------------------------------------------------------------------------


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def held_bytes(where):
    """What is taken of the GPU, by torch and others, or by this process of the host."""
    if where.type == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return total - free
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def batches_of(features, count, size, rows):
    random = torch.Generator().manual_seed(0)
    out = []
    for _ in range(count):
        ids = {}
        for feature in features:
            shape = (size,) if feature.hotness == 1 else (size, feature.hotness)
            draws = torch.rand(*shape, generator=random).double()
            drawn = (rows * draws.pow(3)).long().clamp_(0, rows - 1)  # the smaller, the likelier
            ids[feature.name] = (drawn * 2654435761) % rows  # anywhere in the table
        dense = torch.rand(size, DENSE, generator=random)
        label = (torch.rand(size, generator=random) < 0.3).float()
        out.append((dense, ids, label))
    return out


def moved(batches, where, ids_where):
    """pinned: page-locked memory of the host."""

    def ids_of(tensor):
        return tensor.pin_memory() if ids_where == "pinned" else tensor.to(ids_where)

    return [
        (dense.to(where), {name: ids_of(some) for name, some in ids.items()}, label.to(where))
        for dense, ids, label in batches
    ]


def distinct_rows(features, batches):
    return sum(
        len(torch.unique(torch.cat([ids[feature.name].reshape(-1) for _, ids, _ in batches])))
        for feature in features
    )


def hits_of(tables):
    """Distinct keys of steps so far, and those that the first tier had."""
    top = tables.collection.stats()["tiers"][0]
    return top["unique_keys"], top["unique_hits"]


def place_of(flags, tier, features, distinct):
    """Options of a collection: store, caches."""
    state = {"sgd": 0, "adagrad": flags.dim, "rowwise_adagrad": 1}[flags.optimizer]
    row = 4 * (flags.dim + state + 1) + 16
    rows = len(features) * flags.rows
    ssd = None
    if tier == "ssd":
        name = f"{len(os.listdir(flags.ssd))}" if os.path.isdir(flags.ssd) else "0"
        ssd = hotrow.Ssd(os.path.join(flags.ssd, name), memory=flags.memory,
                         disk_bytes=4 * rows * row + (1 << 29))
    if flags.device == "cpu":
        if ssd:
            return dict(store=ssd, cache=flags.memory, prefetch_depth=1)
        size = rows * (16 * flags.dim + 256) + (1 << 24)
        return dict(store=hotrow.Memory(size), prefetch_depth=0)
    share = 1.25 if tier == "cache" else 0.8
    cache = flags.device_cache or int(share * distinct * (row + 64)) + (4 << 20)
    place = dict(device="cuda", device_cache=cache, prefetch_depth=2)
    if ssd:
        return dict(store=ssd, cache=flags.memory, **place)
    return dict(store=hotrow.Memory(rows * (row + 64) + (1 << 26)), **place)


# --- Runs ----------------------------------------------------------------------------------------


def run_tables(flags, name, tier, where, add):
    """All batches, precisions and ways of one model over one tier."""
    features = FEATURES[name]
    drawn = {size: batches_of(features, flags.steps * 4, size, flags.rows)
             for size in flags.batches}
    distinct = distinct_rows(features, [batch for some in drawn.values() for batch in some])
    place = place_of(flags, tier, features, distinct)
    on_gpu = flags.device == "cuda"
    ours = {size: moved(some, where, "pinned" if where.type == "cuda" else "cpu")
            for size, some in drawn.items()}
    theirs = {size: moved(some, where, where) for size, some in drawn.items()}
    largest = max(flags.batches)
    contenders = {}
    for contender in ["hotrow", *filter(None, flags.peers)]:
        torch.manual_seed(1)
        upper = MODELS[name](flags.dim, flags.bottom, flags.top).to(where)
        before = held_bytes(where)
        tables = None
        optimizers = []
        if contender == "hotrow":
            tables = hotrow.torch.EmbeddingCollection(
                [hotrow.Table(f"t{i}", flags.dim, [f.name], f.pooling,
                              KINDS[flags.optimizer](lr=0.01),
                              num_embeddings=flags.rows if on_gpu else 0)
                 for i, f in enumerate(features)],
                max_batch_size=largest, threads=flags.threads, **place)
            embeddings = Rows(tables)
        elif contender == "torch":
            embeddings = Bags(features, flags.rows, flags.dim).to(where)
            sparse = torch.optim.SGD if flags.optimizer == "sgd" else torch.optim.Adagrad
            optimizers = [sparse(embeddings.parameters(), lr=0.01)]
        elif contender == "unique":
            embeddings = UniqueRows(features, flags.rows, flags.dim, flags.optimizer).to(where)
            optimizers = [embeddings]
        else:
            bags = {"fbgemm": FbgemmBags, "torchrec": TorchRecBags}[contender]
            embeddings = bags(features, flags.rows, flags.dim, flags.optimizer)
        ahead = tables if tables is not None and place["prefetch_depth"] else None
        each = contenders[contender] = Contender(embeddings, optimizers, upper, 0.0, ahead)
        fed = ours if tables is not None else theirs
        for size in flags.batches:  # the rows of all batches are made
            each.train(fed[size], contextlib.nullcontext())
        each.gigabytes = (held_bytes(where) - before) / 2**30
    hotrows = contenders["hotrow"].embeddings.tables
    microseconds = {
        who: each.microseconds({
            feature: ids[:1].clone() for feature, ids
            in (ours if who == "hotrow" else theirs)[largest][0][1].items()}, 6 * flags.steps)
        for who, each in contenders.items()
    }

    for size in flags.batches:
        for precision in flags.precisions:
            if precision == "tf32" and not on_gpu:
                print("tf32: is of GPUs, left out", file=sys.stderr)
                continue
            torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
            autocast = torch.autocast(where.type, torch.bfloat16, enabled=precision == "bf16")
            for way in flags.ways:
                rates = {who: [] for who in contenders}
                for each in contenders.values():
                    each.take(way)
                before = hits_of(hotrows)
                for turn in range(-1, flags.turns):  # one to warm up
                    first = turn % 4 * flags.steps
                    for who, each in contenders.items():
                        fed = ours if who == "hotrow" else theirs
                        seconds = each.train(fed[size][first : first + flags.steps], autocast)
                        if turn >= 0:
                            rates[who].append(size * flags.steps / seconds)
                torch.compiler.reset()
                keys, hits = (now - then for now, then in zip(hits_of(hotrows), before))
                figure = {"model": name, "tier": tier, "batch": size, "precision": precision,
                          "way": way, "hit_rate": hits / keys}
                best = max((statistics.median(rates[who]) for who in rates if who != "hotrow"),
                           default=0.0)
                for who, values in rates.items():
                    rate = statistics.median(values)
                    add({**figure, "tables": who, "samples_per_second": rate,
                         "least": min(values), "most": max(values),
                         "of_best_peer": rate / best if best else None,
                         "table_microseconds": microseconds[who],
                         "gigabytes": contenders[who].gigabytes})
    hotrows.close()


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def add_list(name, default, known, text):
        def parts(value):
            out = [part for part in value.split(",") if part]
            for part in out:
                if part not in known:
                    raise argparse.ArgumentTypeError(f"{part}: is none of {', '.join(known)}")
            return out

        parser.add_argument(f"--{name}", type=parts, default=default, help=text)

    def numbers(value):
        return [int(part) for part in value.split(",")]

    add_list("models", ["dlrm"], MODELS, f"of {', '.join(MODELS)}")
    add_list("precisions", ["fp32"], ("fp32", "tf32", "bf16"), "of fp32, tf32, bf16")
    add_list("ways", ["eager"], ("eager", "compiled", "graphs"), "of eager, compiled, graphs")
    add_list("tiers", None, ("cache", "memory", "ssd"),
             "of cache, memory, ssd; by default the first that the device has")
    add_list("peers", ["torch"], ("torch", "unique", "fbgemm", "torchrec"),
             "of torch, unique, fbgemm, torchrec; none with an empty list")
    parser.add_argument("--batches", "--batch", type=numbers, default=[2048], help="of samples")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--rows", type=int, default=100_000, help="of each table")
    parser.add_argument("--mlperf", action="store_true",
                        help="dim 128, a million rows a table, layers of MLPerf's DLRM")
    parser.add_argument("--optimizer", choices=KINDS, default="sgd",
                        help="rowwise_adagrad: torch has none and takes adagrad")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="of one turn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ssd", help="a new directory for hotrow's rows; torch's are in memory")
    parser.add_argument("--memory", default="128MiB",
                        help="of the host, for the tier ssd: of cache and store each")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--device_cache", help="of the GPU, instead of what --tiers say")
    parser.add_argument("--report", help="a file for all figures, as JSON")
    flags = parser.parse_args(arguments)
    flags.bottom, flags.top = [64], [64]
    if flags.mlperf:
        flags.dim, flags.rows = 128, 1_000_000
        flags.bottom, flags.top = [512, 256], [1024, 1024, 512, 256]
    if flags.tiers is None:
        flags.tiers = (
            ["ssd"] if flags.ssd else ["cache" if flags.device == "cuda" else "memory"])
    if flags.device == "cpu" and "cache" in flags.tiers:
        parser.error("--tiers=cache: is of --device=cuda")
    if "ssd" in flags.tiers and not flags.ssd:
        parser.error("--tiers=ssd: needs --ssd=DIR")
    others = {"fbgemm", "torchrec"} & set(flags.peers)
    if others and (flags.device == "cuda" or flags.models != ["dlrm"]):
        parser.error(f"--peers={','.join(sorted(others))}: --models=dlrm on a CPU alone")
    return flags


def main(arguments=None):
    flags = parse(arguments)
    if flags.device == "cuda" and not EMULATED:
        cuda = hotrow.environment()["cuda"]
        if not torch.cuda.is_available():
            sys.exit("--device=cuda: torch finds no GPU here")
        if cuda is None or not cuda["devices"]:
            problem = "has no CUDA code" if cuda is None else f"finds none: {cuda['problem']}"
            sys.exit(f"--device=cuda: hotrow's library {problem}")
    torch.set_num_threads(flags.threads)
    where = torch.device("cpu" if EMULATED else flags.device)
    machine = torch.cuda.get_device_name() if where.type == "cuda" else flags.device
    print(f"{machine}, torch {torch.__version__}, hotrow {hotrow.__version__}, dim {flags.dim}, "
          f"{flags.optimizer}, tables of {flags.rows} rows, {flags.threads} threads")
    figures = []

    def add(figure):
        figures.append(figure)
        if figure["tables"] == "hotrow":
            print(f"{figure['model']}, {figure['tier']}, batch {figure['batch']}, "
                  f"{figure['precision']}, {figure['way']}; of the distinct ids "
                  f"{100 * figure['hit_rate']:.0f} % in hotrow's first tier")
        told = figure["of_best_peer"]
        print(f"  {figure['tables']:9} {figure['samples_per_second']:11.0f} samples/s (from "
              f"{figure['least']:.0f} to {figure['most']:.0f})"
              + (f", {told:.2f} of the best peer" if told and figure["tables"] == "hotrow" else "")
              + f"; {figure['table_microseconds']:.0f} us of tables, {figure['gigabytes']:.2f} GiB",
              flush=True)
        if flags.report:
            with open(flags.report, "w", encoding="utf-8") as file:
                json.dump({"machine": machine, "torch": torch.__version__, "figures": figures},
                          file, indent=1)

    for name in flags.models:
        for tier in flags.tiers:
            run_tables(flags, name, tier, where, add)
    return figures


if __name__ == "__main__":
    main()
