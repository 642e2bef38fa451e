#include "models/saving/checkpoint_check.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/ranks/shard_map.h"
#include "models/saving/blob_files.h"
#include "models/saving/checkpoint.h"
#include "models/saving/dense_file.h"
#include "models/saving/manifest.h"
#include "models/saving/portable_model.h"
#include "models/saving/portable_tables.h"
#include "models/saving/saved_model.h"
#include "models/saving/saved_model_impl.h"
#include "models/saving/saved_part.h"
#include "models/saving/saved_snapshots_impl.h"
#include "models/saving/store_paths_impl.h"
#include "models/saving/vocabulary_file.h"
#include "ops/rows/row_layout.h"
#include "store/open.h"

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

// Manifest, names and sizes; no rows. has_part: which parts can be read at all.
absl::StatusOr<CheckpointReport> Look(Env& env, const std::string& path,
                                      std::vector<bool>* has_part) {
  CheckpointReport out;
  HOTROW_ASSIGN_OR_RETURN(out.model, ReadCheckpoint(env, path));
  const SavedModel& model = out.model;
  if (model.is_checkpoint) {
    HOTROW_ASSIGN_OR_RETURN(out.checkpoints, ListCheckpoints(env, ParentDir(model.dir)));
  }
  // expected_bytes: as the manifest says; -1: it does not.
  const auto look_at = [&](const std::string& file,
                           int64_t expected_bytes = -1) -> absl::StatusOr<bool> {
    HOTROW_ASSIGN_OR_RETURN(CheckpointReport::File found, SizeOf(env, file));
    const bool is_there = found.bytes >= 0;
    if (!is_there) {
      out.damage.push_back(absl::StrCat(file, ": there is no such file"));
    } else if (expected_bytes >= 0 && found.bytes != expected_bytes) {
      out.damage.push_back(
          absl::StrCat(file, ": has ", found.bytes, " bytes, the manifest says ", expected_bytes));
    }
    out.files.push_back(std::move(found));
    return is_there;
  };
  HOTROW_RETURN_IF_ERROR(look_at(ManifestPath(model.dir)).status());
  HOTROW_RETURN_IF_ERROR(
      look_at(absl::StrCat(model.dir, "/", model.dense_file), model.dense_bytes).status());
  if (model.vocabulary.has_value()) {
    HOTROW_RETURN_IF_ERROR(
        look_at(absl::StrCat(model.dir, "/", model.vocabulary->file), model.vocabulary->bytes)
            .status());
  }
  for (const SavedModel::Part& part : model.parts) {
    HOTROW_RETURN_IF_ERROR(ParseStoreKind(part.store).status());
    bool is_there = false;
    if (HasSnapshotFile(part)) {
      HOTROW_ASSIGN_OR_RETURN(
          is_there, look_at(absl::StrCat(part.tables_dir, "/", SnapshotFileName(part.snapshot))));
    } else {
      HOTROW_ASSIGN_OR_RETURN(is_there, env.Exists(part.tables_dir));
      if (!is_there) {
        out.damage.push_back(absl::StrCat(part.tables_dir,
                                          ": there is no such directory; it is the ", part.store,
                                          " store with the tables of ", model.dir));
      }
    }
    has_part->push_back(is_there);
  }
  for (const SavedModel::Residuals& residuals : model.residuals) {
    HOTROW_RETURN_IF_ERROR(
        look_at(absl::StrCat(model.dir, "/", residuals.file), residuals.bytes).status());
  }
  for (const SavedModel::Counters& counters : model.counters) {
    HOTROW_RETURN_IF_ERROR(
        look_at(absl::StrCat(model.dir, "/", counters.file), counters.bytes).status());
  }
  for (const SavedModel::Blob& blob : model.blobs) {
    HOTROW_RETURN_IF_ERROR(look_at(absl::StrCat(model.dir, "/", blob.file), blob.bytes).status());
  }
  const std::string lock = JobLockPath(model.is_checkpoint ? ParentDir(model.dir) : model.dir);
  if (env.ListDir(lock).ok()) {
    out.damage.push_back(absl::StrCat(lock, ": is a directory, must be a file; remove it"));
  }
  out.part_rows.assign(model.parts.size(), -1);
  out.table_rows.assign(model.tables.size(), 0);
  HOTROW_ASSIGN_OR_RETURN(const std::vector<PortableTable> tables, TablesOf(model));
  const std::vector<StoreTable> stored = StoreTablesOf(tables);
  for (size_t r = 0; r < model.parts.size(); ++r) {
    const std::vector<int64_t>& rows = model.parts[r].table_rows;
    if (rows.empty()) {
      out.table_rows.clear();
      break;
    }
    out.part_rows[r] = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    for (size_t t = 0; t < rows.size(); ++t) out.table_rows[stored[t].table] += rows[t];
  }
  if (!out.table_rows.empty()) {
    out.rows = std::accumulate(out.table_rows.begin(), out.table_rows.end(), int64_t{0});
    return out;
  }
  out.part_rows.assign(model.parts.size(), -1);
  out.rows = 0;
  for (const SavedModel::Table& table : model.tables) {
    out.rows = table.rows < 0 || out.rows < 0 ? -1 : out.rows + table.rows;
  }
  if (out.rows < 0) out.rows_unknown = "not counted when it was saved";
  return out;
}

