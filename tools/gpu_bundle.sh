#!/usr/bin/env bash
# Packs GPU tests, gpu_bench and trainers into one folder that runs on a machine with an NVIDIA driver and the CUDA
# libraries of a Python package, and nothing else of ours. docs/gpu.md tells how to use what it makes.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: tools/gpu_bundle.sh [-a ARCHS] [-o DIR] [-b BUILD_DIR] [-j N] [-p PROGRAMS] [-m MIB] [-r] [-z]

  -a ARCHS      GPU architectures as CMake names them, joined by commas (default: 90, which is H100 and H200)
  -o DIR        the folder it makes (default: bundle); an older bundle there is replaced
  -b BUILD_DIR  where it builds (default: build-bundle)
  -j N          compilers at a time (default: all processors)
  -p PROGRAMS   further programs of the build, joined by commas: deepfm,dcn,hotrow ...
  -m MIB        the folder may not be larger (default: 60)
  -r            Release: host code without its checks (default: as the preset gpu builds, whose objects ccache has)
  -z            also DIR.tar.gz
TEXT
}
fail() { printf 'gpu_bundle: %s\n' "$*" >&2; exit 1; }

archs=90
out=bundle
build=build-bundle
jobs=$(nproc)
programs=(gpu_bench dlrm comm_bench)
max_mib=60
build_type=RelWithDebInfo
pack=0
while getopts 'a:o:b:j:p:m:rzh' option; do
  case $option in
    a) archs=${OPTARG//,/;} ;;
    o) out=$OPTARG ;;
    b) build=$OPTARG ;;
    j) jobs=$OPTARG ;;
    p) IFS=, read -ra more <<<"$OPTARG"; programs+=("${more[@]}") ;;
    m) max_mib=$OPTARG ;;
    r) build_type=Release ;;
    z) pack=1 ;;
    h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[[ $# -eq 0 ]] || { usage >&2; fail "$1: takes no arguments beside its options"; }
[[ $max_mib =~ ^[1-9][0-9]*$ ]] || fail "-m $max_mib: takes a whole number of MiB"
out=$(realpath -m "$out")
build=$(realpath -m "$build")
cd "$(dirname "$(readlink -f "$0")")/.."

for tool in cmake ninja readelf objdump strip ldd; do
  command -v "$tool" >/dev/null || fail "$tool is missing: install cmake, ninja-build, binutils and libc-bin"
done
if [[ -e $out && ! -f $out/VERSION ]]; then
  fail "-o $out: exists and is no bundle; name another folder, or remove it"
fi

# --- Build ----------------------------------------------------------------------------------------------
mkdir -p "$build"
cmake --preset bundle -B "$build" -DCMAKE_CUDA_ARCHITECTURES="$archs" -DCMAKE_BUILD_TYPE=$build_type >"$build/configure.log" 2>&1 ||
  { cat "$build/configure.log" >&2; fail "CMake failed; its messages are above"; }
# What lies here afterwards is what the target gpu_tests makes: every test with the label gpu.
rm -rf "$build/bin/tests"
cmake --build "$build" -j "$jobs" --target gpu_tests "${programs[@]}"

# --- Collect --------------------------------------------------------------------------------------------
# The C library belongs to the machine, libcuda to its driver; these come from a Python package there.
is_system() { [[ $1 =~ ^(ld-linux[-a-z0-9_]*|lib(c|m|dl|rt|pthread|resolv|util|anl|mvec|cuda))\.so(\.[0-9]+)*$ ]]; }
is_cuda_library() { [[ $1 =~ ^lib(cublas|cublasLt|nccl)\.so(\.[0-9]+)*$ ]]; }
needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

new=$out.new
rm -rf "$new"
mkdir -p "$new/bin/tests" "$new/lib"
for program in "${programs[@]}"; do
  cp "$build/bin/$program" "$new/bin/"
done
cp "$build"/bin/tests/* "$new/bin/tests/"
mapfile -t binaries < <(find "$new/bin" -type f | sort)
strip "${binaries[@]}"

# Every shared library that is left, oneDNN above all, and what those need in turn. The C++ runtime is one of them: oneDNN
# and NCCL need it as a shared library, and one process should have one.
carry() {  # carry FILE: copies what the loader would take for it
  local line name path
  while read -r line; do
    name=${line%% *}
    if [[ $name == /* || $name == linux-vdso* ]] || is_system "$name" || is_cuda_library "$name"; then continue; fi
    path=$(sed -n 's/^[^ ]* => \(\/[^ ]*\) .*/\1/p' <<<"$line")
    [[ -n $path ]] || fail "$(basename "$1") needs $name, which this machine does not have"
    if [[ ! -e $new/lib/$name ]]; then
      cp -L "$path" "$new/lib/$name"
      strip --strip-unneeded "$new/lib/$name"
    fi
  done < <(ldd "$1" | sed 's/^[[:space:]]*//')
}
for file in "${binaries[@]}"; do carry "$file"; done

# Which of the libraries of the Python package each program wants, for ./run.
for file in "${binaries[@]}"; do
  wanted=()
  # cublasLt is not linked but loaded by name, see ops/cublaslt.cc.
  for name in $(needed "$file") $(grep -aoE 'libcublasLt\.so\.[0-9]+' "$file" | sort -u); do
    if is_cuda_library "$name"; then wanted+=("$name"); fi
  done
  printf '%s\n' "${file#"$new/bin/"} ${wanted[*]-}"
done >"$new/lib/cuda_libraries.txt"

cat >"$new/run" <<'RUN'
#!/bin/sh
# Runs a program of this folder with the CUDA libraries of this machine: ./run gpu_bench --quick
#   ./run --libraries   says where it finds them
#   HOTROW_LAUNCHER="compute-sanitizer --tool memcheck" ./run gpu_bench ...
# They are looked for in HOTROW_CUDA_LIB_DIR, LD_LIBRARY_PATH, the packages nvidia/*/lib of python3 (or HOTROW_PYTHON),
# where the loader looks, and /usr/local/cuda.
here=$(dirname "$(readlink -f "$0")")
fail() { printf 'run: %s\n' "$*" >&2; exit 1; }

for packed in "$here"/lib/*.gz; do
  library=${packed%.gz}
  if [ -e "$packed" ] && ! [ -e "$library" ]; then
    # By rename, since several may run at a time.
    gzip -dc "$packed" >"$library.$$" && mv "$library.$$" "$library" ||
      fail "could not unpack $packed beside itself: the folder must be writable when ./run is first called"
  fi
done

folders="${HOTROW_CUDA_LIB_DIR-}:${LD_LIBRARY_PATH-}"
asked_python=
found=    # folders to add, joined by colons
where=    # of the library just looked for

in_folders() {  # in_folders LIBRARY FOLDERS
  old_ifs=$IFS
  IFS=:
  set -f
  for folder in $2; do
    if [ -n "$folder" ] && [ -e "$folder/$1" ]; then
      where=$folder
      break
    fi
  done
  set +f
  IFS=$old_ifs
  [ -n "$where" ]
}
python_folders() {
  [ -n "$asked_python" ] && return
  asked_python=1
  python=$("${HOTROW_PYTHON:-python3}" -c '
import glob, os, sys
print(":".join(d for p in sys.path for d in sorted(glob.glob(os.path.join(p or ".", "nvidia", "*", "lib")))))' 2>/dev/null)
}
find_library() {  # find_library LIBRARY: sets where; empty where the loader finds it by itself
  where=
  in_folders "$1" "$folders" && return
  python_folders
  in_folders "$1" "$python" && return
  if (ldconfig -p || /sbin/ldconfig -p) 2>/dev/null | grep -q "^[[:space:]]*$1 "; then return; fi
  in_folders "$1" /usr/local/cuda/lib64:/usr/local/cuda/lib
}

if [ "${1-}" = --libraries ]; then
  status=0
  for library in $(sed 's/^[^ ]* *//' "$here/lib/cuda_libraries.txt" | tr ' ' '\n' | sort -u); do
    if find_library "$library"; then
      printf '%s  %s\n' "$library" "${where:-where the loader looks}"
    else
      printf '%s  not found\n' "$library"
      status=1
    fi
  done
  exit $status
fi
[ $# -ge 1 ] || fail "name a program: $(cd "$here/bin" && find . -type f | sed 's,^\./,,' | sort | tr '\n' ' ')"
program=${1#bin/}
shift
[ -x "$here/bin/$program" ] ||
  fail "$program is not in this bundle, which has: $(cd "$here/bin" && find . -type f | sed 's,^\./,,' | sort | tr '\n' ' ')"
for library in $(sed -n "s,^$program ,,p" "$here/lib/cuda_libraries.txt"); do
  find_library "$library" ||
    fail "$program needs $library, which is in no folder of HOTROW_CUDA_LIB_DIR, LD_LIBRARY_PATH, python3's nvidia/*/lib or /usr/local/cuda: install that package, or set HOTROW_CUDA_LIB_DIR to the folder"
  case ":$found:" in
    *":$where:"*) ;;
    *) [ -n "$where" ] && found="${found:+$found:}$where" ;;
  esac
done
if [ -n "$found" ]; then
  LD_LIBRARY_PATH="$found${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export LD_LIBRARY_PATH
fi
# A debugger or a profiler, with its arguments.
exec ${HOTROW_LAUNCHER-} "$here/bin/$program" "$@"
RUN

cat >"$new/run-gpu-tests" <<'RUN'
#!/usr/bin/env bash
# Runs the tests of this folder on the GPU, which must be there. A line for each binary and for each test that is not
# right; the full output goes into a folder.
#   ./run-gpu-tests [--sanitizer=memcheck|racecheck|initcheck|synccheck] [--filter=GTEST_FILTER] [--timeout=SECONDS]
#                   [--log=DIR] [-v] [TEST_BINARY ...]
# What failed, or did not get its turn because the process died, is run again alone: after a fault in a kernel no later
# test of the process can use the GPU. --timeout is that of a binary (default 300; 1200 under the sanitizer).
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
fail() { printf 'run-gpu-tests: %s\n' "$*" >&2; exit "${code:-1}"; }

sanitizer=
filter='*'
timeout=
log=
verbose=0
names=()
for argument in "$@"; do
  case $argument in
    --sanitizer=memcheck | --sanitizer=racecheck | --sanitizer=initcheck | --sanitizer=synccheck) sanitizer=${argument#*=} ;;
    --filter=*) filter=${argument#*=} ;;
    --timeout=*) timeout=${argument#*=} ;;
    --log=*) log=${argument#*=} ;;
    -v) verbose=1 ;;
    -*) code=2 fail "$argument: takes --sanitizer=memcheck|racecheck|initcheck|synccheck, --filter=, --timeout=, --log=, -v" ;;
    *) names+=("$argument") ;;
  esac
