#ifndef HOTROW_TOOLS_SERVE_HTTP_STREAM_IMPL_H_
#define HOTROW_TOOLS_SERVE_HTTP_STREAM_IMPL_H_

#include <httplib.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hotrow::internal {

// The bytes of a connection as httplib reads and writes them, with limits that it has not: so many
// bytes of a request and no more, all of it within a time, all of a reply within a time. A limit
// that is passed reads as the end of the connection; failure() tells why.
//
// Threads: one. shutdown(2) of the socket by another ends what it waits for.
class HttpStream : public httplib::Stream {
 public:
  enum class Failure { kNone, kClosed, kTooSlow, kTooLong };

  // fd: a non-blocking socket, not owned.
  HttpStream(int fd, std::string remote_ip, int remote_port, int64_t transfer_ms);

  // Waits for the first byte of the next request, which may be here already, and begins its times
  // and its budget: head_bytes until AllowBody. False: the connection ended, or idle_ms passed.
  bool AwaitRequest(int64_t idle_ms, int64_t head_bytes);
  // The head is read; as many bytes may follow.
  void AllowBody(int64_t bytes) { budget_ = bytes; }
  // Sends what was written. False: the other side does not take it.
  bool Flush();
  // Says that nothing more is sent, and drops what still comes for a while, so that the other side
  // reads the reply before it hears that the connection is closed.
  void Linger();

  Failure failure() const { return failure_; }
  int64_t request_begin_ns() const { return request_begin_ns_; }

  // What httplib::Stream asks for.
  bool is_readable() const override;
  bool is_writable() const override { return true; }
  ssize_t read(char* bytes, size_t size) override;
  ssize_t write(const char* bytes, size_t size) override;
  using httplib::Stream::write;
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip = remote_ip_;
    port = remote_port_;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  // httplib refuses sockets above the limit of select, which this class does not use.
  socket_t socket() const override { return 0; }

 private:
  // Fills the buffer, which is empty. False: see failure().
  bool Fill(int64_t deadline_ns);
  bool Await(int16_t events, int64_t deadline_ns);

  const int fd_;
  const std::string remote_ip_;
  const int remote_port_;
  const int64_t transfer_ns_;
  std::vector<char> in_;  // bytes [in_begin_, in_end_) are received and not read
  size_t in_begin_ = 0;
  size_t in_end_ = 0;
  std::string out_;     // written and not sent
  int64_t budget_ = 0;  // bytes of the request that may still be read
  int64_t deadline_ns_ = 0;
  int64_t request_begin_ns_ = 0;
  Failure failure_ = Failure::kNone;
};

}  // namespace hotrow::internal

#endif  // HOTROW_TOOLS_SERVE_HTTP_STREAM_IMPL_H_
