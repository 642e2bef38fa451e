#include <algorithm>
#include <cstdint>

#include "ops/layers/crossing_impl.h"

namespace hotrow::internal {
namespace {

// A row is a microsecond or less of work.
constexpr int64_t kChunkRows = 64;

}  // namespace

absl::Status CrossingCpu(ThreadPool* pool, const CrossingArgs& args) {
  ParallelFor(pool, args.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const x0 = args.x0 + r * args.x0_stride;
      const float* const t = args.t + r * args.t_stride;
      const float* const x = args.x + r * args.x_stride;
      float* const y = args.output + r * args.output_stride;
      for (int32_t i = 0; i < args.width; ++i) y[i] = x0[i] * t[i] + x[i];
    }
  });
  return absl::OkStatus();
}

absl::Status CrossingGradCpu(ThreadPool* pool, const CrossingGradArgs& args) {
  ParallelFor(pool, args.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const dy = args.output_gradient + r * args.output_gradient_stride;
      const auto multiply = [&](const float* factor, float* to) {
        for (int32_t i = 0; i < args.width; ++i) to[i] = dy[i] * factor[i];
      };
      if (args.x0_gradient != nullptr) {
        multiply(args.t + r * args.t_stride, args.x0_gradient + r * args.x0_gradient_stride);
      }
      if (args.t_gradient != nullptr) {
        multiply(args.x0 + r * args.x0_stride, args.t_gradient + r * args.t_gradient_stride);
      }
      if (args.x_gradient != nullptr) {
        std::copy_n(dy, args.width, args.x_gradient + r * args.x_gradient_stride);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
