#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/layers/mlp.h"
#include "ops/products/gemm_cuda_impl.h"
#include "ops/products/unfused_products.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/ops/half_reference.h"
#include "tests/ops/mlp_cuda_problem.cuh"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#if HOTROW_EMULATED_GPU
#include "tests/emulated_gpu/emulated_gpu.h"
#endif

// Bias, ReLU and its gradient in products, by cublasLt where it does as we say, else by a kernel
// behind the product: both ways are held to the same definition.

namespace hotrow::internal {
namespace {

struct Case {
  GemmPrecision precision;
  GemmEpilogue epilogue;
  bool has_bias, has_mask;
};
// All that networks ask for.
constexpr Case kCases[] = {
    {GemmPrecision::kFp32, GemmEpilogue::kNone, true, false},
    {GemmPrecision::kFp32, GemmEpilogue::kRelu, true, false},
    {GemmPrecision::kFp32, GemmEpilogue::kRelu, true, true},
    {GemmPrecision::kFp32, GemmEpilogue::kReluGrad, false, true},
    {GemmPrecision::kTf32, GemmEpilogue::kRelu, true, true},
    {GemmPrecision::kTf32, GemmEpilogue::kReluGrad, false, true},
    {GemmPrecision::kBf16, GemmEpilogue::kRelu, false, false},
    {GemmPrecision::kBf16, GemmEpilogue::kRelu, false, true},
    {GemmPrecision::kBf16, GemmEpilogue::kReluGrad, false, true},
    {GemmPrecision::kFp16, GemmEpilogue::kRelu, false, true},
    {GemmPrecision::kFp16, GemmEpilogue::kReluGrad, false, true},
};
bool HasHalves(const Case& c) {
  return c.precision == GemmPrecision::kBf16 || c.precision == GemmPrecision::kFp16;
}

struct Shape {
  int64_t m, n, k, gap;
};
// Masks of less than a word, of whole words, and of more than 128 bits; more columns than a probe.
constexpr Shape kShapes[] = {
    {1, 1, 1, 0}, {33, 5, 16, 7}, {64, 40, 16, 0}, {131, 3, 8, 5}, {3, 300, 5, 1}};

bool Bit(const std::vector<uint32_t>& mask, const Shape& s, int64_t i, int64_t j) {
  return (mask[static_cast<size_t>(j * ReluMaskStride(s.m) + i / 32)] >> (i % 32) & 1) != 0;
}

std::vector<uint16_t> ToHalves(GemmPrecision precision, const std::vector<float>& floats) {
  std::vector<uint16_t> out;
  const auto format =
      precision == GemmPrecision::kFp16 ? WeightsPrecision::kFp16 : WeightsPrecision::kBf16;
  for (const float x : floats) {
    out.push_back(std::isnan(x) ? 0x7fff
                                : test::ReferenceHalf(format, /*stochastic=*/false, x, /*word=*/0));
  }
  return out;
}

// Small whole numbers and a NaN, whose sums no precision rounds.
void Check(GemmCuda& gemm, const test::GpuStream& stream, const Case& c, const Shape& s) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kGap = 3.0f;
  RandomStream random(s.m + 10 * s.n, RandomPurpose::kTest);
  const int64_t ldc = s.m + s.gap;
  const auto numbers = [&](int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& x : out) x = std::nearbyint(2 * random.Normal());
    return out;
  };
  const std::vector<float> a = numbers(s.m * s.k);  // [m, k], transposed
  std::vector<float> b = numbers(s.n * s.k);
  const std::vector<float> bias = numbers(s.m);
  const int64_t nan_column = s.n / 2;
  b[static_cast<size_t>(nan_column * s.k)] = kNaN;
  std::vector<uint32_t> mask(static_cast<size_t>(s.n * ReluMaskStride(s.m)));
  for (uint32_t& word : mask) word = static_cast<uint32_t>(random.Next64());

