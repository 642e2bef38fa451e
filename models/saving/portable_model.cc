#include "models/saving/portable_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/crc32c.h"
#include "base/path_list.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "models/saving/blob_files.h"
#include "models/saving/checkpoint.h"
#include "models/saving/dense_file.h"
#include "models/saving/manifest_json_impl.h"
#include "models/saving/partial_dir_impl.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_model_impl.h"
#include "models/saving/portable_tables_impl.h"
#include "models/saving/portable_tables_reader.h"
#include "models/saving/portable_tables_writer.h"
#include "models/saving/saved_model_impl.h"
#include "models/saving/saved_part.h"
#include "models/saving/saved_snapshots_impl.h"
#include "models/saving/store_paths_impl.h"
#include "models/saving/training_state.h"
#include "models/saving/vocabulary_file.h"
#include "ops/rows/row_layout.h"
#include "ops/training/dense_optimizer.h"
#include "store/store_facts.h"

namespace hotrow {
namespace {

constexpr char kDenseName[] = "dense.safetensors";
constexpr char kVocabularyName[] = "vocabulary";
constexpr int64_t kDenseHeaderBytesMax = int64_t{2} << 20;
constexpr int64_t kDiskBytesMin = int64_t{1} << 30;
constexpr int64_t kDiskPerRowByte = 3;
// Bytes that a log writes beside a row, rounded up.
constexpr int64_t kRecordOverhead = 32;

Env& EnvOf(Env* env) { return env != nullptr ? *env : PosixEnv(); }

// Tells the rows that an export leaves out, and adds up what they are.
class LeftOut {
 public:
  static absl::StatusOr<LeftOut> Of(const SavedModel& saved,
                                    const std::vector<PortableTable>& tables,
                                    const ExportOptions& options) {
    LeftOut out;
    out.keys_.resize(tables.size());
    out.digests_.resize(tables.size());
    for (const PortableTable& table : tables) out.hashed_bytes_.push_back(HashedBytesOf(table));
    for (const auto& [name, keys] : options.without) {
      const auto at = std::find_if(tables.begin(), tables.end(), [&name = name](const auto& table) {
        return table.name == name;
      });
      if (at == tables.end()) {
        return absl::NotFoundError(absl::StrCat(
            saved.dir, ": it has no table \"", name, "\"; its tables are ",
            absl::StrJoin(tables, ", ", [](std::string* text, const PortableTable& table) {
              absl::StrAppend(text, table.name);
            })));
      }
      out.keys_[static_cast<size_t>(at - tables.begin())] = keys;
    }
    return out;
  }

  bool Has(const RowKey& key) const {
    return key.table < keys_.size() &&
           std::binary_search(keys_[key.table].begin(), keys_[key.table].end(), key.key);
  }
  void Add(const RowKey& key, std::span<const std::byte> row) {
    PortableDigest& digest = digests_[key.table];
    ++digest.rows;
    digest.hash +=
        HashBytes(key.key, key.table, row.first(static_cast<size_t>(hashed_bytes_[key.table])));
  }
  const PortableDigest& digest(size_t table) const { return digests_[table]; }

 private:
  std::vector<std::vector<uint64_t>> keys_;  // by table, ascending
  std::vector<int64_t> hashed_bytes_;
  std::vector<PortableDigest> digests_;
};

// Writes all rows into a new store in `dir`, as one committed snapshot, and describes it in *info.
absl::StatusOr<std::vector<PortableDigest>> FillStore(const ImportOptions& options,
                                                      const PortableTablesOptions& arrays,
                                                      const std::vector<PortableTable>& tables,
                                                      int64_t row_bytes, const std::string& dir,
                                                      SnapshotId snapshot, SnapshotInfo* info) {
  const int64_t disk_bytes = options.disk_bytes > 0
                                 ? options.disk_bytes
                                 : std::max(kDiskBytesMin, kDiskPerRowByte * row_bytes);
  StoreOptions store_options =
      MakeStoreOptions(options.store, {.path = dir,
                                       .tables = StoreTablesOf(tables),
                                       .memory_budget_bytes = options.store_bytes,
                                       .disk_budget_bytes = disk_bytes,
                                       .memory_option = "--store_bytes",
                                       .disk_option = "--disk_bytes",
                                       .env = options.env});
  if (auto* const ssd = std::get_if<SsdStoreOptions>(&store_options); ssd != nullptr) {
    ssd->background = options.env == nullptr;  // one order of calls where they are tested
  }
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<RowStore> store, OpenStore(store_options));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<PortableDigest> digests,
                          LoadPortableTables(arrays, tables, *store));
  HOTROW_RETURN_IF_ERROR(store->PrepareSnapshot(snapshot));
  HOTROW_ASSIGN_OR_RETURN(*info, store->DescribeSnapshot(snapshot));
  HOTROW_RETURN_IF_ERROR(store->CommitSnapshot(snapshot));
  HOTROW_RETURN_IF_ERROR(store->Close());
  return digests;
}

