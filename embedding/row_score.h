#ifndef HOTROW_EMBEDDING_ROW_SCORE_H_
#define HOTROW_EMBEDDING_ROW_SCORE_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace hotrow {

// What the scores of a batch, one for each lookup, make of the score of a row. docs/row_life.md.
// The lookups of a step count in the order in which gradients are added. A lookup without a score
// changes none; a row that begins has 0 until a lookup brings one.
enum class ScoreRule {
  kNone,  // the table keeps no scores; its rows have no room for them
  kMax,   // the highest that came; of a row that begins, of its first step
  kSum,   // the sum of all, within the range of a float; that of a step is taken in double
  kLast,  // the last one
};

// "none", "max", "sum", "last". The error lists them.
absl::StatusOr<ScoreRule> ParseScoreRule(std::string_view name);
std::string_view ScoreRuleName(ScoreRule rule);

// Memory of a rank for each table whose max_rows goes by score, and more for each pair of a score
// and an age that its rows have: counts of rows.
inline constexpr int64_t kScoreCountBytes = int64_t{2} << 20;

// Which rows go first where a table has more than max_rows.
enum class RowOrder {
  kAge,    // those whose last update is longest ago
  kScore,  // those with the lowest scores; of scores in one range the oldest
};

// "age", "score". The error lists them.
absl::StatusOr<RowOrder> ParseRowOrder(std::string_view name);
std::string_view RowOrderName(RowOrder order);

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_ROW_SCORE_H_
