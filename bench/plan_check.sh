#!/usr/bin/env bash
# Holds `hotrow plan` against runs of dlrm: calibrates the machine, trains models of several dims, skews, tiers and numbers of ranks for
# some seconds each, compares what was planned with what each reports, and prints one markdown table.
#
#   bench/plan_check.sh DIR [-b BUILD] [-p PERCENT] [-c PROFILE] [-o FOLDER] [-t TRACE] [-m FILE] [-k "RUN ..."]
#
#   DIR   where the stores lie and what is calibrated as the disk; what is written there is removed
#   -b    folder of the binaries bin/hotrow and bin/dlrm, default build
#   -p    steps of each run in percent of the full number, default 100: 5 to 15 s a run on two cores
#   -c    a profile of `hotrow calibrate` instead of a new one
#   -o    keeps profile, specs, reports and comparisons there
#   -t    accesses of a real recommender as big-endian int64, .xz or not; without it its runs are left out
#   -m    MovieLens 1M as click data (--data=ml1m:FILE of the trainers); without it its run is left out
#   -k    these runs alone, by the names of the first column
#
# Wants the machine for itself: what else runs makes it look slower. The time of reading the data is measured apart, by a run of one
# thread for each kind of data. Status 1 when a prediction is out of its tolerance.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

usage() { sed -n '2,17s/^# \{0,1\}//p' "$0" >&2; exit 2; }
fail() { echo "plan_check.sh: $*" >&2; exit 1; }
[[ $# -ge 1 && $1 != -* ]] || usage
dir=$1; shift
build=build percent=100 profile="" out="" trace="" ml1m="" only=""
while [[ $# -gt 1 ]]; do
  case $1 in
    -b) build=$2 ;;
    -p) percent=$2 ;;
    -c) profile=$2 ;;
    -o) out=$2 ;;
    -t) trace=$2 ;;
    -m) ml1m=$2 ;;
    -k) only=$2 ;;
    *) usage ;;
  esac
  shift 2
