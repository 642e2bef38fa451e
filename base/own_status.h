#ifndef HOTROW_BASE_OWN_STATUS_H_
#define HOTROW_BASE_OWN_STATUS_H_

#include "absl/status/status.h"

namespace hotrow {

// The same status, sharing nothing with `status`; for one that a lock guards and another thread
// gets. Copies of a status share their text and count who has it. Debian's Abseil is not built for
// ThreadSanitizer, which sees only half of that count and takes the end of a text for a race.
inline absl::Status OwnStatus(const absl::Status& status) {
  return absl::Status(status.code(), status.message());
}

}  // namespace hotrow

#endif  // HOTROW_BASE_OWN_STATUS_H_
