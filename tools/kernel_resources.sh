#!/usr/bin/env bash
# What each CUDA kernel takes of a processor of the GPU, as a table in Markdown: bench/results/gpu_kernels.md has one.
#   kernel_resources.sh [-a ARCHITECTURE] [-b BUILD] [-w PAGE] [FILE.cu ...]
#   kernel_resources.sh -c PAGE
# -a: 80, 90 (the default) or any other that nvcc knows.
# -b: a configured build folder, whose flags are taken (build). Nothing needs to be built there.
# -w: puts the table into a page, between its lines <!-- kernels --> and <!-- end of kernels -->, instead of printing it.
# -c: whether the table of a page has the kernels that the sources have, by name; compiles nothing. Status 1 where not.
# FILE: sources below the root of the project; by default all that BUILD compiles but tests and benchmarks.
# Kernels of one name, templates, share a line: how many there are, and the most that one of them takes. Warps are those
# that its registers leave on a processor, of 64. Spills are bytes of stores and loads; shared memory is what the kernel
# declares, not what a launch adds. Bytes are what passes the device's memory, each input and output once: the line
# "// Bytes: ..." right before a kernel's definition.
set -euo pipefail
usage() { sed -n '2,13s/^# *//p' "$0"; }
fail() { printf 'kernel_resources: %s\n' "$*" >&2; exit 2; }

architecture=90
build=build
page=
check=
while getopts a:b:c:w:h option; do
  case $option in
    a) architecture=$OPTARG ;;
    b) build=$OPTARG ;;
    c) check=$OPTARG ;;
    w) page=$OPTARG ;;
    h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
root=$(readlink -f "$(dirname "$0")/..")
if [[ -n $check ]]; then
  exec python3 - "$root" "$check" <<'EOF'
import pathlib
import re
import sys

root, page = pathlib.Path(sys.argv[1]), sys.argv[2]
definition = re.compile(r'__global__\s+void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*)?(\w+)\s*\(')
tagged = re.compile(r'// Bytes: ([^\n]*)\n(?:template <[^\n]*>\n)?' + definition.pattern)
sources = set()
tags = {}
for folder in ('base', 'cache', 'comm', 'embedding', 'models', 'ops', 'store'):
    for pattern in ('*.cu', '*.cuh'):
        for path in (root / folder).rglob(pattern):
            source = path.read_text(encoding='utf-8')
            text = re.sub(r'//[^\n]*', '', source)
            names = definition.findall(text)
            if len(names) != text.count('__global__'):
                sys.exit(f'kernel_resources: {path}: a kernel whose name is not understood')
            sources.update(names)
            found = {name: text for text, name in tagged.findall(source)}
            # Where one kernel of a source has its bytes, all have.
            if len(found) != source.count('// Bytes: ') or (found and set(found) != set(names)):
                sys.exit(f'kernel_resources: {path}: "// Bytes: ..." belongs right before each kernel')
            tags.update({(name, str(path.relative_to(root))): text for name, text in found.items()})
table = re.search(r'<!-- kernels -->(.*?)<!-- end of kernels -->', open(page, encoding='utf-8').read(), re.DOTALL)
if table is None:
    sys.exit(f'kernel_resources: {page}: has no lines <!-- kernels --> and <!-- end of kernels -->')
rows = set(re.findall(r'^\| `(\w+)`', table[1], re.MULTILINE))
listed = {(name, path): text for name, path, text in re.findall(r'^\| `(\w+)` \(([^)]*)\)[^|]*\|.*\| ([^|]*) \|$', table[1], re.MULTILINE)}
for (name, path), text in sorted(tags.items()):
    if listed.get((name, path), '') != text:
        sys.exit(f'kernel_resources: {page}: other bytes of {name} than {path} says; run tools/kernel_resources.sh -w {page}')
for name in sorted(sources - rows):
    print(f'kernel_resources: {page}: {name} is missing; run tools/kernel_resources.sh -w {page}', file=sys.stderr)
for name in sorted(rows - sources):
    print(f'kernel_resources: {page}: there is no {name}; run tools/kernel_resources.sh -w {page}', file=sys.stderr)
sys.exit(0 if sources == rows else 1)
EOF
fi
[[ -f $build/compile_commands.json ]] || fail "$build/compile_commands.json: is not there; cmake --preset release makes it"
build=$(readlink -f "$build")

