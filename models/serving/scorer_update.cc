#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/delta/chain_head_impl.h"
#include "models/delta/delta_damage_impl.h"
#include "models/delta/delta_manifest.h"
#include "models/saving/dense_file.h"
#include "models/saving/store_paths_impl.h"
#include "models/serving/scorer_impl.h"

namespace hotrow {
namespace {

// The same error, with the delta's directory where it names none.
absl::Status Named(const std::string& dir, const absl::Status& status) {
  if (status.ok() || absl::StrContains(status.message(), dir)) return status;
  return {status.code(), absl::StrCat(dir, ": ", std::string(status.message()))};
}

}  // namespace

void Scorer::Impl::Begin() {
  auto first = std::make_unique<internal::ModelVersion>();
  first->rows = &model->tables->view();
  first->parameters = std::make_shared<const std::vector<float>>(std::move(model->parameters));
  first->step = model->saved.step;
  step = first->step;
  rows = model->rows();
  if (model->chain.has_value()) sequence = model->link.sequence;
  link = model->link;
  newest = std::move(first);
  version = newest.get();
}

ChainLink Scorer::Impl::Link() const {
  const std::lock_guard lock(update_mu);
  return link;
}

void Scorer::Impl::Publish(std::unique_ptr<const internal::ModelVersion> next) {
  version.store(next.get());
  slots.AwaitReaders();
  newest = std::move(next);
}

absl::StatusOr<AppliedDelta> Scorer::Impl::ApplyDelta(const std::string& dir) {
  const std::lock_guard lock(update_mu);
  if (!model->chain.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(dir, ": the scorer has a model that is no chain of deltas, ", model->saved.dir,
                     "; open the chain that the delta belongs to"));
  }
  HOTROW_ASSIGN_OR_RETURN(const DeltaManifest delta,
                          ReadDeltaManifest(env, WithoutEndingSlashes(dir)));
  HOTROW_RETURN_IF_ERROR(CheckNextLink(*model->chain, link, delta));
  if (const std::string why = internal::WhyOpenedAnew(*model, delta); !why.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(delta.model.dir, ": ", why, "; open the model anew"));
  }
  absl::StatusOr<AppliedDelta> applied = ApplyChecked(delta);
  if (!applied.ok()) return Named(delta.model.dir, applied.status());
  return applied;
}

absl::StatusOr<AppliedDelta> Scorer::Impl::ApplyChecked(const DeltaManifest& delta) {
  HOTROW_ASSIGN_OR_RETURN(DenseVectors dense, ReadSavedDense(env, delta.model));
  std::vector<float>& parameters = dense.average.empty() ? dense.parameters : dense.average;
  if (parameters.size() != newest->parameters->size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("it has ", parameters.size(), " dense parameters, the model has ",
                     newest->parameters->size(), "; begin a new chain"));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::vector<DeltaTable> tables, DeltaTablesOf(delta.model));
  HOTROW_ASSIGN_OR_RETURN(
      std::unique_ptr<ServingTables::Update> update,
      ServingTables::Update::Begin(model->tables.get(), internal::SizesOf({&delta, 1}),
                                   internal::RowsSourceOf(delta.digest)));
  HOTROW_ASSIGN_OR_RETURN(DeltaMerge merge, MergeDeltas(env, *model->chain, {&delta, 1}, tables));
  AppliedDelta out = {.sequence = delta.sequence, .step = delta.model.step};
  while (!merge.done()) {
    if (merge.erased()) {
      HOTROW_RETURN_IF_ERROR(update->Erase(merge.key()));
    } else {
      HOTROW_RETURN_IF_ERROR(update->Set(merge.key(), merge.row()));
      ++out.rows;
    }
    HOTROW_RETURN_IF_ERROR(merge.Next());
  }
  HOTROW_ASSIGN_OR_RETURN(const ServingTables::View* const changed, update->Stage());
  int64_t rows_after = 0;
  for (uint32_t t = 0; t < tables.size(); ++t) {
    const int64_t found = update->rows(t);
    const SavedModel::Table& table = delta.model.tables[t];
    rows_after += found;
    if (table.rows < 0 || table.rows == found) continue;
    return DeltaDamaged(delta.model.dir,
                        absl::StrCat("table \"", table.name, "\" has ", found,
                                     " rows after it, its manifest says ", table.rows));
  }
  out.erased = update->rows_erased();

  const internal::ModelVersion next = {
      .rows = changed,
      .parameters = std::make_shared<const std::vector<float>>(std::move(parameters)),
      .dense_number = newest->dense_number + 1,
      .step = delta.model.step};
  auto with_changed = std::make_unique<const internal::ModelVersion>(next);
  auto with_folded = std::make_unique<internal::ModelVersion>(next);
  ChainLink new_link = {.sequence = delta.sequence,
                        .step = delta.model.step,
                        .digest = delta.digest,
                        .source = delta.source};
  // Nothing can fail any more, nor throw: calls read what is staged.
  Publish(std::move(with_changed));
  step = next.step;
  rows = rows_after;
  sequence = delta.sequence;
  link = std::move(new_link);
  with_folded->rows = update->Fold();
  Publish(std::move(with_folded));
  return out;
}

}  // namespace hotrow
