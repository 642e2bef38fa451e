#ifndef HOTROW_TESTS_STORE_SSD_TEST_UTIL_H_
#define HOTROW_TESTS_STORE_SSD_TEST_UTIL_H_

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/philox.h"
#include "gtest/gtest.h"
#include "store/ssd/ssd_store.h"
#include "tests/store/store_test_util.h"
#include "tests/support/test_util.h"

namespace hotrow::test {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = kKiB * kKiB;

// Rows of one byte, of an odd number, of less and of more than a unit of the index.
inline std::vector<StoreTable> SsdTables() {
  return {{.table = 3, .row_bytes = 1},
          {.table = 0, .row_bytes = 17},
          {.table = 70'000, .row_bytes = 64},
          {.table = UINT32_MAX, .row_bytes = 512},
          {.table = 4, .row_bytes = 1500}};
}

// A store so small that it is always being cleaned.
inline SsdStoreOptions SmallSsd(Env* env, int64_t segments = 24, int64_t segment_bytes = 16 * kKiB,
                                bool background = false) {
  SsdStoreOptions options;
  options.path = "/store";
  options.tables = SsdTables();
  options.memory_budget_bytes = 2 * kMiB;
  options.disk_budget_bytes = segments * segment_bytes;
  options.segment_bytes = segment_bytes;
  options.chunk_bytes = 16 * kKiB;
  options.background = background;
  options.env = env;
  return options;
}

// The same over two directories.
inline SsdStoreOptions Striped(SsdStoreOptions options) {
  options.more_paths = {options.path + "-2"};
  return options;
}

// Log bytes of a row: record header, row, alignment, footer entry.
inline int64_t SsdLogBytes(int64_t row_bytes) { return (24 + row_bytes + 7) / 8 * 8 + 16; }

// What a store must hold. Commits make states durable in the order in which they were written, so
// after a crash there is the last state that was committed with OK, or that and the first so many
// of the writes that came after it: the cleaner commits by itself, and a commit that reported an
// error may still have reached the disk.
class SsdOracle {
 public:
  const RowMap& now() const { return now_; }
  const RowMap& committed() const { return committed_; }

  void Write(const RowKey& key, Row row) {
    now_[{key.table, key.key}] = row;
    ops_.push_back({{key.table, key.key}, std::move(row)});
  }
  void Erase(const RowKey& key) {
    now_.erase({key.table, key.key});
    ops_.push_back({{key.table, key.key}, std::nullopt});
  }
  void Commit() {
    committed_ = now_;
    ops_.clear();
  }
  void Reset(RowMap rows) {
    now_ = std::move(rows);
    Commit();
  }

  // Takes in the state that a reopened store has, if it is one that it may have.
  testing::AssertionResult Recover(const RowMap& found) {
    RowMap state = committed_;
    // Keys whose row differs between the state and what was found.
    std::set<RowMap::key_type> differing;
    const auto compare = [&](const RowMap::key_type& key) {
      const auto a = state.find(key);
      const auto b = found.find(key);
      const bool same =
          (a == state.end()) == (b == found.end()) && (a == state.end() || a->second == b->second);
      if (same) {
        differing.erase(key);
      } else {
        differing.insert(key);
      }
    };
    for (const auto& [key, row] : state) compare(key);
    for (const auto& [key, row] : found) compare(key);
    size_t fewest = differing.size();
    RowMap::key_type example = differing.empty() ? RowMap::key_type() : *differing.begin();
    for (const Op& op : ops_) {
      if (differing.empty()) break;
      if (op.row.has_value()) {
        state[op.key] = *op.row;
      } else {
        state.erase(op.key);
      }
      compare(op.key);
      if (differing.size() < fewest) {
        fewest = differing.size();
        if (fewest > 0) example = *differing.begin();
      }
    }
    if (!differing.empty()) {
      return testing::AssertionFailure()
             << "no state that was written: the nearest one of " << ops_.size() + 1
             << " differs in " << fewest << " keys, among them key " << example.second
             << " of table " << example.first
             << (found.contains(example) ? ", which is there" : ", which is not");
    }
    Reset(found);
    return testing::AssertionSuccess();
  }

 private:
  struct Op {
    RowMap::key_type key;
    std::optional<Row> row;  // none: erased
  };
  RowMap now_;
  RowMap committed_;
  std::vector<Op> ops_;  // after the commit
};

// Compares by Iterate, and by Find for every key in one batch.
inline testing::AssertionResult Holds(RowStore& store, const RowMap& expected) {
  const absl::StatusOr<RowMap> all = Dump(store);
  if (!all.ok()) return testing::AssertionFailure() << "Iterate: " << all.status();
  if (*all != expected) {
    for (const auto& [key, row] : expected) {
      const auto at = all->find(key);
      if (at != all->end() && at->second == row) continue;
      return testing::AssertionFailure()
             << "Iterate: key " << key.second << " of table " << key.first
             << (at == all->end() ? " is missing" : " has another row");
    }
    return testing::AssertionFailure()
           << "Iterate gives " << all->size() << " rows, expected are " << expected.size();
  }
  std::vector<RowKey> keys;
  for (const auto& [key, row] : expected) keys.push_back({key.second, key.first});
  const absl::StatusOr<Found> found = FindAll(store, keys);
  if (!found.ok()) return testing::AssertionFailure() << "Find: " << found.status();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (found->found[i] != 1 || found->rows[i] != expected.at({keys[i].table, keys[i].key})) {
      return testing::AssertionFailure()
             << "Find: key " << keys[i].key << " of table " << keys[i].table
             << (found->found[i] == 1 ? " has another row" : " is missing");
    }
  }
  if (store.Stats().rows != static_cast<int64_t>(expected.size())) {
    return testing::AssertionFailure()
           << "Stats().rows is " << store.Stats().rows << ", not " << expected.size();
  }
  return testing::AssertionSuccess();
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_STORE_SSD_TEST_UTIL_H_
