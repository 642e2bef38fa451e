#include "models/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "models/saved_model_impl.h"

namespace hotrow {
namespace {

constexpr char kStepPrefix[] = "step-";
constexpr size_t kStepDigits = 12;
constexpr char kDenseName[] = "dense.safetensors";
// Directories under other names are no checkpoints: not yet, and no longer.
constexpr char kUnfinished[] = ".tmp";
constexpr char kRetired[] = ".old";

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

// One piece of work on a thread of its own, or at once.
class Job {
 public:
  ~Job() { Join().IgnoreError(); }
  void Start(bool background, std::function<absl::Status()> work) {
    HOTROW_CHECK(!thread_.joinable());
    done_ = false;
    if (!background) {
      status_ = work();
      done_ = true;
      return;
    }
    thread_ = std::thread([this, work = std::move(work)] {
      status_ = work();
      done_ = true;
    });
  }
  bool done() const { return done_; }
  absl::Status Join() {
    if (thread_.joinable()) thread_.join();
    return status_;
  }

 private:
  std::thread thread_;
  absl::Status status_;
  std::atomic<bool> done_{true};
};

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
  absl::StatusOr<SavedModel> newest = ReadSavedModel(env, absl::StrCat(path, "/", names->back()));
  if (!absl::IsDataLoss(newest.status()) || names->size() < 2) return newest;
  return absl::DataLossError(absl::StrCat(newest.status().message(), "; without ", path, "/",
                                          names->back(), " it would be ", path, "/",
                                          (*names)[names->size() - 2]));
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
    std::string store;
    std::string tables_dir;
    SnapshotId snapshot = 0;
  };
  enum class Phase { kIdle, kWriting, kCommitting };

  explicit Impl(const CheckpointWriterOptions& o) : options(o), env(*o.env) {}

  absl::Status Attach();
  absl::Status Release(const Committed& checkpoint);
  absl::Status RemoveLeftoverTables();
  absl::Status RemoveOldest(int64_t count);
  void StartCommit();
  absl::Status FinishCommit();
  absl::Status Fail(absl::Status status);

  CheckpointWriterOptions options;
  Env& env;
  EmbeddingCollection* tables = nullptr;
  std::string store;
  std::string tables_dir;  // absolute, where the collection's snapshots lie
  std::optional<SnapshotNames> names;
  std::vector<Committed> committed;  // by step
  CheckpointStats stats;

  // What is in flight. The job owns model, dense and `outcome` while it runs.
  Phase phase = Phase::kIdle;
  SavedModel model;
  DenseVectors dense;
  bool early = false;
  bool snapshot_prepared = false;
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
  const auto refused = [&](std::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat("--checkpoint_dir=", options.dir, ": ",
                                                      std::string(what),
                                                      "; give a directory of its own"));
  };
  if (const absl::Status status = CreateDirsDurably(env, dir + "/tables"); !status.ok()) {
    return refused(std::string(status.message()));
  }
  // The files of --save_dir have names like ours.
  HOTROW_ASSIGN_OR_RETURN(const bool is_model, env.Exists(ManifestPath(dir)));
  if (is_model) return refused("it holds a saved model");
  const std::string probe = dir + "/probe.tmp";
  absl::StatusOr<std::unique_ptr<File>> file = env.Open(probe, OpenMode::kTruncate);
  if (!file.ok()) return refused(std::string(file.status().message()));
  HOTROW_RETURN_IF_ERROR((*file)->Close());
  HOTROW_RETURN_IF_ERROR(env.Remove(probe));
  return std::unique_ptr<CheckpointWriter>(new CheckpointWriter(std::move(impl)));
}

CheckpointWriter::CheckpointWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointWriter::~CheckpointWriter() = default;

std::string CheckpointWriter::tables_dir() const { return impl_->options.dir + "/tables"; }

absl::Status CheckpointWriter::Attach(EmbeddingCollection* tables, StoreKind store,
                                      const std::string& tables_dir_given) {
  impl_->tables = tables;
  impl_->store = std::string(StoreKindName(store));
  impl_->tables_dir = AbsolutePath(tables_dir_given);
  impl_->names.emplace(impl_->options.dir,
                       /*exclusive=*/impl_->tables_dir == AbsolutePath(tables_dir()));
  return impl_->Attach();
}

