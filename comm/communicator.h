#ifndef HOTROW_COMM_COMMUNICATOR_H_
#define HOTROW_COMM_COMMUNICATOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

struct CommunicatorOptions {
  // A collective fails after this time without a message in or out. It must exceed any work that
  // one rank does alone while the others wait (a checkpoint, an evaluation) and the time of a
  // message of message_bytes_max. (0, 86400].
  double timeout_seconds = 30;
  // Longer messages are cut into pieces of this many bytes. MPI counts in int, hence the limit;
  // tests set it low. [1, 2^31 - 1].
  int64_t message_bytes_max = int64_t{1} << 30;

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// What a rank sends to and receives from each rank. Rank p gets send_bytes[p] bytes from send +
// send_offsets[p]; recv_bytes[p] bytes of rank p go to recv + recv_offsets[p]. All spans have
// world_size entries. The ranks must agree: our send_bytes[p] is p's recv_bytes for us. Any or all
// counts may be 0. Received ranges must overlap neither each other nor the sent ones.
struct AllToAllVArgs {
  const void* send = nullptr;  // may be null when all send_bytes are 0; the same for recv
  std::span<const int64_t> send_bytes;
  std::span<const int64_t> send_offsets;  // in bytes
  void* recv = nullptr;
  std::span<const int64_t> recv_bytes;
  std::span<const int64_t> recv_offsets;
};

// One rank's end of a channel between world_size ranks, which run the same program: collective
// calls over host memory. For device memory see comm/nccl_communicator.h.
//
// Calls:      every rank of a channel makes the same calls in the same order, with matching
//             arguments. A call returns when this rank's part is done: its result is complete and
//             its buffers are free. Only Barrier waits for the other ranks' parts.
// Channels:   Duplicate makes another channel between the same ranks, whose calls are independent
//             of this one's. A channel and its duplicates are a family.
// Threads:    one thread at a time for each channel. Different threads may use different channels
//             at once (prefetching exchanges ids while the compute thread exchanges embeddings).
//             comm/lane.h runs the calls of a channel on its own thread: the non-blocking form
//             for all backends. Abort and status: any thread, at any time.
// Bits:       sums are in the order of ranks, ((x0 + x1) + x2) + ..., rounded once per addition in
//             the type of the elements (int64 wraps), for any number of elements: the same bits on
//             every rank, every time, for every backend.
// Errors:     name the operation and the rank at fault.
//             InvalidArgument: arguments that are wrong, or do not match another rank's.
//             DeadlineExceeded: a rank did not answer for timeout_seconds; it is named.
//             Unavailable: another rank ended the job (its own error, Abort, or it left).
//             FailedPrecondition: a second thread in the same channel.
//             An error is final. It fails the family on all ranks: their calls, also running ones,
//             return an error that names the same rank, at most 5/4 of timeout_seconds after the
//             silence began. Ranks outside a call get it from their next call or status(). Then
//             print the error, destroy the family and end the process with a status other than 0.
//             Contents of receive buffers are unspecified, and the transport may still write to
//             those of a failed call while other families communicate.
//
// A new backend implements the four Do functions below, and joins the tests with a
// CommunicatorKind (tests/comm/communicator_contract.h).
class Communicator {
 public:
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  // Leaves the channel. Ranks that still wait for this one there fail, so call Barrier first if
  // that may happen. A backend may make the end of a family's last channel collective; it says so.
  virtual ~Communicator() = default;

  int rank() const { return rank_; }  // [0, world_size)
  int world_size() const { return world_size_; }
  const CommunicatorOptions& options() const { return options_; }

  absl::Status AllToAllV(const AllToAllVArgs& args);

  // Sets data[i] to the sum of all ranks' data[i]. All ranks have the same number of elements.
  // Each rank sends 2 (n-1)/n of the data; scratch memory of 16 MiB at most.
  absl::Status AllReduceSum(std::span<float> data);
  absl::Status AllReduceSum(std::span<double> data);
  absl::Status AllReduceSum(std::span<int64_t> data);

