#include "store/ssd/ssd_commits_impl.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/unique_id.h"
#include "store/ssd/ssd_image_impl.h"

namespace hotrow::internal {
namespace {

// Numbers below these may be in use once the manifest that says so is durable. A run that ends
// without one leaves records behind whose numbers are never given out again.
constexpr uint64_t kEpochsReserved = uint64_t{1} << 32;
constexpr uint64_t kSequencesReserved = uint64_t{1} << 40;

}  // namespace

SsdCommits::SsdCommits(Env& env, const SsdStoreOptions& options, const SsdTables& tables,
                       SsdLog& log, const SsdLive& live, const SsdAppender& appender,
                       const SsdRoom& room, SsdManifest manifest)
    : env_(env),
      options_(options),
      tables_(tables),
      log_(log),
      live_(live),
      appender_(appender),
      room_(room),
      manifest_path_(absl::StrCat(options.path, "/", std::string(kSsdManifestName))),
      life_payload_(manifest.payload_bytes_written),
      life_device_(manifest.device_bytes_written),
      manifest_(std::move(manifest)) {}

std::string SsdCommits::ImagePath(uint64_t number) const {
  return absl::StrCat(options_.path, "/", SsdIndexName(number));
}

absl::Status SsdCommits::Begin(const SsdIndex& index, bool has_loaded_image,
                               std::vector<std::string> surplus_files) {
  std::lock_guard lock(commit_mutex_);
  SsdManifest next = manifest_;
  next.next_epoch = log_.next_epoch() + kEpochsReserved;
  next.sequence_limit = appender_.next_sequence() + kSequencesReserved;
  if (!has_loaded_image || !room_.HasRoomForImage(index, manifest_)) {
    if (next.index_image != 0) surplus_files.push_back(ImagePath(next.index_image));
    next.index_image = 0;
    next.index_image_id = {};
  }
  next.table_rows = live_.table_rows();
  has_image_ = next.index_image != 0;
  HOTROW_RETURN_IF_ERROR(WriteManifest(std::move(next)));
  for (const std::string& path : surplus_files) {
    const absl::Status removed = env_.Remove(path);
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;  // an image may be missing
  }
  return absl::OkStatus();
}

absl::Status SsdCommits::WriteManifest(SsdManifest next) {
  HOTROW_RETURN_IF_ERROR(log_.CheckInPlace());
  ++next.generation;
  next.payload_bytes_written =
      life_payload_ + static_cast<uint64_t>(appender_.counts().payload_bytes.value());
  next.device_bytes_written =
      life_device_ + static_cast<uint64_t>(log_.bytes_written() + bytes_written_.value());
  const std::string bytes = EncodeSsdManifest(next);
  HOTROW_RETURN_IF_ERROR(WriteFileAtomically(env_, manifest_path_, bytes));
  bytes_written_.Add(std::ssize(bytes));
  manifest_file_bytes_ = std::ssize(bytes);
  const std::lock_guard lock(manifest_mutex_);
  manifest_ = std::move(next);
  return absl::OkStatus();
}

absl::StatusOr<bool> SsdCommits::PrepareSnapshot(Cleaning cleaning, SnapshotId snapshot,
                                                 absl::FunctionRef<void()> captured) {
  const Capture capture = {snapshot, captured};
  return TryCommit(cleaning, &capture);
}

absl::StatusOr<bool> SsdCommits::TryCommit(Cleaning cleaning, const Capture* capture) {
  std::lock_guard commit_lock(commit_mutex_);
  SsdManifest next = manifest_;
  if (capture != nullptr) {
    for (const SsdSnapshot& s : next.snapshots) {
      if (s.id != capture->id) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(options_.path, ": there is a snapshot ", s.id, " already"));
    }
  }
  std::vector<uint32_t> cleaned;
  uint64_t sequence = 0;
  {
    std::scoped_lock streams(log_.stream_mutex(SsdStream::kSurvivors),
                             log_.stream_mutex(SsdStream::kFresh));
    if (cleaning == Cleaning::kMayRun && log_.Available() == 0) return false;
    log_.Submit(SsdStream::kSurvivors, /*close=*/false);
    log_.Submit(SsdStream::kFresh, /*close=*/false);
    cleaned = log_.CleanedSegments();
    next.segments = log_.LiveSegments();
    next.table_rows = live_.table_rows();
    sequence = appender_.next_sequence();
  }
  if (capture != nullptr) {
    HOTROW_RETURN_IF_ERROR(room_.CheckSnapshot(std::ssize(next.segments)));
    // All that is appended from here on lies behind the ends of this state.
    capture->captured();
  }
  HOTROW_RETURN_IF_ERROR(log_.WaitWritten());
  HOTROW_RETURN_IF_ERROR(log_.Sync());
  next.next_epoch = std::max(next.next_epoch, log_.next_epoch() + kEpochsReserved);
  next.sequence_limit = std::max(next.sequence_limit, sequence + kSequencesReserved / 2);
  const uint64_t old_image = next.index_image;
  next.index_image = 0;
  next.index_image_id = {};
  if (capture != nullptr) {
    next.snapshots.push_back({.id = capture->id,
                              .committed = false,
                              .sequence = sequence,
                              .segments = next.segments,
                              .identity = UniqueId::Random(),
                              .table_rows = next.table_rows});
    HOTROW_RETURN_IF_ERROR(room_.CheckManifest(next));
  }
  HOTROW_RETURN_IF_ERROR(WriteManifest(std::move(next)));
  if (capture != nullptr) log_.AddSnapshotRefs(manifest_.snapshots.back().segments, 1);
  log_.Release(cleaned);
  if (old_image != 0) {
    env_.Remove(ImagePath(old_image)).IgnoreError();
    has_image_ = false;
  }
  return true;
}

