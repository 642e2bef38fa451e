#include "models/saving/checkpoint.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/buffer.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "base/utf8.h"
#include "models/saving/dense_file.h"
#include "models/saving/manifest.h"
#include "models/saving/saved_model.h"
#include "models/saving/saved_model_impl.h"
#include "models/saving/saved_snapshots_impl.h"
#include "models/saving/store_paths.h"
#include "models/saving/store_paths_impl.h"
#include "models/train/rank_group_impl.h"

namespace hotrow {
namespace {

constexpr char kStepPrefix[] = "step-";
constexpr size_t kStepDigits = 12;
constexpr char kDenseName[] = "dense.safetensors";
constexpr char kResidualsPrefix[] = "residuals-";
// Directories under other names are no checkpoints: not yet, and no longer.
constexpr char kUnfinished[] = ".tmp";
constexpr char kRetired[] = ".old";
constexpr char kProbe[] = "/probe.tmp";

std::optional<int64_t> StepOfName(const std::string& name) {
  if (!absl::StartsWith(name, kStepPrefix)) return std::nullopt;
  const std::string digits = name.substr(sizeof(kStepPrefix) - 1);
  if (digits.size() != kStepDigits || !std::all_of(digits.begin(), digits.end(), [](char c) {
        return absl::ascii_isdigit(static_cast<unsigned char>(c));
      })) {
    return std::nullopt;
  }
  int64_t step = 0;
  return absl::SimpleAtoi(digits, &step) ? std::optional(step) : std::nullopt;
}

bool IsLeftover(const std::string& name) {
  for (const std::string suffix : {kUnfinished, kRetired}) {
    if (absl::EndsWith(name, suffix) &&
        StepOfName(name.substr(0, name.size() - suffix.size())).has_value()) {
      return true;
    }
  }
  return false;
}

// A checkpoint's directory has files only. OK when it is not there.
absl::Status RemoveFlatDir(Env& env, const std::string& dir) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(dir));
  if (!exists) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(dir));
  for (const std::string& name : names) {
    HOTROW_RETURN_IF_ERROR(env.Remove(absl::StrCat(dir, "/", name)));
  }
  return env.RemoveDir(dir);
}

absl::Status WriteText(Env& env, const std::string& path, std::string_view text) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kTruncate));
  HOTROW_RETURN_IF_ERROR(WriteFull(*file, 0, std::as_bytes(std::span(text))));
  HOTROW_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

// Phase one: a directory without a name, with the dense file.
absl::Status WriteUnfinished(Env& env, const std::string& temp_dir,
                             const DenseArrays<const float>& dense, SavedModel* model) {
  HOTROW_RETURN_IF_ERROR(RemoveFlatDir(env, temp_dir));
  HOTROW_RETURN_IF_ERROR(env.CreateDirs(temp_dir));
  model->dir = temp_dir;
  return WriteSavedDense(env, kDenseName, dense, model);
}

// Phase two: the manifest and the name, the moment of commitment.
absl::Status CommitUnfinished(Env& env, const std::string& temp_dir, const std::string& final_dir,
                              const std::string& manifest) {
  HOTROW_RETURN_IF_ERROR(CheckManifestBytes(std::ssize(manifest)));
  HOTROW_RETURN_IF_ERROR(WriteText(env, ManifestPath(temp_dir), manifest));
  HOTROW_RETURN_IF_ERROR(env.SyncDir(temp_dir));
  HOTROW_RETURN_IF_ERROR(env.Rename(temp_dir, final_dir));
  return env.SyncDir(ParentDir(final_dir));
}

// Takes a checkpoint's name away; the caller syncs the directory.
absl::Status Retire(Env& env, const std::string& dir) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(dir));
  if (!exists) return absl::OkStatus();  // a try before this one got as far
  HOTROW_RETURN_IF_ERROR(RemoveFlatDir(env, dir + kRetired));
  return env.Rename(dir, dir + kRetired);
}

// What rank 0 says of a commit beside its status.
constexpr int64_t kCommitted = 1;
constexpr int64_t kRetiredOld = 2;  // those beyond `keep` have lost their names

}  // namespace

std::string CheckpointName(int64_t step) {
  return absl::StrFormat("%s%0*d", kStepPrefix, kStepDigits, step);
}

absl::StatusOr<std::vector<std::string>> ListCheckpoints(Env& env, const std::string& dir) {
  std::vector<std::string> out;
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(dir));
  if (!exists) return out;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(dir));
  for (const std::string& name : names) {
    if (StepOfName(name).has_value()) out.push_back(name);
  }
  std::sort(out.begin(), out.end());  // by step: all names have the same length
  return out;
}

