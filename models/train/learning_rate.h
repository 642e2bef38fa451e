#ifndef HOTROW_MODELS_TRAIN_LEARNING_RATE_H_
#define HOTROW_MODELS_TRAIN_LEARNING_RATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "models/saving/training_state.h"

namespace hotrow {

// The learning-rate schedule and early stopping. Field names are flag names. With the defaults the
// rate is constant and the run does not stop early.
struct LearningRateOptions {
  int64_t lr_warmup_steps = 0;  // 0: none
  int64_t lr_decay_start = 0;   // the step at which the decay begins; not before the warm-up's end
  int64_t lr_decay_steps = 0;   // 0: no decay
  double lr_plateau_factor = 0.1;      // in (0, 1]
  int64_t lr_plateau_patience = 0;     // validations; 0: never
  int64_t early_stop_patience = 0;     // validations; 0: never
  double validation_min_delta = 1e-6;  // a validation AUC is better when it is higher by more

  absl::Status Validate() const;  // names the flag, the limit and the value it got
};

// The factor of the schedule for update number `step`, counted from 1; it multiplies the learning
// rates of tables and dense parameters alike. With W = lr_warmup_steps, S = lr_decay_start and
// D = lr_decay_steps:
//
//   step <  W         step / W
//   W <= step < S     1
//   S <= step < S+D   ((S + D - step) / D)^2
//   S+D <= step       (1 / D)^2, where the decay ended
//
// These are the rules of LRPolicyScheduler in facebookresearch/dlrm, which MLPerf's DLRM uses, with
// two differences. Between warm-up and decay the factor here is 1; there it stays at (W - 1) / W,
// the last rate of the warm-up. And here rates may fall below 1e-7.
double ScheduleFactor(const LearningRateOptions& options, int64_t step);

// Evaluates the validations of a run: which was the best, when to lower the rate, when to stop. A
// pure function of the AUCs.
//
// A validation is better when its AUC is above the best so far by more than validation_min_delta;
// the first one always is. Two counters run over validations that are not better:
// - at lr_plateau_patience the factor is multiplied by lr_plateau_factor and this counter restarts,
//   so that a longer plateau lowers the rate again;
// - at early_stop_patience the run ends. Lowering the rate does not reset this counter; a better
//   validation resets both.
//
// "Learning rate x 0.1 on a plateau, best epoch by validation, patience 2" of FuxiCTR and BARS is
// lr_plateau_patience = 1 and early_stop_patience = 2: the first validation that is not better
// lowers the rate, the second in a row ends the run. Training continues from the current
// parameters, not from the best ones.
class ValidationPolicy {
 public:
  explicit ValidationPolicy(const LearningRateOptions& options) : options_(options) {}

  struct Verdict {
    bool better = false;   // the best so far
    bool lowered = false;  // factor() has just become smaller
    bool stop = false;     // the run should end
  };
  Verdict Observe(double auc);

  double factor() const { return state_.factor; }  // multiplies the schedule's

  // For checkpoints.
  const ValidationState& state() const { return state_; }
  void set_state(const ValidationState& state) { state_ = state; }

 private:
  LearningRateOptions options_;
  ValidationState state_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_LEARNING_RATE_H_
