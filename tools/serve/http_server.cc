#include "tools/serve/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tcp_socket.h"
#include "base/thread.h"
#include "base/trace.h"
#include "tools/serve/acceptor.h"
#include "tools/serve/http_exchange_impl.h"
#include "tools/serve/http_stream_impl.h"

namespace hotrow {
namespace {

using internal::HttpExchange;
using internal::HttpShared;
using internal::HttpStream;

// How often the end looks whether handlers have come to theirs.
constexpr int kPauseMillis = 10;
// Connections that may be there beside those that have a place: to hear whether they are probes,
// and closed for others but not ended yet.
constexpr int32_t kProbePlaces = 16;
constexpr int32_t kEvictedMax = 32;
// How long a client may take to begin a probe, and those that were closed for others to end.
constexpr int64_t kProbeMillis = 200;
constexpr std::chrono::milliseconds kEvictedWait(20);
constexpr int64_t kTellEveryNanos = 60'000'000'000;
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
  // options are there.
  void Begin() {
    places_ =
        DescriptorPlaces(options.connections_max, kProbePlaces + kEvictedMax, options.servers);
    if (places_ == options.connections_max) return;
    Tell(absl::StrCat("places for ", places_, " connections instead of ", options.connections_max,
                      ": the process may have no more descriptors (ulimit -n)"));
  }

  // Takes the socket over. Nobody waits for long: all clients wait for the caller.
  void Serve(Descriptor socket, const std::shared_ptr<Connections>& self) {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool only_probes = taken_ >= places_ && !Evict(/*only_probes=*/false);
    const bool has_place = !only_probes || probes_ < kProbePlaces || Evict(/*only_probes=*/true);
    const auto few_evicted = [&] { return std::ssize(open_) - taken_ - probes_ <= kEvictedMax; };
    if (!has_place || !closed_.wait_for(lock, kEvictedWait, few_evicted)) {
      lock.unlock();
      Refuse(socket.get());
      return;
    }
    const auto place = open_.insert(
        open_.end(),
        {.socket = std::move(socket), .since_ns = NowNanos(), .only_probes = only_probes});
    ++(only_probes ? probes_ : taken_);
    const bool tells = only_probes && IsTimeToTell();
    lock.unlock();
    if (tells) {
      Tell(absl::StrCat("requests have all ", places_,
                        " places for connections; others than probes get 503"));
    }
    counts->accepted.Add(1);
    counts->open.fetch_add(1, std::memory_order_relaxed);
    absl::StatusOr<std::thread> thread = Caught("", [&] {
      return StartThread("a connection of a server", [self, place] { self->Run(place); });
    });
    if (thread.ok()) {
      thread->detach();
      return;
    }
    Refuse(place->socket.get());
    Close(place);
  }

  // The system has no descriptor for a new client.
  void FreeDescriptor() {
    std::unique_lock<std::mutex> lock(mutex_);
    Evict(/*only_probes=*/false);
    if (!IsTimeToTell()) return;
    lock.unlock();
    Tell(
        "no descriptor is left for a new connection; raise the limit (ulimit -n), or lower "
        "--max_connections");
  }

  // Ends what waits for a first byte; with `all` all that is open.
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
    int64_t since_ns = 0;      // it has waited for bytes
    bool only_probes = false;  // it came when requests had all places
    bool evicted = false;      // shut down for another, which has its place
  };
  using Place = std::list<Connection>::iterator;

