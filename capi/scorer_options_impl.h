#ifndef HOTROW_CAPI_SCORER_OPTIONS_IMPL_H_
#define HOTROW_CAPI_SCORER_OPTIONS_IMPL_H_

#include <chrono>

#include "absl/status/statusor.h"
#include "hotrow/hotrow.h"
#include "models/serving/scorer.h"

namespace hotrow::capi {

hotrow_scorer_options DefaultScorerOptions();
// Checked as far as their form goes; Scorer checks what they mean. options: may be null, which is
// an error.
absl::StatusOr<ScorerOptions> TakeScorerOptions(const hotrow_scorer_options* options);
// The deadline of each call that scores; 0: none.
absl::StatusOr<std::chrono::milliseconds> TakeScoreDeadline(const hotrow_scorer_options* options);

}  // namespace hotrow::capi

#endif  // HOTROW_CAPI_SCORER_OPTIONS_IMPL_H_
