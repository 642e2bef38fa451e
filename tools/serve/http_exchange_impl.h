#ifndef HOTROW_TOOLS_SERVE_HTTP_EXCHANGE_IMPL_H_
#define HOTROW_TOOLS_SERVE_HTTP_EXCHANGE_IMPL_H_

#include <httplib.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tools/serve/http_message.h"
#include "tools/serve/http_server.h"
#include "tools/serve/http_stream_impl.h"

namespace hotrow::internal {

// What all connections share.
struct HttpShared {
  HttpServerOptions options;
  HttpServer::Handler handler;
  ConnectionCounts* counts = nullptr;
  std::atomic<int64_t> bodies_bytes{0};
  std::atomic<bool> draining{false};  // each reply is the last of its connection
  std::atomic<bool> stopping{false};
};

inline constexpr int64_t kHeadBytesMax = 16 << 10;

// Reads requests of one connection by httplib and answers them. httplib parses heads and chunks,
// and writes replies; its routes, ranges, compression and files are not used, so that a request's
// path meets no regular expression and its body is limited before it is read.
//
// Threads: one.
class HttpExchange : private httplib::Server {
 public:
  // Both outlive this. read: called when all of a request is there, before the handler is.
  // only_probes: other requests than those of probe_paths get 503, and each is the last.
  HttpExchange(HttpShared* shared, HttpStream* stream, std::function<void()> read,
               bool only_probes);

  // One request, whose first byte is there. False: the connection is to be closed; unread() tells
  // whether there are bytes of a request that was refused.
  bool Serve();
  bool unread() const { return unread_; }

 private:
  // An answer, before the body is read, to a request that is refused for its head, and counted.
  std::optional<HttpReply> Refuse(const httplib::Request& request);
  std::optional<HttpReply> CheckHead(const httplib::Request& request) const;
  bool IsProbe(const httplib::Request& request) const;
  // Calls the handler.
  void Answer(const httplib::Request& request, std::string body, httplib::Response* response);
  void ReadAndAnswer(const httplib::Request& request, httplib::Response* response,
                     const httplib::ContentReader& reader);
  void Fill(HttpReply reply, httplib::Response* response);
  // The answer to a request that could not be read to its end.
  HttpReply CutOff() const;

  HttpShared& shared_;
  HttpStream& stream_;
  const std::function<void()> read_;
  const bool only_probes_;
  bool closes_ = false;  // behind the present request
  std::string path_;     // of the present request, once its head is read
  bool unread_ = false;  // what follows in the stream is no request
};

}  // namespace hotrow::internal

#endif  // HOTROW_TOOLS_SERVE_HTTP_EXCHANGE_IMPL_H_
