#include "store/snapshot_reader.h"

#include "absl/strings/str_cat.h"

namespace hotrow {

absl::Status SnapshotReaderOptions::Validate() const {
  if (path.empty()) {
    return absl::InvalidArgumentError("SnapshotReaderOptions.path: required, is empty");
  }
  if (memory_budget_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("SnapshotReaderOptions.memory_budget_bytes: must not be negative, is ",
                     memory_budget_bytes));
  }
  if (store_is_open && snapshot == 0) {
    return absl::InvalidArgumentError(
        "SnapshotReaderOptions.store_is_open: needs a snapshot, since the latest state changes; "
        "snapshot is 0");
  }
  return absl::OkStatus();
}

}  // namespace hotrow
