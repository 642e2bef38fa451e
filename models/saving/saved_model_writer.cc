#include "models/saving/saved_model_writer.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/atomic_file.h"
#include "base/check.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "models/saving/checkpoint.h"
#include "models/saving/manifest.h"
#include "models/saving/rank_group_impl.h"
#include "models/saving/saved_model_impl.h"
#include "models/saving/saved_snapshots_impl.h"
#include "models/saving/store_paths.h"
#include "models/saving/store_paths_impl.h"
#include "models/saving/vocabulary_file.h"

namespace hotrow {
namespace {

constexpr char kDensePrefix[] = "dense-";
constexpr char kDenseSuffix[] = ".safetensors";
constexpr char kVocabularyPrefix[] = "vocabulary-";
constexpr std::string_view kTemporaryEnd = ".tmp";  // of WriteFileAtomically
constexpr int64_t kCopyBytes = 1 << 20;

std::string DenseFileName(SnapshotId id) {
  return absl::StrFormat("%s%016x%s", kDensePrefix, id, kDenseSuffix);
}
std::string VocabularyFileName(SnapshotId id) {
  return absl::StrFormat("%s%016x", kVocabularyPrefix, id);
}

// Whether it is the dense file or the vocabulary of some snapshot, and no file of somebody else's.
bool IsOfSomeSave(const std::string& name) {
  SnapshotId id = 0;
  const size_t digits = name.find('-') + 1;  // 0: no name of either
  return digits > 0 && absl::SimpleHexAtoi(name.substr(digits, name.find('.') - digits), &id) &&
         (name == DenseFileName(id) || name == VocabularyFileName(id));
}

// The same of what lies with the copied tables: a snapshot, or one that is being written.
bool IsOfSomeSnapshot(std::string name) {
  if (name.ends_with(kTemporaryEnd)) name.resize(name.size() - kTemporaryEnd.size());
  return SnapshotOfFileName(name).has_value();
}

absl::Status CopyFileDurably(Env& env, const std::string& from, const std::string& to) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> source, env.Open(from, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, source->Size());
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(size, kCopyBytes)));
  return WriteFileAtomicallyWith(env, to, [&](File& copy) -> absl::Status {
    for (int64_t at = 0; at < size;) {
      const auto bytes =
          std::span(buffer).first(static_cast<size_t>(std::min(size - at, kCopyBytes)));
      HOTROW_RETURN_IF_ERROR(ReadFull(*source, at, bytes));
      HOTROW_RETURN_IF_ERROR(WriteFull(copy, at, bytes));
      at += static_cast<int64_t>(bytes.size());
    }
    return absl::OkStatus();
  });
}

}  // namespace

struct SavedModelWriter::Impl {
  Impl(Env* e, std::string d, RankGroup g) : env(*e), dir(std::move(d)), group(std::move(g)) {}

  std::string tables_dir() const { return SavedTablesDir(dir, group.rank(), group.world_size()); }
  absl::Status Clean(EmbeddingCollection& tables, const SavedModel& keep);
  absl::Status PrepareTables(EmbeddingCollection& tables, const SavedModel& before,
                             SavedModel::Part* mine);
  absl::StatusOr<std::vector<SavedModel::Part>> GatherParts(const SavedModel::Part& mine) const;
  absl::Status Commit(SavedModel* model, const DenseArrays<const float>& dense);

  Env& env;
  const std::string dir;
  const RankGroup group;
  std::unique_ptr<FileLock> lock;  // of rank 0, for all ranks
  std::optional<SnapshotNames> names;
  // What the current Save has: where the collection keeps its snapshots, and whether they are
  // copied.
  SavedModel::Part own;
  bool copied = false;
  std::set<std::string> in_use;  // directories of all ranks' snapshots of memory stores, absolute
};

SavedModelWriter::SavedModelWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SavedModelWriter::~SavedModelWriter() = default;

std::string SavedModelWriter::tables_dir() const { return impl_->tables_dir(); }

absl::StatusOr<std::unique_ptr<SavedModelWriter>> SavedModelWriter::Open(
    Env* env, const std::string& dir, Communicator* communicator) {
  const std::string path = WithoutEndingSlashes(dir);
  auto impl = std::make_unique<Impl>(env, path, RankGroup(communicator));
  const absl::StatusOr<std::vector<std::string>> checkpoints = ListCheckpoints(*env, path);
  const auto refused = [&](std::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--save_dir=", dir, ": ", std::string(what), "; give a directory of its own to save into"));
  };
  // Both keep their tables under the same names.
  if (checkpoints.ok() && !checkpoints->empty()) return refused("it holds checkpoints");
  if (const absl::Status status = CreateDirsDurably(*env, impl->tables_dir()); !status.ok()) {
    return refused(std::string(status.message()));
  }
  if (impl->group.leads()) {
    HOTROW_ASSIGN_OR_RETURN(impl->lock, LockJobDir(*env, "save_dir", path));
  }
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env->Exists(ManifestPath(path)));
  if (exists) {
    if (const absl::Status status = ReadSavedModel(*env, path).status(); !status.ok()) {
      return refused(std::string(status.message()));
    }
  }
  // Tries what Save will open first. Ranks other than 0 try their own file.
  const std::string probe = absl::StrCat(
      impl->group.leads() ? ManifestPath(path) : impl->tables_dir() + "/probe", ".tmp");
  absl::StatusOr<std::unique_ptr<File>> file = env->Open(probe, OpenMode::kTruncate);
  if (!file.ok()) return refused(std::string(file.status().message()));
  HOTROW_RETURN_IF_ERROR((*file)->Close());
  HOTROW_RETURN_IF_ERROR(env->Remove(probe));
  return std::unique_ptr<SavedModelWriter>(new SavedModelWriter(std::move(impl)));
}

