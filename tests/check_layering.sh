#!/usr/bin/env bash
# Checks who includes whom: the map of docs/ARCHITECTURE.md. Prints each include that breaks it.
#   tests/check_layering.sh ROOT
set -euo pipefail
cd "$1"

# What each folder may include, besides itself.
declare -A allowed=(
  [base]=""
  [store]="base"
  [cache]="base"
  [comm]="base"
  [ops]="base"
  [embedding]="base store cache comm ops"
  [models]="base store cache comm ops embedding"
  [tools]="base store cache comm ops embedding models"
  [capi]="base store cache comm ops embedding models"
  [bench]="base store cache comm ops embedding models tools"
  [tests]="base store cache comm ops embedding models tools capi bench"
)
folders="${!allowed[*]}"

bad=0
checked=0
# A folder that is built and not on the map would go unchecked.
for list in */CMakeLists.txt; do
  folder=${list%/*}
  if [[ " $folders " != *" $folder "* ]]; then
    echo "$folder/: is not on the map; say in tests/check_layering.sh what it may include"
    bad=$((bad + 1))
  fi
done
while IFS=: read -r file line include; do
  from=${file%%/*}
  to=${include#*\"}
  to=${to%%/*}
  if [[ $include =~ \"(\.|[^/]*\") ]]; then
    echo "$file:$line: includes start at the root of the project: ${include#*include }"
    bad=$((bad + 1))
  fi
  [[ " $folders " == *" $to "* ]] || continue
  checked=$((checked + 1))
  # A benchmark has the stream of tests that is as late as a GPU.
  if [[ $to != "$from" && " ${allowed[$from]} " != *" $to "* && $include != *tests/support/lagging_streams.h* ]]; then
    echo "$file:$line: $from/ must not include $to/"
    bad=$((bad + 1))
  fi
  # *_impl.h is private to its folder, but for the tests of that folder and for benchmarks of what is inside ops and
  # embedding.
  if [[ $include == *_impl.h\"* && $to != "$from" && $file != tests/"$to"/* && $file != bench/@(gpu_bench_dense|feed_bench).cc ]]; then
    echo "$file:$line: ${include#*include } is private to $to/"
    bad=$((bad + 1))
  fi
  # Public headers are installed, private ones are not.
  if [[ $include == *_impl.h\"* && $file == *.@(h|cuh) && $file != *_impl.* && $file != tests/* ]]; then
    echo "$file:$line: a public header must not include the private ${include#*include }"
    bad=$((bad + 1))
  fi
done < <(grep -rnE '^[ \t]*#[ \t]*include[ \t]*"' $(for f in $folders; do [[ -d $f ]] && echo "$f"; done) \
           --include='*.h' --include='*.cc' --include='*.cu' --include='*.cuh')

if [[ $checked -eq 0 ]]; then
  echo "check_layering.sh: found no includes below $1; is that the project's root?"
  exit 1
fi
# The parts of embedding/ know each other in one direction, and these values beside them. The other files there wire the
# parts together.
declare -A parts=([serving]="" [ranks]="" [tiers]="ranks" [rows]="ranks tiers serving")
values="collection_plan_impl|device_keys_impl|kept_state|open_store_impl|options|score_sums_impl|stats|storage_fields|stored_rows|table_policies"
for part in "${!parts[@]}"; do
  [[ -d embedding/$part ]] || continue
  known=$(tr ' ' '|' <<< "$part ${parts[$part]}" | sed 's/|$//')
  if grep -rn '#include "embedding/' "embedding/$part" | grep -vE "\"embedding/(($known)/|($values)\.h\")"; then
    echo "the includes above are not for embedding/$part/; hand it what it needs, or a value"
    bad=$((bad + 1))
  fi
done
# What reads, keeps and serves a model knows no trainer.
if grep -rn '#include "models/\(train\|programs\)/' models/{data,delta,json,onnx,saving,serving,zoo}; then
  echo "the includes above are of the trainer; move the value that is needed down to models/saving"
  bad=$((bad + 1))
fi
# CUDA's own header is named in base/cuda_*.h alone: any other .h must compile with a plain C++ compiler. What stands
# for CUDA's headers on the emulated GPU does.
if grep -rnE '#include <(cuda|cub|nccl|nvtx3)' --include='*.h' . --exclude-dir='build*' | grep -vE '^\./base/cuda_|^\./tests/emulated_gpu/include/|^\./\.'; then
  echo "the headers above include CUDA; only base/cuda_*.h may"
  bad=$((bad + 1))
fi
# A library names its options: only those who have flags speak of them (FlagOfOption).
if grep -rnE '"[^"]*--[a-z_]+[^"]*"' --include='*.cc' --include='*.cu' store cache comm ops embedding base | grep -vE '^base/flag_set\.cc:|^[^:]*:[0-9]+: *//'; then
  echo "the texts above name flags; name the option"
  bad=$((bad + 1))
fi
# What renames over a file of the user goes through base/atomic_file.h, so that a device stays one and a link a link.
# The others rename directories and files that hotrow alone names.
if grep -rnE '(\.|->|::)(Rename|rename)\(' --include='*.h' --include='*.cc' --include='*.cu' base store cache comm ops embedding models tools capi bench |
  grep -vE '^(base/(atomic_file|posix_env)|models/(saving/(checkpoint_dir|partial_dir|portable_tables_writer)|delta/compact_chain)|store/(rocks/rocks_snapshots|host/host_snapshot_dir))\.cc:'; then
  echo "the renames above may replace a device or a link; use WriteFileAtomically (base/atomic_file.h)"
  bad=$((bad + 1))
fi
# Programs end as base/run_main.h says: with an error where standard output is lost, with a line where memory is.
if grep -rlE '^int main\(' --include='*.cc' models tools bench | xargs grep -LE 'RunMain\(|HOTROW_PROGRAM' | grep .; then
  echo "the programs above do not call RunMain (base/run_main.h)"
  bad=$((bad + 1))
fi
# JSON is parsed in one place, which bounds its depth.
if grep -rniE 'json::(parse|sax_parse|accept)\(' --include='*.h' --include='*.cc' store cache comm ops embedding models tools capi bench | grep -v '^models/json/json_text\.cc:'; then
  echo "the calls above parse JSON of any depth; use ParseJson (models/json/json_text.h)"
  bad=$((bad + 1))
fi
# What a request asks for is bounded before memory is taken for it: where scoring takes memory by a product of sizes the
# line names the bound.
if grep -nE '((resize|[rR]eserve)|vector<[^>]*> [a-z_]+)\(.* \* ' models/serving/*.cc embedding/serving/*.cc tools/serve/*.cc |
  grep -vE '^tools/serve/bench_| // <= '; then
  echo "the lines above take memory by a product; check it first, and name the bound behind: // <= RowsMax"
  bad=$((bad + 1))
fi
# Numbers of a caller of the C interface may be anything: a product of them names what bounds it.
if grep -nE '[]A-Za-z0-9_)] \* [A-Za-z0-9_(]' capi/*.cc capi/*.h | grep -vE '^[^:]*:[0-9]+: *//| // <= '; then
  echo "the lines above multiply; check the numbers first (CheckCount, TakeMatrix), and name the bound behind: // <= RowsMax"
  bad=$((bad + 1))
fi
# Want of room on a disk has a mark, which callers go by: base/out_of_room.h.
if grep -rnE 'ResourceExhausted[^;]*\<(disk|space)\>|(StrContains|StartsWith)\(.*message\(\).*\<(disk|room|space)\>' --include='*.cc' base store comm embedding models tools capi ||
  grep -nE 'ResourceExhaustedError\(' store/ssd/ssd_room.cc store/rocks/rocks_disk.cc; then
  echo "the lines above make or know a full disk by its text; use OutOfRoomError and IsOutOfRoom"
  bad=$((bad + 1))
fi
# A thread that throws ends the process, so who starts one catches what its work throws. The others here have work that
# throws nothing or is caught by whom it is for, or are programs of ours that end so.
if grep -rlE '\<StartThread\(' --include='*.cc' base store cache comm ops embedding models tools capi | xargs grep -L '\<Caught(' |
  grep -vE '^(base/thread(_pool)?|embedding/tiers/step_pipeline|models/programs/train_program|tools/(measure_device|serve/bench_load))\.cc$'; then
  echo "the files above start threads; run their work in Caught (base/thread.h)"
  bad=$((bad + 1))
fi
echo "$checked includes checked, $bad bad"
[[ $bad -eq 0 ]]
