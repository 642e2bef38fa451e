#!/usr/bin/env bash
# Runs store_bench for several kinds of store, one after the other within each repeat, so that a busy
# moment of the machine hits all of them alike, and prints the medians as a table for bench/results.
#
#   bench/store_bench.sh DIR [-r REPEATS] [-k "KIND ..."] [-b BINARY] [-o OUT] [-- FLAGS OF STORE_BENCH]
#
#   DIR        where the data lies; each kind gets a directory below it
#   -r         repeats, default 3
#   -k         default "raw ssd rocksdb"; "pair" is ssd over DIR and the directories of -p, and the last line says how many times
#              the rows/s of ssd it has
#   -p         directories of pair beside DIR, one a drive, joined by commas; store_bench_data in each is removed
#   -b         default build/bin/store_bench
#   -o         keeps the reports as OUT/KIND.REPEAT.json; default: a temporary directory
#   FLAGS      for all kinds; a word KIND:--flag=value goes to that kind alone
#
# Examples: bench/store_bench.sh /data -r 5 -- --rows=4000000 --batches=60 rocksdb:--store_bytes=180MB
#           bench/store_bench.sh /dev/shm/a -k "ssd pair" -p /dev/shm/b
set -euo pipefail

usage() { sed -n '2,17s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[[ $# -ge 1 && $1 != -* ]] || usage
dir=$1; shift
repeats=3 kinds="raw ssd rocksdb" binary=build/bin/store_bench out="" more=""
while [[ $# -gt 0 ]]; do
  case $1 in
    -r) repeats=$2; shift 2 ;;
    -k) kinds=$2; shift 2 ;;
    -b) binary=$2; shift 2 ;;
    -o) out=$2; shift 2 ;;
    -p) more=$2; shift 2 ;;
    --) shift; break ;;
    *) usage ;;
  esac
done
[[ " $kinds " != *" pair "* || -n $more ]] || { echo "store_bench.sh: pair: give its other directories with -p" >&2; exit 2; }
[[ -x $binary ]] || { echo "store_bench.sh: $binary: no such program; build it, or give -b" >&2; exit 1; }
if [[ -z $out ]]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
mkdir -p "$out" "$dir"

for ((r = 1; r <= repeats; ++r)); do
  for kind in $kinds; do
    flags=() store=$kind
    if [[ $kind == pair ]]; then store=ssd flags=(--more_paths="$more"); fi
    for word in "$@"; do
      case $word in
        --*) flags+=("$word") ;;
        "$kind":*) flags+=("${word#*:}") ;;
      esac
    done
    echo "repeat $r of $repeats: $kind" >&2
    "$binary" --store="$store" --path="$dir/store_bench.$kind" "${flags[@]}" \
        --report="$out/$kind.$r.json" > /dev/null
  done
done

echo "\`bench/store_bench.sh DIR -r $repeats -k \"$kinds\"${more:+ -p $more} -- $*\`"
python3 - "$out" "$repeats" $kinds <<'PYTHON'
import json, statistics, sys

out, repeats, kinds = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
reports = {k: [json.load(open(f"{out}/{k}.{r}.json")) for r in range(1, repeats + 1)] for k in kinds}

def median(kind, path):
    values = []
    for report in reports[kind]:
        value = report
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, (int, float)):
            values.append(value)
    return (statistics.median(values), min(values), max(values)) if values else None

# Name, where it stands in the report, scale, digits; "range": least and most as well.
FIELDS = [
    ("rows/s", "rows_per_second", 1, 0, True),
    ("CPU us/row", "cpu_us_per_row", 1, 2, False),
    ("of it harness", "harness_cpu_us_per_row", 1, 2, False),
    ("IOs/row", "ios_per_row", 1, 3, False),
    ("bytes read/row", "bytes_read_per_row", 1, 0, False),
    ("p50 batch ms", "p50_batch_ms", 1, 1, False),
    ("p99 batch ms", "p99_batch_ms", 1, 1, False),
    ("max batch ms", "max_batch_ms", 1, 1, False),
    ("write amplification", "write_amplification", 1, 2, False),
    ("once settled", "settled_write_amplification", 1, 2, False),
    ("space amplification", "space_amplification", 1, 2, False),
    ("its peak", "peak_space_amplification", 1, 2, False),
    ("once settled", "settled_space_amplification", 1, 2, False),
    ("snapshot MB", "snapshot_bytes", 1e-6, 1, False),
    ("index bytes/row", "index_bytes_per_row", 1, 1, False),
    ("RSS MB", "rss_bytes", 1e-6, 0, False),
    ("peak RSS MB", "peak_rss_bytes", 1e-6, 0, False),
    ("reopen s", "reopen_seconds", 1, 3, False),
    ("reopen after kill s", "reopen_after_kill_seconds", 1, 3, False),
    ("reads before, rows/s", "reads_before_per_second", 1, 0, False),
    ("reads right after, rows/s", "reads_after_per_second", 1, 0, False),
    ("after / before", "reads_after_share", 1, 2, False),
    ("raw: by IoQueue, reads/s", "by_io_queue/rows_per_second", 1, 0, False),
    ("raw: by liburing, reads/s", "by_liburing/rows_per_second", 1, 0, False),
    ("raw: writes MB/s", "write_bytes_per_second", 1e-6, 0, False),
    ("raw: mixed, reads/s", "mixed/rows_per_second", 1, 0, False),
    ("raw: mixed, writes MB/s", "mixed/write_bytes_per_second", 1e-6, 0, False),
]
print("\n| median of %d | %s |" % (repeats, " | ".join(kinds)))
print("| --- |" + " ---: |" * len(kinds))
for name, path, scale, digits, with_range in FIELDS:
    cells = []
    for kind in kinds:
        found = median(kind, path)
        if found is None:
            cells.append("")
            continue
        text = [f"{v * scale:,.{digits}f}" for v in found]
        cells.append(f"{text[0]} ({text[1]}-{text[2]})" if with_range and repeats > 1 else text[0])
    if any(cells):
        print(f"| {name} | {' | '.join(cells)} |")
if "pair" in kinds and "ssd" in kinds:
    times = [pair["rows_per_second"] / one["rows_per_second"] for pair, one in zip(reports["pair"], reports["ssd"])]
    print(f"\npair against ssd: {statistics.median(times):.2f} times the rows/s ({min(times):.2f}-{max(times):.2f})")
PYTHON
