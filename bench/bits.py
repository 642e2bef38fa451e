#!/usr/bin/env python3
"""Compares the bits that two builds train.

    bench/bits.py BIN                  prints the hashes of a fixed set of runs
    bench/bits.py BIN OTHER_BIN        runs both and prints where they differ; status 1 if they do
    bench/bits.py BIN --expect=FILE    the same against what the first form printed before

BIN is a folder with dlrm, deepfm and dcn, such as build/bin. The runs cover models, optimizers,
precisions, stores, caches, ranks and a resumed run, at sizes that take a second each. oneDNN is
held to AVX2, so that processors agree. A run that a build lacks (RocksDB, MPI) is left out by name.

One line a run: its name, the hashes of tables and of dense parameters, and the test metrics.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

DATA = "--data=synthetic:tables=6,rows=20000,samples=40000,hotness=3"
SMALL_DATA = "--data=synthetic:tables=6,rows=20000,samples=40000"
COMMON = ["--batch_size=512", "--threads=2", "--embedding_dim=16"]
SSD = ["--store=ssd", "--store_path={dir}/rows", "--store_bytes=16MiB", "--disk_bytes=128MiB"]
ROCKS = ["--store=rocksdb", "--store_path={dir}/rows", "--store_bytes=32MiB", "--disk_bytes=256MiB"]
CHECKPOINTS = ["--checkpoint_dir={dir}/checkpoints", "--checkpoint_every=20"]


def runs():
    """Yields (name, ranks, [arguments of one program call after the other])."""

    def one(name, program, *flags, ranks=1):
        return name, ranks, [[program, *flags]]

    for program in ("dlrm", "deepfm", "dcn"):
        yield one(program, program, DATA)
    for optimizer in ("sgd", "momentum", "adagrad", "adam", "partial_rowwise_adam", "ftrl"):
        yield one(f"dlrm {optimizer}", "dlrm", DATA, f"--optimizer={optimizer}")
    for optimizer in ("sgd", "adam"):
        yield one(f"dlrm dense {optimizer}", "dlrm", DATA, f"--dense_optimizer={optimizer}")
    for precision in ("fp16", "bf16"):
        yield one(f"dlrm {precision}", "dlrm", DATA, f"--weights_precision={precision}")
    yield one("dlrm mean", "dlrm", DATA, "--pooling=mean", "--table_weight_decay=1e-4",
              "--weight_decay=1e-5", "--max_gradient_norm=0.1", "--dropout=0.2")
    yield one("deepfm schedule", "deepfm", SMALL_DATA, "--epochs=3", "--lr_warmup_steps=20",
              "--lr_plateau_patience=1", "--early_stop_patience=2")
    # Tiers move no bit, so each of these equals the first run.
    yield one("dlrm cache", "dlrm", DATA, "--cache_bytes=min")
    yield one("dlrm lfu", "dlrm", DATA, "--cache_bytes=3MiB", "--cache_policy=lfu")
    yield one("dlrm ssd", "dlrm", DATA, "--cache_bytes=min", *SSD)
    yield one("dlrm rocksdb", "dlrm", DATA, "--cache_bytes=3MiB", *ROCKS)
    yield one("dlrm device tiers", "dlrm", DATA, "--device_cache_bytes=min")
    yield one("dlrm three tiers", "dlrm", DATA, "--device_cache_bytes=min", "--cache_bytes=3MiB",
              *SSD)
    for store, flags in (("memory", []), ("ssd", ["--cache_bytes=min", *SSD])):
        yield (f"dlrm resumed {store}", 1,
               [["dlrm", DATA, *flags, *CHECKPOINTS, "--limit_train_batches=30"],
                ["dlrm", DATA, *flags, *CHECKPOINTS, "--epochs=2", "--limit_train_batches=30",
                 "--resume"]])
    yield one("dlrm 2 ranks", "dlrm", DATA, ranks=2)
    yield one("dlrm 3 ranks int8", "dlrm", DATA, "--exchange_forward=fp16",
              "--exchange_backward=int8", "--exchange_rounding=stochastic",
              "--exchange_feedback=1MiB", ranks=3)
    yield one("dlrm 2 ranks ssd", "dlrm", DATA, "--cache_bytes=3MiB", *SSD, ranks=2)


def environment():
    env = dict(os.environ, ONEDNN_MAX_CPU_ISA="AVX2", DNNL_MAX_CPU_ISA="AVX2")
    # Ranks of one machine, perhaps more than it has cores, perhaps as root in a container.
    env.update(OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_ALLOW_RUN_AS_ROOT="1",
               OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return env


def run_one(bin_dir, ranks, calls, scratch):
    """Returns the line of a run, without its name; None where the build or the machine lacks it."""
    report = scratch / "report.json"
    for program, *flags in calls:
        command = [str(bin_dir / program), *COMMON, *(f.format(dir=scratch) for f in flags),
                   f"--report={report}"]
        if ranks > 1:
            if shutil.which("mpirun") is None:
                return None
            command = ["mpirun", "-n", str(ranks), *command]
        done = subprocess.run(command, env=environment(), text=True, capture_output=True)
        if done.returncode != 0:
            if "this build has" in done.stderr or "built without" in done.stderr:
                return None
            sys.exit(f"status {done.returncode} of {' '.join(command)}\n{done.stderr}")
    facts = json.loads(report.read_text())
    metrics = json.dumps(facts["test"], sort_keys=True)
    return f"{facts['tables_hash']} {facts['dense_hash']} {metrics}"


def bits_of(bin_dir):
    lines = {}
    for name, ranks, calls in runs():
        with tempfile.TemporaryDirectory(prefix="hotrow_bits_") as scratch:
            line = run_one(bin_dir, ranks, calls, pathlib.Path(scratch))
        if line is None:
            print(f"left out: {name}: not in this build", file=sys.stderr)
        else:
            lines[name] = line
    return lines


def read_lines(path):
    return dict(line.split(": ", 1) for line in path.read_text().splitlines() if line)


def main():
    parser = argparse.ArgumentParser(description="Compares the bits that two builds train.")
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("other", type=pathlib.Path, nargs="?")
    parser.add_argument("--expect", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    here = bits_of(options.bin)
    if options.other is None and options.expect is None:
        print("\n".join(f"{name}: {line}" for name, line in here.items()))
        return 0
    there = bits_of(options.other) if options.other else read_lines(options.expect)
    common = [name for name in here if name in there]
    bad = [name for name in common if here[name] != there[name]]
    for name in bad:
        print(f"{name}:\n  {here[name]}\n  {there[name]}")
    print(f"{len(common)} runs compared, {len(bad)} differ")
    return 1 if bad or not common else 0


if __name__ == "__main__":
    sys.exit(main())
