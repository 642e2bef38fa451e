#include "tools/serve/http_client.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

constexpr size_t kReceiveBytes = 64 << 10;
constexpr size_t kHeadBytesMax = 64 << 10;
constexpr int64_t kBodyBytesMax = int64_t{1} << 30;

}  // namespace

absl::Status HttpClient::Failed(std::string_view call, int error) const {
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINPROGRESS) {
    return absl::UnavailableError(absl::StrCat(place_, ": no answer within ", timeout_ms_, " ms"));
  }
  const absl::Status status = ErrnoToStatus(error, absl::StrCat(std::string(call), " ", place_));
  return absl::UnavailableError(std::string(status.message()));
}

absl::StatusOr<HttpClient> HttpClient::Connect(const std::string& address, int32_t port,
                                               int64_t timeout_ms) {
  HOTROW_ASSIGN_OR_RETURN(
      SocketAddress to,
      ParseSocketAddress(address == "localhost" ? std::string("127.0.0.1") : address, port));
  HttpClient out(Descriptor(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0)),
                 HostAndPort(address, port), timeout_ms);
  const int fd = out.socket_.get();
  if (fd < 0) return out.Failed("socket", errno);
  const timeval timeout = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (::connect(fd, to.get(), to.size) != 0) return out.Failed("connect", errno);
  return out;
}

absl::StatusOr<HttpClient::Reply> HttpClient::Call(std::string_view method, std::string_view path,
                                                   std::string_view body, const Headers& headers) {
  std::string request = absl::StrCat(std::string(method), " ", std::string(path),
                                     " HTTP/1.1\r\nHost: ", place_, "\r\n");
  if (method == "POST") absl::StrAppend(&request, "Content-Length: ", body.size(), "\r\n");
  for (const auto& [name, value] : headers) absl::StrAppend(&request, name, ": ", value, "\r\n");
  request += "\r\n";
  request += body;
  HOTROW_RETURN_IF_ERROR(Send(request));
  return Receive(method != "HEAD");
}

absl::Status HttpClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("send to", errno);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> HttpClient::More() {
  const size_t before = in_.size();
  in_.resize(before + kReceiveBytes);
  ssize_t n = 0;
  do {
    n = ::recv(socket_.get(), in_.data() + before, kReceiveBytes, 0);
  } while (n < 0 && errno == EINTR);
  in_.resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
  if (n < 0) return Failed("receive from", errno);
  return n > 0;
}

absl::StatusOr<HttpClient::Reply> HttpClient::Receive(bool with_body) {
  size_t head_end = 0;
  while ((head_end = in_.find("\r\n\r\n")) == std::string::npos) {
    if (in_.size() > kHeadBytesMax) {
      return absl::DataLossError(absl::StrCat(place_, ": the answer's head does not end"));
    }
    HOTROW_ASSIGN_OR_RETURN(const bool more, More());
    if (!more) {
      return absl::UnavailableError(absl::StrCat(place_, ": the connection was closed"));
    }
  }
  Reply out;
  std::string_view head = std::string_view(in_).substr(0, head_end);
  const std::string_view first = head.substr(0, head.find("\r\n"));
  if (!first.starts_with("HTTP/1.") ||
      !absl::SimpleAtoi(std::string(first.substr(std::min<size_t>(9, first.size()), 3)),
                        &out.status)) {
    return absl::DataLossError(absl::StrCat(place_, ": the answer is not HTTP"));
  }
  head.remove_prefix(first.size());
  while (head.starts_with("\r\n")) {
    head.remove_prefix(2);
    const std::string_view line = head.substr(0, head.find("\r\n"));
    head.remove_prefix(line.size());
    const size_t colon = std::min(line.find(':'), line.size());
    const std::string_view value = line.substr(std::min(colon + 1, line.size()));
    out.headers[absl::AsciiStrToLower(std::string(line.substr(0, colon)))] =
        std::string(absl::StripAsciiWhitespace(std::string(value)));
  }
  in_.erase(0, head_end + 4);
  int64_t length = 0;
  const auto at = out.headers.find("content-length");
  if (out.status >= 200 && (at == out.headers.end() || !absl::SimpleAtoi(at->second, &length) ||
                            length < 0 || length > kBodyBytesMax)) {
    return absl::DataLossError(absl::StrCat(place_, ": the answer has no Content-Length"));
  }
  if (!with_body) length = 0;
  while (std::ssize(in_) < length) {
    HOTROW_ASSIGN_OR_RETURN(const bool more, More());
    if (!more) return absl::UnavailableError(absl::StrCat(place_, ": the answer is cut off"));
  }
  out.body = in_.substr(0, static_cast<size_t>(length));
  in_.erase(0, static_cast<size_t>(length));
  return out;
}

absl::StatusOr<std::string> HttpClient::ReceiveToEnd() {
  for (;;) {
    HOTROW_ASSIGN_OR_RETURN(const bool more, More());
    if (!more) return std::exchange(in_, "");
  }
}

void HttpClient::EndSending() { ::shutdown(socket_.get(), SHUT_WR); }

}  // namespace hotrow
