#include "comm/tcp_rendezvous.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/errno_status.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

using Clock = std::chrono::steady_clock;

// On the wire, in the byte order of the machines, which are of one kind: a caller says Hello; it
// gets an Answer and `bytes` bytes, which are the message or, if it is refused, the reason.
struct Hello {
  char magic[8] = {'h', 'o', 't', 'r', 'o', 'w', 'R', '1'};
  int32_t rank = 0;
  int32_t world_size = 0;
};
struct Answer {
  int32_t refused = 0;
  int32_t bytes = 0;
};

constexpr auto kRetryInterval = std::chrono::milliseconds(50);

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { ::freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const char* host, int port, const std::string& where) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (host == nullptr ? AI_PASSIVE : 0);
  addrinfo* addresses = nullptr;
  const int error = ::getaddrinfo(host, std::to_string(port).c_str(), &hints, &addresses);
  if (error != 0) return absl::UnavailableError(absl::StrCat(where, ": ", ::gai_strerror(error)));
  return Addresses(addresses);
}

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<int64_t>(left + 1, 0));
}

// Waits for an event on a non-blocking socket. False: the deadline has passed.
bool Await(int fd, int16_t events, Clock::time_point deadline) {
  pollfd waits = {fd, events, 0};
  while (Clock::now() < deadline) {
    const int ready = ::poll(&waits, 1, MillisecondsUntil(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
  return false;
}

// All of the bytes, or an error. Unavailable: the other side hung up.
absl::Status Transfer(int fd, bool sends, char* data, size_t bytes, Clock::time_point deadline,
                      const std::string& where) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = sends ? ::send(fd, data + done, bytes - done, MSG_NOSIGNAL)
                            : ::recv(fd, data + done, bytes - done, 0);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!Await(fd, sends ? POLLOUT : POLLIN, deadline)) {
        return absl::DeadlineExceededError(absl::StrCat(where, ": no answer in time"));
      }
    } else if (n == 0 || errno != EINTR) {
      return absl::UnavailableError(absl::StrCat(where, ": the other side hung up",
                                                 n == 0 ? "" : ": ",
                                                 n == 0 ? "" : std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::Status SendAnswer(int fd, bool refused, std::string text, Clock::time_point deadline,
                        const std::string& where) {
  Answer answer = {refused ? 1 : 0, static_cast<int32_t>(text.size())};
  HOTROW_RETURN_IF_ERROR(
      Transfer(fd, true, reinterpret_cast<char*>(&answer), sizeof(answer), deadline, where));
  return Transfer(fd, true, text.data(), text.size(), deadline, where);
}

absl::StatusOr<Socket> Listen(const TcpRendezvousOptions& options, const std::string& where) {
  HOTROW_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(nullptr, options.port, where));
  // An IPv6 socket takes calls over IPv4 as well, so it is tried first.
  int error = 0;
  for (const bool v6 : {true, false}) {
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      if ((a->ai_family == AF_INET6) != v6) continue;
      Socket listener(
          ::socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol));
      if (!listener.open()) {
        error = errno;
        continue;
      }
      const int on = 1;
      const int off = 0;
      ::setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      if (v6) ::setsockopt(listener.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
      if (::bind(listener.fd(), a->ai_addr, a->ai_addrlen) == 0 &&
          ::listen(listener.fd(), std::max(options.world_size, 16)) == 0) {
        return listener;
      }
      error = errno;
      if (error == EADDRINUSE) break;
    }
    if (error == EADDRINUSE) break;
  }
  if (error == EADDRINUSE) {
    return absl::FailedPreconditionError(
        absl::StrCat(where, ": port ", options.port,
                     " is taken on rank 0's machine; give another one with "
                     "HOTROW_RENDEZVOUS_PORT on all ranks"));
  }
  return ErrnoToStatus(error, absl::StrCat(where, ": listen"));
}

// A caller whose Hello has not arrived in full yet.
struct Caller {
  Socket socket;
  Hello hello;
  size_t bytes = 0;
};

absl::Status Serve(const TcpRendezvousOptions& options, std::string_view message,
                   const std::string& where, Clock::time_point deadline) {
  HOTROW_ASSIGN_OR_RETURN(const Socket listener, Listen(options, where));
  std::vector<Socket> ranks(static_cast<size_t>(options.world_size));
  int missing = options.world_size - 1;
  std::vector<Caller> callers;
  absl::Status conflict;
  // Tells a caller and all ranks that have come so far.
  const auto refuse = [&](const Caller& caller, const std::string& reason) {
    conflict = absl::InvalidArgumentError(absl::StrCat(where, ": ", reason));
    SendAnswer(caller.socket.fd(), true, reason, deadline, where).IgnoreError();
    for (const Socket& rank : ranks) {
      if (rank.open()) SendAnswer(rank.fd(), true, reason, deadline, where).IgnoreError();
    }
  };
  while (missing > 0) {
    std::vector<pollfd> waits = {{listener.fd(), POLLIN, 0}};
    for (const Caller& caller : callers) waits.push_back({caller.socket.fd(), POLLIN, 0});
    if (Clock::now() >= deadline) {
      std::vector<int> absent;
      for (int p = 1; p < options.world_size; ++p) {
        if (!ranks[static_cast<size_t>(p)].open()) absent.push_back(p);
      }
      return absl::DeadlineExceededError(
          absl::StrCat(where, ": rank ", absl::StrJoin(absent, ", rank "), " did not come within ",
                       options.timeout_seconds, " s"));
    }
    if (::poll(waits.data(), waits.size(), MillisecondsUntil(deadline)) <= 0) continue;
    std::vector<Caller> waiting;
    for (size_t i = 0; i < callers.size(); ++i) {
      Caller& caller = callers[i];
      if (waits[i + 1].revents == 0) {
        waiting.push_back(std::move(caller));
        continue;
      }
      const ssize_t n =
          ::recv(caller.socket.fd(), reinterpret_cast<char*>(&caller.hello) + caller.bytes,
                 sizeof(Hello) - caller.bytes, 0);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        waiting.push_back(std::move(caller));
        continue;
      }
      if (n <= 0) continue;  // gone
      caller.bytes += static_cast<size_t>(n);
      if (caller.bytes < sizeof(Hello)) {
        waiting.push_back(std::move(caller));
        continue;
      }
      // Others may knock at any port: not ours, no answer.
      if (std::memcmp(caller.hello.magic, Hello().magic, sizeof(Hello::magic)) != 0) continue;
      const int rank = caller.hello.rank;
      if (caller.hello.world_size != options.world_size || rank < 1 || rank >= options.world_size) {
        refuse(caller, absl::StrCat("rank 0 expects ", options.world_size,
                                    " ranks, but a process says that it is rank ", rank, " of ",
                                    caller.hello.world_size));
        return conflict;
      }
      Socket& place = ranks[static_cast<size_t>(rank)];
      if (place.open()) {
        refuse(caller, absl::StrCat("two processes say that they are rank ", rank));
        return conflict;
      }
      place = std::move(caller.socket);
      --missing;
    }
    callers = std::move(waiting);
    if (waits[0].revents != 0) {
      Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket.open()) {
        callers.emplace_back();
        callers.back().socket = std::move(socket);
      }
    }
  }
  for (int p = 1; p < options.world_size; ++p) {
    HOTROW_RETURN_IF_ERROR(SendAnswer(ranks[static_cast<size_t>(p)].fd(), false,
                                      std::string(message), deadline,
                                      absl::StrCat(where, ": answer to rank ", p)));
  }
  return absl::OkStatus();
}

