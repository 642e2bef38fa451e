#include "ops/interactions/fm_interaction.h"

#include <cmath>
#include <vector>

#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

struct Shape {
  int64_t batch_size = 0;
  int32_t num_fields = 0;
  int32_t dim = 0;
  int32_t spare = 0;  // columns of a field behind the vector
  int32_t first_order_column = kNoFirstOrder;
  int64_t gap = 0;  // unused floats after each row
};

constexpr float kUnused = -77.0f;

struct Problem {
  Problem(const Shape& s, uint64_t seed)
      : shape(s),
        field_stride(s.dim + s.spare),
        columns(int64_t{s.num_fields} * field_stride),
        stride(columns + s.gap) {
    RandomStream random(seed, RandomPurpose::kTest);
    fields = test::RandomFloats(random, s.batch_size * stride);
    output_gradient = test::RandomFloats(random, s.batch_size);
    output.assign(output_gradient.size(), kUnused);
    fields_gradient.assign(fields.size(), kUnused);
  }

  FmInteractionArgs Forward() {
    return {.batch_size = shape.batch_size,
            .num_fields = shape.num_fields,
            .dim = shape.dim,
            .field_stride = field_stride,
            .fields = fields.data(),
            .fields_stride = stride,
            .first_order_column = shape.first_order_column,
            .output = output.data()};
  }
  FmInteractionGradArgs Backward() {
    return {.forward = Forward(),
            .output_gradient = output_gradient.data(),
            .fields_gradient = fields_gradient.data(),
            .fields_gradient_stride = stride};
  }
  void Run(const ExecContext& ctx) {
    HOTROW_ASSERT_OK(FmInteraction(ctx, Forward()));
    HOTROW_ASSERT_OK(FmInteractionGrad(ctx, Backward()));
  }
  size_t At(int64_t b, int64_t s, int64_t column) const {
    return static_cast<size_t>(b * stride + s * field_stride + column);
  }

  Shape shape;
  int32_t field_stride;
  int64_t columns;
  int64_t stride;
  std::vector<float> fields, output, output_gradient, fields_gradient;
};

// The definition, pair by pair: sum_s w_s + sum_{s < t} v_s . v_t, and the sum of the magnitudes of
// what the op adds up, for its error bound.
double Definition(const Problem& p, int64_t b, const std::vector<double>& x, double* magnitude) {
  double result = 0;
  *magnitude = 0;
  for (int64_t s = 0; s < p.shape.num_fields; ++s) {
    if (p.shape.first_order_column != kNoFirstOrder) {
      const double weight = x[p.At(b, s, p.shape.first_order_column)];
      result += weight;
      *magnitude += std::abs(weight);
    }
    for (int64_t t = 0; t < p.shape.num_fields; ++t) {
      for (int64_t d = 0; d < p.shape.dim; ++d) {
        const double product = x[p.At(b, s, d)] * x[p.At(b, t, d)];
        if (t < s) result += product;
        *magnitude += std::abs(product);
      }
    }
  }
  return result;
}

void CheckForward(const Problem& p) {
  const std::vector<double> x(p.fields.begin(), p.fields.end());
  const double terms = 3.0 * p.shape.num_fields + p.shape.dim + 4;
  for (int64_t b = 0; b < p.shape.batch_size; ++b) {
    double magnitude = 0;
    const double want = Definition(p, b, x, &magnitude);
    ASSERT_NEAR(p.output[static_cast<size_t>(b)], want, test::Gamma(terms) * magnitude) << b;
  }
}

void CheckBackward(const Problem& p) {
  for (int64_t b = 0; b < p.shape.batch_size; ++b) {
    const double g = p.output_gradient[static_cast<size_t>(b)];
    for (int64_t s = 0; s < p.shape.num_fields; ++s) {
      for (int64_t d = 0; d < p.shape.dim; ++d) {
        double sum = 0;
        double magnitude = 0;
        for (int64_t t = 0; t < p.shape.num_fields; ++t) {
          if (t != s) sum += p.fields[p.At(b, t, d)];
          magnitude += std::abs(p.fields[p.At(b, t, d)]);
        }
        ASSERT_NEAR(p.fields_gradient[p.At(b, s, d)], g * sum,
                    test::Gamma(p.shape.num_fields + 3) * 2 * magnitude * std::abs(g))
            << b << ": " << s << "," << d;
      }
      for (int32_t c = p.shape.dim; c < p.field_stride; ++c) {
        ASSERT_EQ(p.fields_gradient[p.At(b, s, c)],
                  c == p.shape.first_order_column ? static_cast<float>(g) : 0.0f);
      }
    }
    for (int64_t c = p.columns; c < p.stride; ++c) {
      ASSERT_EQ(p.fields_gradient[static_cast<size_t>(b * p.stride + c)], kUnused);
    }
  }
}

