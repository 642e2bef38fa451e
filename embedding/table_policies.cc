#include "embedding/table_policies.h"

#include <cstddef>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/parse_word.h"

namespace hotrow {
namespace {

constexpr EnumWord<ScoreRule> kScoreRules[] = {{"none", ScoreRule::kNone},
                                               {"max", ScoreRule::kMax},
                                               {"sum", ScoreRule::kSum},
                                               {"last", ScoreRule::kLast}};
constexpr EnumWord<RowOrder> kRowOrders[] = {{"age", RowOrder::kAge}, {"score", RowOrder::kScore}};

// Counts are kept in 32 bits.
constexpr int64_t kLookupsMax = INT32_MAX;
constexpr int64_t kStepsMax = UINT32_MAX;
// The smallest that is not 0 in 32 bits.
constexpr double kProbabilityMin = 0x1p-32;

// As few digits as bring the number back.
std::string ShortestText(double x) {
  constexpr int kDigitsMax = 17;
  std::string text;
  for (int digits = 1; digits <= kDigitsMax; ++digits) {
    text = absl::StrFormat("%.*g", digits, x);
    double back = 0;
    if (absl::SimpleAtod(text, &back) && back == x) break;
  }
  return text;
}

}  // namespace

absl::Status Admission::Validate() const {
  if (rule == Rule::kLookups) {
    if (lookups < 1 || lookups > kLookupsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("admission.lookups must lie in [1, ", kLookupsMax, "], is ", lookups));
    }
    if (forget_steps < 0 || forget_steps > kStepsMax) {
      return absl::InvalidArgumentError(absl::StrCat("admission.forget_steps must lie in [0, ",
                                                     kStepsMax, "], is ", forget_steps));
    }
  }
  if (rule == Rule::kCoin && !(probability >= kProbabilityMin && probability <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("admission.probability must lie in [2^-32, 1], is ", probability));
  }
  return absl::OkStatus();
}

absl::StatusOr<Admission> ParseAdmission(std::string_view text) {
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ':');
  Admission out;
  const auto is_number = [&](size_t i, int64_t* number) {
    return i < parts.size() && absl::SimpleAtoi(parts[i], number);
  };
  bool good = false;
  if (parts[0] == "always") {
    good = parts.size() == 1;
  } else if (parts[0] == "lookups") {
    out.rule = Admission::Rule::kLookups;
    good = is_number(1, &out.lookups) &&
           (parts.size() == 2 || (parts.size() == 3 && is_number(2, &out.forget_steps)));
  } else if (parts[0] == "coin") {
    out.rule = Admission::Rule::kCoin;
    good = parts.size() == 2 && absl::SimpleAtod(parts[1], &out.probability);
  }
  if (!good) {
    return absl::InvalidArgumentError(
        "takes always, lookups:N, lookups:N:STEPS or coin:P, as in lookups:3:100000 or coin:0.1");
  }
  if (absl::Status status = out.Validate(); !status.ok()) return status;
  return out;
}

std::string AdmissionText(const Admission& admission) {
  switch (admission.rule) {
    case Admission::Rule::kAlways:
      return "always";
    case Admission::Rule::kLookups:
      return admission.forget_steps == 0
                 ? absl::StrCat("lookups:", admission.lookups)
                 : absl::StrCat("lookups:", admission.lookups, ":", admission.forget_steps);
    case Admission::Rule::kCoin:
      return absl::StrCat("coin:", ShortestText(admission.probability));
  }
  return "unknown";
}

absl::StatusOr<ScoreRule> ParseScoreRule(std::string_view name) {
  return ParseWord(kScoreRules, "rule of scores", name);
}
std::string_view ScoreRuleName(ScoreRule rule) { return WordOf(kScoreRules, rule); }

absl::StatusOr<RowOrder> ParseRowOrder(std::string_view name) {
  return ParseWord(kRowOrders, "order of rows", name);
}
std::string_view RowOrderName(RowOrder order) { return WordOf(kRowOrders, order); }

}  // namespace hotrow
