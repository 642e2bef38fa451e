#include "cache/address_index.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache/address_index_driver.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::StatusIs;
using ::testing::HasSubstr;

TEST(AddressIndexTest, HasWhatAMapHasButForWhatWasLeftOut) {
  for (const uint64_t seed : test::Seeds(3)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    for (const int64_t buckets : {1, 2, 5, 40, 300}) {
      SCOPED_TRACE(buckets);
      ASSERT_NO_FATAL_FAILURE(test::RunAddressIndex(buckets, Device::kCpu, 60, seed));
    }
  }
}

TEST(AddressIndexTest, EachWayGetsOneKeyAndNoneStaysEmpty) {
  test::RunFullAddressIndex(1, 100, Device::kCpu);
  test::RunFullAddressIndex(32, 2000, Device::kCpu);
}

TEST(AddressIndexTest, KeysOfOneTagAreToldApart) {
  test::RunOneTag(test::KeysOfOneTag(8), Device::kCpu, 300, 1);
  test::RunOneTag(test::KeysOfOneTagInTwoTables(8), Device::kCpu, 300, 1);
}

TEST(AddressIndexTest, ABucketHasRoomForAsManyKeysAsWays) { test::RunOneBucket(Device::kCpu, 20); }

TEST(AddressIndexTest, EveryKeyIsLegalAndLargeAddressesAreLeftOut) {
  test::RunAddressIndexOddities(Device::kCpu);
}

TEST(AddressIndexTest, StaysWithinItsBudget) {
  for (const int64_t budget : {5000, 100'000, 3'000'001, 7 << 20}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto index, AddressIndex::Create({.budget_bytes = budget}));
    EXPECT_LE(index->used_bytes(), budget);
    EXPECT_GT(index->used_bytes(), budget - (9 << 10));
    EXPECT_EQ(index->LastStats().used_bytes, index->used_bytes());
  }
  const int64_t least = AddressIndex::MinBudgetBytes(Device::kCpu);
  HOTROW_EXPECT_OK(AddressIndex::Create({.budget_bytes = least}));
  EXPECT_THAT(AddressIndex::Create({.budget_bytes = least - 1}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("AddressIndexOptions.budget_bytes must lie in")));
}

}  // namespace
}  // namespace hotrow
