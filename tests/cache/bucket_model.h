#ifndef HOTROW_TESTS_CACHE_BUCKET_MODEL_H_
#define HOTROW_TESTS_CACHE_BUCKET_MODEL_H_

#include <cstdint>
#include <iterator>

#include "base/philox.h"
#include "cache/bucket.h"

// What the bucket functions should answer, way by way in plain loops, and random buckets to ask
// about.

namespace hotrow::test {

// Few distinct tags, keys and scores, so that matches and ties are common; anything from empty to
// all pinned.
inline cache::Bucket RandomBucket(RandomStream& random) {
  cache::Bucket bucket = {};
  const uint64_t used_percent = random.Below(3) == 0 ? random.Below(101) : 100;
  const uint64_t pinned_percent = random.Below(101);
  const uint64_t score_range = uint64_t{1} << random.Below(9);
  for (int way = 0; way < cache::Bucket::kWays; ++way) {
    if (random.Below(100) >= used_percent) continue;
    // Some differ in one half only.
    constexpr uint16_t kTags[] = {1, 2, 0x0102, 0x0201, 0x0100, 0xffff};
    bucket.tag[way] = kTags[random.Below(std::size(kTags))];
    bucket.score[way] = static_cast<uint8_t>(255 - random.Below(score_range));
    // The halves of a key take turns in telling it apart.
    const uint64_t half = random.Below(2) == 0 ? ~uint64_t{0} - random.Below(8) : random.Below(8);
    const uint64_t key = random.Below(2) == 0 ? half : half << 32;
    bucket.record[way] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                          static_cast<uint32_t>(random.Below(2))};
    constexpr uint8_t kKinds[] = {cache::kWaiting, cache::kClean, cache::kMarked, cache::kDirty};
    const uint8_t kind = kKinds[random.Below(8) == 0 ? 0 : 1 + random.Below(3)];
    const bool pinned = kind == cache::kWaiting || random.Below(100) < pinned_percent;
    bucket.state[way] =
        static_cast<uint8_t>(kind | (pinned ? 1 + random.Below(cache::kMaxPins) : 0));
  }
  return bucket;
}

struct Needle {
  uint64_t key;
  uint32_t table;
  uint16_t tag;
};

// The contents of one way of the bucket, sometimes with the tag or the table of another.
inline Needle RandomNeedle(RandomStream& random, const cache::Bucket& bucket) {
  const auto way = random.Below(cache::Bucket::kWays);
  const auto other = random.Below(4) == 0 ? random.Below(cache::Bucket::kWays) : way;
  const uint16_t tag = bucket.tag[other] == 0 ? uint16_t{1} : bucket.tag[other];
  return {bucket.record[way].key().key, bucket.record[other].table, tag};
}

inline int ModelFindWay(const cache::Bucket& bucket, const Needle& needle) {
  for (int way = 0; way < cache::Bucket::kWays; ++way) {
    if (bucket.tag[way] == needle.tag &&
        bucket.record[way].key() == RowKey{needle.key, needle.table}) {
      return way;
    }
  }
  return -1;
}

inline cache::PairWay ModelPickFree(const cache::Bucket& first, const cache::Bucket& second) {
  const cache::Bucket* const pair[2] = {&first, &second};
  int free[2] = {0, 0};
  int lowest[2] = {-1, -1};
  for (int b = 0; b < 2; ++b) {
    for (int way = cache::Bucket::kWays - 1; way >= 0; --way) {
      if (pair[b]->state[way] != 0) continue;
      ++free[b];
      lowest[b] = way;
    }
  }
  if (free[0] == 0 && free[1] == 0) return {};
  const int bucket = free[0] < 12 && free[1] > free[0] ? 1 : 0;
  return {bucket, lowest[bucket]};
}

inline bool ModelEvictable(const cache::Bucket& bucket, int way) {
  return (bucket.state[way] & 63) == 0;
}

inline cache::PairWay ModelPickVictim(const cache::Bucket& first, const cache::Bucket& second) {
  const cache::Bucket* const pair[2] = {&first, &second};
  int room[2] = {0, 0};
  for (int b = 0; b < 2; ++b) {
    for (int way = 0; way < cache::Bucket::kWays; ++way)
      room[b] += ModelEvictable(*pair[b], way) ? 1 : 0;
  }
  const bool scarce = room[0] < cache::kScarceWays || room[1] < cache::kScarceWays;
  cache::PairWay best;
  int best_score = 256;
  for (int b = 0; b < 2; ++b) {
    if (scarce && room[b] < room[1 - b]) continue;
    for (int way = 0; way < cache::Bucket::kWays; ++way) {
      if (!ModelEvictable(*pair[b], way) || pair[b]->score[way] >= best_score) continue;
      best = {b, way};
      best_score = pair[b]->score[way];
    }
  }
  return best;
}

inline bool Same(const cache::PairWay& a, const cache::PairWay& b) {
  return a.bucket == b.bucket && a.way == b.way;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_CACHE_BUCKET_MODEL_H_
