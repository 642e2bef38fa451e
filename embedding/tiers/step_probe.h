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
#include "cache/address_index.h"
#include "cache/row_cache.h"
#include "ops/keys/split_slots.h"

namespace hotrow::internal {

class GuardedCache;

// Which of a step's keys a staged cache has, found out where it lies. The hits are pinned, all of
// them before anything is evicted for a miss; their slots never leave the device. Misses whose rows
// an index knows (DeviceIndex) are "known": the device gives them ways and reads their rows by
// itself, so the host hears how many of each table they are, and no more. The host is told the
// others, the misses.
//
// Use:     Start, Wait; PlaceKnown for all that are known, TellUnplaced where some found no room;
//          their rows are read; KnownFilled. Clear once the pins were taken off, or the step given
//          up.
// Memory:  of the device 22 bytes a key, with an index 58; page-locked 20 bytes a key, which the
//          device writes only where keys miss. Grown to the largest step.
// Threads: one at a time. Start and PlaceKnown with the cache's mutex.
// Order:   the device reads and writes it on the cache's stream, but for what Address enqueues,
//          which must be done before the next Start. What hit_slots gives may be read on the
//          cache's stream until the next Start; what is known, on any stream after a wait for that.
class StepProbe {
 public:
  // Enqueues the search. The keys, distinct, and how many lookups each has are memory that the
  // cache reads; they stay until Clear. index: null, or what finds the rows of misses,
  // of tables numbered below num_tables.
  absl::Status Start(const ExecContext& ctx, GuardedCache* cache, std::span<const RowKey> keys,
                     std::span<const int32_t> counts, const AddressIndex* index = nullptr,
                     int64_t num_tables = 0);
  // Waits until the search is done, on the stream of that cache.
  absl::Status Wait(const DeviceStream& stream);
  void Clear();

  // Whether it has found: after Wait, until Clear; before it empty.
  bool found() const { return found_; }
  // Those of known keys too, from KnownFilled on.
  std::span<const int64_t> hit_slots() const {
    return {hit_slots_.data(), static_cast<size_t>(hits_)};
  }
  int64_t hits() const { return hits_; }
  int64_t hit_lookups() const { return found_ ? totals_[0].hit_lookups : 0; }
  // The misses in the order of the keys, then those that TellUnplaced told; memory of the host.
  std::span<const RowKey> miss_keys() const {
    return {miss_keys_.data(), static_cast<size_t>(misses_)};
  }
  std::span<const int32_t> miss_counts() const {
    return {miss_counts_.data(), static_cast<size_t>(misses_)};
  }

  // --- Known keys, in their order; 0 before Wait and after KnownFilled

  int64_t known() const { return known_; }
  int64_t known_lookups() const { return known_lookups_; }
  // The known keys of a table, by its number, after Wait; what TellUnplaced told included.
  FoundOfTable known_of_table(int64_t table) const { return known_of_table_[table]; }
  // Enqueues on the cache's stream: gives `n` known keys from `begin` on their ways, as
  // RowCache::PlaceMisses does. `result` has no slots.
  absl::Status PlaceKnown(const ExecContext& ctx, GuardedCache* cache, int64_t begin, int64_t n,
                          const RowCache::InsertResult& result);
  // Makes misses of those that found no room, after all were placed and that was waited for. Waits
  // for the stream of the cache.
  absl::Status TellUnplaced(const DeviceStream& stream);
  // Memory of the device: [known] where the rows are to go, negative where that is not placed yet
  // or had no room, and where the store keeps them.
  std::span<int64_t> known_slots() {
    return {hit_slots_.data() + hits_, static_cast<size_t>(known_)};
  }
  std::span<std::byte* const> known_rows() const {
    return {known_rows_.data(), static_cast<size_t>(known_)};
  }
  // The rows are on their way; they were marked as filled.
  void KnownSent() { known_sent_ = true; }
  bool known_sent() const { return known_sent_; }
  void KnownFilled();

  // Enqueues on `here`: rows[i] = where the row of key i lies. miss_slots: where the misses were
  // placed; memory that the device reaches.
  absl::Status Address(const ExecContext& here, const GuardedCache& cache,
                       std::span<const int64_t> miss_slots, std::span<std::byte*> rows) const;

  // Memory taken.
  int64_t host_bytes() const {
    return miss_keys_.bytes() + miss_counts_.bytes() + totals_.bytes() + known_of_table_.bytes();
  }
  int64_t device_bytes() const {
    return slots_.bytes() + placement_.bytes() + evicted_.bytes() + hit_slots_.bytes() +
           miss_positions_.bytes() + workspace_.bytes() + rows_.bytes() + known_keys_.bytes() +
           known_positions_.bytes() + known_rows_.bytes() + found_of_table_.bytes();
  }

 private:
  absl::Status Grow(GuardedCache* cache, int64_t num_keys, bool indexed, int64_t num_tables);

  int64_t num_keys_ = 0;
  std::span<const int32_t> counts_;  // the caller's
  bool found_ = false;
  int64_t hits_ = 0;
  int64_t misses_ = 0;
  int64_t known_ = 0;
  int64_t known_lookups_ = 0;
  bool known_sent_ = false;
  DeviceFlag done_;
  // What the device has.
  DeviceMemory<int64_t> slots_;           // [keys] negative: missed
  DeviceMemory<Placement> placement_;     // [keys] what PinHits says beside them
  DeviceMemory<uint8_t> evicted_;         // [keys]
  DeviceMemory<int64_t> hit_slots_;       // [hits + known]
  DeviceMemory<int32_t> miss_positions_;  // [misses] among the keys
  DeviceMemory<std::byte> workspace_;
  // What there is with an index.
  DeviceMemory<std::byte*> rows_;              // [keys] what it says
  DeviceMemory<RowKey> known_keys_;            // [known]
  DeviceMemory<int32_t> known_positions_;      // [known] among the keys
  DeviceMemory<std::byte*> known_rows_;        // [known]
  DeviceMemory<FoundOfTable> found_of_table_;  // [tables]
  // Page-locked.
  SharedBuffer<RowKey> miss_keys_;             // [misses]
  SharedBuffer<int32_t> miss_counts_;          // [misses]
  SharedBuffer<SplitSlotsTotals> totals_;      // [1]
  SharedBuffer<FoundOfTable> known_of_table_;  // [tables]
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_STEP_PROBE_H_