  void Refuse(int fd) {
    counts->refused.Add(1);
    [[maybe_unused]] const ssize_t n =
        ::send(fd, kNoPlace.data(), kNoPlace.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void Tell(const std::string& line) const {
    const auto tell = [&]() -> absl::Status {
      if (options.log) options.log(line);
      return absl::OkStatus();
    };
    Caught("", tell).IgnoreError();
  }
  // Under the lock.
  bool IsTimeToTell() {
    const int64_t now_ns = NowNanos();
    if (told_ns_ != 0 && now_ns - told_ns_ < kTellEveryNanos) return false;
    told_ns_ = now_ns;
    return true;
  }

  // Under the lock: ends the connection of a kind that waits for bytes longest, rather one between
  // requests than one within. False: none waits.
  bool Evict(bool only_probes) {
    Place longest = open_.end();
    for (Place at = open_.begin(); at != open_.end(); ++at) {
      if (at->phase == Phase::kHandling || at->evicted || at->only_probes != only_probes) continue;
      if (longest == open_.end() ||
          std::pair(at->phase, at->since_ns) < std::pair(longest->phase, longest->since_ns)) {
        longest = at;
      }
    }
    if (longest == open_.end()) return false;
    longest->evicted = true;
    ::shutdown(longest->socket.get(), SHUT_RDWR);
    counts->evicted.Add(1);
    GiveBack(*longest);
    return true;
  }

  // Under the lock.
  void GiveBack(const Connection& connection) {
    --(connection.only_probes ? probes_ : taken_);
    counts->open.fetch_sub(1, std::memory_order_relaxed);
  }

  void Enter(Place place, Phase phase) {
    const std::lock_guard<std::mutex> lock(mutex_);
    place->phase = phase;
    // A request that comes byte by byte waits since its first.
    if (phase == Phase::kIdle) place->since_ns = NowNanos();
  }

  void Close(Place place) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!place->evicted) GiveBack(*place);
    open_.erase(place);
    closed_.notify_all();
  }

  // A connection's thread.
  void Run(Place place) {
    const auto talk = [&]() -> absl::Status {
      Talk(place);
      return absl::OkStatus();
    };
    Caught("", talk).IgnoreError();  // the connection ends, and no other
    Close(place);
  }

  void Talk(Place place) {
    const int fd = place->socket.get();
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    auto [ip, port] = RemoteOf(fd);
    HttpStream stream(fd, std::move(ip), port, options.transfer_ms);
    const bool only_probes = place->only_probes;
    HttpExchange exchange(
        this, &stream, [this, place] { Enter(place, Phase::kHandling); }, only_probes);
    // The first request is expected at once.
    int64_t idle_ms = only_probes ? kProbeMillis : std::min(options.idle_ms, options.transfer_ms);
    bool open = true;
    bool asked = false;
    // Once it stops, what is there already is answered.
    while (open && stream.AwaitRequest(stopping ? 0 : idle_ms, internal::kHeadBytesMax)) {
      asked = true;
      Enter(place, Phase::kReading);
      open = exchange.Serve();
      Enter(place, Phase::kIdle);
      idle_ms = options.idle_ms;
    }
    if (only_probes && !asked) Refuse(fd);
    if (exchange.unread()) stream.Linger();
  }

  std::mutex mutex_;
  std::condition_variable closed_;
  std::list<Connection> open_;
  // How many of these there are without the evicted ones.
  int64_t taken_ = 0;
  int64_t probes_ = 0;
  int64_t places_ = 1;
  int64_t told_ns_ = 0;  // when the log had a word last; 0: never
};

class TcpHttpServer : public HttpServer {
 public:
  TcpHttpServer(std::unique_ptr<Acceptor> acceptor, std::shared_ptr<Connections> connections)
      : acceptor_(std::move(acceptor)), connections_(std::move(connections)) {}
  ~TcpHttpServer() override { Stop(0); }

  int32_t port() const override { return acceptor_->port(); }

  void Drain() override { connections_->draining = true; }

  void Stop(int64_t grace_ms) override {
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    if (stopped_) return;
    stopped_ = true;
    acceptor_->Stop();
    connections_->stopping = true;
    connections_->Shut(/*all=*/false);
    if (connections_->AwaitNone(grace_ms)) return;
    connections_->Shut(/*all=*/true);
    // What is left is in the handler, which must not outlive its owner.
    while (!connections_->AwaitNone(kPauseMillis)) connections_->Shut(/*all=*/true);
  }

 private:
  const std::unique_ptr<Acceptor> acceptor_;
  const std::shared_ptr<Connections> connections_;
  std::mutex stop_mutex_;
  bool stopped_ = false;
};

}  // namespace

bool HttpServer::IsThere() { return true; }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              Handler handler,
                                                              ConnectionCounts* counts) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  const auto connections = std::make_shared<Connections>();
  connections->options = options;
  connections->handler = std::move(handler);
  connections->counts = counts;
  connections->Begin();
  HOTROW_ASSIGN_OR_RETURN(
      std::unique_ptr<Acceptor> acceptor,
      Acceptor::Start(
          options.address, options.port,
          {.serve = [connections](int fd) { connections->Serve(Descriptor(fd), connections); },
           .starved = [connections] { connections->FreeDescriptor(); }}));
  return std::make_unique<TcpHttpServer>(std::move(acceptor), connections);
}

}  // namespace hotrow