// Replaces the durable manifest by one that differs from it in what `change` does.
absl::Status SsdCommits::ChangeManifest(absl::FunctionRef<absl::Status(SsdManifest*)> change) {
  std::lock_guard commit_lock(commit_mutex_);
  HOTROW_RETURN_IF_ERROR(log_.broken());
  SsdManifest next = manifest_;
  HOTROW_RETURN_IF_ERROR(change(&next));
  return WriteManifest(std::move(next));
}

absl::Status SsdCommits::NoSnapshot(SnapshotId snapshot, const char* to_do) const {
  return absl::FailedPreconditionError(
      absl::StrCat(options_.path, ": there is no snapshot ", snapshot, to_do));
}

absl::Status SsdCommits::CommitSnapshot(SnapshotId snapshot) {
  return ChangeManifest([&](SsdManifest* manifest) -> absl::Status {
    for (SsdSnapshot& s : manifest->snapshots) {
      if (s.id != snapshot) continue;
      s.committed = true;
      return absl::OkStatus();
    }
    return NoSnapshot(snapshot, " to commit");
  });
}

absl::Status SsdCommits::DropSnapshot(SnapshotId snapshot) {
  std::vector<SsdSegmentRef> refs;
  HOTROW_RETURN_IF_ERROR(ChangeManifest([&](SsdManifest* manifest) -> absl::Status {
    for (SsdSnapshot& s : manifest->snapshots) {
      if (s.id != snapshot) continue;
      refs = std::move(s.segments);
      std::erase_if(manifest->snapshots, [&](const SsdSnapshot& x) { return x.id == snapshot; });
      return absl::OkStatus();
    }
    return NoSnapshot(snapshot, " to drop");
  }));
  log_.AddSnapshotRefs(refs, -1);
  return absl::OkStatus();
}

std::vector<SnapshotId> SsdCommits::ListSnapshots() const {
  std::lock_guard lock(manifest_mutex_);
  std::vector<SnapshotId> ids;
  for (const SsdSnapshot& s : manifest_.snapshots) ids.push_back(s.id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<SsdSegmentRef> SsdCommits::NewestSnapshot() const {
  std::lock_guard lock(manifest_mutex_);
  const SsdSnapshot* newest = nullptr;
  for (const SsdSnapshot& s : manifest_.snapshots) {
    if (newest == nullptr || s.sequence >= newest->sequence) newest = &s;
  }
  return newest == nullptr ? std::vector<SsdSegmentRef>() : newest->segments;
}

absl::StatusOr<SnapshotInfo> SsdCommits::DescribeSnapshot(SnapshotId snapshot) const {
  std::lock_guard lock(manifest_mutex_);
  for (const SsdSnapshot& s : manifest_.snapshots) {
    if (s.id == snapshot) return tables_.Describe(s);
  }
  return NoSnapshot(snapshot, "");
}

absl::Status SsdCommits::DropImage() {
  if (!has_image_.load(std::memory_order_acquire)) return absl::OkStatus();
  std::lock_guard lock(commit_mutex_);
  if (manifest_.index_image == 0) return absl::OkStatus();
  SsdManifest next = manifest_;
  next.index_image = 0;
  next.index_image_id = {};
  const std::string path = ImagePath(manifest_.index_image);
  HOTROW_RETURN_IF_ERROR(WriteManifest(std::move(next)));
  env_.Remove(path).IgnoreError();
  has_image_ = false;
  return absl::OkStatus();
}

absl::Status SsdCommits::WriteImage(const SsdIndex& index) {
  std::lock_guard commit_lock(commit_mutex_);
  HOTROW_RETURN_IF_ERROR(log_.CheckInPlace());
  const int64_t image_bytes = SsdIndexImageBytes(index);
  const auto excess = [&] {
    return log_.files() * log_.options().segment_bytes + image_bytes + 2 * manifest_file_bytes_ -
           options_.disk_budget_bytes;
  };
  if (excess() > 0) HOTROW_RETURN_IF_ERROR(log_.RemoveFree(excess()));
  if (excess() > 0) return absl::OkStatus();
  SsdManifest next = manifest_;
  next.index_image = manifest_.generation + 1;
  next.index_image_id = UniqueId::Random();
  const std::string path = ImagePath(next.index_image);
  const absl::Status status = WriteSsdIndexImage(env_, path, next.index_image_id, index);
  if (absl::IsResourceExhausted(status)) {
    env_.Remove(path).IgnoreError();
    return absl::OkStatus();
  }
  HOTROW_RETURN_IF_ERROR(status);
  bytes_written_.Add(image_bytes);
  HOTROW_RETURN_IF_ERROR(env_.SyncDir(options_.path));
  return WriteManifest(std::move(next));
}

}  // namespace hotrow::internal