// One attempt to reach rank 0; why is what became of it.
Socket Connect(const TcpRendezvousOptions& options, const std::string& where,
               Clock::time_point deadline, std::string& why) {
  auto addresses = Resolve(options.host.c_str(), options.port, where);
  if (!addresses.ok()) {
    why = std::string(addresses.status().message());
    return Socket();
  }
  for (const addrinfo* a = addresses->get(); a != nullptr; a = a->ai_next) {
    Socket socket(
        ::socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol));
    if (!socket.open()) {
      why = std::strerror(errno);
      continue;
    }
    if (::connect(socket.fd(), a->ai_addr, a->ai_addrlen) == 0) return socket;
    int error = errno;
    if (error == EINPROGRESS) {
      if (!Await(socket.fd(), POLLOUT, deadline)) {
        why = "no answer";
        continue;
      }
      socklen_t length = sizeof(error);
      ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error == 0) return socket;
    }
    why = std::strerror(error);
  }
  return Socket();
}

absl::StatusOr<std::string> Call(const TcpRendezvousOptions& options, const std::string& where,
                                 Clock::time_point deadline) {
  std::string why = "no answer";
  Socket socket;
  while (true) {
    socket = Connect(options, where, deadline, why);
    if (socket.open()) break;
    if (Clock::now() + kRetryInterval >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(where, ": rank ", options.rank,
                                                      " could not reach rank 0 within ",
                                                      options.timeout_seconds, " s: ", why));
    }
    std::this_thread::sleep_for(kRetryInterval);
  }
  Hello hello;
  hello.rank = options.rank;
  hello.world_size = options.world_size;
  const std::string talk = absl::StrCat(where, ": rank ", options.rank, " to rank 0");
  HOTROW_RETURN_IF_ERROR(
      Transfer(socket.fd(), true, reinterpret_cast<char*>(&hello), sizeof(hello), deadline, talk));
  Answer answer;
  HOTROW_RETURN_IF_ERROR(Transfer(socket.fd(), false, reinterpret_cast<char*>(&answer),
                                  sizeof(answer), deadline, talk));
  if (answer.bytes < 0 || answer.bytes > kTcpRendezvousBytesMax) {
    return absl::UnavailableError(absl::StrCat(talk, ": something else listens there"));
  }
  std::string text(static_cast<size_t>(answer.bytes), '\0');
  HOTROW_RETURN_IF_ERROR(Transfer(socket.fd(), false, text.data(), text.size(), deadline, talk));
  if (answer.refused != 0) return absl::InvalidArgumentError(absl::StrCat(where, ": ", text));
  return text;
}

}  // namespace

