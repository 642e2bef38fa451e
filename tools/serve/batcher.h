#ifndef HOTROW_TOOLS_SERVE_BATCHER_H_
#define HOTROW_TOOLS_SERVE_BATCHER_H_

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/serve/score_request.h"

namespace hotrow {

struct BatcherOptions {
  // Threads that score, each a batch at a time; at least 1.
  int32_t instances = 1;
  // How long a request waits for others to be scored with; 0: for none, each is a batch.
  int64_t window_us = 0;
  // Samples of a batch, at which it waits no longer. A request that has more is scored alone.
  int64_t batch_samples_max = 1024;
  // Requests that wait, at least 1; one more is refused.
  int64_t queue_max = 256;

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// Puts requests of many threads together to batches, and has them scored by its own threads.
//
// Batches: a request waits window_us for others of its kind, in the order in which they came, until
//          they have batch_samples_max samples. One batch of a kind is being put together at a
//          time, so a few requests are one batch however many instances are idle. Candidates are
//          a batch each and wait for nobody.
// Bits:    those of the batch that was formed, which depends on who else asks. With window_us 0
//          they are those of the request alone.
// Threads: it has options.instances. Score may be called by any number of others; a call
//          returns when the request is scored, at its deadline or when Stop is called.
// Memory:  queue_max requests, and a batch for each instance.
class Batcher {
 public:
  // Scores jobs of one kind, and sets the answer of each. Called by the instances, at once.
  using Run = std::function<void(std::span<ScoreJob* const> jobs)>;

  static absl::StatusOr<std::unique_ptr<Batcher>> Start(const BatcherOptions& options, Run run);
  ~Batcher();  // stops
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  // How long a job waited, and was scored.
  struct Times {
    int64_t queue_ns = 0;
    int64_t score_ns = 0;
  };

  // Waits until `run` has had the job; its answer is then in job->status. deadline_ns: of the clock
  // of NowNanos. Errors: ResourceExhausted (queue_max others wait), DeadlineExceeded (the job may
  // still be run, so the caller leaves it alone), Unavailable (Stop was called).
  absl::Status Score(const std::shared_ptr<ScoreJob>& job, int64_t deadline_ns, Times* times);

  // Refuses what comes from now on and what still waits, ends the batches that are being scored,
  // and joins the threads. Any thread, once or more.
  void Stop();

  int64_t waiting() const;

 private:
  struct Entry;
  // The requests of one kind.
  struct Lane {
    std::deque<std::shared_ptr<Entry>> entries;
    bool forming = false;  // an instance puts a batch of these together
  };
  using Batch = std::vector<std::shared_ptr<Entry>>;

  Batcher(const BatcherOptions& options, Run run);
  void RunInstance();
  // All three under the lock. The lane whose first request came first, of those that nobody forms
  // batches of; null: there is nothing to do.
  Lane* NextLane();
  std::shared_ptr<Entry> TakeFirst(Lane* lane);
  Batch FormBatch(Lane* lane, std::unique_lock<std::mutex>* lock);

  const BatcherOptions options_;
  const Run run_;
  mutable std::mutex mutex_;
  std::condition_variable work_;  // for instances: a request came, a batch is formed, or the end
  std::array<Lane, 3> lanes_;     // by ScoreKind
  int64_t waiting_ = 0;           // in all lanes
  bool stopping_ = false;
  std::mutex join_mutex_;
  std::vector<std::thread> threads_;
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SERVE_BATCHER_H_
