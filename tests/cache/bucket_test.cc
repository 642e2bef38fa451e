#include "cache/bucket.h"

#include <algorithm>
#include <cstring>

#include "base/philox.h"
#include "base/warp.h"
#include "cache/cache_policy_impl.h"
#include "gtest/gtest.h"
#include "tests/cache/bucket_model.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using cache::Bucket;
using cache::PairWay;

constexpr cache::ScoreRule kLru = {.placed = 255, .touch_add = 255};
constexpr cache::ScoreRule kLfu = {.placed = 4, .touch_add = 4};

TEST(BucketTest, FindsKeysByTagKeyAndTable) {
  Bucket bucket = {};
  const uint64_t max_key = ~uint64_t{0};
  EXPECT_EQ(cache::FindWay<HostWarp>(bucket, 7, 0, 0), -1);
  cache::Place<HostWarp>(bucket, 3, 7, 0, 0, kLru);
  cache::Place<HostWarp>(bucket, 9, 7, max_key, 0, kLru);
  cache::Place<HostWarp>(bucket, 31, 7, 0, 5, kLru);
  EXPECT_EQ(cache::FindWay<HostWarp>(bucket, 7, 0, 0), 3);
  EXPECT_EQ(cache::FindWay<HostWarp>(bucket, 7, max_key, 0), 9);
  EXPECT_EQ(cache::FindWay<HostWarp>(bucket, 7, 0, 5), 31);
  EXPECT_EQ(cache::FindWay<HostWarp>(bucket, 7, 0, 6), -1);
  EXPECT_EQ(cache::FindWay<HostWarp>(bucket, 7, 1, 0), -1);
  EXPECT_EQ(cache::FindWay<HostWarp>(bucket, 8, 0, 0), -1);
  cache::Clear<HostWarp>(bucket, 3);
  EXPECT_EQ(cache::FindWay<HostWarp>(bucket, 7, 0, 0), -1);
  EXPECT_EQ(cache::FreeMask<HostWarp>(bucket), ~((1u << 9) | (1u << 31)));
}

TEST(BucketTest, PlacingStartsAnUnfilledPinnedWayOverAnyOldState) {
  Bucket bucket = {};
  std::memset(&bucket, 0xff, sizeof(bucket));
  cache::Place<HostWarp>(bucket, 4, 9, 11, 12, kLfu);
  EXPECT_EQ(bucket.tag[4], 9);
  EXPECT_EQ(bucket.score[4], kLfu.placed);
  EXPECT_EQ(bucket.state[4], cache::kPlaced);
  EXPECT_TRUE(cache::IsFilling(bucket.state[4]));
  EXPECT_EQ(bucket.record[4].key(), (RowKey{11, 12}));
  EXPECT_EQ(bucket.state[3], 0xff);
  EXPECT_EQ(bucket.state[5], 0xff);
}

TEST(BucketTest, TouchingPinsAndRaisesTheScoreUpTo255) {
  Bucket bucket = {};
  bucket.state[2] = cache::kDirty;
  bucket.score[2] = 250;
  cache::TouchAndPin<HostWarp>(bucket, 2, kLfu);
  EXPECT_EQ(bucket.score[2], 254);
  EXPECT_EQ(bucket.state[2], cache::kDirty | 1);
  cache::TouchAndPin<HostWarp>(bucket, 2, kLfu);
  EXPECT_EQ(bucket.score[2], 255);
  EXPECT_EQ(bucket.state[2], cache::kDirty | 2);
  bucket.score[2] = 1;
  cache::TouchAndPin<HostWarp>(bucket, 2, kLru);
  EXPECT_EQ(bucket.score[2], 255);
}

TEST(BucketTest, PickFreeTakesTheFirstBucketWhileItIsRoomyAndThenTheEmptierOne) {
  Bucket a = {};
  Bucket b = {};
  for (int used = 0; used < Bucket::kWays; ++used) {
    const PairWay at = cache::PickFree<HostWarp>(a, b);
    const bool roomy = Bucket::kWays - used >= cache::kRoomyWays;
    EXPECT_EQ(at.bucket, roomy ? 0 : 1) << used;
    EXPECT_EQ(at.way, roomy ? used : 0) << used;
    a.state[used] = cache::kClean;
  }
  std::memset(a.state, 0, sizeof(a.state));
  std::memset(a.state, cache::kClean, 30);
  std::memset(b.state, cache::kClean, 30);
  PairWay at = cache::PickFree<HostWarp>(a, b);
  EXPECT_EQ(at.bucket, 0);  // a tie
  EXPECT_EQ(at.way, 30);
  std::memset(b.state, cache::kClean, sizeof(b.state));
  at = cache::PickFree<HostWarp>(a, b);
  EXPECT_EQ(at.bucket, 0);
  EXPECT_EQ(at.way, 30);
  std::memset(a.state, cache::kDirty, sizeof(a.state));
  EXPECT_EQ(cache::PickFree<HostWarp>(a, b).way, -1);
}

