#!/usr/bin/env python3
"""Trains each model on public data with several seeds and notes what came out.

  accuracy.py run --bin=build/bin --data=DIR --results=FILE [--python=PYTHON] [--jobs=N]
                  [--threads=N] [--seeds=N] [NAME ...]
  accuracy.py choose --results=FILE    validation figures, never those of the test data
  accuracy.py table --results=FILE     test figures as a Markdown table

`run` does the runs of MATRIX below, in their order, or those whose names begin with a NAME, in the
order of these, with seeds 1 to N; it appends a line of JSON to FILE for each that ends. It leaves
out what FILE has with the same flags, so the same command goes on after a stop. DIR has
frappe/{train,valid,test}.csv.gz, ml-1m/ml1m_ctr.csv.gz and census/census-income.gz. Standard
library only; PYTHON, for the runs of bench/peers/torch_ctr.py, has PyTorch and NumPy.
"""
import argparse
import concurrent.futures
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ADAM = ("--batch_size=4096 --epochs=100 --optimizer=adam --dense_optimizer=adam --eps=1e-8 "
        "--lr_plateau_patience=1 --early_stop_patience=2 ")
# What the published runs on Frappe_x1 have in common (BARS, FuxiCTR).
PUBLISHED = ("--data=frappe:{data}/frappe --embedding_dim=10 --over_arch_layer_sizes=400-400-400-1 "
             "--learning_rate=0.001 --initializer=normal:0.0001 ")
FRAPPE = ADAM + PUBLISHED + "--dense_learning_rate=0.001 --table_weight_decay_mode=table "
# Model, its program, and what its published settings are; bench/results/accuracy.md says why IPNN
# has batch norm besides, and how the settings of DLRM of dot products were chosen.
FRAPPE_MODELS = {
    "deepfm": ("deepfm", "--batch_norm --table_weight_decay=0.05 --dropout=0.2"),
    "dcn": ("dcn", "--batch_norm --table_weight_decay=0.05 --dropout=0.4 --dcn_num_layers=4"),
    "xdeepfm": ("xdeepfm", "--batch_norm --table_weight_decay=0.1 --dropout=0.2 "
                "--cin_layer_sizes=64"),
    "dlrm-cat": ("dlrm", "--batch_norm --table_weight_decay=0.1 --dropout=0.4 --interaction=cat"),
    "ipnn": ("pnn", "--batch_norm --table_weight_decay=0.05 --dropout=0.3"),
    "wide_deep": ("wide_deep", "--batch_norm --table_weight_decay=0.1 --dropout=0.6"),
    "dlrm-dot": ("dlrm", "--dropout=0.2 --table_weight_decay=0.03 --initializer=normal:0.1"),
}
FRAPPE_RATES = {"dlrm-dot": "0.002"}  # where it is not 0.001
ML1M = ("--data=ml1m:{data}/ml-1m/ml1m_ctr.csv.gz --embedding_dim=16 "
        "--over_arch_layer_sizes=256-128-1 --batch_norm --dropout=0.2 --learning_rate=0.001 "
        "--initializer=normal:0.0001 --table_weight_decay=0.01 ")
ML1M_MODELS = {
    "deepfm": ("deepfm", ""),
    "xdeepfm": ("xdeepfm", "--cin_layer_sizes=64"),
    "dcn": ("dcn", "--dcn_num_layers=3"),
    "ipnn": ("pnn", ""),
}
OURS = "--dense_learning_rate=0.001 --table_weight_decay_mode=table "
CENSUS = "--preset=census --data=census-tasks:{data}/census/census-income.gz "
# What a precision of products changes, if anything: a fixed number of epochs, no choice of one.
BF16_ML1M = ("--data=ml1m:{data}/ml-1m/ml1m_ctr.csv.gz --embedding_dim=16 --batch_size=4096 "
             "--epochs=6 --optimizer=adam --dense_optimizer=adam --learning_rate=0.001 "
             "--dense_learning_rate=0.001 --eps=1e-8 --dense_arch_layer_sizes=64-16 "
             "--over_arch_layer_sizes=256-128-64-1 ")
BF16_SYNTHETIC = "--data=synthetic:samples=500000,test=100000 --epochs=2 "


def with_structure(program):
    return " --dcn_structure=parallel" if program == "dcn" else ""


def matrix():
    """name: (program, flags)"""
    runs = {}
    for name, (program, flags) in FRAPPE_MODELS.items():
        rate = FRAPPE_RATES.get(name)
        rates = f" --learning_rate={rate} --dense_learning_rate={rate}" if rate else ""
        runs["frappe/" + name] = (program, FRAPPE + flags + with_structure(program) + rates)
    for name, (program, flags) in FRAPPE_MODELS.items():
        rate = FRAPPE_RATES.get(name, "0.001")
        published = PUBLISHED.replace("=0.001", f"={rate}")
        runs["torch/frappe/" + name] = ("torch", f"{program} {published}{flags}")
    for name, (program, flags) in ML1M_MODELS.items():
        runs["ml-1m/" + name] = (program, ADAM + ML1M + OURS + flags + with_structure(program))
    runs["torch/ml-1m/deepfm"] = ("torch", "deepfm " + ML1M)
    runs["ml-1m/mmoe"] = ("mmoe", "--preset=ml-1m "
                          "--data=ml1m-tasks:{data}/ml-1m/ml1m_ctr.csv.gz")
    runs["census/mmoe"] = ("mmoe", CENSUS)
    runs["census/shared_bottom"] = ("mmoe", CENSUS + "--num_experts=1")
    for precision in ("fp32", "bf16"):
        flag = f"--precision={precision}"
        runs["precision/ml-1m/" + precision] = ("dlrm", BF16_ML1M + flag)
        runs["precision/synthetic/" + precision] = ("dlrm", BF16_SYNTHETIC + flag)
    return runs


