#include <algorithm>

#include "ops/half_impl.h"
#include "ops/launch_impl.cuh"
#include "ops/rows/row_layout.h"
#include "ops/rows/row_sum_impl.cuh"
#include "ops/update/sparse_optimizer.h"
#include "ops/update/sparse_optimizer_formulas_impl.h"
#include "ops/update/sparse_optimizer_impl.h"
#include "ops/update/sparse_update_impl.cuh"

namespace hotrow::internal {
namespace {

struct UpdatedRows {
  std::byte* const* rows;
  const float* const* gradients;
  const uint64_t* keys;  // null where nothing is rounded
  int64_t num_rows;
  RowParts parts;
  int64_t step_offset;
  uint64_t rounding_seed;
  uint32_t table;
  int32_t lanes;  // threads of a row: a power of two up to 32
  uint32_t step;
  unsigned long long* new_rows;
  const uint32_t* skip;  // null, or where it is not 0 nothing is done
};

// MeanSquare of sparse_optimizer_cpu.cc, by eight threads that each do the sum of one lane.
// Every eight threads of the warp get the mean of the row that they name (more than eight of one
// row do the same work twice, out of the L1 cache). All 32 threads call; dim = 0 gives those
// without a row something to do.
template <WeightsPrecision kPrecision>
__device__ float MeanSquare(const StepNumbers<float>& numbers, const std::byte* row,
                            const float* gradient, int32_t dim) {
  float sum = 0;
#pragma unroll 4
  for (int64_t d = threadIdx.x % kMeanSquareLanes; d < dim; d += kMeanSquareLanes) {
    const float g = numbers.Gradient(gradient[d], LoadWeightQuad<kPrecision>(row, d, 1).x);
    sum = sum + g * g;
  }
  return SumOfLanes(kAllLanes, sum) / static_cast<float>(dim);
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
  return numbers.learning_rate * TrustRatio(SumOfLanes(kAllLanes, weight_squares),
                                            SumOfLanes(kAllLanes, direction_squares));
}

// A tile of threads for each row. Warps stay together: those of their tiles that have no row left
// take part in what the others need all 32 threads for.
template <typename Formula, WeightsPrecision kPrecision>
__global__ void __launch_bounds__(kThreadsPerBlock)
    UpdateKernel(const StepNumbers<float> numbers, const UpdatedRows args) {
  if (args.skip != nullptr && *args.skip != 0) return;
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
    RowStep move = {.first_update = first_update};
    if constexpr (Formula::kRowState || Formula::kTrustRatio) {
      const int32_t dim = active ? args.parts.dim : 0;
      float* const states = args.parts.StateAt(row, 0, 0);
      float* const state_at = args.parts.StateAt(row, Formula::kColumnStates, 0);
      float state = 0;
      if constexpr (Formula::kRowState) {
        if (active) state = *state_at;
        move.rate =
            Formula::RowRate(numbers, MeanSquare<kPrecision>(numbers, row, gradient, dim), &state);
      }
      if constexpr (Formula::kTrustRatio) {
        move.trust_rate =
            TrustRate<Formula, kPrecision>(numbers, move.rate, row, states, gradient, dim);
      }
      __syncwarp();  // all have read weights and state before one of them writes
      if (Formula::kRowState && active && lane == 0) *state_at = state;
    } else {
      __syncwarp();  // all have read the last step
    }
    if (!active) continue;
    const uint64_t key = kPrecision == WeightsPrecision::kFp32 ? 0 : args.keys[u];
    for (int64_t column = int64_t{lane} * RowTiles::kColumns; moves && column < args.parts.dim;
         column += int64_t{args.lanes} * RowTiles::kColumns) {
      const int32_t width = RowTiles::Width(args.parts.dim, column);
      RowQuads x = LoadRowQuads<Formula, kPrecision>(args.parts, row, column, width);
      MoveQuads<Formula>(numbers, move, LoadQuad(gradient + column, width), &x);
      StoreRowQuads<Formula, kPrecision>(args.parts, x, args.rounding_seed, key, args.table, row,
                                         column, width);
    }
    if (lane == 0) {
      *step_at = args.step;
      new_rows += first_update ? 1 : 0;
    }
  }
  if (args.new_rows != nullptr) AddOfBlock(new_rows, args.new_rows);
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
        .parts = RowParts::Of(layout, Formula::kColumnStates),
        .step_offset = layout.step_offset,
        .rounding_seed = kPrecision == WeightsPrecision::kFp32 ? 0 : UpdateSeed(args),
        .table = args.table,
        .lanes = lanes,
        .step = args.step,
        .new_rows = reinterpret_cast<unsigned long long*>(args.new_rows),
        .skip = args.skip};
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
