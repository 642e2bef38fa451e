#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/trace.h"
#include "embedding/tiers/step_pipeline_impl.h"

namespace hotrow::internal {

StepPipeline::StepPipeline(bool threaded, Stages stages)
    : stages_(std::move(stages)), threaded_(threaded) {
  if (!threaded_) return;
  status_ = [this]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(first_thread_, StartThread("placing rows", [this] { RunFirst(); }));
    HOTROW_ASSIGN_OR_RETURN(second_thread_, StartThread("reading rows", [this] { RunSecond(); }));
    return absl::OkStatus();
  }();
}

StepPipeline::~StepPipeline() { Stop(); }

void StepPipeline::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    for (Job* const job : jobs_) job->cancelled = true;
  }
  changed_.notify_all();
  if (first_thread_.joinable()) first_thread_.join();
  if (second_thread_.joinable()) second_thread_.join();
}

void StepPipeline::RunFirst() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    Job* next = nullptr;
    changed_.wait(lock, [&] {
      if (stopping_) return true;
      if (pauses_ > 0 || undoing_ || ready_ != nullptr) return false;
      const auto at = std::find_if(jobs_.begin(), jobs_.end(), [](const Job* job) {
        return job->state == Job::State::kQueued;
      });
      next = at == jobs_.end() ? nullptr : *at;
      return next != nullptr;
    });
    if (stopping_) {
      first_ended_ = true;
      changed_.notify_all();
      return;
    }
    next->state = Job::State::kRunning;
    busy_ = true;
    lock.unlock();
    absl::Status status = stages_.first(next);
    lock.lock();
    busy_ = false;
    if (status.ok()) {
      ready_ = next;
    } else {
      next->status = std::move(status);
      next->state = Job::State::kDone;
    }
    changed_.notify_all();
  }
}

void StepPipeline::RunSecond() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto undo = [&](Job* job) {
    lock.unlock();
    stages_.undo(job);
    lock.lock();
    ++room_epoch_;
  };
  const auto end = [&](Job* job, absl::Status status) {
    job->status = std::move(status);
    job->state = Job::State::kDone;
    changed_.notify_all();
  };
  for (;;) {
    changed_.wait(lock, [&] { return first_ended_ || ready_ != nullptr; });
    if (ready_ == nullptr) return;
    if (ready_->cancelled) {
      undo(ready_);
      end(std::exchange(ready_, nullptr), absl::CancelledError("the step was cancelled"));
      continue;
    }
    second_ = std::exchange(ready_, nullptr);
    changed_.notify_all();
    lock.unlock();
    absl::Status status = stages_.second(second_);
    lock.lock();
    if (!status.ok()) {
      undoing_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return !busy_; });
      if (ready_ != nullptr) {
        undo(ready_);
        std::exchange(ready_, nullptr)->state = Job::State::kQueued;
      }
      undo(second_);
      undoing_ = false;
    }
    end(std::exchange(second_, nullptr), std::move(status));
  }
}

void StepPipeline::Submit(Job* job) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    HOTROW_CHECK(!stopping_);
    jobs_.push_back(job);  // first, since it may throw: a job that does not run is not waited for
    job->state = threaded_ ? Job::State::kQueued : Job::State::kRunning;
    job->cancelled = false;
    job->status = absl::OkStatus();
  }
  if (threaded_) {
    changed_.notify_all();
    return;
  }
  absl::Status status = stages_.first(job);
  if (status.ok()) {
    status = stages_.second(job);
    if (!status.ok()) stages_.undo(job);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  job->status = std::move(status);
  job->state = Job::State::kDone;
}

absl::Status StepPipeline::Wait(Job* job, int64_t* waited_ns) {
  *waited_ns = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  HOTROW_CHECK(job->state != Job::State::kIdle);
  if (job->state != Job::State::kDone) {
    const int64_t begin = NowNanos();
    changed_.wait(lock, [&] { return job->state == Job::State::kDone; });
    *waited_ns = std::max<int64_t>(1, NowNanos() - begin);
  }
  return job->status;
}

void StepPipeline::Withdraw(Job* job) {
  std::unique_lock<std::mutex> lock(mutex_);
  job->cancelled = true;
  changed_.notify_all();
  changed_.wait(lock, [&] {
    if (job->state == Job::State::kQueued) job->state = Job::State::kIdle;  // perhaps once more
    return job->state != Job::State::kRunning;
  });
}

void StepPipeline::Forget(Job* job) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    HOTROW_CHECK(job->state != Job::State::kRunning && job->state != Job::State::kQueued);
    std::erase(jobs_, job);
    job->state = Job::State::kIdle;
    ++room_epoch_;
  }
  changed_.notify_all();
}

StepPipeline::Pause::Pause(StepPipeline* pipeline) : pipeline_(pipeline) {
  std::unique_lock<std::mutex> lock(pipeline_->mutex_);
  ++pipeline_->pauses_;
  pipeline_->changed_.wait(lock, [this] {
    return !pipeline_->busy_ && pipeline_->ready_ == nullptr && pipeline_->second_ == nullptr;
  });
}

StepPipeline::Pause::~Pause() {
  {
    const std::lock_guard<std::mutex> lock(pipeline_->mutex_);
    --pipeline_->pauses_;
  }
  pipeline_->changed_.notify_all();
}

absl::StatusOr<bool> StepPipeline::Join(const Job* job, absl::FunctionRef<void()> undo) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return second_ == nullptr || undoing_ || job->cancelled; });
  bool undone = false;
  if (undoing_) {
    lock.unlock();
    undo();
    undone = true;
    lock.lock();
    busy_ = false;
    changed_.notify_all();
    changed_.wait(lock, [&] { return second_ == nullptr && (pauses_ == 0 || job->cancelled); });
    busy_ = true;
  }
  if (job->cancelled) return absl::CancelledError("the step was cancelled");
  return !undone;
}

bool StepPipeline::RunsAlone(const Job* job) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return jobs_.front() == job;
}

bool StepPipeline::cancelled(const Job* job) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return job->cancelled;
}

uint64_t StepPipeline::room_epoch() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return room_epoch_;
}

void StepPipeline::WaitForRoom(const Job* job, uint64_t epoch) {
  std::unique_lock<std::mutex> lock(mutex_);
  HOTROW_CHECK(second_ == nullptr);  // after Join
  if (threaded_) {
    busy_ = false;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] {
    return job->cancelled || (room_epoch_ != epoch && (!threaded_ || pauses_ == 0));
  });
  if (threaded_) busy_ = true;
}

void StepPipeline::NotifyRoom() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++room_epoch_;
  }
  changed_.notify_all();
}

}  // namespace hotrow::internal
