#include <liburing.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/env.h"
#include "base/errno_status.h"
#include "base/io_queue_impl.h"
#include "base/thread.h"

namespace hotrow::internal {
namespace {

// Each system call costs as much as the way of several 4 KiB requests through the kernel, so many
// go in with one and come out with one. More at a time would leave the device idle meanwhile.
constexpr unsigned kSubmitBatch = 16;
constexpr unsigned kReapBatch = 64;
// The most that one entry moves: its length is 32 bits. A multiple of any block.
constexpr int64_t kTransferBytesMax = int64_t{1} << 30;

// Cheapest first. With the first, completions wait in the ring until its one thread asks for them,
// instead of interrupting it; the ring takes the thread that enables it. Linux 6.1; 5.19; 5.6.
constexpr unsigned kOneThread =
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED;
constexpr unsigned kFlagSets[] = {kOneThread, IORING_SETUP_COOP_TASKRUN, 0};

// Never the number of a thread that has ended, as the system's ids may be.
uint64_t ThisThread() {
  static std::atomic<uint64_t> threads = 0;
  thread_local const uint64_t number = ++threads;
  return number;
}

class UringIoQueue : public IoQueue {
 public:
  explicit UringIoQueue(int depth) : depth_(static_cast<unsigned>(depth)) {}
  ~UringIoQueue() override { CloseRing(); }

  // Tries the flag sets from this one on.
  absl::Status OpenRing(size_t flag_set) {
    int error_number = EINVAL;
    for (; flag_set < std::size(kFlagSets) && error_number == EINVAL; ++flag_set) {
      error_number = -io_uring_queue_init(depth_, &ring_, kFlagSets[flag_set]);
      if (error_number != 0) continue;
      open_ = true;
      one_thread_ = kFlagSets[flag_set] == kOneThread;
      thread_ = 0;
      // This feature came together with reads and writes of plain buffers.
      if ((ring_.features & IORING_FEAT_RW_CUR_POS) != 0) return absl::OkStatus();
      CloseRing();
      error_number = ENOSYS;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        std::string(ErrnoToStatus(error_number, "io_uring_setup").message()),
        "; io_uring needs Linux 5.6, kernel.io_uring_disabled=0 and a container that allows it; "
        "otherwise choose threads for the I/O queue"));
  }

  void RunAll(std::span<IoRequest> requests,
              absl::FunctionRef<void(IoRequest& request)> on_done) override {
    size_t next = 0;
    unsigned active = 0;  // requests in the ring: queued or in flight
    const bool usable = TakeRing();

    const auto queue_next = [&] {  // the next one that needs the ring
      while (next < requests.size()) {
        IoRequest& request = requests[next++];
        if (StartRequest(request)) {
          if (usable && request.file->descriptor() >= 0) {
            Queue(request);
            ++active;
            return;
          }
          calls_ += FinishRequest(request);
        }
        on_done(request);
      }
    };

    while (active < depth_ && next < requests.size()) queue_next();
    while (active > 0) {
      if (!SubmitAndWait(active)) break;
      // Copied out, so that the ring is free while on_done works.
      struct Completion {
        IoRequest* request;
        int result;
      };
      std::array<io_uring_cqe*, kReapBatch> entries;
      std::array<Completion, kReapBatch> completions;
      const unsigned count = io_uring_peek_batch_cqe(&ring_, entries.data(), kReapBatch);
      for (unsigned i = 0; i < count; ++i) {
        completions[i] = {static_cast<IoRequest*>(io_uring_cqe_get_data(entries[i])),
                          entries[i]->res};
      }
      io_uring_cq_advance(&ring_, count);
      for (unsigned i = 0; i < count; ++i) {
        IoRequest& request = *completions[i].request;
        if (Complete(request, completions[i].result)) {
          Queue(request);
          continue;
        }
        --active;
        queue_next();  // before on_done, to keep the device busy
        on_done(request);
      }
    }
    if (active == 0) return;
    // The kernel takes no entry and has none in flight, for want of memory: plain calls need less.
    // The next Run tries a new ring.
    for (IoRequest* const request : CloseAndTakeBack()) {
      calls_ += FinishRequest(*request);
      on_done(*request);
    }
    for (; next < requests.size(); ++next) {
      if (StartRequest(requests[next])) calls_ += FinishRequest(requests[next]);
      on_done(requests[next]);
    }
  }

