#ifndef HOTROW_EMBEDDING_TIERS_GUARDED_CACHE_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_GUARDED_CACHE_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "cache/row_cache.h"

namespace hotrow::internal {

// GuardedCache is a RowCache with what all who use it share: a lock, the stream on which it
// changes, and the first error of calls that cannot return one.
//
// Staged: see CachePlace. Slots that the cache reads then lie in page-locked memory.
// Threads: mutex() is for the callers: they hold it while the cache or its metadata changes, for at
//          most a staging area of keys and never while a store works, but in the evaluation of a
//          staged table and the Flush of another, and for the calls below that say so. All others
//          may run on any thread.
// Errors:  what a device says. Once Note has been given one, bytes and marks of the cache may be
//          anything: every call of a table that returns a status asks Broken() first.
class GuardedCache {
 public:
  // Where `staged`, slots from the host travel `staging_rows` at a time.
  static absl::StatusOr<std::unique_ptr<GuardedCache>> Create(const RowCacheOptions& options,
                                                              bool staged, int64_t staging_rows);

  std::mutex& mutex() const { return mutex_; }
  absl::Status Broken() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return broken_;
  }
  bool staged() const { return staged_; }
  Device device() const { return rows_->device(); }
  std::byte* row(int64_t slot) const { return rows_->row(slot); }
  int64_t row_bytes() const { return rows_->row_bytes(); }
  RowCacheStats Size() const { return rows_->Size(); }
  // Counts as of the last RowCache::EnqueueStats that is done. Waits for nothing.
  RowCacheStats Stats() const { return rows_->LastStats(); }
  // Waits until what is enqueued is done. An error was or will be reported by a call with a status.
  void WaitForDevice() const { stream_.Wait().IgnoreError(); }

  // --- With mutex(), but for the Flush of a staged table

  RowCache* get() const { return rows_.get(); }
  DeviceStream& stream() { return stream_; }
  void Note(const absl::Status& status) { broken_.Update(status); }
  const absl::Status& broken() const { return broken_; }
  // Runs `call` with slots where the cache can read them. Staged it waits.
  absl::Status WithSlots(
      std::span<const int64_t> slots,
      absl::FunctionRef<absl::Status(const ExecContext& ctx, std::span<const int64_t> slots)> call);
  // Puts a row of the host into a way that waits for its bytes; it differs from the store's.
  absl::Status PutDirty(int64_t slot, const std::byte* row);

 private:
  GuardedCache() = default;

  bool staged_ = false;
  mutable std::mutex mutex_;
  std::unique_ptr<RowCache> rows_;
  DeviceStream stream_;
  absl::Status broken_;
  SharedBuffer<int64_t> call_slots_;  // of WithSlots, staged: [staging_rows]
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_GUARDED_CACHE_IMPL_H_
