#ifndef HOTROW_STORE_SSD_SSD_EXPIRY_IMPL_H_
#define HOTROW_STORE_SSD_SSD_EXPIRY_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/row_key.h"
#include "store/row_store.h"
#include "store/ssd/ssd_tables_impl.h"

namespace hotrow::internal {

// Which rows of an open SsdStore have expired: those that SsdStoreOptions::expired says, and those
// below the line of their table (RowStore::SetAgeLines).
//
// Threads: all methods may run concurrently; SetLines one at a time.
class SsdExpiry {
 public:
  using Expired = std::function<bool(const RowKey& key, std::span<const std::byte> row)>;

  // Both outlive it.
  SsdExpiry(const SsdTables& tables, const Expired& expired)
      : tables_(tables), expired_(expired), lines_(tables.size()), any_(expired != nullptr) {}

  void SetLines(std::span<const RowAgeLine> lines) {
    for (const RowAgeLine& line : lines) {
      const std::optional<uint32_t> index = tables_.IndexOf(line.table);
      if (!index.has_value() || line.line == 0) continue;
      Line& own = lines_[*index];
      own.step_offset.store(line.step_offset, std::memory_order_relaxed);
      own.line.store(line.line, std::memory_order_release);
      any_.store(true, std::memory_order_relaxed);
    }
  }

  // Whether some row may have.
  bool any() const { return any_.load(std::memory_order_relaxed); }

  bool operator()(const RowKey& index_key, const std::byte* row) const {
    const auto row_bytes = static_cast<size_t>(tables_.row_bytes(index_key.table));
    if (expired_ != nullptr && expired_(tables_.ToStoreKey(index_key), {row, row_bytes})) {
      return true;
    }
    const Line& own = lines_[index_key.table];
    const uint32_t line = own.line.load(std::memory_order_acquire);
    if (line == 0) return false;
    uint32_t last_step;
    std::memcpy(&last_step, row + own.step_offset.load(std::memory_order_relaxed),
                sizeof(last_step));
    return last_step != 0 && last_step < line;
  }

 private:
  struct Line {
    std::atomic<uint32_t> line{0};
    std::atomic<int64_t> step_offset{0};  // the same in all calls
  };

  const SsdTables& tables_;
  const Expired& expired_;
  std::vector<Line> lines_;  // by table index
  std::atomic<bool> any_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_EXPIRY_IMPL_H_
