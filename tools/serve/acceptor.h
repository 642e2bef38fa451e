#ifndef HOTROW_TOOLS_SERVE_ACCEPTOR_H_
#define HOTROW_TOOLS_SERVE_ACCEPTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace hotrow {

// Accepts connections at an address by a thread, for a server that counts and bounds them.
//
// Threads: `serve`, `starved` and `look` are called by that thread alone. All clients wait for it.
// Errors:  of Start: those of ListenTcp, and Unavailable (no thread). Later none.
class Acceptor {
 public:
  struct Calls {
    // Takes a connection over: a socket that does not block and is closed on exec. It closes it.
    std::function<void(int fd)> serve;
    // The system has no descriptor for a client, who is asked again in a moment.
    std::function<void()> starved;
    // Called about once a second; null: never.
    std::function<void()> look;
  };
  // port 0: any free one.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Start(const std::string& address, int32_t port,
                                                         Calls calls);
  virtual ~Acceptor() = default;  // stops

  virtual int32_t port() const = 0;
  // Takes those that have come before, and closes the port. Once or more; one thread at a time.
  virtual void Stop() = 0;
};

// How many connections fit into the descriptors that the process has left, at most max, at least 1.
// beside: those that come on top. servers: how many share them.
int64_t DescriptorPlaces(int64_t max, int64_t beside, int64_t servers);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_ACCEPTOR_H_