  const std::vector<float> c_before(static_cast<size_t>(s.n * ldc), kGap);
  const bool halves = HasHalves(c);
  test::DeviceArray<float> a_there(a), b_there(b), c_there(c_before), bias_there(bias);
  test::DeviceArray<uint16_t> a16(ToHalves(c.precision, a)), b16(ToHalves(c.precision, b)),
      c16(ToHalves(c.precision, c_before));
  test::DeviceArray<uint32_t> mask_there(mask);
  const ColumnMajorProduct product = {.transpose_a = true,
                                      .m = s.m,
                                      .n = s.n,
                                      .k = s.k,
                                      .a = halves ? static_cast<void*>(a16.data()) : a_there.data(),
                                      .lda = s.k,
                                      .b = halves ? static_cast<void*>(b16.data()) : b_there.data(),
                                      .ldb = s.k,
                                      .c = halves ? static_cast<void*>(c16.data()) : c_there.data(),
                                      .ldc = ldc,
                                      .half_result = halves,
                                      .epilogue = c.epilogue,
                                      .bias = c.has_bias ? bias_there.data() : nullptr,
                                      .mask = c.has_mask ? mask_there.data() : nullptr};
  HOTROW_ASSERT_OK(gemm.Run(stream.ctx().stream, product));
  stream.Wait();
  std::vector<float> got = c_there.ToHost();
  if (halves) {
    const auto format =
        c.precision == GemmPrecision::kFp16 ? WeightsPrecision::kFp16 : WeightsPrecision::kBf16;
    const std::vector<uint16_t> bits = c16.ToHost();
    for (size_t i = 0; i < got.size(); ++i) got[i] = test::WidenedHalf(format, bits[i]);
  }
  const std::vector<uint32_t> got_mask = mask_there.ToHost();
  for (int64_t j = 0; j < s.n; ++j) {
    for (int64_t i = 0; i < ldc; ++i) {
      SCOPED_TRACE(testing::Message() << "row " << i << ", column " << j);
      const float found = got[static_cast<size_t>(i + j * ldc)];
      if (i >= s.m) {
        ASSERT_EQ(found, kGap);
        continue;
      }
      double sum = c.has_bias ? bias[static_cast<size_t>(i)] : 0;
      for (int64_t k = 0; k < s.k; ++k) {
        sum += double{a[static_cast<size_t>(i * s.k + k)]} * b[static_cast<size_t>(j * s.k + k)];
      }
      bool is_nan = j == nan_column;
      bool passes = is_nan || sum > 0;
      if (c.epilogue == GemmEpilogue::kReluGrad) {
        passes = Bit(mask, s, i, j);
        is_nan = is_nan && passes;
      } else if (c.epilogue == GemmEpilogue::kRelu && c.has_mask) {
        ASSERT_EQ(Bit(got_mask, s, i, j), passes);
      }
      if (is_nan) {
        ASSERT_TRUE(std::isnan(found));
      } else {
        ASSERT_EQ(found, c.epilogue == GemmEpilogue::kNone || passes ? sum : 0.0);
      }
    }
  }
}

void CheckAll() {
  for (const Case& c : kCases) {
    const test::GpuStream stream;
    const auto gemm = GemmCuda::OfStream(c.precision, stream.ctx().stream);
    HOTROW_ASSERT_OK(gemm);
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(testing::Message()
                   << "precision " << static_cast<int>(c.precision) << ", epilogue "
                   << static_cast<int>(c.epilogue) << (c.has_bias ? ", bias" : "")
                   << (c.has_mask ? ", mask" : "") << ", " << s.m << " x " << s.n << " x " << s.k);
      ASSERT_NO_FATAL_FAILURE(Check(**gemm, stream, c, s));
      ASSERT_NO_FATAL_FAILURE(Check(**gemm, stream, c, s)) << "by the plan of the first";
    }
  }
}

TEST(GemmEpilogueCudaTest, BiasReluAndItsGradientAreThoseOfTheDefinition) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  CheckAll();
}