// Removes what the manifest does not name: parts of saves that a crash or an error cut off, and
// models of other numbers of ranks.
absl::Status SavedModelWriter::Impl::Clean(EmbeddingCollection& tables, const SavedModel& keep) {
  const auto keeps = [&](const std::string& store, const std::string& place, SnapshotId id) {
    return std::any_of(keep.parts.begin(), keep.parts.end(), [&](const SavedModel::Part& part) {
      return part.snapshot == id && part.store == store &&
             AbsolutePath(part.tables_dir) == AbsolutePath(place);
    });
  };
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> snapshots, tables.snapshots().List());
  std::vector<SnapshotInfo> unnamed;
  std::vector<SnapshotId> named_here;
  for (const SnapshotId id : snapshots) {
    // The store may have been moved since.
    HOTROW_ASSIGN_OR_RETURN(const SnapshotInfo info, tables.snapshots().Describe(id));
    const bool kept =
        keeps(own.store, own.tables_dir, id) ||
        (info.identity.known() &&
         std::any_of(keep.parts.begin(), keep.parts.end(), [&](const SavedModel::Part& part) {
           return part.snapshot == id && part.store == own.store && part.identity == info.identity;
         }));
    if (kept) {
      named_here.push_back(id);
    } else {
      unnamed.push_back(info);
    }
  }
  if (!named_here.empty()) names->GoOnWith(named_here.back());
  for (const SnapshotInfo& info : unnamed) {
    if (!names->owns(info.id) && !IsLeftBehind(info, named_here)) continue;
    HOTROW_RETURN_IF_ERROR(tables.snapshots().Drop(info.id));
  }
  if (copied) {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> files, env.ListDir(tables_dir()));
    for (const std::string& name : files) {
      const std::optional<SnapshotId> id = SnapshotOfFileName(name);
      const bool kept = id.has_value() && keeps(own.store, tables_dir(), *id);
      if (kept || !IsOfSomeSnapshot(name)) continue;
      HOTROW_RETURN_IF_ERROR(env.Remove(absl::StrCat(tables_dir(), "/", name)));
    }
  }
  if (!group.leads()) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(RemoveUnnamedSnapshots(env, dir, keep.parts, in_use));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> entries, env.ListDir(dir));
  for (const std::string& name : entries) {
    const bool kept =
        name == keep.dense_file || (keep.vocabulary.has_value() && name == keep.vocabulary->file);
    if (kept || !IsOfSomeSave(name)) continue;
    HOTROW_RETURN_IF_ERROR(env.Remove(absl::StrCat(dir, "/", name)));
  }
  return absl::OkStatus();
}