absl::StatusOr<SavedModel> ReadCheckpoint(Env& env, const std::string& given_path) {
  const std::string path = WithoutEndingSlashes(given_path);
  HOTROW_ASSIGN_OR_RETURN(const bool has_manifest, env.Exists(ManifestPath(path)));
  if (has_manifest) return ReadSavedModel(env, path);
  const absl::StatusOr<std::vector<std::string>> names = ListCheckpoints(env, path);
  if (!names.ok() || names->empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint: there is no ", ManifestPath(path), " and no ", path, "/", kStepPrefix,
        "...: give a directory that --checkpoint_dir or --save_dir has "
        "written"));
  }
  const std::string newest_path = absl::StrCat(path, "/", names->back());
  absl::StatusOr<SavedModel> newest = ReadSavedModel(env, newest_path);
  if (newest.ok() || names->size() < 2) return newest;
  std::string before = "; no other checkpoint there has a good manifest";
  for (auto name = names->rbegin() + 1; name != names->rend(); ++name) {
    const std::string older = absl::StrCat(path, "/", *name);
    if (!ReadSavedModel(env, older).ok()) continue;
    before = absl::StrCat("; without ", newest_path, " it would be ", older);
    break;
  }
  return absl::Status(newest.status().code(), absl::StrCat(newest.status().message(), before));
}

absl::StatusOr<std::string> WriteCheckpoint(Env& env, const std::string& checkpoint_dir,
                                            SavedModel model,
                                            const DenseArrays<const float>& dense) {
  const std::string final_dir =
      absl::StrCat(WithoutEndingSlashes(checkpoint_dir), "/", CheckpointName(model.step));
  const std::string temp_dir = final_dir + kUnfinished;
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(env, ParentDir(final_dir)));
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(final_dir));
  if (exists) {
    return absl::AlreadyExistsError(absl::StrCat("checkpoint: ", final_dir,
                                                 " is there already; remove it, or choose another "
                                                 "directory"));
  }
  model.is_checkpoint = true;
  HOTROW_RETURN_IF_ERROR(WriteUnfinished(env, temp_dir, dense, &model));
  HOTROW_RETURN_IF_ERROR(CommitUnfinished(env, temp_dir, final_dir, SavedModelManifest(model)));
  return final_dir;
}

struct CheckpointWriter::Impl {
  struct Committed {
    int64_t step = 0;
    std::string dir;
    std::vector<SavedModel::Part> parts;  // with absolute paths
  };
  // All ranks go from one to the next in the same call of Poll or Wait.
  enum class Phase {
    kIdle,
    kWriting,     // snapshots of all ranks; rank 0: the dense file
    kAdding,      // where they keep residuals: all ranks, each a file beside the dense one
    kUndoing,     // some rank could not
    kCommitting,  // rank 0: the manifest and the name; then it takes those of old ones away
    kReleasing,   // snapshots of all ranks are committed, and old ones dropped
  };

  explicit Impl(const CheckpointWriterOptions& o)
      : options(o), env(*o.env), group(o.communicator) {}

  bool leads() const { return group.leads(); }
  std::string tables_dir() const {
    return SavedTablesDir(options.dir, group.rank(), group.world_size());
  }
  absl::Status Refused(std::string_view what) const;

  absl::Status Attach();
  absl::Status GatherPlaces();
  absl::Status CheckShared();
  absl::Status RemoveUnfinished();
  absl::Status ReadCommitted();
  absl::Status AgreeOnDamaged();
  bool MayBeOfDamaged(SnapshotId id) const;
  absl::Status DropIfThere(SnapshotId id);
  absl::Status DropUnnamed();
  absl::Status Release(const Committed& checkpoint);
  absl::Status RetireAll(const std::vector<Committed>& old);
  absl::Status RemoveOldest(int64_t count);

  void BeginPhase(Phase next, std::function<absl::Status()> work);
  bool DoneWriting();
  absl::Status EndPhase(const absl::Status& verdict);
  absl::Status AddResiduals();
  absl::Status StartCommit();
  absl::Status Commit();
  absl::Status StartRelease(const absl::Status& verdict);
  absl::Status ReleaseRetired();
  void Count();