// Damage is a line of the report; anything else ends the verifying.
absl::Status Note(const absl::Status& status, CheckpointReport* report) {
  if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) return status;
  report->damage.emplace_back(status.message());
  return absl::OkStatus();
}

// Reads all rows of a part, and adds them to what was found of the tables.
absl::Status CountPart(Env& env, int64_t store_bytes, int32_t rank, CheckpointReport* report,
                       std::vector<PortableDigest>* tables) {
  const SavedModel& model = report->model;
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<SnapshotReader> reader,
                          OpenSavedPart(env, model, rank, store_bytes));
  std::vector<int64_t> payload_bytes;
  for (const SavedModel::Table& table : model.tables) {
    HOTROW_ASSIGN_OR_RETURN(const SparseOptimizerKind kind, ParseSparseOptimizer(table.optimizer));
    payload_bytes.push_back(RowLayout::For(table.dim, kind, table.weights_precision).payload_bytes);
  }
  HOTROW_ASSIGN_OR_RETURN(const AgedRows aged, AgedRows::Of(model));
  const auto world_size = static_cast<int32_t>(model.parts.size());
  int64_t rows = 0;
  int64_t misplaced = 0;
  absl::Status first_misplaced;
  HOTROW_RETURN_IF_ERROR(reader->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
    if (OwnerRank(key, world_size) != rank && misplaced++ == 0) {
      first_misplaced = CheckRankOfRow(model, rank, key);
    }
    ++rows;
    if (aged.Has(key, row)) return absl::OkStatus();
    PortableDigest& table = (*tables)[key.table];
    ++table.rows;
    const auto payload = row.first(static_cast<size_t>(payload_bytes[key.table]));
    table.hash += HashBytes(key.key, key.table, payload);
    return absl::OkStatus();
  }));
  report->part_rows[static_cast<size_t>(rank)] = rows;
  if (misplaced > 0) {
    report->damage.push_back(absl::StrCat(
        std::string(first_misplaced.message()),
        misplaced == 1 ? "" : absl::StrCat(" (and ", misplaced - 1, " more rows of this part)")));
  }
  return absl::OkStatus();
}

// Compares what was counted with the manifest.
void CompareTables(std::vector<PortableDigest> tables, CheckpointReport* report) {
  const SavedModel& model = report->model;
  report->rows = 0;
  for (size_t i = 0; i < tables.size(); ++i) {
    report->rows += tables[i].rows;
    const SavedModel::Table& expected = model.tables[i];
    const bool rows_differ = expected.rows >= 0 && expected.rows != tables[i].rows;
    if (!rows_differ && (expected.hash.empty() || expected.hash == tables[i].hash.ToHex())) {
      continue;
    }
    report->damage.push_back(absl::StrCat(TablesPlace(model), ": table \"", expected.name,
                                          "\" has ", tables[i].rows, " rows of hash ",
                                          tables[i].hash.ToHex(), ", the manifest says ",
                                          expected.rows, " of ", expected.hash));
  }
  report->tables = std::move(tables);
}

// Whether the stores that were verified are good, by absolute path.
using StoreVerdicts = std::map<std::string, bool>;

