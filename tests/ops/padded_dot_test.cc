#include "ops/interactions/padded_dot.h"

#include <cmath>
#include <limits>
#include <vector>

#include "ops/interactions/dot_interaction.h"
#include "ops/interactions/padded_dot_impl.h"
#include "tests/ops/padded_dot_problem.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

constexpr DotPrecision kPrecisions[] = {DotPrecision::kFp32, DotPrecision::kTf32,
                                        DotPrecision::kBf16, DotPrecision::kFp16};

TEST(PaddedDotTest, RowsArePaddedToSixteenWithAOneBehind) {
  EXPECT_EQ(PaddedDotColumns(26, 128), 480);  // 128 + 351 + 1
  EXPECT_EQ(PaddedDotProducts(26, 128), 479);
  EXPECT_EQ(PaddedDotColumns(0, 15), 16);
  EXPECT_EQ(PaddedDotColumns(0, 16), 32);  // there is always a column for the one
  EXPECT_EQ(PaddedDotColumns(1, 1), 16);
}

TEST(PaddedDotTest, MatchesADoubleReferenceInEveryPrecision) {
  for (const uint64_t seed : test::Seeds(2)) {
    for (const DotPrecision precision : kPrecisions) {
      for (const int32_t num_sparse : {0, 1, 7, 26}) {
        for (const int32_t dim : {1, 13, 16, 32}) {
          test::DotProblem p({precision, 5, num_sparse, dim, 3}, seed);
          SCOPED_TRACE(testing::Message() << p.shape << ", HOTROW_TEST_SEED=" << seed);
          HOTROW_ASSERT_OK(PaddedDot({}, p.Forward()));
          HOTROW_ASSERT_OK(PaddedDotGrad({}, p.Backward()));
          ASSERT_NO_FATAL_FAILURE(p.CheckForward());
          ASSERT_NO_FATAL_FAILURE(p.CheckBackward());
        }
      }
    }
  }
}

TEST(PaddedDotTest, InFp32ItHasTheBitsOfDotInteractionOnAnyPool) {
  test::DotProblem p({DotPrecision::kFp32, 77, 26, 16}, 3);
  std::vector<float> output(static_cast<size_t>(77 * p.products));
  std::vector<float> output_gradient(output.size());
  std::vector<float> dense_gradient(77 * 16), sparse_gradient(77 * 26 * 16);
  for (int64_t b = 0; b < 77; ++b) {
    for (int64_t c = 0; c < p.products; ++c) {
      output_gradient[static_cast<size_t>(b * p.products + c)] =
          p.output_gradient.Get(b * p.output_stride + c);
    }
  }
  const DotInteractionArgs forward = {.batch_size = 77,
                                      .num_sparse = 26,
                                      .dim = 16,
                                      .dense = reinterpret_cast<float*>(p.dense.data()),
                                      .dense_stride = 16,
                                      .sparse = reinterpret_cast<float*>(p.sparse.data()),
                                      .sparse_stride = 26 * 16,
                                      .output = output.data(),
                                      .output_stride = p.products};
  HOTROW_ASSERT_OK(DotInteraction({}, forward));
  HOTROW_ASSERT_OK(DotInteractionGrad({}, {.forward = forward,
                                           .output_gradient = output_gradient.data(),
                                           .dense_gradient = dense_gradient.data(),
                                           .dense_gradient_stride = 16,
                                           .sparse_gradient = sparse_gradient.data(),
                                           .sparse_gradient_stride = 26 * 16}));
  ThreadPool pool(3);
  HOTROW_ASSERT_OK(PaddedDot(test::OnPool(&pool), p.Forward()));
  HOTROW_ASSERT_OK(PaddedDotGrad(test::OnPool(&pool), p.Backward()));
  for (int64_t b = 0; b < 77; ++b) {
    for (int64_t c = 0; c < p.products; ++c) {
      ASSERT_EQ(p.output.Get(b * p.output_stride + c),
                output[static_cast<size_t>(b * p.products + c)]);
    }
  }
  EXPECT_EQ(std::memcmp(p.dense_gradient.data(), dense_gradient.data(), 77 * 16 * 4), 0);
  EXPECT_EQ(std::memcmp(p.sparse_gradient.data(), sparse_gradient.data(), 77 * 26 * 16 * 4), 0);
}