// One directory, whichever the kind: the store is made beside it and renamed.
absl::StatusOr<std::string> StorePathOf(const ImportOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> paths, SplitPathList(options.store_path));
  if (paths.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--store_path=", options.store_path,
        ": an import makes a store in one directory; the run that goes on from it adds others"));
  }
  return paths.empty() ? std::string() : WithoutEndingSlashes(paths.front());
}

}  // namespace

absl::StatusOr<DenseVectors> ReadPortableDense(Env& env, const std::string& dir,
                                               const PortableModel& portable) {
  const std::string path = absl::StrCat(dir, "/", portable.dense_file);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) {
    return absl::DataLossError(absl::StrCat(path, ": there is no such file (dense parameters)"));
  }
  // At most four arrays and a header.
  const int64_t bytes_max =
      4 * static_cast<int64_t>(sizeof(float)) * portable.model.num_parameters +
      kDenseHeaderBytesMax;
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(env, path, bytes_max));
  const uint32_t crc = Crc32c(std::as_bytes(std::span(text)));
  if (portable.dense_crc.has_value() && *portable.dense_crc != crc) {
    return absl::DataLossError(
        absl::StrCat(path, ": its checksum is ", CrcText(crc), ", the manifest says ",
                     CrcText(*portable.dense_crc),
                     "; restore it from a copy, or use --edited if it was changed on purpose"));
  }
  SavedModel model = portable.model;
  model.dir = dir;
  model.dense_file = portable.dense_file;
  model.dense_bytes = static_cast<int64_t>(text.size());
  model.dense_crc = crc;
  HOTROW_ASSIGN_OR_RETURN(DenseVectors dense, ReadSavedDense(env, model));
  HOTROW_ASSIGN_OR_RETURN(const DenseOptimizerKind kind,
                          ParseDenseOptimizer(model.dense_optimizer));
  const int32_t arrays = (dense.momentum1.empty() ? 0 : 1) + (dense.momentum2.empty() ? 0 : 1);
  // A model with codes has no state of optimizers.
  const bool has_state = CheckHasWeights(dir, portable).ok();
  if (model.num_parameters > 0 && arrays != (has_state ? DenseStateArrays(kind) : 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", arrays, " arrays of optimizer state, expected ",
                     has_state ? DenseStateArrays(kind) : 0, " for ", model.dense_optimizer,
                     " (momentum1, momentum2)"));
  }
  return dense;
}

void SummarisePortable(const std::vector<PortableTable>& tables,
                       const std::vector<PortableDigest>& digests, PortableSummary* summary) {
  summary->tables = digests;
  for (const PortableTable& table : tables) summary->codes.push_back(table.codes);
  for (size_t i = 0; i < tables.size(); ++i) {
    for (const PortableArray& array : tables[i].arrays) {
      summary->files += static_cast<int64_t>(array.files.size());
    }
    // Files have floats, with any precision of the rows.
    summary->bytes += digests[i].rows * PackedBytes(PortableColumnsOf(tables[i]));
    summary->model.tables[i].rows = digests[i].rows;
    summary->model.tables[i].hash = digests[i].hash.ToHex();
  }
}

