#!/usr/bin/env bash
# Runs every ```sh block of docs/first_hour.md, one after the other, as a reader would, and looks at
# what comes out. (tests/python/test_pages.py runs its Python.)
#   tests/readme/first_hour_test.sh SOURCE_FOLDER BUILD_FOLDER
set -euo pipefail
source_folder=$1
build_folder=$2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# The folder of a clone, without what the page must not write to.
cd "$scratch"
ln -s "$build_folder" build
ln -s "$source_folder/tests" tests
# As root in a container, on fewer cores than ranks, and beside other tests.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1

awk '/^```sh$/ { inside = 1; ++blocks; next }
     /^```$/ { inside = 0 }
     inside { print > sprintf("block%02d.sh", blocks) }' "$source_folder/docs/first_hour.md"
# Another port for each run; without curl, or a server in the build, there is nothing to ask.
sed -i "s/8123/$((20000 + RANDOM % 12000))/g" block*.sh
can_serve=1
command -v curl >/dev/null && ! build/bin/hotrow serve no_model 2>&1 | grep -q httplib || can_serve=0
count=0
for block in block*.sh; do
  if grep -q '^mpirun' "$block" && ! command -v mpirun >/dev/null; then
    echo "left out, there is no mpirun: $block"
    continue
  fi
  if grep -q '^curl' "$block" && [[ $can_serve -eq 0 ]]; then
    echo "left out, there is no curl or no HTTP server: $block"
    continue
  fi
  if ! bash -euo pipefail "$block" >"$block.log" 2>&1 </dev/null; then
    echo "docs/first_hour.md: this block fails:"
    cat "$block"
    echo "--- with"
    cat "$block.log"
    tail -n 20 hour/*.log 2>/dev/null || true
    exit 1
  fi
  count=$((count + 1))
done
echo "$count blocks run"
[[ $count -ge 9 ]] || exit 1
# Every model learns; the AUC that the page names is that of eight epochs.
grep -h 'test AUC' block*.log | tee aucs
awk '$3 < 0.72 { bad = 1 } END { exit bad || NR < 4 }' aucs || {
  echo "docs/first_hour.md: a model of the page does not learn its clicks"
  exit 1
}
# An installed tree says what it is made from.
[[ ! -e build/bin/hotrow ]] || ! command -v python3 >/dev/null ||
  grep -q SPDXRef-hotrow hour/hotrow/share/doc/hotrow/sbom.spdx.json
# A plan that is far from the run says why.
grep -q 'times from data sheets' block*.log && grep -q 'several times as long' block*.log || {
  echo "docs/first_hour.md: the plan does not say that its times are those of data sheets"
  exit 1
}
# A score for each line, and the server's answer.
scores=$(cat block*.log | grep -cE '^0\.[0-9]+$') || true
[[ $scores -eq 3 ]] || { echo "docs/first_hour.md: $scores scores, expected 3"; exit 1; }
[[ $can_serve -eq 0 ]] || grep -q '"outputs"' block*.log || {
  echo "docs/first_hour.md: the server gave no scores"
  exit 1
}
# The page promises that a store moves no bit, and packing none.
hash_of() { grep -m 1 '"tables_hash"' "$1"; }
[[ $(hash_of hour/report.json) == "$(hash_of hour/packed.json)" ]] || {
  echo "docs/first_hour.md: the run on packed data has other bits than the run on their text"
  exit 1
}
[[ $(hash_of hour/report.json) == "$(hash_of hour/on_disk.json)" ]] || {
  echo "docs/first_hour.md: the run on a disk has other bits than the run in memory"
  exit 1
}
