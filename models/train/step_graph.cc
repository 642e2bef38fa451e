#include <utility>

#include "base/status_macros.h"
#include "models/train/step_graph_impl.h"

namespace hotrow {

bool StepGraph::Serves(const CtrModel& model) {
  return model.device() != Device::kCpu && model.unpooled_features().empty();
}

absl::Status StepGraph::Run(const ExecContext& ctx, int64_t batch_size, bool reads_rows,
                            absl::FunctionRef<absl::Status(const ExecContext& ctx)> enqueue) {
  if (batch_size != batch_size_) return enqueue(ctx);
  Recording& recording = recordings_[reads_rows ? 1 : 0];
  if (!recording.is_ready) {
    HOTROW_RETURN_IF_ERROR(enqueue(ctx));
    recording.is_ready = true;
    return absl::OkStatus();
  }
  if (!recording.graph.has_value()) {
    HOTROW_ASSIGN_OR_RETURN(recording.graph, DeviceGraph::Capture(ctx, enqueue));
  }
  ++launches_;
  return recording.graph->Launch(ctx);
}

}  // namespace hotrow
