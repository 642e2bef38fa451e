#include <algorithm>
#include <cstdint>

#include "ops/interactions/cin_products_impl.h"

namespace hotrow::internal {
namespace {

// Samples, and rows of samples, of one piece of work.
constexpr int64_t kChunkSamples = 8;
constexpr int64_t kChunkRows = 64;

}  // namespace

absl::Status TransposeFieldsCpu(ThreadPool* pool, const TransposeFieldsArgs& args) {
  ParallelFor(pool, args.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const float* const from = args.from + b * args.from_stride;
      float* const to = args.to + b * args.to_stride;
      for (int64_t r = 0; r < args.rows; ++r) {
        const float* const row = from + r * args.from_row_stride;
        for (int64_t c = 0; c < args.columns; ++c) to[c * args.to_row_stride + r] = row[c];
      }
    }
  });
  return absl::OkStatus();
}

absl::Status CinProductsCpu(ThreadPool* pool, const CinProductsArgs& args) {
  const int64_t x_columns = args.x_columns;
  const int64_t x0_columns = args.x0_columns;
  ParallelFor(pool, args.num_rows, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const x = args.x + r * x_columns;
      const float* const x0 = args.x0 + r * x0_columns;
      float* product = args.products + r * x_columns * x0_columns;
      for (int64_t i = 0; i < x_columns; ++i, product += x0_columns) {
        const float xi = x[i];
        for (int64_t j = 0; j < x0_columns; ++j) product[j] = xi * x0[j];
      }
    }
  });
  return absl::OkStatus();
}

absl::Status CinProductsGradCpu(ThreadPool* pool, const CinProductsGradArgs& args) {
  const int64_t x_columns = args.forward.x_columns;
  const int64_t x0_columns = args.forward.x0_columns;
  ParallelFor(pool, args.forward.num_rows, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const x = args.forward.x + r * x_columns;
      const float* const x0 = args.forward.x0 + r * x0_columns;
      const float* dz = args.products_gradient + r * x_columns * x0_columns;
      float* const dx0 = args.x0_gradient + r * x0_columns;
      if (!args.add_to_x0_gradient) std::fill_n(dx0, x0_columns, 0.0f);
      for (int64_t i = 0; i < x_columns; ++i, dz += x0_columns) {
        const float xi = x[i];
        float sum = 0;
        for (int64_t j = 0; j < x0_columns; ++j) sum += dz[j] * x0[j];
        for (int64_t j = 0; j < x0_columns; ++j) dx0[j] += dz[j] * xi;
        if (args.x_gradient == nullptr) {
          dx0[i] += sum;
        } else {
          args.x_gradient[r * x_columns + i] = sum;
        }
      }
    }
  });
  return absl::OkStatus();
}

absl::Status CinSumCpu(ThreadPool* pool, const CinSumArgs& args) {
  const int64_t columns = args.columns;
  ParallelFor(pool, args.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      float* const y = args.output + b * args.output_stride;
      std::fill_n(y, columns, 0.0f);
      for (int64_t d = 0; d < args.rows; ++d) {
        const float* const values = args.values + (b * args.rows + d) * columns;
        for (int64_t h = 0; h < columns; ++h) y[h] += values[h];
      }
    }
  });
  return absl::OkStatus();
}

absl::Status CinSumGradCpu(ThreadPool* pool, const CinSumGradArgs& args) {
  const int64_t columns = args.columns;
  ParallelFor(pool, args.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin * args.rows; r < end * args.rows; ++r) {
      const float* const from = args.output_gradient + r / args.rows * args.output_gradient_stride;
      float* const to = args.values_gradient + r * columns;
      for (int64_t h = 0; h < columns; ++h) to[h] = args.add ? to[h] + from[h] : from[h];
    }
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
