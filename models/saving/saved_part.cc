#include "models/saving/saved_part.h"

#include <span>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/ranks/shard_map.h"
#include "models/saving/dense_file.h"
#include "ops/rows/row_layout.h"
#include "store/open.h"

namespace hotrow {

absl::StatusOr<std::vector<PortableTable>> TablesOf(const SavedModel& model) {
  std::vector<PortableTable> out;
  for (const SavedModel::Table& table : model.tables) {
    PortableTable entry;
    entry.name = table.name;
    entry.dim = table.dim;
    HOTROW_ASSIGN_OR_RETURN(entry.optimizer, ParseSparseOptimizer(table.optimizer));
    entry.weights_precision = table.weights_precision;
    entry.scored = table.score != ScoreRule::kNone;
    out.push_back(std::move(entry));
  }
  return out;
}

absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenSavedPart(Env& env, const SavedModel& saved,
                                                              int32_t rank, int64_t memory_bytes,
                                                              const char* memory_option) {
  const SavedModel::Part& part = saved.parts[static_cast<size_t>(rank)];
  HOTROW_ASSIGN_OR_RETURN(const StoreKind kind, ParseStoreKind(part.store));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<PortableTable> tables, TablesOf(saved));
  const SnapshotReaderOptions options = {.path = part.tables_dir,
                                         .snapshot = part.snapshot,
                                         .identity = part.identity,
                                         .memory_budget_bytes = memory_bytes,
                                         .memory_option = memory_option,
                                         .env = &env};
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<SnapshotReader> reader, OpenSnapshot(kind, options));
  const std::span<const StoreTable> found = reader->tables();
  const auto differs = [&](std::string_view what) {
    return absl::DataLossError(absl::StrCat(options.path, ": snapshot ", part.snapshot,
                                            " is not that of ", saved.dir, ": ", std::string(what),
                                            "; restore both from one copy"));
  };
  if (found.size() != tables.size()) {
    return differs(
        absl::StrCat("it has ", found.size(), " tables, the manifest has ", tables.size()));
  }
  for (const StoreTable& table : found) {
    if (table.table >= tables.size()) {
      return differs(absl::StrCat("it has a table ", table.table));
    }
    const PortableTable& expected = tables[table.table];
    const int64_t row_bytes = expected.layout().row_bytes;
    if (table.row_bytes != row_bytes) {
      return differs(absl::StrCat("rows of table \"", expected.name, "\" have ", table.row_bytes,
                                  " bytes, the manifest says ", row_bytes));
    }
  }
  return reader;
}

std::vector<RowLines> AgeLinesOf(const SavedModel& saved) {
  std::vector<RowLines> out;
  for (const SavedModel::Table& table : saved.tables) out.push_back(table.lines);
  return out;
}

absl::Status LoadSavedCounters(Env& env, const SavedModel& saved, EmbeddingCollection* tables) {
  if (!tables->counters().kept()) return absl::OkStatus();
  for (size_t rank = 0; rank < saved.counters.size(); ++rank) {
    HOTROW_ASSIGN_OR_RETURN(const std::string bytes,
                            ReadSavedCounters(env, saved, static_cast<int32_t>(rank)));
    const absl::Status loaded = tables->counters().Load(std::as_bytes(std::span(bytes)));
    if (loaded.ok()) continue;
    return absl::Status(loaded.code(), absl::StrCat(saved.dir, "/", saved.counters[rank].file, ": ",
                                                    loaded.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<AgedRows> AgedRows::Of(const SavedModel& saved) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<PortableTable> tables, TablesOf(saved));
  AgedRows out;
  for (size_t i = 0; i < tables.size(); ++i) {
    out.tables_.push_back(
        {.lines = saved.tables[i].lines, .fields = tables[i].layout().line_fields()});
  }
  return out;
}

absl::Status CheckRankOfRow(const SavedModel& saved, int32_t rank, const RowKey& key) {
  const auto world_size = static_cast<int32_t>(saved.parts.size());
  const int32_t owner = OwnerRank(key, world_size);
  if (owner == rank) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      saved.parts[static_cast<size_t>(rank)].tables_dir, ": key ", key.key, " of table \"",
      saved.tables[key.table].name, "\" lies in the part of rank ", rank, " of ", world_size,
      " and belongs to rank ", owner, "; use a copy of the checkpoint"));
}

}  // namespace hotrow
