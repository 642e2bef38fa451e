#ifndef HOTROW_BASE_IO_QUEUE_IMPL_H_
#define HOTROW_BASE_IO_QUEUE_IMPL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/io_queue.h"

namespace hotrow::internal {

// Carries requests out one after the other, in their order, on the calling thread, through
// File::ReadAt and WriteAt.
std::unique_ptr<IoQueue> NewInOrderIoQueue();
// Starts its threads at once; they go with the queue. Works with any File. ResourceExhausted when
// the system has no room for a thread more.
absl::StatusOr<std::unique_ptr<IoQueue>> NewThreadsIoQueue(const IoQueueOptions& options);
// FailedPrecondition when the kernel does not allow it, or when this build lacks it.
absl::StatusOr<std::unique_ptr<IoQueue>> NewUringIoQueue(const IoQueueOptions& options);

// What every kind does alike with one request.

// Resets the results. Returns true when the request needs transfers; false when it is complete
// already: nothing to move, or refused, as its status says.
bool StartRequest(IoRequest& request);
// Takes in that a transfer at offset + done moved `moved` >= 0 bytes. Returns true when another one
// is needed; false when the request is complete, well or not.
bool AdvanceRequest(IoRequest& request, int64_t moved);
// "read /path at offset 4096": the place of the next transfer. Errors begin with it.
std::string DescribeTransfer(const IoRequest& request);
// Carries out what is left of a started request through its File; returns how many calls it took.
int64_t FinishRequest(IoRequest& request);

}  // namespace hotrow::internal

#endif  // HOTROW_BASE_IO_QUEUE_IMPL_H_
