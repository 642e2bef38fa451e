#ifndef HOTROW_EMBEDDING_EMBEDDING_COLLECTION_IMPL_H_
#define HOTROW_EMBEDDING_EMBEDDING_COLLECTION_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/thread_pool.h"
#include "comm/lane.h"
#include "comm/run_together.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/embedding_collection.h"
#include "embedding/evaluation_impl.h"
#include "embedding/prefetcher_impl.h"
#include "embedding/ranks/device_key_shuffle_impl.h"
#include "embedding/ranks/device_row_shuffle_impl.h"
#include "embedding/ranks/gradient_residuals_impl.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/row_gradients_impl.h"
#include "embedding/rows/row_erasure_impl.h"
#include "embedding/rows/row_rules_impl.h"
#include "embedding/rows/row_writes_impl.h"
#include "embedding/snapshots_impl.h"
#include "embedding/step_impl.h"
#include "embedding/taken_batch_impl.h"
#include "embedding/tiers/tiers_impl.h"

namespace hotrow {

// EmbeddingCollection::Impl is the parts of a collection and the steps that are on their way. Its
// calls lie by subject:
//
//   collection_open.cc       from the options to the parts, and their end
//   embedding_collection.cc  batches: what they look like, Prefetch, Evaluate; the facets
//   embedding_step.cc        a step: its lookup and its update
//   collection_rows.cc       rows by key, and all rows
//   collection_stats.cc      what is counted
struct EmbeddingCollection::Impl : EmbeddingResiduals {
  EmbeddingCollectionOptions options;
  ExecContext ctx;
  CachePlace place;  // of the row caches
  internal::Plan plan;
  std::vector<std::string> feature_names;
  std::unique_ptr<internal::Tiers> tiers;
  std::unique_ptr<internal::GradientResiduals> residuals;  // null: no feedback
  std::unique_ptr<internal::RowShuffle> shuffle;           // null: alone
  // For several ranks with caches on devices: the exchanges of steps, and rows of evaluations.
  std::unique_ptr<internal::DeviceKeyShuffle> device_keys;
  std::unique_ptr<internal::DeviceRowShuffle> device_rows;
  std::unique_ptr<internal::RowRules> rules;
  std::unique_ptr<internal::RowGradients> gradients;
  std::unique_ptr<internal::Evaluation> evaluation;
  std::unique_ptr<internal::RowErasure> erasure;
  std::unique_ptr<internal::RowWrites> writes;

  // Outstanding steps in order; the front is the next to be looked up and updated.
  std::deque<EmbeddingStep::Impl*> outstanding;
  // Memory for steps to come, that which was used least lately first. Has room for all steps, so
  // that their end takes no memory.
  std::vector<std::unique_ptr<EmbeddingStep::Impl>> free_steps;
  internal::TrainedRows trained;  // of Update

  uint32_t steps = 0;
  int64_t unique_keys = 0;
  std::vector<TableStats> tables;          // of EmbeddingStats: names and lookups
  DeviceMemory<int64_t> initialised_rows;  // one number,
  SharedBuffer<int64_t> read_back_rows;    // and its copy of the last Update that is done
  int64_t lookup_waits = 0;
  int64_t lookup_wait_ns = 0;

  std::unique_ptr<internal::Snapshots> snapshots;
  // The last member, so that its threads end before what they use.
  std::unique_ptr<internal::Prefetcher> prefetcher;

  ~Impl() override { Stop(); }

  // --- collection_open.cc

  static absl::StatusOr<std::unique_ptr<Impl>> Create(const EmbeddingCollectionOptions& options,
                                                      const ExecContext& ctx);
  // What steps and evaluation go through.
  internal::StepParts Parts() const {
    return {plan,
            tiers.get(),
            rules.get(),
            shuffle.get(),
            device_keys.get(),
            device_rows.get(),
            options.on_update != nullptr};
  }
  // Makes all that is of this rank alone.
  absl::Status Open();
  // With several ranks: makes the exchanges, and returns the channel for keys.
  absl::StatusOr<std::unique_ptr<CommLane>> Connect();
  void Stop();

  // --- Several ranks

