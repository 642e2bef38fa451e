#include "models/saving/checkpoint_writer.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/buffer.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/held_directory.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "models/saving/checkpoint.h"
#include "models/saving/checkpoint_dir_impl.h"
#include "models/saving/checkpoint_history_impl.h"
#include "models/saving/manifest.h"
#include "models/saving/rank_group_impl.h"
#include "models/saving/saved_model_impl.h"
#include "models/saving/saved_snapshots_impl.h"
#include "models/saving/store_paths_impl.h"

namespace hotrow {
namespace {

constexpr char kResidualsPrefix[] = "residuals-";
constexpr char kCountersPrefix[] = "counters-";

// Bits that rank 0 tells the others about a commit, beside its status.
constexpr int64_t kCommitted = 1;
constexpr int64_t kRetiredOld = 2;  // those beyond `keep` have lost their names

}  // namespace

struct CheckpointWriter::Impl {
  // All ranks enter the next phase in the same call of Poll or Wait.
  enum class Phase {
    kIdle,
    kWriting,     // snapshots of all ranks; rank 0: the dense file
    kAdding,      // where they keep residuals or counters: all ranks, files beside the dense one
    kUndoing,     // some rank could not
    kCommitting,  // rank 0: the manifest and the name; then it takes those of old ones away
    kReleasing,   // snapshots of all ranks are committed, and old ones dropped
  };

  // o.dir has no slash at its end, and there is an o.env.
  explicit Impl(const CheckpointWriterOptions& o)
      : options(o), env(*o.env), group(o.communicator), history(*o.env, o.dir, group) {}

  bool leads() const { return group.leads(); }
  absl::Status Refused(std::string_view what) const;

  void BeginPhase(Phase next, std::function<absl::Status()> work);
  bool DoneWriting();
  absl::Status EndPhase(const absl::Status& verdict);
  // Whether ranks have their own files beside the snapshots.
  bool adds() const { return tables->residuals().kept() || tables->counters().kept(); }
  absl::Status CopyOwn();
  absl::Status AddOwn();
  // Writes a file of this rank, and gives up `bytes`.
  absl::Status AddFile(const char* prefix, HostBuffer<std::byte>* bytes,
                       SavedModel::Residuals* file);
  // The files of all ranks, from what each has written.
  absl::StatusOr<std::vector<SavedModel::Residuals>> GatherFiles(const char* prefix,
                                                                 const SavedModel::Residuals& mine);
  absl::Status StartCommit();
  absl::Status Commit();
  absl::Status StartRelease(const absl::Status& verdict);
  void Count();

  CheckpointWriterOptions options;
  Env& env;
  const RankGroup group;
  EmbeddingCollection* tables = nullptr;
  CheckpointHistory history;
  std::unique_ptr<FileLock> lock;          // of rank 0, for all ranks
  std::optional<HeldDirectory> directory;  // from Open on
  CheckpointStats stats;

