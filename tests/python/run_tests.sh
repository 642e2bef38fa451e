#!/usr/bin/env bash
# Tests the Python package in a fresh virtual environment: a wheel as its users install it, or a
# build laid out in the same way.
#   tests/python/run_tests.sh --wheel WHEEL FOLDER PYTHON [TEST ...]
#   tests/python/run_tests.sh --build LIBRARY PROGRAM FOLDER PYTHON [TEST ...]
#   tests/python/run_tests.sh --gpu WHEEL FOLDER PYTHON [TEST ...]
#   tests/python/run_tests.sh --emulated LIBRARY SANITIZER PYTHON [TEST ...]
# --gpu: a wheel beside the numpy and torch of PYTHON; all tables of torch's tests are on the GPU.
# --emulated: the same on an emulated GPU, which the library has; and the sanitizer's library, which
# the interpreter loads first.
# TEST: as `python -m unittest` takes them. Exit status 77: skipped, the reason is in the output.
# Environment: HOTROW_TEST_PYTHON is another interpreter than PYTHON for a build, whose packages the
# tests see; with torch there the tests of hotrow.torch run, and with HOTROW_PYTHON_TORCH=1 they
# fail where it is missing. A build's tests install nothing.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
mode=$1
case $mode in
  --wheel | --gpu) wheel=$2 folder=$3 python=$4; shift 4 ;;
  --build) library=$2 program=$3 folder=$4 python=${HOTROW_TEST_PYTHON:-$5}; shift 5 ;;
  --emulated) library=$2 sanitizer=$3 python=${HOTROW_TEST_PYTHON:-$4}; shift 4 ;;
  *) echo "run_tests.sh: $mode: --wheel, --build, --gpu or --emulated"; exit 2 ;;
esac

skip() { echo "skipped: $*"; exit 77; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || skip "needs Python 3.10 or newer"

on_gpu=(test_device)
if [[ ${HOTROW_PYTHON_TORCH-} == 1 || $mode == --gpu ]] || "$python" -c 'import torch' 2>/dev/null; then
  on_gpu+=(test_bench test_torch test_torch_checkpoints test_torch_ranks test_pages.TorchPagesTest)
fi
if [[ $mode == --gpu ]]; then  # needs neither venv nor pip, nor a network
  rm -rf "$folder"
  mkdir -p "$folder"
  folder=$(readlink -f "$folder")
  "$python" -m zipfile -e "$wheel" "$folder"
  chmod +x "$folder/hotrow/bin/hotrow"
  cd "$source/tests/python"
  exec env PYTHONPATH="$folder" PYTHONDONTWRITEBYTECODE=1 HOTROW_TEST_DEVICE=cuda \
    HOTROW_PYTHON_TORCH=1 "$python" -m unittest "${@:-${on_gpu[@]}}"
fi
if [[ $mode == --emulated ]]; then
  "$python" -c 'import numpy' 2>/dev/null || skip "numpy is not installed (python3-numpy)"
  cd "$source/tests/python"
  # The interpreter leaks at its end, and its memory is not the sanitizer's, which wants to see the
  # library that throws from the beginning.
  throws=$(ldd "$library" | awk '/libstdc\+\+/ { print $3 }')
  exec env PYTHONPATH="$source/python" PYTHONDONTWRITEBYTECODE=1 HOTROW_LIBRARY="$library" \
    HOTROW_EMULATED_GPU=1 HOTROW_EMULATED_GPU_ANY_MEMORY=1 HOTROW_EMULATED_GPU_DEVICES=4 \
    HOTROW_TEST_DEVICE=cuda ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$sanitizer $throws" \
    "$python" -m unittest "${@:-${on_gpu[@]}}"
fi

"$python" -c 'import venv' 2>/dev/null || skip "venv is not installed (python3-venv)"
rm -rf "$folder"
mkdir -p "$folder"
if [[ $mode == --wheel ]]; then
  "$python" -m venv "$folder/venv"
  "$folder/venv/bin/pip" install -q --disable-pip-version-check "$wheel"
  "$folder/venv/bin/python" "$source/tests/python/check_wheel.py" "$wheel"
else
  # The system's packages belong to the system's interpreter, which need not be the first in PATH.
  if ! "$python" -c 'import numpy' 2>/dev/null; then
    [[ ! -x /usr/bin/python3 ]] || python=/usr/bin/python3
    "$python" -c 'import numpy' 2>/dev/null || skip "numpy is not installed (python3-numpy)"
  fi
  "$python" -m venv --system-site-packages --without-pip "$folder/venv"
  site=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # Packages of $python, also where it is that of a virtual environment itself.
  for kind in purelib platlib; do
    "$python" -c "import sysconfig; print(sysconfig.get_path('$kind'))"
  done > "$site/outer.pth"
  cp -r "$source/python/hotrow" "$site/"
  mkdir -p "$site/hotrow/lib" "$site/hotrow/bin"
  cp -L "$library" "$site/hotrow/lib/libhotrow.so.1"
  ln -s "$program" "$site/hotrow/bin/hotrow"
fi
cd "$source/tests/python"
env -u PYTHONPATH -u HOTROW_LIBRARY -u HOTROW_PROGRAM PYTHONDONTWRITEBYTECODE=1 \
  "$folder/venv/bin/python" -W error::ResourceWarning -m unittest "$@"
