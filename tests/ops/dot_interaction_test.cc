#include "ops/interactions/dot_interaction.h"

#include <cmath>
#include <limits>
#include <vector>

#include "ops/interactions/dot_interaction_impl.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

struct Shape {
  int64_t batch_size;
  int32_t num_sparse;
  int32_t dim;
  int64_t gap = 0;  // unused floats after each row
};

constexpr float kUnused = -77.0f;

// A forward and backward problem with its results.
struct Problem {
  Problem(const Shape& s, uint64_t seed)
      : shape(s),
        sparse_columns(int64_t{s.num_sparse} * s.dim),
        output_columns(DotInteractionOutputSize(s.num_sparse, s.dim)) {
    RandomStream random(seed, RandomPurpose::kTest);
    dense = test::RandomFloats(random, s.batch_size * (s.dim + s.gap));
    sparse = test::RandomFloats(random, s.batch_size * (sparse_columns + s.gap));
    output_gradient = test::RandomFloats(random, s.batch_size * (output_columns + s.gap));
    output.assign(output_gradient.size(), kUnused);
    dense_gradient.assign(dense.size(), kUnused);
    sparse_gradient.assign(sparse.size(), kUnused);
  }

  DotInteractionArgs Forward() {
    return {.batch_size = shape.batch_size,
            .num_sparse = shape.num_sparse,
            .dim = shape.dim,
            .dense = dense.data(),
            .dense_stride = shape.dim + shape.gap,
            .sparse = sparse.data(),
            .sparse_stride = sparse_columns + shape.gap,
            .output = output.data(),
            .output_stride = output_columns + shape.gap};
  }
  DotInteractionGradArgs Backward() {
    return {.forward = Forward(),
            .output_gradient = output_gradient.data(),
            .dense_gradient = dense_gradient.data(),
            .dense_gradient_stride = shape.dim + shape.gap,
            .sparse_gradient = sparse_gradient.data(),
            .sparse_gradient_stride = sparse_columns + shape.gap};
  }
  void Run(const ExecContext& ctx) {
    HOTROW_ASSERT_OK(DotInteraction(ctx, Forward()));
    HOTROW_ASSERT_OK(DotInteractionGrad(ctx, Backward()));
  }

  // Column d of vector i (0 = dense) of sample b.
  float x(int64_t b, int64_t i, int64_t d) const { return At(dense, sparse, b, i, d); }
  float gradient(int64_t b, int64_t i, int64_t d) const {
    return At(dense_gradient, sparse_gradient, b, i, d);
  }
  float out(const std::vector<float>& v, int64_t b, int64_t column) const {
    return v[static_cast<size_t>(b * (output_columns + shape.gap) + column)];
  }
  int64_t PairColumn(int64_t i, int64_t j) const { return shape.dim + i * (i - 1) / 2 + j; }

  Shape shape;
  int64_t sparse_columns;
  int64_t output_columns;
  std::vector<float> dense, sparse, output, output_gradient, dense_gradient, sparse_gradient;

 private:
  float At(const std::vector<float>& first, const std::vector<float>& rest, int64_t b, int64_t i,
           int64_t d) const {
    if (i == 0) return first[static_cast<size_t>(b * (shape.dim + shape.gap) + d)];
    return rest[static_cast<size_t>(b * (sparse_columns + shape.gap) + (i - 1) * shape.dim + d)];
  }
};

void CheckForward(const Problem& p) {
  for (int64_t b = 0; b < p.shape.batch_size; ++b) {
    for (int64_t d = 0; d < p.shape.dim; ++d) ASSERT_EQ(p.out(p.output, b, d), p.x(b, 0, d));
    for (int64_t i = 1; i <= p.shape.num_sparse; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        double sum = 0;
        double magnitude = 0;
        for (int64_t d = 0; d < p.shape.dim; ++d) {
          const double term = static_cast<double>(p.x(b, i, d)) * p.x(b, j, d);
          sum += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(p.out(p.output, b, p.PairColumn(i, j)), sum,
                    test::Gamma(p.shape.dim) * magnitude)
            << b << ": " << i << "," << j;
      }
    }
  }
}

