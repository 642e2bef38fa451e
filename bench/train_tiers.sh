#!/usr/bin/env bash
# Trains one DLRM through a cache of a tenth of its rows over each kind of store, turn and turn about with a run whose cache holds
# all rows, and prints medians and ratios as a markdown table.
#
#   bench/train_tiers.sh DIR [-r REPEATS] [-z "ZIPF ..."] [-k "KIND ..."] [-b BINARY] [-s STEPS] [-- FLAGS OF dlrm]
#
#   DIR   where the stores lie; what they write is removed
#   -r    repeats, default 3
#   -z    exponents of the popularity of ids, default "1.2 1.05"
#   -k    stores below the small cache, default "ssd rocksdb"
#   -b    default build/bin/dlrm
#   -s    steps of an epoch, default 300
#
# 26 tables x 100,000 ids, dim 64, batch 2048. Figures are those of a second pass over the same ids: in the first, rows are made and memory is
# taken. Its time is that between the log lines of the second epoch of one run; counts and processor time are the difference of that
# run and one of a single epoch, which the first repeat makes. First line of each table: what the disk gives (store_bench --store=raw).
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

usage() { sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[[ $# -ge 1 && $1 != -* ]] || usage
dir=$1; shift
repeats=3 zipfs="1.2 1.05" kinds="ssd rocksdb" binary=build/bin/dlrm steps=300
while [[ $# -gt 0 ]]; do
  case $1 in
    -r) repeats=$2; shift 2 ;;
    -z) zipfs=$2; shift 2 ;;
    -k) kinds=$2; shift 2 ;;
    -b) binary=$2; shift 2 ;;
    -s) steps=$2; shift 2 ;;
    --) shift; break ;;
    *) usage ;;
  esac
done
[[ -x $binary ]] || { echo "train_tiers.sh: $binary: no such program; build it, or give -b" >&2; exit 1; }
mkdir -p "$dir"
work=$(mktemp -d)
trap 'rm -rf "$work" "$dir"/train_tiers.*' EXIT

readonly all_rows=$((26 * 100000)) row_bytes=272  # 64 weights, one sum of squares, the step: a multiple of 16
one() { # kind zipf repeat flags...
  local kind=$1 zipf=$2 repeat=$3 epochs tiers
  shift 3
  for epochs in 1 2; do
    [[ $epochs -eq 1 && $repeat -gt 1 ]] && continue
    rm -rf "$dir/train_tiers.$kind"
    case $kind in
      memory) tiers=(--store=memory --cache_bytes=$((all_rows * (row_bytes + 17) * 11 / 10))) ;;
      *) tiers=(--store="$kind" --store_path="$dir/train_tiers.$kind" --cache_bytes=$((all_rows * row_bytes / 10))
           --store_bytes=64MiB --disk_bytes=$((all_rows * row_bytes * 3))) ;;
    esac
    "$binary" --data="synthetic:tables=26,rows=100000,samples=$((2048 * steps)),valid=2048,test=2048,zipf=$zipf" \
      --embedding_dim=64 --dense_arch_layer_sizes=512-256-64 --over_arch_layer_sizes=512-256-1 --batch_size=2048 \
      --optimizer=rowwise_adagrad --prefetch_depth=2 --epochs=$epochs "${tiers[@]}" "$@" \
      --mllog --report="$work/$zipf.$kind.$repeat.$epochs.json" >"$work/$zipf.$kind.$repeat.$epochs.log"
  done
}

raw() { # zipf repeat place
  build/bin/store_bench --store=raw --path="$dir/train_tiers.raw" --rows=1000000 --row_bytes=512 --batches=40 \
    --report="$work/$1.raw.$2.$3.json" >/dev/null
}

# What the disk gives wanders by a tenth from minute to minute, so it is asked right before and right after the runs.
for zipf in $zipfs; do
  for ((r = 1; r <= repeats; ++r)); do
    one memory "$zipf" "$r" "$@"
    raw "$zipf" "$r" before
    for kind in $kinds; do one "$kind" "$zipf" "$r" "$@"; done
    raw "$zipf" "$r" after
  done