  CheckpointWriterOptions options;
  Env& env;
  const RankGroup group;
  EmbeddingCollection* tables = nullptr;
  // Of all ranks, by rank: where the collections keep their snapshots; absolute.
  std::vector<SavedModel::Part> places;
  SavedModel::Part own;  // places[rank]
  std::optional<SnapshotNames> names;
  std::unique_ptr<FileLock> lock;    // of rank 0, for all ranks
  std::vector<Committed> committed;  // by step
  std::vector<std::string> damaged;  // names of checkpoints that are not among them
  std::vector<std::string> notes;
  CheckpointStats stats;

  // What is in flight. The job owns model, dense, residuals and `outcome` while it runs.
  Phase phase = Phase::kIdle;
  SavedModel model;
  DenseVectors dense;
  HostBuffer<std::byte> residuals;  // of this rank
  SavedModel::Residuals residuals_file;
  bool early = false;
  SnapshotId snapshot = 0;         // of this rank
  bool snapshot_ended = false;     // it is prepared, or has failed
  bool snapshot_prepared = false;  // it is there
  SnapshotInfo snapshot_info;      // then
  absl::Status written;            // how this rank's part ended
  absl::Status ended;              // what the call that ends it will say
  int64_t begin_ns = 0;
  int64_t snapshot_row_bytes = 0;  // when it began
  int64_t pause_ns = 0;
  Committed current;
  std::vector<Committed> retiring;
  struct Outcome {
    bool committed = false;
    bool retired = false;
    int64_t commit_ns = 0;
    int64_t bytes = 0;
  } outcome;
  Job job;
};

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Open(
    const CheckpointWriterOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  impl->options.dir = WithoutEndingSlashes(options.dir);
  const std::string& dir = impl->options.dir;
  Env& env = *options.env;
  const std::string tables_dir = impl->tables_dir();
  if (const absl::Status status = CreateDirsDurably(env, tables_dir); !status.ok()) {
    return impl->Refused(std::string(status.message()));
  }
  if (impl->leads()) {
    HOTROW_ASSIGN_OR_RETURN(impl->lock, LockJobDir(env, "checkpoint_dir", dir));
  }
  // The files of --save_dir have names like ours.
  HOTROW_ASSIGN_OR_RETURN(const bool is_model, env.Exists(ManifestPath(dir)));
  if (is_model) return impl->Refused("it holds a saved model");
  // Ranks that do not lead write into their own directory only.
  const std::string probe = (impl->leads() ? dir : tables_dir) + kProbe;
  absl::StatusOr<std::unique_ptr<File>> file = env.Open(probe, OpenMode::kTruncate);
  if (!file.ok()) return impl->Refused(std::string(file.status().message()));
  HOTROW_RETURN_IF_ERROR((*file)->Close());
  HOTROW_RETURN_IF_ERROR(env.Remove(probe));
  return std::unique_ptr<CheckpointWriter>(new CheckpointWriter(std::move(impl)));
}

CheckpointWriter::CheckpointWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointWriter::~CheckpointWriter() = default;

std::string CheckpointWriter::tables_dir() const { return impl_->tables_dir(); }

absl::Status CheckpointWriter::Impl::Refused(std::string_view what) const {
  return absl::FailedPreconditionError(absl::StrCat(
      "--checkpoint_dir=", options.dir, ": ", std::string(what), "; give a directory of its own"));
}

absl::Status CheckpointWriter::Attach(EmbeddingCollection* tables, StoreKind store,
                                      const std::string& tables_dir_given) {
  impl_->tables = tables;
  impl_->own = {.store = std::string(StoreKindName(store)),
                .tables_dir = AbsolutePath(tables_dir_given)};
  HOTROW_RETURN_IF_ERROR(
      impl_->group.Agree(CheckUtf8Path("the directory of the tables", impl_->own.tables_dir)));
  impl_->names.emplace(impl_->options.dir,
                       /*exclusive=*/impl_->own.tables_dir == AbsolutePath(tables_dir()));
  return impl_->Attach();
}

absl::Status CheckpointWriter::Impl::Attach() {
  HOTROW_RETURN_IF_ERROR(GatherPlaces());
  HOTROW_RETURN_IF_ERROR(group.TogetherOnLeader([&] { return RemoveUnfinished(); }));
  HOTROW_RETURN_IF_ERROR(CheckShared());
  HOTROW_RETURN_IF_ERROR(group.Together([&] { return ReadCommitted(); }));
  HOTROW_RETURN_IF_ERROR(AgreeOnDamaged());
  HOTROW_RETURN_IF_ERROR(group.Together([&] { return DropUnnamed(); }));
  // More than there should be: the last process ended between a commit and this.
  return RemoveOldest(static_cast<int64_t>(committed.size()) - options.keep);
}

