#include "models/saving/scoring_options.h"

#include "absl/strings/str_cat.h"

namespace hotrow {
namespace {

FlagField AnyReal(float* field) { return RealFlag(field, -3e38, 3e38); }

// Names as manifests have them.
struct Row {
  std::string_view name;
  FlagField (*bind)(ScoringOptions& options);
};

constexpr Row kRows[] = {
    {"optimizer",
     [](ScoringOptions& o) {
       return WordFlag("WORD", &o.table_optimizer.kind, ParseSparseOptimizer, SparseOptimizerName);
     }},
    {"learning_rate",
     [](ScoringOptions& o) { return RealFlag(&o.table_optimizer.learning_rate, 0, 1e30); }},
    {"eps", [](ScoringOptions& o) { return RealFlag(&o.table_optimizer.eps, 0, 1); }},
    {"table_weight_decay",
     [](ScoringOptions& o) { return RealFlag(&o.table_optimizer.weight_decay, 0, 1e6); }},
    {"table_optimizer.weight_decay_mode",
     [](ScoringOptions& o) {
       return WordFlag("WORD", &o.table_optimizer.weight_decay_mode,
                       AllWords(kWeightDecayModeWords));
     }},
    {"table_optimizer.beta1", [](ScoringOptions& o) { return AnyReal(&o.table_optimizer.beta1); }},
    {"table_optimizer.beta2", [](ScoringOptions& o) { return AnyReal(&o.table_optimizer.beta2); }},
    {"table_optimizer.initial_accumulator",
     [](ScoringOptions& o) { return AnyReal(&o.table_optimizer.initial_accumulator); }},
    {"table_optimizer.lr_power",
     [](ScoringOptions& o) { return AnyReal(&o.table_optimizer.lr_power); }},
    {"table_optimizer.l1", [](ScoringOptions& o) { return AnyReal(&o.table_optimizer.l1); }},
    {"table_optimizer.l2", [](ScoringOptions& o) { return AnyReal(&o.table_optimizer.l2); }},
    {"table_optimizer.ftrl_beta",
     [](ScoringOptions& o) { return RealFlag(&o.table_optimizer.ftrl_beta, 0, 1e30); }},
    {"frozen_tables", [](ScoringOptions& o) { return StringFlag("NAMES", &o.frozen_tables); }},
    {"read_only_features",
     [](ScoringOptions& o) { return StringFlag("NAMES", &o.read_only_features); }},
    {"serve_rows",
     [](ScoringOptions& o) {
       return WordFlag("WORD", &o.serve_rows, AllWords(kServingRowsWords));
     }},
    {"precision",
     [](ScoringOptions& o) {
       return WordFlag("WORD", &o.precision, ParseDensePrecision, DensePrecisionName);
     }},
};

}  // namespace

FlagField ScoringField(std::string_view name, ScoringOptions* options) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.bind(*options);
  }
  return {};
}

absl::Status ApplyScoringSettings(std::span<const std::pair<std::string, std::string>> settings,
                                  const std::string& where, ScoringOptions* options) {
  for (const auto& [name, value] : settings) {
    const FlagField field = ScoringField(name, options);
    if (field.set == nullptr) continue;
    const absl::Status status = field.set(value);
    if (status.ok()) continue;
    return absl::FailedPreconditionError(absl::StrCat(where, ": its setting ", name, " is ", value,
                                                      ", which this program does not know (",
                                                      status.message(), "); use a newer hotrow"));
  }
  return absl::OkStatus();
}

}  // namespace hotrow
