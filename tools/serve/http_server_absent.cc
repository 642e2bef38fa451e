// Takes the place of http_server.cc in a build without cpp-httplib.

#include "tools/serve/http_server.h"

namespace hotrow {

bool HttpServer::IsThere() { return false; }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              Handler handler,
                                                              ConnectionCounts* counts) {
  return absl::FailedPreconditionError(
      "this build has no HTTP server, since cpp-httplib was not there when it was made; install "
      "libcpp-httplib-dev and build again");
}

}  // namespace hotrow
