#ifndef HOTROW_STORE_SSD_SSD_LIVE_IMPL_H_
#define HOTROW_STORE_SSD_SSD_LIVE_IMPL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_log_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_tables_impl.h"

namespace hotrow::internal {

// Counts of live rows, which are those that the index names: by table, by segment (in the log's
// SsdSegment::live_bytes) and in all.
//
// Threads: all methods but Restore may run concurrently. Counts are exact while no batch writes.
class SsdLive {
 public:
  // Both outlive it.
  SsdLive(const SsdTables& tables, SsdLog& log)
      : tables_(tables), log_(log), table_rows_(tables.size()) {}

  // The index names a row of this table at `location` from now on (sign 1), or no longer (-1).
  void Add(SsdLocation location, uint32_t table_index, int sign) {
    const int64_t bytes = sign * tables_.log_bytes(table_index);
    log_.segment(log_.SlotOf(location)).live_bytes.fetch_add(bytes, std::memory_order_relaxed);
    log_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    table_rows_[table_index].fetch_add(sign, std::memory_order_relaxed);
  }
  // While opening: takes the counts of a manifest, which are exact beside an index image. The log
  // has those of the segments.
  void Restore(const SsdManifest& manifest) {
    int64_t bytes = 0;
    for (const SsdSegmentRef& ref : manifest.segments) bytes += ref.live_bytes;
    log_bytes_ = bytes;
    std::copy(manifest.table_rows.begin(), manifest.table_rows.end(), table_rows_.begin());
  }

  // Log bytes of live rows' records and their footer entries.
  int64_t log_bytes() const { return log_bytes_.load(std::memory_order_relaxed); }
  // Rows by table index.
  std::vector<int64_t> table_rows() const { return {table_rows_.begin(), table_rows_.end()}; }

 private:
  const SsdTables& tables_;
  SsdLog& log_;
  std::atomic<int64_t> log_bytes_{0};
  std::vector<std::atomic<int64_t>> table_rows_;  // by table index
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_LIVE_IMPL_H_