TEST(PaddedDotTest, VectorsAreReadWhereTheyLie) {
  for (const DotPrecision precision : kPrecisions) {
    test::DotProblem want({precision, 35, 5, 7}, 4);
    test::DotProblem p({precision, 35, 5, 7}, 4);
    HOTROW_ASSERT_OK(PaddedDot({}, want.Forward()));
    HOTROW_ASSERT_OK(PaddedDotGrad({}, want.Backward()));
    const std::vector<const void*> rows = p.Rows(p.sparse.data());
    PaddedDotGradArgs args = p.Backward();
    args.forward.sparse = nullptr;
    args.forward.sparse_rows = rows.data();
    HOTROW_ASSERT_OK(PaddedDot({}, args.forward));
    HOTROW_ASSERT_OK(PaddedDotGrad({}, args));
    EXPECT_EQ(p.output.bytes(), want.output.bytes());
    EXPECT_EQ(p.dense_gradient.bytes(), want.dense_gradient.bytes());
    EXPECT_EQ(p.sparse_gradient.bytes(), want.sparse_gradient.bytes());
  }
}

TEST(PaddedDotTest, NumbersAreRoundedToTheNearestAndOverflowToInfinity) {
  using internal::DotElement;
  using Bf16 = DotElement<DotPrecision::kBf16>;
  using Fp16 = DotElement<DotPrecision::kFp16>;
  using Tf32 = DotElement<DotPrecision::kTf32>;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto bf16 = [](float x) { return Bf16::Widen(Bf16::Narrow(x)); };
  const auto fp16 = [](float x) { return Fp16::Widen(Fp16::Narrow(x)); };
  EXPECT_EQ(bf16(1 + 0x1p-8f), 1.0f);
  EXPECT_EQ(bf16(1 + 0x3p-8f), 1 + 0x1p-6f);
  EXPECT_EQ(bf16(0x1.fep127f), 0x1.fep127f);
  EXPECT_EQ(bf16(0x1.fefffep127f), 0x1.fep127f);
  EXPECT_EQ(bf16(-0x1.ffp127f), -kInf);
  EXPECT_EQ(bf16(kInf), kInf);
  EXPECT_TRUE(std::isnan(bf16(NAN)));
  EXPECT_EQ(fp16(1 + 0x1p-11f), 1.0f);
  EXPECT_EQ(fp16(65519.996f), 65504.0f);
  EXPECT_EQ(fp16(65520.0f), kInf);
  EXPECT_EQ(fp16(-1e30f), -kInf);
  EXPECT_EQ(fp16(0x1p-24f), 0x1p-24f);
  EXPECT_TRUE(std::isnan(fp16(-NAN)));
  EXPECT_EQ(Tf32::Factor(1 + 0x1p-11f), 1 + 0x1p-10f);
  EXPECT_EQ(Tf32::Factor(-1 - 0x1.ffp-12f), -1.0f);
  EXPECT_EQ(Tf32::Factor(kInf), kInf);
  EXPECT_TRUE(std::isnan(Tf32::Factor(NAN)));
  EXPECT_EQ(Tf32::Narrow(1 + 0x1p-23f), 1 + 0x1p-23f);
}

// What a GPU of compute capability 9.0, 8.0 and 8.9 gives a block.
TEST(PaddedDotTest, EveryShapeForTilesHasAPlanThatFits) {
  for (const int64_t limit : {227 << 10, 163 << 10, 99 << 10}) {
    for (const DotPrecision precision :
         {DotPrecision::kFp32, DotPrecision::kTf32, DotPrecision::kBf16, DotPrecision::kFp16}) {
      for (const bool backward : {false, true}) {
        for (int32_t vectors = 1; vectors <= 64; ++vectors) {
          for (int32_t dim = 16; dim <= 512; dim += 16) {
            SCOPED_TRACE(testing::Message()
                         << limit << ", " << DotPrecisionName(precision) << ", backward "
                         << backward << ", " << vectors << " of " << dim);
            internal::DotPlan plan;
            ASSERT_TRUE(internal::PlanDot(precision, vectors - 1, dim, backward, limit, &plan));
            ASSERT_LE(plan.shared_bytes, limit);
            ASSERT_GE(16 * plan.row_tiles, vectors);
            ASSERT_LE(plan.row_tiles, 4);
            ASSERT_GE(plan.chunks * plan.chunk_columns, dim);
            ASSERT_LT((plan.chunks - 1) * plan.chunk_columns, dim);
            ASSERT_EQ(plan.chunk_columns % 16, 0);
            ASSERT_LE(plan.chunk_columns * DotElementBytes(precision), 256);
            ASSERT_EQ(plan.pitch_bytes % 16, 0);
            ASSERT_EQ(plan.stage_bytes % 16, 0);
            ASSERT_EQ(plan.scratch_bytes % 16, 0);
            // Rows of ldmatrix in eight different groups of four banks; of others in four.
            const bool four =
                precision == DotPrecision::kFp32 || (backward && precision == DotPrecision::kTf32);
            ASSERT_EQ(plan.pitch_bytes / 16 % (four ? 4 : 2), four ? 2 : 1);
          }
        }
      }
    }
  }
}

