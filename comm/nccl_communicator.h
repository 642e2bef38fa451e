#ifndef HOTROW_COMM_NCCL_COMMUNICATOR_H_
#define HOTROW_COMM_NCCL_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "comm/communicator.h"

namespace hotrow {

// Whether this build has NCCL (HOTROW_NCCL).
bool HaveNccl();

// Collective calls over device memory, one GPU a rank. They differ from Communicator's in two ways:
// a call enqueues its work on a stream and returns, and all pointers are to memory of the device
// that was current at Create. Counts and offsets are in host memory; calls do not keep them.
//
// Order:      all ranks enqueue the same calls in the same order, on any streams.
// Threads:    one thread at a time; status: any thread, at any time. Its own thread watches the
//             calls under way.
// Bits:       sums are the same on every rank, but in NCCL's order, which depends on the number of
//             ranks, the size and the topology. It is not the rank order of Communicator.
// Errors:     as Communicator; Wait and status return those that only the device finds. A failed
//             call ends all work of this communicator on the device (ncclCommAbort) and fails the
//             host's family, so that all ranks end; failures of the family end this communicator,
//             too. A call that is not done timeout_seconds after it was enqueued, or after the one
//             before was done, fails: also while this rank waits for the device by other means
//             (cudaStreamSynchronize, an event), which then end. NCCL cannot tell which rank is
//             silent, so the ranks meet in a Barrier on the host, which names it: within 9/4 of
//             timeout_seconds in all. FailedPrecondition: no usable GPU, or two ranks with one,
//             which NCCL cannot serve. Unimplemented: a build without NCCL.
// After one:  what a call that failed had to write is unspecified, and work behind it on the stream
//             runs on. So look at status() before numbers that came from other ranks are used.
// Sizes:      the ranks' counts must match. Unlike in Communicator nothing compares them, and in
//             NCCL a mismatch is undefined behaviour. If a peer decides a count, exchange it on the
//             host first.
class NcclCommunicator {
 public:
  virtual ~NcclCommunicator() = default;

  // Collective over `host`'s ranks. Duplicates `host` for setup and failures, and takes its
  // timeout.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(Communicator& host);

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // As Communicator's. A rank's part for itself is copied on the device.
  virtual absl::Status AllToAllV(const AllToAllVArgs& args, CudaStream stream) = 0;
  // In place over `count` elements.
  virtual absl::Status AllReduceSum(float* data, int64_t count, CudaStream stream) = 0;
  virtual absl::Status AllReduceSum(double* data, int64_t count, CudaStream stream) = 0;
  virtual absl::Status AllReduceSum(int64_t* data, int64_t count, CudaStream stream) = 0;
  // `bytes` from each rank; all: [world_size * bytes].
  virtual absl::Status AllGather(const void* mine, int64_t bytes, void* all, CudaStream stream) = 0;
  // bytes and offsets: [world_size], as Communicator's.
  virtual absl::Status AllGatherV(const void* mine, std::span<const int64_t> bytes,
                                  std::span<const int64_t> offsets, void* all,
                                  CudaStream stream) = 0;
  virtual absl::Status Broadcast(void* data, int64_t bytes, int root, CudaStream stream) = 0;

  // Returns when all work on the stream is done, or when this communicator has failed.
  virtual absl::Status Wait(CudaStream stream) = 0;
  // OK, or why it has failed.
  virtual absl::Status status() = 0;
};

}  // namespace hotrow

#endif  // HOTROW_COMM_NCCL_COMMUNICATOR_H_
