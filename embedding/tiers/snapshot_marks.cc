#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/trace.h"
#include "embedding/tiers/snapshot_marks_impl.h"

namespace hotrow::internal {

absl::StatusOr<std::unique_ptr<SnapshotMarks>> SnapshotMarks::Create(GuardedCache* cache,
                                                                     const CacheBuffers& buffers,
                                                                     int64_t row_bytes) {
  std::unique_ptr<SnapshotMarks> marks(new SnapshotMarks(cache, row_bytes));
  const Device device = cache->device();
  marks->part_rows_ = buffers.part_rows;
  marks->part_keys_.reserve(static_cast<size_t>(buffers.part_rows));
  marks->part_pointers_.reserve(static_cast<size_t>(buffers.part_rows));
  HOTROW_ASSIGN_OR_RETURN(marks->part_,
                          SharedBuffer<std::byte>::Create(buffers.part_rows * row_bytes, {device}));
  HOTROW_ASSIGN_OR_RETURN(marks->taken_keys_,
                          SharedBuffer<RowKey>::Create(buffers.part_rows, {device}));
  HOTROW_ASSIGN_OR_RETURN(marks->taken_slots_,
                          SharedBuffer<int64_t>::Create(buffers.part_rows, {device}));
  HOTROW_ASSIGN_OR_RETURN(marks->copy_keys_,
                          SharedBuffer<RowKey>::Create(buffers.copy_rows, {device}));
  HOTROW_ASSIGN_OR_RETURN(marks->copies_,
                          SharedBuffer<std::byte>::Create(buffers.copy_rows * row_bytes, {device}));
  return marks;
}

absl::Status SnapshotMarks::Begin() {
  HOTROW_CHECK(!begun_ && !marking_ && num_copies_ == 0 && pins_ == 0);
  int64_t marked = 0;
  HOTROW_RETURN_IF_ERROR(
      cache_->stream().RunAndWait(ExecContext(), [&](const ExecContext& here) -> absl::Status {
        HOTROW_ASSIGN_OR_RETURN(marked, cache_->get()->MarkDirtyRows(here));
        return absl::OkStatus();
      }));
  begun_ = true;
  marking_ = marked > 0;
  cursor_ = 0;
  return absl::OkStatus();
}

absl::Status SnapshotMarks::KeepBeforeUpdate(const ExecContext& ctx,
                                             std::span<const int64_t> slots) {
  std::unique_lock<std::mutex> lock(cache_->mutex());
  HOTROW_RETURN_IF_ERROR(cache_->broken());
  while (!slots.empty()) {
    if (!marking_) break;
    if (num_copies_ == copy_keys_.size()) {
      counts_.Add({.update_waits = 1});
      const int64_t begin = NowNanos();
      changed_.wait(lock, [&] { return !marking_ || num_copies_ < copy_keys_.size(); });
      counts_.Add({.update_wait_ns = NowNanos() - begin});
      if (!marking_) break;
    }
    // As many as fit before the ring's end.
    const int64_t at = (first_copy_ + num_copies_) % copy_keys_.size();
    const int64_t room = std::min(copy_keys_.size() - num_copies_, copy_keys_.size() - at);
    const std::span<RowKey> keys = {copy_keys_.data() + at, static_cast<size_t>(room)};
    int64_t taken = 0;
    int64_t looked = 0;
    HOTROW_RETURN_IF_ERROR(
        cache_->stream().RunAndWait(ctx, [&](const ExecContext& here) -> absl::Status {
          HOTROW_ASSIGN_OR_RETURN(
              looked, cache_->get()->TakeMarks(here, slots, keys, copies_.data() + at * row_bytes_,
                                               &taken));
          return absl::OkStatus();
        }));
    slots = slots.subspan(static_cast<size_t>(looked));
    num_copies_ += taken;
    counts_.Add({.copied = taken});
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SnapshotMarks::WritePart(Write write, bool stay_dirty) {
  part_keys_.clear();
  part_pointers_.clear();
  {
    const std::lock_guard<std::mutex> lock(cache_->mutex());
    HOTROW_CHECK(begun_);
    HOTROW_RETURN_IF_ERROR(cache_->broken());
    // Copies first: an update may be waiting for their room.
    for (int64_t i = 0; i < std::min(num_copies_, part_rows_); ++i) {
      const int64_t at = (first_copy_ + i) % copy_keys_.size();
      part_keys_.push_back(copy_keys_[at]);
      part_pointers_.push_back(copies_.data() + at * row_bytes_);
    }
    if (part_keys_.empty() && marking_) {
      int64_t n = 0;
      HOTROW_RETURN_IF_ERROR(
          cache_->stream().RunAndWait(ExecContext(), [&](const ExecContext& here) -> absl::Status {
            HOTROW_ASSIGN_OR_RETURN(
                n, cache_->get()->TakeMarked(here, &cursor_, taken_keys_.first(part_rows_),
                                             taken_slots_.first(part_rows_), part_.data()));
            return absl::OkStatus();
          }));
      part_keys_.assign(taken_keys_.data(), taken_keys_.data() + n);
      pins_ = n;
      for (int64_t i = 0; i < n; ++i) part_pointers_.push_back(part_.data() + i * row_bytes_);
      if (n == 0 && cursor_ == cache_->get()->num_slots()) marking_ = false;
    }
    if (part_keys_.empty()) return marking_;
  }
  // Rows are pinned, and clean.
  const absl::Status status =
      Caught("rows of a snapshot", [&] { return write(part_keys_, part_pointers_); });
  const auto n = static_cast<int64_t>(part_keys_.size());
  const std::lock_guard<std::mutex> lock(cache_->mutex());
  if (pins_ > 0) {
    cache_->Note(cache_->stream().Run(
        ExecContext(), [rows = cache_->get(), slots = taken_slots_.first(pins_),
                        dirty = stay_dirty || !status.ok()](const ExecContext& here) {
          return rows->Unpin(here, slots, dirty);
        }));
    pins_ = 0;
  } else if (status.ok()) {
    first_copy_ = (first_copy_ + n) % copy_keys_.size();
    num_copies_ -= n;
  }
  changed_.notify_all();
  if (!status.ok()) return status;
  if (!stay_dirty) counts_.Add({.rows = n});
  return true;
}

void SnapshotMarks::End() {
  if (marking_) {
    cache_->Note(cache_->stream().Run(
        ExecContext(),
        [rows = cache_->get()](const ExecContext& here) { return rows->DropMarks(here); }));
  }
  num_copies_ = 0;
  marking_ = false;
  begun_ = false;
  changed_.notify_all();
}

}  // namespace hotrow::internal
