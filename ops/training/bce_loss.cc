#include "ops/training/bce_loss.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/training/bce_loss_impl.h"
#include "ops/validate.h"

namespace hotrow {

absl::Status BceWithLogitsArgs::Validate() const {
  if (batch_size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("BceWithLogitsArgs: batch_size must be >= 0, got ", batch_size));
  }
  if (mean_over != 0 && mean_over < batch_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("BceWithLogitsArgs: mean_over must be 0 or >= batch_size = ", batch_size,
                     ", got ", mean_over));
  }
  if (stride < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("BceWithLogitsArgs: stride must be >= 1, got ", stride));
  }
  if (!std::isfinite(weight)) {
    return absl::InvalidArgumentError(
        absl::StrCat("BceWithLogitsArgs: weight must be finite, got ", weight));
  }
  if (loss == nullptr) {
    return absl::InvalidArgumentError("BceWithLogitsArgs: loss must not be null");
  }
  if (batch_size > 0 && logits == nullptr) {
    return absl::InvalidArgumentError("BceWithLogitsArgs: logits must not be null");
  }
  if (batch_size > 0 && labels == nullptr) {
    return absl::InvalidArgumentError("BceWithLogitsArgs: labels must not be null");
  }
  return absl::OkStatus();
}

int64_t BceWithLogitsWorkspaceBytes(Device device, int64_t batch_size) {
  if (device == Device::kCpu) return 0;
  return RoundUp(CeilDiv(batch_size, kBceChunkSamples) * static_cast<int64_t>(sizeof(double)),
                 kBufferAlignment);
}

absl::Status BceWithLogits(const ExecContext& ctx, const BceWithLogitsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(
      internal::CheckWorkspace("BceWithLogits", args.workspace, args.workspace_bytes,
                               BceWithLogitsWorkspaceBytes(ctx.device, args.batch_size)));
  return internal::Dispatch(
      ctx, [&] { return internal::BceWithLogitsCpu(ctx.pool, args); },
      [&](auto stream) { return internal::BceWithLogitsCuda(stream, args); });
}

double Sigmoid(double x) {
  // exp never overflows this way, and for a large negative x the small result keeps its digits.
  const double e = std::exp(-std::abs(x));
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

}  // namespace hotrow
