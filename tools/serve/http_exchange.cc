#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/tcp_socket.h"
#include "base/trace.h"
#include "tools/serve/http_exchange_impl.h"
#include "tools/serve/infer_reply.h"

namespace hotrow::internal {
namespace {

constexpr size_t kPathBytesMax = 1 << 10;
constexpr char kOnlyPath[] = "/";  // that httplib sees, for any path
// Requests of a connection, by the header Keep-Alive. There is no limit, but httplib names one.
constexpr size_t kRequestsSaid = 1'000'000;
constexpr std::string_view kHeadTooLong =
    "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\n"
    "Connection: close\r\n\r\n";

HttpReply ErrorReply(int status, std::string_view message) {
  return {.status = status, .body = ErrorJson(message)};
}

// Bytes counted in a total while this lives.
class Reservation {
 public:
  explicit Reservation(std::atomic<int64_t>* total) : total_(*total) {}
  ~Reservation() { total_.fetch_sub(bytes_, std::memory_order_relaxed); }
  // False: there would be more than max.
  bool Add(int64_t bytes, int64_t max) {
    bytes_ += bytes;
    return total_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= max;
  }

 private:
  std::atomic<int64_t>& total_;
  int64_t bytes_ = 0;
};

}  // namespace

HttpExchange::HttpExchange(HttpShared* shared, HttpStream* stream, std::function<void()> read,
                           bool only_probes)
    : shared_(*shared), stream_(*stream), read_(std::move(read)), only_probes_(only_probes) {
  // What the header Keep-Alive says; the times are the stream's.
  set_keep_alive_timeout(shared->options.idle_ms / 1000);
  set_keep_alive_max_count(kRequestsSaid);
  set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    if (std::optional<HttpReply> refusal = Refuse(request); refusal.has_value()) {
      Fill(*std::move(refusal), &response);
      return HandlerResponse::Handled;
    }
    if (request.method == "POST") return HandlerResponse::Unhandled;
    Answer(request, "", &response);
    return HandlerResponse::Handled;
  });
  Post(kOnlyPath,
       [this](const httplib::Request& request, httplib::Response& response,
              const httplib::ContentReader& reader) { ReadAndAnswer(request, &response, reader); });
  set_expect_100_continue_handler(
      [this](const httplib::Request& request, httplib::Response& response) {
        std::optional<HttpReply> refusal = Refuse(request);
        if (!refusal.has_value()) return 100;
        Fill(*std::move(refusal), &response);
        return response.status;
      });
  // Handles all statuses from 400 on. Those without a text are httplib's own: it did not
  // understand.
  set_error_handler(HandlerWithResponse([this](const httplib::Request&,
                                               httplib::Response& response) {
    if (response.body.empty()) {
      unread_ = true;
      shared_.counts->unparsed.Add(1);
      Fill(stream_.failure() == HttpStream::Failure::kNone
               ? ErrorReply(response.status, "the request is not HTTP/1.1 as this server reads it")
               : CutOff(),
           &response);
    }
    return HandlerResponse::Handled;
  }));
  set_exception_handler(
      [this](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
        unread_ = true;
        Fill(ErrorReply(500, "the request ended in an exception; is the machine out of memory?"),
             &response);
      });
}

bool HttpExchange::Serve() {
  unread_ = false;
  path_.clear();
  bool asked_to_close = false;
  closes_ = only_probes_ || shared_.draining || shared_.stopping;
  const bool done = process_request(stream_, closes_, asked_to_close, [this](httplib::Request& r) {
    path_ = std::move(r.path);
    r.path.assign(1, kOnlyPath[0]);
    r.ranges.clear();
    r.headers.erase("Accept-Encoding");
    // Chunks have their own heads, and a refused body is not read.
    stream_.AllowBody(2 * shared_.options.body_bytes_max + kHeadBytesMax);
  });
  // A first line without end, of which httplib says nothing.
  if (!done && stream_.failure() == HttpStream::Failure::kTooLong) {
    unread_ = true;
    shared_.counts->unparsed.Add(1);
    stream_.write(kHeadTooLong.data(), kHeadTooLong.size());
  }
  if (!stream_.Flush() || !done) return false;
  return !closes_ && !asked_to_close && !unread_;
}

bool HttpExchange::IsProbe(const httplib::Request& request) const {
  const std::vector<std::string>& paths = shared_.options.probe_paths;
  return (request.method == "GET" || request.method == "HEAD") &&
         std::find(paths.begin(), paths.end(), path_) != paths.end();
}

std::optional<HttpReply> HttpExchange::Refuse(const httplib::Request& request) {
  if (only_probes_ && !IsProbe(request)) {
    unread_ = true;
    shared_.counts->refused.Add(1);
    HttpReply reply =
        ErrorReply(503, "all places for connections are taken by requests; try again later");
    reply.headers = {{"Retry-After", "1"}};
    return reply;
  }
  std::optional<HttpReply> reply = CheckHead(request);
  if (!reply.has_value()) return reply;
  unread_ = true;
  shared_.counts->unparsed.Add(1);
  return reply;
}

