#include <algorithm>
#include <cstdint>

#include "ops/layers/linear_term_impl.h"

namespace hotrow::internal {
namespace {

// A row is a microsecond or less of work.
constexpr int64_t kChunkRows = 64;
// Columns whose sums over the rows are made together: some cache lines of each row.
constexpr int64_t kChunkColumns = 64;

}  // namespace

absl::Status LinearTermCpu(ThreadPool* pool, const LinearTermArgs& args) {
  ParallelFor(pool, args.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const float* const row = args.x + b * args.x_stride;
      float sum = 0;
      for (int64_t i = 0; i < args.columns; ++i) sum += row[i] * args.weights[i];
      args.output[b * args.output_stride] = sum;
    }
  });
  return absl::OkStatus();
}

absl::Status LinearTermInputGradCpu(ThreadPool* pool, const LinearTermInputGradArgs& args) {
  ParallelFor(pool, args.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      float* const row = args.x_gradient + b * args.x_gradient_stride;
      const float g = args.output_gradient[b * args.output_gradient_stride];
      for (int64_t i = 0; i < args.columns; ++i) row[i] = g * args.weights[i];
    }
  });
  return absl::OkStatus();
}

// Sums run in the order of samples, with any pool.
absl::Status LinearTermWeightGradCpu(ThreadPool* pool, const LinearTermWeightGradArgs& args) {
  ParallelFor(pool, args.columns, kChunkColumns, [&](int64_t begin, int64_t end) {
    std::fill(args.weight_gradient + begin, args.weight_gradient + end, 0.0f);
    for (int64_t b = 0; b < args.batch_size; ++b) {
      const float* const row = args.x + b * args.x_stride;
      const float g = args.output_gradient[b * args.output_gradient_stride];
      for (int64_t i = begin; i < end; ++i) args.weight_gradient[i] += g * row[i];
    }
  });
  return absl::OkStatus();
}

absl::Status BiasGradCpu(const BiasGradArgs& args) {
  float sum = 0;
  for (int64_t b = 0; b < args.batch_size; ++b) {
    sum += args.output_gradient[b * args.output_gradient_stride];
  }
  *args.bias_gradient = sum;
  return absl::OkStatus();
}

}  // namespace hotrow::internal