absl::Status CheckpointWriter::Impl::GatherPlaces() {
  HOTROW_ASSIGN_OR_RETURN(const auto stores, group.GatherTexts(own.store));
  HOTROW_ASSIGN_OR_RETURN(const auto dirs, group.GatherTexts(own.tables_dir));
  places.clear();
  for (size_t r = 0; r < dirs.size(); ++r) {
    for (size_t other = 0; other < r; ++other) {
      if (dirs[other] != dirs[r]) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("ranks ", other, " and ", r, " keep their tables in one directory, ",
                       dirs[r], "; give each rank one of its own"));
    }
    places.push_back({.store = stores[r], .tables_dir = dirs[r]});
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Impl::RemoveUnfinished() {
  const std::string& dir = options.dir;
  // First: what the last process named or unnamed and could not sync must last before anything is
  // done that relies on it.
  HOTROW_RETURN_IF_ERROR(env.SyncDir(dir));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> entries, env.ListDir(dir));
  for (const std::string& name : entries) {
    if (IsLeftover(name)) {
      HOTROW_RETURN_IF_ERROR(RemoveFlatDir(env, absl::StrCat(dir, "/", name)));
    }
  }
  return absl::OkStatus();
}

// Ranks with directories of their own under one name would write checkpoints that nobody can read.
absl::Status CheckpointWriter::Impl::CheckShared() {
  if (group.world_size() == 1) return absl::OkStatus();
  const std::string path = options.dir + kProbe;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> tokens, group.Gather(NowNanos()));
  const std::string token = absl::StrCat("seen by all ranks: ", tokens[0]);
  HOTROW_RETURN_IF_ERROR(group.TogetherOnLeader([&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kTruncate));
    HOTROW_RETURN_IF_ERROR(WriteFull(*file, 0, std::as_bytes(std::span(token))));
    return file->Close();
  }));
  const absl::Status seen = group.Together([&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
    absl::StatusOr<std::string> text = std::string();
    if (exists) text = ReadWholeFile(env, path, kSmallFileBytesMax);
    HOTROW_RETURN_IF_ERROR(text.status());
    if (*text == token) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("--checkpoint_dir=", options.dir,
                     ": this rank does not see what rank 0 writes there; give a directory that all "
                     "ranks share"));
  });
  const absl::Status removed = group.TogetherOnLeader([&] { return env.Remove(path); });
  HOTROW_RETURN_IF_ERROR(seen);
  return removed;
}

absl::Status CheckpointWriter::Impl::ReadCommitted() {
  committed.clear();
  damaged.clear();
  notes.clear();
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> checkpoints,
                          ListCheckpoints(env, options.dir));
  for (const std::string& name : checkpoints) {
    const std::string dir = absl::StrCat(options.dir, "/", name);
    absl::StatusOr<SavedModel> saved = ReadSavedModel(env, dir);
    if (!saved.ok() && name == checkpoints.back()) return saved.status();
    if (!saved.ok()) {
      damaged.push_back(name);
      notes.push_back(absl::StrCat(
          dir, " cannot be read and is left alone, with all rows that may be its own: ",
          saved.status().message(), "; remove ", dir, " to free them"));
      continue;
    }
    for (SavedModel::Part& part : saved->parts) part.tables_dir = AbsolutePath(part.tables_dir);
    committed.push_back({.step = saved->step, .dir = saved->dir, .parts = std::move(saved->parts)});
  }
  return absl::OkStatus();
}

// What one rank could not read no rank counts, so that all remove the same ones.
absl::Status CheckpointWriter::Impl::AgreeOnDamaged() {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> of_ranks,
                          group.GatherTexts(absl::StrJoin(damaged, ",")));
  for (size_t r = 0; r < of_ranks.size(); ++r) {
    for (const absl::string_view view : absl::StrSplit(of_ranks[r], ',', absl::SkipEmpty())) {
      const std::string name(view);
      if (std::find(damaged.begin(), damaged.end(), name) != damaged.end()) continue;
      damaged.push_back(name);
      const std::string dir = absl::StrCat(options.dir, "/", name);
      notes.push_back(absl::StrCat(dir, " cannot be read on rank ", r, " and is left alone"));
      std::erase_if(committed, [&](const Committed& c) { return c.dir == dir; });
    }
  }
  return absl::OkStatus();
}

