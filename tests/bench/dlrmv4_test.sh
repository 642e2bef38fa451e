#!/usr/bin/env bash
# bench/dlrmv4.sh at a size that takes a moment: it runs through, what its plans say of rows holds, and a trace's law is found.
#   dlrmv4_test.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
source_dir=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'dlrmv4_test: %s\n' "$*" >&2; exit 1; }

# No machine was measured here: the samples/s of a plan are those of a data sheet, and the status is 1 where they are not near.
cat >"$work/machine.yaml" <<'YAML'
format: hotrow hardware 1
ssd_bytes: 1e11
ssd_read_ios_per_second: 1e5
ssd_read_bytes_per_second: 1e9
ssd_write_bytes_per_second: 1e9
YAML
"$source_dir/bench/dlrmv4.sh" "$work/disk" -f 0.0002 -l 0.004 -n 8 -s 30 -k "memory ssd-3" -b "$build" -c "$work/machine.yaml" \
  >"$work/table" 2>"$work/log" || [[ $? -eq 1 && -s $work/table ]] || fail "$(tail -3 "$work/log")"
cat "$work/table"
grep -q '^58,611 rows of 2064 bytes, 0.12 GB; 44 lookups a sample, din, 240 samples in 30 steps' "$work/table" || fail "another size"
# The last column: what a plan was wrong in.
grep -q '^| memory |.* % |  |$' "$work/table" || fail "the plan of the run in memory is out of its tolerances"
grep -q '^| ssd-3 ' "$work/table" || fail "no run out of an SSD"
grep -q '^| h200 | ssd | 60 GB |' "$work/table" || fail "no plan of the whole"
[[ -z $(ls "$work/disk") ]] || fail "left behind: $(ls "$work/disk")"

! "$source_dir/bench/dlrmv4.sh" "$work/disk" -k "memory tape" -b "$build" 2>"$work/log" || fail "a run that is not there was taken"
grep -q 'there is no run tape' "$work/log" || fail "$(cat "$work/log")"

python3 - "$work/trace" <<'PYTHON'
import array, random, sys
ids = array.array("q", random.Random(1).choices(range(200), [rank**-0.8 for rank in range(1, 201)], k=50_000))
ids.byteswap()
ids.tofile(open(sys.argv[1], "wb"))
PYTHON
"$source_dir/bench/dlrmv4.sh" --fit "$work/trace" | tee "$work/law"
grep -qE '^50,000 accesses to 200 ids: exponent 0\.(79|80|81)' "$work/law" || fail "another law"
