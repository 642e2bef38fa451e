#include "ops/layers/self_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::HasSubstr;

// --- a history and its target as one sequence ---

// Three samples with two rows, none and one of two columns; offsets may begin anywhere.
const std::vector<float> kRows = {1, 2, 3, 4, 5, 6};
const std::vector<int64_t> kOffsets = {7, 9, 9, 10};
const std::vector<float> kTarget = {10, 20, -7, 30, 40, -7, 50, 60, -7};

JaggedRows Small() {
  return {.batch_size = 3, .dim = 2, .rows = kRows.data(), .offsets = kOffsets.data()};
}

TEST(SelfAttentionTest, ATargetIsAppendedAndRowsCountFromIt) {
  const std::vector<float> positions = {100, 200, -7, 300, 400, -7};  // two of them
  std::vector<float> sequences(6 * 3, 9.0f);
  AppendTargetArgs append = {.rows = Small(),
                             .target = kTarget.data(),
                             .target_stride = 3,
                             .positions = positions.data(),
                             .position_stride = 3,
                             .num_positions = 2,
                             .output = sequences.data(),
                             .output_stride = 3};
  HOTROW_ASSERT_OK(AppendTarget({}, append));
  EXPECT_EQ(sequences, (std::vector<float>{301, 402, 9, 303, 404, 9, 110, 220, 9,  //
                                           130, 240, 9,                            //
                                           305, 406, 9, 150, 260, 9}));

  // The gradients of its rows are 1, 10, ..., 100000 in one column and their double in the other.
  std::vector<float> gradient;
  for (float g = 1; g <= 100'000; g *= 10) gradient.insert(gradient.end(), {g, 2 * g});
  std::vector<float> drows(6, 5.0f), dtarget(6, 9.0f), dpositions(6, 9.0f);
  AppendTargetGradArgs grad = {.rows = Small(),
                               .output_gradient = gradient.data(),
                               .output_gradient_stride = 2,
                               .row_gradient = drows.data(),
                               .target_gradient = dtarget.data(),
                               .target_gradient_stride = 2,
                               .position_gradient = dpositions.data(),
                               .position_gradient_stride = 3,
                               .num_positions = 2};
  HOTROW_ASSERT_OK(AppendTargetGrad({}, grad));
  EXPECT_EQ(drows, (std::vector<float>{6, 7, 15, 25, 10'005, 20'005}));
  EXPECT_EQ(dtarget, (std::vector<float>{100, 200, 1000, 2000, 100'000, 200'000}));
  EXPECT_EQ(dpositions, (std::vector<float>{101'100, 202'200, 9, 10'011, 20'022, 9}));
  // Of three positions each row has its own number.
  dpositions.assign(9, 9.0f);
  grad.position_gradient = dpositions.data();
  grad.num_positions = 3;
  grad.target_gradient = nullptr;
  HOTROW_ASSERT_OK(AppendTargetGrad({}, grad));
  EXPECT_EQ(dpositions, (std::vector<float>{101'100, 202'200, 9, 10'010, 20'020, 9, 1, 2, 9}));
  EXPECT_EQ(dtarget[0], 100);
}

// One history for three targets, as rows that are there once and as copies.
TEST(SelfAttentionTest, SharedRowsAreThoseOfEachSample) {
  const std::vector<int64_t> offsets = {0, 2, 4, 6};
  std::vector<float> copies;
  for (int i = 0; i < 3; ++i) copies.insert(copies.end(), kRows.begin(), kRows.begin() + 4);
  const std::vector<float> positions = {1, 2, 3, 4, 5, 6};
  std::vector<float> results[2];
  for (const bool shared : {false, true}) {
    std::vector<float>& out = results[shared ? 1 : 0];
    out.assign(18, -1.0f);
    HOTROW_ASSERT_OK(AppendTarget({}, {.rows = {.batch_size = 3,
                                                .dim = 2,
                                                .rows = shared ? kRows.data() : copies.data(),
                                                .offsets = offsets.data(),
                                                .shared = shared},
                                       .target = kTarget.data(),
                                       .target_stride = 3,
                                       .positions = positions.data(),
                                       .position_stride = 2,
                                       .num_positions = 3,
                                       .output = out.data(),
                                       .output_stride = 2}));
  }
  EXPECT_EQ(results[1], results[0]);
}

TEST(SelfAttentionTest, TheLastRowStandsForItsSample) {
  std::vector<float> last(9, 9.0f);
  HOTROW_ASSERT_OK(LastRow({}, {.rows = Small(), .output = last.data(), .output_stride = 3}));
  EXPECT_EQ(last, (std::vector<float>{3, 4, 9, 0, 0, 9, 5, 6, 9}));
  std::vector<float> drows(6, 9.0f);
  HOTROW_ASSERT_OK(LastRowGrad({}, {.rows = Small(),
                                    .output_gradient = kTarget.data(),
                                    .output_gradient_stride = 3,
                                    .row_gradient = drows.data()}));
  EXPECT_EQ(drows, (std::vector<float>{0, 0, 10, 20, 50, 60}));
}

// --- self-attention ---

struct Shape {
  AttentionKind kind;
  bool causal;
  int64_t num_positions;  // of the bias; 0: none
  int32_t num_heads;
  int32_t head_dim;
};

std::string NameOf(const testing::TestParamInfo<Shape>& info) {
  const Shape& shape = info.param;
  return std::string(shape.kind == AttentionKind::kSoftmax ? "Softmax" : "Silu") +
         (shape.causal ? "Causal" : "") + "Bias" + std::to_string(shape.num_positions) + "Heads" +
         std::to_string(shape.num_heads) + "Dim" + std::to_string(shape.head_dim);
}

// Queries, keys and values end to end, as a product makes them, and room for results.
struct Problem {
  Shape shape;
  std::vector<int64_t> offsets = {5};
  std::vector<float> rows;  // [N, 3 H D]
  std::vector<float> bias;
  std::vector<float> output_gradient;  // [N, H D]
  std::vector<float> output, normalizers, gradients, bias_gradient;

  int64_t columns() const { return int64_t{shape.num_heads} * shape.head_dim; }
  int64_t num_rows() const { return offsets.back() - offsets.front(); }

  Problem(const Shape& of, const std::vector<int64_t>& lengths, uint64_t seed) : shape(of) {
    RandomStream random(seed, RandomPurpose::kTest);
    for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
    rows = test::RandomFloats(random, num_rows() * 3 * columns());
    output_gradient = test::RandomFloats(random, num_rows() * columns());
    if (of.num_positions > 0) bias = test::RandomFloats(random, 2 * of.num_positions - 1);
    output.assign(output_gradient.size(), NAN);
    normalizers.assign(static_cast<size_t>(num_rows() * of.num_heads), NAN);
    gradients.assign(rows.size(), NAN);
    bias_gradient.assign(bias.size(), NAN);
  }

  SelfAttentionArgs Args() {
    SelfAttentionArgs args = {.kind = shape.kind,
                              .causal = shape.causal,
                              .batch_size = std::ssize(offsets) - 1,
                              .num_heads = shape.num_heads,
                              .head_dim = shape.head_dim,
                              .scale = 0.7f,
                              .length_bound = 20,
                              .offsets = offsets.data(),
                              .queries = rows.data(),
                              .keys = rows.data() + columns(),
                              .values = rows.data() + 2 * columns(),
                              .row_stride = 3 * columns(),
                              .position_bias = bias.empty() ? nullptr : bias.data(),
                              .num_positions = shape.num_positions,
                              .output = output.data(),
                              .output_stride = columns()};
    if (shape.kind == AttentionKind::kSoftmax) args.normalizers = normalizers.data();
    return args;
  }

  void Run(ThreadPool* pool) {
    const SelfAttentionArgs forward = Args();
    HOTROW_ASSERT_OK(SelfAttention(test::OnPool(pool), forward));
    const int64_t bytes = SelfAttentionGradWorkspaceBytes(forward.batch_size, shape.num_positions);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto workspace, HostBuffer<std::byte>::Create(bytes));
    HOTROW_ASSERT_OK(SelfAttentionGrad(
        test::OnPool(pool),
        {.forward = forward,
         .output_gradient = output_gradient.data(),
         .output_gradient_stride = columns(),
         .query_gradient = gradients.data(),
         .key_gradient = gradients.data() + columns(),
         .value_gradient = gradients.data() + 2 * columns(),
         .gradient_stride = 3 * columns(),
         .position_bias_gradient = bias_gradient.empty() ? nullptr : bias_gradient.data(),
         .workspace = workspace.data(),
         .workspace_bytes = bytes}));
  }
};

