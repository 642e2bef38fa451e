#ifndef HOTROW_STORE_SSD_SSD_EXPIRY_IMPL_H_
#define HOTROW_STORE_SSD_SSD_EXPIRY_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <shared_mutex>
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
      if (!index.has_value() || line.lines.none()) continue;
      Line& own = lines_[*index];
      if (!line.lines.scores.empty()) {
        const std::unique_lock lock(scores_mutex_);
        own.with_scores = line;
        own.has_scores.store(true, std::memory_order_release);
      }
      own.step_offset.store(line.fields.step_offset, std::memory_order_relaxed);
      own.age.store(line.lines.age, std::memory_order_release);
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
    if (own.has_scores.load(std::memory_order_acquire)) {
      const std::shared_lock lock(scores_mutex_);
      return own.with_scores.HasAged(row);
    }
    const uint32_t age = own.age.load(std::memory_order_acquire);
    if (age == 0) return false;
    uint32_t last_step;
    std::memcpy(&last_step, row + own.step_offset.load(std::memory_order_relaxed),
                sizeof(last_step));
    return last_step != 0 && last_step < age;
  }

 private:
  struct Line {
    std::atomic<uint32_t> age{0};
    std::atomic<int64_t> step_offset{0};  // the same in all calls
    // For a table with lines of scores: all of its lines, under scores_mutex_.
    std::atomic<bool> has_scores{false};
    RowAgeLine with_scores;
  };

  const SsdTables& tables_;
  const Expired& expired_;
  std::vector<Line> lines_;  // by table index
  mutable std::shared_mutex scores_mutex_;
  std::atomic<bool> any_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_EXPIRY_IMPL_H_
