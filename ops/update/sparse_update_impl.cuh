#ifndef HOTROW_OPS_UPDATE_SPARSE_UPDATE_IMPL_CUH_
#define HOTROW_OPS_UPDATE_SPARSE_UPDATE_IMPL_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/philox.h"
#include "ops/half_impl.h"
#include "ops/launch_impl.cuh"
#include "ops/rows/row_sum_impl.cuh"
#include "ops/rows/row_tiles_impl.h"
#include "ops/rows/weights_precision.h"
#include "ops/update/sparse_optimizer_formulas_impl.h"
#include "ops/update/sparse_optimizer_impl.h"

// What the kernels that update rows share: how a thread moves its four columns.
namespace hotrow::internal {

// Four columns of a row, with what state they have.
struct RowQuads {
  float4 w;
  float4 s1;
  float4 s2;
};

// Where a row's numbers lie, the same for all rows of a layout.
struct RowParts {
  int64_t state_offset;
  int32_t dim;
  bool quads_aligned;  // every whole quad of weights or state lies on its own size

  static RowParts Of(const RowLayout& layout, int32_t column_states) {
    constexpr int64_t kBytes = sizeof(float4);
    return {layout.state_offset, layout.dim,
            column_states == 0 || (layout.state_offset % kBytes == 0 &&
                                   (column_states == 1 || layout.dim % RowTiles::kColumns == 0))};
  }
  __device__ float* StateAt(std::byte* row, int32_t state, int64_t column) const {
    return reinterpret_cast<float*>(row + state_offset) + state * int64_t{dim} + column;
  }
};

// Columns [column, column + width), width in [1, 4]. kWhole: width is 4 and parts.quads_aligned.
template <typename Formula, WeightsPrecision kPrecision, bool kWhole = false>
__device__ inline RowQuads LoadRowQuads(const RowParts& parts, std::byte* row, int64_t column,
                                        int32_t width) {
  constexpr float4 kZero = {0, 0, 0, 0};
  RowQuads x = {kZero, kZero, kZero};
  const auto load = [width](const float* at) {
    return kWhole ? *reinterpret_cast<const float4*>(at) : LoadQuad(at, width);
  };
  x.w = kWhole ? LoadWholeQuad<kPrecision>(row + column * WeightBytes(kPrecision))
               : LoadWeightQuad<kPrecision>(row, column, width);
  if constexpr (Formula::kColumnStates > 0) x.s1 = load(parts.StateAt(row, 0, column));
  if constexpr (Formula::kColumnStates > 1) x.s2 = load(parts.StateAt(row, 1, column));
  return x;
}

// And back. Weights of 16 bits are rounded with the words that `seed`, key and table give.
template <typename Formula, WeightsPrecision kPrecision>
__device__ inline void StoreRowQuads(const RowParts& parts, const RowQuads& x, uint64_t seed,
                                     uint64_t key, uint32_t table, std::byte* row, int64_t column,
                                     int32_t width) {
  if constexpr (Formula::kColumnStates > 0) StoreQuad(x.s1, parts.StateAt(row, 0, column), width);
  if constexpr (Formula::kColumnStates > 1) StoreQuad(x.s2, parts.StateAt(row, 1, column), width);
  PhiloxBlock words = {};
  if constexpr (kPrecision != WeightsPrecision::kFp32) {
    words = RandomBlock(seed, RandomPurpose::kRounding, key, table,
                        static_cast<uint32_t>(column / RowTiles::kColumns));
  }
  StoreWeightQuad<kPrecision>(x.w, words, row, column, width);
}

// What all columns of a row share.
struct RowStep {
  float rate = 0;        // with kRowState
  float trust_rate = 0;  // with kTrustRatio
  bool first_update = false;
};

// Moves the columns. Those that the row does not have are computed too; they need not be stored.
template <typename Formula>
__device__ inline void MoveQuads(const StepNumbers<float>& numbers, const RowStep& step,
                                 float4 gradients, RowQuads* quads) {
  const auto move = [&](float& weight, float& state1, float& state2, float gradient_in) {
    StepColumns<float> x = {weight, state1, state2};
    const float gradient = numbers.Gradient(gradient_in, weight);
    if constexpr (Formula::kTrustRatio) {
      x.w = x.w - step.trust_rate * Formula::Direction(numbers, step.rate, gradient, x);
    } else {
      Formula::Apply(numbers, step.rate, step.first_update, gradient, x);
    }
    weight = x.w;
    state1 = x.s1;
    state2 = x.s2;
  };
  move(quads->w.x, quads->s1.x, quads->s2.x, gradients.x);
  move(quads->w.y, quads->s1.y, quads->s2.y, gradients.y);
  move(quads->w.z, quads->s1.z, quads->s2.z, gradients.z);
  move(quads->w.w, quads->s1.w, quads->s2.w, gradients.w);
}

// The butterfly adds neighbours, pairs and fours, as the CPU does. All threads of `mask` call,
// eights of neighbours; each gets the sum of its eight.
__device__ inline float SumOfLanes(unsigned mask, float sum) {
#pragma unroll
  for (int distance = 1; distance < kMeanSquareLanes; distance *= 2) {
    sum = sum + __shfl_xor_sync(mask, sum, distance);
  }
  return sum;
}

// Adds up what the threads of a block count to one number of the device; all of them call.
__device__ inline void AddOfBlock(unsigned count, unsigned long long* total) {
  __shared__ unsigned block_count;
  if (threadIdx.x == 0) block_count = 0;
  __syncthreads();
  if (count > 0) atomicAdd(&block_count, count);
  __syncthreads();
  if (threadIdx.x == 0 && block_count > 0) atomicAdd(total, block_count);
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_UPDATE_SPARSE_UPDATE_IMPL_CUH_
