#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device_stream.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "embedding/snapshots_impl.h"
#include "embedding/storage_fields.h"
#include "store/store_facts.h"

namespace hotrow::internal {

Snapshots::Snapshots(const EmbeddingCollectionOptions& options, const ExecContext& ctx,
                     SnapshotRows* rows, std::function<void()> notify_room)
    : kept_(FactsOf(FieldsOf(options.store).kind).on_disk || !FieldsOf(options.store).dir.empty()),
      ctx_(ctx),
      rows_(rows),
      notify_room_(std::move(notify_room)) {}

void Snapshots::Join() {
  if (write_thread_.joinable()) write_thread_.join();
  if (tidy_thread_.joinable()) tidy_thread_.join();
}

void Snapshots::Stop() {
  stopping_.store(true);
  Join();
}

bool Snapshots::done() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_.done;
}

bool Snapshots::ended() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_.ended;
}

absl::Status Snapshots::CheckName(SnapshotId id) const {
  HOTROW_RETURN_IF_ERROR(rows_->Broken());
  if (id == 0) {
    return absl::FailedPreconditionError(
        "EmbeddingSnapshots::Begin: a snapshot's name must not be 0");
  }
  if (!kept_) {
    return absl::FailedPreconditionError(
        "EmbeddingSnapshots::Begin: MemoryStorage.snapshot_dir is empty, so this collection keeps "
        "no snapshots");
  }
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> used, rows_->store()->ListSnapshots());
  if (std::find(used.begin(), used.end(), id) != used.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("EmbeddingSnapshots::Begin: there is a snapshot ", id, " already"));
  }
  return absl::OkStatus();
}

void Snapshots::Tidy() {
  TraceSpan span(ctx_.trace, "snapshot_tidy");
  // Without it the snapshot may be possible all the same.
  Caught("", [&]() -> absl::Status {
    rows_->store()->TidyForSnapshot();
    return absl::OkStatus();
  }).IgnoreError();
}

void Snapshots::EndCapture() {
  rows_->EndSnapshot();
  notify_room_();
}

absl::Status Snapshots::Write(SnapshotId id, bool tidy) {
  const absl::Status status = Caught("writing a snapshot", [&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(UseDevice(ctx_));
    for (bool more = true; more;) {
      if (stopping_.load()) return absl::CancelledError("the collection is closing");
      TraceSpan span(ctx_.trace, "snapshot_rows");
      HOTROW_ASSIGN_OR_RETURN(more, rows_->WriteSnapshotPart());
      notify_room_();
    }
    if (tidy) Tidy();
    TraceSpan span(ctx_.trace, "snapshot");
    return rows_->store()->PrepareSnapshot(id, [this] { EndCapture(); });
  });
  if (!status.ok()) EndCapture();
  return status;
}

void Snapshots::WriteHeld() {
  if (stopping_.load()) return;
  // Now, and not in the pause of the next snapshot, which says what is wrong if this fails.
  TraceSpan span(ctx_.trace, "write_held");
  Caught("", [&] { return rows_->WriteHeld(); }).IgnoreError();
}

void Snapshots::SetEnded() {
  const std::lock_guard<std::mutex> lock(mutex_);
  state_.ended = true;
}

void Snapshots::Finish(absl::Status status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  state_.prepare_ns = NowNanos() - state_.begin_ns;
  if (!status.ok()) state_.failed += 1;
  state_.status = std::move(status);
  state_.done = true;
  finished_.notify_all();
}

void Snapshots::Announce() {
  if (tidied_ || !ended()) return;
  Join();
  absl::StatusOr<std::thread> thread = StartThread("tidying up for a snapshot", [this] { Tidy(); });
  if (!thread.ok()) return;  // then the snapshot does it, or says why it cannot be begun
  tidy_thread_ = *std::move(thread);
  tidied_ = true;
}

absl::Status Snapshots::Begin(SnapshotId id) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!state_.done) {
      return absl::FailedPreconditionError(absl::StrCat(
          "EmbeddingSnapshots::Begin ", id, ": snapshot ", state_.id, " is still being written"));
    }
  }
  if (write_thread_.joinable()) write_thread_.join();
  const int64_t begin_ns = NowNanos();
  HOTROW_RETURN_IF_ERROR(CheckName(id));
  if (rows_->has_caches()) {
    const absl::Status begun = rows_->BeginSnapshot();
    if (!begun.ok()) {
      notify_room_();
      return begun;
    }
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    state_.id = id;
    state_.done = false;
    state_.ended = false;
    state_.status = absl::OkStatus();
    state_.begin_ns = begin_ns;
    state_.count += 1;
  }
  const bool tidy = !std::exchange(tidied_, false);
  absl::Status status;
  if (!rows_->has_caches()) {
    // Nothing may change a row meanwhile, and the caller is here.
    TraceSpan span(ctx_.trace, "snapshot");
    status = Caught("writing a snapshot", [&] {
      if (tidy) rows_->store()->TidyForSnapshot();
      return rows_->store()->PrepareSnapshot(id, [] {});
    });
    Finish(status);
    SetEnded();
  } else {
    bool beside = false;
    // What was held back comes last: whoever waits to commit the snapshot, which may make room for
    // it, need not wait for that.
    absl::StatusOr<std::thread> thread = Caught("writing a snapshot", [&] {
      beside = rows_->HasRoomBesideSnapshot();
      return StartThread("writing a snapshot", [this, id, tidy] {
        Finish(Write(id, tidy));
        WriteHeld();
        SetEnded();
      });
    });
    if (thread.ok()) {
      write_thread_ = *std::move(thread);
      if (!beside) {
        std::unique_lock<std::mutex> lock(mutex_);
        finished_.wait(lock, [this] { return state_.done; });
      }
    } else {
      EndCapture();
      tidied_ = !tidy;
      status = thread.status();
      Finish(status);
      SetEnded();
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  state_.pause_ns = NowNanos() - begin_ns;
  state_.pause_ns_max = std::max(state_.pause_ns_max, state_.pause_ns);
  return status;
}

absl::StatusOr<bool> Snapshots::Prepared() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_.id == 0) {
    return absl::FailedPreconditionError("EmbeddingSnapshots::Prepared: no snapshot was begun");
  }
  if (!state_.done) return false;
  HOTROW_RETURN_IF_ERROR(state_.status);
  return true;
}

absl::Status Snapshots::Wait() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, [this] { return state_.done; });
  }
  return Prepared().status();
}

absl::Status Snapshots::Prepare(SnapshotId id) {
  if (done() && !tidied_) {
    // Nobody trains meanwhile, so now is as good as ahead.
    Join();
    Tidy();
    tidied_ = true;
  }
  HOTROW_RETURN_IF_ERROR(Begin(id));
  return Wait();
}

void Snapshots::AddTo(EmbeddingStats* stats) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  stats->snapshots = state_.count;
  stats->snapshots_failed = state_.failed;
  stats->snapshot_pause_ns = state_.pause_ns;
  stats->snapshot_pause_ns_max = state_.pause_ns_max;
  stats->snapshot_prepare_ns = state_.prepare_ns;
}

}  // namespace hotrow::internal
