#include "models/serving/live_scorer.h"

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/own_status.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "models/delta/delta_chain.h"
#include "models/delta/delta_manifest.h"
#include "models/saving/checkpoint.h"
#include "models/saving/manifest.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/store_paths_impl.h"
#include "models/serving/scorer_impl.h"

namespace hotrow {
namespace {

constexpr int64_t kPollMsMax = 24LL * 3600 * 1000;

// A model that is no chain, as it lies in its directory now.
struct Found {
  Hash128 digest;  // of its manifest
  int64_t step = 0;
};

absl::StatusOr<Found> FindModel(Env& env, const std::string& dir) {
  Found out;
  HOTROW_ASSIGN_OR_RETURN(const bool is_portable, IsPortableModel(env, dir));
  std::string of = dir;
  if (is_portable) {
    HOTROW_ASSIGN_OR_RETURN(const PortableModel model, ReadPortableManifest(env, dir, false));
    out.step = model.model.step;
  } else {
    HOTROW_ASSIGN_OR_RETURN(const SavedModel model, ReadCheckpoint(env, dir));
    out.step = model.step;
    of = model.dir;
  }
  HOTROW_ASSIGN_OR_RETURN(const std::string text,
                          ReadWholeFile(env, ManifestPath(of), kManifestBytesMax));
  out.digest = LinkDigest(text);
  return out;
}

bool Contains(const DeltaChain& chain, const ChainLink& link) {
  return chain.manifest.base_link == link.digest ||
         std::ranges::any_of(
             chain.deltas, [&](const DeltaManifest& delta) { return delta.digest == link.digest; });
}

}  // namespace

absl::Status LiveScorerOptions::Validate() const {
  HOTROW_RETURN_IF_ERROR(scorer.Validate());
  if (poll_interval.count() >= 0 && poll_interval.count() <= kPollMsMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("LiveScorerOptions.poll_interval must lie in [0, ",
                                                 kPollMsMax, "] milliseconds, is ",
                                                 poll_interval.count()));
}

struct LiveScorer::Impl {
  explicit Impl(const LiveScorerOptions& given)
      : options(given),
        env(given.scorer.env != nullptr ? *given.scorer.env : PosixEnv()),
        dir(WithoutEndingSlashes(given.scorer.model)) {
    ScorerOptions& scorer = options.scorer;
    if (scorer.stop == nullptr) scorer.stop = std::make_shared<std::atomic<bool>>(false);
    if (scorer.budget == nullptr) {
      scorer.budget = std::make_shared<ServingBudget>(
          scorer.memory_bytes > 0 ? scorer.memory_bytes : std::numeric_limits<int64_t>::max());
    }
  }
  ~Impl() {
    {
      const std::lock_guard lock(stop_mu);
      stop = true;
    }
    *options.scorer.stop = true;  // what it reads now
    stopped.notify_all();
    if (thread.joinable()) thread.join();
  }

  absl::Status Open() {
    HOTROW_ASSIGN_OR_RETURN(const bool is_chain, IsChain(env, dir));
    if (!is_chain) {
      HOTROW_ASSIGN_OR_RETURN(served, FindModel(env, dir));
    }
    HOTROW_ASSIGN_OR_RETURN(current, Scorer::Open(options.scorer));
    status.newest_step = current->step();
    return absl::OkStatus();
  }

  void Run() {
    std::unique_lock lock(stop_mu);
    while (!stopped.wait_for(lock, options.poll_interval, [&] { return stop; })) {
      lock.unlock();
      Caught("", [this] { return Poll(); }).IgnoreError();  // status() says it
      lock.lock();
    }
  }

  absl::Status Poll() {
    const std::lock_guard poll_lock(poll_mu);
    // The model that is served goes on.
    const absl::Status result = Caught(dir, [this] { return Look(); });
    const std::lock_guard lock(mu);
    ++status.polls;
    status.polls_failed += result.ok() ? 0 : 1;
    status.last = OwnStatus(result);
    if (result.ok()) status.newest_step = current->step();
    return result;
  }

