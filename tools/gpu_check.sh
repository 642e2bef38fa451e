#!/usr/bin/env bash
# What a GPU that is lent for fifteen minutes is for, in three stages of at most four minutes each, and what it is for when
# there is more time. docs/gpu.md tells how to use it.
#   gpu_check.sh smoke|bench|train|more [--bundle=DIR] [--out=DIR] [--toy] [--only=STEP,...] [--seconds=N]
# smoke: does everything run, and right: device, libraries, all tests, dlrm beside the CPU and over an SSD.
# bench: gpu_bench: a training step, finds and inserts, row and dense ops, tiers, the plans of products.
# train: DLRM of MLPerf's sizes end to end, its timeline, PyTorch beside it, profiles of the kernels that matter.
# more: compute-sanitizer, limits of products and bus, PyTorch's ops, every model beside the CPU; nine minutes.
# --bundle: an unpacked bundle, or a build folder (default: the folder that this lies in, else ./bundle).
# --out: gets a log, result.json, reports and profiles as they are made (default: gpu_check-STAGE; no spaces in its name).
# --only: these steps. --toy: sizes for an emulated GPU. --seconds: what is not done by then is left out, with a row.
# A table of at most 40 lines comes last; the exit status is 0 if and only if every check held.
set -uo pipefail
self=$(dirname "$(readlink -f "$0")")
usage() { sed -n '2,13s/^# *//p' "$0"; }
fail() { printf 'gpu_check: %s\n' "$*" >&2; exit 2; }

stage=
bundle=
out=
toy=0
only=
limit=
for argument in "$@"; do
  case $argument in
    smoke | bench | train | more) stage=$argument ;;
    --bundle=*) bundle=${argument#*=} ;;
    --out=*) out=${argument#*=} ;;
    --toy) toy=1 ;;
    --only=*) only=${argument#*=} ;;
    --seconds=*) limit=${argument#*=} ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "$argument: is neither a stage nor an option" ;;
  esac
done
[[ -n $stage ]] || { usage >&2; fail "name a stage: smoke, bench, train or more"; }
[[ -n $limit ]] || limit=$([[ $stage == more || $toy -eq 1 ]] && echo 540 || echo 240)
[[ $limit =~ ^[1-9][0-9]*$ ]] || fail "--seconds=$limit: takes a whole number"
if [[ -z $bundle ]]; then
  bundle=$self
  [[ -d $bundle/bin ]] || bundle=bundle
fi
[[ -x $bundle/bin/gpu_bench ]] || fail "$bundle: has no bin/gpu_bench; name a bundle or a build folder with --bundle=DIR"
bundle=$(readlink -f "$bundle")
out=${out:-gpu_check-$stage}
mkdir -p "$out" && out=$(readlink -f "$out") || fail "--out=$out: cannot be made"
command -v python3 >/dev/null || fail "python3 is not on PATH"
torch_python=${HOTROW_PYTHON:-python3}  # the one that has PyTorch
# In a bundle everything lies side by side.
beside() { for file in "$self/$1" "$self/gpu_bundle/$1" "$self/../bench/peers/$1"; do [[ -e $file ]] && echo "$file" && return; done; }
helper=$(beside gpu_check.py)
run_tests=$(beside run-gpu-tests)
peers=$(beside torch_peers.py)

# A program of the bundle finds the CUDA libraries of the machine; one of a build knows where they are.
run=("$bundle/run")
[[ -x $bundle/run ]] || run=(sh -c 'program=$1; shift; exec ${HOTROW_LAUNCHER-} "$0/bin/$program" "$@"' "$bundle")

# The limits of steps are meant for a GPU; an emulated one shares a busy processor.
patience=$((toy ? 5 : 1))

details=$out/details
log=$out/log
rows=$out/rows.jsonl
rm -rf "$details" "$rows" "$out/result.json" "$out/log"
mkdir -p "$details"
commit=$(sed -n 's/^commit *//p' "$bundle/VERSION" 2>/dev/null)
[[ -n $commit ]] || commit=$(git -C "$self" describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)
device=unknown
now=$(date -u +%Y-%m-%dT%H:%MZ)

# --- Rows and steps -------------------------------------------------------------------------------------
keep() {  # keep COMMAND ARGUMENT ...: of gpu_check.py
  python3 "$helper" --rows "$rows" "$@" &&
    python3 "$helper" --rows "$rows" write --stage "$stage" --commit "$commit" --device "$device" --date "$now" \
      --result "$out/result.json"
}
row() { keep row --check "$1" --held "$2" --note "${3-}" ${4:+--seconds "$4"}; }
last_line() { grep -v '^[[:space:]]*$' "$1" 2>/dev/null | tail -n 1 | cut -c 1-160; }

# attempt NAME SECONDS COMMAND ...: runs it within its time and that of the stage, output to details/NAME.log. False, with
# a row that says why, unless it ends well; `took` is how long it was.
took=0
attempt() {
  local name=$1 most=$2 status left=$((limit - SECONDS)) begin=$SECONDS
  shift 2
  printf '=== %s (%d s since the start)\n$ %s\n' "$name" "$SECONDS" "$*" >>"$log"
  if ((left < 5)); then
    row "$name" no "not run: the time of the stage was up"
    return 1
  fi
  ((most *= patience))
  ((most > left)) && most=$left
  timeout -k 5 "$most" "$@" >"$details/$name.log" 2>&1
  status=$?
  took=$((SECONDS - begin))
  cat "$details/$name.log" >>"$log"
  [[ $status -eq 0 ]] && return 0
  case $status in
    124 | 137) row "$name" no "stopped after $most s; $(last_line "$details/$name.log")" "$took" ;;
    *) row "$name" no "exit status $status: $(last_line "$details/$name.log")" "$took" ;;
  esac
  return 1
}
wanted() { [[ -z $only || ,$only, == *,$1,* ]]; }
finish() {
  # One file for the outputs of all steps: what comes back from a rented machine may be few files.
  tar -C "$out" -czf "$out/details.tar.gz" details && rm -rf "$details"
  printf '\n'
  python3 "$helper" --rows "$rows" table --result "$out/result.json"
  exit
}

