#ifndef HOTROW_TESTS_OPS_PADDED_DOT_PROBLEM_H_
#define HOTROW_TESTS_OPS_PADDED_DOT_PROBLEM_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "ops/interactions/padded_dot.h"
#include "ops/interactions/padded_dot_impl.h"
#include "tests/ops/dense_test_util.h"

namespace hotrow::test {

struct DotShape {
  DotPrecision precision;
  int64_t batch_size;
  int32_t num_sparse;
  int32_t dim;
  int64_t gap = 0;  // unused elements after each row
};
inline std::ostream& operator<<(std::ostream& out, const DotShape& s) {
  return out << DotPrecisionName(s.precision) << ", " << s.batch_size << " samples, "
             << s.num_sparse << " of " << s.dim << ", gap " << s.gap;
}

// Elements of any precision, as bytes.
class DotBuffer {
 public:
  explicit DotBuffer(DotPrecision precision = DotPrecision::kFp32, int64_t elements = 0)
      : precision_(precision),
        bytes_(static_cast<size_t>(elements * DotElementBytes(precision)), kUnused) {}

  static constexpr auto kUnused = std::byte{0x5a};

  std::byte* data() { return bytes_.data(); }
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  void Set(int64_t i, float value) {
    internal::WithDotPrecision(precision_, [&](auto precision) {
      const auto stored = internal::DotElement<decltype(precision)::value>::Narrow(value);
      std::memcpy(bytes_.data() + i * static_cast<int64_t>(sizeof(stored)), &stored,
                  sizeof(stored));
    });
  }
  float Get(int64_t i) const { return Read(i, false); }
  // As the factor of a product.
  float Factor(int64_t i) const { return Read(i, true); }
  // Whether an element still has the bytes it began with.
  bool IsUnused(int64_t i) const {
    const int64_t size = DotElementBytes(precision_);
    return std::all_of(bytes_.begin() + i * size, bytes_.begin() + (i + 1) * size,
                       [](std::byte b) { return b == kUnused; });
  }

 private:
  float Read(int64_t i, bool factor) const {
    return internal::WithDotPrecision(precision_, [&](auto precision) {
      using Element = internal::DotElement<decltype(precision)::value>;
      typename Element::Stored stored;
      std::memcpy(&stored, bytes_.data() + i * static_cast<int64_t>(sizeof(stored)),
                  sizeof(stored));
      return factor ? Element::Factor(stored) : Element::Widen(stored);
    });
  }

  DotPrecision precision_;
  std::vector<std::byte> bytes_;
};

// A forward and backward problem with room for its results. Samples repeat: the first kDistinct are
// compared with sums in double, the others with their first, whose bits they must have.
struct DotProblem {
  static constexpr int64_t kDistinct = 23;

  DotProblem(const DotShape& s, uint64_t seed)
      : shape(s),
        dense_stride(s.dim + s.gap),
        sparse_stride(int64_t{s.num_sparse} * s.dim + s.gap),
        products(PaddedDotProducts(s.num_sparse, s.dim)),
        columns(PaddedDotColumns(s.num_sparse, s.dim)),
        output_stride(columns + s.gap),
        dense(s.precision, s.batch_size * dense_stride),
        sparse(s.precision, s.batch_size * sparse_stride),
        output(s.precision, s.batch_size * output_stride),
        output_gradient(s.precision, s.batch_size * output_stride),
        dense_gradient(s.precision, s.batch_size * dense_stride),
        sparse_gradient(s.precision, s.batch_size * sparse_stride) {
    RandomStream random(seed, RandomPurpose::kTest);
    const auto fill = [&](DotBuffer& buffer, int64_t stride) {
      for (int64_t i = 0; i < distinct() * stride; ++i) buffer.Set(i, random.Normal());
      for (int64_t b = distinct(); b < s.batch_size; ++b) {
        const std::span<std::byte> first = SampleOf(buffer, b % kDistinct, stride);
        std::copy(first.begin(), first.end(), SampleOf(buffer, b, stride).begin());
      }
    };
    fill(dense, dense_stride);
    fill(sparse, sparse_stride);
    fill(output_gradient, output_stride);
  }

