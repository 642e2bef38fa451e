#include "ops/layers/layer_norm.h"

#include <cmath>
#include <cstddef>
#include <vector>

#include "base/buffer.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

// Rows of C columns with one more behind them, their scale and shift, and results.
struct Problem {
  int64_t num_rows;
  int32_t columns;
  std::vector<float> x, gamma, beta, dy, y, dx, dgamma, dbeta;

  int64_t stride() const { return columns + 1; }

  Problem(int64_t n, int32_t c, uint64_t seed) : num_rows(n), columns(c) {
    RandomStream random(seed, RandomPurpose::kTest);
    x = test::RandomFloats(random, n * stride());
    for (float& value : x) value += 3;
    gamma = test::RandomFloats(random, c);
    beta = test::RandomFloats(random, c);
    dy = test::RandomFloats(random, n * stride());
    y.assign(x.size(), 9.0f);
    dx.assign(x.size(), 9.0f);
    dgamma.assign(gamma.size(), NAN);
    dbeta.assign(gamma.size(), NAN);
  }

  void Run(ThreadPool* pool, bool in_place) {
    HOTROW_ASSERT_OK(LayerNorm(test::OnPool(pool), {.num_rows = num_rows,
                                                    .columns = columns,
                                                    .x = x.data(),
                                                    .x_stride = stride(),
                                                    .gamma = gamma.data(),
                                                    .beta = beta.data(),
                                                    .output = y.data(),
                                                    .output_stride = stride()}));
    if (in_place) dx = dy;
    const int64_t bytes = LayerNormGradWorkspaceBytes(num_rows, columns);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto workspace, HostBuffer<std::byte>::Create(bytes));
    HOTROW_ASSERT_OK(
        LayerNormGrad(test::OnPool(pool), {.num_rows = num_rows,
                                           .columns = columns,
                                           .x = x.data(),
                                           .x_stride = stride(),
                                           .gamma = gamma.data(),
                                           .output_gradient = in_place ? dx.data() : dy.data(),
                                           .output_gradient_stride = stride(),
                                           .x_gradient = dx.data(),
                                           .x_gradient_stride = stride(),
                                           .gamma_gradient = dgamma.data(),
                                           .beta_gradient = dbeta.data(),
                                           .workspace = workspace.data(),
                                           .workspace_bytes = bytes}));
  }
};

std::vector<double> Reference(const Problem& p, const std::vector<double>& x,
                              const std::vector<double>& gamma, const std::vector<double>& beta) {
  std::vector<double> y(x.size());
  const auto columns = static_cast<size_t>(p.columns);
  for (size_t row = 0; row < x.size(); row += columns + 1) {
    double mean = 0;
    for (size_t i = 0; i < columns; ++i) mean += x[row + i] / p.columns;
    double variance = 0;
    for (size_t i = 0; i < columns; ++i) {
      variance += (x[row + i] - mean) * (x[row + i] - mean) / p.columns;
    }
    for (size_t i = 0; i < columns; ++i) {
      y[row + i] = gamma[i] * (x[row + i] - mean) / std::sqrt(variance + 1e-5) + beta[i];
    }
  }
  return y;
}

TEST(LayerNormTest, ForwardAndBackwardMatchTheReference) {
  for (const int32_t columns : {1, 5, 8}) {
    SCOPED_TRACE(columns);
    Problem p(6, columns, 2);
    p.Run(nullptr, /*in_place=*/false);
    std::vector<double> x(p.x.begin(), p.x.end());
    std::vector<double> gamma(p.gamma.begin(), p.gamma.end());
    std::vector<double> beta(p.beta.begin(), p.beta.end());
    const std::vector<double> expected = Reference(p, x, gamma, beta);
    const auto is_column = [&](size_t i) {
      return static_cast<int64_t>(i) % p.stride() < p.columns;
    };
    for (size_t i = 0; i < x.size(); ++i) {
      if (is_column(i)) {
        EXPECT_NEAR(p.y[i], expected[i], 1e-5) << i;
      } else {
        EXPECT_EQ(p.y[i], 9) << i;
        EXPECT_EQ(p.dx[i], 9) << i;
      }
    }
    const auto objective = [&] {
      const std::vector<double> y = Reference(p, x, gamma, beta);
      double sum = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        if (is_column(i)) sum += p.dy[i] * y[i];
      }
      return sum;
    };
    const auto slope = [&](double* at) {
      constexpr double kH = 1e-5;
      const double saved = *at;
      *at = saved + kH;
      const double above = objective();
      *at = saved - kH;
      const double out = (above - objective()) / (2 * kH);
      *at = saved;
      return out;
    };
    for (size_t i = 0; i < x.size(); ++i) {
      if (!is_column(i)) continue;
      EXPECT_NEAR(p.dx[i], slope(&x[i]), 1e-4) << i;
    }
    for (size_t i = 0; i < gamma.size(); ++i) {
      EXPECT_NEAR(p.dgamma[i], slope(&gamma[i]), 1e-4) << i;
      EXPECT_NEAR(p.dbeta[i], slope(&beta[i]), 1e-4) << i;
    }
  }
}

TEST(LayerNormTest, EqualBitsOnAnyPoolAndInPlace) {
  std::vector<std::vector<uint32_t>> bits;
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    Problem p(1000, 12, 3);
    p.Run(&pool, /*in_place=*/threads == 2);
    std::vector<uint32_t>& all = bits.emplace_back();
    for (int64_t row = 0; row < p.num_rows; ++row) {  // not what lies behind the columns
      const auto begin = p.dx.begin() + row * p.stride();
      const std::vector<uint32_t> of = test::Bits({begin, begin + p.columns});
      all.insert(all.end(), of.begin(), of.end());
    }
    for (const auto* part : {&p.y, &p.dgamma, &p.dbeta}) {
      const std::vector<uint32_t> of = test::Bits(*part);
      all.insert(all.end(), of.begin(), of.end());
    }
  }
  EXPECT_EQ(bits[1], bits[0]);
  EXPECT_EQ(bits[2], bits[0]);
}

TEST(LayerNormTest, OfNoRowsGradientsAreZeros) {
  Problem p(0, 3, 1);
  p.Run(nullptr, false);
  EXPECT_EQ(p.dgamma, std::vector<float>(3));
  EXPECT_EQ(p.dbeta, std::vector<float>(3));
}

TEST(LayerNormTest, ErrorsNameTheFieldAndTheLimit) {
  const auto expect_error = [](const absl::Status& status, const char* text) {
    EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  std::vector<float> v(4);
  expect_error(LayerNorm({}, {}), "LayerNorm: columns must be >= 1, got 0");
  expect_error(LayerNorm({}, {.num_rows = -1, .columns = 1}), "num_rows must be >= 0, got -1");
  expect_error(LayerNorm({}, {.num_rows = 1, .columns = 2, .x = v.data(), .x_stride = 1}),
               "x_stride must be >= columns = 2, got 1");
  expect_error(LayerNorm({}, {.num_rows = 1, .columns = 2, .x = v.data(), .x_stride = 2}),
               "gamma must not be null");
  LayerNormGradArgs grad = {.num_rows = 1, .columns = 2};
  expect_error(LayerNormGrad({}, grad), "LayerNormGrad: gamma_gradient must not be null");
  grad.gamma_gradient = grad.beta_gradient = v.data();
  expect_error(LayerNormGrad({}, grad), "workspace_bytes must be at least 64, got 0");
  EXPECT_THAT(LayerNorm({.device = Device::kCuda}, {.columns = 1}),
              test::StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("CPU only")));
}

}  // namespace
}  // namespace hotrow
