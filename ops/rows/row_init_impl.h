#ifndef HOTROW_OPS_ROWS_ROW_INIT_IMPL_H_
#define HOTROW_OPS_ROWS_ROW_INIT_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"
#include "base/philox.h"
#include "ops/rows/row_init.h"
#include "ops/update/sparse_optimizer.h"

namespace hotrow::internal {

absl::Status InitRowsCpu(const ExecContext& ctx, const RowInitArgs& args);
absl::Status InitRowsCuda(const RowInitArgs& args, CudaStream stream);

// Columns 4 c to 4 c + 3 of a row come from the four words of one Philox block, so no two columns
// of a table share random bits.
HOTROW_HOST_DEVICE constexpr PhiloxBlock WeightBlock(uint64_t seed, uint32_t table, uint64_t key,
                                                     uint32_t c) {
  return RandomBlock(seed, RandomPurpose::kRowInit, key, table, c);
}

// 2 u - 1 is exact, and at most 1 - 2^-23, so the product never rounds up to `value`.
HOTROW_HOST_DEVICE constexpr float UniformWeight(float value, uint32_t word) {
  return value * (2 * UniformFloat(word) - 1);
}

// An optimizer's state before the first step is zero but for floats [begin, end) of it, which are
// the initial accumulator.
struct AccumulatorRange {
  int64_t begin = 0;
  int64_t end = 0;

  static AccumulatorRange For(SparseOptimizerKind optimizer, int64_t dim) {
    const SparseOptimizerFacts& facts = FactsOf(optimizer);
    if (facts.accumulator < 0) return {};
    const int64_t begin = facts.accumulator * dim;
    // What lies behind the states of the columns is the row's.
    return {begin, begin + (facts.accumulator < facts.column_states ? dim : 1)};
  }
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_ROWS_ROW_INIT_IMPL_H_
