"""MovieLens in the order of time: hotrow's models over histories, and the same in plain PyTorch.

  torch_windows.py --ratings=ml-1m/ratings.dat --movies=ml-1m/movies.dat --window=1d \
      --hotrow=build/bin/hotrow --work=DIR

Files are those of a MovieLens set as it is published: 1M (ratings.dat, movies.dat), or a later one
(ratings.csv, movies.csv). A sample is a rating: whether it has 4 stars or more, of a user, a movie,
its first genre, and the movies and genres that the user has liked before. Each window but the first
is judged by what was trained on those before it, then trained. Both train the same samples in the
same batches by Adagrad, which moves no rows but those of a batch, and PyTorch starts from hotrow's
first values: so what differs is the computing. DIR gets hotrow's data and all reports, which
bench/windows.py takes.

Prints for each model the AUC, a mean over windows by their samples, the distance of the two, and
the largest distance in a window of a thousand samples or more.
"""
import argparse
import collections
import csv
import glob
import json
import math
import os
import shutil
import subprocess
import sys
import time

import numpy
import torch
from torch import nn
from torch_ctr import auc, mlp

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from windows import judged  # noqa: E402

DIM = 16
HEADS = 2
BLOCKS = 2
OVER_ARCH = [128, 64, 1]
RELEVANCE = [64, 16]  # the hidden layers of DIN's attention
EPS = 1e-3
NO_RATE = 1e-30  # moves nothing: a run with it ends with the first values of all that it has met
LINE = 16  # each block of hotrow's dense parameters begins at a multiple of so many floats
HISTORIES = "watched:movie,watched_genre:genre"


def joined(sizes):
    return "-".join(map(str, sizes))


MODEL_FLAGS = {"din": [f"--attention_layer_sizes={joined(RELEVANCE)}"]}
MODEL_FLAGS["bst"] = MODEL_FLAGS["hstu"] = [f"--num_blocks={BLOCKS}", f"--num_heads={HEADS}"]


