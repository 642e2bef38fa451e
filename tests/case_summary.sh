#!/usr/bin/env bash
# Says what became of the single cases, since ctest runs test binaries whole:
#   tests/case_summary.sh BUILD_DIR
# Reads the log of the last ctest in BUILD_DIR. Names every case that failed, crashed or never
# ended, with the binary it is in and the first 20 lines that it printed. Ends with
# "cases: N passed, N failed, N skipped". Exit status 1 if a case did not pass, 3 if no case ran.
set -euo pipefail
log=${1:?names no build folder}/Testing/Temporary/LastTest.log
[[ -r $log ]] || { printf 'case_summary: no %s; run ctest there first\n' "$log" >&2; exit 2; }

awk '
  function end_case(verdict) {
    if (verdict != "") printf "  %-8s %s   (%s)\n%s", verdict, running, entry, words
    running = words = ""
    lines = 0
  }
  # A binary that died: the case that was running, and those that did not get their turn.
  function end_entry() {
    if (running != "") { ++failed; end_case(crashed ? "crashed" : "no end") }
    if (planned > begun) {
      printf "  not run  %d cases of %s\n", planned - begun, entry
      failed += planned - begun
    }
    planned = begun = crashed = 0
  }
  /^[0-9]+\/[0-9]+ Testing: / { end_entry(); entry = $3 }
  /\[==========\] Running [0-9]+ tests? from/ { planned += $3 }
  running != "" && !/^\[/ && ++lines <= 20 { words = words "           " $0 "\n" }
  /\[ RUN      \] / { sub(/.*\[ RUN      \] /, ""); running = $1; ++begun }
  /\[  CRASHED \] / { crashed = 1 }
  /\[       OK \] .* ms\)/ { ++passed; end_case("") }
  /\[  SKIPPED \] .* ms\)/ { ++skipped; end_case("") }
  /\[  FAILED  \] .* ms\)/ { ++failed; end_case("failed") }
  END {
    end_entry()
    printf "cases: %d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit failed > 0 ? 1 : passed + skipped == 0 ? 3 : 0
  }' "$log"