absl::Status TcpRendezvousOptions::Validate() const {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TcpRendezvousOptions: rank must lie in [0, world_size), got ", rank, " of ", world_size));
  }
  if (world_size > 1 && host.empty()) {
    return absl::InvalidArgumentError("TcpRendezvousOptions: host must be given");
  }
  if (world_size > 1 && (port < 1 || port > 65535)) {
    return absl::InvalidArgumentError(
        absl::StrCat("TcpRendezvousOptions: port must lie in [1, 65535], got ", port));
  }
  if (!(timeout_seconds > 0 && timeout_seconds <= 86400)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TcpRendezvousOptions: timeout_seconds must lie in (0, 86400], got ", timeout_seconds));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TcpBroadcast(const TcpRendezvousOptions& options,
                                         std::string_view message) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  if (options.rank == 0 && message.size() > kTcpRendezvousBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("TcpBroadcast: a message has at most ",
                                                   kTcpRendezvousBytesMax, " bytes, got ",
                                                   message.size()));
  }
  if (options.world_size == 1) return std::string(message);
  const std::string where = absl::StrCat("rendezvous at ", options.host, ":", options.port);
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(options.timeout_seconds));
  if (options.rank != 0) return Call(options, where, deadline);
  HOTROW_RETURN_IF_ERROR(Serve(options, message, where, deadline));
  return std::string(message);
}

}  // namespace hotrow
