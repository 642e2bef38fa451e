#include "base/text_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/fetch_text.h"
#include "base/status_macros.h"
#include "base/tcp_socket.h"
#include "base/thread.h"
#include "base/trace.h"

namespace hotrow {
namespace {

constexpr int64_t kNanosPerMilli = 1'000'000;
// Connections that wait in the kernel for their turn.
constexpr int kBacklog = 32;
// How long new clients wait after the system had no descriptor for one: without it the loop would
// ask again at once, since the client is still there.
constexpr int64_t kPauseNanos = 100 * kNanosPerMilli;

// The first of `text` up to a line's end.
std::string_view FirstLine(std::string_view text) {
  return text.substr(0, std::min(text.find_first_of("\r\n"), text.size()));
}

bool HasEnd(std::string_view request) {
  return request.find("\r\n\r\n") != std::string_view::npos ||
         request.find("\n\n") != std::string_view::npos;
}

}  // namespace

absl::Status TextServerOptions::Validate() const {
  if (port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("port must lie between 0 and 65535, is ", port));
  }
  HOTROW_RETURN_IF_ERROR(ParseSocketAddress(address, port).status());
  if (path.empty() || path[0] != '/') {
    return absl::InvalidArgumentError(absl::StrCat("path must begin with /, is \"", path, "\""));
  }
  if (deadline_ms < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("deadline_ms must be at least 1, is ", deadline_ms));
  }
  return absl::OkStatus();
}

// The thread, and what it alone touches.
class TextServer::Loop {
 public:
  Loop(const TextServerOptions& options, Descriptor listener, Descriptor wake,
       std::function<std::shared_ptr<const std::string>()> text, std::atomic<int64_t>* answered)
      : options_(options),
        listener_(std::move(listener)),
        wake_(std::move(wake)),
        text_(std::move(text)),
        answered_(answered) {
    polled_.reserve(static_cast<size_t>(kClientsMax) + 2);
  }

  // Until Wake.
  void Run() {
    for (absl::StatusOr<bool> more = true; !more.ok() || *more;) {
      more = Caught("", [this]() -> absl::StatusOr<bool> { return Round(); });
      if (more.ok()) continue;
      clients_.clear();  // who can ask again
      accept_after_ns_ = NowNanos() + kPauseNanos;
    }
    clients_.clear();
    listener_ = Descriptor();
  }
  // Any thread: ends Run.
  void Wake() const {
    const uint64_t one = 1;
    // It fails only when the counter is full, and then Run is on its way out.
    [[maybe_unused]] const ssize_t put = ::write(wake_.get(), &one, sizeof(one));
  }

 private:
  struct Client {
    Descriptor socket;
    int64_t deadline_ns = 0;
    std::string request;
    std::string head;  // of the answer; empty: there is none yet
    std::shared_ptr<const std::string> body;
    size_t sent = 0;      // of both
    int64_t drained = 0;  // bytes that came after the request
    bool done = false;    // all was sent: what is left is the other side's end
    bool closed = false;
  };

  // Waits for something to happen, and does it. False: the end.
  bool Round();
  void Accept();
  void Read(Client* client);
  void Answer(Client* client);
  void Write(Client* client);

  const TextServerOptions& options_;
  Descriptor listener_;
  const Descriptor wake_;
  const std::function<std::shared_ptr<const std::string>()> text_;
  std::atomic<int64_t>* const answered_;
  std::deque<Client> clients_;  // in the order of their arrival, so of their deadlines
  int64_t accept_after_ns_ = 0;
  std::vector<pollfd> polled_;  // scratch
};

