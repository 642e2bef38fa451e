#include "models/checkpoint_check.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "embedding/store_kind.h"
#include "models/checkpoint.h"
#include "models/portable_model.h"
#include "models/saved_model_impl.h"
#include "ops/row_layout.h"
#include "store/ssd_store.h"

namespace hotrow {
namespace {

absl::StatusOr<CheckpointReport::File> SizeOf(Env& env, const std::string& path) {
  CheckpointReport::File out = {.path = path};
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return out;
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(out.bytes, file->Size());
  return out;
}

// Manifest, names and sizes; no rows.
absl::StatusOr<CheckpointReport> Look(Env& env, const std::string& path) {
  CheckpointReport out;
  HOTROW_ASSIGN_OR_RETURN(out.model, ReadCheckpoint(env, path));
  const SavedModel& model = out.model;
  if (model.is_checkpoint) {
    HOTROW_ASSIGN_OR_RETURN(out.checkpoints, ListCheckpoints(env, ParentDir(model.dir)));
  }
  std::vector<std::string> paths = {ManifestPath(model.dir),
                                    absl::StrCat(model.dir, "/", model.dense_file)};
  HOTROW_ASSIGN_OR_RETURN(const StoreKind kind, ParseStoreKind(model.store));
  if (kind == StoreKind::kMemory) {
    paths.push_back(absl::StrFormat("%s/%016x.snapshot", model.tables_dir, model.snapshot));
  }
  for (const std::string& file : paths) {
    HOTROW_ASSIGN_OR_RETURN(CheckpointReport::File found, SizeOf(env, file));
    if (found.bytes < 0) out.damage.push_back(absl::StrCat(file, ": there is no such file"));
    out.files.push_back(std::move(found));
  }
  if (kind != StoreKind::kMemory) {
    HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(model.tables_dir));
    if (!exists) {
      out.damage.push_back(absl::StrCat(model.tables_dir,
                                        ": there is no such directory; it is the ", model.store,
                                        " store with the tables of ", model.dir));
    }
  }
  out.rows = 0;
  for (const SavedModel::Table& table : model.tables) {
    out.rows = table.rows < 0 || out.rows < 0 ? -1 : out.rows + table.rows;
  }
  if (out.rows < 0) out.rows_unknown = "not counted when it was saved";
  return out;
}

// Whether the tables can be read at all.
bool HasTables(const CheckpointReport& report) {
  return std::none_of(report.damage.begin(), report.damage.end(), [&](const std::string& line) {
    return line.compare(0, report.model.tables_dir.size(), report.model.tables_dir) == 0;
  });
}

// Reads all rows of the snapshot and compares them with the manifest.
absl::Status CountRows(Env& env, int64_t store_bytes, CheckpointReport* report) {
  const SavedModel& model = report->model;
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<SnapshotReader> reader,
                          OpenSavedTables(env, model, store_bytes));
  std::vector<int64_t> payload_bytes;
  for (const SavedModel::Table& table : model.tables) {
    HOTROW_ASSIGN_OR_RETURN(const SparseOptimizerKind kind, ParseSparseOptimizer(table.optimizer));
    payload_bytes.push_back(RowLayout::For(table.dim, kind).payload_bytes);
  }
  std::vector<PortableDigest> tables(model.tables.size());
  HOTROW_RETURN_IF_ERROR(reader->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
    PortableDigest& table = tables[key.table];
    ++table.rows;
    const auto payload = row.first(static_cast<size_t>(payload_bytes[key.table]));
    table.hash += HashBytes(key.key, key.table, payload);
    return absl::OkStatus();
  }));
  report->rows = 0;
  for (size_t i = 0; i < tables.size(); ++i) {
    report->rows += tables[i].rows;
    const SavedModel::Table& expected = model.tables[i];
    const bool rows_differ = expected.rows >= 0 && expected.rows != tables[i].rows;
    if (!rows_differ && (expected.hash.empty() || expected.hash == tables[i].hash.ToHex())) {
      continue;
    }
    report->damage.push_back(absl::StrCat(
        model.tables_dir, ": table \"", expected.name, "\" has ", tables[i].rows, " rows of hash ",
        tables[i].hash.ToHex(), ", the manifest says ", expected.rows, " of ", expected.hash));
  }
  report->tables = std::move(tables);
  return absl::OkStatus();
}

// Damage is a line of the report; anything else ends the verifying.
absl::Status Note(const absl::Status& status, CheckpointReport* report) {
  if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) return status;
  report->damage.emplace_back(status.message());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckpointReport> InspectCheckpoint(Env& env, const std::string& path,
                                                   int64_t store_bytes) {
  HOTROW_ASSIGN_OR_RETURN(CheckpointReport report, Look(env, path));
  if (report.rows >= 0 || !HasTables(report)) return report;
  // A store that is in use, or larger than we may index, is no reason to say nothing.
  const absl::StatusOr<std::unique_ptr<SnapshotReader>> reader =
      OpenSavedTables(env, report.model, store_bytes);
  if (!reader.ok()) {
    report.rows_unknown = std::string(reader.status().message());
    if (absl::IsDataLoss(reader.status())) report.damage.push_back(report.rows_unknown);
    return report;
  }
  report.rows = (*reader)->rows();
  return report;
}

absl::StatusOr<CheckpointReport> VerifyCheckpoint(Env& env, const std::string& path,
                                                  int64_t store_bytes) {
  HOTROW_ASSIGN_OR_RETURN(CheckpointReport report, Look(env, path));
  const SavedModel& model = report.model;
  if (report.files[1].bytes >= 0) {
    HOTROW_RETURN_IF_ERROR(Note(ReadSavedDense(env, model).status(), &report));
  }
  if (!HasTables(report)) return report;
  bool readable = true;
  if (model.store == StoreKindName(StoreKind::kSsd)) {
    const absl::StatusOr<SsdStoreReport> store = VerifySsdStore(env, model.tables_dir);
    if (!store.ok()) {
      HOTROW_RETURN_IF_ERROR(Note(store.status(), &report));
      readable = false;
    } else {
      for (const SsdDamage& damage : store->damage) {
        report.damage.push_back(
            absl::StrCat(damage.file, ": offset ", damage.offset, ": ", damage.what));
      }
      if (store->damage_left_out > 0) {
        report.damage.push_back(
            absl::StrCat(model.tables_dir, ": and ", store->damage_left_out, " more"));
      }
      // Each damaged record has its line already.
      readable = store->damage.empty();
    }
  }
  if (readable) HOTROW_RETURN_IF_ERROR(Note(CountRows(env, store_bytes, &report), &report));
  return report;
}

}  // namespace hotrow