void CheckBackward(const Problem& p) {
  for (int64_t b = 0; b < p.shape.batch_size; ++b) {
    for (int64_t i = 0; i <= p.shape.num_sparse; ++i) {
      for (int64_t d = 0; d < p.shape.dim; ++d) {
        double sum = i == 0 ? p.out(p.output_gradient, b, d) : 0;
        double magnitude = std::abs(sum);
        for (int64_t j = 0; j <= p.shape.num_sparse; ++j) {
          if (j == i) continue;
          const int64_t column = p.PairColumn(std::max(i, j), std::min(i, j));
          const double term =
              static_cast<double>(p.out(p.output_gradient, b, column)) * p.x(b, j, d);
          sum += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(p.gradient(b, i, d), sum, test::Gamma(p.shape.num_sparse + 1) * magnitude)
            << b << ": " << i << "," << d;
      }
    }
  }
}

TEST(DotInteractionTest, HandWorkedNumbers) {
  // x0 = (1, 2), x1 = (3, 4), x2 = (5, 6): 1,0 -> 11; 2,0 -> 17; 2,1 -> 39.
  const std::vector<float> dense = {1, 2};
  const std::vector<float> sparse = {3, 4, 5, 6};
  std::vector<float> output(5);
  const DotInteractionArgs forward = {.batch_size = 1,
                                      .num_sparse = 2,
                                      .dim = 2,
                                      .dense = dense.data(),
                                      .dense_stride = 2,
                                      .sparse = sparse.data(),
                                      .sparse_stride = 4,
                                      .output = output.data(),
                                      .output_stride = 5};
  HOTROW_ASSERT_OK(DotInteraction({}, forward));
  EXPECT_EQ(output, (std::vector<float>{1, 2, 11, 17, 39}));

  // With dz = (100, 200 | 1, 10, 1000): dx0 = (100, 200) + 1 x1 + 10 x2; dx1 = 1 x0 + 1000 x2;
  // dx2 = 10 x0 + 1000 x1.
  const std::vector<float> output_gradient = {100, 200, 1, 10, 1000};
  std::vector<float> dense_gradient(2);
  std::vector<float> sparse_gradient(4);
  HOTROW_ASSERT_OK(DotInteractionGrad({}, {.forward = forward,
                                           .output_gradient = output_gradient.data(),
                                           .dense_gradient = dense_gradient.data(),
                                           .dense_gradient_stride = 2,
                                           .sparse_gradient = sparse_gradient.data(),
                                           .sparse_gradient_stride = 4}));
  EXPECT_EQ(dense_gradient, (std::vector<float>{153, 264}));
  EXPECT_EQ(sparse_gradient, (std::vector<float>{5001, 6002, 3010, 4020}));
}

TEST(DotInteractionTest, MatchesADoubleReferenceOnManyShapes) {
  for (const uint64_t seed : test::Seeds(2)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    for (const int32_t num_sparse : {0, 1, 2, 5, 6, 7, 8, 9, 15, 16, 17, 26}) {
      for (const int32_t dim : {1, 7, 8, 13, 16, 17, 24, 32, 64}) {
        for (const int64_t batch_size : {1, 7}) {
          SCOPED_TRACE(testing::Message() << "S=" << num_sparse << " D=" << dim);
          Problem p({.batch_size = batch_size, .num_sparse = num_sparse, .dim = dim, .gap = 3},
                    seed);
          ASSERT_NO_FATAL_FAILURE(p.Run({}));
          ASSERT_NO_FATAL_FAILURE(CheckForward(p));
          ASSERT_NO_FATAL_FAILURE(CheckBackward(p));
        }
      }
    }
  }
}

TEST(DotInteractionTest, DlrmShapeWithLargeBatchMatchesADoubleReference) {
  Problem p({.batch_size = 257, .num_sparse = 26, .dim = 128}, 5);
  ThreadPool pool(4);
  p.Run(test::OnPool(&pool));
  CheckForward(p);
  CheckBackward(p);
}

// loss = sum over outputs of c * z, evaluated in double from the definition.
double Loss(const Problem& p, const std::vector<double>& x) {
  const int64_t num_vectors = p.shape.num_sparse + 1;
  const int64_t dim = p.shape.dim;
  double loss = 0;
  for (int64_t d = 0; d < dim; ++d) {
    loss += p.out(p.output_gradient, 0, d) * x[static_cast<size_t>(d)];
  }
  for (int64_t i = 1; i < num_vectors; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      for (int64_t d = 0; d < dim; ++d) {
        loss += p.out(p.output_gradient, 0, p.PairColumn(i, j)) *
                x[static_cast<size_t>(i * dim + d)] * x[static_cast<size_t>(j * dim + d)];
      }
    }
  }
  return loss;
}

TEST(DotInteractionTest, GradientsAreTheFiniteDifferencesOfTheLoss) {
  Problem p({.batch_size = 1, .num_sparse = 8, .dim = 5}, 11);
  ASSERT_NO_FATAL_FAILURE(p.Run({}));
  std::vector<double> x;
  for (int64_t i = 0; i <= 8; ++i) {
    for (int64_t d = 0; d < 5; ++d) x.push_back(p.x(0, i, d));
  }
  constexpr double kStep =
      1e-4;  // the loss is quadratic: central differences are exact but rounding
  for (int64_t i = 0; i <= 8; ++i) {
    for (int64_t d = 0; d < 5; ++d) {
      std::vector<double> up = x;
      std::vector<double> down = x;
      up[static_cast<size_t>(i * 5 + d)] += kStep;
      down[static_cast<size_t>(i * 5 + d)] -= kStep;
      EXPECT_NEAR(p.gradient(0, i, d), (Loss(p, up) - Loss(p, down)) / (2 * kStep), 1e-5);
    }
  }
}

