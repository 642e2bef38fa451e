#!/usr/bin/env bash
# DLRMv4 of MLPerf Training 6.1, scaled: its 11 tables of 512 columns and its unpooled sequences, trained in memory, out of an SSD
# with a cache of 10 % and of 3 % of the rows, and on two ranks. Prints what each run took beside what `hotrow plan` says of it and
# what the disk gives, and the plan of all 600 GB. Status 1 when the samples/s of a plan are off by more than 20 %.
#
#   bench/dlrmv4.sh DIR [-f SHARE] [-l SHARE] [-m MODEL] [-n BATCH] [-s STEPS] [-r REPEATS] [-k "RUN ..."] [-c PROFILE] [-b BUILD]
#                   [-o FOLDER] [-- FLAGS OF THE TRAINER]
#   bench/dlrmv4.sh --fit TRACE
#
#   DIR    where data and stores lie and what is calibrated as the disk; what is written there is removed
#   -f     share of the published rows, default 0.0333: 9.8 million rows, 20 GB
#   -l     share of the published lengths, default 0.0625: 177 events, 542 lookups a sample
#   -m     din (default), whose attention costs least beside its rows; hstu, with the published 3 blocks of 4 heads; or bst
#   -n     samples of a step, default 64
#   -s     steps, default 300
#   -r     repeats, default 1; the table has medians
#   -k     default "memory ssd-10 ssd-3 ranks2 filled-10 filled-3". ssd-N: a cache of N % of all rows; ranks2: ssd-10 on two ranks.
#          Rows are made when they are first looked up; of filled-N all are on the disk before, zeros, and no plan is compared
#   -c     a profile of `hotrow calibrate` instead of a new one
#   -b     folder of the binaries, default build
#   -o     keeps profile, specs, reports and comparisons there
#   --fit  prints the exponent of the Zipf law that fits a trace: accesses as big-endian int64, .xz or not
#
# Rows, lengths and popularity are those of tools/plan/examples/dlrmv4.yaml, which says where they come from. The exponent of items,
# 0.815, is that of --fit for scarab-recs.trace.xz of the Caffeine simulator (github.com/ben-manes/caffeine), 1,245,184 accesses of
# a production recommender to 258,368 ids. Every sample has the mean length, and ids are drawn by themselves, in the order of no
# time: an album does not follow from its item, nor a user's samples from each other.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

