#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/math.h"
#include "ops/layers/batch_norm_impl.h"

namespace hotrow::internal {
namespace {

// A row is a microsecond or less of work.
constexpr int64_t kChunkRows = 64;

// Two sums for each column over the rows of the batch, block by block and then over the blocks:
// add(row, to the first sums, to the second sums).
template <typename Add>
void SumRows(ThreadPool* pool, int64_t rows, int64_t columns, std::byte* workspace, double* sums,
             const Add& add) {
  const int64_t width = 2 * columns;
  auto* const block_sums = reinterpret_cast<double*>(workspace);
  ParallelFor(pool, rows, kBatchNormBlockRows, [&](int64_t begin, int64_t end) {
    double* const to = block_sums + begin / kBatchNormBlockRows * width;
    std::fill_n(to, width, 0.0);
    for (int64_t r = begin; r < end; ++r) add(r, to, to + columns);
  });
  std::fill_n(sums, width, 0.0);
  for (int64_t block = 0; block < CeilDiv(rows, kBatchNormBlockRows); ++block) {
    const double* const from = block_sums + block * width;
    for (int64_t i = 0; i < width; ++i) sums[i] += from[i];
  }
}

}  // namespace

absl::Status BatchNormSumsCpu(ThreadPool* pool, const BatchNormSumsArgs& args) {
  SumRows(pool, args.batch_size, args.columns, args.workspace, args.sums,
          [&](int64_t r, double* sum, double* squares) {
            const float* const row = args.x + r * args.x_stride;
            for (int32_t i = 0; i < args.columns; ++i) {
              const double value = row[i];
              sum[i] += value;
              squares[i] += value * value;
            }
          });
  return absl::OkStatus();
}

absl::Status BatchNormMomentsCpu(const BatchNormMomentsArgs& args) {
  for (int32_t i = 0; i < args.columns; ++i) ColumnMoments(args, i);
  return absl::OkStatus();
}

absl::Status BatchNormRunningCpu(const BatchNormRunningArgs& args) {
  for (int32_t i = 0; i < args.columns; ++i) {
    args.scale.mean[i] = args.mean[i];
    args.scale.inverse_deviation[i] = InverseDeviation(args.variance[i]);
  }
  return absl::OkStatus();
}

// Arrays are named one by one, and not by NormColumn, so that the loops become vectors.
absl::Status BatchNormCpu(ThreadPool* pool, const BatchNormArgs& args) {
  const float* const mean = args.scale.mean;
  const float* const inverse_deviation = args.scale.inverse_deviation;
  const float* const gamma = args.gamma;
  const float* const beta = args.beta;
  ParallelFor(pool, args.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const row = args.x + r * args.x_stride;
      float* const y = args.output + r * args.output_stride;
      for (int32_t i = 0; i < args.columns; ++i) {
        const float z = gamma[i] * ((row[i] - mean[i]) * inverse_deviation[i]) + beta[i];
        y[i] = args.relu && z < 0 ? 0.0f : z;
      }
    }
  });
  return absl::OkStatus();
}

absl::Status BatchNormGradSumsCpu(ThreadPool* pool, const BatchNormGradSumsArgs& args) {
  const BatchNormArgs& forward = args.forward;
  SumRows(pool, forward.batch_size, forward.columns, args.workspace, args.sums,
          [&](int64_t r, double* of_gamma, double* of_beta) {
            const float* const row = forward.x + r * forward.x_stride;
            const float* const dy = args.output_gradient + r * args.output_gradient_stride;
            for (int32_t i = 0; i < forward.columns; ++i) {
              const NormColumn column = ColumnOf(forward, i);
              const float normalized = column.Normalized(row[i]);
              const float g = forward.relu && column.Scaled(normalized) <= 0 ? 0.0f : dy[i];
              of_gamma[i] += static_cast<double>(g) * normalized;
              of_beta[i] += g;
            }
          });
  for (int32_t i = 0; i < 2 * forward.columns; ++i) {
    args.gradients[i] = static_cast<float>(args.sums[i]);
  }
  return absl::OkStatus();
}

absl::Status BatchNormInputGradCpu(ThreadPool* pool, const BatchNormInputGradArgs& args) {
  const BatchNormArgs& forward = args.forward;
  const auto columns = static_cast<size_t>(forward.columns);
  const double n = std::max(static_cast<double>(args.samples), 1.0);
  std::vector<float> mean_of_products(columns), mean_of_gradients(columns);
  for (size_t i = 0; i < columns; ++i) {
    mean_of_products[i] = static_cast<float>(args.sums[i] / n);
    mean_of_gradients[i] = static_cast<float>(args.sums[columns + i] / n);
  }
  ParallelFor(pool, forward.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const row = forward.x + r * forward.x_stride;
      const float* const dy = args.output_gradient + r * args.output_gradient_stride;
      float* const to = args.x_gradient + r * args.x_gradient_stride;
      for (size_t i = 0; i < columns; ++i) {
        const NormColumn column = ColumnOf(forward, static_cast<int64_t>(i));
        const float normalized = column.Normalized(row[i]);
        const float g = forward.relu && column.Scaled(normalized) <= 0 ? 0.0f : dy[i];
        to[i] = column.gamma * column.inverse_deviation *
                (g - mean_of_gradients[i] - normalized * mean_of_products[i]);
      }
    }
  });
  return absl::OkStatus();
}

absl::Status BatchNormEndStepCpu(const BatchNormEndStepArgs& args) {
  for (int32_t i = 0; i < args.columns; ++i) EndStepOfColumn(args, i);
  return absl::OkStatus();
}

}  // namespace hotrow::internal
