#ifndef HOTROW_TESTS_OPS_MLP_REFERENCE_H_
#define HOTROW_TESTS_OPS_MLP_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "ops/layers/mlp.h"
#include "tests/ops/dense_test_util.h"

// An MLP in double, with a bound of how far a float computation in any order of sums may be from
// it: what every device is held against.
namespace hotrow::test {

// A number worked out in double, and how far the float computation may be from it.
struct Approx {
  double value = 0;
  double error = 0;
};
using ApproxMatrix = std::vector<std::vector<Approx>>;  // [rows][columns]

// Collects sum_i a_i b_i and bounds the float sum of the float factors: the factors' own errors
// carry over, and summing n terms in any order errs by Gamma(n) times the magnitudes.
class ApproxSum {
 public:
  void Add(const Approx& a, const Approx& b) {
    sum_.value += a.value * b.value;
    sum_.error += std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error;
    magnitude_ += (std::abs(a.value) + a.error) * (std::abs(b.value) + b.error);
    ++terms_;
  }
  Approx Get() const { return {sum_.value, sum_.error + Gamma(terms_) * magnitude_}; }

 private:
  Approx sum_;
  double magnitude_ = 0;
  double terms_ = 1;
};

struct MlpReference {
  ApproxMatrix y;
  ApproxMatrix dx;
  std::vector<Approx> parameter_gradients;  // in the layout of the Mlp, padding zero
};

struct MlpProblem {
  MlpOptions options;
  int64_t batch_size = 0;
  int64_t gap = 0;  // unused floats after each row of x, y, dy, dx
  bool training = true;
  uint32_t step = 0;
  std::vector<float> parameters, x, dy;

