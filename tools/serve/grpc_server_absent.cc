// Takes the place of grpc_server.cc in a build without gRPC.

#include "tools/serve/grpc_server.h"

namespace hotrow {

bool GrpcServer::IsThere() { return false; }

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const HttpServerOptions& options,
                                                              ScoringService* service) {
  return absl::FailedPreconditionError(
      "this build has no gRPC server, since gRPC was not there when it was made; leave out "
      "--grpc_port, or install libgrpc++-dev, libprotobuf-dev, protobuf-compiler and "
      "protobuf-compiler-grpc and build again");
}

}  // namespace hotrow
