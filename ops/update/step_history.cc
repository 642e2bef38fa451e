#include "ops/update/step_history.h"

#include <cstring>

#include "base/check.h"
#include "ops/update/step_history_impl.h"

namespace hotrow {

using internal::StepNumbers;

namespace {

// Whether the numbers of a step follow from its own number, too.
bool CorrectsBias(SparseOptimizerKind kind) {
  switch (kind) {
    case SparseOptimizerKind::kAdam:
    case SparseOptimizerKind::kPartialRowWiseAdam:
    case SparseOptimizerKind::kLamb:
    case SparseOptimizerKind::kPartialRowWiseLamb:
      return true;
    case SparseOptimizerKind::kSgd:
    case SparseOptimizerKind::kMomentum:
    case SparseOptimizerKind::kAdagrad:
    case SparseOptimizerKind::kRowWiseAdagrad:
    case SparseOptimizerKind::kFtrl:
      return false;
  }
  return true;
}

}  // namespace

StepHistory::StepHistory(const SparseOptimizerConfig& config, uint32_t base)
    : config_(config), base_(base), steps_(base) {}
StepHistory::~StepHistory() = default;

std::span<const internal::StepRun> StepHistory::runs() const { return runs_; }

void StepHistory::Append(float learning_rate_factor) {
  HOTROW_CHECK(steps_ < UINT32_MAX);
  ++steps_;
  // The formulas of the others do not read what would differ from step to step.
  const auto numbers = StepNumbers<float>::Of(config_, learning_rate_factor,
                                              CorrectsBias(config_.kind) ? steps_ : 1);
  // Bits, since what is not a number equals nothing.
  if (runs_.empty() || std::memcmp(&runs_.back().numbers, &numbers, sizeof(numbers)) != 0) {
    runs_.push_back({steps_, numbers});
  }
  runs_.back().last_step = steps_;
}

}  // namespace hotrow