bool TextServer::Loop::Round() {
  int64_t now = NowNanos();
  int64_t until = clients_.empty() ? -1 : clients_.front().deadline_ns;
  const bool accepts = now >= accept_after_ns_;
  if (!accepts) until = until < 0 ? accept_after_ns_ : std::min(until, accept_after_ns_);
  polled_.clear();
  polled_.push_back({.fd = wake_.get(), .events = POLLIN});
  // poll passes over negative descriptors.
  polled_.push_back({.fd = accepts ? listener_.get() : -1, .events = POLLIN});
  for (const Client& client : clients_) {
    const bool reads = client.head.empty() || client.done;
    polled_.push_back(
        {.fd = client.socket.get(), .events = static_cast<int16_t>(reads ? POLLIN : POLLOUT)});
  }
  const int64_t wait_ms =
      until < 0 ? -1 : std::clamp<int64_t>((until - now) / kNanosPerMilli + 1, 0, 60'000);
  const int ready = ::poll(polled_.data(), polled_.size(), static_cast<int>(wait_ms));
  if (ready < 0 && errno != EINTR) return false;  // a bug or no memory: training goes on without
  if (ready > 0 && polled_[0].revents != 0) return false;
  now = NowNanos();
  for (size_t i = 0; i < clients_.size(); ++i) {
    Client& client = clients_[i];
    const int16_t events = ready > 0 ? polled_[i + 2].revents : int16_t{0};
    if ((events & (POLLIN | POLLHUP | POLLERR | POLLNVAL)) != 0) Read(&client);
    if (!client.closed && (events & POLLOUT) != 0) Write(&client);
    if (now >= client.deadline_ns) client.closed = true;
  }
  std::erase_if(clients_, [](const Client& client) { return client.closed; });
  if (ready > 0 && polled_[1].revents != 0) Accept();
  return true;
}

// One client a round, so that those who are there get their turns.
void TextServer::Loop::Accept() {
  Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.get() < 0) {
    const bool gone =
        errno == EAGAIN || errno == EINTR || errno == ECONNABORTED || errno == EWOULDBLOCK;
    if (!gone) accept_after_ns_ = NowNanos() + kPauseNanos;
    return;
  }
  if (std::ssize(clients_) >= kClientsMax) clients_.pop_front();
  Client& client = clients_.emplace_back();
  client.socket = std::move(socket);
  client.deadline_ns = NowNanos() + options_.deadline_ms * kNanosPerMilli;
}

void TextServer::Loop::Read(Client* client) {
  std::array<char, 2048> bytes;
  const ssize_t n = ::recv(client->socket.get(), bytes.data(), bytes.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (n <= 0) {
    client->closed = true;
    return;
  }
  if (!client->head.empty()) {  // it is still talking, to nobody
    client->drained += n;
    if (client->drained > kDrainBytesMax) client->closed = true;
    return;
  }
  client->request.append(bytes.data(), static_cast<size_t>(n));
  if (HasEnd(client->request) || std::ssize(client->request) > kRequestBytesMax) Answer(client);
}

void TextServer::Loop::Answer(Client* client) {
  const std::string_view line = FirstLine(client->request);
  const std::string_view method = line.substr(0, std::min(line.find(' '), line.size()));
  std::string_view target = line.substr(std::min(method.size() + 1, line.size()));
  const std::string_view version = target.substr(std::min(target.find(' '), target.size()));
  target = target.substr(0, target.find_first_of(" ?#"));
  const char* status = "200 OK";
  const char* more = "";
  bool gives_text = false;
  std::string said;
  if (!HasEnd(client->request)) {
    status = "431 Request Header Fields Too Large";
  } else if (!version.starts_with(" HTTP/1.")) {
    status = "400 Bad Request";
  } else if (method != "GET" && method != "HEAD") {
    status = "405 Method Not Allowed";
    more = "Allow: GET, HEAD\r\n";
  } else if (target != options_.path) {
    status = "404 Not Found";
    said = absl::StrCat("The text is at ", options_.path, "\n");
  } else if (client->body = text_(); client->body == nullptr) {
    status = "503 Service Unavailable";
  } else {
    gives_text = true;
  }
  if (!gives_text) {
    if (said.empty()) said = absl::StrCat(status, "\n");
    client->body = std::make_shared<const std::string>(std::move(said));
  }
  client->head = absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ",
                              gives_text ? options_.content_type : "text/plain; charset=utf-8",
                              "\r\nContent-Length: ", client->body->size(), "\r\n", more,
                              "Cache-Control: no-store\r\nConnection: close\r\n\r\n");
  if (method == "HEAD") client->body = std::make_shared<const std::string>();
  client->request = std::string();
  if (gives_text) answered_->fetch_add(1, std::memory_order_relaxed);
  Write(client);
}

