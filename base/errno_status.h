#ifndef HOTROW_BASE_ERRNO_STATUS_H_
#define HOTROW_BASE_ERRNO_STATUS_H_

#include <string_view>

#include "absl/status/status.h"

namespace hotrow {

// Turns an errno value into a Status whose message is "what: strerror". EIO becomes DataLoss
// (absl's own mapping says Unknown); ENOMEM and EFBIG become ResourceExhausted, ENOSPC and
// EDQUOT also have the mark of base/out_of_room.h;
// EAGAIN and EINTR become Unavailable; the rest follows absl::ErrnoToStatusCode. The message of
// EFBIG also names the limit. `what` names the call and the path: "write /data/seg-3".
absl::Status ErrnoToStatus(int error_number, std::string_view what);

}  // namespace hotrow

#endif  // HOTROW_BASE_ERRNO_STATUS_H_