absl::Status WritePortableRest(Env& env, const std::string& dir, const DenseVectors& dense,
                               PortableModel* portable) {
  portable->model.dir = dir;
  HOTROW_RETURN_IF_ERROR(WriteSavedDense(env, kDenseName, dense.arrays(), &portable->model));
  HOTROW_RETURN_IF_ERROR(WriteSavedVocabulary(env, kVocabularyName, &portable->model));
  HOTROW_RETURN_IF_ERROR(WriteSavedBlobs(env, &portable->model));
  portable->dense_file = kDenseName;
  portable->dense_crc = portable->model.dense_crc;
  return WriteFileAtomically(env, ManifestPath(dir), PortableManifest(*portable));
}

absl::StatusOr<PortableSummary> ExportPortable(const ExportOptions& options) {
  Env& env = EnvOf(options.env);
  const std::string dir = WithoutEndingSlashes(options.dir);
  if (options.shard_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard_bytes must be at least 1, is ", options.shard_bytes));
  }
  HOTROW_ASSIGN_OR_RETURN(const SavedModel saved, ReadCheckpoint(env, options.checkpoint));
  if (saved.training != nullptr && saved.training->rows_missed_steps()) {
    return absl::FailedPreconditionError(absl::StrCat(
        saved.dir,
        ": its tables decay as a whole (--table_weight_decay_mode=table), and the rows of a "
        "checkpoint have not made up for the steps that they missed; export the model of a "
        "--save_dir, which --resume with that flag writes"));
  }
  HOTROW_RETURN_IF_ERROR(CheckIsFree(env, dir));
  HOTROW_ASSIGN_OR_RETURN(const DenseVectors dense, ReadSavedDense(env, saved));
  // Opens the first part before anything is made.
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<SnapshotReader> reader,
                          OpenSavedPart(env, saved, 0, options.store_bytes, options.store_option));
  PortableModel portable;
  portable.model = saved;
  HOTROW_ASSIGN_OR_RETURN(portable.tables, TablesOf(saved));
  HOTROW_ASSIGN_OR_RETURN(LeftOut left_out, LeftOut::Of(saved, portable.tables, options));

  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<PartialDir> partial, PartialDir::Create(env, dir));
  HOTROW_ASSIGN_OR_RETURN(
      const std::unique_ptr<PortableTablesWriter> writer,
      PortableTablesWriter::Create(
          {.dir = partial->path(), .memory_bytes = options.memory_bytes, .env = &env},
          options.shard_bytes, portable.tables));
  const auto world_size = static_cast<int32_t>(saved.parts.size());
  HOTROW_ASSIGN_OR_RETURN(const AgedRows aged, AgedRows::Of(saved));
  for (int32_t rank = 0; rank < world_size; ++rank) {
    if (rank > 0) {
      reader.reset();  // its index before the next one's
      HOTROW_ASSIGN_OR_RETURN(
          reader, OpenSavedPart(env, saved, rank, options.store_bytes, options.store_option));
    }
    HOTROW_RETURN_IF_ERROR(
        reader->Iterate([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
          HOTROW_RETURN_IF_ERROR(CheckRankOfRow(saved, rank, key));
          if (aged.Has(key, row)) return absl::OkStatus();
          if (!left_out.Has(key)) return writer->Add(key, row);
          left_out.Add(key, row);
          return absl::OkStatus();
        }));
  }
  HOTROW_ASSIGN_OR_RETURN(portable.tables, writer->Finish());
  PortableSummary summary;
  std::vector<PortableDigest> digests;
  for (size_t i = 0; i < portable.tables.size(); ++i) {
    const PortableTable& table = portable.tables[i];
    const SavedModel::Table& expected = saved.tables[i];
    digests.push_back({*table.rows, *table.hash});
    PortableDigest read = digests.back();
    read.rows += left_out.digest(i).rows;
    read.hash += left_out.digest(i).hash;
    summary.rows_left_out += left_out.digest(i).rows;
    if ((expected.rows >= 0 && expected.rows != read.rows) ||
        (!expected.hash.empty() && expected.hash != read.hash.ToHex())) {
      return absl::DataLossError(
          absl::StrCat(TablesPlace(saved), ": table \"", table.name, "\" has ", read.rows,
                       " rows of hash ", read.hash.ToHex(), ", the manifest says ", expected.rows,
                       " of ", expected.hash, "; use a copy of the checkpoint"));
    }
  }
  if (saved.vocabulary.has_value()) {
    HOTROW_ASSIGN_OR_RETURN(std::string vocabulary, ReadSavedVocabularyBytes(env, saved));
    portable.model.vocabulary_bytes = std::make_shared<std::string>(std::move(vocabulary));
  }
  HOTROW_ASSIGN_OR_RETURN(portable.model.blob_bytes, ReadSavedBlobs(env, saved));
  HOTROW_RETURN_IF_ERROR(WritePortableRest(env, partial->path(), dense, &portable));
  HOTROW_RETURN_IF_ERROR(partial->Commit());

  summary.from = saved.dir;
  summary.to = dir;
  summary.model = saved;
  SummarisePortable(portable.tables, digests, &summary);
  return summary;
}

