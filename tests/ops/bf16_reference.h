#ifndef HOTROW_TESTS_OPS_BF16_REFERENCE_H_
#define HOTROW_TESTS_OPS_BF16_REFERENCE_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "ops/layers/mlp.h"
#include "tests/ops/mlp_reference.h"

// What MLPs with products of bf16 are held against, on every device.
namespace hotrow::test {

// Small whole numbers, most of them zero, so that all sums between two layers are numbers of bf16.
inline void MakeWhole(RandomStream& random, double share, std::span<float> numbers) {
  for (float& x : numbers) {
    const double u = random.Uniform();
    x = u < share / 2 ? 1.0f : u < share ? -1.0f : 0.0f;
  }
}

// A problem of such numbers: engines of fp32 and bf16 agree in every bit.
inline MlpProblem WholeMlpProblem(const Mlp& mlp, const MlpOptions& options, int64_t batch_size) {
  MlpProblem p = RandomMlpProblem(mlp, options, batch_size, 1);
  RandomStream random(7, RandomPurpose::kTest);
  MakeWhole(random, 0.6, p.x);
  MakeWhole(random, 0.6, p.dy);
  std::fill(p.parameters.begin(), p.parameters.end(), 0.0f);
  for (int32_t l = 0; l < mlp.num_layers(); ++l) {
    const auto block = [&](int64_t offset, int64_t size) {
      return std::span(p.parameters).subspan(offset, size);
    };
    MakeWhole(random, 0.1,
              block(mlp.weight_offset(l), p.options.sizes[l] * p.options.sizes[l + 1]));
    MakeWhole(random, 0.5, block(mlp.bias_offset(l), p.options.sizes[l + 1]));
  }
  return p;
}

// How far `got` is from `want`, relative to the length of `want`.
inline double RelativeError(std::span<const float> got, std::span<const double> want) {
  double error = 0;
  double length = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    length += want[i] * want[i];
  }
  return std::sqrt(error / length);
}

inline double Rounded(double x) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  return std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000);
}

struct RoundedReference {
  std::vector<double> y, dx;  // dense
  std::vector<double> parameter_gradients;
};

// What an engine rounds beside weights, inputs, gradients of outputs and what lies between layers.
struct Bf16Roundings {
  bool biases = false;
  bool before_dropout = false;  // and once more behind it
};

// The network in double, rounded where the engine promises it.
inline RoundedReference ComputeRounded(const Mlp& mlp, const MlpProblem& p,
                                       const Bf16Roundings& also) {
  const std::vector<int32_t>& sizes = p.options.sizes;
  const size_t layers = sizes.size() - 1;
  const auto weight = [&](size_t l, int32_t n, int32_t k) {
    return Rounded(p.parameters[static_cast<size_t>(mlp.weight_offset(static_cast<int32_t>(l)) +
                                                    n * sizes[l] + k)]);
  };
  RoundedReference out;
  out.parameter_gradients.resize(p.parameters.size());
  for (int64_t row = 0; row < p.batch_size; ++row) {
    std::vector<std::vector<double>> x(layers + 1);
    for (int32_t k = 0; k < sizes[0]; ++k) x[0].push_back(Rounded(p.x[row * p.x_stride() + k]));
    for (size_t l = 0; l < layers; ++l) {
      for (int32_t n = 0; n < sizes[l + 1]; ++n) {
        double z = p.parameters[mlp.bias_offset(static_cast<int32_t>(l)) + n];
        if (also.biases) z = Rounded(z);
        for (int32_t k = 0; k < sizes[l]; ++k) z += x[l][k] * weight(l, n, k);
        if (l + 1 < layers) {
          z = std::max(z, 0.0);
          if (p.options.dropout > 0 && also.before_dropout) z = Rounded(z);
          if (p.options.dropout > 0) z *= DropoutFactor(p, l, row, n);
          z = Rounded(z);
        }
        x[l + 1].push_back(z);
      }
    }
    out.y.insert(out.y.end(), x[layers].begin(), x[layers].end());
    std::vector<double> dy;
    for (int32_t n = 0; n < sizes[layers]; ++n) {
      dy.push_back(Rounded(p.dy[row * p.y_stride() + n]));
    }
    for (size_t l = layers; l-- > 0;) {
      std::vector<double> dx(sizes[l]);
      for (int32_t n = 0; n < sizes[l + 1]; ++n) {
        out.parameter_gradients[mlp.bias_offset(static_cast<int32_t>(l)) + n] += dy[n];
        double* const dw = out.parameter_gradients.data() +
                           mlp.weight_offset(static_cast<int32_t>(l)) + int64_t{n} * sizes[l];
        for (int32_t k = 0; k < sizes[l]; ++k) {
          dw[k] += dy[n] * x[l][k];
          dx[k] += dy[n] * weight(l, n, k);
        }
      }
      for (int32_t k = 0; l > 0 && k < sizes[l]; ++k) {
        if (p.options.dropout > 0 && also.before_dropout) dx[k] = Rounded(dx[k]);
        if (p.options.dropout > 0) dx[k] *= DropoutFactor(p, l - 1, row, k);
        dx[k] = x[l][k] > 0 ? Rounded(dx[k]) : 0;
      }
      dy = std::move(dx);
    }
    out.dx.insert(out.dx.end(), dy.begin(), dy.end());
  }
  return out;
}

inline void ExpectMlpRounded(const Mlp& mlp, const MlpProblem& p, const MlpResult& got,
                             const Bf16Roundings& also) {
  // Sums of floats differ from those of doubles by far less than a step of bf16, but some lie near
  // the middle of one. A rounding too many or too few, everywhere, is more than 1e-3.
  constexpr double kBound = 2e-4;
  const std::vector<int32_t>& sizes = p.options.sizes;
  const RoundedReference want = ComputeRounded(mlp, p, also);
  const auto dense = [](const std::vector<float>& rows, int64_t columns, int64_t stride) {
    std::vector<float> out;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (static_cast<int64_t>(i) % stride < columns) out.push_back(rows[i]);
    }
    return out;
  };
  EXPECT_LT(RelativeError(dense(got.y, sizes.back(), p.y_stride()), want.y), kBound);
  EXPECT_LT(RelativeError(dense(got.dx, sizes.front(), p.x_stride()), want.dx), kBound);
  for (int32_t l = 0; l < mlp.num_layers(); ++l) {
    for (const auto& [offset, size] :
         {std::pair(mlp.weight_offset(l), int64_t{sizes[l]} * sizes[l + 1]),
          std::pair(mlp.bias_offset(l), int64_t{sizes[l + 1]})}) {
      EXPECT_LT(RelativeError(std::span(got.parameter_gradients).subspan(offset, size),
                              std::span(want.parameter_gradients).subspan(offset, size)),
                kBound)
          << l;
    }
  }
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_OPS_BF16_REFERENCE_H_