# A line for each source: its name below the root, and the words of nvcc's command that say how to compile.
commands() {
  python3 - "$build/compile_commands.json" "$root" "$@" <<'EOF'
import json
import os
import shlex
import sys

database, root, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
found = set()
for entry in sorted(json.load(open(database, encoding='utf-8')), key=lambda entry: entry['file']):
    name = os.path.relpath(entry['file'], root)
    chosen = name in wanted if wanted else not name.startswith(('tests/', 'bench/'))
    if not name.endswith('.cu') or not chosen or name in found:
        continue
    found.add(name)
    words = shlex.split(entry['command'])
    kept = [words[i] for i in range(len(words)) if words[i].endswith('/nvcc')][:1]
    skip = True
    for word in words:
        if skip:  # up to the compiler, and the value of an option that is left out
            skip = not word.endswith('/nvcc') if len(kept) == 1 else False
        elif word in ('-MT', '-MF', '-o', '-x'):
            skip = True
        elif word not in ('-MD', '-c', entry['file']) and not word.startswith(('--generate-code', '-arch', '-lineinfo')):
            kept.append(word)
    print(name, *map(shlex.quote, kept), sep='\t')
for name in wanted:
    if name not in found:
        sys.exit(f'kernel_resources: {name}: the build does not compile it with nvcc')
EOF
}

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
commands "$@" >"$logs/commands"
[[ -s $logs/commands ]] || fail "$build: compiles no CUDA; configure it with the toolkit"
while IFS=$'\t' read -r name words; do
  eval "command=($words)"
  if ! (cd "$build" && "${command[@]}" "-arch=sm_$architecture" -Xptxas -v -cubin -o "$logs/cubin" -x cu "$root/$name") \
      >"$logs/log" 2>&1; then
    cat "$logs/log" >&2
    fail "$name: does not compile for sm_$architecture"
  fi
  c++filt <"$logs/log" | sed "s|^|$name\t|" >>"$logs/all"
done <"$logs/commands"

{
printf '| kernel, sm_%s | registers | warps | spills | shared bytes | bytes |\n| --- | --- | --- | --- | --- | --- |\n' "$architecture"
awk -F '\t' '
  # A function is named by two lines, then come its stack and what it uses. Functions that are called are no kernels.
  function number(text, before, after) {
    return match(text, before "[0-9]+" after) ? substr(text, RSTART + length(before)) + 0 : 0
  }
  # Each quarter of a processor has 16,384 registers and 16 places for warps; a thread gets registers by the eight.
  function warps(of_thread,    of_quarter) {
    of_quarter = int(512 / (8 * int((of_thread + 7) / 8)))
    return 4 * (of_quarter < 16 ? of_quarter : 16)
  }
  / Compiling entry function / {
    kernel = $2
    sub(/^[^\047]*\047/, "", kernel)
    sub(/\047 for .*/, "", kernel)
    gsub(/\(anonymous namespace\)::/, "", kernel)
    sub(/^void /, "", kernel)
    sub(/[<(].*/, "", kernel)
    sub(/.*::/, "", kernel)
    kernel = "`" kernel "` (" $1 ")"
    spills = 0
  }
  / bytes spill stores/ { spills = number($2, "", " bytes spill stores") + number($2, "", " bytes spill loads") }
  / Used [0-9]+ registers/ {
    if (!(kernel in instances)) order[++kernels] = kernel
    ++instances[kernel]
    used = number($2, "Used ", " registers")
    shared = number($2, "", " bytes smem")
    if (used > registers[kernel]) registers[kernel] = used
    if (spills > spilled[kernel]) spilled[kernel] = spills
    if (shared > shares[kernel]) shares[kernel] = shared
  }
  END {
    for (i = 1; i <= kernels; ++i) {
      k = order[i]
      many = (instances[k] > 1) ? ", " instances[k] " of them" : ""
      printf "| %s%s | %d | %d | %d | %d |\n", k, many, registers[k], warps(registers[k]), spilled[k], shares[k]
    }
  }' "$logs/all" | python3 -c '
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    name, path = re.match(r"\| `(\w+)` \(([^)]*)\)", line).groups()
    found = re.search(r"// Bytes: ([^\n]*)\n(?:template <[^\n]*>\n)?__global__\s+void\s+(?:__launch_bounds__\([^\n]*\)\s*)?"
                      + name + r"\s*\(", (root / path).read_text(encoding="utf-8"))
    print(line.rstrip("\n"), (found[1] + " " if found else "") + "|")
' "$root"
} >"$logs/table"
if [[ -z $page ]]; then
  cat "$logs/table"
  exit
fi
python3 - "$page" "$logs/table" <<'EOF'
import re
import sys

page, table = sys.argv[1:]
text = open(page, encoding='utf-8').read()
rows = open(table, encoding='utf-8').read()
text, replaced = re.subn(r'(?<=<!-- kernels -->\n).*?(?=<!-- end of kernels -->)', lambda _: f'\n{rows}\n', text, flags=re.DOTALL)
if replaced != 1:
    sys.exit(f'kernel_resources: {page}: has no lines <!-- kernels --> and <!-- end of kernels -->')
open(page, 'w', encoding='utf-8').write(text)
EOF
