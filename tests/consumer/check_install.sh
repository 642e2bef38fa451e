#!/usr/bin/env bash
# Installs a finished build into a scratch folder and uses it as an outside project would: through find_package, through
# find_package again after the installed tree has moved, and through pkg-config.
#   check_install.sh BUILD_DIR SCRATCH_DIR CMAKE GENERATOR CXX [CXX_FLAG ...]
# SCRATCH_DIR is emptied first. CXX_FLAGs are those that objects must share to be linked (sanitizers).
set -euo pipefail
source_dir=$(dirname "$(readlink -f "$0")")
project_dir=$(dirname "$(dirname "$source_dir")")
build=$1 scratch=$2 cmake=$3 generator=$4 cxx=$5
shift 5
cxx_flags=("$@")

fail() { printf 'check_install.sh: %s\n' "$*" >&2; exit 1; }
step() { printf '== %s (%s s)\n' "$*" "$SECONDS"; }
quietly() {
  "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; fail "failed: $*"; }
}

rm -rf "$scratch"
mkdir -p "$scratch"

step "install"
first=$scratch/first
quietly "$cmake" --install "$build" --prefix "$first"
libdir=$(dirname "$(dirname "$(cd "$first" && find . -name hotrow.pc)")")
libdir=${libdir#./}
[[ -n $libdir && -f $first/$libdir/cmake/hotrow/hotrowConfig.cmake ]] || fail "no hotrow.pc and hotrowConfig.cmake"
private=$(find "$first/include" -name '*_impl.*')
[[ -z $private ]] || fail "private headers were installed: $private"
# A surface that can be read in an evening.
headers=$(find "$first/include" -name '*.h' | wc -l)
lines=$(find "$first/include" -name '*.h' -exec cat {} + | wc -l)
[[ $headers -le 60 && $lines -le 5000 ]] ||
  fail "$headers headers with $lines lines were installed, at most 60 with 5000: what do users need of what came last?"
"$first/bin/dlrm" --help >"$scratch/help" || fail "the installed dlrm --help failed"
grep -q -- --cache_bytes "$scratch/help" || fail "the installed dlrm --help does not name --cache_bytes"
for text in "$build" "$project_dir" "$first" Werror; do
  if grep -rnF -- "$text" "$first/$libdir/cmake" "$first/$libdir/pkgconfig"; then
    fail "the lines above hold '$text': the installed tree would only serve on this machine"
  fi
done

# consumer PREFIX NAME [CMAKE_ARGUMENT ...]: configures, builds and runs the project beside this script.
consumer() {
  local prefix=$1 dir=$scratch/$2
  shift 2
  quietly "$cmake" -S "$source_dir" -B "$dir" -G "$generator" "-DCMAKE_PREFIX_PATH=$prefix" \
    "-DCMAKE_CXX_COMPILER=$cxx" "-DCMAKE_CXX_FLAGS=${cxx_flags[*]-}" -DCMAKE_BUILD_TYPE= "$@"
  grep -q "^hotrow_DIR:PATH=$prefix/$libdir/cmake/hotrow$" "$dir/CMakeCache.txt" ||
    fail "find_package took another hotrow: $(grep ^hotrow_DIR "$dir/CMakeCache.txt")"
  quietly "$cmake" --build "$dir"
  "$dir/two_tables" || fail "$dir/two_tables failed"
}

step "find_package, hotrow::embedding and hotrow::ops"
consumer "$first" build_first

step "find_package after the tree has moved, hotrow::hotrow"
second=$scratch/second
mv "$first" "$second"
consumer "$second" build_second -DCONSUMER_LINKS=hotrow::hotrow

step "find_package of a component that does not exist"
sed 's/COMPONENTS embedding ops/COMPONENTS no_such_part/' "$source_dir/CMakeLists.txt" >"$scratch/CMakeLists.txt"
if "$cmake" -S "$scratch" -B "$scratch/build_part" -G "$generator" "-DCMAKE_PREFIX_PATH=$second" \
    "-DCMAKE_CXX_COMPILER=$cxx" >"$scratch/log" 2>&1 || ! grep -q no_such_part "$scratch/log"; then
  cat "$scratch/log" >&2
  fail "a missing component was not refused by its name"
fi

step "pkg-config"
export PKG_CONFIG_PATH=$second/$libdir/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
flags=$(pkg-config --cflags --static --libs hotrow) || fail "pkg-config does not find what hotrow.pc requires"
# The flags are words to split.
# shellcheck disable=SC2086
quietly "$cxx" -std=c++20 -O0 "${cxx_flags[@]}" "$source_dir/main.cc" -o "$scratch/two_tables" $flags
"$scratch/two_tables" || fail "the program built with pkg-config failed"

# One file with every public header, and every object of every archive: no header includes what was not installed, no
# archive needs a library that hotrow.pc does not name.
step "all headers, all objects"
(cd "$second/include/hotrow" && find . -name '*.h' | LC_ALL=C sort | sed 's|^\./\(.*\)$|#include "\1"|') >"$scratch/all.cc"
echo 'int main() {}' >>"$scratch/all.cc"
# shellcheck disable=SC2086
quietly "$cxx" -std=c++20 -O0 "${cxx_flags[@]}" "$scratch/all.cc" -o "$scratch/all" \
  -Wl,--whole-archive "$second/$libdir"/libhotrow_*.a -Wl,--no-whole-archive $flags
"$scratch/all" || fail "the program made of all objects failed"
for archive in "$second/$libdir"/libhotrow_*.a; do
  name=$(basename "$archive" .a)
  [[ " $flags " == *" -l${name#lib} "* ]] || fail "hotrow.pc does not name $name"
done
step "done"