  // null: alone.
  Communicator* family() const { return shuffle == nullptr ? nullptr : options.ranks.communicator; }
  // A call of the collection. What it throws is its error.
  template <typename Call>
  auto Alone(std::string_view name, const Call& call) {
    return Caught(name, [&]() -> decltype(call()) {
      HOTROW_RETURN_IF_ERROR(tiers->Broken());
      return call();
    });
  }
  // One that all ranks make. What this rank alone refuses or throws ends it on all: the others
  // wait in it.
  template <typename Call>
  auto Together(std::string_view name, const Call& call) {
    return OrEndJob(family(), [&] { return Alone(name, call); });
  }
  // The part of a call that changes rows. Where it throws, some have changed and others have not,
  // and no call may follow.
  template <typename Call>
  auto Changing(std::string_view name, const Call& call) {
    return Caught(name, call, [this](const absl::Status& thrown) { tiers->Break(thrown); });
  }
  // RowShuffle::RunTogether, whose thread begins without a device.
  absl::Status RunTogether(absl::FunctionRef<absl::Status()> work);

  // --- embedding_collection.cc

  // owner: null: the batch is copied. ready: null: it is taken at once.
  template <typename Batch>
  absl::StatusOr<EmbeddingStep> Prefetch(const Batch& batch, std::shared_ptr<const void> owner,
                                         std::function<absl::Status()> ready);
  template <typename Batch>
  absl::Status Evaluate(const Batch& batch, const EmbeddingOutput& output);
  // Whether no rows or gradients of several ranks are under way.
  absl::Status CheckIdle(const char* call) const;
  absl::Status Take(const JaggedBatch& batch, internal::TakeArrays arrays, ThreadPool* pool,
                    internal::TakenBatch* taken) const;
  absl::Status Take(const FeatureBatch& batch, internal::TakeArrays arrays, ThreadPool* pool,
                    internal::TakenBatch* taken) const;
  // What EmbeddingResiduals asks for.
  bool kept() const override { return residuals != nullptr; }
  absl::StatusOr<HostBuffer<std::byte>> Save() override;
  absl::StatusOr<bool> Load(std::span<const std::byte> bytes) override;

  // --- embedding_step.cc

  absl::StatusOr<std::unique_ptr<EmbeddingStep::Impl>> NewStep();
  // Nobody is at work on the step, nor will be. It has ended also where there is an error: that its
  // rows may have been lost, which the next call says, too.
  absl::Status End(EmbeddingStep::Impl* step, bool updated);
  // The oldest step: its rows are resident, or come now.
  absl::Status BeginLookup(EmbeddingStep::Impl* step);
  // The same, if it is the turn of this step.
  absl::Status BeginOldest(EmbeddingStep::Impl* step);
  absl::Status Lookup(EmbeddingStep::Impl* step, const EmbeddingOutput& output);
  absl::Status LookupRows(EmbeddingStep::Impl* step, const float** rows);
  // Whether a step can be updated that BeginUpdate was not called for.
  absl::Status CheckUpdate(const EmbeddingStep::Impl& step,
                           const EmbeddingGradient& gradient) const;
  absl::Status BeginUpdate(EmbeddingStep::Impl* step, const EmbeddingGradient& gradient);
  // gradient: unused after BeginUpdate, which has read it.
  absl::Status Update(EmbeddingStep::Impl* step, const EmbeddingGradient& gradient,
                      float learning_rate_factor);
  // Both move the rows that this rank keeps. sums: the gradient of each served key.
  absl::Status UpdateRows(const internal::StepBatch& b, const float* const* sums,
                          float learning_rate_factor, const uint32_t* skip);
  absl::Status UpdateRowsFused(const internal::StepBatch& b, const EmbeddingGradient& gradient,
                               float learning_rate_factor);
  // How often the batch looks up each table of the plan.
  std::vector<int64_t> LookupsOf(const internal::StepBatch& batch) const;
  // Counts the lookups of a step that was updated.
  void CountLookups(const internal::StepBatch& batch, const internal::StepKeys& served);
  // Calls options.on_update.
  absl::Status TellOfUpdate(internal::StepBatch* batch);

  // --- collection_rows.cc

  // The table's position in the plan.
  absl::StatusOr<int32_t> FindTable(const char* call, std::string_view name) const;
  absl::Status CheckBetweenSteps(const char* call) const;
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_EMBEDDING_COLLECTION_IMPL_H_