void TextServer::Loop::Write(Client* client) {
  if (client->done) return;
  const size_t all = client->head.size() + client->body->size();
  while (client->sent < all) {
    const bool of_head = client->sent < client->head.size();
    const std::string_view left =
        of_head ? std::string_view(client->head).substr(client->sent)
                : std::string_view(*client->body).substr(client->sent - client->head.size());
    const ssize_t n = ::send(client->socket.get(), left.data(), left.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n < 0) {
      client->closed = true;
      return;
    }
    client->sent += static_cast<size_t>(n);
  }
  // Closing while there are bytes to read would take the answer back; so it waits for the client to
  // close first.
  client->done = true;
  client->body = nullptr;
  ::shutdown(client->socket.get(), SHUT_WR);
}

TextServer::TextServer(TextServerOptions options, int32_t port)
    : options_(std::move(options)), port_(port) {}

TextServer::~TextServer() { Stop(); }

absl::StatusOr<std::unique_ptr<TextServer>> TextServer::Start(
    const TextServerOptions& options, std::function<std::shared_ptr<const std::string>()> text) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  HOTROW_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(options.address, options.port, kBacklog));
  Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0) {
    return ErrnoToStatus(errno,
                         absl::StrCat("eventfd for ", HostAndPort(options.address, listener.port)));
  }

  std::unique_ptr<TextServer> server(new TextServer(options, listener.port));
  server->loop_ = std::make_unique<Loop>(server->options_, std::move(listener.socket),
                                         std::move(wake), std::move(text), &server->answered_);
  HOTROW_ASSIGN_OR_RETURN(
      server->thread_, StartThread("a text server", [loop = server->loop_.get()] { loop->Run(); }));
  return server;
}

std::string TextServer::url() const {
  return absl::StrCat("http://", HostAndPort(options_.address, port_), options_.path);
}

void TextServer::Stop() {
  if (!thread_.joinable()) return;
  loop_->Wake();
  thread_.join();
}

// --- The other side

namespace {

class Fetch {
 public:
  Fetch(const TextAddress& from, int64_t timeout_ms)
      : place_(HostAndPort(from.address, from.port)),
        deadline_ns_(NowNanos() + timeout_ms * kNanosPerMilli),
        timeout_ms_(timeout_ms) {}