MATRIX = matrix()


def first(metrics):
    """Metrics of the run's label, or the means over its labels."""
    return {key: metrics[key] for key in ("auc", "logloss") if key in metrics}


class Results:
    """Lines of JSON in a file, which grows a line for each run that ends."""

    def __init__(self, path):
        self._path = path
        self._lock = threading.Lock()
        self.lines = []
        if os.path.exists(path):
            with open(path) as file:
                self.lines = [json.loads(line) for line in file]

    def find(self, name, seed, command):
        return next((line for line in self.lines if
                     (line["name"], line["seed"], line["command"]) == (name, seed, command)), None)

    def add(self, line):
        with self._lock:
            self.lines.append(line)
            with open(self._path, "a") as file:
                file.write(json.dumps(line) + "\n")


def commit():
    here = os.path.dirname(os.path.abspath(__file__))
    done = subprocess.run(["git", "-C", here, "rev-parse", "--short", "HEAD"],
                          capture_output=True, text=True)
    return done.stdout.strip()


def train(args, results, name, seed, program, flags):
    command = f"{program} {flags} --seed={seed}"
    if Results(args.results).find(name, seed, command):
        return  # another `run` has done it meanwhile
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        begin = time.time()
        filled = command.format(data=args.data).split()
        if program == "torch":
            peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "torch_ctr.py")
            filled[:1] = [args.python, peer]
        else:
            filled[0] = os.path.join(args.bin, program)
        done = subprocess.run(filled + [f"--threads={args.threads}", f"--report={report}"],
                              capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{name} seed {seed}: exit status {done.returncode}\n{done.stderr}",
                  file=sys.stderr)
            return
        with open(report) as file:
            run = json.load(file)
    if run["test"]["auc"] == 0:  # a signal ended it, with a report of what there was
        print(f"{name} seed {seed}: interrupted", file=sys.stderr)
        return
    line = {"name": name, "seed": seed, "commit": args.commit, "command": command,
            "best_epoch": run["best_epoch"], "epochs": run["epochs"],
            "seconds": round(time.time() - begin), "cpu_seconds": round(run["cpu_seconds"]),
            "valid": first(run["valid"]), "test": first(run["test"]),
            "curve": [float(auc) for auc in re.findall(r"validation AUC ([0-9.]+), logloss",
                                                       done.stdout + done.stderr)]}
    if "tasks" in run:
        line["tasks"] = [{"label": task["label"], "valid": first(task["valid"]),
                          "test": first(task["test"])} for task in run["tasks"]]
    results.add(line)
    print(f"{name} seed {seed}: epoch {line['best_epoch']}, "
          f"validation AUC {line['valid']['auc']:.4f}, {line['cpu_seconds']} s of CPU", flush=True)


def run(args):
    results = Results(args.results)
    args.commit = commit()
    # All first seeds come before the second ones, so that a stop leaves every model measured.
    jobs = [(name, seed, program, " ".join(flags.split()))
            for seed in range(1, args.seeds + 1)
            for wanted in args.names or [""]
            for name, (program, flags) in MATRIX.items() if name.startswith(wanted)]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for done in [pool.submit(train, args, results, *job) for job in dict.fromkeys(jobs)]:
            done.result()


def groups(args):
    found = {}
    for line in Results(args.results).lines:
        command = line["command"].rsplit(" --seed=", 1)[0]
        found.setdefault((line["name"], command), []).append(line)
    return found


def spread(values):
    if not values:
        return ""
    listed = ", ".join(f"{value:.4f}" for value in values)
    return f"{statistics.mean(values):.4f} ({listed})"


def choose(args):
    for (name, command), lines in groups(args).items():
        print(f"{name}: validation AUC {spread([line['valid']['auc'] for line in lines])}, "
              f"epochs {[line['best_epoch'] for line in lines]}\n    {command}")


def table(args):
    print("| run | test AUC | logloss | validation AUC | best epoch |")
    print("| --- | --- | --- | --- | --- |")
    for (name, _), lines in groups(args).items():
        epochs = ", ".join(str(line["best_epoch"]) for line in lines)
        print(f"| {name} | {spread([line['test']['auc'] for line in lines])} "
              f"| {spread([line['test']['logloss'] for line in lines])} "
              f"| {spread([line['valid']['auc'] for line in lines])} | {epochs} |")
        for task in range(len(lines[0].get("tasks", []))):
            label = lines[0]["tasks"][task]["label"]
            print(f"| {name}, {label} "
                  f"| {spread([line['tasks'][task]['test']['auc'] for line in lines])} "
                  f"| {spread([line['tasks'][task]['test']['logloss'] for line in lines])} "
                  f"| {spread([line['tasks'][task]['valid']['auc'] for line in lines])} | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "choose", "table"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--results", required=True)
    parser.add_argument("--bin", default="build/bin")
    parser.add_argument("--data")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_intermixed_args()
    if args.what == "run" and args.data is None:
        parser.error("run: --data=DIR is missing")
    {"run": run, "choose": choose, "table": table}[args.what](args)


if __name__ == "__main__":
    main()