// Products are summed in eight lanes with fused multiply-adds, then ((0+2)+(1+3)) + ((4+6)+(5+7)):
// the same bits on processors with and without AVX2.
TEST(DotInteractionTest, SumsInTheDocumentedOrder) {
  for (const int32_t dim : {1, 8, 13, 16, 32, 37, 64, 128}) {
    Problem p({.batch_size = 3, .num_sparse = 11, .dim = dim}, 21);
    ASSERT_NO_FATAL_FAILURE(p.Run({}));
    for (int64_t b = 0; b < 3; ++b) {
      for (int64_t i = 1; i <= 11; ++i) {
        for (int64_t j = 0; j < i; ++j) {
          float s[8] = {};
          for (int64_t d = 0; d < dim; ++d) {
            s[d % 8] = std::fma(p.x(b, i, d), p.x(b, j, d), s[d % 8]);
          }
          const float want = ((s[0] + s[2]) + (s[1] + s[3])) + ((s[4] + s[6]) + (s[5] + s[7]));
          ASSERT_EQ(p.out(p.output, b, p.PairColumn(i, j)), want) << dim << ": " << i << "," << j;
        }
      }
    }
  }
}

TEST(DotInteractionTest, EqualBitsOnAnyPoolAndGapsStayUntouched) {
  const Shape shape = {.batch_size = 2048, .num_sparse = 26, .dim = 17, .gap = 5};
  Problem alone(shape, 4);
  ASSERT_NO_FATAL_FAILURE(alone.Run({}));
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    Problem p(shape, 4);
    ASSERT_NO_FATAL_FAILURE(p.Run(test::OnPool(&pool)));
    EXPECT_EQ(test::Bits(p.output), test::Bits(alone.output));
    EXPECT_EQ(test::Bits(p.dense_gradient), test::Bits(alone.dense_gradient));
    EXPECT_EQ(test::Bits(p.sparse_gradient), test::Bits(alone.sparse_gradient));
  }
  for (int64_t b = 0; b < shape.batch_size; ++b) {
    for (int64_t c = 0; c < shape.gap; ++c) {
      ASSERT_EQ(alone.out(alone.output, b, alone.output_columns + c), kUnused);
      ASSERT_EQ(alone.dense_gradient[static_cast<size_t>(b * 22 + 17 + c)], kUnused);
      ASSERT_EQ(alone.sparse_gradient[static_cast<size_t>(b * (26 * 17 + 5) + 26 * 17 + c)],
                kUnused);
    }
  }
}

TEST(DotInteractionTest, WithoutTheDenseVectorInItTheOutputIsTheProducts) {
  for (const int32_t num_sparse : {1, 5, 26}) {
    Problem with({.batch_size = 70, .num_sparse = num_sparse, .dim = 17}, 6);
    // Gradients of the vector's copy that are zeros change nothing.
    for (int64_t b = 0; b < 70; ++b) {
      for (int64_t d = 0; d < 17; ++d) {
        with.output_gradient[static_cast<size_t>(b * with.output_columns + d)] = 0;
      }
    }
    ASSERT_NO_FATAL_FAILURE(with.Run({}));
    Problem without = with;
    DotInteractionArgs forward = without.Forward();
    forward.copies_dense = false;
    forward.output_stride = with.output_columns - 16;  // one more than the products
    HOTROW_ASSERT_OK(DotInteraction({}, forward));
    std::vector<float> products_gradient(without.output.size());
    for (int64_t b = 0; b < 70; ++b) {
      for (int64_t p = 0; p < with.output_columns - 17; ++p) {
        const auto at = static_cast<size_t>(b * forward.output_stride + p);
        ASSERT_EQ(without.output[at], with.out(with.output, b, 17 + p)) << b << ", " << p;
        products_gradient[at] = with.out(with.output_gradient, b, 17 + p);
      }
    }
    DotInteractionGradArgs backward = without.Backward();
    backward.forward = forward;
    backward.output_gradient = products_gradient.data();
    HOTROW_ASSERT_OK(DotInteractionGrad({}, backward));
    EXPECT_EQ(test::Bits(without.dense_gradient), test::Bits(with.dense_gradient));
    EXPECT_EQ(test::Bits(without.sparse_gradient), test::Bits(with.sparse_gradient));
    forward.output_stride = with.output_columns - 18;
    EXPECT_THAT(DotInteraction({}, forward).message(), HasSubstr("output_stride must be >="));
  }
}

