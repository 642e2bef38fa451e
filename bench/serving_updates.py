#!/usr/bin/env python3
"""Times of requests while the model that is served gets new rows.

  python3 bench/serving_updates.py --chain=DIR [--every=0.8] [--turns=5] [--hotrow=build/bin/hotrow]

DIR is a chain of deltas of a DLRM (docs/deltas.md), best of some 10,000 rows a delta. `hotrow serve
--follow_ms=50` follows a copy of it that has the base alone. One client scores 500 samples a
request, over and over. In turns the copy stays as it is, and gets a delta each --every seconds;
each turn takes as long as its share of the deltas. Prints the times of all turns of either kind
together, and the growth of each with its median over pairs of turns.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request

from serving_faults import Client, Server, body_of


def metric(server, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as reply:
        for line in reply.read().decode().splitlines():
            if line.startswith(name + " "):
                return int(float(line.split()[1]))
    raise RuntimeError(name)


def at(times, share):
    return times[min(len(times) - 1, int(len(times) * share))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chain", type=pathlib.Path, required=True)
    parser.add_argument("--hotrow", default="build/bin/hotrow")
    parser.add_argument("--every", type=float, default=0.8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--samples", type=int, default=500)
    args = parser.parse_args()
    deltas = sorted(args.chain.glob("delta-*"))
    share = len(deltas) // args.turns
    rows = [sum(sum(part["rows"])
                for part in json.loads((delta / "manifest.json").read_text())["parts"])
            for delta in deltas[:share * args.turns]]
    with tempfile.TemporaryDirectory() as dir:
        chain = pathlib.Path(dir) / "chain"
        chain.mkdir()
        for path in args.chain.iterdir():
            if path.name.startswith("base-"):
                shutil.copytree(path, chain / path.name)
            elif path.is_file():
                shutil.copy(path, chain / path.name)
        server = Server(args.hotrow, str(chain), "--follow_ms=50")
        client = Client(server, body_of(server, args.samples))
        client.start()
        time.sleep(2)
        client.take()
        still, moving, growth = [], [], []
        for turn in range(args.turns):
            time.sleep(share * args.every)
            before = client.take()
            begin = time.perf_counter()
            for i, delta in enumerate(deltas[turn * share:(turn + 1) * share]):
                # Beside the chain first: a follower sees a whole delta or none.
                shutil.copytree(delta, pathlib.Path(dir) / "next")
                (pathlib.Path(dir) / "next").rename(chain / delta.name)
                time.sleep(max(0.0, begin + (i + 1) * args.every - time.perf_counter()))
            during = client.take()
            still += before
            moving += during
            growth.append([at(during, s) / at(before, s) for s in (0.5, 0.9, 0.99)])
        applied = metric(server, "hotrow_serve_deltas_total")
        client.stop = True
        client.join()
        server.process.terminate()
        status = server.process.wait(timeout=30)
    print(f"{applied} of {share * args.turns} deltas came, {sum(rows):,} rows, "
          f"{sum(rows) / (len(rows) * args.every):,.0f} a second; {len(client.errors)} requests "
          f"failed; status {status}")
    print("| | requests | TP50 ms | TP90 ms | TP99 ms |")
    print("| --- | --- | --- | --- | --- |")
    for name, times in (("the model stays", still), ("rows come", moving)):
        times.sort()
        print(f"| {name} | {len(times)} | "
              + " | ".join(f"{at(times, s):.2f}" for s in (0.5, 0.9, 0.99)) + " |")
    medians = [statistics.median(column) for column in zip(*growth)]
    print("| median of the turns | | " + " | ".join(f"{m:.3f}" for m in medians) + " |")
    return 0 if not client.errors and applied == len(rows) and status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
