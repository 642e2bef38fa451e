#include "comm/lane.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/thread.h"
#include "comm/run_together.h"

namespace hotrow {

CommLane::CommLane(std::unique_ptr<Communicator> channel) : channel_(std::move(channel)) {
  absl::StatusOr<std::thread> thread = StartThread("a lane of collective calls", [this] { Run(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
    return;
  }
  // The others will wait for what this rank cannot send.
  channel_->Abort(std::string(thread.status().message()));
  const std::lock_guard lock(mutex_);
  failure_ = thread.status();
  failed_at_ = 0;
}

CommLane::~CommLane() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

int64_t CommLane::Start(Work work) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {  // all work has failed
    ++done_;
    return started_++;
  }
  queue_.push_back(std::move(work));
  changed_.notify_all();
  return started_++;
}

absl::Status CommLane::Wait(int64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ > ticket; });
  return !failure_.ok() && ticket >= failed_at_ ? failure_ : absl::OkStatus();
}

absl::Status CommLane::WaitAll() {
  int64_t last = 0;
  {
    const std::lock_guard lock(mutex_);
    last = started_ - 1;
  }
  return Wait(last);
}

void CommLane::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    absl::Status status;
    if (failure_.ok()) {
      lock.unlock();
      // The others wait for what it would have sent.
      status = Caught(
          "", [&] { return work(*channel_); },
          [&](const absl::Status&) { EndJobForException(channel_.get()); });
      work = nullptr;  // what it holds goes before Wait returns
      lock.lock();
    }
    if (failure_.ok() && !status.ok()) {
      failure_ = status;
      failed_at_ = done_;
    }
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace hotrow
