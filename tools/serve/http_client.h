#ifndef HOTROW_TOOLS_SERVE_HTTP_CLIENT_H_
#define HOTROW_TOOLS_SERVE_HTTP_CLIENT_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tcp_socket.h"

namespace hotrow {

// A connection to an HTTP server, kept for many requests: for benchmarks and tests of ours, over
// TCP without encryption.
//
// Threads: one at a time.
// Errors:  Unavailable (nobody answers, not in time, or the connection is closed), InvalidArgument
//          (no address), DataLoss (an answer that is not HTTP, or has no Content-Length). All name
//          address and port. After an error the connection is of no use.
class HttpClient {
 public:
  struct Reply {
    int status = 0;
    std::map<std::string, std::string> headers;  // names in lower case
    std::string body;
  };
  using Headers = std::vector<std::pair<std::string, std::string>>;

  // timeout_ms: of each call.
  static absl::StatusOr<HttpClient> Connect(const std::string& address, int32_t port,
                                            int64_t timeout_ms);

  // Sends a request and receives its reply.
  absl::StatusOr<Reply> Call(std::string_view method, std::string_view path, std::string_view body,
                             const Headers& headers = {});

  // Parts of it: bytes as they are; one reply, with_body unless the request was HEAD; what comes
  // until the other side closes.
  absl::Status Send(std::string_view bytes);
  absl::StatusOr<Reply> Receive(bool with_body = true);
  absl::StatusOr<std::string> ReceiveToEnd();
  // Says that nothing more is sent.
  void EndSending();

 private:
  HttpClient(Descriptor socket, std::string place, int64_t timeout_ms)
      : socket_(std::move(socket)), place_(std::move(place)), timeout_ms_(timeout_ms) {}
  // Receives more into in_. False: the other side has closed.
  absl::StatusOr<bool> More();
  absl::Status Failed(std::string_view call, int error) const;

  Descriptor socket_;
  std::string place_;
  int64_t timeout_ms_;
  std::string in_;  // received, and not yet part of a reply
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_HTTP_CLIENT_H_
