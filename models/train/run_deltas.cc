#include "models/train/run_deltas_impl.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "models/delta/apply_chain.h"
#include "models/delta/compact_chain.h"
#include "models/delta/delta_chain.h"
#include "models/delta/export_delta.h"
#include "models/saving/checkpoint.h"
#include "models/train/report.h"

namespace hotrow {
namespace {

DeltaForm FormOf(const TrainerOptions& options) {
  return {.precision = options.delta_rows, .state = !options.delta_weights_only};
}

// What a link's buffers take of its memory, and keys that are compared. The rest is for reading
// snapshots.
int64_t MemoryBytes(const TrainerOptions& options) { return options.delta_bytes / 4; }

}  // namespace

int64_t KeptCheckpoints(const TrainerOptions& options) {
  if (options.delta_dir.empty() || options.checkpoint_every < 1) return options.keep_checkpoints;
  return std::max(options.keep_checkpoints, options.delta_every / options.checkpoint_every + 1);
}

RunDeltas::RunDeltas(const TrainerOptions& options, Env& env, RunRanks& ranks, Print print)
    : options_(options), env_(env), ranks_(ranks), print_(std::move(print)) {}

std::string RunDeltas::CheckpointOf(int64_t step) const {
  return absl::StrCat(options_.checkpoint_dir, "/", CheckpointName(step));
}

absl::Status RunDeltas::Named(const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("--delta_dir=", options_.delta_dir, ": ", status.message()));
}

// Multiples of delta_every, or the first checkpoint behind one that came late.
bool RunDeltas::IsDue(int64_t step) const {
  const int64_t before = std::max<int64_t>(head_ - first_step_, 0);
  return step > head_ &&
         (step - first_step_) / options_.delta_every > before / options_.delta_every;
}

absl::Status RunDeltas::CheckGoesOn(int64_t newest_step) {
  HOTROW_ASSIGN_OR_RETURN(const bool begins, MayBeginChain(env_, options_.delta_dir));
  if (begins) return absl::OkStatus();
  const absl::StatusOr<DeltaChain> chain = ReadChain(env_, options_.delta_dir);
  HOTROW_RETURN_IF_ERROR(chain.status());
  // Behind a link that nobody can read nothing is of use.
  HOTROW_RETURN_IF_ERROR(VerifyDeltas(env_, *chain));
  const ChainLink head = chain->head();
  if (!(chain->manifest.form == FormOf(options_))) {
    return absl::FailedPreconditionError(
        "its deltas have another --delta_rows or --delta_weights_only; give those of the chain, or "
        "another --delta_dir");
  }
  const std::string parent = CheckpointOf(head.step);
  HOTROW_ASSIGN_OR_RETURN(const bool has_parent, env_.Exists(parent));
  if (newest_step < head.step || !has_parent) {
    return absl::FailedPreconditionError(absl::StrCat("its newest link is of step ", head.step,
                                                      ", and the run has no checkpoint ", parent,
                                                      " to go on from; give another --delta_dir"));
  }
  HOTROW_ASSIGN_OR_RETURN(const SavedModel saved, ReadCheckpoint(env_, parent));
  const std::vector<UniqueId> source = SourceOf(saved);
  if (!source.empty() && !head.source.empty() && source != head.source) {
    return absl::FailedPreconditionError(absl::StrCat("its newest link is not of ", parent,
                                                      ", but of another run; give another "
                                                      "--delta_dir"));
  }
  head_ = head.step;
  return absl::OkStatus();
}

absl::Status RunDeltas::StartAt(int64_t first_step, int64_t newest_step) {
  if (!enabled()) return absl::OkStatus();
  first_step_ = first_step;
  const RankGroup group(ranks_.channel());
  HOTROW_RETURN_IF_ERROR(group.TogetherOnLeader([&] { return Named(CheckGoesOn(newest_step)); }));
  HOTROW_ASSIGN_OR_RETURN(head_, ranks_.Largest(head_));
  return newest_step < 0 ? absl::OkStatus() : Committed(newest_step);
}

absl::Status RunDeltas::Committed(int64_t step, bool at_once) {
  if (!enabled()) return absl::OkStatus();
  if (!IsDue(step) && !(at_once && step > head_)) return absl::OkStatus();
  return Begin(step);
}

absl::Status RunDeltas::Begin(int64_t step) {
  busy_ = true;
  writes_ = step;
  if (ranks_.rank() == 0) {
    job_.Start(options_.checkpoint_in_background, [this, step] { return WriteLink(step); });
  }
  return absl::OkStatus();
}

absl::Status RunDeltas::WriteLink(int64_t step) {
  const int64_t begin_ns = NowNanos();
  const auto seconds = [&] { return 1e-9 * static_cast<double>(NowNanos() - begin_ns); };
  if (head_ < 0) {
    HOTROW_RETURN_IF_ERROR(CreateChain({.checkpoint = CheckpointOf(step),
                                        .dir = options_.delta_dir,
                                        .form = FormOf(options_),
                                        .memory_bytes = MemoryBytes(options_),
                                        .store_bytes = options_.delta_bytes - MemoryBytes(options_),
                                        .store_option = "--delta_bytes",
                                        .env = &env_})
                               .status());
    written_ = absl::StrFormat("chain %s: base of step %s, written in %.2f s", options_.delta_dir,
                               FormatCount(step), seconds());
    return absl::OkStatus();
  }
  HOTROW_ASSIGN_OR_RETURN(const DeltaSummary summary,
                          ExportDelta({.since = CheckpointOf(head_),
                                       .checkpoint = CheckpointOf(step),
                                       .chain = options_.delta_dir,
                                       .form = FormOf(options_),
                                       .memory_bytes = MemoryBytes(options_),
                                       .store_bytes = options_.delta_bytes - MemoryBytes(options_),
                                       .store_option = "--delta_bytes",
                                       .env = &env_}));
  written_ = absl::StrFormat("delta %s: %s rows, %s tombstones, %s, written in %.2f s", summary.to,
                             FormatCount(summary.rows), FormatCount(summary.erased),
                             FormatBytes(summary.bytes), seconds());
  if (options_.keep_deltas == 0) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const DeltaChain chain, ReadChain(env_, options_.delta_dir));
  // A new base costs as much as the model, so not with each delta.
  if (std::ssize(chain.deltas) < options_.keep_deltas) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const CompactSummary compacted,
                          CompactChain({.chain = options_.delta_dir,
                                        .keep = options_.keep_deltas,
                                        .memory_bytes = MemoryBytes(options_),
                                        .env = &env_}));
  absl::StrAppend(&written_, "; it is the base now, ", compacted.deltas_removed,
                  " deltas before it are gone");
  return absl::OkStatus();
}

absl::Status RunDeltas::Poll() {
  if (!busy_) return absl::OkStatus();
  const bool leads = ranks_.rank() == 0;
  const bool done = !leads || job_.done();
  const absl::Status mine = leads && done ? Named(job_.Join()) : absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const RankVerdict verdict, RankGroup(ranks_.channel()).Ask(done, mine));
  if (!verdict.all_done) return absl::OkStatus();
  busy_ = false;
  HOTROW_RETURN_IF_ERROR(verdict.status);
  head_ = writes_;
  if (leads) print_(written_);
  return absl::OkStatus();
}

absl::Status RunDeltas::Wait() {
  for (Patience patience; busy_;) {
    if (!ranks_.many()) job_.Join().IgnoreError();  // Poll returns any error
    HOTROW_RETURN_IF_ERROR(Poll());
    if (busy_) patience.Sleep();
  }
  return absl::OkStatus();
}

}  // namespace hotrow
