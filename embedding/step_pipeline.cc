#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/trace.h"
#include "embedding/step_pipeline_impl.h"

namespace hotrow::internal {

StepPipeline::StepPipeline(bool threaded, std::function<absl::Status(Job*)> body)
    : body_(std::move(body)), threaded_(threaded) {
  if (threaded_) thread_ = std::thread([this] { Main(); });
}

StepPipeline::~StepPipeline() { Stop(); }

void StepPipeline::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    for (Job* const job : jobs_) job->cancelled = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StepPipeline::Main() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    Job* next = nullptr;
    changed_.wait(lock, [&] {
      if (stopping_) return true;
      if (pauses_ > 0) return false;
      const auto at = std::find_if(jobs_.begin(), jobs_.end(), [](const Job* job) {
        return job->state == Job::State::kQueued;
      });
      next = at == jobs_.end() ? nullptr : *at;
      return next != nullptr;
    });
    if (stopping_) return;
    next->state = Job::State::kRunning;
    busy_ = true;
    lock.unlock();
    absl::Status status = body_(next);
    lock.lock();
    busy_ = false;
    next->status = std::move(status);
    next->state = Job::State::kDone;
    changed_.notify_all();
  }
}

void StepPipeline::Submit(Job* job) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    HOTROW_CHECK(!stopping_);
    job->state = threaded_ ? Job::State::kQueued : Job::State::kRunning;
    job->cancelled = false;
    job->status = absl::OkStatus();
    jobs_.push_back(job);
  }
  if (threaded_) {
    changed_.notify_all();
    return;
  }
  absl::Status status = body_(job);
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
  if (job->state == Job::State::kQueued) job->state = Job::State::kIdle;
  changed_.notify_all();
  changed_.wait(lock, [&] { return job->state != Job::State::kRunning; });
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
  pipeline_->changed_.wait(lock, [this] { return !pipeline_->busy_; });
}

StepPipeline::Pause::~Pause() {
  {
    const std::lock_guard<std::mutex> lock(pipeline_->mutex_);
    --pipeline_->pauses_;
  }
  pipeline_->changed_.notify_all();
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
