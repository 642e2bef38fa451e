#include <cmath>
#include <cstdint>

#include "ops/layers/silu_impl.h"

namespace hotrow::internal {
namespace {

// A row is a microsecond or less of work.
constexpr int64_t kChunkRows = 64;

// function(row) for rows of some numbers each.
template <typename Function>
absl::Status ForRows(ThreadPool* pool, int64_t num_rows, const Function& function) {
  ParallelFor(pool, num_rows, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) function(r);
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status SiluCpu(ThreadPool* pool, const SiluArgs& args) {
  return ForRows(pool, args.num_rows, [&](int64_t r) {
    const float* const x = args.x + r * args.x_stride;
    float* const y = args.output + r * args.output_stride;
    for (int32_t i = 0; i < args.columns; ++i) y[i] = x[i] / (1 + std::exp(-x[i]));
  });
}

// silu'(x) = s (1 + x (1 - s)) with s = 1 / (1 + exp(-x)).
absl::Status SiluGradCpu(ThreadPool* pool, const SiluGradArgs& args) {
  return ForRows(pool, args.num_rows, [&](int64_t r) {
    const float* const x = args.x + r * args.x_stride;
    float* const gradient = args.gradient + r * args.gradient_stride;
    for (int32_t i = 0; i < args.columns; ++i) {
      const float s = 1 / (1 + std::exp(-x[i]));
      gradient[i] *= s * (1 + x[i] * (1 - s));
    }
  });
}

absl::Status RowProductsCpu(ThreadPool* pool, const RowProductsArgs& args) {
  return ForRows(pool, args.num_rows, [&](int64_t r) {
    const float* const a = args.a + r * args.a_stride;
    const float* const b = args.b + r * args.b_stride;
    float* const y = args.output + r * args.output_stride;
    for (int32_t i = 0; i < args.columns; ++i) y[i] = a[i] * b[i];
  });
}

}  // namespace hotrow::internal
