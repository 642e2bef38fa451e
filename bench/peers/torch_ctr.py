"""Click models in plain PyTorch, with hotrow's flags, on the same files and splits as hotrow.

  torch_ctr.py deepfm --data=frappe:DIR --embedding_dim=10 --batch_norm ... --report=FILE

bench/accuracy.py runs it beside hotrow's own programs. Parameters start as in FuxiCTR (tables
normal, matrices Xavier normal, biases 0) and all of them have dense gradients and dense Adam, so
that --table_weight_decay is an L2 term over whole tables: what --table_weight_decay_mode=table of
hotrow does. One table holds the rows of all features. The schedule is hotrow's: after each epoch
the validation AUC; without a better one the rate x 0.1, and after --early_stop_patience such
epochs the end. Test figures are those of the best epoch.
"""
import argparse
import copy
import csv
import gzip
import json
import time

import numpy
import torch
from torch import nn


def read_csv(path):
    with gzip.open(path, "rt", newline="") as file:
        rows = csv.reader(file)
        header = next(rows)
        return header, [row for row in rows]


class Data:
    """Labels and, for each sample, `width` row numbers; features begin at `starts` in a sample.

    A sample with fewer values has the number of a row of zeros, the last one, in their place.
    """

    def __init__(self, labels, ids, starts, rows):
        self.labels, self.ids, self.starts, self.rows = labels, ids, starts, rows


def read_frappe(folder):
    splits = {}
    for split in ("train", "valid", "test"):
        _, rows = read_csv(f"{folder}/{split}.csv.gz")
        table = numpy.array(rows, dtype=numpy.int64)  # ids are numbered over all features
        splits[split] = Data(table[:, 0], table[:, 1:], list(range(10)), 5382)
    return splits


def read_ml1m(path):
    """Rating 4-5 is a click, 1-2 none, 3 is left out; of ten samples one validates, one tests."""
    header, rows = read_csv(path)
    label = header.index("rating_class")
    rows = [row for row in rows if row[label] != "1"]
    features = [column for column in range(len(header)) if column != label]
    hotness = {header.index("genres"): max(1 + row[header.index("genres")].count("|")
                                           for row in rows)}
    numbers, starts, width = {}, [], 0
    for column in features:
        starts.append(width)
        width += hotness.get(column, 1)
    ids = numpy.full((len(rows), width), -1, dtype=numpy.int64)
    for place, row in enumerate(rows):
        for start, column in zip(starts, features):
            for i, value in enumerate(row[column].split("|") if column in hotness
                                      else (row[column],)):
                ids[place, start + i] = numbers.setdefault((column, value), len(numbers))
    ids[ids < 0] = len(numbers)
    labels = numpy.array([row[label] == "2" for row in rows], dtype=numpy.int64)
    part = numpy.arange(len(rows)) % 10
    return {split: Data(labels[chosen], ids[chosen], starts, len(numbers))
            for split, chosen in (("train", part < 8), ("valid", part == 8), ("test", part == 9))}


class Vectors(nn.Module):
    """[B, features, columns]: the summed rows of each feature."""

    def __init__(self, data, columns, deviation):
        super().__init__()
        self.starts, self.width = data.starts, data.ids.shape[1]
        self.table = nn.Embedding(data.rows + 1, columns, padding_idx=data.rows)
        with torch.no_grad():
            nn.init.normal_(self.table.weight, std=deviation)
            self.table.weight[data.rows] = 0

    def forward(self, ids):
        x = self.table(ids)
        if len(self.starts) == self.width:
            return x
        ends = self.starts[1:] + [self.width]
        return torch.stack([x[:, begin:end].sum(1) for begin, end in zip(self.starts, ends)], 1)


def mlp(inputs, sizes, batch_norm, dropout):
    layers = []
    for size in sizes[:-1]:
        layers.append(nn.Linear(inputs, size))
        if batch_norm:
            layers.append(nn.BatchNorm1d(size))
        layers.append(nn.ReLU())
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, sizes[-1]))


