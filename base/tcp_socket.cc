#include "base/tcp_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

absl::Status BindError(int error, const std::string& place) {
  const absl::Status status = ErrnoToStatus(error, absl::StrCat("listen at ", place));
  const char* const remedy =
      error == EADDRINUSE ? "another process has this port; give another one, or 0 for any free one"
      : error == EACCES   ? "ports below 1024 are the system's; give a larger one, or 0 for any "
                            "free one"
      : error == EADDRNOTAVAIL
          ? "this machine has no such address; give 127.0.0.1 or one of its own"
          : "give another address or port";
  return absl::FailedPreconditionError(absl::StrCat(std::string(status.message()), "; ", remedy));
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

absl::StatusOr<SocketAddress> ParseSocketAddress(const std::string& address, int32_t port) {
  SocketAddress out;
  sockaddr_in v4 = {};
  if (::inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&out.storage, &v4, sizeof(v4));
    out.size = sizeof(v4);
    return out;
  }
  sockaddr_in6 v6 = {};
  if (::inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&out.storage, &v6, sizeof(v6));
    out.size = sizeof(v6);
    return out;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", address,
                   "\" is no IPv4 or IPv6 address in numbers; give one, as 127.0.0.1 for this "
                   "machine alone or 0.0.0.0 for all who reach it"));
}

std::string HostAndPort(const std::string& address, int32_t port) {
  const bool v6 = address.find(':') != std::string::npos;
  return absl::StrCat(v6 ? "[" : "", address, v6 ? "]:" : ":", port);
}

absl::StatusOr<TcpListener> ListenTcp(const std::string& address_text, int32_t port, int backlog) {
  HOTROW_ASSIGN_OR_RETURN(SocketAddress address, ParseSocketAddress(address_text, port));
  const std::string place = HostAndPort(address_text, port);
  TcpListener out;
  out.socket = Descriptor(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int fd = out.socket.get();
  if (fd < 0) return BindError(errno, place);
  // A port whose connections of a run before are still being closed; one that listens is refused
  // all the same.
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd, address.get(), address.size) != 0) return BindError(errno, place);
  if (::listen(fd, backlog) != 0) return BindError(errno, place);
  if (::getsockname(fd, address.get(), &address.size) != 0) return BindError(errno, place);
  // sin_port and sin6_port lie at the same place.
  sockaddr_in bound;
  std::memcpy(&bound, &address.storage, sizeof(bound));
  out.port = ntohs(bound.sin_port);
  return out;
}

}  // namespace hotrow