step_device() {
  if ! attempt device 60 "${run[@]}" gpu_bench --only=device; then
    printf 'gpu_check: %s\n' "$(last_line "$details/device.log")" >&2
    finish
  fi
  device=$(head -n 1 "$details/device.log")
  row device yes "$device" "$took"
  # Clocks and driver tell apart two machines of one name.
  if command -v nvidia-smi >/dev/null; then
    attempt nvidia-smi 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm --format=csv,noheader &&
      row nvidia-smi yes "$(last_line "$details/nvidia-smi.log")" "$took"
  else
    row nvidia-smi absent "not run: it is not on PATH"
  fi
}

# bench NAME SECONDS FLAG ...: parts of gpu_bench, every figure of them a row.
bench() {
  local name=$1 most=$2
  shift 2
  rm -f "$out/$name.json"
  attempt "$name" "$most" "${run[@]}" gpu_bench "${bench_sizes[@]}" --report="$out/$name.json" "$@"
  # Also what was measured before it failed.
  [[ ! -s $out/$name.json ]] || keep bench "$out/$name.json" --seconds "$took"
}
# dlrm NAME SECONDS FLAG ...: trains; the report is details/NAME.json.
dlrm() {
  local name=$1 most=$2
  shift 2
  attempt "$name" "$most" "${run[@]}" dlrm --report="$details/$name.json" "$@"
}

# --- smoke ----------------------------------------------------------------------------------------------
step_libraries() {
  if [[ ! -x $bundle/run ]]; then
    row libraries absent "not run: a build knows where its libraries are"
  elif attempt libraries 30 "$bundle/run" --libraries; then
    row libraries yes "$(paste -sd ' ' "$details/libraries.log")" "$took"
  fi
}

