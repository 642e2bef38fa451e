#!/usr/bin/env bash
# Prose has at most 100 columns: every line of every page, but for code blocks and rows of tables.
#   tests/check_prose.sh ROOT
set -euo pipefail
cd "$1"
export LC_ALL=C.UTF-8  # columns are characters

long=0
pages=0
while IFS= read -r page; do
  pages=$((pages + 1))
  while IFS=: read -r line text; do
    echo "$page:$line: $((${#text})) columns, at most 100: ${text:0:60}..."
    long=$((long + 1))
  done < <(sed '/^ *```/,/^ *```/s/.*//; s/^|.*//' "$page" | grep -nE '^.{101,}' || true)
done < <(find . -name '*.md' -not -path './build*' -not -path './.*' | sort)

if [[ $pages -eq 0 ]]; then
  echo "check_prose.sh: found no pages below $1; is that the project's root?"
  exit 1
fi
echo "$pages pages checked, $long lines too long"
[[ $long -eq 0 ]]
