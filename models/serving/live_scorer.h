#ifndef HOTROW_MODELS_SERVING_LIVE_SCORER_H_
#define HOTROW_MODELS_SERVING_LIVE_SCORER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/serving/scorer.h"

namespace hotrow {

struct LiveScorerOptions {
  // The scorer of the model that is followed: a chain of deltas, a directory of checkpoints, or a
  // directory whose model is replaced now and then. memory_bytes is the limit of all models that
  // are open.
  ScorerOptions scorer;
  // How often its own thread looks for what is new; 0: none does, Poll() alone looks.
  std::chrono::milliseconds poll_interval{1000};

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// What a LiveScorer has seen and done. Counts are since Open.
struct LiveScorerStatus {
  // What came of the last look. OK: what was there is served. Otherwise what was refused, named by
  // its file, with the remedy; the state before it is served, and the next look tries again.
  absl::Status last;
  int64_t step = 0;          // of the model that is served
  int64_t sequence = -1;     // of the link of the chain that is served; -1: it is no chain
  int64_t newest_step = 0;   // of what the last look has found: `step` where nothing is refused
  int64_t polls = 0;         // looks
  int64_t polls_failed = 0;  // of these, with an error
  int64_t deltas_applied = 0;
  int64_t rows_applied = 0;        // of these deltas
  int64_t rows_erased = 0;         // keys that lost their row: tombstones, and rows that aged
  int64_t models_opened = 0;       // whole models that took the place of the one before
  double last_update_seconds = 0;  // from reading to the end of the last delta or model
  int64_t table_bytes = 0;         // of all models that are open, taken of memory_bytes
};

// Scores with a model that goes on being trained: it follows a chain of deltas, or the newest
// checkpoint of a directory, while it serves. docs/serving.md.
//
// Versions: each call of a Scorer sees one version of the model, whole: rows and dense parameters
//           of one link. A delta is read and checked whole before anything of it is visible.
// Chains:   deltas go into the Scorer that Current() gives, one after the other. What a delta
//           cannot bring (another base, links that are gone as the chain was compacted, tables that
//           decay as a whole) is opened beside the old model and swapped, if memory_bytes has room
//           for both, and if it has the same inputs and tasks: who asks for scores need not know of
//           it. With rows_dir each of the two models has half of memory_bytes, and one process
//           changes rows there; others open what it has written beside their own.
// Threads:  all const methods and Poll, any number at once.
// Errors:   Open: those of Scorer::Open. Poll: those of Scorer::ApplyDelta and, for a whole
//           model, of Scorer::Open, and FailedPrecondition (other inputs); the model that was
//           served goes on being served.
class LiveScorer {
 public:
  static absl::StatusOr<std::unique_ptr<LiveScorer>> Open(const LiveScorerOptions& options);
  // Ends the thread, and what it reads at the next row. Scorers that Current() gave live on.
  ~LiveScorer();
  LiveScorer(const LiveScorer&) = delete;
  LiveScorer& operator=(const LiveScorer&) = delete;

  // The model to score the next batch with. To be taken again for each batch: a Scorer gets deltas
  // where it is, but a whole new model is another Scorer, and the old one keeps its memory as long
  // as somebody has it. Never null; takes a lock for as long as copying a pointer takes.
  std::shared_ptr<const Scorer> Current() const;

  // Looks for what is new and makes it visible; returns when it is. One look at a time, others
  // wait.
  absl::Status Poll();

  LiveScorerStatus status() const;

 private:
  struct Impl;
  explicit LiveScorer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SERVING_LIVE_SCORER_H_
