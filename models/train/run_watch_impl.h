#ifndef HOTROW_MODELS_TRAIN_RUN_WATCH_IMPL_H_
#define HOTROW_MODELS_TRAIN_RUN_WATCH_IMPL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "models/saving/training_state.h"
#include "models/train/metrics_export.h"
#include "models/train/run_metrics.h"
#include "models/train/run_parts_impl.h"
#include "models/train/trainer_options.h"

namespace hotrow {

// The numbers of one run for whoever watches it: collects them between steps and publishes them by
// a MetricsExport. Where the options name neither a file nor a port all calls do nothing.
//
// Ranks:   each has its own; no call is collective.
// Threads: one call at a time, on the thread that trains.
// Errors:  of Start, those of MetricsExport; later none.
class RunWatch {
 public:
  // What the trainer knows of a moment.
  struct Moment {
    const TrainingState& at;
    int64_t train_ns = 0;
    double epochs = 0;
    double learning_rate_factor = 0;
  };

  // What it is given outlives it.
  RunWatch(const TrainerOptions& options, const ExecContext& ctx);

  // First, before anything costs time: a port that is taken is refused here.
  absl::Status Start();
  // The parts of the run, once they are open; they outlive this. The first numbers.
  void Attach(RunParts* parts);

  // After a training step that took so long: publishes what is due. Its gradients are still where
  // the step left them.
  void StepMade(int64_t nanos, const Moment& moment);
  // The run begins to do something else than training.
  void Publish(RunState state, const Moment& moment);
  // A number was not finite, which ends the run.
  void Diverged() { numbers_.divergences = 1; }
  // The run has failed: what was published last, and that.
  void Failed();
  // Nothing may follow. The first error of the file, if there was one.
  absl::Status Close();

  // Where the numbers are; empty: nowhere.
  std::string where() const;

 private:
  bool on() const { return export_ != nullptr; }
  // Those of the step that was made last.
  void CheckGradients();

  const TrainerOptions& options_;
  const ExecContext ctx_;
  std::string file_;
  RunParts* parts_ = nullptr;
  RunMetrics numbers_;
  std::unique_ptr<MetricsExport> export_;  // null: nobody watches
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_RUN_WATCH_IMPL_H_
