#include "store/snapshot_reader.h"

#include "absl/strings/str_cat.h"

namespace hotrow {

absl::Status SnapshotReaderOptions::Validate() const {
  if (path.empty()) {
    return absl::InvalidArgumentError("SnapshotReaderOptions.path: required, is empty");
  }
  if (memory_budget_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(memory_option, ": must not be negative, is ", memory_budget_bytes));
  }
  return absl::OkStatus();
}

}  // namespace hotrow