// By the formulas of the header, in double: [N, H D].
std::vector<double> Reference(const Problem& p, const std::vector<double>& rows,
                              const std::vector<double>& bias) {
  const int64_t columns = p.columns();
  std::vector<double> out(static_cast<size_t>(p.num_rows() * columns));
  const auto at = [&](int64_t row, int64_t part, int64_t column) {
    return rows[static_cast<size_t>((row * 3 + part) * columns + column)];
  };
  for (size_t b = 0; b + 1 < p.offsets.size(); ++b) {
    const int64_t begin = p.offsets[b] - p.offsets[0];
    const int64_t end = p.offsets[b + 1] - p.offsets[0];
    for (int64_t h = 0; h < p.shape.num_heads; ++h) {
      const int64_t first = h * p.shape.head_dim;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t last = p.shape.causal ? i + 1 : end;
        std::vector<double> weights;
        double sum = 0;
        for (int64_t j = begin; j < last; ++j) {
          double score = 0;
          for (int64_t c = first; c < first + p.shape.head_dim; ++c) {
            score += static_cast<double>(0.7f) * at(i, 0, c) * at(j, 1, c);
          }
          if (!bias.empty()) {
            const int64_t furthest = p.shape.num_positions - 1;
            score += bias[static_cast<size_t>(furthest + std::clamp(i - j, -furthest, furthest))];
          }
          weights.push_back(p.shape.kind == AttentionKind::kSoftmax
                                ? std::exp(score)
                                : score / (1 + std::exp(-score)) / 20);
          sum += weights.back();
        }
        for (int64_t j = begin; j < last; ++j) {
          double weight = weights[static_cast<size_t>(j - begin)];
          if (p.shape.kind == AttentionKind::kSoftmax) weight /= sum;
          for (int64_t c = first; c < first + p.shape.head_dim; ++c) {
            out[static_cast<size_t>(i * columns + c)] += weight * at(j, 2, c);
          }
        }
      }
    }
  }
  return out;
}

