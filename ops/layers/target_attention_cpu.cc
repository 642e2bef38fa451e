#include <algorithm>
#include <cstdint>

#include "ops/layers/target_attention_impl.h"

namespace hotrow::internal {
namespace {

// A sample has some dozens of rows.
constexpr int64_t kChunkSamples = 16;

// function(sample, its rows)
template <typename Function>
absl::Status ForSamples(ThreadPool* pool, const JaggedRows& rows, const Function& function) {
  ParallelFor(pool, rows.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) function(b, RowsOf(rows, b));
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status TargetPairsCpu(ThreadPool* pool, const TargetPairsArgs& args) {
  const int64_t d = args.rows.dim;
  return ForSamples(pool, args.rows, [&](int64_t b, const RowRange& range) {
    const float* const t = args.target + b * args.target_stride;
    for (int64_t j = range.begin; j < range.end; ++j) {
      const float* const h = args.rows.rows + (j - range.shift) * d;
      float* const pair = args.pairs + j * 4 * d;
      for (int64_t i = 0; i < d; ++i) {
        pair[i] = h[i];
        pair[d + i] = t[i];
        pair[2 * d + i] = h[i] - t[i];
        pair[3 * d + i] = h[i] * t[i];
      }
    }
  });
}

absl::Status WeightedRowSumCpu(ThreadPool* pool, const WeightedRowSumArgs& args) {
  const int64_t d = args.rows.dim;
  if (args.rows.shared && args.weights == nullptr && args.rows.batch_size > 1) {  // one sum for all
    WeightedRowSumArgs first = args;
    first.rows.batch_size = 1;
    const absl::Status summed = WeightedRowSumCpu(pool, first);
    for (int64_t b = 1; b < args.rows.batch_size; ++b) {
      std::copy_n(args.output, d, args.output + b * args.output_stride);
    }
    return summed;
  }
  return ForSamples(pool, args.rows, [&](int64_t b, const RowRange& range) {
    float* const y = args.output + b * args.output_stride;
    std::fill_n(y, d, 0.0f);
    for (int64_t j = range.begin; j < range.end; ++j) {
      const float* const h = args.rows.rows + (j - range.shift) * d;
      const float weight = args.weights == nullptr ? 1.0f : args.weights[j];
      for (int64_t i = 0; i < d; ++i) y[i] += weight * h[i];
    }
  });
}

absl::Status RowWeightGradCpu(ThreadPool* pool, const RowWeightGradArgs& args) {
  const int64_t d = args.rows.dim;
  return ForSamples(pool, args.rows, [&](int64_t b, const RowRange& range) {
    const float* const dy = args.output_gradient + b * args.output_gradient_stride;
    for (int64_t j = range.begin; j < range.end; ++j) {
      float sum = 0;
      for (int64_t i = 0; i < d; ++i) sum += dy[i] * args.rows.rows[j * d + i];
      args.weight_gradient[j] = sum;
    }
  });
}

absl::Status RowSumGradCpu(ThreadPool* pool, const RowSumGradArgs& args) {
  const int64_t d = args.rows.dim;
  return ForSamples(pool, args.rows, [&](int64_t b, const RowRange& range) {
    const float* const dy = args.output_gradient + b * args.output_gradient_stride;
    for (int64_t j = range.begin; j < range.end; ++j) {
      for (int64_t i = 0; i < d; ++i) args.row_gradient[j * d + i] += dy[i];
    }
  });
}

absl::Status TargetAttentionGradCpu(ThreadPool* pool, const TargetAttentionGradArgs& args) {
  const int64_t d = args.rows.dim;
  return ForSamples(pool, args.rows, [&](int64_t b, const RowRange& range) {
    const float* const dy = args.output_gradient + b * args.output_gradient_stride;
    const float* const t = args.target + b * args.target_stride;
    float* const dt = args.target_gradient == nullptr
                          ? nullptr
                          : args.target_gradient + b * args.target_gradient_stride;
    if (dt != nullptr) std::fill_n(dt, d, 0.0f);
    for (int64_t j = range.begin; j < range.end; ++j) {
      const float* const h = args.rows.rows + j * d;
      const float* const g = args.pair_gradient + j * 4 * d;
      float* const dh = args.row_gradient + j * d;
      for (int64_t i = 0; i < d; ++i) {
        dh[i] += args.weights[j] * dy[i] + g[i] + g[2 * d + i] + t[i] * g[3 * d + i];
      }
      if (dt == nullptr) continue;
      for (int64_t i = 0; i < d; ++i) dt[i] += g[d + i] - g[2 * d + i] + h[i] * g[3 * d + i];
    }
  });
}

}  // namespace hotrow::internal
