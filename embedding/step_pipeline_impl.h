#ifndef HOTROW_EMBEDDING_STEP_PIPELINE_IMPL_H_
#define HOTROW_EMBEDDING_STEP_PIPELINE_IMPL_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/status/status.h"

namespace hotrow::internal {

// Runs jobs in the order in which they were submitted, on a thread of its own or, when it has none,
// inside Submit. A job holds a share of a resource ("room") from the time it runs until it is
// forgotten; a job that finds too little waits for the end of an older one.
//
// Threads: one caller; RunsAlone, WaitForRoom and cancelled are called by the body of a job,
//          NotifyRoom and room_epoch by any thread.
// Waits:   nothing waits for a job that has not been submitted. Pause waits for the body to end or
//          to wait for room; Withdraw tells the body to end (cancelled), and so does Stop.
class StepPipeline {
 public:
  // A job; the owner keeps it in one place from Submit to Forget.
  struct Job {
    enum class State { kIdle, kQueued, kRunning, kDone };
    State state = State::kIdle;
    bool cancelled = false;
    absl::Status status;  // of the body; kDone
  };

  // threaded: on a thread. `body` must not throw.
  StepPipeline(bool threaded, std::function<absl::Status(Job*)> body);
  ~StepPipeline();  // Stop
  StepPipeline(const StepPipeline&) = delete;
  StepPipeline& operator=(const StepPipeline&) = delete;

  void Submit(Job* job);
  // Returns once the job is done; its status. *waited_ns: how long that took, 0 when it was done.
  absl::Status Wait(Job* job, int64_t* waited_ns);
  // Returns once the job neither runs nor will: it was done, or has been taken from the queue, or
  // has ended because it was cancelled.
  void Withdraw(Job* job);
  // After Withdraw or Wait, and after what the job held was given back.
  void Forget(Job* job);
  // Ends the thread; no job runs from then on. All jobs are forgotten or will be without a Wait.
  void Stop();

  // While one of these lives, no body runs except between WaitForRoom's beginning and end.
  class Pause {
   public:
    explicit Pause(StepPipeline* pipeline);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    StepPipeline* pipeline_;
  };

  // --- for bodies

  // Whether no older job holds room.
  bool RunsAlone(const Job* job) const;
  bool cancelled(const Job* job) const;
  // Counts what may have made room. Read it before looking for room, so that none is missed.
  uint64_t room_epoch() const;
  // Returns when room_epoch() is no longer `epoch`, or the job is cancelled.
  void WaitForRoom(const Job* job, uint64_t epoch);

  void NotifyRoom();

 private:
  void Main();

  const std::function<absl::Status(Job*)> body_;
  const bool threaded_;
  mutable std::mutex mutex_;         // guards what follows
  std::condition_variable changed_;  // of anything below
  std::deque<Job*> jobs_;            // submitted and not forgotten, in order
  uint64_t room_epoch_ = 0;
  int pauses_ = 0;
  bool busy_ = false;  // a body runs and does not wait for room
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_STEP_PIPELINE_IMPL_H_