usage() { sed -n '2,27s/^# \{0,1\}//p' "$0" >&2; exit 2; }
fail() { echo "dlrmv4.sh: $*" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/dlrmv4.py" <<'PYTHON'
import array, collections, json, lzma, math, os, random, re, statistics, struct, subprocess, sys

EXAMPLE = "tools/plan/examples/dlrmv4.yaml"
DIM, ROW_BYTES = 512, 2064  # 512 weights, one sum of squares, the step: a multiple of 16
LIST = " "


def fit(path):
    """The most likely exponent: that with which the mean logarithm of a rank is what it is in the trace."""
    raw = (lzma.open if path.endswith(".xz") else open)(path, "rb").read()
    ids = array.array("q", raw[: len(raw) // 8 * 8])
    ids.byteswap()
    counts = sorted(collections.Counter(ids).values(), reverse=True)
    logs = [math.log(rank) for rank in range(1, len(counts) + 1)]
    mean = sum(count * log for count, log in zip(counts, logs)) / len(ids)
    low, high = 0.0, 4.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        weights = [math.exp(-middle * log) for log in logs]
        more = sum(weight * log for weight, log in zip(weights, logs)) / sum(weights) > mean
        low, high = (middle, high) if more else (low, middle)
    print(f"{len(ids):,} accesses to {len(counts):,} ids: exponent {low:.3f}")


def tables(rows_share, length_share):
    """[name, rows, events of its history (0: it has none), exponent] of each."""
    found = []
    for line in open(EXAMPLE):
        if "- {name: " not in line or "rows: " not in line or "dim: " not in line:
            continue
        of = dict(re.findall(r"(\w+): ([\w.]+)", line))
        events = round((float(of["hotness"]) - 1) * length_share) if "hotness" in of else 0
        rows = max(2, round(int(of["rows"]) * rows_share))
        found.append([of["name"], rows, max(1, events) if "hotness" in of else 0, float(of["zipf"])])
    return found


def draw_from(number, rows, zipf):
    """Ids of a table: ranks by the inverse of the law as a continuous one, rank 1 being [1/2, 3/2), and scattered over the ids."""
    rng, power = random.Random(number), 1 - zipf
    low, high = 0.5**power, (rows + 0.5) ** power
    width, inverse, step = high - low, 1 / power, 0x9E3779B1 % rows | 1
    while math.gcd(step, rows) != 1:
        step += 2 if rows % 2 == 0 else 1
    rand = rng.random
    return lambda count: [int((low + width * rand()) ** inverse + 0.5) * step % rows for _ in range(count)]


def data(folder, of_tables, samples):
    os.makedirs(folder)
    columns = [{"name": "click", "role": "label"}]
    fields = []
    for number, (name, rows, events, zipf) in enumerate(of_tables):
        draw = draw_from(number, rows, zipf)
        same = {"role": "categorical", "key": "integer", "table": name, "num_embeddings": rows}
        if events:
            columns.append({"name": name + "_history", "separator": LIST, "max_hotness": events, **same})
            fields.append((draw, events))
        columns.append({"name": name, **same})
        fields.append((draw, 1))
    clicks = random.Random(len(fields))
    with open(f"{folder}/train.csv", "w") as out:
        out.write(",".join(column["name"] for column in columns) + "\n")
        for _ in range(samples):
            click = "1" if clicks.random() < 0.61 else "0"  # published: the share of plays of half a track or more
            out.write(",".join([click] + [LIST.join(map(str, draw(count))) for draw, count in fields]) + "\n")
    schema = {"name": "dlrmv4", "files": {"train": ["train.csv"]}, "columns": columns}
    json.dump(schema, open(f"{folder}/schema.json", "w"))


def npy(path, kind, shape):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    with open(path, "wb") as out:
        out.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
    return 10 + len(header)


def fill(folder, of_tables):
    """Rows for --init_rows: zeros, in files with a hole, which take no room."""
    for name, rows, _, _ in of_tables:
        os.makedirs(f"{folder}/{name}")
        npy(f"{folder}/{name}/keys.npy", "<u8", f"({rows},)")
        with open(f"{folder}/{name}/keys.npy", "ab") as out:
            array.array("Q", range(rows)).tofile(out)
        begin = npy(f"{folder}/{name}/weights.npy", "<f4", f"({rows}, {DIM})")
        os.truncate(f"{folder}/{name}/weights.npy", begin + rows * DIM * 4)


def spec(path, of_tables, ranks):
    """What the trainer wrote, with what it does not know."""
    it = json.load(open(path))
    laws = {name: zipf for name, _, _, zipf in of_tables}
    for table in it["tables"]:
        table["zipf"] = laws[table["name"]]
    it.update(hardware="machine.yaml", ranks_per_node=ranks)
    json.dump(it, open(path, "w"), indent=1)


def show(folder, of_tables, repeats, runs, hotrow):
    rows = sum(table[1] for table in of_tables)
    lookups = sum(table[2] + 1 for table in of_tables)
    load = lambda name: json.load(open(f"{folder}/{name}.json"))
    reports = {run: [load(f"{run}.{r}.report") for r in range(1, repeats + 1)] for run in runs}
    any_report = next(iter(reports.values()))[0]
    print(f"\n{rows:,} rows of {ROW_BYTES} bytes, {rows * ROW_BYTES / 1e9:.2f} GB; {lookups} lookups a sample, {any_report['model']}, "
          f"{any_report['samples']:,} samples in {any_report['steps']} steps; medians of {repeats}")
    raws = [load(name[:-5])["rows_per_second"] for name in os.listdir(folder) if name.endswith(".raw.json")]
    disk = statistics.median(raws) if raws else math.nan
    if raws:
        print(f"random 4 KiB reads {disk:,.0f} /s ({min(raws):,.0f}-{max(raws):,.0f}); a run that reads N times a sample cannot be "
              "faster than that divided by N")
    median = lambda run, field: statistics.median(field(report) for report in reports[run])
    tier = lambda report, name: next((t for t in report["tiers"] if t["name"] == name), {})
    ios = lambda report: (tier(report, "ssd").get("ios") or 0) / report["samples"]
    memory = median("memory", lambda r: r["samples_per_second"]) if "memory" in runs else math.nan
    print("\n| run | samples/s | of memory | of min(memory, disk) | distinct keys/step | hit rate of them | IOs/sample | written "
          "bytes/sample | CPU us/sample | peak RSS MB | samples/s planned | difference | else out of tolerance |")
    print("| --- |" + " ---: |" * 11 + " --- |")
    bad = False
    text = lambda value, form: "" if math.isnan(value) else format(value, form)
    for run in runs:
        rate = median(run, lambda r: r["samples_per_second"])
        reads = median(run, ios)
        limit = min(memory, disk / reads) if reads > 0 and raws else memory
        hits = median(run, lambda r: tier(r, "cache").get("unique_hit_rate", 1))
        cells = [f"{rate:,.1f}", text(rate / memory, ".2f"), text(rate / limit, ".2f"),
                 f"{median(run, lambda r: r['unique_keys_per_step']):,.0f}", f"{100 * hits:.1f} %", f"{reads:.2f}",
                 f"{median(run, lambda r: (tier(r, 'ssd').get('bytes_written') or 0) / r['samples']):,.0f}",
                 f"{median(run, lambda r: 1e6 * r['cpu_seconds'] / r['samples']):,.0f}",
                 f"{median(run, lambda r: r['peak_rss_bytes'] / 1e6):,.0f}"]
        if run.startswith("filled"):
            cells += ["", "", ""]
        else:
            checks = [load(f"{run}.{r}.check")["items"] for r in range(1, repeats + 1)]
            speeds = [next(i for i in items if i["name"] == "samples_per_second") for items in checks]
            difference = statistics.median(speed["difference"] for speed in speeds)
            bad = bad or (speeds[0]["verdict"] is not None and abs(difference) > 20)
            over = {i["name"]: i["difference"] for items in checks for i in items
                    if i["verdict"] == "over" and i["name"] != "samples_per_second"}
            cells += [f"{statistics.median(speed['predicted'] for speed in speeds):,.1f}", f"{difference:+.1f} %",
                      ", ".join(f"{name} {off:+.1f}" for name, off in over.items())]
        print(f"| {run} | " + " | ".join(cells) + " |")

    print("\nAll 600 GB, planned:\n\n| machine | store | cache | its hit rate of distinct keys | host memory | SSD | samples/s | longest |")
    print("| --- | --- |" + " ---: |" * 5 + " --- |")
    for machine in ("", "--hardware=b200", "--hardware=cpu"):
        plan = subprocess.run([hotrow, "plan", EXAMPLE, "--json"] + ([machine] if machine else []), stdout=subprocess.PIPE, text=True)
        it = json.loads(plan.stdout)
        giga = lambda name: f"{it[name] / 1e9:,.0f} GB"
        print(f"| {it['hardware']}{'' if it['fits'] else ', does not fit'} | {it['store']} | {giga('cache_bytes')} | "
              f"{100 * it['unique_hit_rate']:.1f} % | {giga('dram_bytes')} | {giga('ssd_bytes')} | {it['samples_per_second']:,.1f} | "
              f"{it['bottleneck']} |")
    return 1 if bad else 0


command, *rest = sys.argv[1:]
if command == "fit":
    fit(rest[0])
    sys.exit(0)
scaled = tables(float(rest[0]), float(rest[1]))
if command == "rows":
    print(sum(table[1] for table in scaled))
elif command == "history":
    print(",".join(f"{name}_history:{name}" for name, _, events, _ in scaled if events))
elif command == "data":
    data(rest[2], scaled, int(rest[3]))
elif command == "fill":
    fill(rest[2], scaled)
    print(",".join(f"{name}:{rest[2]}/{name}" for name, _, _, _ in scaled))
elif command == "spec":
    spec(rest[2], scaled, int(rest[3]))
elif command == "show":
    sys.exit(show(rest[2], scaled, int(rest[3]), rest[4].split(), rest[5]))
PYTHON

[[ ${1:-} != --fit ]] || { [[ $# -eq 2 ]] || usage; python3 "$work/dlrmv4.py" fit "$2"; exit; }
[[ $# -ge 1 && $1 != -* ]] || usage
dir=$1; shift
rows_share=0.0333 length_share=0.0625 model=din batch=64 steps=300 repeats=1 profile="" build=build out=""
runs="memory ssd-10 ssd-3 ranks2 filled-10 filled-3"
while [[ $# -gt 0 ]]; do
  case $1 in
    -f) rows_share=$2; shift 2 ;;
    -l) length_share=$2; shift 2 ;;
    -m) model=$2; shift 2 ;;
    -n) batch=$2; shift 2 ;;
    -s) steps=$2; shift 2 ;;
    -r) repeats=$2; shift 2 ;;
    -k) runs=$2; shift 2 ;;
    -c) profile=$2; shift 2 ;;
    -b) build=$2; shift 2 ;;
    -o) out=$2; shift 2 ;;
    --) shift; break ;;
    *) usage ;;
  esac
