#include <cuda_runtime.h>  // has the typed cudaMalloc that device_array.cuh calls

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "ops/products/gemm_cuda_impl.h"
#include "tests/ops/dense_cuda_test_util.h"
#include "tests/ops/dense_test_util.h"
#include "tests/ops/half_reference.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"

// Products of GemmCuda as cublasLt computes them, or the emulated GPU's, which reads the same
// descriptors and refuses an algorithm that was chosen for another product.

namespace hotrow::internal {
namespace {

class Products {
 public:
  explicit Products(GemmPrecision precision) {
    auto gemm = GemmCuda::OfStream(precision, stream_.ctx().stream);
    HOTROW_EXPECT_OK(gemm);
    gemm_ = *std::move(gemm);
  }
  void Run(const ColumnMajorProduct& product) {
    HOTROW_EXPECT_OK(gemm_->Run(stream_.ctx().stream, product));
    stream_.Wait();
  }

 private:
  test::GpuStream stream_;
  std::shared_ptr<GemmCuda> gemm_;
};

// Where number (row, column) of op(X) lies.
int64_t Place(bool transposed, int64_t row, int64_t column, int64_t ld) {
  return transposed ? column + row * ld : row + column * ld;
}

// sum over l of op(A)(i, l) op(B)(l, j)
double Sum(const ColumnMajorProduct& p, const std::vector<float>& a, const std::vector<float>& b,
           int64_t a_begin, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t l = 0; l < p.k; ++l) {
    sum += double{a[static_cast<size_t>(a_begin + Place(p.transpose_a, i, l, p.lda))]} *
           double{b[static_cast<size_t>(Place(p.transpose_b, l, j, p.ldb))]};
  }
  return sum;
}

struct Shape {
  int64_t m, n, k, gap;
};
constexpr Shape kShapes[] = {{1, 1, 1, 0}, {5, 3, 7, 2}, {17, 9, 33, 1}, {64, 40, 16, 0}};

ColumnMajorProduct ProductOf(const Shape& s, bool transpose_a, bool transpose_b) {
  return {.transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .m = s.m,
          .n = s.n,
          .k = s.k,
          .lda = (transpose_a ? s.k : s.m) + s.gap,
          .ldb = (transpose_b ? s.n : s.k) + s.gap,
          .ldc = s.m + s.gap};
}
int64_t SizeOf(bool transposed, int64_t rows, int64_t columns, int64_t ld) {
  return (transposed ? rows : columns) * ld;
}

// With every pair of transpositions, into C and added to C, with A where it may not be aligned.
TEST(GemmProductsCudaTest, ProductsOfFloatsAreThoseOfTheirDefinition) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  Products products(GemmPrecision::kFp32);
  RandomStream random(3, RandomPurpose::kTest);
  for (const Shape& s : kShapes) {
    for (int way = 0; way < 16; ++way) {
      ColumnMajorProduct p = ProductOf(s, (way & 1) != 0, (way & 2) != 0);
      p.adds = (way & 4) != 0;
      const int64_t a_begin = (way & 8) != 0 ? 1 : 0;
      SCOPED_TRACE(testing::Message() << s.m << " x " << s.n << " x " << s.k << ", way " << way);
      const auto a = test::RandomFloats(random, a_begin + SizeOf(p.transpose_a, s.m, s.k, p.lda));
      const auto b = test::RandomFloats(random, SizeOf(p.transpose_b, s.k, s.n, p.ldb));
      const auto c = test::RandomFloats(random, s.n * p.ldc);
      test::DeviceArray<float> a_there(a), b_there(b), c_there(c);
      p.a = a_there.data() + a_begin;
      p.b = b_there.data();
      p.c = c_there.data();
      products.Run(p);
      const std::vector<float> got = c_there.ToHost();
      const double bound = 8 * test::Gamma(static_cast<double>(s.k + 2)) * static_cast<double>(s.k);
      for (int64_t j = 0; j < s.n; ++j) {
        for (int64_t i = 0; i < p.ldc; ++i) {
          const auto at = static_cast<size_t>(i + j * p.ldc);
          if (i >= s.m) {
            ASSERT_EQ(got[at], c[at]) << "the gap after column " << j;
            continue;
          }
          const double want = Sum(p, a, b, a_begin, i, j) + (p.adds ? double{c[at]} : 0.0);
          ASSERT_NEAR(got[at], want, bound) << i << ", " << j;
        }
      }
    }
  }
}