done
[[ $# -eq 0 ]] || usage
[[ $percent =~ ^[1-9][0-9]*$ ]] || fail "-p $percent: a whole number of percent, 1 or more"
hotrow=$build/bin/hotrow dlrm=$build/bin/dlrm
for binary in "$hotrow" "$dlrm"; do [[ -x $binary ]] || fail "$binary: no such program; build it, or give -b"; done
for file in "$profile" "$trace" "$ml1m"; do [[ -z $file || -r $file ]] || fail "$file: cannot be read"; done

mkdir -p "$dir"
dir=$(readlink -f "$dir")
if [[ -n $out ]]; then
  mkdir -p "$out"
  work=$(readlink -f "$out")
  trap 'rm -rf "$dir"/plan_check.*' EXIT
else
  work=$(mktemp -d)
  trap 'rm -rf "$work" "$dir"/plan_check.*' EXIT
fi
rm -f "$work"/*.check.json "$work"/left_out
cores=$(nproc)

if [[ -n $profile ]]; then
  cp "$profile" "$work/machine.yaml"
else
  echo "calibrating" >&2
  "$hotrow" calibrate --path="$dir" --threads="$cores" --output="$work/machine.yaml" >"$work/calibrate.txt"
fi

# --- Data -----------------------------------------------------------------------------------------------------------------------

# What the trainers read of real data, and its order: they shuffle, so the curve is that of shuffled accesses.
if [[ -n $trace ]]; then
  python3 - "$trace" "$work" <<'PYTHON'
import array, json, lzma, random, sys

trace, work = sys.argv[1:]
bag = 32
raw = (lzma.open if trace.endswith(".xz") else open)(trace, "rb").read()
ids = array.array("q")
ids.frombytes(raw[: len(raw) // (8 * bag) * (8 * bag)])
ids.byteswap()
order = random.Random(1)
with open(f"{work}/trace.csv", "w") as out, open(f"{work}/trace_valid.csv", "w") as valid:
    for file in (out, valid):
        file.write("click,items\n")
    for i in range(0, len(ids), bag):
        line = f"{order.random() < 0.5:d},{' '.join(map(str, ids[i:i + bag]))}\n"
        out.write(line)
        if i < 16 * bag:
            valid.write(line)
bags = list(range(0, len(ids), bag))
order.shuffle(bags)
with open(f"{work}/trace_items.txt", "w") as out:
    out.writelines(f"{id}\n" for i in bags for id in ids[i:i + bag])
schema = {"name": "trace", "files": {"train": ["trace.csv"], "valid": ["trace_valid.csv"], "test": ["trace_valid.csv"]},
          "columns": [{"name": "click", "role": "label"},
                      {"name": "items", "role": "categorical", "key": "integer", "separator": " ", "max_hotness": bag}]}
json.dump(schema, open(f"{work}/trace.schema.json", "w"))
json.dump({"samples": len(ids) // bag, "rows": len(set(ids)), "hotness": bag}, open(f"{work}/trace.json", "w"))
PYTHON
  sizes=$(python3 -c 'print(",".join(f"{1.25 ** -i:.6f}" for i in range(48, -1, -1)))')
  "$hotrow" trace mrc "$work/trace_items.txt" --format=text --at="$sizes" --json >"$work/trace_items.curve.json"
else
  echo "the runs on a recommender's trace: left out, give the file with -t" >>"$work/left_out"
fi
if [[ -n $ml1m ]]; then
  python3 - "$ml1m" "$work" <<'PYTHON'
import csv, gzip, json, random, sys

ml1m, work = sys.argv[1:]
# As the schema ml1m has it: class 1 is dropped, of the others those with a number modulo 10 below 8 are for training.
with (gzip.open(ml1m, "rt") if ml1m.endswith(".gz") else open(ml1m)) as file:
    rows = [row for row in csv.DictReader(file) if row["rating_class"] != "1"]
train = [row for i, row in enumerate(rows) if i % 10 < 8]
random.Random(1).shuffle(train)
out = {"samples": len(train), "tables": {}}
for column in ["user_id", "movie_id", "gender", "age", "occupation", "zip", "year", "genres"]:
    numbers, count = {}, 0
    with open(f"{work}/ml1m_{column}.txt", "w") as ids:
        for row in train:
            for value in (row[column].split("|") if column == "genres" else [row[column]]):
                if value:
                    ids.write(f"{numbers.setdefault(value, len(numbers))}\n")
                    count += 1
    out["tables"][column] = {"rows": len(numbers), "hotness": count / len(train)}
json.dump(out, open(f"{work}/ml1m.json", "w"))
PYTHON
else
  echo "the run on MovieLens: left out, give the file with -m" >>"$work/left_out"
fi

# --- Runs -----------------------------------------------------------------------------------------------------------------------

# name kind rows zipf dim batch steps store cache% depth ranks threads [flags of dlrm]
runs() {
  cat <<RUNS
memory16       synthetic 100000 1.05 16  2048 240 memory 0  1 1 $cores
memory64       synthetic 100000 0.8  64  2048 100 memory 0  1 1 $cores
memory128      synthetic 100000 1.05 128 2048 60  memory 0  0 1 $cores
memory16-10    synthetic 100000 1.05 16  2048 240 memory 10 1 1 $cores
memory16-1     synthetic 400000 1.05 16  1024 300 memory 1  1 1 $cores
memory64-50    synthetic 100000 0.8  64  2048 100 memory 50 2 1 $cores
memory128-5    synthetic 100000 1.2  128 2048 80  memory 5  1 1 $cores
ssd16-10       synthetic 100000 1.05 16  2048 300 ssd    10 2 1 $cores
ssd16-1        synthetic 400000 1.2  16  1024 300 ssd    1  1 1 $cores
ssd64-10       synthetic 100000 1.05 64  2048 150 ssd    10 2 1 $cores
ssd64-20       synthetic 100000 0.8  64  2048 120 ssd    20 1 1 $cores
ssd128-5       synthetic 100000 1.2  128 2048 180 ssd    5  2 1 $cores
ranks2         synthetic 100000 1.05 16  2048 160 memory 0  1 2 1
ranks2-10      synthetic 100000 1.05 16  2048 160 memory 10 2 2 1 --exchange_forward=fp16 --exchange_backward=int8
ranks2-ssd-5   synthetic 100000 1.2  16  2048 240 ssd    5  2 2 1
ranks2-ssd-10  synthetic 100000 1.2  16  2048 160 ssd    10 2 2 1
ranks4-10      synthetic 100000 1.05 16  2048 120 memory 10 2 4 1
RUNS
  if [[ -n $trace ]]; then
    cat <<RUNS
trace-10       trace     0      0    64  128  304 memory 10 1 1 $cores
trace-ssd-10   trace     0      0    64  128  304 ssd    10 2 1 $cores
RUNS
  fi
  if [[ -n $ml1m ]]; then
    cat <<RUNS
ml1m-40        ml1m      0      0    32  64   3000 memory 40 1 1 $cores
RUNS
  fi
}

# Seconds of one thread for a sample of this data, by a run that reads on its only thread and computes next to nothing.
reading_seconds() { # data batch
  local report="$work/reading.json"
  "$dlrm" --data="$1" --batch_size="$2" --limit_train_batches=60 --threads=1 --prefetch_depth=0 --embedding_dim=4 \
    --dense_arch_layer_sizes=4 --over_arch_layer_sizes=1 --report="$report" >"$work/reading.log" 2>&1 ||
    fail "a run that reads $1 failed: $(tail -1 "$work/reading.log")"
  python3 -c '
import json, sys
report = json.load(open(sys.argv[1]))
print(next(s["ms"] for s in report["stages"] if s["name"] == "read") / 1e3 / report["samples"])' "$report"
}

declare -A reading
while read -r name kind rows zipf dim batch steps store cache depth ranks threads flags; do
  [[ -z $only || " $only " == *" $name "* ]] || continue
  echo "$name" >&2
  steps=$((steps * percent / 100 > 4 ? steps * percent / 100 : 4))
  case $kind in
    synthetic) data="synthetic:tables=26,rows=$rows,zipf=$zipf,samples=$((batch * steps)),valid=64,test=64" ;;
    trace) data="table:$work/trace.schema.json" ;;
    ml1m) data="ml1m:$ml1m" ;;
  esac
  key="$kind $rows $zipf"
  if [[ -z ${reading[$key]:-} ]]; then
    reading[$key]=$(reading_seconds "${data/samples=$((batch * steps))/samples=$((batch * 60))}" "$batch")
  fi
  # The spec, and the flags that say the same to the trainer.
  python3 - "$work" "$name" "$kind" "$rows" "$zipf" "$dim" "$batch" "$steps" "$store" "$cache" "$depth" "$ranks" \
    "${reading[$key]}" "$dir/plan_check.$name" "$flags" >"$work/$name.flags" <<'PYTHON'
import json, sys

work, name, kind, rows, zipf, dim, batch, steps, store, cache, depth, ranks, reading, store_path, flags = sys.argv[1:]
rows, dim, batch, steps, cache, depth, ranks = int(rows), int(dim), int(batch), int(steps), int(cache), int(depth), int(ranks)
bottom, top = [64, dim], [256, 64, 1]
dense = 0
if kind == "synthetic":
    dense, bottom, top = 13, [512, 256, dim], [512, 256, 1]
    tables = [{"name": f"t_cat_{i}", "rows": rows, "dim": dim, "zipf": float(zipf)} for i in range(26)]
elif kind == "trace":
    about = json.load(open(f"{work}/trace.json"))
    tables = [{"name": "items", "rows": about["rows"], "dim": dim, "hotness": about["hotness"], "curve": "trace_items.curve.json"}]
else:
    about = json.load(open(f"{work}/ml1m.json"))
    tables = [{"name": t, "rows": of["rows"], "dim": dim, "hotness": of["hotness"], "trace": f"ml1m_{t}.txt"}
              for t, of in about["tables"].items()]
row_bytes = (4 * dim + 4 + 4 + 15) // 16 * 16  # weights, the sum of squares, the step; a multiple of 16
all_rows = sum(t["rows"] for t in tables)
# A way takes 16 bytes beside its row, buffers for rows on their way 9/64 at most.
cache_bytes = int(all_rows * cache / 100 * (row_bytes + 17) * 1.1 / ranks)
spec = {"batch_size": batch, "ranks": ranks, "ranks_per_node": ranks, "hardware": "machine.yaml", "prefetch_depth": depth,
        "store": store, "cache_bytes": cache_bytes, "data_seconds_per_sample": float(reading),
        "model": {"dense_features": dense, "bottom": bottom if dense else [], "top": top, "interaction": "dot",
                  "dense_optimizer": "adagrad"},
        "tables": tables}
out = [f"--embedding_dim={dim}", f"--batch_size={batch}", f"--limit_train_batches={steps}", f"--prefetch_depth={depth}",
       "--dense_arch_layer_sizes=" + "-".join(map(str, bottom)), "--over_arch_layer_sizes=" + "-".join(map(str, top)),
       "--optimizer=rowwise_adagrad", "--dense_optimizer=adagrad", f"--store={store}", f"--cache_bytes={cache_bytes}"]
if store == "ssd":
    # Room for a log that is never full in a run of this length or half empty at its end.
    out += [f"--store_path={store_path}", f"--store_bytes={128 << 20}",
            f"--disk_bytes={int(all_rows * (row_bytes + 40) * 3 / ranks) + (256 << 20)}"]
else:
    out.append(f"--store_bytes={int(all_rows * (row_bytes + 40) * 1.5 / ranks) + (64 << 20)}")
for flag in flags.split():
    out.append(flag)
    key, value = flag.lstrip("-").split("=")
    spec[key] = value
json.dump(spec, open(f"{work}/{name}.spec.json", "w"), indent=1)
print("\n".join(out))
PYTHON
  mapfile -t tier_flags <"$work/$name.flags"
  rm -rf "$dir/plan_check.$name"
  launcher=()
  if [[ $ranks -gt 1 ]]; then
    launcher=(mpirun -n "$ranks" --oversubscribe --bind-to none)
    [[ $(id -u) -ne 0 ]] || launcher+=(--allow-run-as-root)
  fi
  env OMP_NUM_THREADS="$threads" "${launcher[@]}" "$dlrm" --data="$data" --threads="$threads" "${tier_flags[@]}" \
    --report="$work/$name.report.json" >"$work/$name.log" 2>&1 </dev/null || fail "$name: $(tail -1 "$work/$name.log")"
  rm -rf "$dir/plan_check.$name"
  status=0
  "$hotrow" plan "$work/$name.spec.json" --check="$work/$name.report.json" --json >"$work/$name.check.json" \
    2>"$work/$name.err" || status=$?
  [[ -s $work/$name.check.json ]] || fail "$name: $(tail -1 "$work/$name.err") (status $status)"
done < <(runs)

# --- The table ------------------------------------------------------------------------------------------------------------------

python3 - "$work" "$percent" "$(runs | awk '{print $1}' | tr '\n' ' ')" <<'PYTHON'
import json, os, re, sys

work, percent, names = sys.argv[1], sys.argv[2], sys.argv[3].split()
names = [name for name in names if os.path.exists(f"{work}/{name}.check.json")]
machine = re.search(r'machine: "(.*)"', open(f"{work}/machine.yaml").read())
print(f"\n{machine.group(1) if machine else 'a machine'}; {percent} % of the steps. Differences are (predicted - measured) / measured in %, of hit "
      "rates in points; `!` is out of its tolerance, in brackets what is not held to one.\n")
columns = [("cache bytes", ["cache.used_bytes"]), ("store or index bytes", ["memory.used_bytes", "ssd.index_bytes"]),
           ("distinct keys", ["unique_keys_per_step"]), ("hit rate", ["cache.hit_rate"]),
           ("of distinct keys", ["cache.unique_hit_rate"]), ("disk transfers", ["ssd.ios per step"]),
           ("bytes written", ["ssd.bytes_written per step"]),
           ("exchanged", ["exchange.ids_bytes", "exchange.forward_bytes", "exchange.backward_bytes", "exchange.dense_bytes"])]
print("| run | steps | " + " | ".join(name for name, _ in columns) + " | samples/s predicted | measured | difference | verdict |")
print("| --- |" + " ---: |" * (len(columns) + 4) + " --- |")


def difference(item):
    text = f"{item['difference']:+.1f}" if abs(item["difference"]) >= 0.05 else "0.0"
    if item["verdict"] is None:
        return f"({text})"
    return text + (" !" if item["verdict"] == "over" else "")


bad, held, notes, speeds = 0, 0, [], []
for name in names:
    check = json.load(open(f"{work}/{name}.check.json"))
    report = json.load(open(f"{work}/{name}.report.json"))
    items = {item["name"]: item for item in check["items"]}
    cells = []
    for _, wanted in columns:
        found = [items[item] for item in wanted if item in items]
        worst = max(found, key=lambda item: (item["verdict"] == "over", abs(item["difference"])), default=None)
        cells.append("" if worst is None else difference(worst))
    speed = items["samples_per_second"]
    if speed["verdict"] is not None:
        speeds.append(abs(speed["difference"]))
    over = [item["name"] for item in check["items"] if item["verdict"] == "over"]
    held += sum(item["verdict"] is not None for item in check["items"])
    bad += len(over)
    print(f"| {name} | {report['steps']} | " + " | ".join(cells) +
          f" | {speed['predicted']:,.0f} | {speed['measured']:,.0f} | {difference(speed)} | {'over: ' + ', '.join(over) if over else 'good'} |")
    for note in check["notes"]:
        if note.startswith("samples_per_second") and note not in notes:
            notes.append(note)
print(f"\n{held - bad} of {held} comparisons are within their tolerances.", end="")
if speeds:
    speeds.sort()
    print(f" Speed is off by {speeds[len(speeds) // 2]:.0f} % in the median of {len(speeds)} runs, {speeds[-1]:.0f} % at most.", end="")
print()
for note in notes:
    print(f"- {note}")
if os.path.exists(f"{work}/left_out"):
    for line in open(f"{work}/left_out"):
        print(f"- {line.strip()}")
sys.exit(1 if bad else 0)
PYTHON
