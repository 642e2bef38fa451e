#include "embedding/row_score.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace hotrow {

absl::StatusOr<ScoreRule> ParseScoreRule(std::string_view name) {
  for (const ScoreRule rule :
       {ScoreRule::kNone, ScoreRule::kMax, ScoreRule::kSum, ScoreRule::kLast}) {
    if (name == ScoreRuleName(rule)) return rule;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown rule of scores \"", std::string(name),
                                                 "\": must be none, max, sum or last"));
}

std::string_view ScoreRuleName(ScoreRule rule) {
  switch (rule) {
    case ScoreRule::kNone:
      return "none";
    case ScoreRule::kMax:
      return "max";
    case ScoreRule::kSum:
      return "sum";
    case ScoreRule::kLast:
      return "last";
  }
  HOTROW_CHECK(false);
}

absl::StatusOr<RowOrder> ParseRowOrder(std::string_view name) {
  for (const RowOrder order : {RowOrder::kAge, RowOrder::kScore}) {
    if (name == RowOrderName(order)) return order;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown order of rows \"", std::string(name), "\": must be age or score"));
}

std::string_view RowOrderName(RowOrder order) {
  switch (order) {
    case RowOrder::kAge:
      return "age";
    case RowOrder::kScore:
      return "score";
  }
  HOTROW_CHECK(false);
}

}  // namespace hotrow
