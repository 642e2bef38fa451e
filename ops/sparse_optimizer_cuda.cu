#include <algorithm>

#include "base/philox.h"
#include "ops/half_impl.h"
#include "ops/launch_impl.cuh"
#include "ops/row_layout.h"
#include "ops/row_sum_impl.cuh"
#include "ops/sparse_optimizer.h"
#include "ops/sparse_optimizer_formulas_impl.h"
#include "ops/sparse_optimizer_impl.h"

namespace hotrow::internal {
namespace {

struct UpdatedRows {
  std::byte* const* rows;
  const float* const* gradients;
  const uint64_t* keys;  // null where nothing is rounded
  int64_t num_rows;
  int64_t state_offset;
  int64_t step_offset;
  uint64_t rounding_seed;
  uint32_t table;
  int32_t dim;
  int32_t lanes;  // threads of a row: a power of two up to 32
  uint32_t step;
  unsigned long long* new_rows;
};

// The butterfly adds neighbours, pairs and fours, as the CPU does.
__device__ inline float SumOfLanes(float sum) {
#pragma unroll
  for (int distance = 1; distance < kMeanSquareLanes; distance *= 2) {
    sum = sum + __shfl_xor_sync(kAllLanes, sum, distance);
  }
  return sum;
}

// MeanSquare of sparse_optimizer_cpu.cc, by eight threads that each do the sum of one lane.
// Every eight threads of the warp
// get the mean of the row that they name (more than eight of one row do the same work twice, out of
// the L1 cache). All 32 threads call; dim = 0 gives those without a row something to do.
template <WeightsPrecision kPrecision>
__device__ float MeanSquare(const StepNumbers<float>& numbers, const std::byte* row,
                            const float* gradient, int32_t dim) {
  float sum = 0;
#pragma unroll 4
  for (int64_t d = threadIdx.x % kMeanSquareLanes; d < dim; d += kMeanSquareLanes) {
    const float g = numbers.Gradient(gradient[d], LoadWeightQuad<kPrecision>(row, d, 1).x);
    sum = sum + g * g;
  }
  return SumOfLanes(sum) / static_cast<float>(dim);
}

// TrustRate of sparse_optimizer_cpu.cc, as MeanSquare; `state` is the row's.
template <typename Formula, WeightsPrecision kPrecision>
__device__ float TrustRate(const StepNumbers<float>& numbers, float rate, const std::byte* row,
                           const float* state, const float* gradient, int32_t dim) {
  float weight_squares = 0;
  float direction_squares = 0;
#pragma unroll 4
  for (int64_t d = threadIdx.x % kMeanSquareLanes; d < dim; d += kMeanSquareLanes) {
    StepColumns<float> x = {LoadWeightQuad<kPrecision>(row, d, 1).x, 0, 0};
    if constexpr (Formula::kColumnStates > 0) x.s1 = state[d];
    if constexpr (Formula::kColumnStates > 1) x.s2 = state[dim + d];
    const float g = numbers.Gradient(gradient[d], x.w);
    const float direction = Formula::Direction(numbers, rate, g, x);
    weight_squares = weight_squares + x.w * x.w;
    direction_squares = direction_squares + direction * direction;
  }
  return numbers.learning_rate *
         TrustRatio(SumOfLanes(weight_squares), SumOfLanes(direction_squares));
}

// The quad that begins at `column`; the key is the row's.
template <typename Formula, WeightsPrecision kPrecision>
__device__ void UpdateQuad(const StepNumbers<float>& numbers, const UpdatedRows& args, float rate,
                           float trust_rate, bool first_update, uint64_t key, std::byte* row,
                           const float* gradient, int64_t column) {
  const int32_t width = RowTiles::Width(args.dim, column);
  float* const s1_at = reinterpret_cast<float*>(row + args.state_offset) + column;
  float* const s2_at = s1_at + args.dim;
  float4 w = LoadWeightQuad<kPrecision>(row, column, width);
  const float4 g = LoadQuad(gradient + column, width);
  float4 s1 = make_float4(0, 0, 0, 0);
  float4 s2 = make_float4(0, 0, 0, 0);
  if constexpr (Formula::kColumnStates > 0) s1 = LoadQuad(s1_at, width);
  if constexpr (Formula::kColumnStates > 1) s2 = LoadQuad(s2_at, width);
  const auto apply = [&](float& weight, float& state1, float& state2, float gradient_in) {
    StepColumns<float> x = {weight, state1, state2};
    const float gradient = numbers.Gradient(gradient_in, weight);
    if constexpr (Formula::kTrustRatio) {
      x.w = x.w - trust_rate * Formula::Direction(numbers, rate, gradient, x);
    } else {
      Formula::Apply(numbers, rate, first_update, gradient, x);
    }
    weight = x.w;
    state1 = x.s1;
    state2 = x.s2;
  };
  // Columns that the row does not have are computed too, and not stored.
  apply(w.x, s1.x, s2.x, g.x);
  apply(w.y, s1.y, s2.y, g.y);
  apply(w.z, s1.z, s2.z, g.z);
  apply(w.w, s1.w, s2.w, g.w);
  if constexpr (Formula::kColumnStates > 0) StoreQuad(s1, s1_at, width);
  if constexpr (Formula::kColumnStates > 1) StoreQuad(s2, s2_at, width);
  PhiloxBlock words = {};
  if constexpr (kPrecision != WeightsPrecision::kFp32) {
    words = RandomBlock(args.rounding_seed, RandomPurpose::kRounding, key, args.table,
                        static_cast<uint32_t>(column / RowTiles::kColumns));
  }
  StoreWeightQuad<kPrecision>(w, words, row, column, width);
}

// A tile of threads for each row. Warps stay together: those of their tiles that have no row left
// take part in what the others need all 32 threads for.
template <typename Formula, WeightsPrecision kPrecision>
__global__ void __launch_bounds__(kThreadsPerBlock)
    UpdateKernel(const StepNumbers<float> numbers, const UpdatedRows args) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) & (args.lanes - 1);
  const int32_t tile = (static_cast<int32_t>(threadIdx.x) % kWarpThreads) / args.lanes;
  const int64_t warp_rows = kWarpThreads / args.lanes;
  const bool moves = !Formula::kDividesByRate || numbers.learning_rate != 0;
  unsigned new_rows = 0;
  for (int64_t base = GridGroup() * warp_rows; base < args.num_rows;
       base += GridGroups() * warp_rows) {
    const int64_t u = base + tile;
    const bool active = u < args.num_rows;
    std::byte* const row = active ? args.rows[u] : nullptr;
    const float* const gradient = active ? args.gradients[u] : nullptr;
    uint32_t* const step_at =
        active ? reinterpret_cast<uint32_t*>(row + args.step_offset) : nullptr;
    const bool first_update = active && *step_at == 0;
    float rate = 0;
    float trust_rate = 0;
    if constexpr (Formula::kRowState || Formula::kTrustRatio) {
      const int32_t dim = active ? args.dim : 0;
      float* const states = reinterpret_cast<float*>(row + args.state_offset);
      float* const state_at = states + Formula::kColumnStates * int64_t{args.dim};
      float state = 0;
      if constexpr (Formula::kRowState) {
        if (active) state = *state_at;
        rate =
            Formula::RowRate(numbers, MeanSquare<kPrecision>(numbers, row, gradient, dim), &state);
      }
      if constexpr (Formula::kTrustRatio) {
        trust_rate = TrustRate<Formula, kPrecision>(numbers, rate, row, states, gradient, dim);
      }
      __syncwarp();  // all have read weights and state before one of them writes
      if (Formula::kRowState && active && lane == 0) *state_at = state;
    } else {
      __syncwarp();  // all have read the last step
    }
    if (!active) continue;
    const uint64_t key = kPrecision == WeightsPrecision::kFp32 ? 0 : args.keys[u];
    for (int64_t column = int64_t{lane} * RowTiles::kColumns; moves && column < args.dim;
         column += int64_t{args.lanes} * RowTiles::kColumns) {
      UpdateQuad<Formula, kPrecision>(numbers, args, rate, trust_rate, first_update, key, row,
                                      gradient, column);
    }
    if (lane == 0) {
      *step_at = args.step;
      new_rows += first_update ? 1 : 0;
    }
  }
  if (args.new_rows == nullptr) return;  // all threads, or none
  __shared__ unsigned block_new_rows;
  if (threadIdx.x == 0) block_new_rows = 0;
  __syncthreads();
  if (new_rows > 0) atomicAdd(&block_new_rows, new_rows);
  __syncthreads();
  if (threadIdx.x == 0 && block_new_rows > 0) atomicAdd(args.new_rows, block_new_rows);
}

}  // namespace