TEST(GemmEpilogueCudaTest, NetworksOfAStreamShareTheirProducts) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream, other;
  const auto of = [](GemmPrecision precision, const test::GpuStream& on) {
    auto gemm = GemmCuda::OfStream(precision, on.ctx().stream);
    HOTROW_EXPECT_OK(gemm);
    return *std::move(gemm);
  };
  const auto one = of(GemmPrecision::kBf16, stream);
  EXPECT_EQ(of(GemmPrecision::kBf16, stream), one);
  EXPECT_NE(of(GemmPrecision::kFp16, stream), one);
  EXPECT_NE(of(GemmPrecision::kBf16, other), one);
}

#if HOTROW_EMULATED_GPU
using emulated::EpilogueFault;

class WithFault {
 public:
  explicit WithFault(EpilogueFault fault) { emulated::SetEpilogueFault(fault); }
  ~WithFault() { emulated::SetEpilogueFault(EpilogueFault::kNone); }
};

struct FaultCase {
  EpilogueFault fault;
  const char* reason;
};
constexpr FaultCase kFaults[] = {
    {EpilogueFault::kUnknown, "no algorithm for it"},
    {EpilogueFault::kRefused, "cublasLt does not run it"},
    {EpilogueFault::kNaNBecomesZero, "NaNs are treated otherwise"},
    {EpilogueFault::kDoesNotRepeat, "equal products give other bits"},
    {EpilogueFault::kNoBias, "numbers are others"},
};

// A product that cublasLt does otherwise is found out, and done by a kernel of ours. Each fault in
// its own shape: the list has each product once.
TEST(GemmEpilogueCudaTest, WhatCublasLtDoesOtherwiseIsDoneByAKernelOfOurs) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const test::GpuStream stream;
  const auto gemm = GemmCuda::OfStream(GemmPrecision::kFp32, stream.ctx().stream);
  HOTROW_ASSERT_OK(gemm);
  int64_t m = 133;
  for (const FaultCase& of : kFaults) {
    const WithFault now(of.fault);
    const Shape shape = {m += 8, 30, 24, 1};
    SCOPED_TRACE(of.reason);
    ASSERT_NO_FATAL_FAILURE(
        Check(**gemm, stream, {GemmPrecision::kFp32, GemmEpilogue::kRelu, true, true}, shape));
    const std::string product = "a product [" + std::to_string(PaddedLine(m)) + ", 30]";
    const std::vector<std::string> lines = UnfusedProducts();
    const auto line = std::find_if(lines.begin(), lines.end(), [&](const std::string& text) {
      return text.find(product) != std::string::npos;
    });
    ASSERT_NE(line, lines.end());
    EXPECT_THAT(*line, testing::HasSubstr(of.reason));
    EXPECT_THAT(*line, testing::HasSubstr("bias and ReLU"));
  }
  // With any epilogue and precision.
  const WithFault now(EpilogueFault::kRefused);
  CheckAll();
}

// Numbers are those of the fused way, of a whole network.
TEST(GemmEpilogueCudaTest, ANetworkHasTheSameBitsWithProductsThatAreNotFused) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const DensePrecision precision :
       {DensePrecision::kFp32, DensePrecision::kBf16, DensePrecision::kFp16}) {
    SCOPED_TRACE(DensePrecisionName(precision));
    const MlpOptions options = {.sizes = {33, 70, 131, 8},
                                .relu_on_output = true,
                                .dropout = 0.2f,
                                .max_batch_size = 40,
                                .precision = precision};
    const auto run = [&] {
      const test::GpuStream stream;  // so its own products
      const auto mlp = test::NewMlp(options, stream.ctx());
      const test::MlpProblem p = test::RandomMlpProblem(*mlp, options, 37, 3);
      test::GpuMlpProblem gpu(p);
      gpu.Enqueue(stream.ctx(), *mlp);
      stream.Wait();
      return gpu.Get();
    };
    const test::MlpResult fused = run();
    const WithFault now(EpilogueFault::kUnknown);
    EXPECT_TRUE(run() == fused);
  }
}
#endif

}  // namespace
}  // namespace hotrow::internal
