#ifndef HOTROW_CACHE_CACHE_POLICY_IMPL_H_
#define HOTROW_CACHE_CACHE_POLICY_IMPL_H_

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/macros.h"
#include "cache/bucket.h"
#include "cache/cache_policy.h"

// The eviction policies: what they are called, and how they move the scores of rows. The row with
// the lowest score leaves (PickVictim), so a policy is six things:
//
//   kScores        the score of a new row, and what a touch makes of a score
//   kAgesByTouches whether scores age by how many keys were asked for, or by how many rows came
//   AgeingDue      whether the scores of a partition are to age at the end of a step, by how many
//                  rows were placed there and how many keys were asked for since they last did
//   AgeFour        what ageing makes of four neighbouring scores
//   kSparesRows    whether an eviction moves the scores of the rows that stay in its bucket
//   SpareFour      if so, what it makes of four of them
//
// To add one: its value in CachePolicy, its struct here, and its place in Policies at the end.
// All functions work on the CPU and in kernels, on a word of four scores: loops over a bucket's
// eight words become vector instructions on the CPU and one lane a word on the GPU.

namespace hotrow::cache {

struct LruPolicy {
  static constexpr CachePolicy kPolicy = CachePolicy::kLru;
  static constexpr std::string_view kName = "lru";
  static constexpr std::string_view kHelp = "lru (least recently used)";
  static constexpr ScoreRule kScores = {.placed = 255, .touch_add = 255};
  static constexpr bool kSparesRows = false;
  static constexpr bool kAgesByTouches = false;

  // Scores fall by one each time as many rows were placed as 1/32 of the ways, so a byte tells the
  // last 8 turnovers of a large cache apart, while in a small one every step counts.
  static constexpr int64_t kAgeingsPerTurnover = 32;
  HOTROW_HOST_DEVICE static bool AgeingDue(int64_t placed, int64_t /*touched*/, int64_t ways) {
    return placed >= ways / kAgeingsPerTurnover;
  }
  HOTROW_HOST_DEVICE static uint32_t AgeFour(uint32_t scores) { return AgeFourByOne(scores); }
  HOTROW_HOST_DEVICE static uint32_t SpareFour(uint32_t scores, uint8_t) { return scores; }
};

// A touch adds 4 and an eighth is taken off all scores each time there were 4 touches a way: a
// count that halves over about 20 touches a way, in steps of a quarter. Small steps keep rows of
// nearly equal use apart: on Zipf 1.05 this hits 1 to 2 points more often than counting by one and
// halving, which sends most rows to 0 or 1 at once (cache/README.md has the figures). 255 is 64
// touches, so a row that was hot long ago is forgotten in a bounded time.
struct LfuPolicy {
  static constexpr CachePolicy kPolicy = CachePolicy::kLfu;
  static constexpr std::string_view kName = "lfu";
  static constexpr std::string_view kHelp = "lfu (least often used)";
  static constexpr ScoreRule kScores = {.placed = 4, .touch_add = 4};
  static constexpr bool kSparesRows = false;
  static constexpr bool kAgesByTouches = true;

  static constexpr int64_t kTouchesPerWay = 4;
  HOTROW_HOST_DEVICE static bool AgeingDue(int64_t /*placed*/, int64_t touched, int64_t ways) {
    return touched >= kTouchesPerWay * ways;
  }
  HOTROW_HOST_DEVICE static uint32_t AgeFour(uint32_t scores) { return AgeFourByDecay(scores); }
  HOTROW_HOST_DEVICE static uint32_t SpareFour(uint32_t scores, uint8_t) { return scores; }
};

// SIEVE (Zhang et al., "SIEVE is Simpler than LRU", NSDI'24) in each bucket. Rows stand in the
// order in which they came; a touch sets a bit and moves nothing. A hand goes from the oldest to
// the newest: it takes the bit off each row that has it, and evicts the first row that has not.
// Behind the newest it begins again. A row that is used once leaves soon after it came, since the
// hand does not go back to the old rows that it has spared. One byte says all of it:
//
//   bit 7      touched
//   bit 6      spared: the hand has passed the row in this round
//   bits 0..5  when the row came, in 32nds of a turnover: 63 is now, 0 is 2 turnovers ago or more
//
// So the lowest byte is what the hand evicts next: the oldest untouched row before it; when there
// is none, the oldest untouched one behind it, and a new round begins; when all are touched, the
// first it meets. The hand itself is nowhere: rows that an eviction finds older than its victim and
// touched are those that the hand has passed on its way (SpareFour).
struct SievePolicy {
  static constexpr CachePolicy kPolicy = CachePolicy::kSieve;
  static constexpr std::string_view kName = "sieve";
  static constexpr std::string_view kHelp = "sieve (oldest that was not used again)";
  static constexpr uint8_t kTouched = 0x80;
  static constexpr uint8_t kSpared = 0x40;
  static constexpr uint8_t kNewest = 0x3f;
  static constexpr ScoreRule kScores = {.placed = kNewest, .touch_add = 0, .touch_or = kTouched};
  static constexpr bool kSparesRows = true;
  static constexpr bool kAgesByTouches = false;

