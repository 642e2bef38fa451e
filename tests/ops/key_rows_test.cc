#include "ops/keys/key_rows.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(MakeRowKeysTest, EachValueGetsTheNameOfItsTable) {
  const std::vector<uint64_t> values = {9, 8, 9, 7, 0};
  const std::vector<int64_t> offsets = {0, 2, 2, 4};  // the second table has none
  const std::vector<uint32_t> tables = {5, 6, 3};
  std::vector<RowKey> keys(5, RowKey{77, 77});
  HOTROW_ASSERT_OK(MakeRowKeys({}, {.values = values.data(),
                                    .table_offsets = offsets.data(),
                                    .tables = tables,
                                    .max_keys = 5,
                                    .keys = keys.data()}));
  EXPECT_THAT(keys,
              ElementsAre(RowKey{9, 5}, RowKey{8, 5}, RowKey{9, 3}, RowKey{7, 3}, RowKey{77, 77}));
}

TEST(AddressRunsTest, RowsLieSideBySide) {
  std::vector<float> floats(20);
  float* const at = floats.data();
  std::vector<float*> rows(5);
  HOTROW_ASSERT_OK(AddressRuns(
      {}, {.runs = std::vector<FloatRows>{{0, 2, at, 3}, {2, 2, nullptr, 1}, {2, 5, at + 6, 4}},
           .rows = rows.data()}));
  EXPECT_THAT(rows, ElementsAre(at, at + 3, at + 6, at + 10, at + 14));
  EXPECT_THAT(AddressRuns({}, {.runs = std::vector<FloatRows>{{0, 2, at, 3}, {3, 5, at, 3}},
                               .rows = rows.data()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("runs[1].begin must be 2, where the one before ends")));
  EXPECT_THAT(AddressRuns({}, {.runs = std::vector<FloatRows>{{0, 2, at, 3}, {2, 1, at, 3}},
                               .rows = rows.data()}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("runs[1].end must be >= 2")));
}

TEST(AddressByteRowsTest, RowsOfNoRunStay) {
  const std::vector<std::byte> bytes(100);
  const std::byte* const at = bytes.data();
  std::vector<const std::byte*> rows(8, nullptr);
  HOTROW_ASSERT_OK(AddressByteRows(
      {}, {.runs = std::vector<ByteRows>{{1, 3, at, 5}, {3, 3, nullptr, 1}, {5, 7, at + 30, 7}},
           .rows = rows.data()}));
  EXPECT_THAT(rows, ElementsAre(nullptr, at, at + 5, nullptr, nullptr, at + 30, at + 37, nullptr));
  EXPECT_THAT(AddressByteRows({}, {.runs = std::vector<ByteRows>{{0, 2, at, 3}, {1, 5, at, 3}},
                                   .rows = rows.data()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("runs[1].begin must be >= 2, where the one before ends")));
  EXPECT_THAT(AddressByteRows({}, {.runs = std::vector<ByteRows>{{2, 1, at, 3}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("runs[0].end must be >= 2")));
  EXPECT_THAT(AddressByteRows({}, {.runs = std::vector<ByteRows>{{2, 3, at, 3}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rows must not be null")));
}

TEST(AddressSlotsTest, LateRowsComeFromTheirList) {
  std::vector<std::byte> memory(10 * 16);
  std::byte* const at = memory.data();
  const std::vector<int64_t> slots = {4, -1, 0, -1};
  const std::vector<int32_t> late_positions = {3, 1};
  const std::vector<int64_t> late_slots = {9, 2};
  std::vector<std::byte*> rows(4);
  AddressSlotsArgs args = {.first = at,
                           .row_bytes = 16,
                           .slots = slots.data(),
                           .num_rows = 4,
                           .late_positions = late_positions.data(),
                           .late_slots = late_slots.data(),
                           .num_late = 2,
                           .rows = rows.data()};
  HOTROW_ASSERT_OK(AddressSlots({}, args));
  EXPECT_THAT(rows, ElementsAre(at + 64, at + 32, at, at + 144));
  args.num_late = 5;
  EXPECT_THAT(AddressSlots({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("num_rows = 4")));
}

TEST(AddressLookupsTest, PutsTheFeaturesOfASampleSideBySide) {
  const float rows[3] = {};
  std::vector<const std::byte*> at;
  for (const float& row : rows) at.push_back(reinterpret_cast<const std::byte*>(&row));
  const std::vector<int32_t> inverse = {0, 2, 1, 1};  // of two features
  std::vector<const float*> lookups(4);
  AddressLookupsArgs args = {.rows = at.data(),
                             .inverse = inverse.data(),
                             .num_features = 2,
                             .batch_size = 2,
                             .lookups = lookups.data()};
  HOTROW_ASSERT_OK(AddressLookups({}, args));
  EXPECT_THAT(lookups, ElementsAre(rows, rows + 1, rows + 2, rows + 1));
  args.lookups = nullptr;
  EXPECT_THAT(AddressLookups({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lookups")));
  args.batch_size = 0;
  HOTROW_EXPECT_OK(AddressLookups({}, args));
}

}  // namespace
}  // namespace hotrow