std::optional<HttpReply> HttpExchange::CheckHead(const httplib::Request& request) const {
  if (path_.size() > kPathBytesMax) {
    return ErrorReply(
        414, absl::StrCat("a path of ", path_.size(), " bytes; the longest is ", kPathBytesMax));
  }
  const size_t lengths = request.get_header_value_count("Content-Length");
  const size_t encodings = request.get_header_value_count("Transfer-Encoding");
  if (lengths + encodings > 1) {
    return ErrorReply(400, "more than one of Content-Length and Transfer-Encoding");
  }
  uint64_t length = 0;
  if (lengths == 1) {
    const std::string text = request.get_header_value("Content-Length");
    const bool digits =
        std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c); });
    if (!digits || !absl::SimpleAtoi(text, &length)) {
      return ErrorReply(400, "Content-Length is no number");
    }
  }
  if (encodings == 1 &&
      !absl::EqualsIgnoreCase(request.get_header_value("Transfer-Encoding"), "chunked")) {
    return ErrorReply(501, "Transfer-Encoding is not chunked");
  }
  if (request.method != "POST") {
    if (length > 0 || encodings > 0) {
      return ErrorReply(400, absl::StrCat("a body with ", request.method));
    }
    return std::nullopt;
  }
  if (lengths + encodings == 0) {
    return ErrorReply(411, "Content-Length is missing");
  }
  if (length > static_cast<uint64_t>(shared_.options.body_bytes_max)) {
    return ErrorReply(413, absl::StrCat("a body of ", length, " bytes; this server takes at most ",
                                        shared_.options.body_bytes_max));
  }
  const std::string encoding = request.get_header_value("Content-Encoding");
  if (!encoding.empty() && !absl::EqualsIgnoreCase(encoding, "identity")) {
    return ErrorReply(415, "Content-Encoding: this server takes bodies that are not compressed");
  }
  // As httplib looks for it; it would take the parts for the body.
  if (absl::StartsWithIgnoreCase(request.get_header_value("Content-Type"), "multipart/")) {
    return ErrorReply(415,
                      "Content-Type: this server takes application/json, and "
                      "application/octet-stream with Inference-Header-Content-Length");
  }
  return std::nullopt;
}

HttpReply HttpExchange::CutOff() const {
  switch (stream_.failure()) {
    case HttpStream::Failure::kTooSlow:
      return ErrorReply(408, absl::StrCat("the request did not come to its end within ",
                                          shared_.options.transfer_ms, " ms"));
    case HttpStream::Failure::kTooLong:
      return path_.empty()
                 ? ErrorReply(431, absl::StrCat("the head has more than ", kHeadBytesMax, " bytes"))
                 : ErrorReply(413, absl::StrCat("the body has more than ",
                                                shared_.options.body_bytes_max, " bytes"));
    default:
      return ErrorReply(400, "the request ends before its body does");
  }
}

void HttpExchange::ReadAndAnswer(const httplib::Request& request, httplib::Response* response,
                                 const httplib::ContentReader& reader) {
  std::string body;
  Reservation reservation(&shared_.bodies_bytes);
  bool is_room = true;
  bool is_short = true;
  const bool whole = reader([&](const char* bytes, size_t size) {
    const auto more = static_cast<int64_t>(size);
    is_room = is_room && reservation.Add(more, shared_.options.bodies_bytes_max);
    is_short = std::ssize(body) + more <= shared_.options.body_bytes_max;
    if (!is_room || !is_short) return false;
    body.append(bytes, size);
    return true;
  });
  if (whole) {
    response->status = -1;
    Answer(request, std::move(body), response);
    return;
  }
  unread_ = true;
  shared_.counts->unparsed.Add(1);
  if (!is_room) {
    HttpReply reply = ErrorReply(
        429, "the bodies of all requests have more bytes than there is room for; try again later");
    reply.headers = {{"Retry-After", "1"}};
    Fill(std::move(reply), response);
  } else if (!is_short) {
    Fill(ErrorReply(413, absl::StrCat("the body has more than ", shared_.options.body_bytes_max,
                                      " bytes")),
         response);
  } else {
    Fill(CutOff(), response);
  }
}

void HttpExchange::Answer(const httplib::Request& request, std::string body,
                          httplib::Response* response) {
  HttpRequest out = {.method = request.method,
                     .path = std::move(path_),
                     .body = std::move(body),
                     .client = HostAndPort(request.remote_addr, request.remote_port),
                     .begin_ns = stream_.request_begin_ns(),
                     .read_ns = NowNanos()};
  read_();
  if (request.has_header("Inference-Header-Content-Length")) {
    out.inference_header_length = request.get_header_value("Inference-Header-Content-Length");
  }
  Fill(shared_.handler(out), response);
}

void HttpExchange::Fill(HttpReply reply, httplib::Response* response) {
  response->status = reply.status;
  response->headers.erase("Content-Type");
  response->set_header("Content-Type", reply.content_type);
  for (const auto& [name, value] : reply.headers) response->set_header(name, value);
  if (!closes_ && (unread_ || shared_.draining || shared_.stopping)) {
    closes_ = true;
    response->set_header("Connection", "close");
  }
  response->body = std::move(reply.body);
}

}  // namespace hotrow::internal