def pairs_of(count):
    return torch.tril_indices(count, count, offset=-1)


def products(v):
    first, second = pairs_of(v.shape[1])
    return torch.bmm(v, v.transpose(1, 2))[:, first, second]


class Linear(nn.Module):
    """A weight for each row, and a bias."""

    def __init__(self, data, args):
        super().__init__()
        self.weights = Vectors(data, 1, args.deviation)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, ids):
        return self.weights(ids).sum((1, 2)) + self.bias


class Model(nn.Module):
    """Embeddings, an MLP over them and `extra` columns; a subclass makes the logit."""

    def __init__(self, data, args, extra=0):
        super().__init__()
        self.vectors = Vectors(data, args.embedding_dim, args.deviation)
        self.features = len(data.starts)
        self.width = self.features * args.embedding_dim
        self.mlp = mlp(self.width + extra, args.sizes, args.batch_norm, args.dropout)

    def forward(self, ids):
        return self.logit(ids, self.vectors(ids))


class Dnn(Model):
    def logit(self, ids, v):
        return self.mlp(v.flatten(1)).squeeze(1)


class WideDeep(Model):
    def __init__(self, data, args):
        super().__init__(data, args)
        self.wide = Linear(data, args)

    def logit(self, ids, v):
        return self.mlp(v.flatten(1)).squeeze(1) + self.wide(ids)


class DeepFm(WideDeep):
    def logit(self, ids, v):
        squares = 0.5 * (v.sum(1) ** 2 - (v ** 2).sum(1)).sum(1)
        return super().logit(ids, v) + squares


class XDeepFm(WideDeep):
    def __init__(self, data, args):
        super().__init__(data, args)
        self.cin, rows = nn.ModuleList(), self.features
        for size in args.cin:
            self.cin.append(nn.Conv1d(self.features * rows, size, 1))
            rows = size
        self.last = nn.Linear(sum(args.cin), 1)

    def logit(self, ids, v):
        x, sums = v, []
        for layer in self.cin:
            x = layer(torch.einsum("bhd,bmd->bhmd", v, x).flatten(1, 2))
            sums.append(x.sum(2))
        return super().logit(ids, v) + self.last(torch.cat(sums, 1)).squeeze(1)


class Dcn(Model):
    """Version 2, the MLP beside the cross layers."""

    def __init__(self, data, args):
        super().__init__(data, args)
        self.cross = nn.ModuleList(nn.Linear(self.width, self.width)
                                   for _ in range(args.dcn_num_layers))
        self.last = nn.Linear(self.width, 1)

    def logit(self, ids, v):
        start = x = v.flatten(1)
        for layer in self.cross:
            x = start * layer(x) + x
        return self.mlp(start).squeeze(1) + self.last(x).squeeze(1)


class Pnn(Model):
    """Inner products."""

    def __init__(self, data, args):
        super().__init__(data, args, len(data.starts) * (len(data.starts) - 1) // 2)

    def logit(self, ids, v):
        return self.mlp(torch.cat([v.flatten(1), products(v)], 1)).squeeze(1)


class DotDlrm(nn.Module):
    """Data without dense features: the first vector stands for the bottom MLP's output."""

    def __init__(self, data, args):
        super().__init__()
        features = len(data.starts)
        self.vectors = Vectors(data, args.embedding_dim, args.deviation)
        self.mlp = mlp(args.embedding_dim + features * (features - 1) // 2, args.sizes,
                       args.batch_norm, args.dropout)

    def forward(self, ids):
        v = self.vectors(ids)
        return self.mlp(torch.cat([v[:, 0], products(v)], 1)).squeeze(1)


def make_model(data, args):
    if args.model == "dlrm":
        return (Dnn if args.interaction == "cat" else DotDlrm)(data, args)
    return {"deepfm": DeepFm, "dcn": Dcn, "xdeepfm": XDeepFm, "pnn": Pnn,
            "wide_deep": WideDeep}[args.model](data, args)


def initialise(model):
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.xavier_normal_(module.weight)
            nn.init.zeros_(module.bias)


def auc(labels, scores):
    order = numpy.argsort(scores, kind="stable")
    _, inverse, counts = numpy.unique(scores[order], return_inverse=True, return_counts=True)
    last = numpy.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]  # the mean rank of equal scores
    positive = labels[order] == 1
    count = positive.sum()
    return float((ranks[positive].sum() - count * (count + 1) / 2)
                 / (count * (len(labels) - count)))


