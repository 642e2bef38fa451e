#include "tests/support/lagging_streams.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/device_stream.h"
#include "base/thread.h"

namespace hotrow::test {
namespace {

// Does what it is given in order, on its own thread. After an error it does nothing more.
class LaggingQueue final : public internal::LateQueue {
 public:
  explicit LaggingQueue(std::chrono::microseconds lag) : lag_(lag) {
    absl::StatusOr<std::thread> thread = StartThread("a lagging stream", [this] { Run(); });
    if (thread.ok()) {
      thread_ = *std::move(thread);
    } else {
      status_ = thread.status();
    }
  }

  ~LaggingQueue() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  // Takes the work on, or returns the error of some before.
  absl::Status Add(std::function<absl::Status()> work) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!status_.ok()) return status_;
      queue_.push_back({std::chrono::steady_clock::now() + lag_, std::move(work)});
      ++added_;
    }
    changed_.notify_all();
    return absl::OkStatus();
  }

  bool IsDone(int64_t ticket) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_ >= ticket;
  }

  int64_t added() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return added_;
  }

  // Until the first `ticket` pieces are done.
  absl::Status Wait(int64_t ticket) const override {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= ticket; });
    return status_;
  }

 private:
  struct Item {
    std::chrono::steady_clock::time_point due;
    std::function<absl::Status()> work;
  };

  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Item item = std::move(queue_.front());
      queue_.pop_front();
      const bool skip = !status_.ok();
      lock.unlock();
      std::this_thread::sleep_until(item.due);
      absl::Status status = skip ? absl::OkStatus() : item.work();
      lock.lock();
      status_.Update(status);
      ++done_;
      changed_.notify_all();
    }
  }

  const std::chrono::microseconds lag_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  std::deque<Item> queue_;
  int64_t added_ = 0;
  int64_t done_ = 0;
  absl::Status status_;  // the first error
  bool stopping_ = false;
  std::thread thread_;
};

std::atomic<int64_t> lag_of_new_streams{0};  // microseconds

std::shared_ptr<internal::LateQueue> NewLaggingQueue() {
  return std::make_shared<LaggingQueue>(std::chrono::microseconds(lag_of_new_streams.load()));
}

}  // namespace

LaggingStreams::LaggingStreams(std::chrono::microseconds lag) {
  lag_of_new_streams.store(lag.count());
  internal::SetLateQueues(NewLaggingQueue);
}

LaggingStreams::~LaggingStreams() { internal::SetLateQueues(nullptr); }

}  // namespace hotrow::test