absl::StatusOr<PortableSummary> ImportPortable(const ImportOptions& options) {
  Env& env = EnvOf(options.env);
  const std::string dir = WithoutEndingSlashes(options.dir);
  const std::string checkpoint = WithoutEndingSlashes(options.checkpoint);
  HOTROW_ASSIGN_OR_RETURN(std::string store_path, StorePathOf(options));
  const bool in_memory = !FactsOf(options.store).on_disk;
  if (in_memory && !store_path.empty()) {
    return absl::InvalidArgumentError(
        "--store_path: tables in memory have no directory of their own; leave it out, or choose "
        "another store");
  }
  const PortableTablesOptions arrays = {
      .dir = dir, .memory_bytes = options.memory_bytes, .env = &env};
  HOTROW_ASSIGN_OR_RETURN(const PortableModel portable,
                          ReadPortableManifest(env, dir, options.edited));
  HOTROW_RETURN_IF_ERROR(CheckHasWeights(dir, portable));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> rows,
                          CheckPortableTables(arrays, portable.tables));
  HOTROW_ASSIGN_OR_RETURN(const DenseVectors dense, ReadPortableDense(env, dir, portable));
  HOTROW_RETURN_IF_ERROR(CheckIsFree(env, checkpoint));
  std::string inside = in_memory ? "tables" : "store";
  if (!store_path.empty()) {
    HOTROW_RETURN_IF_ERROR(CheckIsFree(env, store_path));
    store_path = AbsolutePath(store_path);
    const std::string above = AbsolutePath(checkpoint) + "/";
    if (absl::StartsWith(above, store_path + "/")) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint, ": must not lie in the directory of the store, ", store_path));
    }
    if (absl::StartsWith(store_path, above)) {
      inside = store_path.substr(above.size());
      store_path.clear();
    }
  }
  int64_t row_bytes = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const PortableTable& table = portable.tables[i];
    const int64_t record = table.layout().row_bytes + kRecordOverhead;
    int64_t bytes = 0;
    if (__builtin_mul_overflow(rows[i], record * kDiskPerRowByte, &bytes) ||
        __builtin_add_overflow(row_bytes, rows[i] * record, &row_bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(dir, ": ", rows[i], " rows of table \"",
                                                     table.name, "\" are more than any disk has"));
    }
  }

  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<PartialDir> partial,
                          PartialDir::Create(env, checkpoint));
  std::unique_ptr<PartialDir> store_dir;
  if (!store_path.empty()) {
    HOTROW_ASSIGN_OR_RETURN(store_dir, PartialDir::Create(env, store_path));
  }
  SavedModel model = portable.model;
  model.dir = dir;
  HOTROW_RETURN_IF_ERROR(ReadSavedVocabulary(env, model).status());
  if (model.vocabulary.has_value()) {
    HOTROW_ASSIGN_OR_RETURN(std::string vocabulary, ReadSavedVocabularyBytes(env, model));
    model.vocabulary_bytes = std::make_shared<std::string>(std::move(vocabulary));
  }
  HOTROW_ASSIGN_OR_RETURN(model.blob_bytes, ReadSavedBlobs(env, model));
  const std::string store_home =
      store_dir != nullptr ? store_dir->path() : absl::StrCat(partial->path(), "/", inside);
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(env, ParentDir(store_home)));
  // The checkpoint's directory must own the snapshot's name under its final path.
  SavedModel::Part part = {.store = std::string(StoreKindName(options.store))};
  part.snapshot = SnapshotNames(checkpoint, /*exclusive=*/in_memory).Next({});
  SnapshotInfo info;
  HOTROW_ASSIGN_OR_RETURN(
      const std::vector<PortableDigest> digests,
      FillStore(options, arrays, portable.tables, row_bytes, store_home, part.snapshot, &info));
  part.identity = info.identity;
  part.table_rows = std::move(info.table_rows);
  model.is_checkpoint = true;
  // A place inside the checkpoint is written as a relative path, which the rename keeps right.
  part.tables_dir = store_dir != nullptr ? store_path : store_home;
  model.parts = {std::move(part)};
  PortableSummary summary;
  summary.from = dir;
  summary.model = model;
  SummarisePortable(portable.tables, digests, &summary);
  HOTROW_RETURN_IF_ERROR(
      WriteCheckpoint(env, partial->path(), summary.model, dense.arrays()).status());
  summary.to = checkpoint;

  absl::Status committed = store_dir != nullptr ? store_dir->Commit() : absl::OkStatus();
  if (committed.ok()) committed = partial->Commit();
  // If only the last sync failed, the checkpoint may exist. Then it needs its store.
  if (!committed.ok() && store_dir != nullptr && !partial->committed()) store_dir->Revoke();
  HOTROW_RETURN_IF_ERROR(committed);
  return summary;
}

