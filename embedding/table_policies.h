#ifndef HOTROW_EMBEDDING_TABLE_POLICIES_H_
#define HOTROW_EMBEDDING_TABLE_POLICIES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Which keys of a table have rows, and which rows go first. docs/row_life.md.

namespace hotrow {

// Which keys of a table get a row when a training step looks them up. Until then they read their
// initial rows, and their gradients are dropped. docs/row_life.md.
struct Admission {
  enum class Rule {
    kAlways,
    kLookups,  // in the step of the n-th lookup in training
    kCoin,     // each lookup in training with the same probability
  };
  Rule rule = Rule::kAlways;
  // kLookups: n, at least 1; and if not 0, a key that was not looked up for more than so many steps
  // counts from 0 again.
  int64_t lookups = 1;
  int64_t forget_steps = 0;
  double probability = 1;  // kCoin; in (0, 1], used to 2^-32

  bool always() const { return rule == Rule::kAlways; }
  bool counts() const { return rule == Rule::kLookups; }
  absl::Status Validate() const;  // names the field, the limit and the value it got
  friend bool operator==(const Admission&, const Admission&) = default;
};

// "always", "lookups:3", "lookups:3:100000", "coin:0.1"; and back.
absl::StatusOr<Admission> ParseAdmission(std::string_view text);
std::string AdmissionText(const Admission& admission);

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

#endif  // HOTROW_EMBEDDING_TABLE_POLICIES_H_
