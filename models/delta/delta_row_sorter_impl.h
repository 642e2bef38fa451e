#ifndef HOTROW_MODELS_DELTA_DELTA_ROW_SORTER_IMPL_H_
#define HOTROW_MODELS_DELTA_DELTA_ROW_SORTER_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/delta/delta_rows.h"

namespace hotrow {

// Takes rows and tombstones in any order and gives them in that of a file of rows. What memory does
// not hold goes to files of a temporary name. One thread at a time.
class DeltaRowSorter {
 public:
  // dir: an existing directory. memory_bytes: of entries, at least one row's worth is used.
  DeltaRowSorter(Env& env, std::string dir, std::vector<DeltaTable> tables, int64_t memory_bytes);
  // Removes the files.
  ~DeltaRowSorter();
  DeltaRowSorter(const DeltaRowSorter&) = delete;
  DeltaRowSorter& operator=(const DeltaRowSorter&) = delete;

  // No key twice. A row is as tables[].layout() says.
  absl::Status Add(const RowKey& key, std::span<const std::byte> row);
  absl::Status AddErased(const RowKey& key);
  // Writes all entries. Only the destructor may follow. Errors: InvalidArgument or DataLoss (a key
  // came twice; names it), those of the files.
  absl::Status WriteTo(DeltaRowsWriter& out);

 private:
  struct Entry {
    RowKey key;
    int64_t offset = -1;  // of the row in rows_; -1: a tombstone
  };
  absl::Status AddEntry(const Entry& entry);
  absl::Status WriteSorted(DeltaRowsWriter& out);
  absl::Status Spill();

  Env& env_;
  const std::string dir_;
  const std::vector<DeltaTable> tables_;
  const int64_t memory_bytes_;
  std::vector<int64_t> row_bytes_;  // by table
  std::vector<Entry> entries_;
  std::vector<std::byte> rows_;
  std::vector<DeltaPart> runs_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DELTA_DELTA_ROW_SORTER_IMPL_H_