  absl::Status Look() {
    const std::shared_ptr<Scorer> scorer = Now();
    HOTROW_ASSIGN_OR_RETURN(const bool is_chain, IsChain(env, dir));
    if (scorer->impl_->model->chain.has_value()) {
      // Links that are looked for may go while the chain is compacted; then the next look is now.
      constexpr int kAgainMax = 3;
      for (int again = kAgainMax;; --again) {
        HOTROW_ASSIGN_OR_RETURN(const ChainManifest manifest, ReadChainManifest(env, dir));
        const absl::Status followed = FollowChain(*scorer);
        if (followed.ok() || again == 0 || !WasCompacted(env, dir, manifest)) return followed;
      }
    }
    if (is_chain) return OpenAnew("it has become a chain of deltas");
    HOTROW_ASSIGN_OR_RETURN(const Found found, FindModel(env, dir));
    Saw(found.step);
    if (found.digest == served.digest) return absl::OkStatus();
    HOTROW_RETURN_IF_ERROR(OpenAnew(absl::StrCat("there is a newer model, of step ", found.step)));
    served = found;
    return absl::OkStatus();
  }

  // Applies what lies behind the scorer's link, one delta after the other.
  absl::Status FollowChain(Scorer& scorer) {
    const DeltaChain& chain = *scorer.impl_->model->chain;
    SawNewest(scorer.impl_->Link());
    while (true) {
      HOTROW_ASSIGN_OR_RETURN(const ChainManifest manifest, ReadChainManifest(env, dir));
      const ChainLink link = scorer.impl_->Link();
      if (!(manifest.base_id == chain.manifest.base_id)) return OpenAnew("it is another chain");
      const std::string next = absl::StrCat(dir, "/", DeltaDirName(link.sequence + 1));
      HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(next));
      if (!exists) {
        if (manifest.base_sequence > link.sequence) {
          return OpenAnew(absl::StrCat("it begins at link ", manifest.base_sequence,
                                       " now, and what led there from link ", link.sequence,
                                       " is gone"));
        }
        HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> behind,
                                ListDeltas(env, dir, link.sequence));
        if (behind.empty()) return absl::OkStatus();
        continue;  // it has come meanwhile
      }
      HOTROW_ASSIGN_OR_RETURN(const DeltaManifest delta, ReadDeltaManifest(env, next));
      if (const absl::Status follows = CheckNextLink(chain, link, delta); !follows.ok()) {
        const absl::StatusOr<DeltaChain> whole = ReadChain(env, dir);
        if (!whole.ok() || Contains(*whole, link)) return follows;
        return OpenAnew(absl::StrCat("link ", link.sequence, " was written anew"));
      }
      if (const std::string why = internal::WhyOpenedAnew(*scorer.impl_->model, delta);
          !why.empty()) {
        return OpenAnew(absl::StrCat(DeltaDirName(delta.sequence), ": ", why));
      }
      // Rows on a disk are changed by one process. It may have written these ones by now.
      if (const absl::Status locked = scorer.impl_->model->tables->LockRows();
          absl::IsFailedPrecondition(locked)) {
        return OpenAnew(
            absl::StrCat(DeltaDirName(delta.sequence), ": ", std::string(locked.message())));
      }
      const auto begin = std::chrono::steady_clock::now();
      HOTROW_ASSIGN_OR_RETURN(const AppliedDelta applied, scorer.ApplyDelta(next));
      const std::lock_guard lock(mu);
      ++status.deltas_applied;
      status.rows_applied += applied.rows;
      status.rows_erased += applied.erased;
      Took(begin);
    }
  }

  // Whether those who score with the old model can score with this one.
  absl::Status CheckInputs(const internal::ServingModel& next, const Scorer& old,
                           const std::string& why) {
    const std::string different =
        next.feature_names != old.feature_names()                            ? "features"
        : next.recipe.num_dense != old.num_dense()                           ? "dense features"
        : next.recipe.num_tasks != old.num_tasks()                           ? "tasks"
        : old.schema() != nullptr && next.line_columns != old.line_columns() ? "columns of lines"
                                                                             : "";
    if (different.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(dir, ": ", why, ", with other ", different,
                     " than the model that is served, which stays; serve this one by itself, or "
                     "put a model with the same inputs there"));
  }

  // Opens what lies there now, beside the scorer that serves, and lets it serve.
  absl::Status OpenAnew(const std::string& why) {
    const auto begin = std::chrono::steady_clock::now();
    // So that it begins with the rows that are wanted now. Without them it is slower, and right.
    const std::shared_ptr<Scorer> old = Now();
    {  // before its rows are read
      HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<internal::ServingModel> model,
                              internal::ReadServingModel(options.scorer, /*with_rows=*/false));
      HOTROW_RETURN_IF_ERROR(CheckInputs(*model, *old, why));
    }
    old->SaveHotKeys().IgnoreError();
    old->impl_->model->tables->UnlockRows();  // the new one's rows go where these are
    absl::StatusOr<std::unique_ptr<Scorer>> opened = Scorer::Open(options.scorer);
    if (!opened.ok()) {
      return {opened.status().code(),
              absl::StrCat(dir, ": ", why, ", so the model is opened beside the old one: ",
                           std::string(opened.status().message()),
                           absl::IsResourceExhausted(opened.status())
                               ? "; give memory_bytes room for both, or open it after a restart"
                               : "")};
    }
    std::shared_ptr<Scorer> next = *std::move(opened);
    // What lay there may have been replaced in between.
    HOTROW_RETURN_IF_ERROR(CheckInputs(*next->impl_->model, *old, why));
    old->impl_->saves_at_close = false;  // it may go much later, in a call that scores
    const std::lock_guard lock(mu);
    current.swap(next);
    ++status.models_opened;
    Took(begin);
    return absl::OkStatus();  // the old scorer goes behind the lock, if nobody has it
  }

  // Holding mu.
  void Took(std::chrono::steady_clock::time_point begin) {
    status.last_update_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  void Saw(int64_t step) {
    const std::lock_guard lock(mu);
    status.newest_step = step;
  }
  // The step of the newest delta that can be read, for those who watch.
  void SawNewest(const ChainLink& link) {
    const absl::StatusOr<std::vector<int64_t>> behind = ListDeltas(env, dir, link.sequence);
    if (!behind.ok() || behind->empty()) return;
    const absl::StatusOr<DeltaManifest> newest =
        ReadDeltaManifest(env, absl::StrCat(dir, "/", DeltaDirName(behind->back())));
    if (newest.ok()) Saw(newest->model.step);
  }
  std::shared_ptr<Scorer> Now() const {
    const std::lock_guard lock(mu);
    return current;
  }

  LiveScorerOptions options;
  Env& env;
  const std::string dir;

  std::mutex poll_mu;  // one look at a time; guards the following
  Found served;        // where it is no chain

  mutable std::mutex mu;  // never held while something is read or waited for; guards the following
  std::shared_ptr<Scorer> current;
  LiveScorerStatus status;

  std::mutex stop_mu;
  std::condition_variable stopped;
  bool stop = false;
  std::thread thread;
};

LiveScorer::LiveScorer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LiveScorer::~LiveScorer() = default;

absl::StatusOr<std::unique_ptr<LiveScorer>> LiveScorer::Open(const LiveScorerOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto impl = std::make_unique<Impl>(options);
  HOTROW_RETURN_IF_ERROR(impl->Open());
  if (options.poll_interval.count() > 0) {
    HOTROW_ASSIGN_OR_RETURN(impl->thread, StartThread("the follower of a model that is served",
                                                      [run = impl.get()] { run->Run(); }));
  }
  return std::unique_ptr<LiveScorer>(new LiveScorer(std::move(impl)));
}

std::shared_ptr<const Scorer> LiveScorer::Current() const { return impl_->Now(); }
absl::Status LiveScorer::Poll() { return impl_->Poll(); }

LiveScorerStatus LiveScorer::status() const {
  const std::lock_guard lock(impl_->mu);
  LiveScorerStatus out = impl_->status;
  out.last = OwnStatus(impl_->status.last);
  out.step = impl_->current->step();
  out.sequence = impl_->current->sequence();
  out.table_bytes = impl_->options.scorer.budget->used();
  return out;
}

}  // namespace hotrow
