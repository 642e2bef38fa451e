#include "base/errno_status.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/out_of_room.h"

namespace hotrow {
namespace {

absl::StatusCode CodeOf(int error_number) {
  switch (error_number) {
    case EIO:
      return absl::StatusCode::kDataLoss;
    case ENOMEM:
    case EFBIG:
      return absl::StatusCode::kResourceExhausted;
    case EAGAIN:
    case EINTR:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::ErrnoToStatusCode(error_number);
  }
}

// What holds a file's size down, and how to raise it.
std::string FileSizeRemedy() {
  struct rlimit limit;
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return "; files of this process may have " + std::to_string(limit.rlim_cur) +
           " bytes at most: raise that with ulimit -f";
  }
  return "; this is as large as the file system lets a file be: use another one";
}

}  // namespace

absl::Status ErrnoToStatus(int error_number, std::string_view what) {
  char text[128];
  std::string message(what);
  message += ": ";
  message += ::strerror_r(error_number, text, sizeof(text));  // GNU's form: returns the text
  if (error_number == EFBIG) message += FileSizeRemedy();
  if (error_number == ENOSPC) message += "; make room on that file system";
  if (error_number == EDQUOT) message += "; make room, or have the quota raised";
  if (error_number == ENOSPC || error_number == EDQUOT) return OutOfRoomError(message);
  return absl::Status(CodeOf(error_number), message);
}

}  // namespace hotrow