// Whether a checkpoint whose manifest cannot be read may name this snapshot. Names count up, so
// those above the newest checkpoint's were given later; names of another owner's path tell nothing.
bool CheckpointWriter::Impl::MayBeOfDamaged(SnapshotId id) const {
  if (damaged.empty()) return false;
  for (const SavedModel::Part& part : committed.back().parts) {
    if (part.store == own.store && part.tables_dir == own.tables_dir &&
        part.snapshot >> 32 == id >> 32) {
      return id < part.snapshot;
    }
  }
  return true;
}

// A snapshot that somebody has removed is as good as dropped.
absl::Status CheckpointWriter::Impl::DropIfThere(SnapshotId id) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> snapshots, tables->ListSnapshots());
  if (std::find(snapshots.begin(), snapshots.end(), id) == snapshots.end()) return absl::OkStatus();
  return tables->DropSnapshot(id);
}

// Removes snapshots of this directory that no checkpoint names.
absl::Status CheckpointWriter::Impl::DropUnnamed() {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> snapshots, tables->ListSnapshots());
  std::vector<SavedModel::Part> named;
  for (const Committed& c : committed) named.insert(named.end(), c.parts.begin(), c.parts.end());
  for (const SnapshotId id : snapshots) {
    SavedModel::Part part = own;
    part.snapshot = id;
    const bool is_named =
        std::any_of(named.begin(), named.end(), [&](const auto& n) { return n.SamePlace(part); });
    if (!names->owns(id) || is_named || MayBeOfDamaged(id)) continue;
    HOTROW_RETURN_IF_ERROR(tables->DropSnapshot(id));
  }
  names->Next(snapshots);  // from here on new names are above all of these
  if (!leads() || !damaged.empty()) return absl::OkStatus();
  // Files of snapshots in memory of runs whose tables lay elsewhere than this one's.
  std::set<std::string> in_use;
  for (const SavedModel::Part& place : places) {
    if (place.store == kMemory) in_use.insert(place.tables_dir);
  }
  return RemoveUnnamedSnapshots(env, options.dir, named, in_use);
}

absl::Status CheckpointWriter::Impl::RetireAll(const std::vector<Committed>& old) {
  for (const Committed& c : old) HOTROW_RETURN_IF_ERROR(Retire(env, c.dir));
  return env.SyncDir(options.dir);
}

absl::Status CheckpointWriter::Impl::RemoveOldest(int64_t count) {
  if (count <= 0) return absl::OkStatus();
  const std::vector<Committed> old(committed.begin(), committed.begin() + count);
  HOTROW_RETURN_IF_ERROR(group.TogetherOnLeader([&] { return RetireAll(old); }));
  committed.erase(committed.begin(), committed.begin() + count);
  return group.Together([&]() -> absl::Status {
    for (const Committed& c : old) {
      HOTROW_RETURN_IF_ERROR(Release(c));
      if (leads()) HOTROW_RETURN_IF_ERROR(RemoveFlatDir(env, c.dir + kRetired));
    }
    return absl::OkStatus();
  });
}

// Lets go of the tables of a checkpoint that has lost its name: each rank of those in its own
// store, and rank 0 of those that were taken while the rows lived elsewhere. In memory these are
// files of ours. A store on a disk that is not of this run keeps its snapshot: others may have
// theirs in it, and it need not even be here.
absl::Status CheckpointWriter::Impl::Release(const Committed& checkpoint) {
  absl::Status status;
  for (const SavedModel::Part& part : checkpoint.parts) {
    const auto is_of_part = [&](const SavedModel::Part& place) {
      return place.store == part.store && place.tables_dir == part.tables_dir;
    };
    if (is_of_part(own)) {
      status.Update(DropIfThere(part.snapshot));
      continue;
    }
    const std::string below = AbsolutePath(options.dir + "/tables");
    if (!leads() || part.store != kMemory ||
        (part.tables_dir != below && !absl::StartsWith(part.tables_dir, below + "/")) ||
        std::any_of(places.begin(), places.end(), is_of_part)) {
      continue;
    }
    const std::string path = absl::StrCat(part.tables_dir, "/", SnapshotFileName(part.snapshot));
    const absl::StatusOr<bool> exists = env.Exists(path);
    status.Update(!exists.ok() ? exists.status() : *exists ? env.Remove(path) : absl::OkStatus());
  }
  return status;
}

const std::vector<std::string>& CheckpointWriter::notes() const { return impl_->notes; }

bool CheckpointWriter::busy() const { return impl_->phase != Impl::Phase::kIdle; }

