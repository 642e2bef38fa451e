#include "base/warp.h"

#include <algorithm>
#include <array>

#include "base/philox.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

struct alignas(32) Bytes {
  std::array<uint8_t, 32> v;
};

uint32_t SlowMatch(const Bytes& bytes, uint8_t value) {
  uint32_t mask = 0;
  for (uint32_t i = 0; i < 32; ++i) mask |= static_cast<uint32_t>(bytes.v[i] == value) << i;
  return mask;
}

WayScore SlowMin(const Bytes& bytes, uint32_t lanes) {
  WayScore best;
  for (int i = 0; i < 32; ++i) {
    if (((lanes >> i) & 1) == 0) continue;
    if (best.way < 0 || bytes.v[static_cast<size_t>(i)] < best.score) {
      best = {i, bytes.v[static_cast<size_t>(i)]};
    }
  }
  return best;
}

void ExpectMin(const Bytes& bytes, uint32_t lanes) {
  const WayScore want = SlowMin(bytes, lanes);
  const WayScore got = HostWarp::MinByte(bytes.v.data(), lanes);
  ASSERT_EQ(got.way, want.way) << std::hex << lanes;
  ASSERT_EQ(got.score, want.score) << std::hex << lanes;
}

// Few distinct values, so that matches and ties are common; or all 256.
Bytes RandomBytes(RandomStream& random) {
  const uint64_t range = random.Below(2) == 0 ? 3 : 256;
  const uint64_t base = random.Below(257 - range);
  Bytes bytes;
  for (uint8_t& b : bytes.v) b = static_cast<uint8_t>(base + random.Below(range));
  return bytes;
}

TEST(HostWarpTest, MatchByteAndMinByteEqualPlainLoops) {
  for (const uint64_t seed : test::Seeds(10)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    for (int round = 0; round < 2000; ++round) {
      const Bytes bytes = RandomBytes(random);
      const auto value = random.Below(2) == 0 ? bytes.v[random.Below(32)]
                                              : static_cast<uint8_t>(random.Below(256));
      ASSERT_EQ(HostWarp::MatchByte(bytes.v.data(), value), SlowMatch(bytes, value));
      ExpectMin(bytes, random.Next32());
      ExpectMin(bytes, random.Next32() & random.Next32() & random.Next32());
      ExpectMin(bytes, 1u << random.Below(32));
      ExpectMin(bytes, ~0u);
    }
  }
}

TEST(HostWarpTest, MinByteWithoutLanesFindsNone) {
  Bytes bytes;
  bytes.v.fill(0);
  EXPECT_EQ(HostWarp::MinByte(bytes.v.data(), 0).way, -1);
}

// 255 is also what ineligible lanes are replaced by: the winner must still be an eligible one.
TEST(HostWarpTest, MinByteOfAll255IsTheFirstEligibleLane) {
  Bytes bytes;
  bytes.v.fill(255);
  for (int lane = 0; lane < 32; ++lane) {
    const WayScore best = HostWarp::MinByte(bytes.v.data(), ~0u << lane);
    EXPECT_EQ(best.way, lane);
    EXPECT_EQ(best.score, 255);
  }
}

TEST(HostWarpTest, MinByteIgnoresLowerBytesOfOtherLanes) {
  Bytes bytes;
  bytes.v.fill(0);
  bytes.v[17] = 200;
  bytes.v[30] = 199;
  const WayScore best = HostWarp::MinByte(bytes.v.data(), (1u << 17) | (1u << 30));
  EXPECT_EQ(best.way, 30);
  EXPECT_EQ(best.score, 199);
}

TEST(HostWarpTest, MatchByteFindsAllOrNone) {
  Bytes bytes;
  bytes.v.fill(255);
  EXPECT_EQ(HostWarp::MatchByte(bytes.v.data(), 255), ~0u);
  EXPECT_EQ(HostWarp::MatchByte(bytes.v.data(), 0), 0u);
}

TEST(HostWarpTest, MasksAndTagsEqualPlainLoops) {
  for (const uint64_t seed : test::Seeds(10)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    for (int round = 0; round < 1000; ++round) {
      const Bytes bytes = RandomBytes(random);
      const auto mask = static_cast<uint8_t>(random.Below(256));
      const auto value = static_cast<uint8_t>(bytes.v[random.Below(32)] & mask);
      alignas(64) std::array<uint16_t, 32> tags;
      for (size_t i = 0; i < 32; ++i) {
        tags[i] = static_cast<uint16_t>(bytes.v[i] | random.Below(2) * 0x8000);
      }
      const auto tag = static_cast<uint16_t>(bytes.v[random.Below(32)] | 0x8000);
      uint32_t want_bytes = 0;
      uint32_t want_tags = 0;
      for (size_t i = 0; i < 32; ++i) {
        want_bytes |= ((bytes.v[i] & mask) == value ? 1u : 0u) << i;
        want_tags |= (tags[i] == tag ? 1u : 0u) << i;
      }
      ASSERT_EQ(HostWarp::MatchByte(bytes.v.data(), value, mask), want_bytes);
      ASSERT_EQ(HostWarp::MatchTag(tags.data(), tag), want_tags);
    }
  }
}

TEST(HostWarpTest, BallotAsksEligibleLanesOnly) {
  for (const uint64_t seed : test::Seeds(10)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const uint32_t lanes = random.Next32();
    const uint32_t answers = random.Next32();
    uint32_t asked = 0;
    const uint32_t ballot = HostWarp::Ballot(lanes, [&](int lane) {
      asked |= 1u << lane;
      return (answers >> lane) & 1;
    });
    EXPECT_EQ(asked, lanes);
    EXPECT_EQ(ballot, lanes & answers);
  }
  EXPECT_EQ(HostWarp::Ballot(0, [](int) { return true; }), 0u);
  EXPECT_EQ(HostWarp::Ballot(~0u, [](int) { return true; }), ~0u);
}

TEST(HostWarpTest, FirstLaneCountLanesAndOnce) {
  EXPECT_EQ(HostWarp::FirstLane(0x80000000u), 31);
  EXPECT_EQ(HostWarp::FirstLane(6), 1);
  EXPECT_EQ(HostWarp::CountLanes(0), 0);
  EXPECT_EQ(HostWarp::CountLanes(~0u), 32);
  int runs = 0;
  HostWarp::Once([&runs] { ++runs; });
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace hotrow