  int64_t x_stride() const { return options.sizes.front() + gap; }
  int64_t y_stride() const { return options.sizes.back() + gap; }
};

inline MlpProblem RandomMlpProblem(const Mlp& mlp, MlpOptions options, int64_t batch_size,
                                   uint64_t seed) {
  MlpProblem p{.options = std::move(options), .batch_size = batch_size, .gap = 3, .step = 5};
  RandomStream random(seed, RandomPurpose::kTest);
  p.parameters.resize(static_cast<size_t>(mlp.num_parameters()));
  mlp.InitParameters(seed, p.parameters);
  p.x = RandomFloats(random, batch_size * p.x_stride());
  p.dy = RandomFloats(random, batch_size * p.y_stride());
  return p;
}

// 0 where dropped, 1 / (1 - rate) where kept, from the definition in ops/layers/dropout.h.
inline double DropoutFactor(const MlpProblem& p, size_t layer, int64_t row, int64_t column) {
  const int64_t element = row * p.options.sizes[layer + 1] + column;
  const auto id = static_cast<uint32_t>(p.options.first_layer_id) + static_cast<uint32_t>(layer);
  const PhiloxBlock block = RandomBlock(p.options.seed, RandomPurpose::kDropout,
                                        static_cast<uint64_t>(element / 4), p.step, id);
  const auto rate = static_cast<double>(p.options.dropout);
  return block.v[element % 4] >= std::floor(rate * 0x1p32) ? 1 / (1 - rate) : 0;
}

inline Approx Scale(const Approx& a, double factor) {
  // One more rounding for the division, one for 1 - rate.
  return {a.value * factor, (a.error + Gamma(2) * (std::abs(a.value) + a.error)) * factor};
}

// The whole network in double, one multiplication at a time.
inline MlpReference ComputeMlp(const Mlp& mlp, const MlpProblem& p) {
  const std::vector<int32_t>& sizes = p.options.sizes;
  const size_t layers = sizes.size() - 1;
  const auto rows = static_cast<size_t>(p.batch_size);
  const auto weight = [&](size_t l, int64_t n, int64_t k) -> Approx {
    return {p.parameters[static_cast<size_t>(mlp.weight_offset(static_cast<int32_t>(l)) +
                                             n * sizes[l] + k)]};
  };
  const auto has_relu = [&](size_t l) { return l + 1 < layers || p.options.relu_on_output; };
  const auto drops = [&](size_t l) {
    return p.training && l + 1 < layers && p.options.dropout > 0;
  };

  std::vector<ApproxMatrix> activations(layers + 1);  // [l]: input of layer l
  std::vector<ApproxMatrix> sums(layers);             // before ReLU
  activations[0].resize(rows);
  for (size_t b = 0; b < rows; ++b) {
    for (int64_t k = 0; k < sizes[0]; ++k) {
      activations[0][b].push_back(
          {p.x[b * static_cast<size_t>(p.x_stride()) + static_cast<size_t>(k)]});
    }
  }
  for (size_t l = 0; l < layers; ++l) {
    sums[l].resize(rows);
    activations[l + 1].resize(rows);
    for (size_t b = 0; b < rows; ++b) {
      for (int64_t n = 0; n < sizes[l + 1]; ++n) {
        ApproxSum sum;
        for (int64_t k = 0; k < sizes[l]; ++k) {
          sum.Add(activations[l][b][static_cast<size_t>(k)], weight(l, n, k));
        }
        const int64_t bias = mlp.bias_offset(static_cast<int32_t>(l)) + n;
        sum.Add({p.parameters[static_cast<size_t>(bias)]}, {1});
        Approx z = sum.Get();
        sums[l][b].push_back(z);
        if (has_relu(l)) z.value = std::max(z.value, 0.0);  // |relu(a) - relu(b)| <= |a - b|
        if (drops(l)) z = Scale(z, DropoutFactor(p, l, static_cast<int64_t>(b), n));
        activations[l + 1][b].push_back(z);
      }
    }
  }

  MlpReference r;
  r.y = activations[layers];
  r.parameter_gradients.resize(p.parameters.size());
  ApproxMatrix dy(rows);
  for (size_t b = 0; b < rows; ++b) {
    for (int64_t n = 0; n < sizes[layers]; ++n) {
      dy[b].push_back({p.dy[b * static_cast<size_t>(p.y_stride()) + static_cast<size_t>(n)]});
    }
  }
  for (size_t l = layers; l-- > 0;) {
    for (size_t b = 0; b < rows; ++b) {
      for (size_t n = 0; n < dy[b].size(); ++n) {
        Approx& g = dy[b][n];
        if (drops(l)) {
          g = Scale(g, DropoutFactor(p, l, static_cast<int64_t>(b), static_cast<int64_t>(n)));
        }
        if (!has_relu(l)) continue;
        const Approx& z = sums[l][b][n];
        // So near to zero that rounding decides the side: either 0 or g is right.
        if (std::abs(z.value) <= z.error) {
          g.error += std::abs(g.value);
        } else if (z.value < 0) {
          g = {};
        }
      }
    }
    for (int64_t n = 0; n < sizes[l + 1]; ++n) {
      ApproxSum bias;
      for (size_t b = 0; b < rows; ++b) bias.Add(dy[b][static_cast<size_t>(n)], {1});
      r.parameter_gradients[static_cast<size_t>(mlp.bias_offset(static_cast<int32_t>(l)) + n)] =
          bias.Get();
      for (int64_t k = 0; k < sizes[l]; ++k) {
        ApproxSum sum;
        for (size_t b = 0; b < rows; ++b) {
          sum.Add(dy[b][static_cast<size_t>(n)], activations[l][b][static_cast<size_t>(k)]);
        }
        r.parameter_gradients[static_cast<size_t>(mlp.weight_offset(static_cast<int32_t>(l)) +
                                                  n * sizes[l] + k)] = sum.Get();
      }
    }
    ApproxMatrix dx(rows);
    for (size_t b = 0; b < rows; ++b) {
      for (int64_t k = 0; k < sizes[l]; ++k) {
        ApproxSum sum;
        for (int64_t n = 0; n < sizes[l + 1]; ++n) {
          sum.Add(dy[b][static_cast<size_t>(n)], weight(l, n, k));
        }
        dx[b].push_back(sum.Get());
      }
    }
    dy = std::move(dx);
  }
  r.dx = std::move(dy);
  return r;
}

// --- what an op gave ---

inline constexpr float kUnused = -77.0f;

struct MlpResult {
  std::vector<float> y, dx, parameter_gradients;
  friend bool operator==(const MlpResult& a, const MlpResult& b) {
    return Bits(a.y) == Bits(b.y) && Bits(a.dx) == Bits(b.dx) &&
           Bits(a.parameter_gradients) == Bits(b.parameter_gradients);
  }
};

inline void ExpectNear(const std::vector<float>& got, int64_t stride, const ApproxMatrix& want,
                       const char* what) {
  for (size_t b = 0; b < want.size(); ++b) {
    for (size_t n = 0; n < static_cast<size_t>(stride); ++n) {
      const float value = got[b * static_cast<size_t>(stride) + n];
      if (n < want[b].size()) {
        ASSERT_NEAR(value, want[b][n].value, want[b][n].error) << what << " " << b << "," << n;
      } else {
        ASSERT_EQ(value, kUnused) << what << ": the gap after row " << b;
      }
    }
  }
}

inline void ExpectMlpMatches(const Mlp& mlp, const MlpProblem& p, const MlpResult& got) {
  const MlpReference want = ComputeMlp(mlp, p);
  ASSERT_NO_FATAL_FAILURE(ExpectNear(got.y, p.y_stride(), want.y, "y"));
  ASSERT_NO_FATAL_FAILURE(ExpectNear(got.dx, p.x_stride(), want.dx, "dx"));
  for (size_t i = 0; i < got.parameter_gradients.size(); ++i) {
    ASSERT_NEAR(got.parameter_gradients[i], want.parameter_gradients[i].value,
                want.parameter_gradients[i].error)
        << "parameter " << i;
  }
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_OPS_MLP_REFERENCE_H_
