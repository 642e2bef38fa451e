#!/usr/bin/env python3
"""hotrow.Scorer beside PyTorch and onnxruntime, one user with many candidates a request.

  PYTHONPATH=python python3 bench/serving_vs_torch.py --model=DIR [--turns=9] [--seconds=2]
      [--precisions=fp32,int8]

DIR is a DLRM of `hotrow train dlrm --data=synthetic:tables=26,dense=13,...` (--save_dir). Its rows
and parameters become tables of nn.EmbeddingBag in memory and layers of PyTorch; the dense part, as
`hotrow export --format=onnx`, runs in onnxruntime behind the same tables. All must give the same
scores within 1e-4, or nothing is measured; hotrow with other --precisions says how far they are
apart. A request has the first 10 features of a user and 500 candidates with the other 16 and the
dense features; peers, too, look the user's features up once. Turns alternate in one process, so
that other load hits all; each is timed for --seconds with one thread, and with two: hotrow by two
calling threads, peers by two threads within a call or two calling threads, whichever is faster.
Medians of the turns are printed.
"""

import argparse
import json
import pathlib
import statistics
import struct
import subprocess
import tempfile
import threading
import time

import hotrow
import numpy as np
import onnxruntime
import torch

USER_FEATURES = 10
CANDIDATES = 500
REQUESTS = 256


