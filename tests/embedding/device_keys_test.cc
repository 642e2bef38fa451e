#include "embedding/device_keys_impl.h"

#include <chrono>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/device_stream.h"
#include "base/row_key.h"
#include "embedding/collection_plan_impl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/lagging_streams.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

using testing::ElementsAre;

// Streams of host memory that run late, as those of a GPU do.
class DeviceKeysTest : public testing::Test {
 protected:
  void SetUp() override {
    HOTROW_ASSERT_OK_AND_ASSIGN(stream_, DeviceStream::Create(Device::kCpu));
    plan_.tables.resize(2);
    plan_.tables[0].config = 3;
    plan_.tables[1].config = 1;
  }
  void TearDown() override { HOTROW_EXPECT_OK(stream_.Wait()); }
  // Lookups of the first table, then of the second.
  void Find(const std::vector<uint64_t>& values, int64_t of_first) {
    const auto n = std::ssize(values);
    const std::vector<LookupSegment> segments = {{0, of_first, 0}, {of_first, n, 1}};
    HOTROW_ASSERT_OK(keys_.Find({}, plan_, values.data(), n, segments, &stream_));
  }
  std::pair<std::vector<RowKey>, std::vector<int32_t>> Told() {
    std::span<const RowKey> keys;
    std::span<const int32_t> counts;
    HOTROW_EXPECT_OK(keys_.Told(&keys, &counts));
    return {{keys.begin(), keys.end()}, {counts.begin(), counts.end()}};
  }

  const test::LaggingStreams lagging_{std::chrono::milliseconds(5)};
  Plan plan_;
  DeviceStream stream_;
  DeviceKeys keys_;
};

TEST_F(DeviceKeysTest, KeysAreNumberedByFirstAppearanceTableByTable) {
  Find({5, 7, 5, 9, 5, 9}, /*of_first=*/3);
  // The host knows the numbers at once, and the rest when the stream is done.
  EXPECT_THAT(keys_.table_offsets(), ElementsAre(0, 2, 4));
  EXPECT_EQ(keys_.size(), 4);
  HOTROW_ASSERT_OK(keys_.Group({}, &stream_));
  HOTROW_ASSERT_OK(stream_.Wait());
  EXPECT_THAT(std::span(keys_.keys(), 4),
              ElementsAre(RowKey{5, 3}, RowKey{7, 3}, RowKey{9, 1}, RowKey{5, 1}));
  EXPECT_THAT(std::span(keys_.values(), 4), ElementsAre(5, 7, 9, 5));
  EXPECT_THAT(std::span(keys_.counts(), 4), ElementsAre(2, 1, 2, 1));
  EXPECT_THAT(std::span(keys_.inverse(), 6), ElementsAre(0, 1, 0, 2, 3, 2));
  EXPECT_THAT(std::span(keys_.row_offsets(), 5), ElementsAre(0, 2, 3, 5, 6));
  EXPECT_THAT(std::span(keys_.lookup_order(), 6), ElementsAre(0, 2, 1, 3, 5, 4));
}

TEST_F(DeviceKeysTest, WhatTheHostIsToldIsThereWhenItAsks) {
  Find({5, 7, 5, 9}, /*of_first=*/3);
  HOTROW_ASSERT_OK(keys_.Tell());
  const auto told = Told();
  EXPECT_THAT(told.first, ElementsAre(RowKey{5, 3}, RowKey{7, 3}, RowKey{9, 1}));
  EXPECT_THAT(told.second, ElementsAre(2, 1, 1));
}

// Keys of a step that is not trained are still on their way when its memory serves the next one,
// which is larger.
TEST_F(DeviceKeysTest, KeysThatNobodyAskedForAreWaitedFor) {
  for (uint64_t size = 1; size < 2000; size *= 3) {
    std::vector<uint64_t> values(size);
    for (uint64_t i = 0; i < size; ++i) values[i] = i + size;
    Find(values, /*of_first=*/std::ssize(values));
    HOTROW_ASSERT_OK(keys_.Tell());
  }
  const auto told = Told();
  ASSERT_EQ(told.first.size(), 729u);
  EXPECT_EQ(told.first.back(), (RowKey{2 * 729 - 1, 3}));
  EXPECT_EQ(told.second.back(), 1);
}

// Memory that is refused to a batch is asked for again by the next one, though that is no larger
// than those before.
TEST_F(DeviceKeysTest, ABatchThatIsTooLargeLeavesRoomForTheNext) {
  Find({5, 7, 5, 9, 5, 9}, /*of_first=*/3);
  EXPECT_FALSE(keys_.Find({}, plan_, nullptr, int64_t{1} << 61, {}, &stream_).ok());
  Find({5, 7, 5}, /*of_first=*/3);
  EXPECT_THAT(keys_.table_offsets(), ElementsAre(0, 2, 2));
  HOTROW_ASSERT_OK(keys_.Group({}, &stream_));
  HOTROW_ASSERT_OK(stream_.Wait());
  EXPECT_THAT(std::span(keys_.inverse(), 3), ElementsAre(0, 1, 0));
  EXPECT_THAT(std::span(keys_.row_offsets(), 3), ElementsAre(0, 2, 3));
}

// An empty batch has tables too.
TEST_F(DeviceKeysTest, NoLookups) {
  Find({}, /*of_first=*/0);
  EXPECT_THAT(keys_.table_offsets(), ElementsAre(0, 0, 0));
  HOTROW_ASSERT_OK(keys_.Group({}, &stream_));
  HOTROW_ASSERT_OK(keys_.Tell());
  EXPECT_TRUE(Told().first.empty());
}

}  // namespace
}  // namespace hotrow::internal