# test_rows NAME SECONDS ARGUMENT ...: run-gpu-tests, a row for each binary.
test_rows() {
  local name=$1 most=$2 line binary count=0 tested=0
  shift 2
  printf '=== %s (%d s since the start)\n' "$name" "$SECONDS" >>"$log"
  local left=$((limit - SECONDS)) begin=$SECONDS
  if ((left < 10)); then
    row "$name" no "not run: the time of the stage was up"
    return 1
  fi
  ((most *= patience))
  ((most > left)) && most=$left
  timeout -k 5 "$most" "$run_tests" --bundle="$bundle" --log="$details/$name" "$@" >"$details/$name.log" 2>&1
  local status=$?
  cat "$details/$name.log" >>"$log"
  while IFS= read -r line; do
    binary=${line%% *}
    case $line in
      *' ok, '*)
        row "$name: $binary" yes "${line#* ok, }"
        ((tested += 1))
        ;;
      *' FAILED: '*) row "$name: $binary" no "${line#* FAILED: }" ;;
      *'no test of --filter'*) row "$name: $binary" yes "no test of this filter" ;;
      *) continue ;;
    esac
    ((count += 1))
  done <"$details/$name.log"
  case $status in
    124 | 137) row "$name" no "stopped after $most s" $((SECONDS - begin)) ;;
    *) [[ $count -gt 0 && ($status -eq 0 || $status -eq 1) ]] ||
         row "$name" no "exit status $status: $(last_line "$details/$name.log")" $((SECONDS - begin)) ;;
  esac
  [[ $status -ne 0 || $tested -gt 0 ]] || row "$name" no "no test ran: the filter matches none"
  return $status
}
step_tests() {
  local filter='*'
  [[ $toy -eq 1 ]] && filter='*EmptyBatch*:*NoRows*:*NoItems*:*AnEmpty*:*AreFine*:GpuBenchCliTest.S*:DlrmGpuCliTest.R*:*RowCacheCudaRaceTest*/0'
  test_rows tests 120 --filter="$filter" --timeout=$((90 * patience)) --jobs=$([[ $toy -eq 1 ]] && echo 4 || echo 8)
}
# Equal seeds: a GPU learns what the CPU learns, and its bits repeat, with anything below it.
step_dlrm() {
  local small=(--data=synthetic:tables=26,rows=20000,samples=200k,valid=20k,test=20k --embedding_dim=16 --seed=7
    --dense_arch_layer_sizes=128-64-16 --over_arch_layer_sizes=128-64-1 --batch_size=2048 --store_bytes=512MiB)
  [[ $toy -eq 1 ]] && small=(--data=synthetic:tables=3,rows=200,dense=2,samples=1500,valid=100,test=300 --embedding_dim=8 --seed=7
    --dense_arch_layer_sizes=16-8 --over_arch_layer_sizes=16-1 --batch_size=64 --threads=1 --store_bytes=64MiB)
  local on_gpu=(--device=cuda --device_cache_bytes=min --prefetch_depth=2)
  dlrm dlrm_cpu 80 "${small[@]}" || return
  dlrm dlrm_gpu 60 "${small[@]}" "${on_gpu[@]}" &&
    keep near --check "dlrm: GPU and CPU learn the same" --seconds "$took" "$details/dlrm_cpu.json" "$details/dlrm_gpu.json"
  dlrm dlrm_again 60 "${small[@]}" "${on_gpu[@]}" &&
    keep equal --check "dlrm: a second run has equal bits" --seconds "$took" "$details/dlrm_gpu.json" "$details/dlrm_again.json"
  local store
  store=$(mktemp -d "$out/store.XXXXXX")
  dlrm dlrm_ssd 60 "${small[@]}" "${on_gpu[@]}" --store=ssd --store_path="$store/rows" --store_bytes=64MiB --cache_bytes=8MiB \
    --disk_bytes=1GiB &&
    keep equal --check "dlrm: over an SSD it has equal bits" --seconds "$took" "$details/dlrm_gpu.json" "$details/dlrm_ssd.json"
  rm -rf "$store"
}

