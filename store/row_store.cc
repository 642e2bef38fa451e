#include "store/row_store.h"

#include "absl/strings/str_cat.h"

namespace hotrow {

absl::Status CheckSnapshotIdentity(std::string_view store, const SnapshotInfo& found,
                                   const UniqueId& wanted) {
  if (!wanted.known() || found.identity == wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      std::string(store), ": snapshot ", found.id, " is another one than the checkpoint's: ",
      found.identity.known() ? absl::StrCat("its identity is ", found.identity.ToHex())
                             : std::string("it has no identity"),
      ", the checkpoint names ", wanted.ToHex(),
      "; the rows are those of another run or rank, or one of the two was put back from a copy: "
      "bring the rows and the checkpoint that belong together"));
}

}  // namespace hotrow