def floats(path, name):
    """An array of a safetensors file."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8:8 + size])[name]["data_offsets"]
    return np.frombuffer(data, dtype=np.float32, count=(end - begin) // 4, offset=8 + size + begin)


class TorchDlrm(torch.nn.Module):
    """DLRM with dot products, of a portable export."""

    def __init__(self, export):
        super().__init__()
        manifest = json.loads((export / "manifest.json").read_text())
        self.dim = manifest["tables"][0]["dim"]
        self.bags = torch.nn.ModuleList()
        self.keys = []  # of each table, that have a row
        for table, bounds in zip(manifest["tables"], manifest["scoring"]["features"]):
            def read(name, table=table):
                files = next(a for a in table["arrays"] if a["name"] == name)["files"]
                return np.concatenate([np.load(export / file["file"]) for file in files])
            rows = np.zeros((bounds["num_embeddings"], self.dim), dtype=np.float32)
            self.keys.append(read("keys").astype(np.int64))
            rows[self.keys[-1]] = read("weights")
            self.bags.append(torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(rows),
                                                                   mode="sum"))
        self.flat = floats(export / manifest["dense"]["file"], "parameters")
        self.at = 0

        def sizes(flag):
            return [int(size) for size in manifest["shape"][flag].split("-")]
        vectors = len(self.bags) + 1
        self.bottom = self.mlp([manifest["num_dense"], *sizes("dense_arch_layer_sizes")], True)
        self.top = self.mlp([self.dim + vectors * (vectors - 1) // 2,
                             *sizes("over_arch_layer_sizes")], False)
        i, j = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("pairs", i * vectors + j)

    def take(self, *shape):
        n = int(np.prod(shape))
        out = torch.from_numpy(self.flat[self.at:self.at + n].reshape(shape).copy())
        self.at += -(-n // 16) * 16  # blocks of 64 bytes
        return torch.nn.Parameter(out)

    def mlp(self, sizes, relu_on_output):
        layers = []
        for i in range(len(sizes) - 1):
            linear = torch.nn.Linear(sizes[i], sizes[i + 1])
            linear.weight, linear.bias = self.take(sizes[i + 1], sizes[i]), self.take(sizes[i + 1])
            layers.append(linear)
            if relu_on_output or i + 2 < len(sizes):
                layers.append(torch.nn.ReLU())
        return torch.nn.Sequential(*layers)

    def look_up(self, user, candidates, offsets):
        """[features] keys of the user, [features, N] of the candidates: [N, features, dim]."""
        n = candidates.shape[1]
        first = [bag(user[i:i + 1], offsets[:1]).expand(n, self.dim)
                 for i, bag in enumerate(self.bags[:len(user)])]
        return first + [bag(candidates[i], offsets)
                        for i, bag in enumerate(self.bags[len(user):])]

    def forward(self, user, candidates, dense, offsets):
        x = self.bottom(dense)
        vectors = torch.stack([x, *self.look_up(user, candidates, offsets)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products[:, self.pairs]], dim=1))


def requests(scorer, known, rng):
    """Keys with a row, by a power law."""
    def keys(of_table, *shape):
        return of_table[rng.zipf(1.05, size=shape) % len(of_table)]
    names = scorer.features
    out = []
    for _ in range(REQUESTS):
        user = np.concatenate([keys(of_table, 1) for of_table in known[:USER_FEATURES]])
        candidates = np.stack([keys(of_table, CANDIDATES) for of_table in known[USER_FEATURES:]])
        dense = rng.standard_normal((CANDIDATES, scorer.num_dense)).astype(np.float32)
        out.append({
            "user": torch.from_numpy(user), "candidates": torch.from_numpy(candidates),
            "dense": torch.from_numpy(dense),
            "named_user": {name: user[i:i + 1] for i, name in enumerate(names[:USER_FEATURES])},
            "named": {name: candidates[i] for i, name in enumerate(names[USER_FEATURES:])},
        })
    return out


def turn(score, batches, threads, seconds):
    """Requests a second, and times of single ones in ms, of so many calling threads."""
    times = [[] for _ in range(threads)]
    begin = time.perf_counter()

    def client(t):
        i = t
        while (now := time.perf_counter()) < begin + seconds:
            score(batches[i % REQUESTS])
            times[t].append((time.perf_counter() - now) * 1e3)
            i += threads
    clients = [threading.Thread(target=client, args=(t,)) for t in range(threads)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    took = time.perf_counter() - begin
    every = sorted(time for of_thread in times for time in of_thread)
    return len(every) / took, every[len(every) // 2], every[len(every) * 99 // 100]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--hotrow", default="build/bin/hotrow")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--precisions", default="fp32", help="of hotrow: fp32,bf16,int8")
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as dir:
        dir = pathlib.Path(dir)
        for command in ([args.model, dir / "export"], [args.model, dir / "dense.onnx",
                                                       "--format=onnx"]):
            subprocess.run([args.hotrow, "export", *command], check=True, capture_output=True)
        eager = TorchDlrm(dir / "export").eval()
        sessions = {}
        for threads in (1, 2):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            sessions[threads] = onnxruntime.InferenceSession(dir / "dense.onnx", options)
    precisions = args.precisions.split(",")
    scorer = hotrow.Scorer(args.model, precision="fp32")
    batches = requests(scorer, eager.keys, np.random.default_rng(5))
    offsets = torch.arange(CANDIDATES)
    compiled = torch.compile(eager, dynamic=False)

    def by_hotrow(scorer):
        def score(r):
            return scorer.score_candidates(r["named_user"], r["named"], dense=r["dense"].numpy())
        return score

    def by_torch(module):
        def score(r):
            with torch.inference_mode():
                return module(r["user"], r["candidates"], r["dense"], offsets).numpy()
        return score

    def by_onnx(threads):
        def score(r):
            with torch.inference_mode():
                found = eager.look_up(r["user"], r["candidates"], offsets)
            inputs = {f"embedding.{name}": rows.numpy()
                      for name, rows in zip(scorer.features, found)}
            return sessions[threads].run(["logits"], {"dense": r["dense"].numpy(), **inputs})[0]
        return score

    own = {p: by_hotrow(scorer if p == "fp32" else hotrow.Scorer(args.model, precision=p))
           for p in ["fp32", *precisions]}
    narrow = [(f"hotrow {p}", own[p]) for p in own if p != "fp32"]
    for name, score in (("torch", by_torch(eager)), ("onnxruntime", by_onnx(1)),
                        ("torch.compile", by_torch(compiled)), *narrow):
        apart = np.concatenate([np.abs(own["fp32"](r) - score(r)).ravel() for r in batches[:16]])
        print(f"{name}: scores differ by at most {apart.max():.2e}, {apart.mean():.2e} in the mean")
        assert name.startswith("hotrow") or apart.max() < 1e-4, name

    # Name, threads within a call, calling threads, function.
    ways = [(f"hotrow {p}", 1, clients, own[p]) for p in precisions for clients in (1, 2)]
    for name, of in (("torch eager", lambda t: by_torch(eager)),
                     ("torch.compile", lambda t: by_torch(compiled)), ("onnxruntime", by_onnx)):
        ways += [(name, 1, 1, of(1)), (name, 2, 1, of(2)), (name, 1, 2, of(1))]
    results = {(name, inner, clients): [] for name, inner, clients, _ in ways}
    for t in range(args.turns + 1):
        for name, inner, clients, score in ways:
            torch.set_num_threads(inner)
            result = turn(score, batches, clients, args.seconds if t > 0 else 0.5)
            if t > 0:  # the first one warms up
                results[name, inner, clients].append(result)
    print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}")
    print("| | threads of a call | calls at once | requests/s | TP50 ms | TP99 ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (name, inner, clients), turns in results.items():
        qps, tp50, tp99 = (statistics.median(column) for column in zip(*turns))
        print(f"| {name} | {inner} | {clients} | {qps:.0f} | {tp50:.2f} | {tp99:.2f} |")


if __name__ == "__main__":
    main()