  // Sets `all` to the blocks of all ranks, in rank order. All blocks have the size of `mine`; `all`
  // has world_size times that. `mine` may be this rank's block of `all`.
  absl::Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all);

  // The same with a size for each rank: rank p's block goes to all + offsets[p]. bytes[rank()] is
  // the size of `mine`, and every rank knows all sizes (AllGatherSizes tells them).
  absl::Status AllGatherV(std::span<const std::byte> mine, std::span<const int64_t> bytes,
                          std::span<const int64_t> offsets, std::span<std::byte> all);

  // One number from each rank, by rank.
  absl::StatusOr<std::vector<int64_t>> AllGatherSizes(int64_t mine);

  // The data of rank `root` on all ranks; the same size and root everywhere.
  absl::Status Broadcast(std::span<std::byte> data, int root);

  // Returns when every rank has called it.
  absl::Status Barrier();

  // Collective: another channel between the same ranks, of the same family. All ranks must
  // duplicate the channels of a family in the same order: do it at the start.
  absl::StatusOr<std::unique_ptr<Communicator>> Duplicate();

  // Fails the family on all ranks: their calls return Unavailable "rank R ended the job: MESSAGE".
  // The process goes on. Only the first failure counts.
  void Abort(std::string_view message);

  // OK, or why the family has failed, on this rank or another. Does not wait for other ranks.
  absl::Status status();

 protected:
  using ConstBytes = std::span<const std::byte>;
  using Bytes = std::span<std::byte>;

  // All options are valid, and 0 <= rank < world_size.
  Communicator(int rank, int world_size, const CommunicatorOptions& options);

  // The primitive of all collectives. Every rank sends one message to every other, even an empty
  // one: send[p] to rank p, recv[p] from rank p. So each rank hears from every other in every step
  // and sees itself which one is silent. (It costs n-1 small messages where a tree has log n.)
  // Ignore this rank's own entries: they are done already. Both spans have world_size entries. `op`
  // names the collective in errors. Also called with a single rank.
  //
  // Returns OK when all of recv has arrived and all of send may be overwritten. Errors as above:
  // the backend fails the family and tells the others before it returns one. Once the family has
  // failed it returns that failure without waiting. A message of an unexpected size is
  // InvalidArgument and names both sizes and both ranks.
  virtual absl::Status DoExchange(std::string_view op, std::span<const ConstBytes> send,
                                  std::span<const Bytes> recv) = 0;
  // As Duplicate.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> DoDuplicate() = 0;
  // Makes Unavailable(text) the failure of the family on all ranks, unless it has failed already.
  // Does not wait for other ranks. Any thread.
  virtual void DoAbort(std::string_view text) = 0;
  virtual absl::Status DoStatus() = 0;

  // "rank 1 ended the job: MESSAGE", the argument of DoAbort.
  std::string AbortText(std::string_view message) const;

 private:
  class InUse;

  // The error for wrong arguments. Also tells the other ranks, since they wait.
  absl::Status Refuse(std::string_view op, std::string_view message);
  absl::Status CheckCounts(std::string_view op, std::string_view field, const void* data,
                           std::span<const int64_t> bytes, std::span<const int64_t> offsets,
                           int64_t limit);
  absl::Status ExchangeAndCopyOwn(std::string_view op);
  absl::Status GatherBlocks(std::string_view op, ConstBytes mine, std::span<const int64_t> bytes,
                            std::span<const int64_t> offsets, std::byte* all);
  template <typename T>
  absl::Status AllReduce(std::span<T> data);
  template <typename T>
  absl::Status AllReduceByGather(std::span<T> data);
  template <typename T>
  absl::Status AllReduceBySlices(std::span<T> data);

  const int rank_;
  const int world_size_;
  const CommunicatorOptions options_;
  std::atomic<bool> in_use_ = false;
  // One entry a rank, reused.
  std::vector<ConstBytes> send_;
  std::vector<Bytes> recv_;
  std::vector<std::byte> scratch_;
};

}  // namespace hotrow

#endif  // HOTROW_COMM_COMMUNICATOR_H_
