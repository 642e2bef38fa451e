#ifndef HOTROW_COMM_TCP_RENDEZVOUS_H_
#define HOTROW_COMM_TCP_RENDEZVOUS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

struct TcpRendezvousOptions {
  int rank = 0;
  int world_size = 1;
  std::string host;  // where rank 0 runs: a name or an address
  int port = 0;      // [1, 65535]
  double timeout_seconds = 30;

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// The longest message of a rendezvous.
inline constexpr int kTcpRendezvousBytesMax = 1 << 16;

// Rank 0's few bytes on all ranks: what NCCL needs before it can talk, where there is no MPI to
// carry it. Rank 0 listens on the port, on all addresses, until every other rank has called and
// said who it is, then answers all of them; they call again until somebody listens. Returns
// `message` of rank 0 on every rank; that of others is ignored. With one rank no socket is opened.
//
// Whoever can reach the port can read the message or take a rank's place: it is for a network among
// machines that trust each other, as NCCL itself is.
//
// Errors: InvalidArgument (options; two processes with one rank, or with different world sizes: all
// of them are told), DeadlineExceeded (names the ranks that did not come, or says what became of
// the call to rank 0), FailedPrecondition (the port is taken), Unavailable (rank 0 hung up).
absl::StatusOr<std::string> TcpBroadcast(const TcpRendezvousOptions& options,
                                         std::string_view message);

}  // namespace hotrow

#endif  // HOTROW_COMM_TCP_RENDEZVOUS_H_
