#!/usr/bin/env bash
# Trains a DLRM whose rows take three times the address space that the process may have (ulimit -v), which bounds its
# memory harder than its resident pages: code, stacks and what is only reserved count too. Then checks that its peak
# of resident memory stayed below the sum of the budgets and a fixed overhead.
# usage: memory_limit_test.sh DLRM
set -euo pipefail

dlrm=$1
store_mib=56
cache_mib=32
staging_mib=64    # of evaluation: EmbeddingCollectionOptions::evaluation_staging_bytes
overhead_mib=100  # code and libraries, stacks, batches, activations, dense parameters
limit_kib=352000    # a third of the rows; code is in it, 14 MiB with that of a GPU

dir=$(mktemp -d "${TMPDIR:-/tmp}/hotrow_memory.XXXXXX")
trap 'rm -rf "$dir"' EXIT

free_kib=$(df -Pk "$dir" | awk 'NR == 2 {print $4}')
if ((free_kib < 4 * 1024 * 1024)); then
  echo "SKIPPED: needs 4 GiB free in $dir, there are $((free_kib / 1024)) MiB" >&2
  exit 77
fi

(
  ulimit -v "$limit_kib"
  ulimit -s 512               # stacks of threads are reserved whole
  export MALLOC_ARENA_MAX=1   # and so are glibc's arenas
  "$dlrm" --data=synthetic:tables=26,rows=170000,dense=13,zipf=0,samples=400000,valid=2048,test=2048 \
    --embedding_dim=64 --dense_arch_layer_sizes=64-64 --over_arch_layer_sizes=64-1 --batch_size=1024 \
    --threads=2 --prefetch_depth=1 --store=ssd --store_path="$dir/rows" --store_bytes=${store_mib}MiB \
    --cache_bytes=${cache_mib}MiB --disk_bytes=3GiB --checkpoint_dir="$dir/checkpoints" --checkpoint_every=100 \
    --report="$dir/report.json"
)

number() { sed -n "s/^  \"$1\": \([0-9]*\),\{0,1\}\$/\1/p" "$dir/report.json"; }
rows=$(number rows)
peak=$(number peak_rss_bytes)
row_bytes=272  # 64 columns, one accumulator, the step; padded to 16
echo "rows $((rows * row_bytes / 1048576)) MiB, address space $((limit_kib / 1024)) MiB, peak resident $((peak / 1048576)) MiB," \
  "budgets $((store_mib + cache_mib + staging_mib)) MiB"

grep -q "\"row_bytes\": $row_bytes," "$dir/report.json" || { echo "FAILED: rows have another size" >&2; exit 1; }
if ((rows * row_bytes < 3 * limit_kib * 1024)); then
  echo "FAILED: the rows are not three times the limit" >&2
  exit 1
fi
if ((peak > (store_mib + cache_mib + staging_mib + overhead_mib) * 1048576)); then
  echo "FAILED: more resident memory than the budgets and $overhead_mib MiB" >&2
  exit 1
fi
