#ifndef HOTROW_TOOLS_SERVE_HTTP_SERVER_H_
#define HOTROW_TOOLS_SERVE_HTTP_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/serve/http_message.h"

namespace hotrow {

struct HttpServerOptions {
  // IPv4 or IPv6 in numbers. The default is for this machine alone; there is no password and no
  // encryption.
  std::string address = "127.0.0.1";
  int32_t port = 0;  // 0: any free one, see HttpServer::port
  // Connections at once, fewer where the process may not have so many descriptors. One more takes
  // the place of the one that says nothing longest.
  int32_t connections_max = 1024;
  int32_t servers = 1;                         // that share the descriptors of the process
  int64_t body_bytes_max = int64_t{16} << 20;  // of a request; more is 413
  // The limit of all bodies that are there at once; a request for which there is no room is 429.
  int64_t bodies_bytes_max = int64_t{256} << 20;
  // The time from a request's first byte to its last, and from a reply's first to its last.
  int64_t transfer_ms = 10'000;
  int64_t idle_ms = 60'000;  // that a connection may be open between two requests
  // GET of these is answered where requests have all places: "/v2/health/live".
  std::vector<std::string> probe_paths;
  // Takes lines of the log, of any thread; null: there is none.
  std::function<void(std::string_view line)> log;

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// HttpServer reads requests of HTTP/1.1 from sockets and sends the replies of a handler. Requests
// of a connection are answered in their order, also where they come before the replies are there.
//
// Memory:  connections_max threads with 16 KiB of head each, and bodies_bytes_max. Bytes count as
//          they come, so a head that announces much takes nothing.
// Threads: one that accepts, and one for each connection; the handler is called on the latter, so
//          it may wait. A client that is silent, slow or half done holds up itself alone: it is cut
//          off after transfer_ms, and earlier where all places are taken. No client waits for the
//          place of another: where requests have all of them it gets 503 at once, unless it asks
//          for one of probe_paths, for which there are a few places more.
// Refused: bodies that are compressed or in parts (415); POST without a length (411); a head of
//          more than 16 KiB (431); paths of more than 1 KiB (414). What is no HTTP gets 400. After
//          each of these the connection is closed.
// Errors:  of Start: InvalidArgument (an option), FailedPrecondition (the port; names the remedy;
//          or this build has no HTTP server), Unavailable (no thread). Later none: a client that
//          fails is one fewer.
class HttpServer {
 public:
  using Handler = std::function<HttpReply(const HttpRequest& request)>;

  // Whether this build has one: it needs cpp-httplib.
  static bool IsThere();
  // counts outlives the server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           Handler handler,
                                                           ConnectionCounts* counts);
  virtual ~HttpServer() = default;  // stops

  virtual int32_t port() const = 0;
  // From now on replies say `Connection: close` and end their connection, so that clients go
  // elsewhere before Stop. Once or more.
  virtual void Drain() = 0;
  // Takes no new connections and no new requests, and waits until those that are there have their
  // replies: a request that is still being read or handled is ended after grace_ms. Once or more.
  virtual void Stop(int64_t grace_ms) = 0;
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_HTTP_SERVER_H_
