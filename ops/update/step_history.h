#ifndef HOTROW_OPS_UPDATE_STEP_HISTORY_H_
#define HOTROW_OPS_UPDATE_STEP_HISTORY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/update/sparse_optimizer_config.h"

namespace hotrow {

namespace internal {
struct StepRun;
}  // namespace internal

// StepHistory is the steps that tables of one optimizer have made: what SparseUpdate needs to make
// up, in WeightDecayMode::kTable, for those that did not touch a row.
//
// Memory:  68 bytes for each step whose numbers differ from those of the step before: every step of
//          a warm-up or of a decaying rate; of Adam and LAMB those until the bias correction has
//          become 1, some 17,000 with the usual betas; otherwise one for each change of the rate.
// Threads: any number read; Append alone.
class StepHistory {
 public:
  // base: steps that nobody makes up for: a row that was updated before it stands as after it, and
  // so do first values.
  explicit StepHistory(const SparseOptimizerConfig& config, uint32_t base = 0);
  ~StepHistory();
  StepHistory(const StepHistory&) = delete;
  StepHistory& operator=(const StepHistory&) = delete;

  // Step number steps() + 1 was made at this factor.
  void Append(float learning_rate_factor);
  uint32_t base() const { return base_; }
  uint32_t steps() const { return steps_; }  // the last one, base included

  // The runs, for the ops.
  std::span<const internal::StepRun> runs() const;

 private:
  const SparseOptimizerConfig config_;
  const uint32_t base_;
  uint32_t steps_;
  std::vector<internal::StepRun> runs_;
};

}  // namespace hotrow

#endif  // HOTROW_OPS_UPDATE_STEP_HISTORY_H_
