#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tcp_socket.h"
#include "tools/serve/http_server.h"

namespace hotrow {

absl::Status HttpServerOptions::Validate() const {
  const auto check = [](const char* field, int64_t value, int64_t min,
                        int64_t max) -> absl::Status {
    if (value >= min && value <= max) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("HttpServerOptions.", field, " must lie in [",
                                                   min, ", ", max, "], is ", value));
  };
  HOTROW_RETURN_IF_ERROR(check("port", port, 0, 65535));
  HOTROW_RETURN_IF_ERROR(ParseSocketAddress(address, port).status());
  HOTROW_RETURN_IF_ERROR(check("connections_max", connections_max, 1, 1 << 20));
  HOTROW_RETURN_IF_ERROR(check("servers", servers, 1, 16));
  HOTROW_RETURN_IF_ERROR(check("body_bytes_max", body_bytes_max, 1, int64_t{1} << 40));
  HOTROW_RETURN_IF_ERROR(check("bodies_bytes_max", bodies_bytes_max, 1, int64_t{1} << 50));
  HOTROW_RETURN_IF_ERROR(check("transfer_ms", transfer_ms, 1, int64_t{1} << 31));
  return check("idle_ms", idle_ms, 1, int64_t{1} << 31);
}

}  // namespace hotrow
