#include "absl/strings/str_cat.h"
#include "models/delta/delta_damage_impl.h"

namespace hotrow {

absl::Status DeltaDamaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", std::string(what),
                                          "; take it again from a whole copy of the chain, or "
                                          "begin a new chain"));
}

absl::Status DeltaOfAnotherChain(const std::string& path, std::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(
      path, ": ", std::string(what), "; keep the deltas of a chain in its own directory"));
}

}  // namespace hotrow
