#include "embedding/rows/row_rules_impl.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/rows/gradient_clip_impl.h"
#include "embedding/serving/serving_rows.h"

namespace hotrow::internal {
namespace {

absl::Status CheckNoTableDecay(const TableConfig& config, const char* call, const char* remedy) {
  if (config.optimizer.weight_decay_mode != WeightDecayMode::kTable) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(call, ": table \"", config.name,
                   "\" decays as a whole (weight_decay_mode table), so ", remedy));
}

}  // namespace

bool RowRules::AskForLookups(const EmbeddingCollectionOptions& options) {
  return std::any_of(options.tables.begin(), options.tables.end(),
                     [](const TableConfig& table) { return !table.admission.always(); });
}

absl::StatusOr<std::unique_ptr<RowRules>> RowRules::Create(
    const EmbeddingCollectionOptions& options, const Plan& plan, RowShuffle* shuffle) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<RowLife> life, RowLife::Create(options, plan, shuffle));
  return std::unique_ptr<RowRules>(new RowRules(options, plan, shuffle, std::move(life)));
}

RowRules::RowRules(const EmbeddingCollectionOptions& options, const Plan& plan, RowShuffle* shuffle,
                   std::unique_ptr<RowLife> life)
    : options_(options),
      plan_(plan),
      shuffle_(shuffle),
      decay_(options, plan),
      life_(std::move(life)),
      rounding_(plan),
      gaps_(options, plan) {}

// --- A step

absl::Status RowRules::Read(const ExecContext& ctx, const RuledRows& rows, RowReader reader,
                            Step* step) const {
  std::span<std::byte* const> here = rows.rows;
  // A rule that reads no row elsewhere leaves its places empty.
  const auto go_on_from = [&here](const auto& copies) {
    if (!copies.rows.empty()) here = copies.rows;
  };
  HOTROW_RETURN_IF_ERROR(decay_.Read(ctx, rows.keys, here, &step->decayed_));
  go_on_from(step->decayed_);
  HOTROW_RETURN_IF_ERROR(
      life_->Read(ctx, rows.keys, here, reader == RowReader::kTraining, &step->living_));
  go_on_from(step->living_);
  step->whole_rows_ = here;
  HOTROW_RETURN_IF_ERROR(
      rounding_.Read(ctx, rows.keys, here, reader != RowReader::kByKey, &step->rounded_));
  go_on_from(step->rounded_);
  step->weights_ = here;
  return absl::OkStatus();
}

absl::Status RowRules::ChooseTrained(const ExecContext& ctx, const RuledRows& rows, uint32_t update,
                                     Step* step) {
  life_->LookAgain(ctx, rows.keys, rows.rows, &step->living_);
  return life_->Admit(rows.keys, rows.lookups, step->living_, update, &step->trained);
}

absl::Status RowRules::ScaleGradients(const ExecContext& ctx, const TableKeys& keys,
                                      const Step& step, float* const* gradients) const {
  return ClipGradients(ctx, options_, plan_, keys, step.trained, gradients, shuffle_);
}

absl::Status RowRules::BeforeUpdate(const ExecContext& ctx, const RuledRows& rows, uint32_t update,
                                    const Step& step) {
  HOTROW_RETURN_IF_ERROR(life_->Renew(ctx, rows.keys, rows.rows, step.living_, step.trained));
  life_->NoteUpdate(rows.keys, rows.scores, step.living_, step.trained, update);
  gaps_.Count(rows.keys, rows.rows, step.trained, update);
  return absl::OkStatus();
}

void RowRules::AfterUpdate(const RuledRows& rows, const Step& step) const {
  life_->WriteScores(rows.keys, rows.rows, step.trained);
}

absl::Status RowRules::EndStep(uint32_t update, float learning_rate_factor) {
  decay_.Append(learning_rate_factor);
  return life_->EndStep(update);
}

// --- Rows of a store

absl::Status RowRules::CheckWritable(size_t table) const {
  return CheckNoTableDecay(ConfigOf(table), "WriteRows",
                           "what a row is depends on the steps that it has missed; use l2 or "
                           "decoupled, or start from a model");
}

absl::Status RowRules::CheckDated(size_t table) const {
  return CheckNoTableDecay(ConfigOf(table), "EraseIf",
                           "its rows do not know their last update; name the keys, with Erase");
}

void RowRules::AddTo(EmbeddingStats* stats) const {
  life_->AddTo(stats);
  gaps_.AddTo(stats);
}

}  // namespace hotrow::internal