int64_t CheckpointWriter::newest_step() const {
  return impl_->committed.empty() ? -1 : impl_->committed.back().step;
}

int64_t CheckpointWriter::num_committed() const {
  return static_cast<int64_t>(impl_->committed.size());
}

std::string CheckpointWriter::newest_dir() const {
  return impl_->committed.empty() ? "" : impl_->committed.back().dir;
}

const CheckpointStats& CheckpointWriter::stats() const { return impl_->stats; }

absl::Status CheckpointWriter::Begin(SavedModel model, const DenseArrays<const float>& dense,
                                     bool early) {
  Impl& impl = *impl_;
  HOTROW_CHECK(!busy() && impl.tables != nullptr);
  TraceSpan span(impl.options.trace, "checkpoint_begin");
  const int64_t begin_ns = NowNanos();
  const std::string final_dir = absl::StrCat(impl.options.dir, "/", CheckpointName(model.step));
  if (newest_step() >= model.step) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--checkpoint_dir=", impl.options.dir, ": step ", model.step, " comes after ",
        impl.committed.back().dir, "; give another directory, or remove that checkpoint"));
  }
  impl.snapshot_row_bytes = impl.tables->Stats().snapshot_row_bytes;
  impl.snapshot = impl.names->Next({});
  impl.written = impl.tables->BeginSnapshot(impl.snapshot);
  // The other ranks cannot know; they hear of it when it is their turn to say how they fared.
  if (impl.group.world_size() == 1) HOTROW_RETURN_IF_ERROR(impl.written);
  impl.snapshot_ended = !impl.written.ok();
  impl.snapshot_prepared = false;
  model.is_checkpoint = true;
  for (SavedModel::Table& table : model.tables) {
    table.rows = -1;
    table.hash.clear();
  }
  impl.current = {.step = model.step, .dir = final_dir};
  impl.model = std::move(model);
  impl.early = early;
  impl.begin_ns = begin_ns;
  impl.outcome = {};
  impl.ended = absl::OkStatus();
  impl.residuals_file = {};
  absl::Status copied;
  if (impl.tables->keeps_residuals()) {
    absl::StatusOr<HostBuffer<std::byte>> residuals = impl.tables->SaveResiduals();
    copied = residuals.status();
    if (residuals.ok()) impl.residuals = *std::move(residuals);
  }
  std::function<absl::Status()> write;
  if (!copied.ok()) {
    write = [copied] { return copied; };
  } else if (impl.leads()) {
    impl.dense.parameters.assign(dense.parameters.begin(), dense.parameters.end());
    impl.dense.momentum1.assign(dense.momentum1.begin(), dense.momentum1.end());
    impl.dense.momentum2.assign(dense.momentum2.begin(), dense.momentum2.end());
    write = [&impl] {
      TraceSpan job_span(impl.options.trace, "checkpoint_write");
      return WriteUnfinished(impl.env, impl.current.dir + kUnfinished, impl.dense.arrays(),
                             &impl.model);
    };
  }
  impl.BeginPhase(Impl::Phase::kWriting, std::move(write));
  impl.pause_ns = NowNanos() - begin_ns;
  return absl::OkStatus();
}

void CheckpointWriter::Impl::BeginPhase(Phase next, std::function<absl::Status()> work) {
  phase = next;
  job.Start(options.background, std::move(work));
}

// Whether this rank's part is written or has failed, as `written` says then.
bool CheckpointWriter::Impl::DoneWriting() {
  if (!snapshot_ended) {
    const absl::StatusOr<bool> prepared = tables->SnapshotPrepared();
    if (prepared.ok() && !*prepared) return false;
    snapshot_ended = true;
    snapshot_prepared = prepared.ok();
    written = prepared.status();
    if (snapshot_prepared) {
      absl::StatusOr<SnapshotInfo> info = tables->DescribeSnapshot(snapshot);
      written = info.status();
      if (info.ok()) snapshot_info = *std::move(info);
    }
  }
  if (!job.done()) return false;
  written.Update(job.Join());
  return true;
}