done
for run in $runs; do
  [[ $run =~ ^(memory|ranks2|(ssd|filled)-[1-9][0-9]?)$ ]] || fail "-k: there is no run $run; there are memory, ssd-N, ranks2 and filled-N"
done
case $model in
  din) layers=(--attention_layer_sizes=16) ;;
  hstu | bst) layers=(--num_blocks=3 --num_heads=4) ;;
  *) fail "-m $model: takes din, hstu or bst" ;;
esac
hotrow=$build/bin/hotrow trainer=$build/bin/$model raw=$build/bin/store_bench
for binary in "$hotrow" "$trainer" "$raw"; do [[ -x $binary ]] || fail "$binary: no such program; build it, or give -b"; done
[[ -z $profile || -r $profile ]] || fail "$profile: cannot be read"
mkdir -p "$dir"
dir=$(readlink -f "$dir")
trap 'rm -rf "$work" "$dir"/dlrmv4.*' EXIT
helper=$work/dlrmv4.py
if [[ -n $out ]]; then mkdir -p "$out"; else out=$work/out; mkdir "$out"; fi
rm -f "$out"/*.{raw,report,spec,check}.json
of() { python3 "$helper" "$1" "$rows_share" "$length_share" "${@:2}"; }

cores=$(nproc)
if [[ -n $profile ]]; then
  cp "$profile" "$out/machine.yaml"
else
  echo "calibrating" >&2
  "$hotrow" calibrate --path="$dir" --threads="$cores" --output="$out/machine.yaml" >"$out/calibrate.txt"
fi
echo "drawing $((batch * steps)) samples" >&2
rm -rf "$dir"/dlrmv4.*
of data "$dir/dlrmv4.text" $((batch * steps))
"$hotrow" pack "table:$dir/dlrmv4.text/schema.json" "$dir/dlrmv4.packed" >/dev/null
rm -r "$dir/dlrmv4.text"
all_rows=$(of rows)
init=""
[[ $runs != *filled* ]] || init=$(of fill "$dir/dlrmv4.init")

readonly row_bytes=2064 record_bytes=2104
one() { # run repeat flags of the trainer
  local run=$1 name=$1.$2 ranks=1 percent=${1#*-} launcher=() flags=() status=0
  shift 2
  case $run in
    memory) flags=(--store=memory) ;;
    ranks2) ranks=2 percent=10 launcher=(mpirun -n 2 --oversubscribe --bind-to none) ;;
    filled-*) flags=(--init_rows="$init" --digest=false) ;;
  esac
  [[ $ranks -eq 1 || $(id -u) -ne 0 ]] || launcher+=(--allow-run-as-root)
  if [[ $run != memory ]]; then
    # Room for an index of 12 bytes a row, and for a log that is two thirds full once all rows are in it.
    flags+=(--store=ssd --store_path="$dir/dlrmv4.rows" --cache_bytes=$((all_rows * row_bytes * percent / 100 / ranks))
      --store_bytes=$((all_rows * 12 / ranks + (64 << 20))) --disk_bytes=$((all_rows * record_bytes * 3 / 2 / ranks + (512 << 20))))
  fi
  rm -rf "$dir/dlrmv4.rows"
  local threads=$((cores / ranks > 0 ? cores / ranks : 1))
  # The published optimizers; a rate with which the losses of all three models fall.
  env OMP_NUM_THREADS=$threads "${launcher[@]}" "$trainer" --data="packed:$dir/dlrmv4.packed" --shuffle_bytes=0 \
    --history="$(of history)" --embedding_dim=512 "${layers[@]}" --over_arch_layer_sizes=128-1 --batch_size="$batch" \
    --optimizer=rowwise_adagrad --dense_optimizer=adam --learning_rate=0.001 --dense_learning_rate=0.0001 --prefetch_depth=2 \
    --threads=$threads "${flags[@]}" "$@" --save_spec="$out/$name.spec.json" --report="$out/$name.report.json" \
    >"$out/$name.log" 2>&1 </dev/null || fail "$name: $(tail -1 "$out/$name.log")"
  rm -rf "$dir/dlrmv4.rows"
  [[ $run != filled-* ]] || return 0
  of spec "$out/$name.spec.json" $ranks
  "$hotrow" plan "$out/$name.spec.json" --check="$out/$name.report.json" --json >"$out/$name.check.json" 2>"$out/$name.err" || status=$?
  [[ -s $out/$name.check.json ]] || fail "$name: $(tail -1 "$out/$name.err") (status $status)"
}
ask_disk() { # repeat before|after; what a disk gives wanders from minute to minute
  local rows=$((all_rows < 1000000 ? all_rows : 1000000))
  "$raw" --store=raw --path="$dir/dlrmv4.raw" --rows="$rows" --row_bytes=512 --batch=$((rows / 64 + 1)) --batches=20 \
    --report="$out/$1.$2.raw.json" >/dev/null
}

for ((r = 1; r <= repeats; ++r)); do
  ask_disk "$r" before
  for run in $runs; do
    echo "repeat $r of $repeats: $run" >&2
    one "$run" "$r" "$@"
  done
  ask_disk "$r" after
done
of show "$out" "$repeats" "$runs" "$hotrow"