absl::Status CheckpointWriter::Impl::Attach() {
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
  committed.clear();
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> checkpoints, ListCheckpoints(env, dir));
  for (const std::string& name : checkpoints) {
    HOTROW_ASSIGN_OR_RETURN(const SavedModel saved,
                            ReadSavedModel(env, absl::StrCat(dir, "/", name)));
    committed.push_back({.step = saved.step,
                         .dir = saved.dir,
                         .store = saved.store,
                         .tables_dir = AbsolutePath(saved.tables_dir),
                         .snapshot = saved.snapshot});
  }
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> snapshots, tables->ListSnapshots());
  for (const SnapshotId id : snapshots) {
    const bool named = std::any_of(committed.begin(), committed.end(), [&](const Committed& c) {
      return c.snapshot == id && c.store == store && c.tables_dir == tables_dir;
    });
    if (names->owns(id) && !named) HOTROW_RETURN_IF_ERROR(tables->DropSnapshot(id));
  }
  names->Next(snapshots);  // from here on new names are above all of these
  HOTROW_RETURN_IF_ERROR(RemoveLeftoverTables());
  // More than there should be: the last process ended between a commit and this.
  return RemoveOldest(static_cast<int64_t>(committed.size()) - options.keep);
}

absl::Status CheckpointWriter::Impl::RemoveOldest(int64_t count) {
  if (count <= 0) return absl::OkStatus();
  const std::vector<Committed> old(committed.begin(), committed.begin() + count);
  for (const Committed& c : old) HOTROW_RETURN_IF_ERROR(Retire(env, c.dir));
  HOTROW_RETURN_IF_ERROR(env.SyncDir(options.dir));
  committed.erase(committed.begin(), committed.begin() + count);
  for (const Committed& c : old) {
    HOTROW_RETURN_IF_ERROR(Release(c));
    HOTROW_RETURN_IF_ERROR(RemoveFlatDir(env, c.dir + kRetired));
  }
  return absl::OkStatus();
}

// Files of snapshots in memory that a run on a disk finds here and no checkpoint names.
absl::Status CheckpointWriter::Impl::RemoveLeftoverTables() {
  if (store == kMemory) return absl::OkStatus();
  const std::string dir = options.dir + "/tables";
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> files, ListSnapshotFiles(env, dir));
  for (const SnapshotId id : files) {
    const bool named = std::any_of(committed.begin(), committed.end(), [&](const Committed& c) {
      return c.snapshot == id && c.store == kMemory && c.tables_dir == AbsolutePath(dir);
    });
    if (!named) {
      HOTROW_RETURN_IF_ERROR(env.Remove(absl::StrCat(dir, "/", SnapshotFileName(id))));
    }
  }
  return absl::OkStatus();
}

// Lets go of the tables of a checkpoint that has lost its name.
absl::Status CheckpointWriter::Impl::Release(const Committed& checkpoint) {
  if (checkpoint.store == store && checkpoint.tables_dir == tables_dir) {
    return tables->DropSnapshot(checkpoint.snapshot);
  }
  // One that was taken while the rows lived elsewhere. In memory: a file of ours. A store on a disk
  // that is not ours now keeps its snapshot.
  const std::string dir = options.dir + "/tables";
  if (checkpoint.store != kMemory || checkpoint.tables_dir != AbsolutePath(dir)) {
    return absl::OkStatus();
  }
  const std::string path = absl::StrCat(dir, "/", SnapshotFileName(checkpoint.snapshot));
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  return exists ? env.Remove(path) : absl::OkStatus();
}

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
  model.snapshot = impl.names->Next({});
  model.is_checkpoint = true;
  model.store = impl.store;
  model.tables_dir = impl.tables_dir;
  for (SavedModel::Table& table : model.tables) {
    table.rows = -1;
    table.hash.clear();
  }
  HOTROW_RETURN_IF_ERROR(impl.tables->BeginSnapshot(model.snapshot));
  impl.dense.parameters.assign(dense.parameters.begin(), dense.parameters.end());
  impl.dense.momentum1.assign(dense.momentum1.begin(), dense.momentum1.end());
  impl.dense.momentum2.assign(dense.momentum2.begin(), dense.momentum2.end());
  impl.current = {.step = model.step,
                  .dir = final_dir,
                  .store = model.store,
                  .tables_dir = model.tables_dir,
                  .snapshot = model.snapshot};
  impl.model = std::move(model);
  impl.early = early;
  impl.snapshot_prepared = false;
  impl.begin_ns = begin_ns;
  impl.outcome = {};
  impl.phase = Impl::Phase::kWriting;
  impl.job.Start(impl.options.background, [&impl] {
    TraceSpan job_span(impl.options.trace, "checkpoint_write");
    return WriteUnfinished(impl.env, impl.current.dir + kUnfinished, impl.dense.arrays(),
                           &impl.model);
  });
  impl.pause_ns = NowNanos() - begin_ns;
  return absl::OkStatus();
}