// All of a part's files that reading its rows does not check. False when its rows cannot be read,
// or need not be, since each damaged one has its line.
absl::StatusOr<bool> VerifyPart(Env& env, const SavedModel::Part& part, StoreVerdicts* verdicts,
                                CheckpointReport* report) {
  HOTROW_ASSIGN_OR_RETURN(const StoreKind kind, ParseStoreKind(part.store));
  const std::string place = AbsolutePath(part.tables_dir);
  if (const auto known = verdicts->find(place); known != verdicts->end()) {
    if (!known->second) report->damage.push_back(absl::StrCat(place, ": is damaged, see above"));
    return known->second;
  }
  const absl::StatusOr<SnapshotVerdict> verdict = VerifySnapshot(
      kind,
      {.path = part.tables_dir, .snapshot = part.snapshot, .identity = part.identity, .env = &env});
  if (!verdict.ok()) {
    HOTROW_RETURN_IF_ERROR(Note(verdict.status(), report));
    return false;
  }
  report->damage.insert(report->damage.end(), verdict->damage.begin(), verdict->damage.end());
  const bool good = verdict->damage.empty();
  if (verdict->of_whole_store) (*verdicts)[place] = good;
  return good;
}

// Whether the snapshot of a part is there and the one that the manifest means, as far as that can
// be told at once.
absl::Status CheckPart(Env& env, const SavedModel::Part& part, CheckpointReport* report) {
  HOTROW_ASSIGN_OR_RETURN(const StoreKind kind, ParseStoreKind(part.store));
  const absl::Status status = CheckSnapshot(
      kind,
      {.path = part.tables_dir, .snapshot = part.snapshot, .identity = part.identity, .env = &env});
  if (absl::IsFailedPrecondition(status)) {
    report->damage.emplace_back(status.message());
    return absl::OkStatus();
  }
  return Note(status, report);
}

}  // namespace

absl::StatusOr<CheckpointReport> InspectCheckpoint(Env& env, const std::string& path,
                                                   int64_t store_bytes) {
  std::vector<bool> has_part;
  HOTROW_ASSIGN_OR_RETURN(CheckpointReport report, Look(env, path, &has_part));
  const SavedModel& model = report.model;
  for (size_t r = 0; r < model.parts.size(); ++r) {
    if (has_part[r]) HOTROW_RETURN_IF_ERROR(CheckPart(env, model.parts[r], &report));
  }
  // Where the manifest says how many rows there are, no store is opened to tell those of each part.
  if (report.rows >= 0) {
    if (model.parts.size() == 1) report.part_rows[0] = report.rows;
    return report;
  }
  int64_t rows = 0;
  for (size_t r = 0; r < model.parts.size(); ++r) {
    if (!has_part[r]) {
      rows = -1;
      continue;
    }
    // A store that is in use, or larger than we may index, is no reason to say nothing.
    const absl::StatusOr<std::unique_ptr<SnapshotReader>> reader =
        OpenSavedPart(env, model, static_cast<int32_t>(r), store_bytes);
    if (!reader.ok()) {
      rows = -1;
      report.rows_unknown = std::string(reader.status().message());
      if (absl::IsDataLoss(reader.status())) report.damage.push_back(report.rows_unknown);
      continue;
    }
    report.part_rows[r] = (*reader)->rows();
    rows = rows < 0 || report.part_rows[r] < 0 ? -1 : rows + report.part_rows[r];
  }
  report.rows = rows;
  return report;
}