def evaluate(model, labels, ids, batch_size):
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(part) for part in ids.split(batch_size)]).double()
        logloss = nn.functional.binary_cross_entropy_with_logits(logits, labels.double()).item()
    model.train()
    return {"auc": auc(labels.numpy(), logits.numpy()), "logloss": logloss}


def train(model, splits, args):
    data = {split: (torch.from_numpy(part.labels).float(), torch.from_numpy(part.ids))
            for split, part in splits.items()}
    labels, ids = data["train"]
    tables = [parameter for name, parameter in model.named_parameters() if ".table." in name]
    dense = [parameter for name, parameter in model.named_parameters() if ".table." not in name]
    optimizer = torch.optim.Adam([{"params": tables, "weight_decay": args.table_weight_decay},
                                  {"params": dense}], lr=args.learning_rate, eps=args.eps)
    generator = torch.Generator().manual_seed(args.seed)
    best, best_epoch, best_state, without = None, 0, None, 0
    for epoch in range(1, 1 + args.epochs):
        for chosen in torch.randperm(len(labels), generator=generator).split(args.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(ids[chosen]),
                                                                  labels[chosen])
            loss.backward()
            optimizer.step()
        valid = evaluate(model, *data["valid"], args.batch_size)
        print(f"epoch {epoch}: validation AUC {valid['auc']:.4f}, "
              f"logloss {valid['logloss']:.4f}", flush=True)
        if best is None or valid["auc"] > best["auc"]:
            best, best_epoch, without = valid, epoch, 0
            best_state = copy.deepcopy(model.state_dict())
            continue
        without += 1
        for group in optimizer.param_groups:
            group["lr"] *= 0.1
        if without == args.early_stop_patience:
            break
    model.load_state_dict(best_state)
    return {"best_epoch": best_epoch, "epochs": epoch, "valid": best,
            "test": evaluate(model, *data["test"], args.batch_size),
            "cpu_seconds": time.process_time()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("deepfm", "dcn", "dlrm", "pnn", "wide_deep", "xdeepfm"))
    parser.add_argument("--data", required=True, help="frappe:DIR or ml1m:FILE")
    parser.add_argument("--report")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--embedding_dim", type=int, default=10)
    parser.add_argument("--over_arch_layer_sizes", default="400-400-400-1")
    parser.add_argument("--cin_layer_sizes", default="64")
    parser.add_argument("--dcn_num_layers", type=int, default=3)
    parser.add_argument("--interaction", choices=("dot", "cat"), default="dot")
    parser.add_argument("--batch_norm", action="store_true")
    parser.add_argument("--dropout", type=float, default=0)
    parser.add_argument("--initializer", default="normal:0.0001")
    parser.add_argument("--learning_rate", type=float, default=0.001)
    parser.add_argument("--table_weight_decay", type=float, default=0)
    parser.add_argument("--eps", type=float, default=1e-8)
    parser.add_argument("--batch_size", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--early_stop_patience", type=int, default=2)
    args = parser.parse_args()
    args.sizes = [int(size) for size in args.over_arch_layer_sizes.split("-")]
    args.cin = [int(size) for size in args.cin_layer_sizes.split("-")]
    args.deviation = float(args.initializer.removeprefix("normal:"))
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    kind, path = args.data.split(":", 1)
    splits = {"frappe": read_frappe, "ml1m": read_ml1m}[kind](path)
    model = make_model(splits["train"], args)
    initialise(model)
    result = train(model, splits, args)
    print(json.dumps(result))
    if args.report:
        with open(args.report, "w") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