// All ranks are done with a phase; the same next one begins on all of them.
absl::Status CheckpointWriter::Impl::EndPhase(const absl::Status& verdict) {
  switch (phase) {
    case Phase::kIdle:
      return absl::OkStatus();
    case Phase::kWriting:
      // The directory is there from here on.
      if (verdict.ok() && tables->keeps_residuals()) {
        BeginPhase(Phase::kAdding, [this] { return AddResiduals(); });
        return absl::OkStatus();
      }
      [[fallthrough]];
    case Phase::kAdding:
      residuals = {};
      if (verdict.ok()) return StartCommit();
      // Whatever was written is taken back, as far as that goes.
      ended = verdict;
      BeginPhase(Phase::kUndoing, [this] {
        if (snapshot_prepared) tables->DropSnapshot(snapshot).IgnoreError();
        if (leads()) RemoveFlatDir(env, current.dir + kUnfinished).IgnoreError();
        return absl::OkStatus();
      });
      return absl::OkStatus();
    case Phase::kUndoing:
      phase = Phase::kIdle;
      return ended;
    case Phase::kCommitting:
      return StartRelease(verdict);
    case Phase::kReleasing:
      phase = Phase::kIdle;
      Count();
      ended.Update(verdict);
      return ended;
  }
  return absl::OkStatus();
}

// Of each rank.
absl::Status CheckpointWriter::Impl::AddResiduals() {
  TraceSpan span(options.trace, "checkpoint_residuals");
  const std::string dir = current.dir + kUnfinished;
  residuals_file.file = absl::StrFormat("%s%05d", kResidualsPrefix, group.rank());
  residuals_file.bytes = residuals.size();
  residuals_file.crc = Crc32c(residuals.span());
  HOTROW_ASSIGN_OR_RETURN(
      const std::unique_ptr<File> file,
      env.Open(absl::StrCat(dir, "/", residuals_file.file), OpenMode::kTruncate));
  HOTROW_RETURN_IF_ERROR(WriteFull(*file, 0, residuals.span()));
  residuals = {};  // here, where it takes no time of training
  HOTROW_RETURN_IF_ERROR(file->Sync());
  HOTROW_RETURN_IF_ERROR(file->Close());
  // Where ranks are machines, rank 0 cannot sync for another that a file is in the directory.
  return env.SyncDir(dir);
}

absl::Status CheckpointWriter::Impl::StartCommit() {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> snapshots,
                          group.Gather(static_cast<int64_t>(snapshot)));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> infos,
                          group.GatherTexts(SnapshotInfoText(snapshot_info)));
  current.parts = places;
  for (size_t r = 0; r < snapshots.size(); ++r) {
    current.parts[r].snapshot = static_cast<SnapshotId>(snapshots[r]);
    HOTROW_RETURN_IF_ERROR(TakeSnapshotInfo(infos[r], &current.parts[r]));
  }
  model.parts = current.parts;
  model.residuals.clear();
  if (tables->keeps_residuals()) {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> bytes, group.Gather(residuals_file.bytes));
    HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> crcs, group.Gather(residuals_file.crc));
    for (size_t r = 0; r < bytes.size(); ++r) {
      model.residuals.push_back({.file = absl::StrFormat("%s%05d", kResidualsPrefix, r),
                                 .bytes = bytes[r],
                                 .crc = static_cast<uint32_t>(crcs[r])});
    }
  }
  const int64_t keep = early ? 1 : options.keep;
  const int64_t gone = static_cast<int64_t>(committed.size()) + 1 - keep;
  retiring.assign(committed.begin(), committed.begin() + std::max<int64_t>(gone, 0));
  std::function<absl::Status()> commit;
  if (leads()) commit = [this] { return Commit(); };
  BeginPhase(Phase::kCommitting, std::move(commit));
  return absl::OkStatus();
}

// Of rank 0.
absl::Status CheckpointWriter::Impl::Commit() {
  TraceSpan span(options.trace, "checkpoint_commit");
  const std::string manifest = SavedModelManifest(model);
  outcome.bytes = model.dense_bytes + static_cast<int64_t>(manifest.size());
  // One of this step that got its name and could not be synced: whether it lasts was open.
  HOTROW_ASSIGN_OR_RETURN(const bool is_there, env.Exists(current.dir));
  if (is_there) {
    HOTROW_RETURN_IF_ERROR(Retire(env, current.dir));
    HOTROW_RETURN_IF_ERROR(env.SyncDir(options.dir));
    HOTROW_RETURN_IF_ERROR(RemoveFlatDir(env, current.dir + kRetired));
  }
  HOTROW_RETURN_IF_ERROR(CommitUnfinished(env, current.dir + kUnfinished, current.dir, manifest));
  outcome.committed = true;
  outcome.commit_ns = NowNanos() - begin_ns;
  // Here too, since these may wait for the disk.
  absl::Status status = tables->CommitSnapshot(snapshot);
  if (retiring.empty()) return status;
  HOTROW_RETURN_IF_ERROR(RetireAll(retiring));
  outcome.retired = true;
  // Other ranks must hear of it before anybody drops a snapshot of theirs; a single one goes on.
  if (group.world_size() == 1) status.Update(ReleaseRetired());
  return status;
}

