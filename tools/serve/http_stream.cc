#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/trace.h"
#include "tools/serve/http_stream_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kNanosPerMilli = 1'000'000;
constexpr size_t kInBytes = 16 << 10;
constexpr size_t kOutBytes = 256 << 10;  // sent once there are so many
// What a client may still send after it has been refused, and for how long it is listened to.
constexpr int64_t kLingerBytes = 64 << 20;
constexpr int64_t kLingerMillis = 1000;

}  // namespace

HttpStream::HttpStream(int fd, std::string remote_ip, int remote_port, int64_t transfer_ms)
    : fd_(fd),
      remote_ip_(std::move(remote_ip)),
      remote_port_(remote_port),
      transfer_ns_(transfer_ms * kNanosPerMilli),
      in_(kInBytes) {}

bool HttpStream::Await(int16_t events, int64_t deadline_ns) {
  for (;;) {
    const int64_t left_ns = deadline_ns - NowNanos();
    if (left_ns <= 0) {
      failure_ = Failure::kTooSlow;
      return false;
    }
    pollfd polled = {.fd = fd_, .events = events};
    const int ready = ::poll(
        &polled, 1, static_cast<int>(std::min<int64_t>(left_ns / kNanosPerMilli + 1, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) {
      failure_ = Failure::kClosed;
      return false;
    }
  }
}

bool HttpStream::Fill(int64_t deadline_ns) {
  // The other side may wait for an interim reply, 100 Continue.
  if (!Flush()) return false;
  for (;;) {
    const ssize_t n = ::recv(fd_, in_.data(), in_.size(), 0);
    if (n > 0) {
      in_begin_ = 0;
      in_end_ = static_cast<size_t>(n);
      return true;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
      failure_ = Failure::kClosed;
      return false;
    }
    if (!Await(POLLIN, deadline_ns)) return false;
  }
}

bool HttpStream::AwaitRequest(int64_t idle_ms, int64_t head_bytes) {
  failure_ = Failure::kNone;
  if (in_begin_ == in_end_ && !Fill(NowNanos() + idle_ms * kNanosPerMilli)) return false;
  request_begin_ns_ = NowNanos();
  deadline_ns_ = request_begin_ns_ + transfer_ns_;
  budget_ = head_bytes;
  return true;
}

bool HttpStream::is_readable() const { return in_begin_ < in_end_; }

ssize_t HttpStream::read(char* bytes, size_t size) {
  if (failure_ != Failure::kNone) return -1;
  if (size == 0) return 0;
  if (budget_ <= 0) {
    failure_ = Failure::kTooLong;
    return -1;
  }
  if (in_begin_ == in_end_ && !Fill(deadline_ns_)) return failure_ == Failure::kClosed ? 0 : -1;
  const size_t n = std::min({size, in_end_ - in_begin_, static_cast<size_t>(budget_)});
  std::memcpy(bytes, in_.data() + in_begin_, n);
  in_begin_ += n;
  budget_ -= static_cast<int64_t>(n);
  return static_cast<ssize_t>(n);
}

ssize_t HttpStream::write(const char* bytes, size_t size) {
  out_.append(bytes, size);
  if (out_.size() >= kOutBytes && !Flush()) return -1;
  return static_cast<ssize_t>(size);
}

bool HttpStream::Flush() {
  if (out_.empty()) return true;
  const int64_t deadline_ns = NowNanos() + transfer_ns_;
  size_t sent = 0;
  while (sent < out_.size()) {
    const ssize_t n = ::send(fd_, out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!Await(POLLOUT, deadline_ns)) return false;
    } else if (errno != EINTR) {
      failure_ = Failure::kClosed;
      return false;
    }
  }
  out_.clear();
  return true;
}

void HttpStream::Linger() {
  ::shutdown(fd_, SHUT_WR);
  const int64_t deadline_ns = NowNanos() + kLingerMillis * kNanosPerMilli;
  int64_t dropped = 0;
  while (dropped < kLingerBytes && Await(POLLIN, deadline_ns)) {
    const ssize_t n = ::recv(fd_, in_.data(), in_.size(), 0);
    if (n <= 0) return;
    dropped += n;
  }
}

}  // namespace hotrow::internal
