#!/usr/bin/env python3
"""How well windows of time were predicted before they were trained: reports of --window runs over the
same data.

    python bench/windows.py REPORT.json [REPORT.json ...] [--svg=windows.svg]

Prints the AUC of each window in Markdown, a column for each report; --svg draws them as lines.
Windows without samples are gaps on the way: lines go from one window that was judged to the next.
"""

import argparse
import json
import os
from xml.sax.saxutils import escape

COLORS = ["#2060a0", "#c05020", "#308040", "#803090", "#907010"]


def judged(path):
    """Of a report: [window's beginning, its place in time, its samples, its AUC]."""
    with open(path) as file:
        windows = json.load(file).get("windows")
    if windows is None:
        raise SystemExit(f"{path}: has no windows; write it with --window=TIME --report={path}")
    found, place = [], 0
    for window in windows:
        place += window["empty_before"] + 1
        valid = window["valid"]
        if valid is not None and valid["auc"] is not None:
            found.append((window["begin"], place, window["samples"], valid["auc"]))
    return found


def table(names, reports):
    samples, aucs = {}, {}
    for name, windows in zip(names, reports):
        for begin, _, count, auc in windows:
            samples[begin] = count
            aucs.setdefault(begin, {})[name] = f"{auc:.4f}"
    lines = [f"| window | samples | {' | '.join(names)} |", "| --- " * (len(names) + 2) + "|"]
    for begin in sorted(samples):
        cells = " | ".join(aucs[begin].get(name, "") for name in names)
        lines.append(f"| {begin} | {samples[begin]:,} | {cells} |")
    return "\n".join(lines)


def svg(names, reports, path):
    width, height, left, top = 640, 240, 60, 20
    points = [window for windows in reports for window in windows]
    first, last = min(p[1] for p in points), max(p[1] for p in points)
    low, high = min(p[3] for p in points), max(p[3] for p in points)

    def x(place):
        return left + width * (place - first) / max(last - first, 1)

    def y(auc):
        return top + height * (high - auc) / max(high - low, 1e-9)

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" '
             f'height="{top + height + 40 + 16 * len(names)}" font-family="sans-serif" '
             'font-size="12">']
    for auc in (low, high):
        lines.append(f'<text x="4" y="{y(auc) + 4:.1f}">{auc:.4f}</text>')
        lines.append(f'<path d="M{left} {y(auc):.1f}h{width}" stroke="#ddd"/>')
    for begin, place, _, _ in (min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])):
        anchor = "start" if place == first else "end"
        lines.append(f'<text x="{x(place):.1f}" y="{top + height + 18}" '
                     f'text-anchor="{anchor}">{escape(begin)}</text>')
    for i, (name, windows) in enumerate(zip(names, reports)):
        color = COLORS[i % len(COLORS)]
        path_of = " ".join(f"{x(p[1]):.1f},{y(p[3]):.1f}" for p in windows)
        lines.append(f'<polyline points="{path_of}" fill="none" stroke="{color}"/>')
        lines.append(f'<text x="{left}" y="{top + height + 36 + 16 * i}" fill="{color}">'
                     f"{escape(name)}</text>")
    lines.append("</svg>")
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+")
    parser.add_argument("--svg")
    flags = parser.parse_args()
    names = [os.path.splitext(os.path.basename(path))[0] for path in flags.reports]
    reports = [judged(path) for path in flags.reports]
    if not any(reports):
        raise SystemExit("no window was judged: a run judges each but its first")
    print(table(names, reports))
    if flags.svg:
        svg(names, reports, flags.svg)


if __name__ == "__main__":
    main()
