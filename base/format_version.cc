#include "base/format_version.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace hotrow {

absl::Status CheckFormatVersion(std::string_view place, std::string_view what, uint64_t version,
                                const FormatVersions& readable) {
  if (version >= readable.first && version <= readable.last) return absl::OkStatus();
  const std::string versions =
      readable.first == readable.last
          ? absl::StrCat("version ", readable.last)
          : absl::StrCat("versions ", readable.first, " to ", readable.last);
  return absl::FailedPreconditionError(absl::StrCat(
      std::string(place), ": ", std::string(what), " ", version, "; this build reads ", versions,
      "; open it with ", version > readable.last ? "a newer hotrow" : "the hotrow that wrote it"));
}

}  // namespace hotrow
