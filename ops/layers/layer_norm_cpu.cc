#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/math.h"
#include "ops/layers/layer_norm_impl.h"

namespace hotrow::internal {
namespace {

// A row is a microsecond or less of work.
constexpr int64_t kChunkRows = 64;

// How a row is normalized, float by float. Its sums are double, so that what cancels is the
// rounding of floats alone.
struct RowNorm {
  float mean = 0;
  float inverse_deviation = 0;

  RowNorm(const float* x, int32_t columns) {
    double sum = 0;
    for (int32_t i = 0; i < columns; ++i) sum += x[i];
    const double center = sum / columns;
    double squares = 0;
    for (int32_t i = 0; i < columns; ++i) {
      const double distance = x[i] - center;
      squares += distance * distance;
    }
    mean = static_cast<float>(center);
    inverse_deviation = static_cast<float>(1 / std::sqrt(squares / columns + kLayerNormEpsilon));
  }
  float Normalized(float x) const { return (x - mean) * inverse_deviation; }
};

}  // namespace

absl::Status LayerNormCpu(ThreadPool* pool, const LayerNormArgs& args) {
  ParallelFor(pool, args.num_rows, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const x = args.x + r * args.x_stride;
      float* const y = args.output + r * args.output_stride;
      const RowNorm norm(x, args.columns);
      for (int32_t i = 0; i < args.columns; ++i) {
        y[i] = args.gamma[i] * norm.Normalized(x[i]) + args.beta[i];
      }
    }
  });
  return absl::OkStatus();
}

// With n = normalized x and g = gamma o dy: dx = (g - mean(g) - n mean(g o n)) / deviation.
absl::Status LayerNormGradCpu(ThreadPool* pool, const LayerNormGradArgs& args) {
  const int32_t columns = args.columns;
  auto* const block_sums = reinterpret_cast<double*>(args.workspace);
  ParallelFor(pool, args.num_rows, kLayerNormBlockRows, [&](int64_t begin, int64_t end) {
    double* const of_gamma = block_sums + begin / kLayerNormBlockRows * 2 * columns;
    double* const of_beta = of_gamma + columns;
    std::fill_n(of_gamma, 2 * int64_t{columns}, 0.0);
    for (int64_t r = begin; r < end; ++r) {
      const float* const x = args.x + r * args.x_stride;
      const float* const dy = args.output_gradient + r * args.output_gradient_stride;
      float* const dx = args.x_gradient + r * args.x_gradient_stride;
      const RowNorm norm(x, columns);
      double sum = 0;
      double products = 0;
      for (int32_t i = 0; i < columns; ++i) {
        const double n = norm.Normalized(x[i]);
        const double g = static_cast<double>(args.gamma[i]) * dy[i];
        sum += g;
        products += g * n;
        of_gamma[i] += dy[i] * n;
        of_beta[i] += dy[i];
      }
      const auto mean_of_gradients = static_cast<float>(sum / columns);
      const auto mean_of_products = static_cast<float>(products / columns);
      for (int32_t i = 0; i < columns; ++i) {
        const float g = args.gamma[i] * dy[i];
        dx[i] = norm.inverse_deviation *
                (g - mean_of_gradients - norm.Normalized(x[i]) * mean_of_products);
      }
    }
  });
  for (int32_t i = 0; i < columns; ++i) {
    double of_gamma = 0;
    double of_beta = 0;
    for (int64_t block = 0; block < CeilDiv(args.num_rows, kLayerNormBlockRows); ++block) {
      const double* const from = block_sums + block * 2 * columns;
      of_gamma += from[i];
      of_beta += from[columns + i];
    }
    args.gamma_gradient[i] = static_cast<float>(of_gamma);
    args.beta_gradient[i] = static_cast<float>(of_beta);
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