done
[[ -n $timeout ]] || timeout=$([[ -n $sanitizer ]] && echo 1200 || echo 300)
[[ $timeout =~ ^[1-9][0-9]*$ ]] || code=2 fail "--timeout=$timeout: takes a whole number of seconds"
if [[ ${#names[@]} -eq 0 ]]; then
  for file in "$here"/bin/tests/*; do names+=("$(basename "$file")"); done
fi
for name in "${names[@]}"; do
  [[ -x $here/bin/tests/$name ]] || code=2 fail "$name: is not in $here/bin/tests"
done
launcher=
if [[ -n $sanitizer ]]; then
  tool=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer) ||
    fail "--sanitizer=$sanitizer: compute-sanitizer is neither on PATH nor in /usr/local/cuda/bin"
  launcher="$tool --tool $sanitizer --error-exitcode 86"
  # Calls that fail are the programs' business: tests make some fail on purpose.
  [[ $sanitizer != memcheck ]] || launcher+=" --report-api-errors no"
fi
[[ -n $log ]] || log=$(mktemp -d)
mkdir -p "$log"

export HOTROW_REQUIRE_GPU=1
"$here/run" gpu_bench --only=device >"$log/device" 2>"$log/device.error" || fail "$(tail -n 1 "$log/device.error")"
cat "$log/device"

# Output of a run -> "ok NAME", "skipped NAME", "failed NAME".
verdicts() {
  sed -n -e 's/^\[       OK \] \([^ ,]*\).*(\([0-9]*\) ms)$/ok \1 \2/p' -e 's/^\[  SKIPPED \] \([^ ,]*\).* ms)$/skipped \1/p' \
    -e 's/^\[  FAILED  \] \([^ ,]*\).* ms)$/failed \1/p' "$1"
}
how_it_ended() {  # of exit status $1, with $2 seconds
  case $1 in
    86) echo "$sanitizer found errors" ;;
    124 | 137) echo "stopped after $2 s" ;;
    1) echo "exit status 1" ;;
    *) echo "died with exit status $1" ;;
  esac
}
# The first thing that went wrong, on one line.
first_error() { grep -m 1 -A 3 -E 'Failure$|^========= (ERROR|Invalid|Error|Race|Uninit)|^Check failed|CHECK' "$1" | tr -s '\n ' '  ' | cut -c 1-300; }

bad=0
for name in "${names[@]}"; do
  begin=$SECONDS
  if ! "$here/run" "tests/$name" --gtest_list_tests --gtest_filter="$filter" >"$log/$name.list" 2>"$log/$name.error"; then
    printf '%-24s FAILED: %s\n' "$name" "$(tail -n 1 "$log/$name.error")"
    bad=1
    continue
  fi
  mapfile -t all < <(awk '/^[^ ]+\.( |$)/ { suite = $1; next } /^  / { print suite $1 }' "$log/$name.list")
  if [[ ${#all[@]} -eq 0 ]]; then
    printf '%-24s no test of --filter=%s\n' "$name" "$filter"
    continue
  fi
  HOTROW_LAUNCHER=$launcher timeout -k 10 "$timeout" "$here/run" "tests/$name" --gtest_filter="$filter" --gtest_color=no \
    >"$log/$name.log" 2>&1
  status=$?
  verdicts "$log/$name.log" >"$log/$name.verdicts"
  passed=$(grep -c '^ok ' "$log/$name.verdicts")
  suspects=()
  for one in "${all[@]}"; do
    grep -q -E "^(ok|skipped) ${one//./\\.}( |$)" "$log/$name.verdicts" || suspects+=("$one")
  done
  if [[ $status -eq 0 && $passed -eq ${#all[@]} ]]; then
    printf '%-24s ok, %d tests in %d s\n' "$name" "$passed" $((SECONDS - begin))
  elif [[ $status -eq 0 && ${#suspects[@]} -eq 0 ]]; then
    printf '%-24s ok, %d tests in %d s; skipped: %s\n' "$name" "$passed" $((SECONDS - begin)) \
      "$(sed -n 's/^skipped //p' "$log/$name.verdicts" | tr '\n' ' ')"
  else
    bad=1
    printf '%-24s FAILED: %d of %d tests passed in %d s, %s; %s\n' "$name" "$passed" ${#all[@]} $((SECONDS - begin)) \
      "$(how_it_ended $status "$timeout")" "$log/$name.log"
    [[ $status -eq 86 ]] && printf '    %s\n' "$(first_error "$log/$name.log")"
    if [[ -z $sanitizer ]]; then
      for one in ${suspects[@]+"${suspects[@]}"}; do
        file=$log/$name.${one//\//_}.log
        timeout -k 10 60 "$here/run" "tests/$name" --gtest_filter="$one" --gtest_color=no >"$file" 2>&1
        alone=$?
        if [[ $alone -eq 0 ]]; then
          printf '    %s: passes alone\n' "$one"
        else
          printf '    %s: alone %s: %s\n' "$one" "$(how_it_ended $alone 60)" "$(first_error "$file")"
        fi
      done
    fi
  fi
  [[ $verbose -eq 1 ]] && sed 's/^/    /; s/ \([0-9]*\)$/ (\1 ms)/' "$log/$name.verdicts"
done
exit $bad
RUN
chmod +x "$new/run" "$new/run-gpu-tests"

# --- Check ----------------------------------------------------------------------------------------------
glibc=0
while read -r file; do
  for name in $(needed "$file"); do
    if ! is_system "$name" && ! is_cuda_library "$name" && [[ ! -e $new/lib/$name ]]; then
      fail "${file#"$new/"} needs $name, which the bundle does not have"
    fi
  done
  version=$(objdump -T "$file" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
  glibc=$(printf '%s\n' "$glibc" "${version#GLIBC_}" | sort -V | tail -n 1)
done < <(find "$new/bin" "$new/lib" -type f ! -name '*.txt')
# And that the loader, on its own, takes these and no others.
for file in "${binaries[@]}"; do
  while read -r name arrow path _; do
    if [[ $arrow != '=>' ]] || is_system "$name" || is_cuda_library "$name"; then continue; fi
    [[ $(realpath -m "$path") == "$new/lib/$name" ]] ||
      fail "${file#"$new/"} takes $name from $path instead of the bundle: is its RPATH \$ORIGIN/../lib?"
  done < <(cd / && env -i PATH="$PATH" ldd "$file")
done

commit=$(git describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)
cache() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
{
  printf 'commit         %s\n' "$commit"
  printf 'architectures  %s\n' "${archs//;/,}"
  printf 'built with     nvcc %s, %s\n' "$("$(cache CMAKE_CUDA_COMPILER)" --version | sed -n 's/.*release [^,]*, V//p')" \
    "$("$(cache CMAKE_CXX_COMPILER)" --version | head -n 1)"
  printf 'build type     %s\n' "$build_type"
  printf 'processor      %s\n' "$(uname -m), -march=$(cache HOTROW_MARCH)"
  printf 'glibc          built with %s, needs %s or newer\n' "$(getconf GNU_LIBC_VERSION | sed 's/glibc //')" "$glibc"
  printf 'CUDA libraries %s, at run time (./run)\n' \
    "$(sed 's/^[^ ]* *//' "$new/lib/cuda_libraries.txt" | tr ' ' '\n' | sort -u | sed '/^$/d' | paste -sd ' ')"
} >"$new/VERSION"

# Most of the folder would be oneDNN: ./run unpacks it when it is first called.
while read -r library; do gzip -9 "$library"; done < <(find "$new/lib" -name '*.so*' -size +8M)

bytes=$(du -sb --apparent-size "$new" | cut -f 1)
if ((bytes > max_mib << 20)); then
  printf 'gpu_bundle: the largest files of %s:\n' "$new" >&2
  find "$new" -type f -printf '%s %P\n' | sort -nr | head -n 8 | awk '{ printf "  %6.1f MiB %s\n", $1 / 1048576, $2 }' >&2
  fail "the bundle has $((bytes / 1048576)) MiB, more than $max_mib: fewer architectures (-a) or programs (-p), or -m"
fi
rm -rf "$out"
mv "$new" "$out"
cat "$out/VERSION"
printf '%s: %d MiB, %d test binaries, %d libraries carried\n' "$out" $((bytes / 1048576)) \
  "$(find "$out/bin/tests" -type f | wc -l)" "$(find "$out/lib" -name '*.so*' | wc -l)"
if [[ $pack -eq 1 ]]; then
  tar -C "$(dirname "$out")" -czf "$out.tar.gz" "$(basename "$out")"
  printf '%s: %d MiB\n' "$out.tar.gz" $(($(stat -c %s "$out.tar.gz") / 1048576))
fi