# --- data -----------------------------------------------------------------------------------------
def rows_of(path):
    """Lines as lists of fields, without a header."""
    if path.endswith(".dat"):
        with open(path, encoding="latin-1") as file:
            for line in file:
                yield line.rstrip("\n").split("::")
    else:
        with open(path, encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            next(lines)
            yield from lines


class Samples:
    """In the order of time. There are `length` places for a history, oldest first."""

    def __init__(self, ratings, movies, length):
        names, genre_of = {}, {}
        for movie, _, genres in rows_of(movies):
            genre_of[int(movie)] = names.setdefault(genres.split("|")[0], len(names))
        lines = sorted(((int(when), int(user), int(movie), float(stars))
                        for user, movie, stars, when in rows_of(ratings)), key=lambda line: line[0])
        count = len(lines)
        self.length = length
        self.times = numpy.array([line[0] for line in lines])
        self.labels = numpy.array([line[3] >= 4 for line in lines], dtype=numpy.float32)
        # Of a movie: its number and its genre.
        self.users, self.movies = [], numpy.zeros((count, 2), dtype=numpy.int64)
        self.watched = numpy.zeros((count, length, 2), dtype=numpy.int64)
        self.lengths = numpy.zeros(count, dtype=numpy.int64)
        users, numbers = {}, {}
        liked = collections.defaultdict(lambda: collections.deque(maxlen=length))
        for place, (_, user, movie, stars) in enumerate(lines):
            self.users.append(users.setdefault(user, len(users)))
            what = numbers.setdefault(movie, len(numbers)), genre_of.get(movie, len(names))
            before = liked[user]
            self.movies[place] = what
            self.lengths[place] = len(before)
            if before:
                self.watched[place, : len(before)] = before
            if stars >= 4:
                before.append(what)
        self.users = numpy.array(self.users)
        self.rows = {"user": len(users), "movie": len(numbers), "genre": len(names) + 1}

    def windows(self, seconds):
        """Where each window that has samples begins, and behind them where the last one ends."""
        numbers = self.times // seconds
        starts = numpy.flatnonzero(numpy.diff(numbers, prepend=numbers[0] - 1))
        return [*starts.tolist(), len(numbers)]

    def batch(self, begin, end):
        longest = max(1, self.lengths[begin:end].max())
        return [torch.from_numpy(part) for part in (
            self.users[begin:end], self.movies[begin:end], self.watched[begin:end, :longest],
            self.lengths[begin:end])]

    def write(self, folder):
        """As hotrow reads them; the schema."""
        with open(f"{folder}/samples.csv", "w", encoding="ascii", newline="") as file:
            file.write("liked,time,user,movie,genre,watched,watched_genre\n")
            for place, when in enumerate(self.times):
                watched = self.watched[place, : self.lengths[place]]
                bags = ["|".join(map(str, column)) for column in watched.T]
                file.write(",".join(map(str, (int(self.labels[place]), when, self.users[place],
                                              *self.movies[place], *bags))) + "\n")
        columns = [{"name": "liked", "role": "label"},
                   {"name": "time", "role": "time", "time_format": "unix"}]
        columns += [{"name": name, "role": "categorical", "key": "integer"}
                    for name in ("user", "movie", "genre")]
        columns += [{"name": name, "role": "categorical", "key": "integer", "table": table,
                     "separator": "|", "max_hotness": self.length}
                    for name, table in (("watched", "movie"), ("watched_genre", "genre"))]
        schema = {"name": "movielens", "files": {"train": ["samples.csv"]}, "columns": columns}
        with open(f"{folder}/schema.json", "w", encoding="ascii") as file:
            json.dump(schema, file, indent=1)


# --- models ---------------------------------------------------------------------------------------
# Modules stand in the order of hotrow's parameters.
class Relevance(nn.Module):
    """DIN's attention, of one history."""

    def __init__(self, columns):
        super().__init__()
        self.mlp = mlp(4 * columns, [*RELEVANCE, 1], False, 0)

    def forward(self, history, target, there):
        target = target[:, None].expand_as(history)
        pairs = torch.cat([history, target, history - target, history * target], 2)
        return (self.mlp(pairs) * history * there[:, :, None]).sum(1)


def by_head(x):
    return x.unflatten(2, (HEADS, -1)).transpose(1, 2)


def rows(x):
    return x.transpose(1, 2).flatten(2)


class Bst(nn.Module):
    def __init__(self, columns, most):
        super().__init__()
        self.projections = nn.Linear(columns, 3 * columns)
        self.output = nn.Linear(columns, columns)
        self.first_norm = nn.LayerNorm(columns)
        self.feed_forward = mlp(columns, [4 * columns, columns], False, 0)
        self.second_norm = nn.LayerNorm(columns)

    def forward(self, x, before, there):
        """x: [B, M, E]. before: [B, query, key], how many rows a key stands before a query.
        there: [B, 1, 1, key]."""
        q, k, v = map(by_head, self.projections(x).chunk(3, 2))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
        weights = scores.masked_fill(~there, -torch.inf).softmax(3)
        x = self.first_norm(x + self.output(rows(weights @ v)))
        return self.second_norm(x + self.feed_forward(x))


class Hstu(nn.Module):
    """Without a bias for times, which rows of hotrow's do not have."""

    def __init__(self, columns, most):
        super().__init__()
        self.most = most
        self.first_norm = nn.LayerNorm(columns)
        self.projections = nn.Linear(columns, 4 * columns)
        self.position_bias = nn.Embedding(2 * most - 1, 1)
        self.second_norm = nn.LayerNorm(columns)
        self.output = nn.Linear(columns, columns)

    def forward(self, x, before, there):
        u, v, q, k = nn.functional.silu(self.projections(self.first_norm(x))).chunk(4, 2)
        bias = self.position_bias(before.clamp(1 - self.most) + self.most - 1)
        scores = by_head(q) @ by_head(k).transpose(2, 3) + bias[:, None, :, :, 0]
        sees = there & (before >= 0)[:, None]
        weights = nn.functional.silu(scores) * sees / self.most
        return x + self.output(self.second_norm(rows(weights @ by_head(v))) * u)


class Model(nn.Module):
    def __init__(self, kind, samples):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(rows, DIM)
                                     for name, rows in samples.rows.items()})
        columns = 2 * DIM
        self.relevance = nn.ModuleList()
        if kind == "din":
            self.relevance.extend(Relevance(DIM) for _ in range(2))
        else:
            most = samples.length + 1
            self.positions = nn.Parameter(torch.zeros(most, columns))
            make = {"bst": Bst, "hstu": Hstu}[kind]
            self.blocks = nn.ModuleList(make(columns, most) for _ in range(BLOCKS))
        self.mlp = mlp(columns + 3 * DIM, OVER_ARCH, False, 0)

    @torch.no_grad()
    def load(self, folder):
        """Takes the parameters that hotrow exported."""
        with open(f"{folder}/dense.safetensors", "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            begin, end = header["parameters"]["data_offsets"]
            dense = torch.frombuffer(bytearray(file.read()[begin:end]), dtype=torch.float32)
        at = 0
        for name, parameter in self.named_parameters():
            if name.startswith("tables."):
                table = glob.glob(f"{folder}/tables/*-{name.split('.')[1]}")[0]
                keys, weights = (
                    numpy.concatenate([numpy.load(part) for part in
                                       sorted(glob.glob(f"{table}/{array}-*.npy"))])
                    for array in ("keys", "weights"))
                parameter[keys.astype(numpy.int64)] = torch.from_numpy(weights)
            else:
                parameter.view(-1).copy_(dense[at : at + parameter.numel()])
                at += -(-parameter.numel() // LINE) * LINE
        assert at == len(dense), f"{folder}: has {len(dense)} dense parameters, read {at}"

    def forward(self, users, movies, watched, lengths):
        tables = [self.tables["movie"], self.tables["genre"]]
        targets = [table(movies[:, at]) for at, table in enumerate(tables)]
        history = [table(watched[:, :, at]) for at, table in enumerate(tables)]
        numbers = lengths[:, None] - torch.arange(watched.shape[1])  # 1: next to the target
        if self.relevance:
            encoded = [relevance(rows, target, numbers > 0) for relevance, rows, target
                       in zip(self.relevance, history, targets)]
        else:
            encoded = [self.encode(torch.cat(history, 2), torch.cat(targets, 1), numbers)]
        x = torch.cat([*encoded, self.tables["user"](users), *targets], 1)
        return self.mlp(x)[:, 0]

    def encode(self, history, target, numbers):
        """The target's row, which stands behind the places of the history."""
        numbers = nn.functional.pad(numbers, (0, 1))
        x = torch.cat([history, target[:, None]], 1) + self.positions[numbers.clamp(min=0)]
        there = numbers > 0
        there[:, -1] = True
        before = numbers[:, None, :] - numbers[:, :, None]  # the key before the query
        for block in self.blocks:
            x = block(x, before, there[:, None, None, :])
        return x[:, -1]


# --- runs -----------------------------------------------------------------------------------------
def train(kind, samples, args, start):
    """A report with what windows.py reads of hotrow's. start: what hotrow exported."""
    model = Model(kind, samples)
    model.load(start)
    groups = [{"params": [], "lr": rate}
              for rate in (args.dense_learning_rate, args.learning_rate)]
    for name, parameter in model.named_parameters():
        groups[name.startswith("tables.")]["params"].append(parameter)
    optimizer = torch.optim.Adagrad(groups, eps=EPS)
    labels = torch.from_numpy(samples.labels)
    windows, last = [], None
    bounds = samples.windows(args.seconds)
    for begin, end in zip(bounds, bounds[1:]):
        number = int(samples.times[begin]) // args.seconds
        name = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(number * args.seconds))
        window = {"begin": name.removesuffix(" 00:00:00"), "samples": end - begin, "valid": None,
                  "empty_before": 0 if last is None else number - last - 1}
        windows.append(window)
        is_first, last = last is None, number
        if not is_first and 0 < samples.labels[begin:end].sum() < end - begin:
            with torch.no_grad():
                logits = torch.cat([model(*samples.batch(at, min(at + 2048, end)))
                                    for at in range(begin, end, 2048)])
            window["valid"] = {"auc": auc(samples.labels[begin:end], logits.numpy())}
        for at in range(begin, end, args.batch_size):
            until = min(at + args.batch_size, end)
            optimizer.zero_grad()
            logits = model(*samples.batch(at, until))
            nn.functional.binary_cross_entropy_with_logits(logits, labels[at:until]).backward()
            optimizer.step()
    return {"model": kind, "windows": windows}


def run_hotrow(kind, args, rates, *flags):
    subprocess.run(
        [args.hotrow, "train", kind, f"--data=table:{args.work}/schema.json",
         f"--window={args.window}", f"--history={HISTORIES}", *MODEL_FLAGS[kind],
         f"--embedding_dim={DIM}", f"--over_arch_layer_sizes={joined(OVER_ARCH)}",
         "--initializer=normal:0.05", "--optimizer=adagrad", "--dense_optimizer=adagrad",
         f"--eps={EPS}", f"--learning_rate={rates[0]}", f"--dense_learning_rate={rates[1]}",
         f"--batch_size={args.batch_size}", f"--seed={args.seed}", f"--threads={args.threads}",
         "--store_bytes=1GiB", *flags], check=True, stdout=subprocess.DEVNULL)


def both(kind, samples, args):
    """The reports of hotrow and of PyTorch, as windows.judged reads them."""
    reports = [f"{args.work}/{who}_{kind}.json" for who in ("hotrow", "torch")]
    start, arrays = f"{args.work}/{kind}", f"{args.work}/{kind}_arrays"
    for folder in (start, arrays):
        shutil.rmtree(folder, ignore_errors=True)
    run_hotrow(kind, args, (NO_RATE, NO_RATE), f"--save_dir={start}")
    subprocess.run([args.hotrow, "export", start, arrays], check=True, stdout=subprocess.DEVNULL)
    rates = args.learning_rate, args.dense_learning_rate
    run_hotrow(kind, args, rates, f"--report={reports[0]}")
    with open(reports[1], "w", encoding="ascii") as file:
        json.dump(train(kind, samples, args, arrays), file)
    ours, theirs = map(judged, reports)
    if [window[:3] for window in ours] != [window[:3] for window in theirs]:
        raise SystemExit(f"{kind}: {' and '.join(reports)} have other windows")
    return ours, theirs


def mean_auc(windows):
    return (sum(count * value for _, _, count, value in windows)
            / sum(count for _, _, count, _ in windows))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratings", required=True)
    parser.add_argument("--movies", required=True)
    parser.add_argument("--hotrow", default="hotrow", help="the program")
    parser.add_argument("--work", required=True, help="a folder that is there")
    parser.add_argument("--window", default="1d", help="as that of hotrow: 30d, 12h")
    parser.add_argument("--models", default="din,bst,hstu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--length", type=int, default=20, help="the most movies of a history")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--learning_rate", type=float, default=0.05)
    parser.add_argument("--dense_learning_rate", type=float, default=0.01)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(arguments)
    args.seconds = int(args.window[:-1]) * {"d": 86400, "h": 3600, "m": 60}[args.window[-1]]
    torch.set_num_threads(args.threads)
    samples = Samples(args.ratings, args.movies, args.length)
    bounds = samples.windows(args.seconds)
    samples.write(args.work)
    print(f"{bounds[-1]:,} samples, {len(bounds) - 1} windows of {args.window}\n\n"
          "| model | hotrow | PyTorch | difference | of a window |\n"
          "| --- | --- | --- | --- | --- |", flush=True)
    differences = {}
    for kind in args.models.split(","):
        ours, theirs = both(kind, samples, args)
        differences[kind] = mean_auc(ours) - mean_auc(theirs)
        apart = [abs(a[3] - b[3]) for a, b in zip(ours, theirs) if a[2] >= 1000]
        print(f"| {kind} | {mean_auc(ours):.4f} | {mean_auc(theirs):.4f} | "
              f"{differences[kind]:+.5f} | {max(apart, default=0):.5f} |", flush=True)
    return differences


if __name__ == "__main__":
    main()
