#ifndef HOTROW_OPS_UPDATE_STEP_HISTORY_IMPL_H_
#define HOTROW_OPS_UPDATE_STEP_HISTORY_IMPL_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "ops/update/sparse_optimizer_formulas_impl.h"
#include "ops/update/step_history.h"

namespace hotrow::internal {

// Steps in a row whose numbers have the same bits.
struct StepRun {
  uint32_t last_step = 0;
  StepNumbers<float> numbers;
};

// The steps that a row has to make up for: those in (after, the last of `runs`].
struct MissedSteps {
  uint32_t after = 0;
  std::span<const StepRun> runs;

  static MissedSteps Of(const StepHistory& history, uint32_t row_last_step) {
    const uint32_t after = std::max(row_last_step, history.base());
    const std::span<const StepRun> runs = history.runs();
    const auto first =
        std::upper_bound(runs.begin(), runs.end(), after,
                         [](uint32_t step, const StepRun& run) { return step < run.last_step; });
    return {after, {first, runs.end()}};
  }
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_UPDATE_STEP_HISTORY_IMPL_H_