absl::StatusOr<PortableSummary> CopyWithout(ExportOptions from, ImportOptions to) {
  Env& env = EnvOf(to.env);
  const std::string checkpoint = WithoutEndingSlashes(to.checkpoint);
  HOTROW_RETURN_IF_ERROR(CheckIsFree(env, checkpoint));
  from.dir = to.dir = absl::StrCat(checkpoint, ".erasing");
  HOTROW_ASSIGN_OR_RETURN(const bool left, env.Exists(from.dir));
  if (left) {
    return absl::FailedPreconditionError(absl::StrCat(
        from.dir, ": an erasure that was ended has left it; remove it, and try again"));
  }
  HOTROW_ASSIGN_OR_RETURN(const PortableSummary exported, ExportPortable(from));
  absl::StatusOr<PortableSummary> summary = ImportPortable(to);
  const absl::Status removed = RemoveTree(env, to.dir);
  if (summary.ok() && !removed.ok()) return removed;
  if (!summary.ok()) return summary.status();
  summary->from = exported.from;
  summary->rows_left_out = exported.rows_left_out;
  return summary;
}

absl::StatusOr<PortableSummary> VerifyPortable(Env& env, const std::string& dir,
                                               int64_t memory_bytes) {
  HOTROW_ASSIGN_OR_RETURN(const PortableModel portable,
                          ReadPortableManifest(env, dir, /*edited=*/false));
  HOTROW_RETURN_IF_ERROR(ReadPortableDense(env, dir, portable).status());
  SavedModel model = portable.model;
  model.dir = dir;
  HOTROW_RETURN_IF_ERROR(ReadSavedVocabulary(env, model).status());
  HOTROW_RETURN_IF_ERROR(ReadSavedBlobs(env, model).status());
  HOTROW_ASSIGN_OR_RETURN(
      const std::vector<PortableDigest> digests,
      ReadPortableTables({.dir = dir, .memory_bytes = memory_bytes, .env = &env}, portable.tables,
                         [](const PortableRows&) { return absl::OkStatus(); }));
  PortableSummary summary;
  summary.from = dir;
  summary.model = portable.model;
  SummarisePortable(portable.tables, digests, &summary);
  return summary;
}

}  // namespace hotrow
