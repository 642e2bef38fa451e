#include "ops/products/gemm_cuda_impl.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/ops/dense_test_util.h"

// The products of a linear map in cublasLt's terms, worked out by plain loops in these terms: what
// is left to a GPU is the multiplication.

namespace hotrow::internal {
namespace {

void RunPlain(const ColumnMajorProduct& p) {
  const auto* const a_numbers = static_cast<const float*>(p.a);
  const auto* const b_numbers = static_cast<const float*>(p.b);
  for (int64_t m = 0; m < p.m; ++m) {
    for (int64_t n = 0; n < p.n; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < p.k; ++k) {
        const float a = a_numbers[p.transpose_a ? k + m * p.lda : m + k * p.lda];
        const float b = b_numbers[p.transpose_b ? n + k * p.ldb : k + n * p.ldb];
        sum += static_cast<double>(a) * b;
      }
      static_cast<float*>(p.c)[m + n * p.ldc] = static_cast<float>(sum);
    }
  }
}

struct Shape {
  int64_t rows, in, out;
};

TEST(GemmCudaTest, ProductsOfALinearMapAreThoseOfItsDefinition) {
  for (const Shape& s : {Shape{1, 1, 1}, Shape{5, 3, 2}, Shape{2, 7, 1}, Shape{4, 1, 6}}) {
    SCOPED_TRACE(testing::Message() << s.rows << " rows, " << s.in << " to " << s.out);
    RandomStream random(3, RandomPurpose::kTest);
    const int64_t x_stride = s.in + 2;
    const int64_t y_stride = s.out + 3;
    const std::vector<float> x = test::RandomFloats(random, s.rows * x_stride);
    const std::vector<float> y = test::RandomFloats(random, s.rows * y_stride);
    const std::vector<float> w = test::RandomFloats(random, s.in * s.out);
    const ConstMatrix x_view(x.data(), x_stride);
    const ConstMatrix dy_view(y.data(), y_stride);
    const auto at = [](const std::vector<float>& v, int64_t i) {
      return v[static_cast<size_t>(i)];
    };

    std::vector<float> out(y.size(), -7.0f);
    RunPlain(LinearForward(s.rows, s.in, s.out, x_view, w.data(), {out.data(), y_stride}));
    std::vector<float> dx(x.size(), -7.0f);
    RunPlain(LinearInputGradient(s.rows, s.in, s.out, dy_view, w.data(), {dx.data(), x_stride}));
    std::vector<float> dw(w.size(), -7.0f);
    RunPlain(LinearWeightGradient(s.rows, s.in, s.out, dy_view, x_view, dw.data()));
    for (int64_t r = 0; r < s.rows; ++r) {
      for (int64_t o = 0; o < y_stride; ++o) {
        double sum = 0;
        for (int64_t i = 0; i < s.in && o < s.out; ++i) {
          sum += static_cast<double>(at(x, r * x_stride + i)) * at(w, o * s.in + i);
        }
        EXPECT_EQ(at(out, r * y_stride + o), o < s.out ? static_cast<float>(sum) : -7.0f);
      }
      for (int64_t i = 0; i < x_stride; ++i) {
        double sum = 0;
        for (int64_t o = 0; o < s.out && i < s.in; ++o) {
          sum += static_cast<double>(at(w, o * s.in + i)) * at(y, r * y_stride + o);
        }
        EXPECT_EQ(at(dx, r * x_stride + i), i < s.in ? static_cast<float>(sum) : -7.0f);
      }
    }
    for (int64_t o = 0; o < s.out; ++o) {
      for (int64_t i = 0; i < s.in; ++i) {
        double sum = 0;
        for (int64_t r = 0; r < s.rows; ++r) {
          sum += static_cast<double>(at(x, r * x_stride + i)) * at(y, r * y_stride + o);
        }
        EXPECT_EQ(at(dw, o * s.in + i), static_cast<float>(sum));
      }
    }
  }
}

TEST(GemmCudaTest, AlgorithmsAreSharedByProductsThatDifferInAddressesOnly) {
  alignas(64) float data[64] = {};
  EXPECT_EQ(AddressAlignment(data), 16u);
  EXPECT_EQ(AddressAlignment(data + 1), 4u);
  EXPECT_EQ(AddressAlignment(data + 2), 8u);
  EXPECT_EQ(AddressAlignment(data + 4), 16u);
  const auto key = [&](int64_t rows, const float* x, int64_t stride) {
    return KeyOf(LinearForward(rows, 3, 2, {x, stride}, data, {data, 2}));
  };
  EXPECT_EQ(key(5, data, 4), key(5, data + 4, 4));
  EXPECT_NE(key(5, data, 4), key(5, data + 1, 4));  // other loads
  EXPECT_NE(key(5, data, 4), key(6, data, 4));
  EXPECT_NE(key(5, data, 4), key(5, data, 8));
  EXPECT_NE(key(5, data, 4), KeyOf(LinearInputGradient(5, 3, 2, {data, 4}, data, {data, 4})));
  // And those that do the same with the sums.
  ColumnMajorProduct product = LinearForward(5, 3, 2, {data, 4}, data, {data, 2});
  const auto differs_with = [&product](auto&& change) {
    const GemmKey before = KeyOf(product);
    change(product);
    return KeyOf(product) != before;
  };
  EXPECT_TRUE(differs_with([&](ColumnMajorProduct& p) { p.bias = data; }));
  EXPECT_FALSE(differs_with([&](ColumnMajorProduct& p) { p.bias = data + 4; }));
  EXPECT_TRUE(differs_with([&](ColumnMajorProduct& p) { p.bias = data + 1; }));
  EXPECT_TRUE(differs_with([&](ColumnMajorProduct& p) { p.epilogue = GemmEpilogue::kRelu; }));
  // A mask is made by a kernel behind the product.
  uint32_t mask[4] = {};
  EXPECT_FALSE(differs_with([&](ColumnMajorProduct& p) { p.mask = mask; }));
}

}  // namespace
}  // namespace hotrow::internal
