#include "ops/keys/owner_parts.h"

#include <cstdint>
#include <vector>

#include "base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(OwnerPartsTest, OneRankKeepsAll) {
  const std::vector<uint64_t> values = {9, 8, 9, 7};
  const std::vector<int64_t> offsets = {0, 2, 2, 4};  // the second table has none
  const std::vector<uint32_t> tables = {5, 6, 3};
  std::vector<int32_t> parts(4);
  HOTROW_ASSERT_OK(OwnerParts({}, {.values = values.data(),
                                   .table_offsets = offsets.data(),
                                   .tables = tables,
                                   .num_keys = 4,
                                   .world_size = 1,
                                   .parts = parts.data()}));
  EXPECT_THAT(parts, ElementsAre(0, 0, 2, 2));
}

// 4,096 ranks have a shard each, so the owner is the shard; the table is its name, not its place.
TEST(OwnerPartsTest, TheOwnerFollowsFromTheShard) {
  std::vector<uint64_t> values(5000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = Mix64(i);
  const std::vector<int64_t> offsets = {0, 1000, 5000};
  const std::vector<uint32_t> tables = {77, 4};
  std::vector<int32_t> parts(values.size(), -1);
  OwnerPartsArgs args = {.values = values.data(),
                         .table_offsets = offsets.data(),
                         .tables = tables,
                         .num_keys = std::ssize(values),
                         .parts = parts.data()};
  for (const int32_t ranks : {1, 3, 8, 4096}) {
    args.world_size = ranks;
    HOTROW_ASSERT_OK(OwnerParts({}, args));
    for (size_t i = 0; i < values.size(); ++i) {
      const int32_t table = i < 1000 ? 0 : 1;
      const uint32_t shard = HashRowKey(values[i], tables[static_cast<size_t>(table)]).shard();
      const auto owner = static_cast<int32_t>(shard * static_cast<uint64_t>(ranks) / 4096);
      ASSERT_EQ(parts[i], 2 * owner + table) << i << " of " << ranks;
    }
  }
  args.world_size = 4097;
  EXPECT_THAT(OwnerParts({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[1, 4096]")));
  args.world_size = 4;
  args.parts = nullptr;
  EXPECT_THAT(OwnerParts({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parts")));
  args.num_keys = 0;
  HOTROW_EXPECT_OK(OwnerParts({}, args));
}

TEST(PickWordsTest, WordsComeFromTheirPositions) {
  const std::vector<uint64_t> from = {10, 11, 12, 13};
  const std::vector<int32_t> positions = {3, 0, 3, 2, 1};
  std::vector<uint64_t> to(6, 99);
  PickWordsArgs args = {
      .from = from.data(), .positions = positions.data(), .num_words = 5, .to = to.data()};
  HOTROW_ASSERT_OK(PickWords({}, args));
  EXPECT_THAT(to, ElementsAre(13, 10, 13, 12, 11, 99));
  args.to = nullptr;
  EXPECT_THAT(PickWords({}, args), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("to")));
  args.num_words = -1;
  EXPECT_THAT(PickWords({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("num_words")));
}

TEST(PutWordsTest, WordsGoToTheirPositions) {
  const std::vector<uint64_t> from = {10, 11, 12};
  const std::vector<int32_t> positions = {3, 0, 1};
  std::vector<uint64_t> to(5, 99);
  PutWordsArgs args = {
      .from = from.data(), .positions = positions.data(), .num_words = 3, .to = to.data()};
  HOTROW_ASSERT_OK(PutWords({}, args));
  EXPECT_THAT(to, ElementsAre(11, 12, 99, 10, 99));
  args.positions = nullptr;
  EXPECT_THAT(PutWords({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("positions")));
  args.num_words = -1;
  EXPECT_THAT(PutWords({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("num_words")));
}

}  // namespace
}  // namespace hotrow
