#ifndef HOTROW_OPS_UPDATE_SPARSE_OPTIMIZER_IMPL_H_
#define HOTROW_OPS_UPDATE_SPARSE_OPTIMIZER_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <tuple>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/exec_context.h"
#include "ops/half_impl.h"
#include "ops/rows/row_layout.h"
#include "ops/rows/row_tiles_impl.h"
#include "ops/update/sparse_optimizer.h"
#include "ops/update/sparse_optimizer_formulas_impl.h"

namespace hotrow::internal {

// What all rows of a step share.
inline StepNumbers<float> NumbersOf(const SparseUpdateArgs& args) {
  return StepNumbers<float>::Of(args.config, args.learning_rate_factor, args.step);
}

// The seed of the words that a step rounds weights of 16 bits with, see half_impl.h.
inline uint64_t UpdateSeed(const SparseUpdateArgs& args) {
  return RoundingSeed(args.seed, RoundingUse::kWeights, args.step, 0);
}

// body(formula) with the formula of the optimizer: the first that fits, from place `kFirst` on.
template <size_t kFirst = 0, typename Body>
absl::Status WithFormula(const SparseOptimizerConfig& config, Body&& body) {
  using Formula = std::tuple_element_t<kFirst, SparseFormulas>;
  const bool fits = Formula::kKind == config.kind && Formula::Fits(config);
  if constexpr (kFirst + 1 < std::tuple_size_v<SparseFormulas>) {
    if (!fits) return WithFormula<kFirst + 1>(config, body);
  }
  HOTROW_CHECK(fits);  // SparseFormulas has all kinds
  return body(Formula());
}

// Squares of a row are summed by eight threads, the lanes of the CPU's Vec8.
constexpr int32_t kMeanSquareLanes = 8;
// One tile a row, of any width: columns beyond the tile's are walked.
template <typename Formula>
constexpr RowTiles UpdateTiles(int32_t dim) {
  return RowTiles::For(dim, Formula::kRowState || Formula::kTrustRatio ? kMeanSquareLanes : 1);
}
// A block adds what it has counted to one number, so there are not more blocks than fill a large
// GPU a few times.
constexpr unsigned kUpdateBlocksMax = 8192;

absl::Status SparseUpdateCpu(const ExecContext& ctx, const SparseUpdateArgs& args);
absl::Status CatchUpCpu(const ExecContext& ctx, const CatchUpArgs& args);
absl::Status SparseUpdateCuda(const SparseUpdateArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_UPDATE_SPARSE_OPTIMIZER_IMPL_H_