  absl::StatusOr<std::string> Run(const TextAddress& from, int64_t bytes_max) {
    const std::string numbers = from.address == "localhost" ? "127.0.0.1" : from.address;
    HOTROW_ASSIGN_OR_RETURN(SocketAddress address, ParseSocketAddress(numbers, from.port));
    if (from.port < 1 || from.port > 65535) {
      return absl::InvalidArgumentError(absl::StrCat(place_, ": a port lies between 1 and 65535"));
    }
    socket_ = Descriptor(
        ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (socket_.get() < 0) return Failed("socket", errno);
    if (::connect(socket_.get(), address.get(), address.size) != 0) {
      if (errno != EINPROGRESS) return Failed("connect", errno);
      HOTROW_RETURN_IF_ERROR(Await(POLLOUT));
      int error = 0;
      socklen_t size = sizeof(error);
      ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return Failed("connect", error);
    }
    // 1.0: the answer ends with the connection, and is not in chunks.
    HOTROW_RETURN_IF_ERROR(Send(absl::StrCat("GET ", from.path, " HTTP/1.0\r\nHost: ", place_,
                                             "\r\nAccept: text/plain\r\n\r\n")));
    HOTROW_ASSIGN_OR_RETURN(const std::string answer, Receive(bytes_max));
    return BodyOf(answer);
  }

 private:
  absl::Status Failed(const char* call, int error) const {
    const absl::Status status = ErrnoToStatus(error, absl::StrCat(call, " ", place_));
    return absl::UnavailableError(
        absl::StrCat(std::string(status.message()),
                     error == ECONNREFUSED ? "; nobody serves there, or not any more" : ""));
  }
  absl::Status Await(int16_t events) const {
    for (;;) {
      const int64_t left_ms = (deadline_ns_ - NowNanos()) / kNanosPerMilli;
      pollfd polled = {.fd = socket_.get(), .events = events};
      const int ready =
          left_ms <= 0 ? 0
                       : ::poll(&polled, 1, static_cast<int>(std::min<int64_t>(left_ms, 60'000)));
      if (ready > 0) return absl::OkStatus();
      if (ready < 0 && errno != EINTR) return Failed("poll", errno);
      if (left_ms <= 0) {
        return absl::UnavailableError(
            absl::StrCat(place_, ": no answer within ", timeout_ms_, " ms"));
      }
    }
  }
  absl::Status Send(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t n = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (n >= 0) {
        text.remove_prefix(static_cast<size_t>(n));
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        HOTROW_RETURN_IF_ERROR(Await(POLLOUT));
      } else if (errno != EINTR) {
        return Failed("send to", errno);
      }
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Receive(int64_t bytes_max) const {
    std::string answer;
    std::vector<char> bytes(64 << 10);
    for (;;) {
      const ssize_t n = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
      if (n == 0) return answer;
      if (n > 0) {
        answer.append(bytes.data(), static_cast<size_t>(n));
        if (std::ssize(answer) > bytes_max + TextServer::kRequestBytesMax) {
          return absl::ResourceExhaustedError(
              absl::StrCat(place_, ": the answer has more than ", bytes_max, " bytes"));
        }
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        HOTROW_RETURN_IF_ERROR(Await(POLLIN));
      } else if (errno != EINTR) {
        return Failed("receive from", errno);
      }
    }
  }
  absl::StatusOr<std::string> BodyOf(const std::string& answer) const {
    const std::string line(FirstLine(answer));
    const size_t end = answer.find("\r\n\r\n");
    if (!absl::StartsWith(line, "HTTP/1.") || end == std::string::npos) {
      return absl::UnavailableError(
          absl::StrCat(place_, ": the answer is cut off, or is not HTTP"));
    }
    if (line.find(" 200") != 8) {
      return absl::FailedPreconditionError(
          absl::StrCat(place_, ": the answer is \"", line.substr(0, 80), "\""));
    }
    std::string body = answer.substr(end + 4);
    // The length, where it is given.
    const std::string head = absl::AsciiStrToLower(answer.substr(0, end + 2));
    constexpr std::string_view kLength = "\r\ncontent-length:";
    if (const size_t at = head.find(kLength); at != std::string::npos) {
      const std::string text = head.substr(at + kLength.size());
      int64_t length = 0;
      if (!absl::SimpleAtoi(text.substr(0, text.find('\r')), &length) ||
          length != std::ssize(body)) {
        return absl::UnavailableError(absl::StrCat(place_, ": the answer is cut off"));
      }
    }
    return body;
  }

  const std::string place_;
  const int64_t deadline_ns_;
  const int64_t timeout_ms_;
  Descriptor socket_;
};

}  // namespace

absl::StatusOr<std::string> FetchText(const TextAddress& from, int64_t timeout_ms,
                                      int64_t bytes_max) {
  return Fetch(from, timeout_ms).Run(from, bytes_max);
}

}  // namespace hotrow