TEST(FmInteractionTest, HandWorkedNumbers) {
  // v = (1, 2), (3, 4), (5, 6) with weights 10, 20, 30: 11 + 17 + 39 + 60.
  const std::vector<float> fields = {1, 2, 10, 3, 4, 20, 5, 6, 30};
  float output = 0;
  FmInteractionArgs forward = {.batch_size = 1,
                               .num_fields = 3,
                               .dim = 2,
                               .field_stride = 3,
                               .fields = fields.data(),
                               .fields_stride = 9,
                               .first_order_column = 2,
                               .output = &output};
  HOTROW_ASSERT_OK(FmInteraction({}, forward));
  EXPECT_EQ(output, 127);

  // Each vector's gradient is the sum of the others, times 2.
  const float output_gradient = 2;
  std::vector<float> gradient(9, kUnused);
  const FmInteractionGradArgs backward = {.forward = forward,
                                          .output_gradient = &output_gradient,
                                          .fields_gradient = gradient.data(),
                                          .fields_gradient_stride = 9};
  HOTROW_ASSERT_OK(FmInteractionGrad({}, backward));
  EXPECT_EQ(gradient, (std::vector<float>{16, 20, 2, 12, 16, 2, 8, 12, 2}));

  forward.first_order_column = kNoFirstOrder;
  HOTROW_ASSERT_OK(FmInteraction({}, forward));
  EXPECT_EQ(output, 67);
}

TEST(FmInteractionTest, MatchesTheDefinitionOnManyShapes) {
  for (const uint64_t seed : test::Seeds(2)) {
    for (const int32_t num_fields : {1, 2, 3, 10, 26}) {
      for (const int32_t dim : {1, 3, 8, 10, 16, 17, 64}) {
        for (const int32_t spare : {0, 1, 3}) {
          SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed << " S=" << num_fields
                                          << " D=" << dim << " spare=" << spare);
          Problem p({.batch_size = 5,
                     .num_fields = num_fields,
                     .dim = dim,
                     .spare = spare,
                     .first_order_column = spare == 0 ? kNoFirstOrder : dim + spare - 1,
                     .gap = spare},
                    seed);
          ASSERT_NO_FATAL_FAILURE(p.Run({}));
          ASSERT_NO_FATAL_FAILURE(CheckForward(p));
          ASSERT_NO_FATAL_FAILURE(CheckBackward(p));
        }
      }
    }
  }
}

TEST(FmInteractionTest, GradientsAreTheFiniteDifferencesOfTheDefinition) {
  Problem p({.batch_size = 2, .num_fields = 4, .dim = 5, .spare = 2, .first_order_column = 5}, 3);
  ASSERT_NO_FATAL_FAILURE(p.Run({}));
  std::vector<double> x(p.fields.begin(), p.fields.end());
  const auto loss = [&] {
    double magnitude = 0;
    return p.output_gradient[0] * Definition(p, 0, x, &magnitude) +
           p.output_gradient[1] * Definition(p, 1, x, &magnitude);
  };
  constexpr double kStep = 1e-4;  // quadratic: central differences are exact but for rounding
  for (size_t i = 0; i < x.size(); ++i) {
    const double saved = x[i];
    x[i] = saved + kStep;
    const double up = loss();
    x[i] = saved - kStep;
    const double down = loss();
    x[i] = saved;
    EXPECT_NEAR(p.fields_gradient[i], (up - down) / (2 * kStep), 1e-5) << i;
  }
}