namespace {

absl::StatusOr<CheckpointReport> Verify(Env& env, const std::string& path, int64_t store_bytes,
                                        StoreVerdicts* verdicts) {
  std::vector<bool> has_part;
  HOTROW_ASSIGN_OR_RETURN(CheckpointReport report, Look(env, path, &has_part));
  const SavedModel& model = report.model;
  HOTROW_RETURN_IF_ERROR(ReadSavedModel(env, model.dir, &report.damage).status());
  if (report.files[1].bytes == model.dense_bytes) {  // otherwise Look has said what is wrong
    HOTROW_RETURN_IF_ERROR(Note(ReadSavedDense(env, model).status(), &report));
  }
  if (model.vocabulary.has_value() && report.files[2].bytes == model.vocabulary->bytes) {
    HOTROW_RETURN_IF_ERROR(Note(ReadSavedVocabulary(env, model).status(), &report));
  }
  for (size_t r = 0; r < model.residuals.size(); ++r) {
    const std::string path = absl::StrCat(model.dir, "/", model.residuals[r].file);
    HOTROW_ASSIGN_OR_RETURN(const CheckpointReport::File found, SizeOf(env, path));
    if (found.bytes != model.residuals[r].bytes) continue;  // Look has said so
    const auto rank = static_cast<int32_t>(r);
    HOTROW_RETURN_IF_ERROR(Note(ReadSavedResiduals(env, model, rank).status(), &report));
  }
  for (size_t r = 0; r < model.counters.size(); ++r) {
    const std::string path = absl::StrCat(model.dir, "/", model.counters[r].file);
    HOTROW_ASSIGN_OR_RETURN(const CheckpointReport::File found, SizeOf(env, path));
    if (found.bytes != model.counters[r].bytes) continue;  // Look has said so
    const auto rank = static_cast<int32_t>(r);
    HOTROW_RETURN_IF_ERROR(Note(ReadSavedCounters(env, model, rank).status(), &report));
  }
  for (const SavedModel::Blob& blob : model.blobs) {
    HOTROW_ASSIGN_OR_RETURN(const CheckpointReport::File found,
                            SizeOf(env, absl::StrCat(model.dir, "/", blob.file)));
    if (found.bytes != blob.bytes) continue;  // Look has said so
    HOTROW_RETURN_IF_ERROR(Note(ReadSavedBlob(env, model, blob).status(), &report));
  }
  std::vector<PortableDigest> tables(model.tables.size());
  bool read_all = true;
  for (size_t r = 0; r < model.parts.size(); ++r) {
    const SavedModel::Part& part = model.parts[r];
    bool readable = has_part[r];
    if (readable) {
      HOTROW_ASSIGN_OR_RETURN(readable, VerifyPart(env, part, verdicts, &report));
    }
    if (readable) {
      const absl::Status counted =
          CountPart(env, store_bytes, static_cast<int32_t>(r), &report, &tables);
      HOTROW_RETURN_IF_ERROR(Note(counted, &report));
      readable = counted.ok();
    }
    read_all = read_all && readable;
  }
  if (read_all) CompareTables(std::move(tables), &report);
  return report;
}

}  // namespace

absl::StatusOr<CheckpointReport> VerifyCheckpoint(Env& env, const std::string& path,
                                                  int64_t store_bytes) {
  StoreVerdicts verdicts;
  const std::string manifest = ManifestPath(WithoutEndingSlashes(path));
  HOTROW_ASSIGN_OR_RETURN(const bool was_there, env.Exists(manifest));
  absl::StatusOr<CheckpointReport> report = Verify(env, path, store_bytes, &verdicts);
  if (!was_there || (report.ok() && report->damage.empty())) return report;
  HOTROW_ASSIGN_OR_RETURN(const bool is_there, env.Exists(manifest));
  if (is_there) return report;
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": was removed while it was verified; verify a newer one"));
}

namespace {

// Those that the run removes meanwhile are left out.
absl::StatusOr<std::vector<CheckpointReport>> VerifyOnce(Env& env, const std::string& dir,
                                                         int64_t store_bytes) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListCheckpoints(env, dir));
  StoreVerdicts verdicts;
  std::vector<CheckpointReport> out;
  absl::Status not_read;  // of the last one that could not be verified at all
  size_t num_read = 0;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(WithoutEndingSlashes(dir), "/", name);
    const absl::Status manifest = ReadSavedModel(env, path).status();
    absl::StatusOr<CheckpointReport> report =
        manifest.ok() ? Verify(env, path, store_bytes, &verdicts) : manifest;
    if (!report.ok() || !report->damage.empty()) {
      HOTROW_ASSIGN_OR_RETURN(const bool is_there, env.Exists(path));
      if (!is_there) continue;
    }
    if (report.ok()) {
      out.push_back(*std::move(report));
      ++num_read;
      continue;
    }
    if (manifest.ok()) not_read = report.status();
    CheckpointReport unread;
    unread.model.dir = path;
    unread.damage.emplace_back(report.status().message());
    out.push_back(std::move(unread));
  }
  // Where another can be read it is this one that lacks something, such as its snapshot; otherwise
  // the store may be open, or lie elsewhere.
  if (num_read == 0 && !not_read.ok()) return not_read;
  return out;
}

}  // namespace

absl::StatusOr<std::vector<CheckpointReport>> VerifyCheckpoints(Env& env, const std::string& dir,
                                                                int64_t store_bytes) {
  constexpr int kTries = 4;
  for (int i = 0; i < kTries; ++i) {
    HOTROW_ASSIGN_OR_RETURN(std::vector<CheckpointReport> out, VerifyOnce(env, dir, store_bytes));
    if (!out.empty()) return out;
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListCheckpoints(env, dir));
    if (names.empty()) return out;
  }
  return absl::UnavailableError(
      absl::StrCat(dir,
                   ": each checkpoint was removed before it was verified; keep more of them "
                   "(--keep_checkpoints), or take them less often"));
}

}  // namespace hotrow
