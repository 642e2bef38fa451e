#include "models/data/growing_source.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

bool SameSamples(const DataSchema& a, const DataSchema& b) {
  return a.labels == b.labels && a.num_dense == b.num_dense && a.dense == b.dense &&
         std::ranges::equal(a.features, b.features, [](const auto& x, const auto& y) {
           return x.name == y.name && x.table == y.table && x.num_embeddings == y.num_embeddings;
         });
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrowingSource>> GrowingSource::Open(OpenFiles open) {
  std::unique_ptr<GrowingSource> out(new GrowingSource(std::move(open)));
  HOTROW_ASSIGN_OR_RETURN(out->first_, out->open_(/*vocabulary=*/nullptr));
  return out;
}

absl::StatusOr<bool> GrowingSource::Grow() {
  std::optional<SavedVocabulary> vocabulary;
  if (first_->vocabulary() != nullptr) {
    vocabulary = {.vocabulary = *first_->vocabulary(), .where = "this run", .final = true};
  }
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<DataSource> next,
                          open_(vocabulary.has_value() ? &*vocabulary : nullptr));
  HOTROW_ASSIGN_OR_RETURN(const auto before, now().Identity());
  HOTROW_ASSIGN_OR_RETURN(const auto after, next->Identity());
  if (before == after) return false;
  if (!SameSamples(now().schema(), next->schema())) {
    return absl::FailedPreconditionError(
        absl::StrCat(next->schema().name,
                     ": has other features or labels than when it was opened; begin again"));
  }
  latest_ = std::move(next);
  return true;
}

}  // namespace hotrow
