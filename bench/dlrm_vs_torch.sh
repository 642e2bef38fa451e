#!/usr/bin/env bash
# Trains the same DLRM with ${HOTROW_DLRM:-build/bin/dlrm} and with plain PyTorch, turn and turn about, and prints medians and ratios as a
# markdown table.
#
#   [SHAPES="dim16 dim128"] bench/dlrm_vs_torch.sh [REPEATS] [PYTHON ...]
#
# PYTHON: interpreters that have torch and numpy, each a peer of its own; default python3. 2 threads each.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

repeats=${1:-5}
shift || true
pythons=("$@")
[[ ${#pythons[@]} -eq 0 ]] && pythons=(python3)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# name, dim, bottom, top, steps of PyTorch, steps of dlrm. Ours has tables that grow: the first pass over the ids, in which
# rows are made, is trained before and not counted (its own epoch).
shapes=(
  "dim16 16 512-256-64 512-256 60 240"
  "dim128 128 512-256 1024-1024-512-256 20 60"
)

# samples/s of the last epoch alone: two runs of the same seed, of one epoch and of two; the difference is the second.
ours() { # dim bottom top steps
  local data="synthetic:tables=26,rows=100000,samples=$((2048 * $4)),valid=2048,test=2048,zipf=1.05"
  local epochs
  for epochs in 1 2; do
    ${HOTROW_DLRM:-build/bin/dlrm} --data="$data" --embedding_dim="$1" --dense_arch_layer_sizes="$2-$1" \
      --over_arch_layer_sizes="$3-1" --batch_size=2048 --epochs=$epochs --threads=2 --optimizer=sgd --dense_optimizer=sgd \
      --learning_rate=0.1 --dense_learning_rate=0.1 --report="$work/report$epochs.json" >/dev/null
  done
  python3 - "$work/report1.json" "$work/report2.json" <<'PY'
import json, sys
one, two = (json.load(open(f)) for f in sys.argv[1:])
print((two["samples"] - one["samples"]) / (two["train_seconds"] - one["train_seconds"]), one["samples_per_second"])
PY
}

median() { sort -g | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }

for shape in "${shapes[@]}"; do
  read -r name dim bottom top torch_steps our_steps <<<"$shape"
  [[ " ${SHAPES:-dim16 dim128} " == *" $name "* ]] || continue
  for ((i = 0; i < repeats; ++i)); do
    read -r steady first < <(ours "$dim" "$bottom" "$top" "$our_steps")
    echo "$steady" >>"$work/$name.steady"
    echo "$first" >>"$work/$name.first"
    for p in "${!pythons[@]}"; do
      "${pythons[$p]}" bench/peers/torch_dlrm.py --dim "$dim" --bottom "$bottom" --top "$top" --steps "$torch_steps" \
        --threads 2 2>/dev/null >"$work/peer.json"
      python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["samples_per_second"])' "$work/peer.json" >>"$work/$name.$p"
      python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["peer"])' "$work/peer.json" >"$work/peer.$p"
    done
  done
  printf '\n%s: bottom 13-%s-%s, 26 tables x 100,000 rows, top %s-1, batch 2048, SGD; medians of %s\n\n' \
    "$name" "$bottom" "$dim" "$top" "$repeats"
  printf '| | samples/s | hotrow / this |\n| --- | --- | --- |\n'
  steady=$(median <"$work/$name.steady")
  printf '| hotrow, rows known | %.0f | 1 |\n' "$steady"
  printf '| hotrow, first pass, rows made as they come | %.0f | %.2f |\n' "$(median <"$work/$name.first")" \
    "$(awk -v a="$steady" -v b="$(median <"$work/$name.first")" 'BEGIN {print a / b}')"
  for p in "${!pythons[@]}"; do
    peer=$(median <"$work/$name.$p")
    printf '| %s | %.0f | %.2f |\n' "$(cat "$work/peer.$p")" "$peer" "$(awk -v a="$steady" -v b="$peer" 'BEGIN {print a / b}')"
  done
done
