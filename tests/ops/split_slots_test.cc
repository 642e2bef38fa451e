#include "ops/keys/split_slots.h"

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

TEST(SplitSlotsTest, HitsAndMissesKeepTheirOrder) {
  const std::vector<RowKey> keys = {{10, 0}, {11, 0}, {10, 1}, {12, 1}, {13, 1}};
  const std::vector<int32_t> counts = {1, 20, 300, 4000, 50'000};
  const std::vector<int64_t> slots = {7, -1, 3, -1, 5};
  std::vector<int64_t> hit_slots(5, -9);
  std::vector<RowKey> miss_keys(5);
  std::vector<int32_t> miss_counts(5, -9);
  std::vector<int32_t> miss_positions(5, -9);
  SplitSlotsTotals totals = {77, 77};
  SplitSlotsArgs args = {.keys = keys.data(),
                         .counts = counts.data(),
                         .slots = slots.data(),
                         .num_keys = 5,
                         .hit_slots = hit_slots.data(),
                         .miss_keys = miss_keys.data(),
                         .miss_counts = miss_counts.data(),
                         .miss_positions = miss_positions.data(),
                         .totals = &totals};
  HOTROW_ASSERT_OK(SplitSlots({}, args));
  EXPECT_EQ(totals.misses, 2);
  EXPECT_EQ(totals.hit_lookups, 50'301);
  EXPECT_THAT(hit_slots, ElementsAre(7, 3, 5, -9, -9));
  EXPECT_THAT(miss_keys, ElementsAre(RowKey{11, 0}, RowKey{12, 1}, RowKey(), RowKey(), RowKey()));
  EXPECT_THAT(miss_counts, ElementsAre(20, 4000, -9, -9, -9));
  EXPECT_THAT(miss_positions, ElementsAre(1, 3, -9, -9, -9));

  args.num_keys = 0;
  HOTROW_ASSERT_OK(SplitSlots({}, args));
  EXPECT_EQ(totals.misses, 0);
  EXPECT_EQ(totals.hit_lookups, 0);
  args.num_keys = -1;
  EXPECT_THAT(SplitSlots({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("num_keys must lie in")));
  EXPECT_EQ(SplitSlotsWorkspaceBytes(1 << 20), 0);
  EXPECT_GT(SplitSlotsWorkspaceBytes(1 << 20, Device::kCuda), 0);
  args.num_keys = 1;
  args.miss_keys = reinterpret_cast<RowKey*>(reinterpret_cast<std::byte*>(miss_keys.data()) + 8);
  EXPECT_THAT(SplitSlots({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("miss_keys must be aligned")));
}

// Misses whose rows somebody knows are a third kind; those of keys that hit are not asked for.
TEST(SplitSlotsTest, KeysThatWereFoundAreNoMisses) {
  std::vector<std::byte> memory(64);
  std::byte* const at = memory.data();
  const std::vector<RowKey> keys = {{10, 0}, {11, 0}, {10, 2}, {12, 2}, {13, 2}, {14, 2}};
  const std::vector<int32_t> counts = {1, 20, 300, 4000, 50'000, 600'000};
  const std::vector<int64_t> slots = {7, -1, -1, -1, 5, -1};
  const std::vector<std::byte*> rows = {at, at + 16, at + 32, nullptr, nullptr, at + 48};
  std::vector<int64_t> hit_slots(6, -9);
  std::vector<RowKey> miss_keys(6);
  std::vector<int32_t> miss_counts(6, -9);
  std::vector<int32_t> miss_positions(6, -9);
  std::vector<RowKey> found_keys(6);
  std::vector<int32_t> found_positions(6, -9);
  std::vector<std::byte*> found_rows(6);
  std::vector<FoundOfTable> found_of_table(3, {77, 77});
  SplitSlotsTotals totals;
  SplitSlotsArgs args = {.keys = keys.data(),
                         .counts = counts.data(),
                         .slots = slots.data(),
                         .num_keys = 6,
                         .hit_slots = hit_slots.data(),
                         .miss_keys = miss_keys.data(),
                         .miss_counts = miss_counts.data(),
                         .miss_positions = miss_positions.data(),
                         .totals = &totals,
                         .rows = rows.data(),
                         .found_keys = found_keys.data(),
                         .found_positions = found_positions.data(),
                         .found_rows = found_rows.data(),
                         .found_of_table = found_of_table.data(),
                         .num_tables = 3};
  HOTROW_ASSERT_OK(SplitSlots({}, args));
  EXPECT_EQ(totals.misses, 1);
  EXPECT_EQ(totals.found, 3);
  EXPECT_EQ(totals.hit_lookups, 50'001);
  EXPECT_THAT(hit_slots, ElementsAre(7, 5, -1, -1, -1, -9));
  EXPECT_EQ(miss_keys[0], (RowKey{12, 2}));
  EXPECT_EQ(miss_positions[0], 3);
  EXPECT_THAT(found_keys, ElementsAre(RowKey{11, 0}, RowKey{10, 2}, RowKey{14, 2}, RowKey(),
                                      RowKey(), RowKey()));
  EXPECT_THAT(found_positions, ElementsAre(1, 2, 5, -9, -9, -9));
  EXPECT_THAT(found_rows, ElementsAre(at + 16, at + 32, at + 48, nullptr, nullptr, nullptr));
  EXPECT_EQ(found_of_table[0].keys, 1);
  EXPECT_EQ(found_of_table[0].lookups, 20);
  EXPECT_EQ(found_of_table[1].keys, 0);
  EXPECT_EQ(found_of_table[2].keys, 2);
  EXPECT_EQ(found_of_table[2].lookups, 600'300);

  args.num_keys = 0;
  HOTROW_ASSERT_OK(SplitSlots({}, args));
  EXPECT_EQ(totals.found, 0);
  EXPECT_EQ(found_of_table[2].keys, 0);
  args.num_tables = 0;
  EXPECT_THAT(SplitSlots({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("num_tables must be > 0")));
}

}  // namespace
}  // namespace hotrow
