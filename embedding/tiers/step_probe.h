#ifndef HOTROW_EMBEDDING_TIERS_STEP_PROBE_H_
#define HOTROW_EMBEDDING_TIERS_STEP_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/device_flag.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "cache/row_cache.h"
#include "ops/split_slots.h"

namespace hotrow::internal {

class GuardedCache;

// Which of a step's keys a staged cache has, found out where it lies. The hits are pinned, all of
// them before anything is evicted for a miss; their slots never leave the device. The host is told
// the misses.
//
// Use:     Start, Wait; Clear once the pins were taken off, or the step given up.
// Memory:  of the device 22 bytes a key, page-locked 24 bytes a key, which the device writes only
//          where keys miss. Grown to the largest step.
// Threads: one at a time. Start with the cache's mutex.
// Order:   the device reads and writes it on the cache's stream, but for what Address enqueues,
//          which must be done before the next Start. What hit_slots gives may be read on the
//          cache's stream until the next Start.
class StepProbe {
 public:
  // Enqueues the search. The keys, distinct, and how many lookups each has are memory that the
  // cache reads; they stay until Wait returns.
  absl::Status Start(const ExecContext& ctx, GuardedCache* cache, std::span<const RowKey> keys,
                     std::span<const int32_t> counts);
  // Until the search is done, on the stream of that cache.
  absl::Status Wait(const DeviceStream& stream);
  void Clear() { found_ = false; }

  // After Wait, until Clear; before it empty.
  bool found() const { return found_; }
  std::span<const int64_t> hit_slots() const {
    return {hit_slots_.data(), static_cast<size_t>(found_ ? hits() : 0)};
  }
  int64_t hits() const { return num_keys_ - totals_[0].misses; }
  int64_t hit_lookups() const { return totals_[0].hit_lookups; }
  // In the order of the keys; memory of the host.
  std::span<const RowKey> miss_keys() const { return {miss_keys_.data(), Misses()}; }
  std::span<const int32_t> miss_counts() const { return {miss_counts_.data(), Misses()}; }

  // Enqueues on `here`: rows[i] = where the row of key i lies. miss_slots: where the misses were
  // placed; memory that the device reaches.
  absl::Status Address(const ExecContext& here, const GuardedCache& cache,
                       std::span<const int64_t> miss_slots, std::span<std::byte*> rows) const;

  // Memory taken.
  int64_t host_bytes() const {
    return miss_keys_.bytes() + miss_counts_.bytes() + miss_positions_.bytes() + totals_.bytes();
  }
  int64_t device_bytes() const {
    return slots_.bytes() + placement_.bytes() + evicted_.bytes() + hit_slots_.bytes() +
           workspace_.bytes();
  }

 private:
  absl::Status Grow(GuardedCache* cache, int64_t num_keys);
  size_t Misses() const { return found_ ? static_cast<size_t>(totals_[0].misses) : 0; }

  int64_t num_keys_ = 0;
  bool found_ = false;
  DeviceFlag done_;
  // Of the device.
  DeviceMemory<int64_t> slots_;        // [keys] negative: missed
  DeviceMemory<Placement> placement_;  // [keys] what PinHits says beside them
  DeviceMemory<uint8_t> evicted_;      // [keys]
  DeviceMemory<int64_t> hit_slots_;    // [hits]
  DeviceMemory<std::byte> workspace_;
  // Page-locked.
  SharedBuffer<RowKey> miss_keys_;         // [misses]
  SharedBuffer<int32_t> miss_counts_;      // [misses]
  SharedBuffer<int32_t> miss_positions_;   // [misses] among the keys
  SharedBuffer<SplitSlotsTotals> totals_;  // [1]
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_STEP_PROBE_H_