  // The checkpoint in flight. The job owns model, dense, residuals and outcome while it runs.
  Phase phase = Phase::kIdle;
  SavedModel model;
  DenseVectors dense;
  HostBuffer<std::byte> residuals;  // of this rank
  SavedModel::Residuals residuals_file;
  HostBuffer<std::byte> counters;  // of this rank
  SavedModel::Counters counters_file;
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
  CommittedCheckpoint current;
  std::vector<CommittedCheckpoint> retiring;
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
  CheckpointWriterOptions plain = options;
  plain.dir = WithoutEndingSlashes(options.dir);
  if (plain.env == nullptr) plain.env = &PosixEnv();
  auto impl = std::make_unique<Impl>(plain);
  const std::string& dir = plain.dir;
  Env& env = impl->env;
  const std::string tables_dir = impl->history.tables_dir();
  if (const absl::Status status = CreateDirsDurably(env, tables_dir); !status.ok()) {
    return impl->Refused(std::string(status.message()));
  }
  if (impl->leads()) {
    HOTROW_ASSIGN_OR_RETURN(impl->lock, LockJobDir(env, "checkpoint_dir", dir));
  }
  impl->directory.emplace(dir);
  // --save_dir writes files of the same names.
  HOTROW_ASSIGN_OR_RETURN(const bool is_model, env.Exists(ManifestPath(dir)));
  if (is_model) return impl->Refused("it holds a saved model");
  // Ranks other than 0 write only into their own directory.
  const std::string probe = (impl->leads() ? dir : tables_dir) + kProbe;
  absl::StatusOr<std::unique_ptr<File>> file = env.Open(probe, OpenMode::kTruncate);
  if (!file.ok()) return impl->Refused(std::string(file.status().message()));
  HOTROW_RETURN_IF_ERROR((*file)->Close());
  HOTROW_RETURN_IF_ERROR(env.Remove(probe));
  return std::unique_ptr<CheckpointWriter>(new CheckpointWriter(std::move(impl)));
}

CheckpointWriter::CheckpointWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointWriter::~CheckpointWriter() = default;

std::string CheckpointWriter::tables_dir() const { return impl_->history.tables_dir(); }

absl::Status CheckpointWriter::Impl::Refused(std::string_view what) const {
  return absl::FailedPreconditionError(absl::StrCat(
      "--checkpoint_dir=", options.dir, ": ", std::string(what), "; give a directory of its own"));
}

absl::Status CheckpointWriter::Attach(EmbeddingCollection* tables, StoreKind store,
                                      const std::string& tables_dir) {
  impl_->tables = tables;
  return impl_->history.Attach(tables, store, tables_dir, impl_->options.keep);
}

const std::vector<std::string>& CheckpointWriter::notes() const { return impl_->history.notes(); }

bool CheckpointWriter::busy() const { return impl_->phase != Impl::Phase::kIdle; }

int64_t CheckpointWriter::newest_step() const {
  return num_committed() == 0 ? -1 : impl_->history.committed().back().step;
}

int64_t CheckpointWriter::num_committed() const { return std::ssize(impl_->history.committed()); }

std::string CheckpointWriter::newest_dir() const {
  return num_committed() == 0 ? "" : impl_->history.committed().back().dir;
}

const CheckpointStats& CheckpointWriter::stats() const { return impl_->stats; }

absl::Status CheckpointWriter::Begin(SavedModel model, const DenseArrays<const float>& dense,
                                     bool early) {
  Impl& impl = *impl_;
  HOTROW_CHECK(!busy() && impl.tables != nullptr);
  TraceSpan span(impl.options.trace, "checkpoint_begin");
  const int64_t begin_ns = NowNanos();
  std::string name = CheckpointName(model.step);
  if (newest_step() == model.step) {
    const std::string newest = newest_dir();
    const std::optional<StepName> before = StepOfName(newest.substr(newest.rfind('/') + 1));
    name = CheckpointName(model.step, (before.has_value() ? before->again : 0) + 1);
  }
  const std::string final_dir = absl::StrCat(impl.options.dir, "/", name);
  if (newest_step() > model.step) {
    return absl::FailedPreconditionError(
        absl::StrCat("--checkpoint_dir=", impl.options.dir, ": step ", model.step, " comes after ",
                     newest_dir(), "; give another directory, or remove that checkpoint"));
  }
  impl.snapshot_row_bytes = impl.tables->Stats().snapshot_row_bytes;
  impl.snapshot = impl.history.NextSnapshot();
  impl.written = impl.tables->snapshots().Begin(impl.snapshot);
  // Other ranks learn of an error when all exchange how they fared.
  if (impl.group.world_size() == 1) HOTROW_RETURN_IF_ERROR(impl.written);
  impl.snapshot_ended = !impl.written.ok();
  impl.snapshot_prepared = false;
  model.is_checkpoint = true;
  const std::vector<RowLines> age_lines = impl.tables->age_lines();
  HOTROW_CHECK(model.tables.size() <= age_lines.size());
  for (size_t i = 0; i < model.tables.size(); ++i) {
    model.tables[i].lines = age_lines[i];
    model.tables[i].rows = -1;
    model.tables[i].hash.clear();
  }
  impl.current = {.step = model.step, .dir = final_dir};
  impl.model = std::move(model);
  impl.early = early;
  impl.begin_ns = begin_ns;
  impl.outcome = {};
  impl.ended = absl::OkStatus();
  const absl::Status copied = impl.CopyOwn();
  std::function<absl::Status()> write;
  if (!copied.ok()) {
    write = [copied] { return copied; };
  } else if (impl.leads()) {
    impl.dense.parameters.assign(dense.parameters.begin(), dense.parameters.end());
    impl.dense.momentum1.assign(dense.momentum1.begin(), dense.momentum1.end());
    impl.dense.momentum2.assign(dense.momentum2.begin(), dense.momentum2.end());
    impl.dense.average.assign(dense.average.begin(), dense.average.end());
    write = [&impl] {
      TraceSpan job_span(impl.options.trace, "checkpoint_write");
      // Before it would be made once more, without its store.
      HOTROW_RETURN_IF_ERROR(impl.directory->CheckInPlace());
      return WriteUnfinished(impl.env, impl.current.dir, impl.dense.arrays(), &impl.model);
    };
  }
  impl.BeginPhase(Impl::Phase::kWriting, std::move(write));
  impl.pause_ns = NowNanos() - begin_ns;
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Impl::CopyOwn() {
  residuals_file = {};
  counters_file = {};
  if (tables->residuals().kept()) {
    HOTROW_ASSIGN_OR_RETURN(residuals, tables->residuals().Save());
  }
  if (tables->counters().kept()) {
    HOTROW_ASSIGN_OR_RETURN(counters, tables->counters().Save());
  }
  return absl::OkStatus();
}

void CheckpointWriter::Impl::BeginPhase(Phase next, std::function<absl::Status()> work) {
  phase = next;
  job.Start(options.background, std::move(work));
}

// Whether this rank's part is done; `written` then has its status.
bool CheckpointWriter::Impl::DoneWriting() {
  if (!snapshot_ended) {
    const absl::StatusOr<bool> prepared = tables->snapshots().Prepared();
    if (prepared.ok() && !*prepared) return false;
    snapshot_ended = true;
    snapshot_prepared = prepared.ok();
    written = prepared.status();
    if (snapshot_prepared) {
      absl::StatusOr<SnapshotInfo> info = tables->snapshots().Describe(snapshot);
      written = info.status();
      if (info.ok()) snapshot_info = *std::move(info);
    }
  }
  if (!job.done()) return false;
  written.Update(job.Join());
  return true;
}

// All ranks are done with a phase. The same next phase begins on all of them.
absl::Status CheckpointWriter::Impl::EndPhase(const absl::Status& verdict) {
  switch (phase) {
    case Phase::kIdle:
      return absl::OkStatus();
    case Phase::kWriting:
      // The unfinished directory exists from here on.
      if (verdict.ok() && adds()) {
        BeginPhase(Phase::kAdding, [this] { return AddOwn(); });
        return absl::OkStatus();
      }
      [[fallthrough]];
    case Phase::kAdding:
      residuals = {};
      counters = {};
      if (verdict.ok()) return StartCommit();
      // Removes what was written, as far as possible.
      ended = verdict;
      BeginPhase(Phase::kUndoing, [this] {
        if (snapshot_prepared) tables->snapshots().Drop(snapshot).IgnoreError();
        if (leads()) RemoveFlatDir(env, UnfinishedDir(current.dir)).IgnoreError();
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

// Runs on each rank.
absl::Status CheckpointWriter::Impl::AddOwn() {
  TraceSpan span(options.trace, "checkpoint_residuals");
  if (tables->residuals().kept()) {
    HOTROW_RETURN_IF_ERROR(AddFile(kResidualsPrefix, &residuals, &residuals_file));
  }
  if (tables->counters().kept()) {
    HOTROW_RETURN_IF_ERROR(AddFile(kCountersPrefix, &counters, &counters_file));
  }
  // Rank 0 cannot sync a directory entry that another machine made.
  return env.SyncDir(UnfinishedDir(current.dir));
}

absl::Status CheckpointWriter::Impl::AddFile(const char* prefix, HostBuffer<std::byte>* bytes,
                                             SavedModel::Residuals* written) {
  written->file = absl::StrFormat("%s%05d", prefix, group.rank());
  written->bytes = bytes->size();
  written->crc = Crc32c(bytes->span());
  HOTROW_ASSIGN_OR_RETURN(
      const std::unique_ptr<File> file,
      env.Open(absl::StrCat(UnfinishedDir(current.dir), "/", written->file), OpenMode::kTruncate));
  HOTROW_RETURN_IF_ERROR(WriteFull(*file, 0, bytes->span()));
  *bytes = {};  // here, where it takes no time of training
  HOTROW_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::StatusOr<std::vector<SavedModel::Residuals>> CheckpointWriter::Impl::GatherFiles(
    const char* prefix, const SavedModel::Residuals& mine) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> bytes, group.Gather(mine.bytes));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> crcs, group.Gather(mine.crc));
  std::vector<SavedModel::Residuals> out;
  for (size_t r = 0; r < bytes.size(); ++r) {
    out.push_back({.file = absl::StrFormat("%s%05d", prefix, r),
                   .bytes = bytes[r],
                   .crc = static_cast<uint32_t>(crcs[r])});
  }
  return out;
}

absl::Status CheckpointWriter::Impl::StartCommit() {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> snapshots,
                          group.Gather(static_cast<int64_t>(snapshot)));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> infos,
                          group.GatherTexts(SnapshotInfoText(snapshot_info)));
  current.parts = history.places();
  for (size_t r = 0; r < snapshots.size(); ++r) {
    current.parts[r].snapshot = static_cast<SnapshotId>(snapshots[r]);
    HOTROW_RETURN_IF_ERROR(TakeSnapshotInfo(infos[r], &current.parts[r]));
  }
  model.parts = current.parts;
  model.residuals.clear();
  if (tables->residuals().kept()) {
    HOTROW_ASSIGN_OR_RETURN(model.residuals, GatherFiles(kResidualsPrefix, residuals_file));
  }
  model.counters.clear();
  if (tables->counters().kept()) {
    HOTROW_ASSIGN_OR_RETURN(model.counters, GatherFiles(kCountersPrefix, counters_file));
  }
  const int64_t keep = early ? 1 : options.keep;
  const std::vector<CommittedCheckpoint>& committed = history.committed();
  const int64_t gone = std::ssize(committed) + 1 - keep;
  retiring.assign(committed.begin(), committed.begin() + std::max<int64_t>(gone, 0));
  std::function<absl::Status()> commit;
  if (leads()) commit = [this] { return Commit(); };
  BeginPhase(Phase::kCommitting, std::move(commit));
  return absl::OkStatus();
}

// Runs on rank 0.
absl::Status CheckpointWriter::Impl::Commit() {
  TraceSpan span(options.trace, "checkpoint_commit");
  HOTROW_RETURN_IF_ERROR(directory->CheckInPlace());
  const std::string manifest = SavedModelManifest(model);
  outcome.bytes = model.dense_bytes + static_cast<int64_t>(manifest.size());
  for (const SavedModel::Blob& blob : model.blobs) outcome.bytes += blob.bytes;
  // A checkpoint of this step was renamed, but the sync failed: whether it lasts was open.
  HOTROW_ASSIGN_OR_RETURN(const bool is_there, env.Exists(current.dir));
  if (is_there) {
    HOTROW_RETURN_IF_ERROR(RetireCheckpoint(env, current.dir));
    HOTROW_RETURN_IF_ERROR(env.SyncDir(options.dir));
    HOTROW_RETURN_IF_ERROR(RemoveFlatDir(env, RetiredDir(current.dir)));
  }
  HOTROW_RETURN_IF_ERROR(CommitUnfinished(env, current.dir, manifest));
  outcome.committed = true;
  outcome.commit_ns = NowNanos() - begin_ns;
  // On this thread, since these may wait for the disk.
  absl::Status status = tables->snapshots().Commit(snapshot);
  if (retiring.empty()) return status;
  HOTROW_RETURN_IF_ERROR(history.Retire(retiring));
  outcome.retired = true;
  // With several ranks, all must know of it before any of them drops a snapshot.
  if (group.world_size() == 1) status.Update(history.Release(retiring));
  return status;
}

absl::Status CheckpointWriter::Impl::StartRelease(const absl::Status& verdict) {
  const int64_t mine = (outcome.committed ? kCommitted : 0) | (outcome.retired ? kRetiredOld : 0);
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> said, group.Gather(mine));
  if ((said[0] & kCommitted) == 0) {
    // There may be a checkpoint. What it names stays until the next start.
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
      if (!leads()) status = tables->snapshots().Commit(snapshot);
      if (outcome.retired) status.Update(history.Release(retiring));
      return status;
    };
  }
  BeginPhase(Phase::kReleasing, std::move(release));
  return absl::OkStatus();
}

// Counts the committed checkpoint.
void CheckpointWriter::Impl::Count() {
  history.Add(current);
  if (outcome.retired) history.ForgetOldest(std::ssize(retiring));
  int64_t bytes = outcome.bytes + tables->Stats().snapshot_row_bytes - snapshot_row_bytes;
  if (const SavedModel::Part& own = history.own(); HasSnapshotFile(own)) {
    const absl::StatusOr<std::unique_ptr<File>> file =
        env.Open(absl::StrCat(own.tables_dir, "/", SnapshotFileName(snapshot)), OpenMode::kRead);
    const absl::StatusOr<int64_t> size =
        file.ok() ? (*file)->Size() : absl::StatusOr<int64_t>(file.status());
    if (size.ok()) bytes = outcome.bytes + *size;
  }
  bytes += residuals_file.bytes + counters_file.bytes;
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
      // Poll returns any error.
      if (!impl.snapshot_ended) impl.tables->snapshots().Wait().IgnoreError();
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
  if (num_committed() < 2) return false;
  HOTROW_RETURN_IF_ERROR(impl.history.RemoveOldest(num_committed() - 1));
  return true;
}

}  // namespace hotrow
