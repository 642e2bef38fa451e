#include "models/train/learning_rate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hotrow {
namespace {

absl::Status NotNegative(const char* flag, int64_t value) {
  if (value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be at least 0, is ", value));
}

}  // namespace

absl::Status LearningRateOptions::Validate() const {
  for (const auto& [flag, value] :
       {std::pair<const char*, int64_t>{"lr_warmup_steps", lr_warmup_steps},
        {"lr_decay_start", lr_decay_start},
        {"lr_decay_steps", lr_decay_steps},
        {"lr_plateau_patience", lr_plateau_patience},
        {"early_stop_patience", early_stop_patience}}) {
    if (const absl::Status status = NotNegative(flag, value); !status.ok()) return status;
  }
  if (lr_decay_steps > 0 && lr_decay_start < lr_warmup_steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("--lr_decay_start=", lr_decay_start,
                     ": the decay may not begin before the warm-up ends; raise it to "
                     "--lr_warmup_steps=",
                     lr_warmup_steps, " or more"));
  }
  if (lr_decay_steps == 0 && lr_decay_start > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--lr_decay_start=", lr_decay_start,
                     " without --lr_decay_steps: say over how many steps the rate decays"));
  }
  if (!(lr_plateau_factor > 0 && lr_plateau_factor <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--lr_plateau_factor must lie above 0 and not above 1, is ", lr_plateau_factor));
  }
  if (!(validation_min_delta >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("validation_min_delta must be at least 0, is ", validation_min_delta));
  }
  return absl::OkStatus();
}

double ScheduleFactor(const LearningRateOptions& options, int64_t step) {
  const int64_t warmup = options.lr_warmup_steps;
  if (step < warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  const int64_t decay = options.lr_decay_steps;
  if (decay == 0 || step < options.lr_decay_start) return 1;
  const int64_t left = std::max<int64_t>(options.lr_decay_start + decay - step, 1);
  const double share = static_cast<double>(left) / static_cast<double>(decay);
  return share * share;
}

ValidationPolicy::Verdict ValidationPolicy::Observe(double auc) {
  Verdict verdict;
  verdict.better = !state_.observed || auc > state_.best_auc + options_.validation_min_delta;
  state_.observed = true;
  if (verdict.better) {
    state_.best_auc = auc;
    state_.plateau_validations = 0;
    state_.worse_validations = 0;
    return verdict;
  }
  ++state_.plateau_validations;
  ++state_.worse_validations;
  if (options_.lr_plateau_patience > 0 &&
      state_.plateau_validations >= options_.lr_plateau_patience) {
    state_.plateau_validations = 0;
    state_.factor *= options_.lr_plateau_factor;
    verdict.lowered = options_.lr_plateau_factor < 1;
  }
  verdict.stop =
      options_.early_stop_patience > 0 && state_.worse_validations >= options_.early_stop_patience;
  return verdict;
}

}  // namespace hotrow
