#include "tools/serve/batcher.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/trace.h"

namespace hotrow {
namespace {

constexpr int32_t kInstancesMax = 1024;
constexpr int64_t kWindowMicrosMax = 1'000'000;
constexpr int64_t kSamplesMax = int64_t{1} << 24;
constexpr int64_t kQueueMax = int64_t{1} << 20;
constexpr int64_t kNanosPerMicro = 1000;

// A time of NowNanos as a time point.
std::chrono::steady_clock::time_point TimePoint(int64_t nanos) {
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(nanos - NowNanos());
}

}  // namespace

absl::Status BatcherOptions::Validate() const {
  const auto check = [](const char* field, int64_t value, int64_t min,
                        int64_t max) -> absl::Status {
    if (value >= min && value <= max) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("BatcherOptions.", field, " must lie in [", min, ", ", max, "], is ", value));
  };
  HOTROW_RETURN_IF_ERROR(check("instances", instances, 1, kInstancesMax));
  HOTROW_RETURN_IF_ERROR(check("window_us", window_us, 0, kWindowMicrosMax));
  HOTROW_RETURN_IF_ERROR(check("batch_samples_max", batch_samples_max, 1, kSamplesMax));
  return check("queue_max", queue_max, 1, kQueueMax);
}

struct Batcher::Entry {
  enum class State { kWaiting, kTaken, kDone, kRefused };

  std::shared_ptr<ScoreJob> job;
  int64_t arrived_ns = 0;
  int64_t deadline_ns = 0;
  // Under the batcher's lock.
  State state = State::kWaiting;
  Times times;
  std::condition_variable done;  // for the caller, who alone waits for it
};

Batcher::Batcher(const BatcherOptions& options, Run run)
    : options_(options), run_(std::move(run)) {}

absl::StatusOr<std::unique_ptr<Batcher>> Batcher::Start(const BatcherOptions& options, Run run) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<Batcher> out(new Batcher(options, std::move(run)));
  for (int32_t i = 0; i < options.instances; ++i) {
    HOTROW_ASSIGN_OR_RETURN(
        std::thread thread,
        StartThread("an instance of a server", [batcher = out.get()] { batcher->RunInstance(); }));
    out->threads_.push_back(std::move(thread));
  }
  return out;
}

Batcher::~Batcher() { Stop(); }

int64_t Batcher::waiting() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return waiting_;
}

absl::Status Batcher::Score(const std::shared_ptr<ScoreJob>& job, int64_t deadline_ns,
                            Times* times) {
  const auto entry = std::make_shared<Entry>();
  entry->job = job;
  entry->arrived_ns = NowNanos();
  entry->deadline_ns = deadline_ns;
  std::unique_lock<std::mutex> lock(mutex_);
  if (stopping_) return absl::UnavailableError("the server is stopping");
  if (entry->arrived_ns >= deadline_ns) {
    return absl::DeadlineExceededError("the request's time was over before it came to the queue");
  }
  if (waiting_ >= options_.queue_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", waiting_, " requests wait; try again later"));
  }
  lanes_[static_cast<size_t>(job->request.kind)].entries.push_back(entry);
  ++waiting_;
  // All, since an instance that waits for a full batch of another kind may be the one that wakes.
  work_.notify_all();
  const auto over = [&] {
    return entry->state == Entry::State::kDone || entry->state == Entry::State::kRefused;
  };
  const bool in_time = entry->done.wait_until(lock, TimePoint(deadline_ns), over);
  if (!in_time) {
    const bool waited = entry->state == Entry::State::kWaiting;
    if (waited) {
      std::erase(lanes_[static_cast<size_t>(job->request.kind)].entries, entry);
      --waiting_;
      entry->times.queue_ns = NowNanos() - entry->arrived_ns;
    }
    entry->state = Entry::State::kRefused;
    *times = entry->times;
    return absl::DeadlineExceededError(
        waited ? "the request's time was over while it waited in the queue"
               : "the request's time was over while it was being scored");
  }
  *times = entry->times;
  if (entry->state == Entry::State::kRefused) {
    return absl::UnavailableError("the server is stopping");
  }
  return absl::OkStatus();
}

std::shared_ptr<Batcher::Entry> Batcher::TakeFirst(Lane* lane) {
  std::shared_ptr<Entry> entry = std::move(lane->entries.front());
  lane->entries.pop_front();
  --waiting_;
  entry->state = Entry::State::kTaken;
  entry->times.queue_ns = NowNanos() - entry->arrived_ns;
  return entry;
}

Batcher::Lane* Batcher::NextLane() {
  Lane* next = nullptr;
  for (Lane& lane : lanes_) {
    if (lane.entries.empty() || lane.forming) continue;
    if (next == nullptr || lane.entries.front()->arrived_ns < next->entries.front()->arrived_ns) {
      next = &lane;
    }
  }
  return next;
}

Batcher::Batch Batcher::FormBatch(Lane* lane, std::unique_lock<std::mutex>* lock) {
  Batch batch = {TakeFirst(lane)};
  const bool alone = lane == &lanes_[static_cast<size_t>(ScoreKind::kCandidates)];
  if (alone || options_.window_us == 0) return batch;
  const auto end = TimePoint(batch[0]->arrived_ns + options_.window_us * kNanosPerMicro);
  int64_t samples = batch[0]->job->request.num_samples;
  bool full = samples >= options_.batch_samples_max;
  lane->forming = true;
  for (;;) {
    while (!full && !lane->entries.empty()) {
      samples += lane->entries.front()->job->request.num_samples;
      full = samples >= options_.batch_samples_max;
      if (samples <= options_.batch_samples_max) batch.push_back(TakeFirst(lane));
    }
    if (full || stopping_ || std::chrono::steady_clock::now() >= end) break;
    work_.wait_until(*lock, end);
  }
  lane->forming = false;
  // What did not fit is another instance's.
  if (!lane->entries.empty()) work_.notify_all();
  return batch;
}

void Batcher::RunInstance() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    Lane* const lane = NextLane();
    if (lane == nullptr) {
      if (stopping_) return;
      work_.wait(lock);
      continue;
    }
    Batch batch = FormBatch(lane, &lock);
    // Those whose callers have gone while the batch was being put together.
    std::erase_if(batch, [](const auto& entry) { return entry->state != Entry::State::kTaken; });
    if (batch.empty()) continue;
    lock.unlock();
    const int64_t begin_ns = NowNanos();
    const auto run = [&]() -> absl::Status {
      std::vector<ScoreJob*> jobs;
      for (const auto& entry : batch) jobs.push_back(entry->job.get());
      run_(jobs);
      return absl::OkStatus();
    };
    Caught("scoring a batch; send fewer samples at once", run, [&](const absl::Status& thrown) {
      for (const auto& entry : batch) entry->job->status = thrown;
    }).IgnoreError();
    const int64_t score_ns = NowNanos() - begin_ns;
    lock.lock();
    for (const auto& entry : batch) {
      entry->times.score_ns = score_ns;
      if (entry->state != Entry::State::kTaken) continue;  // its caller has gone
      entry->state = Entry::State::kDone;
      entry->done.notify_one();
    }
  }
}

void Batcher::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    for (Lane& lane : lanes_) {
      for (const auto& entry : lane.entries) {
        entry->state = Entry::State::kRefused;
        entry->done.notify_one();
      }
      lane.entries.clear();
    }
    waiting_ = 0;
  }
  work_.notify_all();
  const std::lock_guard<std::mutex> lock(join_mutex_);
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace hotrow
