#!/usr/bin/env bash
# Trains the same DLRM with ${HOTROW_DLRM:-build/bin/dlrm} and with PyTorch, turn and turn about, and
# prints medians as a markdown table: samples/s, and processor time of a sample, which other jobs of
# the machine disturb less.
#
#   [SHAPES="dim16 dim128"] [PRECISIONS="fp32 bf16"] bench/dlrm_vs_torch.sh [REPEATS] [PEER ...]
#
# PRECISIONS: of products (fp32): --precision of dlrm; of PyTorch, bf16 is its autocast.
# PEER: an interpreter that has torch and numpy, or INTERPRETER:EMBEDDINGS, with --embeddings of
# bench/peers/torch_dlrm.py (bag, fbgemm, torchrec); default python3. 2 threads each.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

repeats=${1:-5}
shift || true
peers=("$@")
[[ ${#peers[@]} -eq 0 ]] && peers=(python3)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# name, dim, bottom, top, steps of PyTorch, steps of dlrm. Ours has tables that grow: the first pass over the ids, in which
# rows are made, is trained before and not counted (its own epoch).
shapes=(
  "dim16 16 512-256-64 512-256 60 240"
  "dim128 128 512-256 1024-1024-512-256 20 60"
)

# For the last epoch alone: samples/s and processor microseconds of a sample; then those of the
# first. Two runs of the same seed, of one epoch and of two; the difference is the second.
ours() { # dim bottom top steps precision
  local data="synthetic:tables=26,rows=100000,samples=$((2048 * $4)),valid=2048,test=2048,zipf=1.05"
  local epochs
  for epochs in 1 2; do
    ${HOTROW_DLRM:-build/bin/dlrm} --data="$data" --embedding_dim="$1" --dense_arch_layer_sizes="$2-$1" \
      --over_arch_layer_sizes="$3-1" --batch_size=2048 --epochs=$epochs --threads=2 --optimizer=sgd --dense_optimizer=sgd \
      --learning_rate=0.1 --dense_learning_rate=0.1 --precision="$5" --report="$work/report$epochs.json" >/dev/null
  done
  python3 - "$work/report1.json" "$work/report2.json" <<'PY'
import json, sys
one, two = (json.load(open(f)) for f in sys.argv[1:])
samples = two["samples"] - one["samples"]
print(samples / (two["train_seconds"] - one["train_seconds"]), 1e6 * (two["cpu_seconds"] - one["cpu_seconds"]) / samples)
print(one["samples_per_second"], 1e6 * one["cpu_seconds"] / one["samples"])
PY
}

median() { sort -g | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
median_of() { awk -v c="$2" '{print $c}' "$1" | median; } # file column

for shape in "${shapes[@]}"; do
  read -r name dim bottom top torch_steps our_steps <<<"$shape"
  [[ " ${SHAPES:-dim16 dim128} " == *" $name "* ]] || continue
  contenders=() # files of "samples/s microseconds" beside a file of the name
  for ((i = 0; i < repeats; ++i)); do
    contenders=()
    for precision in ${PRECISIONS:-fp32}; do
      file="$work/$name.$precision"
      ours "$dim" "$bottom" "$top" "$our_steps" "$precision" >"$work/ours"
      sed -n 1p "$work/ours" >>"$file.steady"
      sed -n 2p "$work/ours" >>"$file.first"
      echo "hotrow $precision, rows known" >"$file.steady.name"
      echo "hotrow $precision, first pass, rows made as they come" >"$file.first.name"
      contenders+=("$file.steady" "$file.first")
      for p in "${!peers[@]}"; do
        IFS=: read -r python embeddings <<<"${peers[$p]}"
        amp=()
        [[ $precision == bf16 ]] && amp=(--amp)
        "$python" bench/peers/torch_dlrm.py --embeddings "${embeddings:-bag}" --dim "$dim" --bottom "$bottom" \
          --top "$top" --steps "$torch_steps" --threads 2 "${amp[@]}" 2>/dev/null >"$work/peer.json"
        python3 -c 'import json,sys; r=json.load(open(sys.argv[1])); print(r["samples_per_second"], r["cpu_us_per_sample"])' \
          "$work/peer.json" >>"$file.$p"
        python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["peer"])' "$work/peer.json" >"$file.$p.name"
        contenders+=("$file.$p")
      done
    done
  done
  printf '\n%s: bottom 13-%s-%s, 26 tables x 100,000 rows, top %s-1, batch 2048, SGD; medians of %s\n\n' \
    "$name" "$bottom" "$dim" "$top" "$repeats"
  printf '| | samples/s | µs of processors a sample |\n| --- | --- | --- |\n'
  for file in "${contenders[@]}"; do
    printf '| %s | %.0f | %.1f |\n' "$(cat "$file.name")" "$(median_of "$file" 1)" "$(median_of "$file" 2)"
  done
done
