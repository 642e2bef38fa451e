#!/usr/bin/env python3
"""What ageing and admission save, and what they cost in AUC, where popularity drifts.

    python bench/row_life.py [--bin=build/bin] [--seeds=3] [--svg=docs/row_life.svg]
    python bench/row_life.py --costs=8

Trains a small DLRM on synthetic:drift=... with each policy and prints a table in Markdown: rows at
the end, test AUC (of samples as they are at the end), and processor time beside that of the run
without policies, turn by turn. --svg draws the rows as bars. --costs instead takes a model whose
steps are short, and prints what policies cost it, in that many turns of off, on, on, off.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile

DATA = ("synthetic:tables=8,rows=1000000,dense=4,samples=4000000,zipf=1.05,drift=400000,"
        "valid=20000,test=100000")
MODEL = ["--batch_size=2048", "--embedding_dim=8", "--dense_arch_layer_sizes=16-8",
         "--over_arch_layer_sizes=32-1", "--threads=1"]
COUNTS = "--admission_bytes=256MiB"
POLICIES = [
    ("none", []),
    ("--ttl_steps=500", ["--ttl_steps=500"]),
    ("--ttl_steps=200", ["--ttl_steps=200"]),
    ("--admission=coin:0.3", ["--admission=coin:0.3"]),
    ("--admission=lookups:2", ["--admission=lookups:2", COUNTS]),
    ("--admission=lookups:3", ["--admission=lookups:3", COUNTS]),
    ("--ttl_steps=500 --admission=lookups:2",
     ["--ttl_steps=500", "--admission=lookups:2", COUNTS]),
    ("--ttl_steps=200 --admission=lookups:3",
     ["--ttl_steps=200", "--admission=lookups:3", COUNTS]),
]


# Steps of a millisecond, all in memory.
SHORT = ["--data=synthetic:tables=26,rows=20000,dense=13,samples=1572864,valid=100,test=100",
         "--batch_size=256", "--embedding_dim=16", "--dense_arch_layer_sizes=32-16",
         "--over_arch_layer_sizes=32-1", "--store_bytes=1GiB", "--threads=1"]
COSTS = [
    ["--ttl_steps=500"],
    ["--ttl_steps=500", "--admission=lookups:2", "--admission_bytes=64MiB"],
    ["--ttl_steps=500", "--admission=lookups:2", "--admission_bytes=64MiB", "--max_rows=15000"],
]


def run(program, flags, report):
    subprocess.run([program, *flags, f"--report={report}"], check=True, stdout=subprocess.DEVNULL)
    with open(report) as file:
        return json.load(file)


def train(program, seed, flags, report):
    found = run(program, [f"--data={DATA}", f"--seed={seed}", *MODEL, *flags], report)
    return {"rows": sum(table["rows"] for table in found["tables"]),
            "auc": found["test"]["auc"], "cpu": found["cpu_seconds"]}


def costs(program, turns, report):
    print("| policies | processor time, off / on | samples/s, on / off |")
    print("| --- | --- | --- |")
    for flags in COSTS:
        cpu, rate = [], []
        for _ in range(turns):
            off, on, again, last = (run(program, SHORT + more, report)
                                    for more in ([], flags, flags, []))
            cpu.append((off["cpu_seconds"] + last["cpu_seconds"]) /
                       (on["cpu_seconds"] + again["cpu_seconds"]))
            rate.append((on["samples_per_second"] + again["samples_per_second"]) /
                        (off["samples_per_second"] + last["samples_per_second"]))
        print(f"| `{' '.join(flags)}` | {statistics.median(cpu):.3f} | "
              f"{statistics.median(rate):.3f} |", flush=True)


def svg(rows, path):
    """rows: (policy, number). Bars from the left, each with its number."""
    height, left, width = 26, 290, 420
    most = max(number for _, number in rows)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" '
             f'height="{height * len(rows) + 34}" font-family="sans-serif" font-size="13">',
             '<text x="4" y="16">Rows at the end of 4 M samples, by policy (millions)</text>']
    for index, (policy, number) in enumerate(rows):
        top = 28 + height * index
        length = width * number / most
        lines.append(f'<text x="{left - 8}" y="{top + 14}" text-anchor="end">{policy}</text>')
        lines.append(f'<rect x="{left}" y="{top}" width="{length:.1f}" height="18" '
                     'fill="#3b6ea5"/>')
        lines.append(f'<text x="{left + length + 6:.1f}" y="{top + 14}">{number / 1e6:.2f}</text>')
    lines.append("</svg>")
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/bin")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--svg")
    parser.add_argument("--costs", type=int, metavar="TURNS")
    flags = parser.parse_args()
    program = os.path.join(flags.bin, "dlrm")
    if flags.costs:
        with tempfile.TemporaryDirectory() as folder:
            costs(program, flags.costs, os.path.join(folder, "report.json"))
        return
    runs = {name: [] for name, _ in POLICIES}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, flags.seeds + 1):
            for name, more in POLICIES:
                runs[name].append(train(program, seed, more, os.path.join(folder, "report.json")))
    plain = runs["none"]
    print("| policy | rows | of all | test AUC | change | processor time |")
    print("| --- | --- | --- | --- | --- | --- |")
    bars = []
    for name, found in runs.items():
        rows = statistics.mean(run["rows"] for run in found)
        auc = statistics.mean(run["auc"] for run in found)
        change = statistics.mean(run["auc"] - base["auc"] for run, base in zip(found, plain))
        cpu = statistics.median(run["cpu"] / base["cpu"] for run, base in zip(found, plain))
        share = statistics.mean(run["rows"] / base["rows"] for run, base in zip(found, plain))
        code = name if name == "none" else f"`{name}`"
        print(f"| {code} | {rows:,.0f} | {share:.2f} | {auc:.5f} | {change:+.5f} | {cpu:.2f} |")
        bars.append((name, rows))
    if flags.svg:
        svg(bars, flags.svg)


if __name__ == "__main__":
    main()
