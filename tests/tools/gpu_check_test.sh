#!/usr/bin/env bash
# A stage of tools/gpu_check.sh on the emulated GPU, at toy sizes: every line of it runs, and all holds. With `failure` as
# the stage, one test binary fails, and the table and the exit status must say so.
#   gpu_check_test.sh SOURCE_DIR BUILD_DIR smoke|bench|train|failure
set -euo pipefail
source_dir=$1 build=$2 stage=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$source_dir/tests/tools/gpu_stand_ins:$PATH PYTHONDONTWRITEBYTECODE=1
fail() { printf 'gpu_check_test: %s\n' "$*" >&2; exit 1; }
check() { "$source_dir/tools/gpu_check.sh" "$@" --toy --out="$work/out" >"$work/table" 2>&1; }

if [[ $stage == failure ]]; then
  # A bundle whose only test fails the first time, as a wrong kernel would make it.
  mkdir -p "$work/build/bin/tests"
  ln -s "$build/bin/gpu_bench" "$build/bin/dlrm" "$work/build/bin/"
  echo wrong_test >"$work/build/bin/gpu_tests.txt"
  cat >"$work/build/bin/tests/wrong_test" <<'TEST'
#!/bin/sh
case "$*" in
  *--gtest_list_tests*) printf 'Suite.\n  Right\n  Wrong\n'; exit 0 ;;
esac
echo '[       OK ] Suite.Right (1 ms)'
echo 'file.cc:1: Failure'
echo '[  FAILED  ] Suite.Wrong (1 ms)'
exit 1
TEST
  chmod +x "$work/build/bin/tests/wrong_test"
  status=0
  check smoke --only=tests --bundle="$work/build" || status=$?
  cat "$work/table"
  [[ $status -eq 1 ]] || fail "exit status $status and not 1, though a test failed"
  grep -q '^NO tests: wrong_test .*1 of 2 tests passed' "$work/table" || fail "the table does not show the failure"
  python3 - "$work/out/result.json" <<'PY' || fail "result.json does not have the failure"
import json, sys
result = json.load(open(sys.argv[1]))
wrong = [row for row in result["rows"] if row["held"] is False]
assert [row["check"] for row in wrong] == ["tests: wrong_test"], wrong
PY
  exit 0
fi

status=0
check "$stage" --bundle="$build" || status=$?
cat "$work/table"
[[ $status -eq 0 ]] || { tail -n 60 "$work/out/log"; fail "exit status $status"; }
[[ $(wc -l <"$work/table") -le 41 ]] || fail "the table has more than 40 lines"
case $stage in
  smoke) wanted=("device" "copy: " "gemm: " "tests: cache_cuda_test" "races: cache_cuda_test" "memcheck: ops_cuda_test" "racecheck: ops_cuda_test"
                 "dlrm: over an SSD") ;;
  bench) wanted=("find: find " "insert: " "load: " "dense: " "step: " "tiers: " "update: " "peer") ;;
  train) wanted=("dlrm, batch" "model deepfm, bf16" "model mmoe, fp32" "profile DotFp32Kernel" "profile PlaceMissesKernel") ;;
esac
for check in "${wanted[@]}"; do
  grep -q "\"check\": \"$check" "$work/out/result.json" || fail "result.json has no $check"
done
[[ -s $work/out/details.tar.gz && -s $work/out/log ]] || fail "the log or the details are not there"
