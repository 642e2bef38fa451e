#!/usr/bin/env bash
# Tests the Python package in a virtual environment of its own, laid out as a wheel lays it out.
#   tests/python/run_tests.sh SOURCE_DIR LIBRARY FOLDER PYTHON
# Exit status 77: skipped, the reason is in the output.
set -euo pipefail
source=$1 library=$2 folder=$3 python=$4

skip() { echo "skipped: $*"; exit 77; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || skip "needs Python 3.10 or newer"
"$python" -c 'import numpy' 2>/dev/null || skip "numpy is not installed (python3-numpy)"
"$python" -c 'import venv' 2>/dev/null || skip "venv is not installed (python3-venv)"

rm -rf "$folder"
mkdir -p "$folder"
"$python" -m venv --system-site-packages --without-pip "$folder/venv"
site=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -r "$source/python/hotrow" "$site/"
mkdir -p "$site/hotrow/lib"
cp -L "$library" "$site/hotrow/lib/libhotrow.so.1"
cd "$source/tests/python"
env -u PYTHONPATH -u HOTROW_LIBRARY PYTHONDONTWRITEBYTECODE=1 \
  "$folder/venv/bin/python" -W error::ResourceWarning -m unittest "${@:5}"
