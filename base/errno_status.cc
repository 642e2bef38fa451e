#include "base/errno_status.h"

#include <cerrno>
#include <cstring>
#include <string>

namespace hotrow {
namespace {

absl::StatusCode CodeOf(int error_number) {
  switch (error_number) {
    case EIO:
      return absl::StatusCode::kDataLoss;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
      return absl::StatusCode::kResourceExhausted;
    case EAGAIN:
    case EINTR:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::ErrnoToStatusCode(error_number);
  }
}

}  // namespace

absl::Status ErrnoToStatus(int error_number, std::string_view what) {
  char text[128];
  std::string message(what);
  message += ": ";
  message += ::strerror_r(error_number, text, sizeof(text));  // GNU's form: returns the text
  return absl::Status(CodeOf(error_number), message);
}

}  // namespace hotrow