  static constexpr int64_t kAgeingsPerTurnover = 32;
  HOTROW_HOST_DEVICE static bool AgeingDue(int64_t placed, int64_t /*touched*/, int64_t ways) {
    return placed >= ways / kAgeingsPerTurnover;
  }
  HOTROW_HOST_DEVICE static uint32_t AgeFour(uint32_t scores) {
    const uint32_t came = scores & 0x3f3f3f3fu;
    return scores - (((came + 0x3f3f3f3fu) >> 6) & 0x01010101u);
  }
  HOTROW_HOST_DEVICE static uint32_t SpareFour(uint32_t scores, uint8_t victim) {
    // All were touched: the hand has gone round once and taken all bits off.
    if ((victim & kTouched) != 0) scores &= 0x7f7f7f7fu;
    const uint32_t touched = scores & 0x80808080u;
    const uint32_t behind = (scores << 1) & 0x80808080u;  // spared
    // The high bit of each byte whose row is not newer than the victim. No byte borrows.
    const uint32_t bound = (0x80u | (victim & kNewest)) * 0x01010101u;
    const uint32_t passed = (bound - (scores & 0x3f3f3f3fu)) & 0x80808080u;
    if ((victim & kSpared) == 0) {
      const uint32_t spared = touched & ~behind & passed;
      return (scores ^ spared) | (spared >> 1);
    }
    // A new round: the hand has passed the rest of the last one, and this one up to the victim.
    const uint32_t spared = touched & behind & passed;
    return (scores & 0x3f3f3f3fu) | (touched & behind & ~passed) | (spared >> 1);
  }
};

// As in bucket.h: nvcc compiles what follows for both sides, with any Visit.
#if defined(__CUDACC__)
#define HOTROW_VISIT_TEMPLATE _Pragma("nv_exec_check_disable") template <typename Visit>
#else
#define HOTROW_VISIT_TEMPLATE template <typename Visit>
#endif

template <typename... Formulas>
struct PolicyList {
  template <typename Visit>
  static void ForEach(Visit&& visit) {
    (visit(Formulas{}), ...);
  }
  HOTROW_VISIT_TEMPLATE
  HOTROW_HOST_DEVICE static void With(CachePolicy policy, Visit&& visit) {
    static_cast<void>(((policy == Formulas::kPolicy && (visit(Formulas{}), true)) || ...));
  }
};
using Policies = PolicyList<LruPolicy, LfuPolicy, SievePolicy>;

// Calls visit(formula of the policy).
HOTROW_VISIT_TEMPLATE
HOTROW_HOST_DEVICE void WithPolicy(CachePolicy policy, Visit&& visit) {
  Policies::With(policy, visit);
}
#undef HOTROW_VISIT_TEMPLATE

inline ScoreRule ScoresOf(CachePolicy policy) {
  ScoreRule rule;
  WithPolicy(policy, [&rule](auto formula) { rule = formula.kScores; });
  return rule;
}
HOTROW_HOST_DEVICE inline bool AgesByTouches(CachePolicy policy) {
  bool by_touches = false;
  WithPolicy(policy, [&by_touches](auto formula) { by_touches = formula.kAgesByTouches; });
  return by_touches;
}
HOTROW_HOST_DEVICE inline bool SparesRows(CachePolicy policy) {
  bool spares = false;
  WithPolicy(policy, [&spares](auto formula) { spares = formula.kSparesRows; });
  return spares;
}

// Changes the scores or states of a bucket by move(word of four). One thread.
template <typename Move>
void ForWords(uint8_t (&bytes)[Bucket::kWays], Move&& move) {
  uint32_t words[Bucket::kWays / sizeof(uint32_t)];
  std::memcpy(words, bytes, sizeof(words));
  for (uint32_t& word : words) word = move(word);
  std::memcpy(bytes, words, sizeof(words));
}

}  // namespace hotrow::cache

#endif  // HOTROW_CACHE_CACHE_POLICY_IMPL_H_
