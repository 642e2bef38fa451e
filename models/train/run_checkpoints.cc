#include "models/train/run_checkpoints_impl.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/out_of_room.h"
#include "base/status_macros.h"
#include "models/train/report.h"
#include "store/store_facts.h"

namespace hotrow {

RunCheckpoints::RunCheckpoints(const TrainerOptions& options, Env& env, RunRanks& ranks,
                               Print print)
    : options_(options),
      ranks_(ranks),
      print_(std::move(print)),
      schedule_({.every = options.checkpoint_every,
                 .announces = options.checkpoint_in_background,
                 .watches_disk = FactsOf(options.store).on_disk}),
      deltas_(options, env, ranks, print_) {}

absl::StatusOr<std::unique_ptr<RunCheckpoints>> RunCheckpoints::Open(const TrainerOptions& options,
                                                                     Env& env, TraceRecorder* trace,
                                                                     RunRanks& ranks, Print print) {
  std::unique_ptr<RunCheckpoints> out(new RunCheckpoints(options, env, ranks, std::move(print)));
  if (options.checkpoint_dir.empty()) return out;
  HOTROW_ASSIGN_OR_RETURN(out->writer_,
                          CheckpointWriter::Open({.dir = options.checkpoint_dir,
                                                  .keep = KeptCheckpoints(options),
                                                  .background = options.checkpoint_in_background,
                                                  .env = &env,
                                                  .trace = trace,
                                                  .communicator = ranks.channel()}));
  return out;
}

absl::Status RunCheckpoints::Attach(EmbeddingCollection* tables, const std::string& tables_dir,
                                    std::function<absl::StatusOr<Contents>()> contents) {
  if (!enabled()) return absl::OkStatus();
  tables_ = tables;
  contents_ = std::move(contents);
  HOTROW_RETURN_IF_ERROR(writer_->Attach(tables, options_.store, tables_dir));
  for (const std::string& note : writer_->notes()) print_(note);
  return absl::OkStatus();
}

absl::Status RunCheckpoints::StartAt(int64_t first_step, int64_t resumed_steps) {
  if (!enabled()) return absl::OkStatus();
  first_step_ = first_step;
  if (resumed_steps > 0) schedule_.ResumeAt(resumed_steps);
  return deltas_.StartAt(first_step, writer_->newest_step());
}

absl::Status RunCheckpoints::Begin(bool early) {
  HOTROW_RETURN_IF_ERROR(deltas_.Wait());
  HOTROW_ASSIGN_OR_RETURN(Contents contents, contents_());
  const absl::Status begun = writer_->Begin(std::move(contents.model), contents.dense, early);
  if (!begun.ok()) return Failed(begun);
  return options_.checkpoint_in_background ? absl::OkStatus() : Wait();
}

void RunCheckpoints::PrintCommitted() {
  const CheckpointStats& stats = writer_->stats();
  print_(absl::StrFormat("checkpoint %s: training paused %.1f ms, committed after %.2f s",
                         writer_->newest_dir(), 1e-6 * static_cast<double>(stats.pause_ns_last),
                         1e-9 * static_cast<double>(stats.commit_ns_last)));
}

absl::Status RunCheckpoints::OnCommitted() {
  PrintCommitted();
  const int64_t step = writer_->newest_step();
  return deltas_.Committed(step, /*at_once=*/step == border_step_);
}

absl::StatusOr<bool> RunCheckpoints::DropOld() {
  // The next delta starts from the newest link's checkpoint: there is to be a link of the newest
  // one before others go.
  HOTROW_RETURN_IF_ERROR(deltas_.Wait());
  HOTROW_RETURN_IF_ERROR(deltas_.Committed(writer_->newest_step(), /*at_once=*/true));
  HOTROW_RETURN_IF_ERROR(deltas_.Wait());
  return writer_->KeepNewestOnly();
}

// Where there was no room for a checkpoint there may be once older ones are gone: then it is due
// again.
absl::Status RunCheckpoints::Failed(const absl::Status& status) {
  if (!IsOutOfRoom(status)) return status;
  HOTROW_ASSIGN_OR_RETURN(const bool removed, DropOld());
  if (!removed) return status;
  print_(absl::StrFormat("step %s: no room for a checkpoint: removed all but %s (%s)",
                         FormatCount(steps()), writer_->newest_dir(),
                         std::string(status.message())));
  schedule_.FoundNoRoom();
  return absl::OkStatus();
}

absl::Status RunCheckpoints::Poll() {
  if (!enabled()) return absl::OkStatus();
  const absl::StatusOr<bool> committed = writer_->Poll();
  if (!committed.ok()) return Failed(committed.status());
  if (*committed) HOTROW_RETURN_IF_ERROR(OnCommitted());
  HOTROW_RETURN_IF_ERROR(deltas_.Poll());
  if (!drops_old_ || writer_->busy() || deltas_.busy()) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(deltas_.Committed(writer_->newest_step(), /*at_once=*/true));
  if (deltas_.busy()) return absl::OkStatus();
  drops_old_ = false;
  return SayDropped(writer_->KeepNewestOnly());
}

absl::Status RunCheckpoints::SayDropped(const absl::StatusOr<bool>& removed) {
  HOTROW_RETURN_IF_ERROR(removed.status());
  if (*removed) {
    print_(absl::StrFormat("step %s: removed all checkpoints but %s", FormatCount(steps()),
                           writer_->newest_dir()));
  }
  return absl::OkStatus();
}

absl::Status RunCheckpoints::Wait() {
  if (!enabled() || !writer_->busy()) return absl::OkStatus();
  const absl::Status status = writer_->Wait();
  if (!status.ok()) return Failed(status);
  return OnCommitted();
}

absl::Status RunCheckpoints::Carry(bool at_border) {
  if (!enabled()) return absl::OkStatus();
  if (at_border) {
    HOTROW_RETURN_IF_ERROR(Wait());
    HOTROW_RETURN_IF_ERROR(deltas_.Wait());
    border_step_ = tables_->steps();
    // One of this step may be there without a link: it was due by its steps, or the run died
    // between the two.
    if (has_newest()) {
      HOTROW_RETURN_IF_ERROR(deltas_.Committed(writer_->newest_step(), /*at_once=*/true));
    } else {
      schedule_.MakeDue();
    }
  }
  HOTROW_RETURN_IF_ERROR(Poll());
  const CheckpointSchedule::Plan plan =
      schedule_.Next(steps(), writer_->busy() || deltas_.busy(), has_newest());
  if (plan.announce) tables_->snapshots().Announce();
  if (plan.say_late) {
    print_(absl::StrFormat(
        "step %s: the checkpoint%s before is still being written; the next is taken right after "
        "it. "
        "Raise --checkpoint_every=%d if this is not what you want",
        FormatCount(steps()), deltas_.busy() ? "'s delta" : "", options_.checkpoint_every));
  }
  switch (plan.action) {
    case CheckpointSchedule::Action::kNone:
      return absl::OkStatus();
    case CheckpointSchedule::Action::kTake:
      return Begin(/*early=*/false);
    case CheckpointSchedule::Action::kWatchDisk:
      return WatchDisk();
  }
  return absl::OkStatus();
}

// Rows that only checkpoints hold take room on the disk until these are gone.
absl::Status RunCheckpoints::WatchDisk() {
  const EmbeddingStats stats = tables_->Stats();
  const TierStats& disk = stats.tiers.back();
  const bool is_short = IsShortOfDisk({.budget_bytes = disk.disk_budget_bytes,
                                       .used_bytes = disk.disk_used_bytes,
                                       .snapshot_bytes = disk.snapshot_bytes});
  HOTROW_ASSIGN_OR_RETURN(const int64_t any_short, ranks_.Largest(is_short ? 1 : 0));
  if (any_short == 0) return absl::OkStatus();
  const std::string why =
      is_short
          ? absl::StrFormat("step %s: old checkpoints hold %s of the %s that --disk_bytes allows",
                            FormatCount(steps()), FormatBytes(disk.snapshot_bytes),
                            FormatBytes(disk.disk_budget_bytes))
          : absl::StrFormat("step %s: old checkpoints hold much of another rank's --disk_bytes",
                            FormatCount(steps()));
  const bool takes_one =
      CheckpointSchedule::OnShortOfDisk(has_newest()) == CheckpointSchedule::Relief::kTakeEarly;
  if (takes_one) print_(absl::StrCat(why, ": taking one early, which replaces them"));
  if (deltas_.enabled()) {
    // They go when the chain has a link of the newest one, which Poll sees to.
    drops_old_ = true;
    return takes_one ? Begin(/*early=*/false) : absl::OkStatus();
  }
  if (takes_one) return Begin(/*early=*/true);
  HOTROW_ASSIGN_OR_RETURN(const bool removed, writer_->KeepNewestOnly());
  if (removed) print_(absl::StrCat(why, ": removed all but ", writer_->newest_dir()));
  return absl::OkStatus();
}

absl::Status RunCheckpoints::MakeRoom(const absl::Status& refused) {
  const absl::StatusOr<bool> made = TryMakeRoom();
  if (!made.ok()) {
    return absl::Status(
        made.status().code(),
        absl::StrCat(made.status().message(), "; room was wanted, since ", refused.message()));
  }
  return *made ? absl::OkStatus() : refused;
}

absl::StatusOr<bool> RunCheckpoints::TryMakeRoom() {
  // The others of several ranks have the step behind them, or wait for this one: there is no way
  // back to before it.
  if (ranks_.many()) return false;
  if (!enabled() || !FactsOf(options_.store).on_disk) return false;
  // A checkpoint that found no room has made some; what was refused before that may fit now.
  if (schedule_.TakeRoomMade()) return true;
  HOTROW_RETURN_IF_ERROR(Wait());
  HOTROW_ASSIGN_OR_RETURN(const bool removed, DropOld());
  if (removed) {
    print_(absl::StrFormat("step %s: the disk budget is used up: removed all checkpoints but %s",
                           FormatCount(steps()), writer_->newest_dir()));
    return true;
  }
  if (has_newest()) return false;
  // It may hold less than the one that it replaces; where it does not, no step is lost with the
  // run.
  const std::string replaced = writer_->newest_dir();
  print_(absl::StrFormat("step %s: the disk budget is used up: taking a checkpoint early%s",
                         FormatCount(steps()),
                         replaced.empty() ? "" : absl::StrCat(", which replaces ", replaced)));
  HOTROW_RETURN_IF_ERROR(Begin(/*early=*/!deltas_.enabled()));
  HOTROW_RETURN_IF_ERROR(Wait());
  if (deltas_.enabled() && has_newest()) HOTROW_RETURN_IF_ERROR(DropOld().status());
  return has_newest();
}

absl::Status RunCheckpoints::End() {
  if (!enabled()) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(Wait());
  // One of this step goes on with the same bits, whether validation has run since or not. Twice at
  // most: the first try may have to make room.
  while (!has_newest()) {
    HOTROW_RETURN_IF_ERROR(Begin(/*early=*/false));
    HOTROW_RETURN_IF_ERROR(Wait());
  }
  // The chain ends where the run does.
  HOTROW_RETURN_IF_ERROR(deltas_.Wait());
  HOTROW_RETURN_IF_ERROR(deltas_.Committed(writer_->newest_step(), /*at_once=*/true));
  return deltas_.Wait();
}

}  // namespace hotrow
