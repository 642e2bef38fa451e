#!/usr/bin/env python3
"""What ageing and admission save, and what they cost in AUC, where popularity drifts.

    python bench/row_life.py [--bin=build/bin] [--seeds=3] [--svg=docs/row_life.svg]

Trains a small DLRM on synthetic:drift=... with each policy and prints a table in Markdown: rows at
the end, test AUC (of samples as they are at the end), and processor time beside that of the run
without policies, turn by turn. --svg draws the rows as bars.
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


def train(program, seed, flags, report):
    subprocess.run([program, f"--data={DATA}", f"--seed={seed}", *MODEL, *flags,
                    f"--report={report}"], check=True, stdout=subprocess.DEVNULL)
    with open(report) as file:
        found = json.load(file)
    return {"rows": sum(table["rows"] for table in found["tables"]),
            "auc": found["test"]["auc"], "cpu": found["cpu_seconds"]}


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
    flags = parser.parse_args()
    runs = {name: [] for name, _ in POLICIES}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, flags.seeds + 1):
            for name, more in POLICIES:
                runs[name].append(train(os.path.join(flags.bin, "dlrm"), seed, more,
                                        os.path.join(folder, "report.json")))
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