std::vector<uint16_t> ToHalves(WeightsPrecision format, const std::vector<float>& floats) {
  std::vector<uint16_t> out;
  for (const float x : floats) {
    out.push_back(test::ReferenceHalf(format, /*stochastic=*/false, x, /*word=*/0));
  }
  return out;
}

// Small whole numbers, so that nothing is rounded but the result.
void CheckHalfProducts(WeightsPrecision format) {
  const bool is_fp16 = format == WeightsPrecision::kFp16;
  Products products(is_fp16 ? GemmPrecision::kFp16 : GemmPrecision::kBf16);
  RandomStream random(3, RandomPurpose::kTest);
  for (const Shape& s : kShapes) {
    for (int way = 0; way < 12; ++way) {
      ColumnMajorProduct p = ProductOf(s, (way & 1) != 0, (way & 2) != 0);
      p.adds = way / 4 == 1;
      p.half_result = way / 4 == 2;
      SCOPED_TRACE(testing::Message() << s.m << " x " << s.n << " x " << s.k << ", way " << way);
      std::vector<float> a(static_cast<size_t>(SizeOf(p.transpose_a, s.m, s.k, p.lda)));
      std::vector<float> b(static_cast<size_t>(SizeOf(p.transpose_b, s.k, s.n, p.ldb)));
      for (auto* const numbers : {&a, &b}) {
        for (float& x : *numbers) x = std::nearbyint(8 * random.Normal());
      }
      const std::vector<float> c(static_cast<size_t>(s.n * p.ldc), 3.0f);
      test::DeviceArray<uint16_t> a_there(ToHalves(format, a)), b_there(ToHalves(format, b)),
          c16_there(ToHalves(format, c));
      test::DeviceArray<float> c_there(c);
      p.a = a_there.data();
      p.b = b_there.data();
      p.c = p.half_result ? static_cast<void*>(c16_there.data()) : c_there.data();
      products.Run(p);
      const std::vector<float> floats = c_there.ToHost();
      const std::vector<uint16_t> halves = c16_there.ToHost();
      for (int64_t j = 0; j < s.n; ++j) {
        for (int64_t i = 0; i < p.ldc; ++i) {
          const auto at = static_cast<size_t>(i + j * p.ldc);
          const float got = p.half_result ? test::WidenedHalf(format, halves[at]) : floats[at];
          double want = i < s.m ? Sum(p, a, b, 0, i, j) + (p.adds ? 3.0 : 0.0) : 3.0;
          if (p.half_result) {
            const auto exact = static_cast<float>(want);
            want = test::WidenedHalf(format, ToHalves(format, {exact})[0]);
          }
          ASSERT_EQ(got, want) << i << ", " << j;
        }
      }
    }
  }
}

TEST(GemmProductsCudaTest, ProductsOfHalvesGiveFloatsOrHalves) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const WeightsPrecision format : test::kHalfPrecisions) {
    SCOPED_TRACE(WeightsPrecisionName(format));
    ASSERT_NO_FATAL_FAILURE(CheckHalfProducts(format));
  }
}

// 1 + 2^-12 is 1 in TF32.
TEST(GemmProductsCudaTest, Tf32RoundsFactorsAndFp32DoesNot) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const std::vector<float> a(64 * 64, 1 + 0x1p-12f);
  const std::vector<float> b(64 * 64, 1.0f);
  test::DeviceArray<float> a_there(a), b_there(b), c_there(b);
  const ColumnMajorProduct p = {.m = 64,
                                .n = 64,
                                .k = 64,
                                .a = a_there.data(),
                                .lda = 64,
                                .b = b_there.data(),
                                .ldb = 64,
                                .c = c_there.data(),
                                .ldc = 64};
  Products(GemmPrecision::kFp32).Run(p);
  EXPECT_EQ(c_there.ToHost()[77], 64 + 0x1p-6f);
  Products(GemmPrecision::kTf32).Run(p);
  EXPECT_EQ(c_there.ToHost()[77], 64.0f);
}

}  // namespace
}  // namespace hotrow::internal
