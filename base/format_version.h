#ifndef HOTROW_BASE_FORMAT_VERSION_H_
#define HOTROW_BASE_FORMAT_VERSION_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace hotrow {

// The versions of one kind of file that this build reads. It writes the last one. A file says its
// version under a checksum, so that another version is told from damage.
struct FormatVersions {
  uint32_t first = 1;
  uint32_t last = 1;
};

// OK for a version that is read. Otherwise FailedPrecondition, with the versions and the remedy:
// "`place`: `what` 7; this build reads versions 1 to 2; open it with a newer hotrow".
absl::Status CheckFormatVersion(std::string_view place, std::string_view what, uint64_t version,
                                const FormatVersions& readable);

}  // namespace hotrow

#endif  // HOTROW_BASE_FORMAT_VERSION_H_
