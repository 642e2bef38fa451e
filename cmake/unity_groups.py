#!/usr/bin/env python3
"""Groups the sources of a folder's targets into unity files, for cmake/UnityBuild.cmake.

  unity_groups.py < LINES    each line: target, tab, path of a source

Prints for each source that shares a unity file: path, tab, name of its group. Sources that give the
same name their own meaning (in an anonymous namespace, by a macro or a using-declaration) come
into different groups. Names are found line by line, which is enough for formatted code; what it
misses is an error of the compiler.
"""

import collections
import os
import re
import sys

# Source bytes of a group: about ten files of a library, or three of a test.
GROUP_BYTES = 64 << 10

USING = re.compile(r"using (?!namespace)((?:::)?[\w:]+);")
TYPE = re.compile(r"(?:class|struct|union|enum(?: class)?|using|namespace) (\w+)")
VALUE = re.compile(r"(\w+)(?:<[^()]*>)?(?:\(|\[| =|\{|;)")
NOT_NAMES = re.compile(r"(?:template|static_assert|TEST|INSTANTIATE|TYPED|using namespace|return)\b")


def meanings(path):
    """Name -> what it stands for: equal strings for equal meanings."""
    found = {}
    anonymous = False
    with open(path, encoding="utf-8") as source:
        for line in source:
            macro = re.match(r"#\s*define (\w+)", line)
            if macro:
                found[macro.group(1)] = path
            if line.startswith("namespace {"):
                anonymous = True
            elif line.startswith("}  // namespace\n"):
                anonymous = False
            using = USING.match(line)
            if using:
                found[using.group(1).rsplit(":", 1)[-1]] = using.group(1)
                continue
            if not (anonymous or line.startswith("static ")) or not re.match(r"[A-Za-z]", line):
                continue
            if NOT_NAMES.match(line):
                continue
            name = TYPE.match(line) or VALUE.search(line)
            if name:
                found[name.group(1)] = path
    return found


def main():
    sources_of = collections.defaultdict(list)
    uses = collections.Counter()
    for line in sys.stdin:
        target, path = line.rstrip("\n").split("\t")
        sources_of[target].append(path)
        uses[path] += 1
    for target, sources in sources_of.items():
        groups = []  # of (bytes, meanings, paths)
        for path in sources:
            if uses[path] > 1:  # a source has one group, whichever target it is compiled for
                continue
            size, names = os.path.getsize(path), meanings(path)
            for group in reversed(groups):
                if group[0] + size <= GROUP_BYTES and all(
                        group[1].get(name, meaning) == meaning for name, meaning in names.items()):
                    group[0] += size
                    group[1].update(names)
                    group[2].append(path)
                    break
            else:
                groups.append([size, names, [path]])
        for number, (_, _, paths) in enumerate(groups):
            if len(paths) > 1:
                for path in paths:
                    print(f"{path}\t{number}")


if __name__ == "__main__":
    main()
