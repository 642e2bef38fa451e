"""What plain PyTorch takes for what hotrow's ops and its DLRM do, on the same GPU and the same shapes.

  torch_peers.py ops  --ids=FILE [--device=cuda]    the ids that `gpu_bench --ids=FILE` wrote
  torch_peers.py dlrm --batch=65536 [--device=cuda]

Both write --report=FILE, a JSON object with figures: part, name, median_seconds and, as gpu_bench has them, dim, optimizer
and unique. Times of ops are CUDA events around one call after warm-up calls, medians over repeats; those of dlrm the clock
around all steps. `right` says whether an op gave what a plainer way gives, and whether training ended with a finite loss.
--toy: tiny sizes, also on the CPU.
"""
import argparse
import json
import os
import statistics
import sys
import time

import torch
from torch import nn

TABLES = 10  # of gpu_bench's batch, one lookup of each in a sample
DIMS = (32, 128)


def make_timer(device, repeats, warmup):
    """seconds(call): the median."""

    def by_events(call):
        seconds = []
        for _ in range(warmup):
            call()
        for _ in range(repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            call()
            end.record()
            end.synchronize()
            seconds.append(1e-3 * begin.elapsed_time(end))
        return statistics.median(seconds)

    def by_clock(call):
        seconds = []
        for _ in range(warmup):
            call()
        for _ in range(repeats):
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds)

    return by_events if device == "cuda" else by_clock


