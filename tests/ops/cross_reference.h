#ifndef HOTROW_TESTS_OPS_CROSS_REFERENCE_H_
#define HOTROW_TESTS_OPS_CROSS_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "ops/layers/cross_network.h"
#include "tests/ops/dense_test_util.h"

// What cross networks are held against, on every device.
namespace hotrow::test {

inline constexpr float kCrossUnused = -77.0f;

struct CrossProblem {
  CrossNetworkOptions options;
  int64_t batch_size = 0;
  int64_t stride = 0;  // of x, y, dy and dx
  std::vector<float> parameters, x, dy;
};

// Small weights: a cross layer multiplies magnitudes, and error bounds with them.
inline CrossProblem RandomCrossProblem(const CrossNetwork& net, const CrossNetworkOptions& options,
                                       int64_t batch_size, uint64_t seed, int64_t gap = 3) {
  CrossProblem p{.options = options, .batch_size = batch_size, .stride = options.width + gap};
  RandomStream random(seed, RandomPurpose::kTest);
  p.parameters.resize(static_cast<size_t>(net.num_parameters()));
  net.InitParameters(seed, p.parameters);
  for (int32_t l = 0; l < options.num_layers; ++l) {  // they start as zeros
    for (int32_t i = 0; i < options.width; ++i) {
      p.parameters[static_cast<size_t>(net.bias_offset(l) + i)] = 0.3f * random.Normal();
    }
  }
  p.x = RandomFloats(random, batch_size * p.stride);
  p.dy = RandomFloats(random, batch_size * p.stride);
  return p;
}

struct CrossResult {
  std::vector<float> y, dx, parameter_gradients;
  friend bool operator==(const CrossResult& a, const CrossResult& b) {
    return Bits(a.y) == Bits(b.y) && Bits(a.dx) == Bits(b.dx) &&
           Bits(a.parameter_gradients) == Bits(b.parameter_gradients);
  }
};

// --- reference: the formulas of the two papers in double, one sample at a time ---

inline std::vector<double> CrossReferenceOutput(const CrossNetwork& net,
                                                const CrossNetworkOptions& o,
                                                const double* parameters,
                                                const std::vector<double>& x0) {
  const auto width = static_cast<size_t>(o.width);
  const auto rank = static_cast<size_t>(o.rank);
  std::vector<double> x = x0;
  for (int32_t l = 0; l < o.num_layers; ++l) {
    const double* const w = parameters + net.weight_offset(l);
    const double* const b = parameters + net.bias_offset(l);
    std::vector<double> next(width);
    if (o.kind == CrossKind::kVector) {
      double product = 0;
      for (size_t i = 0; i < width; ++i) product += x[i] * w[i];
      for (size_t i = 0; i < width; ++i) next[i] = x0[i] * product + b[i] + x[i];
    } else {
      std::vector<double> t(b, b + width);
      if (rank > 0) {
        const double* const u = parameters + net.u_offset(l);
        for (size_t k = 0; k < rank; ++k) {
          double h = 0;
          for (size_t i = 0; i < width; ++i) h += w[k * width + i] * x[i];
          for (size_t i = 0; i < width; ++i) t[i] += u[i * rank + k] * h;
        }
      } else {
        for (size_t i = 0; i < width; ++i) {
          for (size_t j = 0; j < width; ++j) t[i] += w[i * width + j] * x[j];
        }
      }
      for (size_t i = 0; i < width; ++i) next[i] = x0[i] * t[i] + x[i];
    }
    x = std::move(next);
  }
  return x;
}

inline std::vector<double> CrossReferenceRow(const CrossNetwork& net, const CrossProblem& p,
                                             const std::vector<double>& parameters,
                                             const std::vector<double>& x, int64_t b) {
  const double* const row = x.data() + b * p.stride;
  return CrossReferenceOutput(net, p.options, parameters.data(), {row, row + p.options.width});
}

inline void ExpectCrossForward(const CrossNetwork& net, const CrossProblem& p,
                               const CrossResult& r) {
  const std::vector<double> parameters(p.parameters.begin(), p.parameters.end());
  const std::vector<double> x(p.x.begin(), p.x.end());
  for (int64_t b = 0; b < p.batch_size; ++b) {
    const std::vector<double> want = CrossReferenceRow(net, p, parameters, x, b);
    double scale = 1;
    for (const double v : want) scale = std::max(scale, std::abs(v));
    for (int64_t i = 0; i < p.stride; ++i) {
      const float got = r.y[static_cast<size_t>(b * p.stride + i)];
      if (i < p.options.width) {
        ASSERT_NEAR(got, want[static_cast<size_t>(i)], 2e-5 * scale) << b << "," << i;
      } else {
        ASSERT_EQ(got, kCrossUnused) << "the gap after row " << b;
      }
    }
  }
}

// Every derivative of sum(dy o y) against its central difference.
inline void ExpectCrossBackward(const CrossNetwork& net, const CrossProblem& p,
                                const CrossResult& r) {
  std::vector<double> parameters(p.parameters.begin(), p.parameters.end());
  std::vector<double> x(p.x.begin(), p.x.end());
  const auto row_loss = [&](int64_t b) {
    const std::vector<double> y = CrossReferenceRow(net, p, parameters, x, b);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      sum += y[i] * p.dy[static_cast<size_t>(b * p.stride) + i];
    }
    return sum;
  };
  const auto slope = [&](double& at, const auto& loss) {
    constexpr double kStep = 1e-5;
    const double saved = at;
    at = saved + kStep;
    const double up = loss();
    at = saved - kStep;
    const double down = loss();
    at = saved;
    return (up - down) / (2 * kStep);
  };
  double largest = 0;
  for (int64_t b = 0; b < p.batch_size; ++b) {
    for (int64_t i = 0; i < p.stride; ++i) {
      const auto at = static_cast<size_t>(b * p.stride + i);
      if (i >= p.options.width) {
        ASSERT_EQ(r.dx[at], kCrossUnused) << "the gap after row " << b;
        continue;
      }
      const double want = slope(x[at], [&] { return row_loss(b); });
      largest = std::max(largest, std::abs(want));
      ASSERT_NEAR(r.dx[at], want, 1e-4 * (1 + std::abs(want))) << "dx " << b << "," << i;
    }
  }
  EXPECT_GT(largest, 1e-2) << "nothing was tested";
  largest = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const double want = slope(parameters[i], [&] {
      double sum = 0;
      for (int64_t b = 0; b < p.batch_size; ++b) sum += row_loss(b);
      return sum;
    });
    largest = std::max(largest, std::abs(want));
    ASSERT_NEAR(r.parameter_gradients[i], want, 2e-4 * (1 + std::abs(want))) << "parameter " << i;
  }
  EXPECT_GT(largest, 1e-2) << "nothing was tested";
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_OPS_CROSS_REFERENCE_H_
