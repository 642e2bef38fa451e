#!/usr/bin/env bash
# libhotrow.so exports what its header declares, with the version of the interface, and nothing else.
#   tests/capi/check_symbols.sh LIBRARY HEADER
set -euo pipefail
export LC_ALL=C

exported=$(nm -D --defined-only --with-symbol-versions "$1" | awk '$2 != "A" { print $3 }' | sort)
declared=$(sed 's://.*::' "$2" | tr '\n' ' ' | grep -oE 'hotrow_[a-z_]+\(' | tr -d '(' | sort -u |
           sed 's/$/@@HOTROW_1/')
if [[ -z $declared ]]; then
  echo "found no function in $2"
  exit 1
fi
if ! diff <(echo "$declared") <(echo "$exported"); then
  echo "< declared in $2, > exported by $1"
  exit 1
fi
echo "$(wc -l <<<"$exported") symbols"
