#ifndef HOTROW_EMBEDDING_SCORE_SUMS_IMPL_H_
#define HOTROW_EMBEDDING_SCORE_SUMS_IMPL_H_

#include <algorithm>
#include <cmath>
#include <limits>

#include "embedding/table_policies.h"

// How the scores of a step come together: those of a rank's lookups of a key, then those of the
// ranks, then what is in the row. In double, where sums of the scores of a step are mostly exact,
// in any order.

namespace hotrow::internal {

// The sum of lookups of which none has a score. Those that a batch brings are finite.
inline constexpr double kNoScore = std::numeric_limits<double>::quiet_NaN();
inline bool HasScore(double score) { return !std::isnan(score); }

// Two parts of a step, `before` first.
inline double JoinScores(ScoreRule rule, double before, double after) {
  if (!HasScore(after)) return before;
  if (!HasScore(before) || rule == ScoreRule::kLast) return after;
  return rule == ScoreRule::kSum ? before + after : std::max(before, after);
}

// The score of a row behind a step. begins: the step gives the key its row.
inline float ScoreAfter(ScoreRule rule, bool begins, float score, double of_step) {
  const double after = JoinScores(rule, begins ? kNoScore : double{score}, of_step);
  if (!HasScore(after)) return 0;
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(after, -kMost, kMost));
}

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_SCORE_SUMS_IMPL_H_