TEST(DotInteractionTest, OutputSizeCountsDenseAndPairs) {
  EXPECT_EQ(DotInteractionOutputSize(26, 16, /*copies_dense=*/false), 351);
  EXPECT_EQ(DotInteractionOutputSize(0, 7), 7);
  EXPECT_EQ(DotInteractionOutputSize(26, 16), 16 + 351);
  // F (F - 1) / 2 passes 2^31 here.
  EXPECT_EQ(DotInteractionOutputSize(100000, 1), 1 + 100001LL * 100000 / 2);
}

TEST(DotInteractionTest, EmptyBatchAndNoSparseFeaturesNeedNoPointers) {
  HOTROW_EXPECT_OK(DotInteraction({}, {.batch_size = 0, .num_sparse = 3, .dim = 4}));
  HOTROW_EXPECT_OK(
      DotInteractionGrad({}, {.forward = {.batch_size = 0, .num_sparse = 3, .dim = 4}}));
  const std::vector<float> x = {1, 2, 3};
  std::vector<float> y(3);
  std::vector<float> dx(3);
  // sparse_stride without sparse: must not be used for arithmetic on a null pointer.
  const DotInteractionArgs forward = {.batch_size = 1,
                                      .num_sparse = 0,
                                      .dim = 3,
                                      .dense = x.data(),
                                      .dense_stride = 3,
                                      .sparse_stride = 64,
                                      .output = y.data(),
                                      .output_stride = 3};
  HOTROW_EXPECT_OK(DotInteraction({}, forward));
  EXPECT_EQ(y, x);
  HOTROW_EXPECT_OK(DotInteractionGrad({}, {.forward = forward,
                                           .output_gradient = x.data(),
                                           .dense_gradient = dx.data(),
                                           .dense_gradient_stride = 3}));
  EXPECT_EQ(dx, x);
}

TEST(DotInteractionTest, ErrorsNameTheField) {
  const auto code = absl::StatusCode::kInvalidArgument;
  const auto forward_error = [&](const auto& change, const char* field) {
    Problem p({.batch_size = 2, .num_sparse = 3, .dim = 4}, 1);
    DotInteractionArgs args = p.Forward();
    change(args);
    EXPECT_THAT(DotInteraction({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  forward_error([](auto& a) { a.batch_size = -1; }, "batch_size");
  forward_error([](auto& a) { a.num_sparse = -1; }, "num_sparse");
  forward_error([](auto& a) { a.dim = 0; }, "dim");
  forward_error([](auto& a) { a.dense = nullptr; }, "dense must not be null");
  forward_error([](auto& a) { a.dense_stride = 3; }, "dense_stride must be >= 4, got 3");
  forward_error([](auto& a) { a.sparse = nullptr; }, "sparse");
  forward_error([](auto& a) { a.sparse_stride = 11; }, "sparse_stride must be >= 12");
  forward_error([](auto& a) { a.output = nullptr; }, "output");
  forward_error([](auto& a) { a.output_stride = 9; }, "output_stride must be >= 10");
  const auto backward_error = [&](const auto& change, const char* field) {
    Problem p({.batch_size = 2, .num_sparse = 3, .dim = 4}, 1);
    DotInteractionGradArgs args = p.Backward();
    change(args);
    EXPECT_THAT(DotInteractionGrad({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  backward_error([](auto& a) { a.forward.dim = 0; }, "dim");
  backward_error([](auto& a) { a.output_gradient = nullptr; }, "output_gradient");
  backward_error([](auto& a) { a.dense_gradient = nullptr; }, "dense_gradient");
  backward_error([](auto& a) { a.dense_gradient_stride = 0; }, "dense_gradient_stride");
  backward_error([](auto& a) { a.sparse_gradient = nullptr; }, "sparse_gradient");
  backward_error([](auto& a) { a.sparse_gradient_stride = 0; }, "sparse_gradient_stride");
}

TEST(DotInteractionTest, AWalkOverPairsMeetsEachInTheOrderOfOutputs) {
  int64_t place = 0;
  internal::PairWalk all;
  internal::PairWalk some;  // every fifth, as one of five threads would
  for (int64_t i = 1; i < 40; ++i) {
    for (int64_t j = 0; j < i; ++j, ++place) {
      EXPECT_EQ(internal::PairPlace(i, j), place);
      all.MoveTo(place);
      EXPECT_EQ(all.i, i);
      EXPECT_EQ(all.j, j);
      if (place % 5 != 3) continue;
      some.MoveTo(place);
      EXPECT_EQ(some.i, i);
      EXPECT_EQ(some.j, j);
    }
  }
  // Beyond 2^31.
  EXPECT_EQ(internal::PairPlace(100'000, 99'999), int64_t{100'000} * 99'999 / 2 + 99'999);
}

}  // namespace
}  // namespace hotrow