# --- bench ----------------------------------------------------------------------------------------------
# The limits that parts are compared with are measured beside them.
step_step() { bench step 60 --only=copy,step; }
step_find() { bench find 60 --only=copy,gather,find,insert "${find_sizes[@]}"; }
step_ops() { bench ops 40 --only=copy,unique,partition,lookup,gradient_sum,update; }
step_dense() { bench dense 50 --only=copy,dense; }
step_plans() { bench plans 40 --only=plans; }
step_tiers() {
  local host=(--quick)
  [[ $toy -eq 1 ]] && host=()
  mkdir -p "$details/ssd"
  bench tiers 60 --only=bus,tiers --path="$details/ssd" "${host[@]}"
  rm -rf "$details/ssd"
}

# --- more -----------------------------------------------------------------------------------------------
step_bus() { bench bus 80 --only=bus,host_gather,staging; }
step_gemm() { bench gemm 60 --only=gemm; }
have_torch() {
  if ! "$torch_python" -c 'import torch' 2>"$details/torch.error"; then
    row peers absent "no torch here: $(last_line "$details/torch.error")"
    return 1
  fi
  peer_device=cuda
  if ! "$torch_python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    if [[ $toy -eq 0 ]]; then
      row peers absent "this torch sees no GPU"
      return 1
    fi
    peer_device=cpu
  fi
}
step_peers() {
  have_torch || return
  bench ops 40 --only=copy,unique,lookup,gradient_sum --ids="$out/ids"
  if [[ ! -s $out/ids ]]; then
    row peers no "not run: gpu_bench wrote no ids"
    return
  fi
  rm -f "$out/peers.json"
  attempt peers 100 "$torch_python" "$peers" ops --device="$peer_device" --ids="$out/ids" --report="$out/peers.json" "${peer_sizes[@]}"
  [[ ! -s $out/peers.json ]] || keep peers --seconds "$took" "$out/peers.json" "$out/ops.json"
  rm -f "$out/ids"
}

# One shape of each op: the sanitizer makes a kernel 10 to 100 times slower.
step_sanitizer() {
  if ! PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer >/dev/null; then
    row memcheck absent "not run: compute-sanitizer is not on this machine"
    return
  fi
  local ops='GatherRowsCudaTest.AsOnTheCpu:ScatterRowsCudaTest.AsOnTheCpu:UniqueCudaTest.EdgeCases:PartitionCudaTest.NoItems*:PooledLookupCudaTest.LongBags:GradientSegmentSumCudaTest.OneHugeRow:SparseUpdateCudaTest.AnyNumberOfRows:RowInitCudaTest.SameBits*:RowCodecCudaTest.*:BceLossCudaTest.ABadLabel*:DotInteractionCudaTest.*:DropoutCudaTest.DropsWhat*:DenseOptimizerCudaTest.*:MlpCudaTest.AnEmpty*:CrossNetworkCudaTest.ANan*:OuterProductCudaTest.*:CinProductsCudaTest.*:BatchNormCudaTest.*:GatedExpertsCudaTest.*:CrossingCudaTest.*:TargetAttentionCudaTest.*:LossScaleCudaTest.*'
  local cache='RowCacheCudaTest.RowsOfEveryWidth*:RowCacheCudaTest.HitsOfABatch*:RowCacheCudaTest.Abandon*:*BucketCudaTest*'
  local scans='UniqueCudaTest.EdgeCases:PartitionCudaTest.NoItems*'
  if [[ $toy -eq 1 ]]; then
    ops=RowCodecCudaTest.NoRows:UniqueCudaTest.EdgeCases
    cache=RowCacheCudaTest.AbandonEmpties*
    scans=PartitionCudaTest.NoItems*
  fi
  test_rows memcheck 100 --sanitizer=memcheck --filter="$ops:$cache" --timeout=$((90 * patience)) --jobs=2 ops_cuda_test cache_cuda_test
  test_rows synccheck 40 --sanitizer=synccheck --filter="$scans" --timeout=$((35 * patience)) ops_cuda_test
  test_rows racecheck 60 --sanitizer=racecheck --filter="$scans" --timeout=$((55 * patience)) ops_cuda_test
}
# A GPU learns what the CPU learns.
step_models() {
  local model flags precision models
  mapfile -t models < <(grep -vxE 'bst|hstu' "$bundle/bin/models.txt")  # which work on the CPU only
  local data=(--data=synthetic:tables=6,rows=2000,dense=4,hotness=1-3,samples=60k,valid=4k,test=20k --batch_size=1024)
  if [[ $toy -eq 1 ]]; then
    models=(deepfm mmoe)
    data=(--data=synthetic:tables=3,rows=100,dense=2,hotness=1-3,samples=400,valid=64,test=320 --batch_size=64 --threads=1)
  fi
  for model in "${models[@]}"; do
    if [[ ! -x $bundle/bin/$model ]]; then
      row "model $model" absent "not run: the bundle does not have it"
      continue
    fi
    flags=("${data[@]}" --embedding_dim=16 --over_arch_layer_sizes=32-1 --seed=7 --store_bytes=64MiB)
    case $model in
      dlrm) flags+=(--dense_arch_layer_sizes=32-16) ;;
      din) flags+=(--history=cat_0:cat_1) ;;
      mmoe) flags+=(--num_experts=3 --expert_layer_sizes=32) ;;
    esac
    attempt "model_$model" 60 "${run[@]}" "$model" "${flags[@]}" --report="$details/model_$model.json" || continue
    for precision in fp32 bf16; do
      attempt "model_${model}_$precision" 60 "${run[@]}" "$model" "${flags[@]}" --device=cuda --device_cache_bytes=min \
        --precision="$precision" --report="$details/model_${model}_$precision.json" &&
        keep near --check "model $model, $precision: as the CPU" --seconds "$took" \
          --within "$([[ $precision == fp32 ]] && echo 1 || echo 3)" "$details/model_$model.json" "$details/model_${model}_$precision.json"
    done
  done
}