  const char* name() const override { return "io_uring"; }

 private:
  // Makes the ring usable on this thread. False when there is none to be had.
  bool TakeRing() {
    if (!open_ && !OpenRing(0).ok()) return false;
    const uint64_t thread = ThisThread();
    if (!one_thread_ || thread_ == thread) return true;
    if (thread_ == 0) {
      thread_ = thread;
      // io_uring_enable_rings; Debian 12's liburing declares it and does not export it.
      if (::syscall(SYS_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr,
                    0) == 0) {
        return true;
      }
    }
    // The ring belongs to another thread. Nothing is in flight, so a new one can take its place;
    // a queue that went from hand to hand once gets a ring for any thread.
    CloseRing();
    return OpenRing(1).ok();
  }

  void CloseRing() {
    if (open_) io_uring_queue_exit(&ring_);
    open_ = false;
  }

  void Queue(IoRequest& request) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    HOTROW_CHECK(entry != nullptr);  // there are `depth` entries, and no more requests in the ring
    const int file = request.file->descriptor();
    std::byte* const data = request.data + request.done;
    const auto bytes =
        static_cast<unsigned>(std::min(request.bytes - request.done, kTransferBytesMax));
    const auto at = static_cast<uint64_t>(request.offset + request.done);
    if (request.write) {
      io_uring_prep_write(entry, file, data, bytes, at);
    } else {
      io_uring_prep_read(entry, file, data, bytes, at);
    }
    io_uring_sqe_set_data(entry, &request);
    if (io_uring_sq_ready(&ring_) < kSubmitBatch) return;
    ++calls_;
    io_uring_submit(&ring_);  // what it does not take stays queued; SubmitAndWait looks after it
  }

  // Takes in the result of a transfer; returns true when the request needs another one.
  bool Complete(IoRequest& request, int result) {
    if (result >= 0) return AdvanceRequest(request, result);
    if (result == -EAGAIN || result == -EINTR) {  // "not now, not this way": a plain call waits
      calls_ += FinishRequest(request);
    } else {
      request.status = Caught("an I/O queue", [&] {  // other requests are in flight
        return ErrnoToStatus(-result, DescribeTransfer(request));
      });
    }
    return false;
  }

  // Submits what is queued and waits for half of what is in flight: then on_done has work, and the
  // device too. False when nothing is in flight and the kernel takes nothing.
  bool SubmitAndWait(unsigned active) {
    ++calls_;
    const int result = io_uring_submit_and_wait(&ring_, std::min(kReapBatch, (active + 1) / 2));
    if (result >= 0 || result == -EINTR || io_uring_cq_ready(&ring_) > 0) return true;
    if (io_uring_sq_ready(&ring_) == active) return false;
    // Room will come with a completion. No other error leaves a way to learn when the kernel is
    // done with the callers' memory.
    io_uring_cqe* entry = nullptr;
    ++calls_;
    const int error = io_uring_wait_cqe(&ring_, &entry);
    HOTROW_CHECK(error == 0 || error == -EINTR || error == -EAGAIN || error == -EBUSY);
    return true;
  }

  // Closes a ring that has requests queued but none in flight, and returns those.
  std::vector<IoRequest*> CloseAndTakeBack() {
    std::vector<IoRequest*> queued;
    const io_uring_sq& entries = ring_.sq;
    for (unsigned i = *entries.khead; i != entries.sqe_tail; ++i) {
      queued.push_back(reinterpret_cast<IoRequest*>(entries.sqes[i & entries.ring_mask].user_data));
    }
    CloseRing();
    return queued;
  }

  const unsigned depth_;
  io_uring ring_ = {};
  bool open_ = false;
  bool one_thread_ = false;  // of the open ring
  uint64_t thread_ = 0;      // its one thread; 0 before the first Run
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoQueue>> NewUringIoQueue(const IoQueueOptions& options) {
  auto queue = std::make_unique<UringIoQueue>(options.depth);
  const absl::Status status = queue->OpenRing(0);
  if (!status.ok()) return status;
  return queue;
}

}  // namespace hotrow::internal
