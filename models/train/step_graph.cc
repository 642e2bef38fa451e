#include <utility>

#include "base/status_macros.h"
#include "models/train/step_graph_impl.h"

namespace hotrow {

bool StepGraph::Serves(const CtrModel& model) {
  return model.device() != Device::kCpu && model.unpooled_features().empty() &&
         model.untrained_parameters().empty();
}

absl::Status StepGraph::Run(const ExecContext& ctx, int64_t batch_size,
                            absl::FunctionRef<absl::Status(const ExecContext& ctx)> enqueue) {
  if (batch_size != batch_size_) return enqueue(ctx);
  if (!is_ready_) {
    HOTROW_RETURN_IF_ERROR(enqueue(ctx));
    is_ready_ = true;
    return absl::OkStatus();
  }
  if (!graph_.has_value()) {
    HOTROW_ASSIGN_OR_RETURN(graph_, DeviceGraph::Capture(ctx, enqueue));
  }
  ++launches_;
  return graph_->Launch(ctx);
}

}  // namespace hotrow
