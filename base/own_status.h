#ifndef HOTROW_BASE_OWN_STATUS_H_
#define HOTROW_BASE_OWN_STATUS_H_

#include "absl/status/status.h"
#include "base/out_of_room.h"

namespace hotrow {

// A deep copy, for a status that a lock guards and that other threads receive. Plain copies share a
// reference-counted text. Debian's Abseil is built without ThreadSanitizer, which therefore misses
// part of the counting and reports the text's release as a race.
inline absl::Status OwnStatus(const absl::Status& status) {
  return WithText(status, {status.message().data(), status.message().size()});
}

}  // namespace hotrow

#endif  // HOTROW_BASE_OWN_STATUS_H_