void CheckpointWriter::Impl::StartCommit() {
  const int64_t keep = early ? 1 : options.keep;
  const int64_t gone = static_cast<int64_t>(committed.size()) + 1 - keep;
  retiring.assign(committed.begin(), committed.begin() + std::max<int64_t>(gone, 0));
  phase = Phase::kCommitting;
  job.Start(options.background, [this]() -> absl::Status {
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
    absl::Status status = tables->CommitSnapshot(current.snapshot);
    if (retiring.empty()) return status;
    for (const Committed& old : retiring) HOTROW_RETURN_IF_ERROR(Retire(env, old.dir));
    HOTROW_RETURN_IF_ERROR(env.SyncDir(options.dir));
    outcome.retired = true;
    for (const Committed& old : retiring) status.Update(Release(old));
    for (const Committed& old : retiring) status.Update(RemoveFlatDir(env, old.dir + kRetired));
    return status;
  });
}

absl::Status CheckpointWriter::Impl::FinishCommit() {
  const absl::Status status = job.Join();
  phase = Phase::kIdle;
  // Whether there is a checkpoint is open: what it names stays until the next start.
  if (!outcome.committed) return status;
  committed.push_back(current);
  if (outcome.retired) {
    committed.erase(committed.begin(), committed.begin() + static_cast<int64_t>(retiring.size()));
  }
  int64_t bytes = outcome.bytes + tables->Stats().snapshot_row_bytes - snapshot_row_bytes;
  if (store == kMemory) {
    const absl::StatusOr<std::unique_ptr<File>> file = env.Open(
        absl::StrCat(tables_dir, "/", SnapshotFileName(current.snapshot)), OpenMode::kRead);
    const absl::StatusOr<int64_t> size =
        file.ok() ? (*file)->Size() : absl::StatusOr<int64_t>(file.status());
    if (size.ok()) bytes = outcome.bytes + *size;
  }
  ++stats.count;
  if (early) ++stats.early;
  stats.bytes += bytes;
  stats.pause_ns += pause_ns;
  stats.pause_ns_last = pause_ns;
  stats.pause_ns_max = std::max(stats.pause_ns_max, pause_ns);
  stats.commit_ns += outcome.commit_ns;
  stats.commit_ns_last = outcome.commit_ns;
  stats.commit_ns_max = std::max(stats.commit_ns_max, outcome.commit_ns);
  return status;
}

// Before the commit: whatever was written is taken back, as far as that goes.
absl::Status CheckpointWriter::Impl::Fail(absl::Status status) {
  job.Join().IgnoreError();
  if (snapshot_prepared || tables->WaitSnapshot().ok()) {
    tables->DropSnapshot(current.snapshot).IgnoreError();
  }
  RemoveFlatDir(env, current.dir + kUnfinished).IgnoreError();
  phase = Phase::kIdle;
  return status;
}

absl::StatusOr<bool> CheckpointWriter::Poll() {
  Impl& impl = *impl_;
  if (impl.phase == Impl::Phase::kIdle) return false;
  if (impl.phase == Impl::Phase::kWriting) {
    if (!impl.snapshot_prepared) {
      const absl::StatusOr<bool> prepared = impl.tables->SnapshotPrepared();
      if (!prepared.ok()) return impl.Fail(prepared.status());
      if (!*prepared) return false;
      impl.snapshot_prepared = true;
    }
    if (!impl.job.done()) return false;
    if (absl::Status status = impl.job.Join(); !status.ok()) return impl.Fail(std::move(status));
    impl.StartCommit();
  }
  if (!impl.job.done()) return false;
  HOTROW_RETURN_IF_ERROR(impl.FinishCommit());
  return true;
}

absl::Status CheckpointWriter::Wait() {
  Impl& impl = *impl_;
  if (impl.phase == Impl::Phase::kIdle) return absl::OkStatus();
  if (impl.phase == Impl::Phase::kWriting) {
    if (!impl.snapshot_prepared) {
      if (absl::Status status = impl.tables->WaitSnapshot(); !status.ok()) {
        return impl.Fail(std::move(status));
      }
      impl.snapshot_prepared = true;
    }
    if (absl::Status status = impl.job.Join(); !status.ok()) return impl.Fail(std::move(status));
    impl.StartCommit();
  }
  return impl.FinishCommit();
}

absl::StatusOr<bool> CheckpointWriter::KeepNewestOnly() {
  Impl& impl = *impl_;
  HOTROW_CHECK(!busy());
  if (impl.committed.size() < 2) return false;
  HOTROW_RETURN_IF_ERROR(impl.RemoveOldest(static_cast<int64_t>(impl.committed.size()) - 1));
  return true;
}

}  // namespace hotrow