absl::Status CheckpointWriter::Impl::StartRelease(const absl::Status& verdict) {
  const int64_t mine = (outcome.committed ? kCommitted : 0) | (outcome.retired ? kRetiredOld : 0);
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> said, group.Gather(mine));
  if ((said[0] & kCommitted) == 0) {
    // Whether there is a checkpoint is open: what it names stays until the next start.
    phase = Phase::kIdle;
    return verdict;
  }
  outcome.committed = true;
  outcome.retired = (said[0] & kRetiredOld) != 0;
  if (!leads()) outcome.commit_ns = NowNanos() - begin_ns;
  ended = verdict;
  std::function<absl::Status()> release;
  if (group.world_size() > 1) {
    release = [this] {
      absl::Status status;
      if (!leads()) status = tables->CommitSnapshot(snapshot);
      if (outcome.retired) status.Update(ReleaseRetired());
      return status;
    };
  }
  BeginPhase(Phase::kReleasing, std::move(release));
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Impl::ReleaseRetired() {
  absl::Status status;
  for (const Committed& old : retiring) status.Update(Release(old));
  if (!leads()) return status;
  for (const Committed& old : retiring) status.Update(RemoveFlatDir(env, old.dir + kRetired));
  return status;
}

// There is one checkpoint more.
void CheckpointWriter::Impl::Count() {
  committed.push_back(current);
  if (outcome.retired) {
    committed.erase(committed.begin(), committed.begin() + static_cast<int64_t>(retiring.size()));
  }
  int64_t bytes = outcome.bytes + tables->Stats().snapshot_row_bytes - snapshot_row_bytes;
  if (own.store == kMemory) {
    const absl::StatusOr<std::unique_ptr<File>> file =
        env.Open(absl::StrCat(own.tables_dir, "/", SnapshotFileName(snapshot)), OpenMode::kRead);
    const absl::StatusOr<int64_t> size =
        file.ok() ? (*file)->Size() : absl::StatusOr<int64_t>(file.status());
    if (size.ok()) bytes = outcome.bytes + *size;
  }
  bytes += residuals_file.bytes;
  ++stats.count;
  if (early) ++stats.early;
  stats.bytes += bytes;
  stats.pause_ns += pause_ns;
  stats.pause_ns_last = pause_ns;
  stats.pause_ns_max = std::max(stats.pause_ns_max, pause_ns);
  stats.commit_ns += outcome.commit_ns;
  stats.commit_ns_last = outcome.commit_ns;
  stats.commit_ns_max = std::max(stats.commit_ns_max, outcome.commit_ns);
}

absl::StatusOr<bool> CheckpointWriter::Poll() {
  Impl& impl = *impl_;
  while (busy()) {
    const bool writing = impl.phase == Impl::Phase::kWriting;
    const bool done = writing ? impl.DoneWriting() : impl.job.done();
    const absl::Status mine = !done ? absl::OkStatus() : writing ? impl.written : impl.job.Join();
    HOTROW_ASSIGN_OR_RETURN(const RankVerdict verdict, impl.group.Ask(done, mine));
    if (!verdict.all_done) return false;
    HOTROW_RETURN_IF_ERROR(impl.EndPhase(verdict.status));
    if (!busy()) return true;
  }
  return false;
}

absl::Status CheckpointWriter::Wait() {
  Impl& impl = *impl_;
  for (Patience patience; busy();) {
    if (impl.group.world_size() == 1) {
      // Poll asks again, and says what has gone wrong.
      if (!impl.snapshot_ended) impl.tables->WaitSnapshot().IgnoreError();
      impl.job.Join().IgnoreError();
    }
    HOTROW_RETURN_IF_ERROR(Poll().status());
    if (busy() && impl.group.world_size() > 1) patience.Sleep();
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> CheckpointWriter::KeepNewestOnly() {
  Impl& impl = *impl_;
  HOTROW_CHECK(!busy());
  if (impl.committed.size() < 2) return false;
  HOTROW_RETURN_IF_ERROR(impl.RemoveOldest(static_cast<int64_t>(impl.committed.size()) - 1));
  return true;
}

}  // namespace hotrow
