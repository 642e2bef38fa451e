#!/usr/bin/env bash
# Packs GPU tests, gpu_bench and trainers into one archive that runs on a machine with an NVIDIA driver and the CUDA
# libraries of a Python package, and nothing else of ours. docs/gpu.md tells how to use what it makes.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: tools/gpu_bundle.sh [-a ARCHS] [-o NAME] [-b BUILD_DIR] [-j N] [-p PROGRAMS] [-l]

  -a ARCHS      GPU architectures as CMake names them, joined by commas (default: 90-real, which is H100 and H200)
  -o NAME       makes NAME.tar.xz, which unpacks into a folder of that name (default: bundle)
  -b BUILD_DIR  where it builds (default: build-bundle)
  -j N          compilers at a time (default: all processors)
  -p PROGRAMS   further programs of the build, joined by commas: hotrow ...
  -l            device code says which line it comes from, for compute-sanitizer and ncu (twice the machine code)
TEXT
}
fail() { printf 'gpu_bundle: %s\n' "$*" >&2; exit 1; }

# Archive and sources travel together; 64 MiB is what a rented machine may take.
readonly target_mib=50 max_mib=60

archs=90-real
out=bundle
build=build-bundle
jobs=$(nproc)
programs=(gpu_bench comm_bench)
cuda_flags='-O3 -DNDEBUG'
while getopts 'a:o:b:j:p:lh' option; do
  case $option in
    a) archs=${OPTARG//,/;} ;;
    o) out=$OPTARG ;;
    b) build=$OPTARG ;;
    j) jobs=$OPTARG ;;
    p) IFS=, read -ra more <<<"$OPTARG"; programs+=("${more[@]}") ;;
    l) cuda_flags+=' -lineinfo' ;;
    h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[[ $# -eq 0 ]] || { usage >&2; fail "$1: takes no arguments beside its options"; }
out=$(realpath -m "$out")
build=$(realpath -m "$build")
cd "$(dirname "$(readlink -f "$0")")/.."

for tool in cmake ninja readelf objdump strip ldd xz; do
  command -v "$tool" >/dev/null || fail "$tool is missing: install cmake, ninja-build, binutils, libc-bin and xz-utils"
done

# --- Build ----------------------------------------------------------------------------------------------
mkdir -p "$build"
cmake --preset bundle -B "$build" -DCMAKE_CUDA_ARCHITECTURES="$archs" -DCMAKE_CUDA_FLAGS_RELEASE="$cuda_flags" \
  >"$build/configure.log" 2>&1 || { cat "$build/configure.log" >&2; fail "CMake failed; its messages are above"; }
mapfile -t models <"$build/bin/models.txt"
programs+=("${models[@]}")
# What lies here afterwards is what the target gpu_tests makes: every test with the label gpu.
rm -rf "$build/bin/tests"
cmake --build "$build" -j "$jobs" --target gpu_tests gpu_timeline "${programs[@]}"

# --- Collect --------------------------------------------------------------------------------------------
# The C library belongs to the machine, libcuda to its driver; these come from a Python package there.
is_system() { [[ $1 =~ ^(ld-linux[-a-z0-9_]*|lib(c|m|dl|rt|pthread|resolv|util|anl|mvec|cuda))\.so(\.[0-9]+)*$ ]]; }
is_cuda_library() { [[ $1 =~ ^lib(cublas|cublasLt|cupti|nccl)\.so(\.[0-9]+)*$ ]]; }
needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

new=$build/package/$(basename "$out")
rm -rf "$build/package"
mkdir -p "$new/bin/tests" "$new/lib"
for program in "${programs[@]}"; do
  cp "$build/bin/$program" "$new/bin/"
done
cp "$build"/bin/tests/* "$new/bin/tests/"
cp "$build/bin/libgpu_timeline.so" "$new/lib/"
mapfile -t binaries < <(find "$new/bin" -type f | sort)
strip "${binaries[@]}" "$new/lib/libgpu_timeline.so"

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
  # cublasLt and NCCL are loaded by name: ops/products/cublaslt.cc, comm/nccl_library.cc.
  for name in $({ needed "$file"; grep -aoE 'lib(cublasLt|nccl)\.so\.[0-9]+' "$file"; } | sort -u); do
    if is_cuda_library "$name"; then wanted+=("$name"); fi
  done
  printf '%s\n' "${file#"$new/bin/"} ${wanted[*]-}"
done >"$new/lib/cuda_libraries.txt"
needed "$new/lib/libgpu_timeline.so" | sed -n '/^libcupti/s/^/gpu_timeline /p' >>"$new/lib/cuda_libraries.txt"

cp "$build/bin/models.txt" "$new/bin/"
cp tools/gpu_bundle/run tools/gpu_bundle/run-gpu-tests tools/gpu_check.sh tools/gpu_check.py bench/peers/torch_peers.py "$new/"

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
  printf 'processor      %s\n' "$(uname -m), -march=$(cache HOTROW_MARCH)"
  printf 'glibc          built with %s, needs %s or newer\n' "$(getconf GNU_LIBC_VERSION | sed 's/glibc //')" "$glibc"
  printf 'CUDA libraries %s, at run time (./run)\n' \
    "$(sed 's/^[^ ]* *//' "$new/lib/cuda_libraries.txt" | tr ' ' '\n' | sort -u | sed '/^$/d' | paste -sd ' ')"
} >"$new/VERSION"

# --- Pack -----------------------------------------------------------------------------------------------
# Test binaries repeat the same archives and kernels, so the window must span them: -9 looks back 64 MiB.
# Numbers instead of names, and the time of the commit, so that equal contents give equal archives.
archive=$out.tar.xz
rm -f "$archive.new"
tar -C "$build/package" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct 2>/dev/null || echo 0)" \
  -cf - "$(basename "$out")" | xz -9 -T1 >"$archive.new"

