#ifndef HOTROW_BASE_FETCH_TEXT_H_
#define HOTROW_BASE_FETCH_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace hotrow {

// Where a text is fetched from.
struct TextAddress {
  std::string address = "127.0.0.1";  // in numbers, or localhost
  int32_t port = 0;
  std::string path = "/metrics";
};

// The text that a server of HTTP gives for a GET, all within `timeout_ms` and of at most bytes_max
// bytes. Errors: InvalidArgument (no address), Unavailable (nobody answers, not in time, or the
// answer is cut off), ResourceExhausted (too long), FailedPrecondition (another answer than 200;
// names its status line). All name address and port.
absl::StatusOr<std::string> FetchText(const TextAddress& from, int64_t timeout_ms,
                                      int64_t bytes_max);

}  // namespace hotrow

#endif  // HOTROW_BASE_FETCH_TEXT_H_