TEST(PaddedDotTest, OtherShapesHaveNoPlan) {
  internal::DotPlan plan;
  constexpr int64_t kLimit = 227 << 10;
  EXPECT_FALSE(internal::PlanDot(DotPrecision::kBf16, 64, 128, false, kLimit, &plan));
  EXPECT_FALSE(internal::PlanDot(DotPrecision::kBf16, 26, 528, false, kLimit, &plan));
  EXPECT_FALSE(internal::PlanDot(DotPrecision::kBf16, 26, 120, false, kLimit, &plan));
  EXPECT_FALSE(internal::PlanDot(DotPrecision::kBf16, 26, 128, false, 8 << 10, &plan));
  EXPECT_FALSE(internal::PlanDot(DotPrecision::kBf16, std::numeric_limits<int32_t>::max(), 16,
                                 false, kLimit, &plan));
}

TEST(PaddedDotTest, EmptyBatchAndNoSparseFeaturesNeedNoPointers) {
  HOTROW_EXPECT_OK(PaddedDot({}, {.batch_size = 0, .num_sparse = 3, .dim = 4}));
  HOTROW_EXPECT_OK(PaddedDotGrad({}, {.forward = {.batch_size = 0, .num_sparse = 3, .dim = 4}}));
  test::DotProblem p({DotPrecision::kBf16, 2, 0, 3}, 1);
  PaddedDotGradArgs args = p.Backward();
  args.forward.sparse = nullptr;
  args.sparse_gradient = nullptr;
  HOTROW_EXPECT_OK(PaddedDot({}, args.forward));
  HOTROW_EXPECT_OK(PaddedDotGrad({}, args));
  p.CheckForward();
  p.CheckBackward();
}

TEST(PaddedDotTest, ErrorsNameTheField) {
  const auto forward_error = [&](const auto& change, const char* field) {
    test::DotProblem p({DotPrecision::kFp16, 2, 3, 4}, 1);
    PaddedDotArgs args = p.Forward();
    change(args);
    EXPECT_THAT(PaddedDot({}, args),
                test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(field)));
  };
  forward_error([](auto& a) { a.batch_size = -1; }, "batch_size");
  forward_error([](auto& a) { a.num_sparse = -1; }, "num_sparse");
  forward_error([](auto& a) { a.dim = 0; }, "dim");
  forward_error([](auto& a) { a.dense = nullptr; }, "dense must not be null");
  forward_error([](auto& a) { a.dense_stride = 3; }, "dense_stride must be >= 4, got 3");
  forward_error([](auto& a) { a.sparse = nullptr; }, "sparse");
  forward_error([](auto& a) { a.sparse_stride = 11; }, "sparse_stride must be >= 12");
  forward_error([](auto& a) { a.sparse_rows = &a.sparse; }, "sparse must be null");
  forward_error([](auto& a) { a.output = nullptr; }, "output");
  forward_error([](auto& a) { a.output_stride = 15; }, "output_stride must be >= 16, got 15");
  const auto backward_error = [&](const auto& change, const char* field) {
    test::DotProblem p({DotPrecision::kFp16, 2, 3, 4}, 1);
    PaddedDotGradArgs args = p.Backward();
    change(args);
    EXPECT_THAT(PaddedDotGrad({}, args),
                test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(field)));
  };
  backward_error([](auto& a) { a.forward.dim = 0; }, "dim");
  backward_error([](auto& a) { a.output_gradient = nullptr; }, "output_gradient");
  backward_error([](auto& a) { a.dense_gradient = nullptr; }, "dense_gradient");
  backward_error([](auto& a) { a.dense_gradient_stride = 0; }, "dense_gradient_stride");
  backward_error([](auto& a) { a.sparse_gradient = nullptr; }, "sparse_gradient");
  backward_error([](auto& a) { a.sparse_gradient_stride = 0; }, "sparse_gradient_stride");
}

}  // namespace
}  // namespace hotrow