bytes_of_archive=$(stat -c %s "$archive.new")
bytes_of_sources=$(git ls-files -z | xargs -0 stat -c %s 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 }')
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f", bytes / 1048576 }'; }
sum=$((bytes_of_archive + bytes_of_sources))
printf 'archive %s MiB, tracked files %s MiB, together %s MiB (%d is the aim, %d the limit)\n' "$(mib "$bytes_of_archive")" \
  "$(mib "$bytes_of_sources")" "$(mib "$sum")" "$target_mib" "$max_mib"
if ((sum > max_mib << 20)); then
  printf 'gpu_bundle: the largest files of the bundle:\n' >&2
  find "$new" -type f -printf '%s %P\n' | sort -nr | head -n 8 | awk '{ printf "  %6.1f MiB %s\n", $1 / 1048576, $2 }' >&2
  rm -f "$archive.new"
  fail "more than $max_mib MiB would have to travel: fewer architectures (-a) or programs (-p), or no -l"
fi
mv "$archive.new" "$archive"
cat "$new/VERSION"

# --- Try ------------------------------------------------------------------------------------------------
# In an empty folder and an empty environment, as on a machine that has never seen this project.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
begin=$(date +%s%N)
tar -C "$place" -xJf "$archive"
milliseconds=$((($(date +%s%N) - begin) / 1000000))
bare=(env -i "PATH=$PATH" "HOME=$place")
cd "$place/$(basename "$out")"
"${bare[@]}" ./run --libraries || true  # not all may be here
tests=0
for file in bin/tests/*; do
  listed=$("${bare[@]}" ./run "tests/$(basename "$file")" --gtest_list_tests) || fail "$file does not start: $listed"
  tests=$((tests + $(grep -c '^  ' <<<"$listed")))
done
answer=$("${bare[@]}" CUDA_VISIBLE_DEVICES= ./run gpu_bench --only=device 2>&1) && fail "gpu_bench runs where it may see no GPU"
[[ $answer == 'gpu_bench: no usable GPU: '* && $(wc -l <<<"$answer") -eq 1 ]] || fail "without a GPU gpu_bench says: $answer"
printf '%s: %s MiB, unpacks in %d ms; %d test binaries with %d tests, %d libraries carried\n' "$archive" \
  "$(mib "$bytes_of_archive")" "$milliseconds" "$(find bin/tests -type f | wc -l)" "$tests" "$(find lib -name '*.so*' | wc -l)"
