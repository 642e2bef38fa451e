#include "models/data/growing_source.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/data/table_schema_text.h"

namespace hotrow {
namespace {

// Models and tables are planned for max_hotness, and saved models tell it to who scores.
bool SameSamples(const DataSchema& a, const DataSchema& b) {
  return a.labels == b.labels && a.num_dense == b.num_dense && a.dense == b.dense &&
         std::ranges::equal(a.features, b.features, [](const auto& x, const auto& y) {
           return x.name == y.name && x.table == y.table && x.num_embeddings == y.num_embeddings &&
                  x.max_hotness == y.max_hotness;
         });
}

// What makes samples of text; empty: they are not of text.
std::string MeaningOf(const DataSource& data) {
  return data.table_schema() == nullptr ? "" : TableSchemaText(*data.table_schema());
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
  if (!SameSamples(now().schema(), next->schema()) || MeaningOf(now()) != MeaningOf(*next)) {
    return absl::FailedPreconditionError(absl::StrCat(
        next->schema().name,
        ": has other features or labels, or a schema that says other things of them, than when it "
        "was opened; give back the schema of then, or begin again"));
  }
  latest_ = std::move(next);
  return true;
}

}  // namespace hotrow
