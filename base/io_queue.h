#ifndef HOTROW_BASE_IO_QUEUE_H_
#define HOTROW_BASE_IO_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace hotrow {

class File;

// One read or write of a batch. The caller fills in the first part; IoQueue::Run fills in the rest.
struct IoRequest {
  File* file = nullptr;       // not owned; open until Run returns
  bool write = false;         // otherwise a read
  int64_t offset = 0;         // in the file, bytes
  std::byte* data = nullptr;  // bytes bytes; a write only reads them
  int64_t bytes = 0;          // >= 0; may be more than one system call moves
  uint64_t user_data = 0;     // the caller's; not used here

  int64_t done = 0;     // bytes moved, from the front of data; == bytes when status is OK
  absl::Status status;  // see IoQueue
};

enum class IoQueueKind {
  kAuto,     // io_uring if the kernel allows it, otherwise threads
  kUring,    // io_uring, or an error that says why not
  kThreads,  // plain reads and writes on threads of the queue; works with any File
};

struct IoQueueOptions {
  IoQueueKind kind = IoQueueKind::kAuto;
  int depth = 128;   // requests in flight at most; [1, 4096]
  int threads = 16;  // of kThreads, and its limit of requests in flight; [1, 256]

  absl::Status Validate() const;
};

// Runs batches of reads and writes of Files, many at a time. Made by Env::NewIoQueue.
//
// Order:      none. Requests run and complete in any order and in parallel. If two requests of one
//             Run overlap and one is a write, either result is possible. A Run reads what earlier
//             Runs wrote.
// Whole:      short transfers are continued: OK means all bytes.
// Direct:     on a File with direct() the offset, bytes and address of data must be multiples of
//             its block_bytes(); anything else is InvalidArgument and touches nothing.
// Durability: none before File::Sync.
// Threads:    one thread at a time. Any thread may call, but io_uring needs the least CPU when it
//             is always the same one. Queues are independent of each other and may share Files.
// Errors:     are in each request's status; other requests run on. A status names path and offset.
//             OutOfRange (the file ended before the read did; done says how much there was),
//             DataLoss (EIO), ResourceExhausted (disk full), InvalidArgument (see Direct; offset
//             < 0), others as ErrnoToStatus maps them. After an error the bytes behind done are
//             unspecified, in data for a read and in the file for a write.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  // Runs all requests. Calls on_done once for each, on this thread, as they complete and while
  // others are in flight: the place to check and copy what was read. on_done must not use this
  // queue; what it throws is thrown on, once all requests have ended, and it is not called again.
  // done and status need no initial values.
  void Run(std::span<IoRequest> requests, absl::FunctionRef<void(IoRequest& request)> on_done);

  // "io_uring", "threads", or "in_order" (Env::NewIoQueue).
  virtual const char* name() const = 0;

  // System calls for transfers so far, or calls of File in queues that use those. For metrics, and
  // for tests that transfers are batched.
  int64_t calls() const { return calls_; }

 protected:
  IoQueue() = default;
  // Run, with an on_done that does not throw.
  virtual void RunAll(std::span<IoRequest> requests,
                      absl::FunctionRef<void(IoRequest& request)> on_done) = 0;
  int64_t calls_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_IO_QUEUE_H_