// One byte says what a row is: the passes over four of them against the names of single ones.
TEST(BucketTest, FourStatesChangeAsEachOfThemDoes) {
  for (int state = 0; state < 256; ++state) {
    for (int place = 0; place < 4; ++place) {
      const uint32_t others = 0x40c08001u;
      const uint32_t word = (others & ~(0xffu << (8 * place))) | static_cast<uint32_t>(state)
                                                                     << (8 * place);
      const auto byte_of = [place](uint32_t states) {
        return static_cast<uint8_t>(states >> (8 * place));
      };
      const auto before = static_cast<uint8_t>(state);
      const uint8_t kind = cache::KindOf(before);
      const bool differs = kind == cache::kDirty || kind == cache::kMarked;
      EXPECT_EQ(byte_of(cache::DirtyOrMarkedOf(word)) != 0, differs);
      EXPECT_EQ(byte_of(cache::MarkedOf(word)) != 0, kind == cache::kMarked);
      const uint8_t marked = byte_of(cache::ToMarked(word));
      const uint8_t dirty = byte_of(cache::ToDirty(word));
      EXPECT_EQ(cache::PinsOf(marked), cache::PinsOf(before));
      EXPECT_EQ(cache::PinsOf(dirty), cache::PinsOf(before));
      EXPECT_EQ(cache::KindOf(marked), differs ? cache::kMarked : kind);
      EXPECT_EQ(cache::KindOf(dirty), differs ? cache::kDirty : kind);
    }
  }
}

TEST(BucketTest, PickVictimTakesTheLowestScoreOfBothBuckets) {
  Bucket a = {};
  Bucket b = {};
  std::memset(a.state, cache::kClean, sizeof(a.state));
  std::memset(b.state, cache::kClean, sizeof(b.state));
  std::memset(a.score, 9, sizeof(a.score));
  std::memset(b.score, 9, sizeof(b.score));
  PairWay at = cache::PickVictim<HostWarp>(a, b);
  EXPECT_EQ(at.bucket, 0);  // the first bucket wins a tie
  EXPECT_EQ(at.way, 0);
  b.score[20] = 8;
  b.score[21] = 8;
  at = cache::PickVictim<HostWarp>(a, b);
  EXPECT_EQ(at.bucket, 1);
  EXPECT_EQ(at.way, 20);
  b.state[20] = cache::kClean | 1;
  EXPECT_EQ(cache::PickVictim<HostWarp>(a, b).way, 21);
  b.state[21] = cache::kPlaced;
  at = cache::PickVictim<HostWarp>(a, b);
  EXPECT_EQ(at.bucket, 0);
  EXPECT_EQ(at.way, 0);
  a.state[0] = cache::kDirty;  // dirty rows leave like clean ones
  EXPECT_EQ(cache::PickVictim<HostWarp>(a, b).way, 0);
}

TEST(BucketTest, FourScoresAgeAsEachOfThemDoes) {
  // By one, and by an eighth that is rounded up, so that every score ends at 0.
  const auto by_one = [](int score) { return std::max(score - 1, 0); };
  const auto by_decay = [](int score) { return score - (score + 7) / 8; };
  // What SIEVE ages are the low 6 bits.
  const auto low_bits = [](int score) { return (score & 0xc0) | std::max((score & 0x3f) - 1, 0); };
  for (int score = 0; score < 256; ++score) {
    Bucket bucket = {};
    for (int way = 0; way < Bucket::kWays; ++way) {
      // Each score beside all kinds of neighbours, in each place of four.
      bucket.score[way] = static_cast<uint8_t>(way % 5 == 0 ? score : (score * 7 + way * 37) % 256);
    }
    Bucket one = bucket;
    Bucket decayed = bucket;
    Bucket sieved = bucket;
    cache::ForWords(one.score, cache::LruPolicy::AgeFour);
    cache::ForWords(decayed.score, cache::LfuPolicy::AgeFour);
    cache::ForWords(sieved.score, cache::SievePolicy::AgeFour);
    for (int way = 0; way < Bucket::kWays; ++way) {
      EXPECT_EQ(one.score[way], by_one(bucket.score[way])) << score << " " << way;
      EXPECT_EQ(decayed.score[way], by_decay(bucket.score[way])) << score << " " << way;
      EXPECT_EQ(sieved.score[way], low_bits(bucket.score[way])) << score << " " << way;
    }
  }
}

TEST(BucketTest, PickVictimEvensOutPinsWhereRoomIsScarce) {
  Bucket a = {};
  Bucket b = {};
  std::memset(b.score, 200, sizeof(b.score));
  for (int way = 0; way < 17; ++way) a.state[way] = 1;
  PairWay at = cache::PickVictim<HostWarp>(a, b);
  EXPECT_EQ(at.bucket, 1);  // in spite of its scores: the first bucket has only 15 unpinned ways
  EXPECT_EQ(at.way, 0);
  a.state[16] = 0;
  EXPECT_EQ(cache::PickVictim<HostWarp>(a, b).bucket, 0);
}

TEST(BucketTest, AllPinnedHasNoVictim) {
  Bucket a = {};
  std::memset(a.state, 1, sizeof(a.state));
  EXPECT_EQ(cache::PickVictim<HostWarp>(a, a).way, -1);
  a.state[31] = 0;
  const PairWay at = cache::PickVictim<HostWarp>(a, a);
  EXPECT_EQ(at.bucket, 0);
  EXPECT_EQ(at.way, 31);
}

TEST(BucketTest, MatchesTheModelOnRandomBuckets) {
  for (const uint64_t seed : test::Seeds(2000)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const Bucket a = test::RandomBucket(random);
    const Bucket b = test::RandomBucket(random);
    EXPECT_TRUE(test::Same(cache::PickVictim<HostWarp>(a, b), test::ModelPickVictim(a, b)));
    EXPECT_TRUE(test::Same(cache::PickFree<HostWarp>(a, b), test::ModelPickFree(a, b)));
    for (int trial = 0; trial < 8; ++trial) {
      const test::Needle needle = test::RandomNeedle(random, a);
      EXPECT_EQ(cache::FindWay<HostWarp>(a, needle.tag, needle.key, needle.table),
                test::ModelFindWay(a, needle));
    }
  }
}

}  // namespace
}  // namespace hotrow
