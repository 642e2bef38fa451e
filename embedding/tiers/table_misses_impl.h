#ifndef HOTROW_EMBEDDING_TIERS_TABLE_MISSES_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_TABLE_MISSES_IMPL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/metrics.h"
#include "embedding/tiers/tiered_table.h"

namespace hotrow::internal {

// The keys of each table that a tier did not have. Misses and not hits, because the host is told of
// misses wherever the tier lies, and because each costs a read, beside which a count is nothing.
//
// Threads: all methods may run concurrently; reads are relaxed.
class TableMisses {
 public:
  explicit TableMisses(std::span<const TieredTableSpec> tables) : of_(NumbersUpTo(tables)) {}

  void Add(uint32_t table, const MissCounts& more) {
    of_[table].unique.Add(more.unique_keys);
    of_[table].lookups.Add(more.lookups);
  }
  // One more than the largest number of a table.
  int64_t num_tables() const { return static_cast<int64_t>(of_.size()); }
  MissCounts Of(uint32_t table) const {
    return {.unique_keys = of_[table].unique.value(), .lookups = of_[table].lookups.value()};
  }

 private:
  struct Counters {
    Counter unique;
    Counter lookups;
  };

  static size_t NumbersUpTo(std::span<const TieredTableSpec> tables) {
    uint32_t largest = 0;
    for (const TieredTableSpec& spec : tables) largest = std::max(largest, spec.table);
    return size_t{largest} + 1;
  }

  std::vector<Counters> of_;  // by TieredTableSpec::table
};

// Adds up keys of one table that follow each other, and tells TableMisses when another table comes,
// or at its end.
class TableMissRuns {
 public:
  explicit TableMissRuns(TableMisses* misses) : misses_(misses) {}
  TableMissRuns(const TableMissRuns&) = delete;
  TableMissRuns& operator=(const TableMissRuns&) = delete;
  ~TableMissRuns() { Tell(); }

  // One distinct key with so many lookups.
  void Add(uint32_t table, int32_t key_lookups) {
    if (table != table_) {
      Tell();
      table_ = table;
      sum_ = {};
    }
    sum_.unique_keys += 1;
    sum_.lookups += key_lookups;
  }

 private:
  void Tell() {
    if (sum_.unique_keys > 0) misses_->Add(table_, sum_);
  }

  TableMisses* const misses_;
  uint32_t table_ = 0;
  MissCounts sum_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_TABLE_MISSES_IMPL_H_