TEST(FmInteractionTest, EqualBitsOnAnyPoolAndInAnyBatch) {
  const Shape shape = {
      .batch_size = 1000, .num_fields = 11, .dim = 10, .spare = 1, .first_order_column = 10};
  Problem alone(shape, 4);
  ASSERT_NO_FATAL_FAILURE(alone.Run({}));
  for (const int threads : {2, 4}) {
    ThreadPool pool(threads);
    Problem p(shape, 4);
    ASSERT_NO_FATAL_FAILURE(p.Run(test::OnPool(&pool)));
    EXPECT_EQ(test::Bits(p.output), test::Bits(alone.output));
    EXPECT_EQ(test::Bits(p.fields_gradient), test::Bits(alone.fields_gradient));
  }
  Problem last(shape, 4);
  FmInteractionArgs args = last.Forward();
  args.batch_size = 1;
  args.fields += 999 * last.stride;
  HOTROW_ASSERT_OK(FmInteraction({}, args));
  EXPECT_EQ(last.output[0], alone.output[999]);
}

TEST(FmInteractionTest, OutputsMayBeAColumnAmongOthers) {
  Problem p({.batch_size = 4, .num_fields = 3, .dim = 5}, 6);
  ASSERT_NO_FATAL_FAILURE(p.Run({}));
  std::vector<float> output(12, kUnused), output_gradient(12, kUnused);
  std::vector<float> gradient(p.fields_gradient.size());
  for (size_t b = 0; b < 4; ++b) output_gradient[3 * b] = p.output_gradient[b];
  FmInteractionGradArgs args = p.Backward();
  args.forward.output = output.data();
  args.forward.output_stride = 3;
  args.output_gradient = output_gradient.data();
  args.output_gradient_stride = 3;
  args.fields_gradient = gradient.data();
  HOTROW_ASSERT_OK(FmInteraction({}, args.forward));
  HOTROW_ASSERT_OK(FmInteractionGrad({}, args));
  for (size_t i = 0; i < output.size(); ++i) {
    EXPECT_EQ(output[i], i % 3 == 0 ? p.output[i / 3] : kUnused) << i;
  }
  EXPECT_EQ(test::Bits(gradient), test::Bits(p.fields_gradient));
}

TEST(FmInteractionTest, AnEmptyBatchNeedsNoPointers) {
  const FmInteractionArgs none = {.batch_size = 0, .num_fields = 3, .dim = 4, .field_stride = 4};
  HOTROW_EXPECT_OK(FmInteraction({}, none));
  HOTROW_EXPECT_OK(FmInteractionGrad({}, {.forward = none}));
}

TEST(FmInteractionTest, ErrorsNameTheField) {
  const Shape shape = {
      .batch_size = 2, .num_fields = 3, .dim = 4, .spare = 2, .first_order_column = 5};
  const auto code = absl::StatusCode::kInvalidArgument;
  const auto forward_error = [&](const auto& change, const char* field) {
    Problem p(shape, 1);
    FmInteractionArgs args = p.Forward();
    change(args);
    EXPECT_THAT(FmInteraction({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  forward_error([](auto& a) { a.batch_size = -1; }, "batch_size must be >= 0, got -1");
  forward_error([](auto& a) { a.num_fields = 0; }, "num_fields");
  forward_error([](auto& a) { a.dim = 0; }, "dim must be > 0");
  forward_error([](auto& a) { a.field_stride = 3; }, "field_stride must be >= dim = 4, got 3");
  forward_error([](auto& a) { a.first_order_column = 3; }, "first_order_column");
  forward_error([](auto& a) { a.first_order_column = 6; }, "[dim, field_stride) = [4, 6), got 6");
  forward_error([](auto& a) { a.fields = nullptr; }, "fields must not be null");
  forward_error([](auto& a) { a.fields_stride = 17; }, "fields_stride must be >= 18, got 17");
  forward_error([](auto& a) { a.output = nullptr; }, "output");
  forward_error([](auto& a) { a.output_stride = 0; }, "output_stride must be >= 1, got 0");
  const auto backward_error = [&](const auto& change, const char* field) {
    Problem p(shape, 1);
    FmInteractionGradArgs args = p.Backward();
    change(args);
    EXPECT_THAT(FmInteractionGrad({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  backward_error([](auto& a) { a.forward.dim = 0; }, "dim");
  backward_error([](auto& a) { a.output_gradient = nullptr; }, "output_gradient");
  backward_error([](auto& a) { a.output_gradient_stride = 0; }, "output_gradient_stride");
  backward_error([](auto& a) { a.fields_gradient = nullptr; }, "fields_gradient");
  backward_error([](auto& a) { a.fields_gradient_stride = 17; }, "fields_gradient_stride");
}

}  // namespace
}  // namespace hotrow