// Makes this rank's tables durable under a new name.
absl::Status SavedModelWriter::Impl::PrepareTables(EmbeddingCollection& tables,
                                                   const SavedModel& before,
                                                   SavedModel::Part* mine) {
  HOTROW_ASSIGN_OR_RETURN(std::vector<SnapshotId> existing, tables.snapshots().List());
  if (HasSnapshotFile(own)) {
    HOTROW_ASSIGN_OR_RETURN(const auto files, ListSnapshotFiles(env, tables_dir()));
    existing.insert(existing.end(), files.begin(), files.end());
  }
  // Those of other stores, too: the dense file has the name of a snapshot.
  for (const SavedModel::Part& part : before.parts) existing.push_back(part.snapshot);
  mine->snapshot = names->Next(existing);
  HOTROW_RETURN_IF_ERROR(tables.snapshots().Prepare(mine->snapshot));
  HOTROW_ASSIGN_OR_RETURN(SnapshotInfo info, tables.snapshots().Describe(mine->snapshot));
  mine->identity = info.identity;
  mine->table_rows = std::move(info.table_rows);
  if (!copied) return absl::OkStatus();
  const std::string name = SnapshotFileName(mine->snapshot);
  HOTROW_RETURN_IF_ERROR(CopyFileDurably(env, absl::StrCat(own.tables_dir, "/", name),
                                         absl::StrCat(tables_dir(), "/", name)));
  HOTROW_RETURN_IF_ERROR(tables.snapshots().Drop(mine->snapshot));
  mine->tables_dir = tables_dir();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SavedModel::Part>> SavedModelWriter::Impl::GatherParts(
    const SavedModel::Part& mine) const {
  HOTROW_ASSIGN_OR_RETURN(const auto snapshots, group.Gather(static_cast<int64_t>(mine.snapshot)));
  HOTROW_ASSIGN_OR_RETURN(const auto stores, group.GatherTexts(mine.store));
  HOTROW_ASSIGN_OR_RETURN(const auto dirs, group.GatherTexts(AbsolutePath(mine.tables_dir)));
  HOTROW_ASSIGN_OR_RETURN(const auto infos,
                          group.GatherTexts(SnapshotInfoText({.id = mine.snapshot,
                                                              .committed = false,
                                                              .identity = mine.identity,
                                                              .table_rows = mine.table_rows})));
  std::vector<SavedModel::Part> parts(dirs.size());
  for (size_t r = 0; r < dirs.size(); ++r) {
    parts[r].store = stores[r];
    parts[r].tables_dir = dirs[r];
    parts[r].snapshot = static_cast<SnapshotId>(snapshots[r]);
    HOTROW_RETURN_IF_ERROR(TakeSnapshotInfo(infos[r], &parts[r]));
  }
  return parts;
}

absl::Status SavedModelWriter::Impl::Commit(SavedModel* model,
                                            const DenseArrays<const float>& dense) {
  HOTROW_RETURN_IF_ERROR(
      WriteSavedDense(env, DenseFileName(model->parts[0].snapshot), dense, model));
  HOTROW_RETURN_IF_ERROR(
      WriteSavedVocabulary(env, VocabularyFileName(model->parts[0].snapshot), model));
  HOTROW_RETURN_IF_ERROR(env.SyncDir(dir));
  const std::string manifest = SavedModelManifest(*model);
  HOTROW_RETURN_IF_ERROR(CheckManifestBytes(std::ssize(manifest)));
  return WriteFileAtomically(env, ManifestPath(dir), manifest);
}

absl::Status SavedModelWriter::Save(SavedModel model, EmbeddingCollection& tables,
                                    const DenseArrays<const float>& dense) {
  Impl& impl = *impl_;
  Env& env = impl.env;
  HOTROW_CHECK(model.parts.size() == 1);
  impl.own = model.parts[0];
  HOTROW_RETURN_IF_ERROR(impl.group.Agree(
      CheckUtf8Path("the directory of the tables", AbsolutePath(impl.own.tables_dir))));
  const bool in_memory = HasSnapshotFile(impl.own);
  const bool own_tables = AbsolutePath(impl.own.tables_dir) == AbsolutePath(tables_dir());
  impl.copied = in_memory && !own_tables;
  impl.in_use.clear();
  for (int32_t r = 0; in_memory && r < impl.group.world_size(); ++r) {
    impl.in_use.insert(AbsolutePath(SavedTablesDir(impl.dir, r, impl.group.world_size())));
  }
  if (!impl.names.has_value()) impl.names.emplace(impl.dir, /*exclusive=*/own_tables);
  // After a failed sync the manifest may not be durable. It must be before the older model's files
  // are removed.
  HOTROW_RETURN_IF_ERROR(impl.group.TogetherOnLeader([&] { return env.SyncDir(impl.dir); }));
  SavedModel before;
  HOTROW_RETURN_IF_ERROR(impl.group.Together([&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(ManifestPath(impl.dir)));
    if (exists) {
      HOTROW_ASSIGN_OR_RETURN(before, ReadSavedModel(env, impl.dir));
    }
    return impl.Clean(tables, before);
  }));

  const bool counted = std::all_of(
      model.tables.begin(), model.tables.end(),
      [](const SavedModel::Table& table) { return table.rows >= 0 && !table.hash.empty(); });
  if (!counted) {
    const absl::StatusOr<CollectionDigest> digest = tables.Digest();
    HOTROW_RETURN_IF_ERROR(impl.group.Agree(digest.status()));
    model.tables.resize(digest->tables.size());
    for (size_t i = 0; i < digest->tables.size(); ++i) {
      model.tables[i].rows = digest->tables[i].rows;
      model.tables[i].hash = digest->tables[i].hash.ToHex();
    }
  }
  const std::vector<RowLines> age_lines = tables.age_lines();
  HOTROW_CHECK(model.tables.size() <= age_lines.size());
  for (size_t i = 0; i < model.tables.size(); ++i) model.tables[i].lines = age_lines[i];
  model.dir = impl.dir;
  model.step = tables.steps();
  HOTROW_RETURN_IF_ERROR(
      impl.group.Together([&] { return impl.PrepareTables(tables, before, &model.parts[0]); }));
  const SnapshotId snapshot = model.parts[0].snapshot;
  HOTROW_ASSIGN_OR_RETURN(model.parts, impl.GatherParts(model.parts[0]));
  HOTROW_RETURN_IF_ERROR(impl.group.TogetherOnLeader([&] { return impl.Commit(&model, dense); }));

  // The model is saved. The next Save removes what cannot be removed now.
  impl.group
      .Together([&] {
        if (!impl.copied) tables.snapshots().Commit(snapshot).IgnoreError();
        impl.Clean(tables, model).IgnoreError();
        return absl::OkStatus();
      })
      .IgnoreError();
  return absl::OkStatus();
}

}  // namespace hotrow
