#ifndef HOTROW_MODELS_SAVING_SCORING_OPTIONS_H_
#define HOTROW_MODELS_SAVING_SCORING_OPTIONS_H_

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "base/flag_set.h"
#include "embedding/serving/serving_rows.h"
#include "ops/products/dense_precision.h"
#include "ops/update/sparse_optimizer_config.h"

namespace hotrow {

// What scores depend on and neither rows nor parameters show: what unseen keys read, and how rows
// are read and products are made. A part of the options of the run that trained the model
// (models/train/trainer_options.h), where scoring finds it in manifests: ScoringData::settings.
struct ScoringOptions {
  SparseOptimizerConfig table_optimizer;
  // Names joined by commas. Tables that are looked up and not trained, and features whose lookups
  // get no gradient, see TableConfig::read_only_features.
  std::string frozen_tables;
  std::string read_only_features;
  ServingRows serve_rows = ServingRows::kAsTrained;  // TableConfig::serve_rows of all tables
  DensePrecision precision = DensePrecision::kFp32;  // of products
};

// The field that the setting of this name sets. It sets nothing (`set` is null) where the name is
// none of these.
FlagField ScoringField(std::string_view name, ScoringOptions* options);

// Sets the fields that `settings` names. They may hold others, as those of a checkpoint do, which
// are passed over. Errors: FailedPrecondition, naming a value that this build does not know, and
// `where` it was found.
absl::Status ApplyScoringSettings(std::span<const std::pair<std::string, std::string>> settings,
                                  const std::string& where, ScoringOptions* options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SCORING_OPTIONS_H_
