#include "tools/serve/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/status_macros.h"
#include "base/tcp_socket.h"
#include "base/thread.h"
#include "base/trace.h"
#include "tools/serve/http_exchange_impl.h"
#include "tools/serve/http_stream_impl.h"

namespace hotrow {
namespace {

using internal::HttpExchange;
using internal::HttpShared;
using internal::HttpStream;

constexpr int kBacklog = 1024;
// How long new clients wait after the system had no descriptor for one.
constexpr int kPauseMillis = 100;
// How long a new client waits for the place of an old one.
constexpr std::chrono::milliseconds kPlaceWait(1000);
constexpr std::string_view kNoPlace =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
    "Connection: close\r\n\r\n";

std::pair<std::string, int> RemoteOf(int fd) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (::getpeername(fd, address.get(), &address.size) != 0) return {"unknown", 0};
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (address.storage.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &address.storage, sizeof(v4));
    ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return {text.data(), ntohs(v4.sin_port)};
  }
  sockaddr_in6 v6;
  std::memcpy(&v6, &address.storage, sizeof(v6));
  ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  return {text.data(), ntohs(v6.sin6_port)};
}

// The connections, which outlive the server until their threads have ended.
class Connections : public HttpShared {
 public:
  // Takes the socket over. Waits a while for a place if there is none.
  void Serve(Descriptor socket, const std::shared_ptr<Connections>& self) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (std::ssize(open_) >= options.connections_max && !MakeRoom(&lock)) {
      lock.unlock();
      Refuse(socket.get());
      return;
    }
    const auto place =
        open_.insert(open_.end(), {.socket = std::move(socket), .since_ns = NowNanos()});
    lock.unlock();
    counts->accepted.Add(1);
    counts->open.fetch_add(1, std::memory_order_relaxed);
    absl::StatusOr<std::thread> thread =
        StartThread("a connection of a server", [self, place] { self->Run(place); });
    if (thread.ok()) {
      thread->detach();
      return;
    }
    Refuse(place->socket.get());
    Close(place);
  }

  // Ends what waits for a first byte; with `all` whatever is open.
  void Shut(bool all) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Connection& connection : open_) {
      if (all) ::shutdown(connection.socket.get(), SHUT_RDWR);
      if (!all && connection.phase == Phase::kIdle) ::shutdown(connection.socket.get(), SHUT_RD);
    }
  }

  // Until no connection is open. False: time is over.
  bool AwaitNone(int64_t millis) {
    std::unique_lock<std::mutex> lock(mutex_);
    return closed_.wait_for(lock, std::chrono::milliseconds(millis), [&] { return open_.empty(); });
  }

 private:
  // What a connection waits for: a first byte, the rest of a request, its reply.
  enum class Phase { kIdle, kReading, kHandling };
  struct Connection {
    Descriptor socket;
    Phase phase = Phase::kIdle;
    int64_t since_ns = 0;  // it has waited for bytes
    bool evicted = false;  // shut down for another
  };
  using Place = std::list<Connection>::iterator;

  void Refuse(int fd) {
    counts->refused.Add(1);
    [[maybe_unused]] const ssize_t n =
        ::send(fd, kNoPlace.data(), kNoPlace.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // Ends the connection that waits for bytes longest. False: none does, or it did not end in time.
  bool MakeRoom(std::unique_lock<std::mutex>* lock) {
    Place longest = open_.end();
    for (Place at = open_.begin(); at != open_.end(); ++at) {
      if (at->phase == Phase::kHandling || at->evicted) continue;
      if (longest == open_.end() || at->since_ns < longest->since_ns) longest = at;
    }
    if (longest != open_.end()) {
      longest->evicted = true;
      ::shutdown(longest->socket.get(), SHUT_RDWR);
      counts->evicted.Add(1);
    }
    return closed_.wait_for(*lock, kPlaceWait,
                            [&] { return std::ssize(open_) < options.connections_max; });
  }

  void Enter(Place place, Phase phase) {
    const std::lock_guard<std::mutex> lock(mutex_);
    place->phase = phase;
    // A request that comes byte by byte waits since its first.
    if (phase == Phase::kIdle) place->since_ns = NowNanos();
  }

  void Close(Place place) {
    counts->open.fetch_sub(1, std::memory_order_relaxed);
    const std::lock_guard<std::mutex> lock(mutex_);
    open_.erase(place);
    closed_.notify_all();
  }

  // A connection's thread.
  void Run(Place place) {
    const int fd = place->socket.get();
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    auto [ip, port] = RemoteOf(fd);
    HttpStream stream(fd, std::move(ip), port, options.transfer_ms);
    HttpExchange exchange(this, &stream, [this, place] { Enter(place, Phase::kHandling); });
    // The first request is expected at once.
    int64_t idle_ms = std::min(options.idle_ms, options.transfer_ms);
    bool open = true;
    while (open && !stopping && stream.AwaitRequest(idle_ms, internal::kHeadBytesMax)) {
      Enter(place, Phase::kReading);
      open = exchange.Serve();
      Enter(place, Phase::kIdle);
      idle_ms = options.idle_ms;
    }
    if (exchange.unread()) stream.Linger();
    Close(place);
  }

  std::mutex mutex_;
  std::condition_variable closed_;
  std::list<Connection> open_;
};

class TcpHttpServer : public HttpServer {
 public:
  TcpHttpServer(TcpListener listener, Descriptor wake, std::shared_ptr<Connections> connections)
      : port_(listener.port),
        listener_(std::move(listener.socket)),
        wake_(std::move(wake)),
        connections_(std::move(connections)) {}
  ~TcpHttpServer() override { Stop(0); }

  absl::Status StartAccepting() {
    HOTROW_ASSIGN_OR_RETURN(thread_, StartThread("an HTTP server", [this] { Accept(); }));
    return absl::OkStatus();
  }

  int32_t port() const override { return port_; }

  void Stop(int64_t grace_ms) override {
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    if (!thread_.joinable()) return;
    connections_->stopping = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = ::write(wake_.get(), &one, sizeof(one));
    thread_.join();
    listener_ = Descriptor();
    connections_->Shut(/*all=*/false);
    if (connections_->AwaitNone(grace_ms)) return;
    connections_->Shut(/*all=*/true);
    // What is left is in the handler, which must not outlive its owner.
    while (!connections_->AwaitNone(kPauseMillis)) connections_->Shut(/*all=*/true);
  }

 private:
  void Accept() {
    bool pauses = false;
    for (;;) {
      std::array<pollfd, 2> polled = {{{.fd = wake_.get(), .events = POLLIN},
                                       {.fd = pauses ? -1 : listener_.get(), .events = POLLIN}}};
      const int ready = ::poll(polled.data(), polled.size(), pauses ? kPauseMillis : -1);
      pauses = false;
      if (ready < 0 && errno != EINTR) return;
      if (ready > 0 && polled[0].revents != 0) return;
      if (ready <= 0 || polled[1].revents == 0) continue;
      Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket.get() >= 0) {
        connections_->Serve(std::move(socket), connections_);
      } else {
        pauses = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      }
    }
  }

  const int32_t port_;
  Descriptor listener_;
  const Descriptor wake_;
  const std::shared_ptr<Connections> connections_;
  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace

bool HttpServer::IsThere() { return true; }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              Handler handler,
                                                              ConnectionCounts* counts) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  HOTROW_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(options.address, options.port, kBacklog));
  Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0) return ErrnoToStatus(errno, "eventfd for an HTTP server");
  const auto connections = std::make_shared<Connections>();
  connections->options = options;
  connections->handler = std::move(handler);
  connections->counts = counts;
  auto out = std::make_unique<TcpHttpServer>(std::move(listener), std::move(wake), connections);
  HOTROW_RETURN_IF_ERROR(out->StartAccepting());
  return out;
}

}  // namespace hotrow