# --- train ----------------------------------------------------------------------------------------------
# MLPerf's sizes. Batches are drawn once and come again, so that a run does not wait for its data.
mlperf() {  # mlperf BATCH STEPS PRECISION [FLAG ...]: sets flags
  local batch=$1 steps=$2 precision=$3
  shift 3
  flags=(--data=synthetic:tables=26,rows=1M,samples=$((batch * steps)),resident=524288,valid=4096,test=4096,zipf=1.05
    --embedding_dim=128 --dense_arch_layer_sizes=512-256-128 --over_arch_layer_sizes=1024-1024-512-256-1
    --batch_size="$batch" --device=cuda --device_cache_bytes=20GiB --store_bytes=32GiB)
  if [[ $toy -eq 1 ]]; then
    flags=(--data=synthetic:tables=3,rows=200,dense=2,samples=$((batch * steps)),valid=64,test=64 --embedding_dim=8
      --dense_arch_layer_sizes=16-8 --over_arch_layer_sizes=16-1 --batch_size="$batch" --threads=1
      --device=cuda --device_cache_bytes=min --store_bytes=64MiB)
  fi
  flags+=(--seed=7 --optimizer=sgd --dense_optimizer=sgd --learning_rate=0.01 --dense_learning_rate=0.01 --prefetch_depth=2
    --precision="$precision" "$@")
}
# Two runs of one seed, of one epoch and of two: the difference is the second, in which no row is made.
train_at() {
  local name=train_$1_$3 flags
  mlperf "$@"
  dlrm "${name}_1" 60 "${flags[@]}" --epochs=1 && dlrm "${name}_2" 80 "${flags[@]}" --epochs=2 &&
    keep train --check "dlrm, batch $1, $3" --precision "$3" --seconds "$took" \
      --first "$details/${name}_1.json" --report "$details/${name}_2.json"
}
step_train() {
  if [[ $toy -eq 1 ]]; then
    train_at 64 6 bf16
  else
    train_at 65536 40 bf16
    train_at 2048 400 bf16
  fi
}
# What the GPU does in those steps, in time: opens in ui.perfetto.dev; sums by name in details.
step_timeline() {
  local library flags
  for library in "$bundle/lib/libgpu_timeline.so" "$bundle/bin/libgpu_timeline.so" ''; do [[ -e $library ]] && break; done
  [[ -n $library ]] || { row timeline absent "not run: there is no libgpu_timeline.so"; return; }
  mlperf 65536 24 bf16
  attempt timeline 60 env CUDA_INJECTION64_PATH="$library" NVTX_INJECTION64_PATH="$library" GPU_TIMELINE="$out/timeline.json" \
    GPU_TIMELINE_SKIP_MS=3000 "${run[@]}" dlrm "${flags[@]}" || return
  gzip -f "$out/timeline.json" && row timeline yes "$(grep -m 1 '^GPU ' "$details/timeline.log" | tr -s ' ')" "$took"
}
step_torch() {
  have_torch || return
  local batch=$([[ $toy -eq 1 ]] && echo 64 || echo 65536)
  rm -f "$out/torch.json"
  attempt torch 90 "$torch_python" "$peers" dlrm --device="$peer_device" --batch="$batch" --report="$out/torch.json" "${peer_sizes[@]}"
  keep train --check "torch dlrm, batch $batch" --precision bf16 --first "$details/train_${batch}_bf16_1.json" \
    --report "$details/train_${batch}_bf16_2.json" --peers "$out/torch.json" --only_peers
}
# The third launch: the first ones load the kernel and warm the caches.
profile() {  # profile KERNEL PROGRAM FLAG ...
  local kernel=$1
  shift
  # By HOTROW_LAUNCHER, so that ncu starts the program itself and no shell.
  attempt "profile_$kernel" 30 env HOTROW_LAUNCHER="$ncu --set full --clock-control none -k regex:$kernel -s 2 -c 1 -f -o $out/profiles/$kernel" \
    "${run[@]}" "$@" || return
  if [[ -s $out/profiles/$kernel.ncu-rep ]]; then
    "$ncu" -i "$out/profiles/$kernel.ncu-rep" --page details >"$out/profiles/$kernel.txt" 2>&1
    row "profile $kernel" yes "$(grep -m 1 'Memory Throughput' "$out/profiles/$kernel.txt" | tr -s ' ')" "$took"
  else
    row "profile $kernel" no "ncu ended well and wrote nothing: no kernel of that name ran" "$took"
  fi
}
step_profiles() {
  ncu=$(PATH=$PATH:/usr/local/cuda/bin command -v ncu) || { row profiles absent "not run: ncu is not on this machine"; return; }
  mkdir -p "$out/profiles"
  local sizes=("${bench_sizes[@]}")
  [[ $toy -eq 1 ]] || sizes=(--quick --repeats=1)
  profile FindRowsKernel gpu_bench "${sizes[@]}" --only=find
  profile PlaceMissesKernel gpu_bench "${sizes[@]}" --only=insert
  profile PoolKernel gpu_bench "${sizes[@]}" --only=lookup
  profile SumRowsKernel gpu_bench "${sizes[@]}" --only=gradient_sum
  profile FusedUpdateKernel gpu_bench "${sizes[@]}" --only=update
  tar -C "$out" -czf "$out/profiles.tar.gz" profiles && rm -rf "$out/profiles"
}

# --- Run ------------------------------------------------------------------------------------------------
bench_sizes=()
find_sizes=(--dims=8,64,128 --loads=0.5,1.0)
peer_sizes=()
if [[ $toy -eq 1 ]]; then
  bench_sizes=(--toy)
  find_sizes=()
  peer_sizes=(--toy)
fi
case $stage in
  smoke) steps=(libraries tests dlrm) ;;
  bench) steps=(step find ops dense tiers plans) ;;
  train) steps=(train timeline torch profiles) ;;
  more) steps=(bus gemm peers sanitizer models) ;;
esac
step_device
for step in "${steps[@]}"; do
  wanted "$step" && "step_$step"
done
finish
