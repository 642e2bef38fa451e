#include <atomic>

#include "ops/training/loss_scale_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kChunk = 1 << 14;

}  // namespace

absl::Status ScaleGradientCpu(ThreadPool* pool, const LossScaleArgs& args) {
  const float scale = args.state->scale;
  ParallelFor(pool, std::ssize(args.gradient), kChunk, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) args.gradient[static_cast<size_t>(i)] *= scale;
  });
  return absl::OkStatus();
}

absl::Status UnscaleGradientCpu(ThreadPool* pool, const LossScaleArgs& args) {
  const float inverse = 1 / args.state->scale;
  std::atomic<bool> finite = true;
  ParallelFor(pool, std::ssize(args.gradient), kChunk, [&](int64_t begin, int64_t end) {
    bool here = true;
    for (int64_t i = begin; i < end; ++i) {
      float& x = args.gradient[static_cast<size_t>(i)];
      here = here && IsFinite(x);
      x *= inverse;
    }
    if (!here) finite = false;
  });
  if (!finite) args.state->non_finite = 1;
  return absl::OkStatus();
}

}  // namespace hotrow::internal