  int64_t distinct() const { return std::min(shape.batch_size, kDistinct); }
  template <typename Buffer,
            typename Byte = std::remove_pointer_t<decltype(std::declval<Buffer&>().bytes().data())>>
  std::span<Byte> SampleOf(Buffer& buffer, int64_t b, int64_t stride) const {
    const auto bytes = static_cast<size_t>(stride * DotElementBytes(shape.precision));
    return std::span<Byte>(buffer.bytes()).subspan(static_cast<size_t>(b) * bytes, bytes);
  }
  void CheckRepeated(const DotBuffer& buffer, int64_t stride) const {
    for (int64_t b = distinct(); b < shape.batch_size; ++b) {
      const auto got = SampleOf(buffer, b, stride);
      const auto want = SampleOf(buffer, b % kDistinct, stride);
      ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin())) << "sample " << b;
    }
  }

  PaddedDotArgs Forward() { return Forward(dense.data(), sparse.data(), output.data()); }
  PaddedDotArgs Forward(const void* x0, const void* xs, void* y) const {
    return {.precision = shape.precision,
            .batch_size = shape.batch_size,
            .num_sparse = shape.num_sparse,
            .dim = shape.dim,
            .dense = x0,
            .dense_stride = dense_stride,
            .sparse = xs,
            .sparse_stride = sparse_stride,
            .output = y,
            .output_stride = output_stride};
  }
  PaddedDotGradArgs Backward() {
    return Backward(Forward(), output_gradient.data(), dense_gradient.data(),
                    sparse_gradient.data());
  }
  PaddedDotGradArgs Backward(const PaddedDotArgs& forward, const void* dy, void* d0,
                             void* ds) const {
    return {.forward = forward,
            .output_gradient = dy,
            .dense_gradient = d0,
            .dense_gradient_stride = dense_stride,
            .sparse_gradient = ds,
            .sparse_gradient_stride = sparse_stride};
  }

  // Where each sparse vector lies behind `sparse`, in the order of sparse_rows.
  std::vector<const void*> Rows(const std::byte* sparse_data) const {
    std::vector<const void*> rows;
    for (int64_t b = 0; b < shape.batch_size; ++b) {
      for (int64_t i = 1; i < vectors(); ++i) {
        rows.push_back(sparse_data + At(b, i, 0) * DotElementBytes(shape.precision));
      }
    }
    return rows;
  }

  int64_t vectors() const { return int64_t{shape.num_sparse} + 1; }
  // Where column d of vector i (0 = dense) of sample b lies, in dense or sparse.
  int64_t At(int64_t b, int64_t i, int64_t d) const {
    return i == 0 ? b * dense_stride + d : b * sparse_stride + (i - 1) * shape.dim + d;
  }
  float x(int64_t b, int64_t i, int64_t d) const {
    return (i == 0 ? dense : sparse).Factor(At(b, i, d));
  }
  float gradient(int64_t b, int64_t i, int64_t d) const {
    return (i == 0 ? dense_gradient : sparse_gradient).Get(At(b, i, d));
  }
  int64_t PairAt(int64_t b, int64_t i, int64_t j) const {
    return b * output_stride + shape.dim + internal::PairPlace(std::max(i, j), std::min(i, j));
  }

  // Half a step of the format, relative.
  double Unit() const {
    if (shape.precision == DotPrecision::kBf16) return 0x1p-8;
    if (shape.precision == DotPrecision::kFp16) return 0x1p-11;
    return 0x1p-24;
  }
  // What padded_dot.h promises of a sum, and its last rounding. fp16 has 2^-24 between its least.
  double Bound(double terms, double magnitude, double value) const {
    return 4 * (terms + 2) * 0x1p-24 * magnitude + Unit() * std::abs(value) * 1.01 +
           (shape.precision == DotPrecision::kFp16 ? 0x1p-24 : 0);
  }

  void CheckForward() const {
    ASSERT_NO_FATAL_FAILURE(CheckRepeated(output, output_stride));
    for (int64_t b = 0; b < distinct(); ++b) {
      for (int64_t d = 0; d < shape.dim; ++d) {
        ASSERT_EQ(output.Get(b * output_stride + d), dense.Get(At(b, 0, d)));
      }
      for (int64_t i = 1; i < vectors(); ++i) {
        for (int64_t j = 0; j < i; ++j) {
          double sum = 0;
          double magnitude = 0;
          for (int64_t d = 0; d < shape.dim; ++d) {
            const double term = static_cast<double>(x(b, i, d)) * x(b, j, d);
            sum += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(output.Get(PairAt(b, i, j)), sum, Bound(shape.dim, magnitude, sum))
              << b << ": " << i << "," << j;
        }
      }
      for (int64_t c = products; c < columns; ++c) {
        ASSERT_EQ(output.Get(b * output_stride + c), c == columns - 1 ? 1.0f : 0.0f) << c;
      }
      for (int64_t c = columns; c < output_stride; ++c) {
        ASSERT_TRUE(output.IsUnused(b * output_stride + c)) << c;
      }
    }
  }

  void CheckBackward() const {
    ASSERT_NO_FATAL_FAILURE(CheckRepeated(dense_gradient, dense_stride));
    ASSERT_NO_FATAL_FAILURE(CheckRepeated(sparse_gradient, sparse_stride));
    for (int64_t b = 0; b < distinct(); ++b) {
      for (int64_t i = 0; i < vectors(); ++i) {
        for (int64_t d = 0; d < shape.dim; ++d) {
          double sum = i == 0 ? output_gradient.Get(b * output_stride + d) : 0;
          double magnitude = std::abs(sum);
          for (int64_t j = 0; j < vectors(); ++j) {
            if (j == i) continue;
            const double term =
                static_cast<double>(output_gradient.Factor(PairAt(b, i, j))) * x(b, j, d);
            sum += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(gradient(b, i, d), sum, Bound(static_cast<double>(vectors()), magnitude, sum))
              << b << ": " << i << "," << d;
        }
      }
      for (int64_t c = 0; c < shape.gap; ++c) {
        ASSERT_TRUE(dense_gradient.IsUnused(b * dense_stride + shape.dim + c));
        ASSERT_TRUE(sparse_gradient.IsUnused(b * sparse_stride + (vectors() - 1) * shape.dim + c));
      }
    }
  }

  DotShape shape;
  int64_t dense_stride, sparse_stride, products, columns, output_stride;
  DotBuffer dense, sparse, output, output_gradient, dense_gradient, sparse_gradient;
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_OPS_PADDED_DOT_PROBLEM_H_
