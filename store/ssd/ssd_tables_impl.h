#ifndef HOTROW_STORE_SSD_SSD_TABLES_IMPL_H_
#define HOTROW_STORE_SSD_SSD_TABLES_IMPL_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/row_key.h"
#include "store/row_store.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_manifest_impl.h"

namespace hotrow::internal {

// Tables of an open SsdStore. Records and the index name a table by its position in the manifest,
// its index; callers name it by a number. An index key is a RowKey whose `table` is such an index.
//
// Threads: immutable.
class SsdTables {
 public:
  // Both lists hold the same tables: `asked` in the caller's order, `stored` in the manifest's.
  SsdTables(std::span<const StoreTable> asked, std::span<const StoreTable> stored);

  std::span<const StoreTable> asked() const { return asked_; }

  size_t size() const { return row_bytes_.size(); }
  std::span<const int64_t> row_bytes() const { return row_bytes_; }
  int64_t row_bytes(uint32_t index) const { return row_bytes_[index]; }
  int64_t row_bytes_longest() const { return row_bytes_longest_; }
  // Bytes of a row in the log: its record and its footer entry.
  int64_t log_bytes(uint32_t index) const { return SsdLogBytes(row_bytes_[index]); }
  uint32_t number(uint32_t index) const { return numbers_[index]; }
  std::optional<uint32_t> IndexOf(uint32_t number) const;

  // Errors: InvalidArgument, naming the first key whose table the store does not have.
  absl::Status ToIndexKeys(std::span<const RowKey> keys, std::vector<RowKey>* index_keys) const;
  RowKey ToStoreKey(const RowKey& index_key) const {
    return {index_key.key, numbers_[index_key.table]};
  }

  // Counts of rows are in the caller's order of tables.
  SnapshotInfo Describe(const SsdSnapshot& snapshot) const;
  // DataLoss: the row of this key has a wrong checksum.
  absl::Status Unreadable(const std::string& file, int64_t offset, const RowKey& index_key) const;

 private:
  const std::vector<StoreTable> asked_;
  std::unordered_map<uint32_t, uint32_t> indices_;  // by number
  std::vector<uint32_t> numbers_;                   // by index
  std::vector<int64_t> row_bytes_;                  // by index
  int64_t row_bytes_longest_ = 0;
};

// Errors: InvalidArgument, naming the store's path and the table that only one of the lists has, or
// that has another width there.
absl::Status CheckSsdTables(const std::string& store_path, std::span<const StoreTable> asked,
                            std::span<const StoreTable> stored);

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_SSD_SSD_TABLES_IMPL_H_