class SelfAttentionShapeTest : public testing::TestWithParam<Shape> {};

// Sequences of none, one and a tile of eight keys, below and above it, to the bound of 20.
TEST_P(SelfAttentionShapeTest, ForwardAndBackwardMatchTheReference) {
  Problem p(GetParam(), {0, 1, 8, 7, 0, 20, 2}, 3);
  p.Run(nullptr);
  std::vector<double> rows(p.rows.begin(), p.rows.end());
  std::vector<double> bias(p.bias.begin(), p.bias.end());
  const std::vector<double> expected = Reference(p, rows, bias);
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(p.output[i], expected[i], 1e-5) << i;
  const auto objective = [&] {
    const std::vector<double> y = Reference(p, rows, bias);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += p.output_gradient[i] * y[i];
    return sum;
  };
  const auto check = [&](std::vector<double>* at, const std::vector<float>& gradient, size_t step,
                         const char* what) {
    ASSERT_EQ(at->size(), gradient.size());
    for (size_t i = 0; i < at->size(); i += step) {
      constexpr double kH = 1e-5;
      const double saved = (*at)[i];
      (*at)[i] = saved + kH;
      const double above = objective();
      (*at)[i] = saved - kH;
      const double slope = (above - objective()) / (2 * kH);
      (*at)[i] = saved;
      ASSERT_NEAR(gradient[i], slope, 1e-4 * (1 + std::abs(slope))) << what << " " << i;
    }
  };
  // All kinds of columns of all kinds of rows, for 11 is prime.
  check(&rows, p.gradients, 11, "row");
  check(&bias, p.bias_gradient, 1, "bias");
}

TEST_P(SelfAttentionShapeTest, EqualBitsOnAnyPool) {
  std::vector<int64_t> lengths;
  for (int64_t b = 0; b < 50; ++b) lengths.push_back(b * 7 % 21);
  std::vector<std::vector<uint32_t>> bits;
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    Problem p(GetParam(), lengths, 4);
    p.Run(&pool);
    std::vector<uint32_t>& all = bits.emplace_back();
    for (const auto* part : {&p.output, &p.gradients, &p.bias_gradient}) {
      const std::vector<uint32_t> of = test::Bits(*part);
      all.insert(all.end(), of.begin(), of.end());
    }
  }
  EXPECT_EQ(bits[1], bits[0]);
  EXPECT_EQ(bits[2], bits[0]);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SelfAttentionShapeTest,
                         testing::Values(Shape{AttentionKind::kSoftmax, false, 0, 2, 3},
                                         Shape{AttentionKind::kSoftmax, true, 6, 1, 8},
                                         Shape{AttentionKind::kSoftmax, false, 21, 3, 1},
                                         Shape{AttentionKind::kSilu, true, 6, 2, 5},
                                         Shape{AttentionKind::kSilu, false, 0, 1, 16}),
                         NameOf);