absl::Status SparseUpdateCuda(const SparseUpdateArgs& args, CudaStream stream) {
  const StepNumbers<float> numbers = NumbersOf(args);
  const RowLayout& layout = *args.layout;
  const auto launch = [&](auto formula, auto precision) -> absl::Status {
    using Formula = decltype(formula);
    constexpr WeightsPrecision kPrecision = precision();
    const int32_t lanes = UpdateTiles<Formula>(layout.dim).lanes;
    const UpdatedRows rows = {
        .rows = args.rows,
        .gradients = args.gradients,
        .keys = args.keys,
        .num_rows = args.num_rows,
        .state_offset = layout.state_offset,
        .step_offset = layout.step_offset,
        .rounding_seed = kPrecision == WeightsPrecision::kFp32 ? 0 : UpdateSeed(args),
        .table = args.table,
        .dim = layout.dim,
        .lanes = lanes,
        .step = args.step,
        .new_rows = reinterpret_cast<unsigned long long*>(args.new_rows)};
    const unsigned blocks =
        std::min(GridBlocks(args.num_rows, kThreadsPerBlock / lanes), kUpdateBlocksMax);
    UpdateKernel<Formula, kPrecision><<<blocks, kThreadsPerBlock, 0, stream>>>(numbers, rows);
    return LastLaunch("SparseUpdate");
  };
  return WithFormula(args.config, [&](auto formula) {
    return WithPrecision(layout.precision,
                         [&](auto precision) { return launch(formula, precision); });
  });
}

}  // namespace hotrow::internal
