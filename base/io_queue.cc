#include "base/io_queue.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/env.h"
#include "base/errno_status.h"
#include "base/io_queue_impl.h"
#include "base/status_macros.h"
#include "base/thread.h"

namespace hotrow {
namespace {

constexpr int kDepthMax = 4096;
constexpr int kThreadsMax = 256;

class InOrderIoQueue : public IoQueue {
 public:
  void RunAll(std::span<IoRequest> requests,
              absl::FunctionRef<void(IoRequest& request)> on_done) override {
    for (IoRequest& request : requests) {
      if (internal::StartRequest(request)) calls_ += internal::FinishRequest(request);
      on_done(request);
    }
  }
  const char* name() const override { return "in_order"; }
};

class ThreadsIoQueue : public IoQueue {
 public:
  ~ThreadsIoQueue() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status StartThreads(int count) {
    for (int i = 0; i < count; ++i) {
      HOTROW_ASSIGN_OR_RETURN(std::thread thread,
                              StartThread(absl::StrCat("an I/O queue (", i + 1, " of ", count, ")"),
                                          [this] { Work(); }));
      threads_.push_back(std::move(thread));
    }
    return absl::OkStatus();
  }

  void RunAll(std::span<IoRequest> requests,
              absl::FunctionRef<void(IoRequest& request)> on_done) override {
    taken_.reserve(requests.size());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      finished_.reserve(requests.size());
      requests_ = requests;
      next_ = 0;
    }
    for (size_t i = 0; i < std::min(requests.size(), threads_.size()); ++i) work_.notify_one();
    for (size_t reported = 0; reported < requests.size(); reported += taken_.size()) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return !finished_.empty(); });
        taken_.clear();
        taken_.swap(finished_);
      }
      for (IoRequest* const request : taken_) on_done(*request);
    }
  }

  const char* name() const override { return "threads"; }

 private:
  // One lock a request: it hands in the last one and takes the next.
  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return stop_ || next_ < requests_.size(); });
      if (stop_) return;
      IoRequest& request = requests_[next_++];
      lock.unlock();
      const int64_t calls = internal::StartRequest(request) ? internal::FinishRequest(request) : 0;
      lock.lock();
      calls_ += calls;
      finished_.push_back(&request);
      if (finished_.size() == 1) done_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::vector<IoRequest*> taken_;  // of the thread that runs

  std::mutex mutex_;  // guards what follows, and calls_ while requests run
  std::condition_variable work_;
  std::condition_variable done_;
  std::span<IoRequest> requests_;
  size_t next_ = 0;  // of requests_; behind the last one between two Runs
  std::vector<IoRequest*> finished_;
  bool stop_ = false;
};

absl::Status EndOfFile(const IoRequest& request) {
  return absl::OutOfRangeError(absl::StrCat(
      "read ", request.file->path(), " at offset ", request.offset, ": the file ends at byte ",
      request.offset + request.done, ", but ", request.bytes, " bytes were wanted"));
}

// The error that `words` makes, or that there is no memory for it: other requests are in flight.
template <typename Words>
void Fail(IoRequest& request, const Words& words) {
  request.status = Caught("an I/O queue", words);
}

}  // namespace

void IoQueue::Run(std::span<IoRequest> requests,
                  absl::FunctionRef<void(IoRequest& request)> on_done) {
  std::exception_ptr thrown;
  RunAll(requests, [&](IoRequest& request) {
    if (thrown != nullptr) return;
    try {
      on_done(request);
    } catch (const std::exception&) {
      thrown = std::current_exception();
    }
  });
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

absl::Status IoQueueOptions::Validate() const {
  if (depth < 1 || depth > kDepthMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("IoQueueOptions: depth must lie in [1, ", kDepthMax, "], but is ", depth));
  }
  if (threads < 1 || threads > kThreadsMax) {
    return absl::InvalidArgumentError(absl::StrCat("IoQueueOptions: threads must lie in [1, ",
                                                   kThreadsMax, "], but is ", threads));
  }
  return absl::OkStatus();
}

namespace internal {

std::unique_ptr<IoQueue> NewInOrderIoQueue() { return std::make_unique<InOrderIoQueue>(); }

absl::StatusOr<std::unique_ptr<IoQueue>> NewThreadsIoQueue(const IoQueueOptions& options) {
  auto queue = std::make_unique<ThreadsIoQueue>();
  const absl::Status status = queue->StartThreads(std::min(options.threads, options.depth));
  if (!status.ok()) return status;
  return queue;
}

std::string DescribeTransfer(const IoRequest& request) {
  return absl::StrCat(request.write ? "write " : "read ", request.file->path(), " at offset ",
                      request.offset + request.done);
}

bool StartRequest(IoRequest& request) {
  HOTROW_CHECK(request.file != nullptr);
  HOTROW_CHECK(request.bytes >= 0);
  request.done = 0;
  request.status = absl::OkStatus();
  if (request.offset < 0) {
    Fail(request, [&] { return ErrnoToStatus(EINVAL, DescribeTransfer(request)); });
    return false;
  }
  const int64_t block_bytes = request.file->block_bytes();
  const uint64_t bits = static_cast<uint64_t>(request.offset | request.bytes) |
                        reinterpret_cast<uintptr_t>(request.data);
  if ((bits & static_cast<uint64_t>(block_bytes - 1)) != 0) {
    Fail(request, [&] {
      return absl::InvalidArgumentError(
          absl::StrCat(DescribeTransfer(request), ", ", request.bytes, " bytes, memory at ",
                       absl::Hex(reinterpret_cast<uintptr_t>(request.data)),
                       ": the file was opened for direct transfers, so all three must be multiples "
                       "of its block of ",
                       block_bytes, " bytes"));
    });
    return false;
  }
  return request.bytes > 0;
}

bool AdvanceRequest(IoRequest& request, int64_t moved) {
  HOTROW_CHECK(moved >= 0 && moved <= request.bytes - request.done);
  // What is left must begin at a block, too. A direct read stops within one at the end of the file
  // only; the part of a block that a write has moved is written again.
  const int64_t in_block = moved & (request.file->block_bytes() - 1);
  const int64_t progress = request.write ? moved - in_block : moved;
  if (progress == 0 && request.write) {
    // No file system does this; an error is better than a loop without end.
    Fail(request, [&] {
      return absl::InternalError(absl::StrCat(DescribeTransfer(request), ": took ", moved, " of ",
                                              request.bytes - request.done,
                                              " bytes, which is no progress"));
    });
    return false;
  }
  request.done += progress;
  if (request.done == request.bytes) return false;
  if (!request.write && (moved == 0 || in_block != 0)) {
    Fail(request, [&] { return EndOfFile(request); });
    return false;
  }
  return true;
}

int64_t FinishRequest(IoRequest& request) {
  for (int64_t calls = 1;; ++calls) {
    const std::span<std::byte> rest(request.data + request.done,
                                    static_cast<size_t>(request.bytes - request.done));
    const int64_t at = request.offset + request.done;
    const absl::StatusOr<int64_t> moved = Caught("an I/O queue", [&] {
      return request.write ? request.file->WriteAt(at, rest) : request.file->ReadAt(at, rest);
    });
    if (!moved.ok()) request.status = moved.status();
    if (!moved.ok() || !AdvanceRequest(request, *moved)) return calls;
  }
}

}  // namespace internal
}  // namespace hotrow
