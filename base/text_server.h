#ifndef HOTROW_BASE_TEXT_SERVER_H_
#define HOTROW_BASE_TEXT_SERVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

struct TextServerOptions {
  // IPv4 or IPv6 in numbers. The default is for this machine alone; 0.0.0.0 is for whoever reaches
  // it: there is no password and no encryption.
  std::string address = "127.0.0.1";
  int32_t port = 0;  // 0: any free one, see TextServer::port
  std::string path = "/metrics";
  std::string content_type = "text/plain; charset=utf-8";
  // A client's time, from its arrival until it has all of its answer.
  int64_t deadline_ms = 5000;

  absl::Status Validate() const;
};

// TextServer gives one text to whoever asks for it by HTTP: GET and HEAD of one path, one request
// a connection, the text as it is at that moment. It is for numbers to watch beside work that must
// not be held up, so nothing that a client does or leaves undone takes more than this:
//
// Threads: it has one, for any number of clients; all sockets are non-blocking. Stop and the
//          destructor wait for no client.
// Memory:  kClientsMax connections with kRequestBytesMax bytes each, and the texts that are on
//          their way. A client has options.deadline_ms for all it does, and one that comes while
//          all places are taken gets the place of the one that is there longest. So whoever opens
//          connections and says nothing delays others by as little as it delays itself. One that
//          goes on talking after its request is cut off after kDrainBytesMax bytes.
// Errors:  of Start: InvalidArgument (an option), FailedPrecondition (the port is taken or not ours
//          to take, or the machine has no such address; names both and the remedy), Unavailable (no
//          thread). Later none: a client that fails is one fewer.
class TextServer {
 public:
  static constexpr int kClientsMax = 16;
  static constexpr int64_t kRequestBytesMax = 8 << 10;
  static constexpr int64_t kDrainBytesMax = 64 << 10;

  // text: is called on the server's thread for each request and must not wait; null: 503.
  static absl::StatusOr<std::unique_ptr<TextServer>> Start(
      const TextServerOptions& options, std::function<std::shared_ptr<const std::string>()> text);
  ~TextServer();
  TextServer(const TextServer&) = delete;
  TextServer& operator=(const TextServer&) = delete;

  int32_t port() const { return port_; }
  // "http://127.0.0.1:9400/metrics"
  std::string url() const;
  // Requests answered with the text so far. Any thread may ask.
  int64_t answered() const { return answered_.load(std::memory_order_relaxed); }
  // Closes all connections. One thread calls it, once or more.
  void Stop();

 private:
  class Loop;

  TextServer(TextServerOptions options, int32_t port);

  const TextServerOptions options_;
  const int32_t port_;
  std::atomic<int64_t> answered_{0};
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_TEXT_SERVER_H_
