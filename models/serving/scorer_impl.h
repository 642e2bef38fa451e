#ifndef HOTROW_MODELS_SERVING_SCORER_IMPL_H_
#define HOTROW_MODELS_SERVING_SCORER_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/reader_slots.h"
#include "models/delta/delta_chain.h"
#include "models/serving/score_session_impl.h"
#include "models/serving/scorer.h"
#include "models/serving/serving_model_impl.h"

namespace hotrow {

// A call takes a slot and the session of the same number, and loads the version; an update stores
// the next version and waits for those who may have the one before.
struct Scorer::Impl {
  Impl(const ScorerOptions& options, std::unique_ptr<internal::ServingModel> read,
       int32_t concurrency)
      : env(options.env != nullptr ? *options.env : PosixEnv()),
        model(std::move(read)),
        max_batch_size(options.max_batch_size),
        slots(concurrency),
        sessions(static_cast<size_t>(concurrency)) {}

  // ResourceExhausted, naming the option, where memory does not hold them.
  absl::Status CreateSessions(const ScorerOptions& options);
  // Makes the first version, once all sessions are there.
  void Begin();
  absl::StatusOr<AppliedDelta> ApplyDelta(const std::string& dir);
  ChainLink Link() const;  // that the newest version stands at

  // Runs `call` with its own session. scored_step: may be null.
  template <typename Call>
  absl::Status With(int64_t* scored_step, const Call& call) {
    const Use use{this, slots.Take()};
    const internal::ModelVersion* const now = version.load();
    internal::ScoreSession& session = *sessions[static_cast<size_t>(use.slot)];
    session.Use(*now);
    if (scored_step != nullptr) *scored_step = now->step;
    const absl::Status status = call(session);
    session.Trim();
    return status;
  }
  // Where a session is given back, however the call ends.
  struct Use {
    ~Use() { impl->slots.GiveBack(slot); }
    Impl* impl;
    int32_t slot;
  };

  // Returns when no call has an older version any more, which is then gone.
  void Publish(std::unique_ptr<const internal::ModelVersion> next);
  absl::StatusOr<AppliedDelta> ApplyChecked(const DeltaManifest& delta);

  Env& env;
  const std::unique_ptr<internal::ServingModel> model;
  const int64_t max_batch_size;
  // False: what takes its place has its hot keys already.
  std::atomic<bool> saves_at_close = true;
  ReaderSlots slots;
  std::vector<std::unique_ptr<internal::ScoreSession>> sessions;
  std::atomic<const internal::ModelVersion*> version = nullptr;
  // Numbers of the newest version, for whom it concerns.
  std::atomic<int64_t> step = 0;
  std::atomic<int64_t> sequence = -1;
  std::atomic<int64_t> rows = 0;

  mutable std::mutex update_mu;  // one update at a time; guards the following
  std::unique_ptr<const internal::ModelVersion> newest;
  ChainLink link;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_SERVING_SCORER_IMPL_H_
