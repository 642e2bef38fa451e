#ifndef HOTROW_TOOLS_SERVE_GRPC_SERVER_H_
#define HOTROW_TOOLS_SERVE_GRPC_SERVER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "tools/serve/http_server.h"
#include "tools/serve/service.h"

namespace hotrow {

// GrpcServer answers the calls of tools/serve/inference.proto. Those of an infer request go to
// ScoringService::Infer, all others are asked of ScoringService::Handle by their paths, so that
// both protocols have the same answers.
//
// Options: those of the HTTP server, with the same meaning. One connection more than
//          connections_max is closed at once, and so many calls are answered at once; one more is
//          ResourceExhausted. body_bytes_max is of a message, bodies_bytes_max of all that are
//          there. transfer_ms is the time to begin with HTTP/2; probe_paths have no use.
// Memory:  bodies_bytes_max and some 64 KiB for each connection, a limit that gRPC keeps by ending
//          calls and that it may pass for a moment; while a message is read, which as many threads
//          do as the machine has, up to 60 bytes for each of its bytes.
// Threads: one that accepts, one for each call, and gRPC's own. A message that does not come to its
//          end has none; it goes with its connection, which lives for minutes.
// Refused: messages that are compressed (Unimplemented) or too long (ResourceExhausted).
// Errors:  of Start: InvalidArgument (an option), FailedPrecondition (the port; names the remedy;
//          or this build has no gRPC server), Unavailable (no thread).
class GrpcServer {
 public:
  // Whether this build has one: it needs gRPC and protobuf.
  static bool IsThere();
  // The service outlives the server.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const HttpServerOptions& options,
                                                           ScoringService* service);
  virtual ~GrpcServer() = default;  // stops

  virtual int32_t port() const = 0;
  // Takes no new connections, tells clients to go elsewhere, and waits until calls that are there
  // are answered: after grace_ms they are ended. Silent connections end where there are none. Once
  // or more; one thread at a time.
  virtual void Stop(int64_t grace_ms) = 0;
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_GRPC_SERVER_H_
