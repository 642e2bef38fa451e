#ifndef HOTROW_BASE_TCP_SOCKET_H_
#define HOTROW_BASE_TCP_SOCKET_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

// What our servers and clients need of TCP: addresses in numbers, and sockets that listen.

namespace hotrow {

// A file descriptor, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }  // NOLINT
};

// An IPv4 or IPv6 address in numbers, with a port in [0, 65535]. Errors: InvalidArgument, with the
// remedy.
absl::StatusOr<SocketAddress> ParseSocketAddress(const std::string& address, int32_t port);

// "127.0.0.1:9400", "[::1]:9400".
std::string HostAndPort(const std::string& address, int32_t port);

struct TcpListener {
  Descriptor socket;  // non-blocking, closed on exec
  int32_t port = 0;   // the one that was taken
};

// Listens at an address; port 0: any free one. backlog: connections that wait in the kernel.
// Errors: InvalidArgument (no address), FailedPrecondition (the port is taken or not ours to take,
// or the machine has no such address; names both and the remedy).
absl::StatusOr<TcpListener> ListenTcp(const std::string& address, int32_t port, int backlog);

}  // namespace hotrow

#endif  // HOTROW_BASE_TCP_SOCKET_H_
