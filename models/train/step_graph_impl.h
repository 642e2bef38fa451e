#ifndef HOTROW_MODELS_TRAIN_STEP_GRAPH_IMPL_H_
#define HOTROW_MODELS_TRAIN_STEP_GRAPH_IMPL_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/device_graph.h"
#include "base/exec_context.h"
#include "models/zoo/ctr_model.h"

namespace hotrow {

// The dense part of a step on a GPU, forward, loss and backward, as one CUDA graph: dozens of
// launches become one. Only batches of the whole size go that way; a short one at the end of an
// epoch is enqueued piece by piece. What differs from step to step lies on the device: features,
// labels, rows, the number of the step.
//
// Threads: one call at a time. Errors: those of what it enqueues, and of the device.
class StepGraph {
 public:
  // batch_size: of a whole batch.
  explicit StepGraph(int64_t batch_size) : batch_size_(batch_size) {}

  // Whether the model does the same in each step with any batch: its shapes do not follow from the
  // batch's rows. One rank alone.
  static bool Serves(const CtrModel& model);

  // Enqueues on ctx.stream what `enqueue` does on the stream of the context it gets. The first
  // whole batch is enqueued by it, since it makes ready what is made once; the second one is
  // recorded; later ones do not call it. Steps that read rows where they lie are a separate graph.
  absl::Status Run(const ExecContext& ctx, int64_t batch_size, bool reads_rows,
                   absl::FunctionRef<absl::Status(const ExecContext& ctx)> enqueue);

  int64_t launches() const { return launches_; }

 private:
  const int64_t batch_size_;
  struct Recording {
    bool is_ready = false;
    std::optional<DeviceGraph> graph;
  };
  std::array<Recording, 2> recordings_;  // of steps that read embeddings, and rows
  int64_t launches_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_STEP_GRAPH_IMPL_H_
