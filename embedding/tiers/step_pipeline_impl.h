#ifndef HOTROW_EMBEDDING_TIERS_STEP_PIPELINE_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_STEP_PIPELINE_IMPL_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow::internal {

// Takes jobs through two stages, in the order in which they were submitted: the second stage of one
// runs beside the first stage of the next, each on its own thread; or both inside Submit,
// where there are no threads. A job holds a share of a resource ("room") from its first stage until
// it is forgotten; a job that finds too little waits for the end of an older one.
//
// What a first stage does may lean on what the second stage of the job before is about to do. When
// that fails, the younger job is undone, then the older one, and the younger begins again.
//
// Threads: one caller; Join, RunsAlone, WaitForRoom and cancelled are called by first stages,
//          NotifyRoom and room_epoch by any thread.
// Waits:   nothing waits for a job that has not been submitted. Pause waits for first stages to end
//          or to wait for room, and for second stages to end; Withdraw tells the first stage to end
//          (cancelled), and so does Stop.
class StepPipeline {
 public:
  // A job; the owner keeps it in one place from Submit to Forget.
  struct Job {
    enum class State { kIdle, kQueued, kRunning, kDone };
    State state = State::kIdle;
    bool cancelled = false;
    absl::Status status;  // of the stages; kDone
  };

  // None may throw.
  struct Stages {
    // After an error it has undone what it did, and there is no second stage. May be run again
    // after `undo`.
    std::function<absl::Status(Job*)> first;
    std::function<absl::Status(Job*)> second;
    // Undoes a first stage, and a second one that failed. No first stage runs meanwhile.
    std::function<void(Job*)> undo;
  };

  // threaded: on threads.
  StepPipeline(bool threaded, Stages stages);
  ~StepPipeline();  // Stop
  StepPipeline(const StepPipeline&) = delete;
  StepPipeline& operator=(const StepPipeline&) = delete;

  // Unavailable where the system has no room for the threads: nothing may follow but Stop.
  absl::Status status() const { return status_; }

  void Submit(Job* job);
  // Returns once the job is done; its status. *waited_ns: how long that took, 0 when it was done.
  absl::Status Wait(Job* job, int64_t* waited_ns);
  // Returns once the job neither runs nor will: it was done, or has been taken from the queue, or
  // has ended because it was cancelled.
  void Withdraw(Job* job);
  // After Withdraw or Wait, and after what the job held was given back.
  void Forget(Job* job);
  // Ends the threads; no job runs from then on. All jobs are forgotten or will be without a Wait.
  void Stop();

  // While one of these lives, no stage runs except between WaitForRoom's beginning and end.
  class Pause {
   public:
    explicit Pause(StepPipeline* pipeline);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    StepPipeline* pipeline_;
  };

  // --- for first stages

  // Returns once no second stage runs. True: the one that ran ended well. False: it failed; then
  // `undo` was called first, which must undo all that this stage has done since it began, and the
  // stage must begin again. Cancelled: the job is. To be called before WaitForRoom.
  absl::StatusOr<bool> Join(const Job* job, absl::FunctionRef<void()> undo);
  // Whether no older job holds room.
  bool RunsAlone(const Job* job) const;
  bool cancelled(const Job* job) const;
  // Counts what may have made room. Read it before looking for room, so that none is missed.
  uint64_t room_epoch() const;
  // Returns when room_epoch() is no longer `epoch`, or the job is cancelled.
  void WaitForRoom(const Job* job, uint64_t epoch);

  void NotifyRoom();

 private:
  void RunFirst();
  void RunSecond();

  const Stages stages_;
  const bool threaded_;
  absl::Status status_;              // of the threads' start
  mutable std::mutex mutex_;         // guards what follows
  std::condition_variable changed_;  // of anything below
  std::deque<Job*> jobs_;            // submitted and not forgotten, in order
  uint64_t room_epoch_ = 0;
  int pauses_ = 0;
  bool busy_ = false;      // a first stage runs and waits neither for room nor to begin again
  Job* ready_ = nullptr;   // its first stage has ended; the next one's waits until this is null
  Job* second_ = nullptr;  // in its second stage, or to be undone after it
  bool undoing_ = false;   // second_ has failed
  bool stopping_ = false;
  bool first_ended_ = false;  // its thread
  std::thread first_thread_;
  std::thread second_thread_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_STEP_PIPELINE_IMPL_H_
