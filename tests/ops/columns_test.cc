#include "ops/layers/columns.h"

#include <vector>

#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using Kind = MoveColumnsArgs::Kind;
using ::testing::HasSubstr;

TEST(ColumnsTest, HandWorkedMoves) {
  // Two samples of two fields of two columns, a column of another feature behind each.
  const std::vector<float> from = {1, 2, -1, 3, 4, -1, 5, 6, -1, 7, 8, -1};
  const Columns<const float> fields = {from.data(), 6, 2, 3};
  std::vector<float> to(10, 9.0f);
  const Columns<float> packed = {to.data(), 5, 4, 4};
  const auto move = [&](Kind kind) {
    HOTROW_EXPECT_OK(
        MoveColumns({}, {.kind = kind, .batch_size = 2, .width = 4, .from = fields, .to = packed}));
    return to;
  };
  EXPECT_EQ(move(Kind::kCopy), (std::vector<float>{1, 2, 3, 4, 9, 5, 6, 7, 8, 9}));
  EXPECT_EQ(move(Kind::kAdd), (std::vector<float>{2, 4, 6, 8, 9, 10, 12, 14, 16, 9}));
  EXPECT_EQ(move(Kind::kSpread), (std::vector<float>{1, 1, 1, 1, 9, 5, 5, 5, 5, 9}));
  EXPECT_EQ(move(Kind::kZero), (std::vector<float>{0, 0, 0, 0, 9, 0, 0, 0, 0, 9}));

  // From a matrix to fields, and from one number to all samples.
  std::vector<float> out(12, 9.0f);
  const std::vector<float> matrix = {1, 2, 3, 4, 5, 6, 7, 8};
  HOTROW_ASSERT_OK(MoveColumns({}, {.batch_size = 2,
                                    .width = 4,
                                    .from = {matrix.data(), 4, 4, 4},
                                    .to = {out.data(), 6, 2, 3}}));
  EXPECT_EQ(out, (std::vector<float>{1, 2, 9, 3, 4, 9, 5, 6, 9, 7, 8, 9}));
  HOTROW_ASSERT_OK(MoveColumns({}, {.kind = Kind::kSpread,
                                    .batch_size = 2,
                                    .width = 2,
                                    .from = {matrix.data() + 2, 0, 1},
                                    .to = {out.data(), 6, 1, 3}}));
  EXPECT_EQ(out, (std::vector<float>{3, 2, 9, 3, 4, 9, 3, 6, 9, 3, 8, 9}));

  std::vector<float> sums(4, 9.0f);
  HOTROW_ASSERT_OK(SumColumns(
      {}, {.batch_size = 2, .width = 4, .x = fields, .output = sums.data(), .output_stride = 2}));
  EXPECT_EQ(sums, (std::vector<float>{10, 9, 26, 9}));
}

TEST(ColumnsTest, EqualBitsOnAnyPool) {
  constexpr int64_t kRows = 300;
  RandomStream random(3, RandomPurpose::kTest);
  const std::vector<float> from = test::RandomFloats(random, kRows * 24);
  const std::vector<float> to = test::RandomFloats(random, kRows * 15);
  const auto run = [&](const ExecContext& ctx, Kind kind) {
    std::vector<float> out = to;
    const Columns<const float> x = {from.data(), 24, 5, 8};
    HOTROW_EXPECT_OK(MoveColumns(
        ctx,
        {.kind = kind, .batch_size = kRows, .width = 15, .from = x, .to = {out.data(), 15, 15}}));
    out.resize(out.size() + kRows);
    HOTROW_EXPECT_OK(SumColumns(
        ctx, {.batch_size = kRows, .width = 15, .x = x, .output = out.data() + kRows * 15}));
    return test::Bits(out);
  };
  ThreadPool pool(3);
  for (const Kind kind : {Kind::kCopy, Kind::kAdd, Kind::kSpread, Kind::kZero}) {
    EXPECT_EQ(run(test::OnPool(&pool), kind), run({}, kind));
  }
}

TEST(ColumnsTest, ErrorsNameTheField) {
  HOTROW_EXPECT_OK(MoveColumns({}, {.batch_size = 0, .width = 3}));
  HOTROW_EXPECT_OK(SumColumns({}, {.batch_size = 0, .width = 3}));
  std::vector<float> data(24);
  const auto code = absl::StatusCode::kInvalidArgument;
  const auto move_error = [&](const auto& change, const char* field) {
    MoveColumnsArgs args = {
        .batch_size = 2, .width = 6, .from = {data.data(), 6, 6}, .to = {data.data() + 12, 6, 6}};
    change(args);
    EXPECT_THAT(MoveColumns({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  move_error([](auto& a) { a.batch_size = -1; }, "MoveColumns: batch_size must be >= 0, got -1");
  move_error([](auto& a) { a.width = 0; }, "width");
  move_error([](auto& a) { a.from.data = nullptr; }, "from must not be null");
  move_error([](auto& a) { a.to.data = nullptr; }, "to must not be null");
  move_error([](auto& a) { a.to.dim = 0; }, "to.dim must be >= 1");
  move_error([](auto& a) { a.to.row_stride = 5; }, "to.row_stride must be > 5, got 5");
  move_error([](auto& a) { a.from.dim = 3; }, "from.field_stride must be >= 3, got 0");
  move_error([](auto& a) { a.from.row_stride = -1; }, "from.row_stride must be >= 0");
  const auto sum_error = [&](const auto& change, const char* field) {
    SumColumnsArgs args = {
        .batch_size = 2, .width = 6, .x = {data.data(), 6, 6}, .output = data.data() + 12};
    change(args);
    EXPECT_THAT(SumColumns({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  sum_error([](auto& a) { a.output = nullptr; }, "SumColumns: output must not be null");
  sum_error([](auto& a) { a.output_stride = 0; }, "output_stride must be >= 1, got 0");
  sum_error([](auto& a) { a.x.dim = 0; }, "x.dim");
}

}  // namespace
}  // namespace hotrow