done

python3 - "$work" "$repeats" "$zipfs" "$kinds" <<'PYTHON'
import json, statistics, sys

work, repeats, zipfs, kinds = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(), sys.argv[4].split()


def load(*name):
    return json.load(open(f"{work}/{'.'.join(map(str, name))}.json"))


def tier(report, name):
    return next((t for t in report["tiers"] if t["name"] == name), {})


def second_epoch_seconds(zipf, kind, repeat):
    begin = end = None
    for line in open(f"{work}/{zipf}.{kind}.{repeat}.2.log"):
        if ":::MLLOG" not in line:
            continue
        entry = json.loads(line[line.index("{"):])
        if (entry.get("metadata") or {}).get("epoch_num") == 2:
            begin = entry["time_ms"] if entry["key"] == "epoch_start" else begin
            end = entry["time_ms"] if entry["key"] == "epoch_stop" else end
    return (end - begin) / 1e3


def counts(zipf, kind):
    one, two = load(zipf, kind, 1, 1), load(zipf, kind, 1, 2)
    samples, steps = two["samples"] - one["samples"], two["steps"] - one["steps"]
    more = lambda t, field: (tier(two, t).get(field) or 0) - (tier(one, t).get(field) or 0)
    missed = lambda r: r["steps"] * r["unique_keys_per_step"] * (1 - tier(r, "cache")["unique_hit_rate"])
    return {
        "cpu": 1e6 * (two["cpu_seconds"] - one["cpu_seconds"]) / samples,
        "misses": (missed(two) - missed(one)) / steps,
        "ios": more(kind, "ios") / samples,
        "written": more(kind, "bytes_written") / steps,
    }


def second_pass(zipf, kind, repeat):
    two = load(zipf, kind, repeat, 2)
    return {
        "rate": two["samples"] / two["epochs"] / second_epoch_seconds(zipf, kind, repeat),
        "p50": two["step_ms"]["p50"],
        "p99": two["step_ms"]["p99"],
        "rss": two["peak_rss_bytes"] / 1e6,
        "hash": two["tables_hash"],
    }


for zipf in zipfs:
    disks = [load(zipf, "raw", r, when)["rows_per_second"] for r in range(1, repeats + 1) for when in ("before", "after")]
    disk = statistics.median(disks)
    runs = {k: [second_pass(zipf, k, r) for r in range(1, repeats + 1)] for k in ["memory"] + kinds}
    median = lambda kind, field: statistics.median(run[field] for run in runs[kind])
    memory = median("memory", "rate")
    hashes = {run["hash"] for k in runs for run in runs[k]}
    print(f"\nZipf {zipf}: random 4 KiB reads {disk:,.0f} /s ({min(disks):,.0f}-{max(disks):,.0f}); medians of {repeats}; "
          f"{'same bits in all runs' if len(hashes) == 1 else 'THE BITS DIFFER: ' + str(hashes)}\n")
    print("| store | samples/s (least-most) | of memory | of min(memory, disk) | misses/step | IOs/sample | written MB/step "
          "| CPU us/sample | p50 step ms | p99 | peak RSS MB |")
    print("| --- |" + " ---: |" * 10)
    for kind in runs:
        count = counts(zipf, kind)
        ios = count["ios"]
        rates = [run["rate"] for run in runs[kind]]
        limit = min(memory, disk / ios) if kind == "ssd" and ios > 0 else memory
        print(f"| {kind} | {median(kind, 'rate'):,.0f} ({min(rates):,.0f}-{max(rates):,.0f}) | "
              f"{median(kind, 'rate') / memory:.2f} | {median(kind, 'rate') / limit:.2f} | {count['misses']:,.0f} | {ios:.2f} | "
              f"{count['written'] / 1e6:.2f} | {count['cpu']:.1f} | {median(kind, 'p50'):.1f} | {median(kind, 'p99'):.0f} | "
              f"{median(kind, 'rss'):,.0f} |")
PYTHON
