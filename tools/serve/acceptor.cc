#include "tools/serve/acceptor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

#include "base/errno_status.h"
#include "base/status_macros.h"
#include "base/tcp_socket.h"
#include "base/thread.h"
#include "base/trace.h"

namespace hotrow {
namespace {

constexpr int kBacklog = 1024;
// How long new clients wait after the system had no descriptor for one.
constexpr int kPauseMillis = 10;
constexpr int kLookMillis = 1000;
constexpr int64_t kNanosPerMilli = 1'000'000;
// Descriptors that are left for all else, a model that is read beside the served one included.
constexpr int64_t kDescriptorsKept = 64;
constexpr int64_t kDescriptorsKeptShare = 16;  // and one of so many

class TcpAcceptor : public Acceptor {
 public:
  TcpAcceptor(TcpListener listener, Descriptor wake, Calls calls)
      : port_(listener.port),
        listener_(std::move(listener.socket)),
        wake_(std::move(wake)),
        calls_(std::move(calls)) {}
  ~TcpAcceptor() override { Stop(); }

  absl::Status StartAccepting() {
    HOTROW_ASSIGN_OR_RETURN(thread_, StartThread("a server", [this] { Accept(); }));
    return absl::OkStatus();
  }

  int32_t port() const override { return port_; }

  void Stop() override {
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = ::write(wake_.get(), &one, sizeof(one));
    thread_.join();
    listener_ = Descriptor();
  }

 private:
  void Accept() {
    bool pauses = false;
    int64_t looked_ns = NowNanos();
    for (;;) {
      std::array<pollfd, 2> polled = {{{.fd = wake_.get(), .events = POLLIN},
                                       {.fd = pauses ? -1 : listener_.get(), .events = POLLIN}}};
      const int wait_millis = pauses ? kPauseMillis : calls_.look ? kLookMillis : -1;
      const int ready = ::poll(polled.data(), polled.size(), wait_millis);
      pauses = false;
      if (ready < 0 && errno != EINTR) return;
      if (calls_.look && NowNanos() - looked_ns >= kLookMillis * kNanosPerMilli) {
        looked_ns = NowNanos();
        Guarded([&] { calls_.look(); });
      }
      const bool ends = ready > 0 && polled[0].revents != 0;
      if (ready > 0 && polled[1].revents != 0) {
        int error = AcceptOne();
        // At the end all that have come before it.
        for (int i = 0; ends && error == 0 && i < kBacklog; ++i) error = AcceptOne();
        pauses = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
        if (pauses) Guarded([&] { calls_.starved(); });
      }
      if (ends) return;
    }
  }

  // Returns 0, or the system's error.
  int AcceptOne() {
    const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return errno;
    return Guarded([&] { calls_.serve(fd); }) ? 0 : ENOMEM;
  }

  // False: it threw.
  template <typename Call>
  bool Guarded(const Call& call) {
    const auto run = [&]() -> absl::Status {
      call();
      return absl::OkStatus();
    };
    return Caught("", run).ok();
  }

  const int32_t port_;
  Descriptor listener_;
  const Descriptor wake_;
  const Calls calls_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Start(const std::string& address, int32_t port,
                                                          Calls calls) {
  HOTROW_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(address, port, kBacklog));
  Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0) return ErrnoToStatus(errno, "eventfd for a server");
  auto out = std::make_unique<TcpAcceptor>(std::move(listener), std::move(wake), std::move(calls));
  HOTROW_RETURN_IF_ERROR(out->StartAccepting());
  return out;
}

int64_t DescriptorPlaces(int64_t max, int64_t beside, int64_t servers) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return max;
  const auto all = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT32_MAX));
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error);
  const int64_t used = error ? kDescriptorsKept : std::distance(begin(open), end(open));
  const int64_t left = all - used - kDescriptorsKept - all / kDescriptorsKeptShare;
  return std::clamp<int64_t>(left / servers - beside, 1, max);
}

}  // namespace hotrow