def graphed(call):
    """call as a CUDA graph: what is left when launches cost nothing."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


# --- ops ------------------------------------------------------------------------------------------------
def dedupe_by_sort(keys):
    """Distinct keys and inverse by one sort: what torch.unique does, without its waits for a count."""
    ordered, order = torch.sort(keys)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    place = torch.cumsum(first, 0) - 1
    inverse = torch.empty_like(order)
    inverse[order] = place
    return ordered, first, inverse, order, place


def ops_figures(a, write):
    seconds = make_timer(a.device, a.repeats, a.warmup)
    with open(a.ids, "rb") as file:
        data = bytearray(file.read())
    ids = torch.frombuffer(data, dtype=torch.int64).to(a.device)
    if ids.numel() % TABLES != 0:
        sys.exit("torch_peers: %s: holds %d ids, no multiple of %d" % (a.ids, ids.numel(), TABLES))
    samples = ids.numel() // TABLES
    table = torch.arange(TABLES, device=a.device).repeat_interleave(samples)
    # One number space over all tables, as one EmbeddingBag would have it.
    rows_per_table = int(ids.max()) + 1
    keys = ids + table * rows_per_table
    unique, inverse, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    n, u = keys.numel(), unique.numel()
    figures = []

    def add(part, name, call, right, **more):
        figures.append({"part": part, "name": name, "median_seconds": seconds(call), "right": bool(right), "lookups": n,
                        "unique": u, **more})
        write(figures)

    add("unique", "torch.unique, inverse and counts",
        lambda: torch.unique(keys, return_inverse=True, return_counts=True), int(counts.sum()) == n)
    ordered, first, by_sort, order, _ = dedupe_by_sort(keys)
    add("unique", "unique by sort and scan", lambda: dedupe_by_sort(keys),
        torch.equal(ordered[first], unique) and torch.equal(by_sort, inverse))
    add("partition", "argsort of the inverse, bincount",
        lambda: (torch.argsort(inverse, stable=True), torch.cumsum(torch.bincount(inverse, minlength=u), 0)),
        torch.equal(order, torch.argsort(keys, stable=True)) or torch.equal(keys[order], ordered))

    offsets = torch.arange(n, device=a.device)
    generator = torch.Generator(device=a.device).manual_seed(1)
    for dim in DIMS:
        # As gpu_bench: U rows that are looked up by the inverse, one lookup a bag.
        rows = torch.rand(u, dim, device=a.device, generator=generator) - 0.5
        with torch.no_grad():
            pooled = nn.functional.embedding_bag(inverse, rows, offsets, mode="sum")
            add("lookup", "EmbeddingBag sum, dim %d" % dim,
                lambda rows=rows: nn.functional.embedding_bag(inverse, rows, offsets, mode="sum"),
                torch.equal(pooled, rows[inverse]), dim=dim)
            half = rows.bfloat16()
            add("lookup bf16", "EmbeddingBag sum, dim %d, bf16 rows" % dim,
                lambda half=half: nn.functional.embedding_bag(inverse, half, offsets, mode="sum"), True, dim=dim,
                note="ours: fp32 rows only here")
        gradient = torch.rand(n, dim, device=a.device, generator=generator) - 0.5
        sums = torch.zeros(u, dim, device=a.device)

        def by_index_add(gradient=gradient, sums=sums):
            return sums.zero_().index_add_(0, inverse, gradient)

        def by_sort(gradient=gradient):
            # In a fixed order, unlike index_add, whose atomics give other bits each time.
            return torch.segment_reduce(gradient[order], "sum", lengths=counts, axis=0)

        reference = torch.zeros(u, dim, device=a.device, dtype=torch.float64).index_add_(0, inverse, gradient.double())
        error = (by_index_add() - reference).abs().max()
        add("gradient_sum", "index_add, dim %d" % dim, by_index_add, error <= 1e-3 * counts.max() ** 0.5, dim=dim)
        error = (by_sort() - reference).abs().max()
        add("gradient_sum", "sorted segment_reduce, dim %d" % dim, by_sort, error <= 1e-3 * counts.max() ** 0.5, dim=dim)
        del gradient, sums, reference

    dim = 128
    rows = torch.zeros(u, dim, device=a.device)
    gradient = torch.rand(u, dim, device=a.device, generator=generator) - 0.5
    at = torch.randperm(u, device=a.device, generator=generator)
    state = torch.zeros(u, device=a.device)
    full = torch.zeros(u, dim, device=a.device)

    def sgd():
        rows.index_add_(0, at, gradient, alpha=-0.01)

    def rowwise_adagrad():
        state.index_add_(0, at, gradient.square().mean(1))
        rows.index_add_(0, at, gradient / (state[at].sqrt() + 1e-8).unsqueeze(1), alpha=-0.01)

    def adagrad():
        full.index_add_(0, at, gradient.square())
        rows.index_add_(0, at, gradient / (full[at].sqrt() + 1e-8), alpha=-0.01)

    for call in (sgd, rowwise_adagrad, adagrad):
        before = rows.clone()
        call()
        add("update", "index_add, dim %d, %s" % (dim, call.__name__), call, not torch.equal(before, rows), dim=dim,
            optimizer=call.__name__)
    return figures


# --- dlrm -----------------------------------------------------------------------------------------------
def mlp(sizes, last):
    layers = []
    for i in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[i], sizes[i + 1]))
        if i < len(sizes) - 2 or last:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """Bottom MLP, one EmbeddingBag over all tables (sum, one lookup each), dot interaction, top MLP."""

    def __init__(self, tables, rows, dim, dense, bottom, top):
        super().__init__()
        self.tables, self.dim = tables, dim
        self.bottom = mlp([dense] + bottom, True)
        self.rows = nn.EmbeddingBag(tables * rows, dim, mode="sum", sparse=False)
        self.rows.weight.data.uniform_(-rows**-0.5, rows**-0.5)
        lower = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("i", lower[0])
        self.register_buffer("j", lower[1])
        self.top = mlp([dim + (tables + 1) * tables // 2] + top, False)

    def dense_part(self, dense, pooled):
        x = self.bottom(dense)
        all_ = torch.cat([x.unsqueeze(1), pooled.to(x.dtype)], 1)
        dots = torch.bmm(all_, all_.transpose(1, 2))[:, self.i, self.j]
        return self.top(torch.cat([x, dots], 1)).squeeze(1)


def zipf_ids(count, rows, alpha, generator, device):
    weight = torch.arange(1, rows + 1, device=device, dtype=torch.float64) ** -alpha
    bounds = torch.cumsum(weight, 0)
    return torch.searchsorted(bounds / bounds[-1], torch.rand(count, generator=generator, device=device, dtype=torch.float64))


class Step:
    """One training step on a batch that lies on the device: SGD on the rows and on the MLPs.

    rows: how the tables learn. "bag": EmbeddingBag with sparse gradients, as most people write it. "unique": the lookup is
    outside of autograd, gradients are summed by unique + index_add. "add": without unique, since in a graph the number of
    distinct rows must not come to the host; duplicates are added by atomics.
    """

    def __init__(self, a, model, precision, compiled, rows):
        self.model, self.rows = model, rows
        self.amp = precision == "bf16"
        self.device = a.device
        self.forward = torch.compile(model.dense_part) if compiled else model.dense_part
        self.optimizers = [torch.optim.SGD([*model.bottom.parameters(), *model.top.parameters()], lr=0.01,
                                           foreach=a.device == "cuda")]
        if rows == "bag":
            self.optimizers.append(torch.optim.SGD([model.rows.weight], lr=0.01))
        self.loss = nn.BCEWithLogitsLoss()

    def __call__(self, dense, ids, labels):
        model = self.model
        weight = model.rows.weight
        if self.rows == "bag":
            # One lookup a bag.
            offsets = torch.arange(ids.numel(), device=ids.device)
            pooled = nn.functional.embedding_bag(ids, weight, offsets, mode="sum", sparse=True)
            pooled = pooled.view(-1, model.tables, model.dim)
        else:
            with torch.no_grad():
                pooled = weight[ids].view(-1, model.tables, model.dim)
            pooled.requires_grad_(True)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type=self.device, dtype=torch.bfloat16, enabled=self.amp):
            logits = self.forward(dense, pooled)
        loss = self.loss(logits.float(), labels)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        if self.rows != "bag":
            self.add_to_rows(weight, ids, pooled.grad.view(-1, model.dim))
        return loss.detach()

    @torch.no_grad()
    def add_to_rows(self, weight, ids, gradient):
        if self.rows == "unique":
            unique, inverse = torch.unique(ids, return_inverse=True)
            sums = torch.zeros(unique.numel(), weight.shape[1], device=weight.device).index_add_(0, inverse, gradient)
            weight.index_add_(0, unique, sums, alpha=-0.01)
        else:
            weight.index_add_(0, ids, gradient, alpha=-0.01)


def dlrm_figures(a, write):
    sizes = {"tables": 26, "rows": 1_000_000, "dim": 128, "dense": 13, "bottom": [512, 256, 128],
             "top": [1024, 1024, 512, 256, 1]}
    if a.toy:
        sizes = {"tables": 3, "rows": 200, "dim": 8, "dense": 2, "bottom": [16, 8], "top": [16, 1]}
    generator = torch.Generator(device=a.device).manual_seed(7)
    batches = []
    for _ in range(4):
        ids = torch.stack([zipf_ids(a.batch, sizes["rows"], 1.05, generator, a.device) + t * sizes["rows"]
                           for t in range(sizes["tables"])], 1).reshape(-1)
        batches.append((torch.randn(a.batch, sizes["dense"], device=a.device, generator=generator), ids,
                        (torch.rand(a.batch, device=a.device, generator=generator) < 0.25).float()))
    gpu = a.device == "cuda"
    torch.manual_seed(7)
    figures = []
    # (name, precision, compiled, graph, rows); eager first, so that a slow compiler takes nothing from it.
    ways = [("eager fp32, EmbeddingBag", "fp32", False, False, "bag"), ("eager fp32", "fp32", False, False, "unique")]
    if gpu:
        ways += [("eager tf32", "tf32", False, False, "unique"), ("graph fp32", "fp32", False, True, "add"),
                 ("graph tf32", "tf32", False, True, "add")]
    ways += [("eager bf16", "bf16", False, False, "unique")]
    if gpu:
        ways += [("graph bf16", "bf16", False, True, "add"), ("compiled bf16", "bf16", True, False, "unique"),
                 ("compiled bf16 graph", "bf16", True, True, "add")]
    elif a.compile:
        ways += [("compiled fp32", "fp32", True, False, "unique")]
    model = Dlrm(**sizes).to(a.device)
    start = {name: value.clone() for name, value in model.state_dict().items() if not name.startswith("rows.")}
    for name, precision, compiled, graph, rows in ways:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        model.load_state_dict(start, strict=False)
        figure = {"part": "dlrm", "name": name, "batch": a.batch, "right": False, "note": ""}
        figures.append(figure)
        try:
            step = Step(a, model, precision, compiled, rows)
            held = [part.clone() for part in batches[0]]
            if graph:
                captured = graphed(lambda step=step, held=held: step(*held))

            def one(r, step=step, held=held, graph=graph, replay=captured if graph else None):
                if not graph:
                    return step(*batches[r % len(batches)])
                for to, part in zip(held, batches[r % len(batches)]):
                    to.copy_(part)
                return replay()

            for r in range(a.warmup):
                one(r)
            if gpu:
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for r in range(a.repeats):
                one(r)
            if gpu:
                torch.cuda.synchronize()
            seconds = (time.perf_counter() - begin) / a.repeats
            loss = float(Step(a, model, "fp32", False, "unique")(*batches[0]))
            figure.update(median_seconds=seconds, samples_per_second=a.batch / seconds, right=loss == loss and loss < 10)
        except Exception as error:  # pylint: disable=broad-except
            # One way that a version of PyTorch lacks takes nothing from the others.
            figure.update(median_seconds=0, samples_per_second=0, right=None, note=str(error).split("\n", maxsplit=1)[0][:100])
        write(figures)
    return figures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["ops", "dlrm"])
    parser.add_argument("--ids")
    parser.add_argument("--batch", type=int, default=65536)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--warmup", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="on the CPU, too, where it needs a C++ compiler")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--report", required=True)
    a = parser.parse_args()
    a.repeats = a.repeats or (2 if a.toy else 51 if a.what == "ops" else 40)
    a.warmup = a.warmup or (1 if a.toy else 5)
    if a.what == "ops" and not a.ids:
        parser.error("ops takes --ids=FILE, which gpu_bench --ids=FILE writes")
    if a.toy:
        torch.set_num_threads(1)  # many would wait for each other on a busy machine
    device = torch.cuda.get_device_name() if a.device == "cuda" else "cpu"

    def write(figures):
        # After each figure, so that a slow one costs no other.
        with open(a.report + ".new", "w", encoding="utf-8") as out:
            json.dump({"peer": "PyTorch " + torch.__version__, "device": device, "figures": figures}, out, indent=1)
        os.replace(a.report + ".new", a.report)
        figure = figures[-1]
        print("  %-44s %10.4f ms  %s%s" % (figure["name"], 1e3 * figure["median_seconds"], "" if figure["right"] else "WRONG ",
                                           figure.get("note", "")), flush=True)

    (ops_figures if a.what == "ops" else dlrm_figures)(a, write)


if __name__ == "__main__":
    main()
