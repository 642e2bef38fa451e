#ifndef HOTROW_TOOLS_SERVE_HTTP_MESSAGE_H_
#define HOTROW_TOOLS_SERVE_HTTP_MESSAGE_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/metrics.h"

// What passes between the servers, which know sockets, and the service, which does not.

namespace hotrow {

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // decoded, without what follows a question mark
  std::optional<std::string> inference_header_length;  // of Inference-Header-Content-Length
  std::string body;
  int64_t bytes_elsewhere = 0;  // of a body that is not in `body`, for the log
  std::string client;           // "127.0.0.1:51234", for the log
  int64_t begin_ns = 0;         // when its first byte was there; of the clock of NowNanos
  int64_t read_ns = 0;          // when its last was
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;  // besides type and length
  std::string body;
  std::string error;  // what `body` says where it tells of an error
};

// What the server counts and /metrics shows. Any thread.
struct ConnectionCounts {
  std::atomic<int64_t> open{0};
  Counter accepted;
  Counter evicted;  // that said nothing longest, closed for others
  Counter refused;  // closed at once, since all places were taken by requests
  Counter
      unparsed;  // requests that were no HTTP, too large or too slow: the service never saw them
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_HTTP_MESSAGE_H_