// Scores that no float could be the exponential of.
TEST(SelfAttentionTest, LargeScoresOverflowNothing) {
  const std::vector<int64_t> offsets = {0, 10};
  std::vector<float> rows;
  for (int i = 0; i < 10; ++i) rows.insert(rows.end(), {100, static_cast<float>(30 * i), 1});
  std::vector<float> output(10), normalizers(10);
  HOTROW_ASSERT_OK(SelfAttention({}, {.batch_size = 1,
                                      .num_heads = 1,
                                      .head_dim = 1,
                                      .offsets = offsets.data(),
                                      .queries = rows.data(),
                                      .keys = rows.data() + 1,
                                      .values = rows.data() + 1,
                                      .row_stride = 3,
                                      .output = output.data(),
                                      .output_stride = 1,
                                      .normalizers = normalizers.data()}));
  EXPECT_EQ(output, std::vector<float>(10, 270.0f));
  EXPECT_EQ(normalizers, std::vector<float>(10, 27'000.0f));
}

TEST(SelfAttentionTest, ErrorsNameTheFieldAndTheLimit) {
  const auto expect_error = [](const absl::Status& status, const char* text) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  std::vector<float> v(8);
  const JaggedRows none = {.batch_size = 0, .dim = 2};
  JaggedRows shared = Small();
  shared.shared = true;
  expect_error(AppendTarget({}, {}), "AppendTarget: dim must be >= 1, got 0");
  expect_error(AppendTarget({}, {.rows = Small()}), "num_positions must be >= 1, got 0");
  expect_error(AppendTarget({}, {.rows = Small(), .num_positions = 1}), "target must not be null");
  expect_error(AppendTargetGrad({}, {.rows = shared, .num_positions = 1}),
               "shared must be false here, got 1");
  expect_error(AppendTargetGrad({}, {.rows = Small(), .num_positions = 1}),
               "position_gradient must not be null");
  expect_error(LastRow({}, {.rows = Small(), .output = v.data(), .output_stride = 1}),
               "LastRow: output_stride must be >= the columns, 2, got 1");
  expect_error(LastRowGrad({}, {.rows = Small()}), "output_gradient must not be null");
  SelfAttentionArgs args;
  expect_error(SelfAttention({}, args), "SelfAttention: num_heads must be >= 1, got 0");
  args.num_heads = 2;
  expect_error(SelfAttention({}, args), "head_dim must be >= 1, got 0");
  args.head_dim = 3;
  HOTROW_EXPECT_OK(SelfAttention({}, args));
  args.batch_size = 3;
  expect_error(SelfAttention({}, args), "offsets must not be null");
  args.offsets = kOffsets.data();
  args.row_stride = 5;
  expect_error(SelfAttention({}, args), "row_stride must be >= the columns, 6, got 5");
  args.row_stride = args.output_stride = 6;
  args.length_bound = 0;
  expect_error(SelfAttention({}, args), "length_bound must be > 0, got 0");
  args.length_bound = 1;
  args.kind = AttentionKind::kSilu;
  args.normalizers = v.data();
  expect_error(SelfAttention({}, args), "normalizers");
  args.normalizers = nullptr;
  args.position_bias = v.data();
  expect_error(SelfAttention({}, args), "num_positions must be >= 1, got 0");
  args.num_positions = 2;
  SelfAttentionGradArgs grad = {.forward = args};
  expect_error(SelfAttentionGrad({}, grad), "position_bias_gradient must not be null");
  grad.position_bias_gradient = v.data();
  expect_error(SelfAttentionGrad({}, grad), "workspace_bytes must be at least 64, got 0");
  grad.forward.position_bias = nullptr;
  expect_error(SelfAttentionGrad({}, grad), "output_gradient_stride");
  HOTROW_EXPECT_OK(LastRow({}, {.rows = none}));
  EXPECT_THAT(LastRow({.device = Device::kCuda}, {.rows = none}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("CPU only")));
}

}  // namespace
}  // namespace hotrow
