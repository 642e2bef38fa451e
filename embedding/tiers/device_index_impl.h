#ifndef HOTROW_EMBEDDING_TIERS_DEVICE_INDEX_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_DEVICE_INDEX_IMPL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "cache/address_index.h"
#include "embedding/tiers/guarded_cache_impl.h"
#include "store/host/host_store.h"

namespace hotrow::internal {

// Where a HostStore keeps the rows of one width, as far as a budget goes, in the memory of the
// device of a staged cache: the device then finds and reads rows that the cache does not have by
// itself. What it does not know, the host looks up, as if there were no index.
//
// Learns:  a row that joins the store, and one that the host has looked up for the device.
// Forgets: keys that are erased, before the store erases them; all, where the store has dropped
//          rows by age since the last look.
// Order:   all of it happens on the cache's stream, on which keys are looked up, too: so no kernel
//          that looks runs beside one that changes the index, and each sees what was enqueued
//          before it. An address is given to the index when its row is whole, and taken from it
//          before the store may use the place for another row. So the index never has an address
//          that is not its key's.
// Threads: any, but Erase: while nobody looks keys up, or is on the way from that to
//          InsertOrAssign. The cache's mutex is taken after the index's own.
// Errors:  those of the device.
class DeviceIndex {
 public:
  // Not owned: both outlive this. batch_keys: how many travel at a time.
  static absl::StatusOr<std::unique_ptr<DeviceIndex>> Create(GuardedCache* cache, HostStore* store,
                                                             int64_t budget_bytes,
                                                             int64_t batch_keys);

  // The rows of these keys, distinct ones, lie there now; nulls are passed over.
  absl::Status InsertOrAssign(std::span<const RowKey> keys, std::span<std::byte* const> rows);
  // Writes rows to the store, over `pool` (or null), and learns where the new ones lie.
  absl::Status Write(std::span<const RowKey> keys, std::span<const std::byte* const> rows,
                     ThreadPool* pool = nullptr);
  // Call before the keys are erased from the store. Distinct.
  absl::Status Erase(std::span<const RowKey> keys);

  // What to look keys up in, with the cache's mutex, on the cache's stream.
  absl::StatusOr<const AddressIndex*> ForSearch();
  absl::Status EnqueueStats();

  AddressIndexStats Stats() const { return index_->LastStats(); }
  // Page-locked memory.
  int64_t host_bytes() const;

 private:
  // Keys on their way to the device.
  struct Area {
    SharedBuffer<RowKey> keys;      // [batch_keys]
    SharedBuffer<std::byte*> rows;  // [batch_keys]
    DeviceEvent done;               // the device has read it
  };

  DeviceIndex(GuardedCache* cache, HostStore* store) : cache_(cache), store_(store) {}

  // An area that is free, with mutex_.
  absl::StatusOr<Area*> NextArea();

  GuardedCache* const cache_;
  HostStore* const store_;
  std::unique_ptr<AddressIndex> index_;
  int64_t aged_rows_ =
      0;  // of the store, when keys were looked up last; the cache's mutex guards it

  std::mutex mutex_;  // guards what follows
  std::array<Area, 2> areas_;
  size_t turn_ = 0;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_DEVICE_INDEX_IMPL_H_
