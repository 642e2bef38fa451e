#include <utility>

#include "base/device_stream.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "comm/run_together.h"
#include "embedding/prefetcher_impl.h"

namespace hotrow::internal {
namespace {

// From so many threads on the pipeline spreads its work over the caller's pool.
constexpr int kPipelinePoolThreads = 4;

// The pipeline's loops are the host's; what it enqueues goes to streams of the tiers' own. Where
// there are few processors the pool belongs to the caller's computing: the pipeline's thread takes
// its share of one when somebody waits. Where there are many, it alone would not keep up.
ExecContext PipelineContext(const ExecContext& ctx, bool threaded) {
  ExecContext out = ctx.OnHost();
  if (threaded && ctx.pool != nullptr && ctx.pool->num_threads() < kPipelinePoolThreads) {
    out.pool = nullptr;
  }
  return out;
}

PrefetchedStep* StepOf(StepPipeline::Job* job) { return static_cast<PrefetchedStep*>(job); }

}  // namespace

Prefetcher::Prefetcher(const EmbeddingCollectionOptions& options, const ExecContext& ctx,
                       Tiers* tiers, std::unique_ptr<CommLane> id_lane)
    : communicator_(id_lane == nullptr ? nullptr : options.ranks.communicator),
      ctx_(PipelineContext(ctx, options.prefetch_depth > 0)),
      device_ctx_(ctx),
      tiers_(tiers),
      id_lane_(std::move(id_lane)),
      pipeline_(options.prefetch_depth > 0, Stages(ctx, options.prefetch_depth > 0)) {}

StepPipeline::Stages Prefetcher::Stages(const ExecContext& ctx, bool threaded) {
  // The pipeline's threads have no device; the caller's thread has.
  const ExecContext its = threaded ? ctx : ctx.OnHost();
  return {
      .first = [this, its](StepPipeline::Job* job) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(UseDevice(its));
        return Place(StepOf(job));
      },
      .second = [this, its](StepPipeline::Job* job) -> absl::Status {
        HOTROW_RETURN_IF_ERROR(UseDevice(its));
        return WithRows([&] { return Fill(StepOf(job)); });
      },
      .undo = [this](StepPipeline::Job* job) { tiers_->GiveUp(&StepOf(job)->tiers); },
  };
}

void Prefetcher::Start(PrefetchedStep* step) {
  step->id_ticket = -1;
  if (id_lane_ != nullptr) {
    step->id_ticket = id_lane_->Start([this, step](Communicator& channel) {
      return EndJobUnlessOk(communicator_, FindAndExchangeKeys(step, channel));
    });
  }
  pipeline_.Submit(step);
}

absl::Status Prefetcher::WithRows(absl::FunctionRef<absl::Status()> work) {
  return Caught("Prefetch, the rows of the batch", work, [this](const absl::Status& thrown) {
    if (tiers_->has_caches()) tiers_->Break(thrown);  // else the step alone is lost
  });
}

absl::Status Prefetcher::FindAndExchangeKeys(PrefetchedStep* step, Communicator& channel) {
  HOTROW_RETURN_IF_ERROR(UseDevice(device_ctx_));
  HOTROW_RETURN_IF_ERROR(FindKeys(step, &lane_unique_));
  TraceSpan span(ctx_.trace, "id_shuffle");
  return step->batch->ExchangeKeys(ctx_, channel, &lane_ids_);
}

void Prefetcher::Withdraw(PrefetchedStep* step) {
  pipeline_.Withdraw(step);
  // The lane reads and writes the step, and other ranks wait for our part of that. An error is one
  // of the communicator, which the next call reports.
  if (step->id_ticket >= 0) id_lane_->Wait(step->id_ticket).IgnoreError();
}

absl::Status Prefetcher::FindKeys(PrefetchedStep* step, UniqueScratch* scratch) {
  if (step->take_late != nullptr) {
    TraceSpan span(ctx_.trace, "wait_for_batch");
    HOTROW_RETURN_IF_ERROR(std::exchange(step->take_late, nullptr)(ctx_.pool));
  }
  TraceSpan span(ctx_.trace, "unique");
  return step->batch->FindKeys(ctx_, scratch);
}

absl::Status Prefetcher::Place(PrefetchedStep* step) {
  absl::Status status = Caught("Prefetch, the keys of the batch", [&] {
    return id_lane_ == nullptr ? FindKeys(step, &unique_) : id_lane_->Wait(step->id_ticket);
  });
  if (status.ok()) status = WithRows([&] { return PlaceRows(step); });
  if (!status.ok()) {
    tiers_->GiveUp(&step->tiers);
    pipeline_.NotifyRoom();
  }
  return status;
}

// Rows that this step shares with the one before may still be on their way for it: they are
// placed, so they count as hits, and are there before this step's own are read.
absl::Status Prefetcher::PlaceRows(PrefetchedStep* step) {
  TierStep* const rows = &step->tiers;
  rows->keys = step->batch->served();
  bool waited = false;
  bool from_scratch = false;
  for (;;) {
    if (pipeline_.cancelled(step)) return absl::CancelledError("the step was cancelled");
    const uint64_t epoch = pipeline_.room_epoch();
    const bool alone = pipeline_.RunsAlone(step);
    HOTROW_ASSIGN_OR_RETURN(const TieredTable::Placed placed, tiers_->Place(ctx_, rows));
    if (placed == TieredTable::Placed::kAll) break;
    // The rows that found room come while this step waits for the others'.
    HOTROW_ASSIGN_OR_RETURN(const bool kept, pipeline_.Join(step, [&] { tiers_->GiveUp(rows); }));
    if (!kept) continue;
    HOTROW_RETURN_IF_ERROR(tiers_->Fetch(ctx_, rows));
    if (alone && placed == TieredTable::Placed::kNoRoom) {
      // What was placed beside the rows of an older step may stand in the way of the rest.
      if (from_scratch) {
        return tiers_->NoRoomError(rows->keys, step->batch->input.batch_size, step->batch->alone());
      }
      from_scratch = true;
      tiers_->GiveUp(rows);
      continue;
    }
    if (!waited) prefetch_waits_.fetch_add(1, std::memory_order_relaxed);
    waited = true;
    TraceSpan span(ctx_.trace, "wait_for_room");
    pipeline_.WaitForRoom(step, epoch);
  }
  tiers_->FinishPlacing(ctx_);
  return absl::OkStatus();
}

absl::Status Prefetcher::Fill(PrefetchedStep* step) {
  TraceSpan span(ctx_.trace, "fill");
  HOTROW_RETURN_IF_ERROR(tiers_->MakeResident(ctx_, &step->tiers));
  return step->batch->Fill(ctx_, &step->tiers);
}

}  // namespace hotrow::internal
