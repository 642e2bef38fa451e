#ifndef HOTROW_EMBEDDING_PREFETCHER_IMPL_H_
#define HOTROW_EMBEDDING_PREFETCHER_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/exec_context.h"
#include "comm/communicator.h"
#include "comm/lane.h"
#include "embedding/options.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/step_impl.h"
#include "embedding/tiers/step_pipeline_impl.h"
#include "embedding/tiers/tiers_impl.h"

namespace hotrow::internal {

// Prefetcher makes the rows of steps resident, in the order of Start: it finds the distinct keys of
// a batch, exchanges keys with other ranks, has the keys placed, waiting for room where that takes
// older steps to end, and reads what is missing. With prefetch_depth > 0 this runs on threads, see
// StepPipeline; otherwise Start does it all.
//
// Threads: the caller's, but NotifyRoom and prefetch_waits, which any thread may call.
class Prefetcher {
 public:
  // tiers: not owned, outlives this. id_lane: the channel for keys of several ranks; null alone.
  Prefetcher(const EmbeddingCollectionOptions& options, const ExecContext& ctx, Tiers* tiers,
             std::unique_ptr<CommLane> id_lane);
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Unavailable where the system has no room for the threads: nothing may follow but Stop.
  absl::Status status() const { return pipeline_.status(); }

  // The step stays in one place until Forget.
  void Start(PrefetchedStep* step);
  // Returns once the step is resident, or has failed. *waited_ns: how long that took.
  absl::Status Wait(PrefetchedStep* step, int64_t* waited_ns) {
    return pipeline_.Wait(step, waited_ns);
  }
  // Nobody is at work on the step when it returns, nor will be. Its rows are the caller's to
  // release.
  void Withdraw(PrefetchedStep* step);
  // Forgets a step after Wait or Withdraw, and after the rows were released.
  void Forget(PrefetchedStep* step) { pipeline_.Forget(step); }

  // Rows may have been unpinned.
  void NotifyRoom() { pipeline_.NotifyRoom(); }
  // The pipeline, for a StepPipeline::Pause.
  StepPipeline* pipeline() { return &pipeline_; }
  // Ends the threads. Steps are forgotten or will be without a Wait.
  void Stop() { pipeline_.Stop(); }
  // Steps that had to wait for room.
  int64_t prefetch_waits() const { return prefetch_waits_.load(std::memory_order_relaxed); }

 private:
  absl::Status FindKeys(PrefetchedStep* step, UniqueScratch* scratch);
  // Several ranks: the job of the lane.
  absl::Status FindAndExchangeKeys(PrefetchedStep* step, Communicator& channel);
  // The job of the pipeline: its first stage, the body of that, and its second stage.
  absl::Status Place(PrefetchedStep* step);
  absl::Status PlaceRows(PrefetchedStep* step);
  absl::Status Fill(PrefetchedStep* step);
  // Runs a part of those that changes tiers. What it throws ends it anywhere, and the tiers with
  // it. A stage that threw would end the process, or leave who withdraws its step waiting.
  absl::Status WithRows(absl::FunctionRef<absl::Status()> work);
  StepPipeline::Stages Stages(const ExecContext& ctx, bool threaded);

  Communicator* const communicator_;  // null: alone
  const ExecContext ctx_;
  const ExecContext device_ctx_;  // the caller's, for threads that need its device
  Tiers* const tiers_;
  std::atomic<int64_t> prefetch_waits_{0};

  UniqueScratch unique_;  // of the first stage
  // What the thread of id_lane_ uses, which finds the distinct keys of steps and exchanges them. It
  // never waits for room, so all ranks make their exchanges in the order of Start, also where a
  // step fails later.
  UniqueScratch lane_unique_;
  RowShuffle::Scratch lane_ids_;
  std::unique_ptr<CommLane> id_lane_;
  StepPipeline pipeline_;  // last: its threads use the above
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_PREFETCHER_IMPL_H_
