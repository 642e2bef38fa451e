#include "ops/rows/gather.h"

#include <vector>

#include "base/philox.h"
#include "ops/rows/gather_impl.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using testing::HasSubstr;

TEST(GatherRowsTest, CopiesRowsAndZeroesNulls) {
  ThreadPool one(1);
  ThreadPool four(4);
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const int64_t row_bytes =
        1 + static_cast<int64_t>(random.Below(random.Below(2) == 0 ? 20 : 2000));
    const int64_t stride = row_bytes + static_cast<int64_t>(random.Below(3));
    const auto num_rows = static_cast<int64_t>(random.Below(1000));
    std::vector<std::byte> source(static_cast<size_t>(row_bytes * 50));
    for (std::byte& b : source) b = static_cast<std::byte>(random.Next32());
    std::vector<const std::byte*> rows;
    std::vector<std::byte> want(static_cast<size_t>(num_rows * stride), std::byte{0xee});
    for (int64_t i = 0; i < num_rows; ++i) {
      const bool is_null = random.Below(4) == 0;
      rows.push_back(is_null ? nullptr
                             : source.data() + row_bytes * static_cast<int64_t>(random.Below(50)));
      for (int64_t k = 0; k < row_bytes; ++k) {
        want[i * stride + k] = is_null ? std::byte{0} : rows.back()[k];
      }
    }
    for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &one, &four}) {
      std::vector<std::byte> output(want.size(), std::byte{0xee});
      HOTROW_ASSERT_OK(
          GatherRows({.pool = pool}, {rows.data(), num_rows, row_bytes, output.data(), stride}));
      EXPECT_EQ(output, want);
    }
  }
}

TEST(GatherRowsTest, ValidateNamesTheField) {
  const std::byte row[4] = {};
  const std::byte* const rows[1] = {row};
  std::byte output[4];
  const auto expect = [](const GatherRowsArgs& args, const char* message) {
    EXPECT_THAT(GatherRows({}, args),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  HOTROW_EXPECT_OK(GatherRows({}, {rows, 1, 4, output, 4}));
  HOTROW_EXPECT_OK(GatherRows({}, {nullptr, 0, 4, nullptr, 4}));
  expect({rows, -1, 4, output, 4}, "num_rows must be >= 0, got -1");
  expect({rows, 1, 0, output, 4}, "row_bytes must be > 0, got 0");
  expect({rows, 1, 4, output, 3}, "output_stride must be >= row_bytes = 4, got 3");
  expect({nullptr, 1, 4, output, 4}, "rows must not be null");
  expect({rows, 1, 4, nullptr, 4}, "output must not be null");
}

TEST(GatherRowsTest, AsManyThreadsAsARowHasAccesses) {
  using internal::CopyThreadsPerRow;
  EXPECT_EQ(CopyThreadsPerRow(1), 1);
  EXPECT_EQ(CopyThreadsPerRow(16), 1);
  EXPECT_EQ(CopyThreadsPerRow(17), 2);
  EXPECT_EQ(CopyThreadsPerRow(48), 4);
  EXPECT_EQ(CopyThreadsPerRow(256), 16);
  EXPECT_EQ(CopyThreadsPerRow(512), 32);
  EXPECT_EQ(CopyThreadsPerRow(int64_t{1} << 40), 32);
}

TEST(ScatterRowsTest, CopiesRowsAndLeavesNullsOut) {
  ThreadPool one(1);
  ThreadPool four(4);
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const int64_t row_bytes =
        1 + static_cast<int64_t>(random.Below(random.Below(2) == 0 ? 20 : 2000));
    const int64_t stride = row_bytes + static_cast<int64_t>(random.Below(3));
    const auto num_rows = static_cast<int64_t>(random.Below(1000));
    std::vector<std::byte> input(static_cast<size_t>(num_rows * stride));
    for (std::byte& b : input) b = static_cast<std::byte>(random.Next32());
    // Where each row goes: backwards, with a gap of a byte.
    std::vector<int64_t> places;
    std::vector<std::byte> want(static_cast<size_t>(num_rows * (row_bytes + 1)), std::byte{0xee});
    for (int64_t i = 0; i < num_rows; ++i) {
      places.push_back(random.Below(4) == 0 ? -1 : (num_rows - 1 - i) * (row_bytes + 1));
      for (int64_t k = 0; k < row_bytes && places[i] >= 0; ++k) {
        want[places[i] + k] = input[i * stride + k];
      }
    }
    for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &one, &four}) {
      std::vector<std::byte> output(want.size(), std::byte{0xee});
      std::vector<std::byte*> rows;
      for (const int64_t place : places) {
        rows.push_back(place < 0 ? nullptr : output.data() + place);
      }
      HOTROW_ASSERT_OK(ScatterRows({.pool = pool}, {.input = input.data(),
                                                    .input_stride = stride,
                                                    .num_rows = num_rows,
                                                    .row_bytes = row_bytes,
                                                    .rows = rows.data()}));
      EXPECT_EQ(output, want);
    }
  }
}

TEST(ScatterRowsTest, ValidateNamesTheField) {
  const std::byte input[4] = {};
  std::byte row[4];
  std::byte* const rows[1] = {row};
  const auto expect = [](const ScatterRowsArgs& args, const char* message) {
    EXPECT_THAT(ScatterRows({}, args),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  HOTROW_EXPECT_OK(ScatterRows({}, {input, 4, 1, 4, rows}));
  HOTROW_EXPECT_OK(ScatterRows({}, {nullptr, 4, 0, 4, nullptr}));
  expect({input, 4, -1, 4, rows}, "num_rows must be >= 0, got -1");
  expect({input, 4, 1, 0, rows}, "row_bytes must be > 0, got 0");
  expect({input, 3, 1, 4, rows}, "input_stride must be >= row_bytes = 4, got 3");
  expect({nullptr, 4, 1, 4, rows}, "input must not be null");
  expect({input, 4, 1, 4, nullptr}, "rows must not be null");
}

}  // namespace
}  // namespace hotrow
