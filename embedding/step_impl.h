#ifndef HOTROW_EMBEDDING_STEP_IMPL_H_
#define HOTROW_EMBEDDING_STEP_IMPL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/embedding_collection.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/rows/row_rules_impl.h"
#include "embedding/stats.h"
#include "embedding/taken_batch_impl.h"
#include "embedding/tiers/step_pipeline_impl.h"
#include "embedding/tiers/tiers_impl.h"
#include "ops/jagged.h"
#include "ops/keys/unique.h"

namespace hotrow::internal {

class DeviceKeyShuffle;
class DeviceRowShuffle;

// Where a feature's columns lie in `pooled`, or its rows in its view of `unpooled`. JaggedFeature
// serves both directions: the data of a gradient is only read.
template <typename T>
JaggedFeature PlaceOf(const PlannedFeature& feature, const MatrixView<T>& pooled,
                      const std::vector<MatrixView<T>>& unpooled) {
  const bool side_by_side = feature.unpooled_index < 0;
  const MatrixView<T>& view =
      side_by_side ? pooled : unpooled[static_cast<size_t>(feature.unpooled_index)];
  T* const data =
      side_by_side && view.data != nullptr ? view.data + feature.pooled_offset : view.data;
  return {.dim = feature.dim,
          .pooling = feature.pooling,
          .data = const_cast<float*>(data),
          // A view of no rows need not have one.
          .stride = std::max<int64_t>(view.stride, feature.dim)};
}

// What finding the distinct keys of a batch needs, grown to the largest batch seen.
struct UniqueScratch {
  std::vector<LookupSegment> segments;
  std::vector<uint64_t> values;
  HostBuffer<std::byte> workspace;
};

// The rows of a table that a step updates, where some of its features are read only.
struct TrainedRows {
  std::vector<std::byte*> rows;
  std::vector<const float*> gradients;
  std::vector<uint64_t> keys;

  // Takes those of n rows that are marked. all_keys: null: none are needed.
  void Take(std::span<const uint8_t> marks, std::byte* const* all_rows,
            const float* const* all_gradients, const uint64_t* all_keys) {
    rows.clear();
    gradients.clear();
    keys.clear();
    for (size_t i = 0; i < marks.size(); ++i) {
      if (marks[i] == 0) continue;
      rows.push_back(all_rows[i]);
      gradients.push_back(all_gradients[i]);
      if (all_keys != nullptr) keys.push_back(all_keys[i]);
    }
  }
};

// The parts of a collection that its steps go through. Not owned.
struct StepParts {
  const Plan& plan;
  Tiers* tiers = nullptr;
  const RowRules* rules = nullptr;
  RowShuffle* shuffle = nullptr;            // several ranks
  DeviceKeyShuffle* device_keys = nullptr;  // several ranks whose caches lie on devices
  DeviceRowShuffle* device_rows = nullptr;  // the same
  bool tells = false;  // the host wants to know the keys of each step, see on_update
};

// A batch with its distinct keys, the rows of these, and where loops or kernels read all that.
// There are two kinds: HostStep, and where caches lie on a device that of device_step.cc. Reused,
// so that its memory is.
//
// Life:    FindKeys, and ExchangeKeys with several ranks. The owner has the rows of served() placed
//          and read, and calls Fill. Then BeginLookup; FinishLookup with several ranks; Pool. Then
//          StartGradients and FinishGradients with several ranks. End, wherever it has come to.
// Threads: one at a time. AddTo may be called beside all that comes before BeginLookup.
class StepBatch {
 public:
  static absl::StatusOr<std::unique_ptr<StepBatch>> Create(const StepParts& parts,
                                                           const ExecContext& ctx);
  virtual ~StepBatch() = default;

  TakenBatch input;
  RowRules::Step ruled;  // what rules make of ruled_rows()

  // What loops or kernels read of the batch and its keys.
  struct Pointers {
    const int64_t* offsets = nullptr;
    const float* weights = nullptr;  // or null
    const int32_t* inverse = nullptr;
    const int64_t* row_offsets = nullptr;
    const int32_t* lookup_order = nullptr;
    const std::byte* const* value_rows = nullptr;  // [U]: where the weights of each wanted key lie
    std::byte* const* rows = nullptr;              // [served keys]
    const uint64_t* served_keys = nullptr;         // [served keys], or null: no table rounds
    float* const* gradients = nullptr;             // [U], see RowGradients
  };
  Pointers at;

  bool alone() const { return parts_.shuffle == nullptr; }  // of one rank

  // The distinct keys of `input`, and the lookups of each. scratch->segments: its runs of a table.
  virtual absl::Status FindKeys(const ExecContext& ctx, UniqueScratch* scratch) = 0;
  virtual absl::Status ExchangeKeys(const ExecContext& ctx, Communicator& channel,
                                    RowShuffle::Scratch* scratch) = 0;
  // [T + 1] of the keys that the batch looks up.
  virtual std::span<const int64_t> wanted_offsets() const = 0;
  // The keys whose rows this rank keeps and makes resident.
  virtual StepKeys served() const = 0;
  // Their rows are resident.
  virtual absl::Status Fill(const ExecContext& /*ctx*/, TierStep* /*tiers*/) {
    return absl::OkStatus();
  }

  // Sets `at`, but for the gradients. Rows set out to other ranks. update: the step to come.
  virtual absl::Status BeginLookup(const ExecContext& ctx, TierStep* tiers, uint32_t update) = 0;
  virtual absl::Status FinishLookup(const ExecContext& ctx) = 0;
  // Reads `at`.
  absl::Status Pool(const ExecContext& ctx, const EmbeddingOutput& output) const;

  // The rows of served() for the rules, which a device has not; and where they may be updated, set
  // by Tiers::ResolveForUpdate.
  virtual RuledRows ruled_rows() const = 0;
  virtual std::span<std::byte*> rows() = 0;
  // at.gradients set out to the ranks that keep the rows; sums [served keys] are there after
  // Finish.
  virtual absl::Status StartGradients(const ExecContext& ctx, uint32_t update,
                                      float* const* sums) = 0;
  virtual absl::Status FinishGradients(const ExecContext& ctx, float* const* sums) = 0;
  // served() in host memory, where parts.tells.
  virtual absl::StatusOr<StepKeys> Told() { return served(); }

  // Drops what was begun, and releases the rows. begun: the step may have begun an exchange.
  virtual void End(const ExecContext& ctx, TierStep* tiers, bool begun, bool updated) = 0;
  virtual void AddTo(EmbeddingStats* /*stats*/) const {}  // memory on devices and on the way there

  // The runs of one table in `input`: a feature each.
  void FindSegments(std::vector<LookupSegment>* segments) const;

 protected:
  explicit StepBatch(const StepParts& parts) : parts_(parts) {}

  const StepParts parts_;
};

// A step whose keys and rows are in host memory. Evaluation finds its keys with one, wherever the
// caches lie.
class HostStep final : public StepBatch {
 public:
  explicit HostStep(const StepParts& parts) : StepBatch(parts) {}

  TableKeys wanted;                          // the distinct keys of the batch
  std::vector<int32_t> inverse;              // [N] into wanted
  ShuffledKeys shuffled;                     // several ranks: what they want of this one
  std::vector<std::byte*> places;            // [served keys], where their rows lie
  std::vector<const std::byte*> value_rows;  // [U], several ranks: floats

  const TableKeys& served_keys() const { return alone() ? wanted : shuffled.served; }
  // Sets `wanted` and `inverse` from input.values, whose runs of one table are scratch->segments.
  absl::Status FindUnique(const ExecContext& ctx, UniqueScratch* scratch);

  absl::Status FindKeys(const ExecContext& ctx, UniqueScratch* scratch) override;
  absl::Status ExchangeKeys(const ExecContext& ctx, Communicator& channel,
                            RowShuffle::Scratch* scratch) override {
    return parts_.shuffle->ExchangeKeys(ctx, channel, wanted, /*evaluation=*/false, scratch,
                                        &shuffled);
  }
  std::span<const int64_t> wanted_offsets() const override { return wanted.table_offsets; }
  StepKeys served() const override {
    const TableKeys& keys = served_keys();
    return {keys.keys.data(), keys.counts.data(), keys.table_offsets};
  }
  absl::Status BeginLookup(const ExecContext& ctx, TierStep* tiers, uint32_t update) override;
  absl::Status FinishLookup(const ExecContext& ctx) override;
  RuledRows ruled_rows() const override {
    return {.keys = served_keys(),
            .rows = places,
            .lookups = alone() ? wanted.counts : shuffled.lookups,
            .scores = alone() ? wanted.scores : shuffled.scores};
  }
  std::span<std::byte*> rows() override { return places; }
  absl::Status StartGradients(const ExecContext& ctx, uint32_t update,
                              float* const* /*sums*/) override {
    return parts_.shuffle->StartGradients(ctx, wanted, shuffled, {at.gradients, wanted.keys.size()},
                                          update);
  }
  absl::Status FinishGradients(const ExecContext& ctx, float* const* sums) override {
    return parts_.shuffle->FinishGradients(ctx, shuffled, {at.gradients, wanted.keys.size()},
                                           {sums, shuffled.served.keys.size()});
  }
  void End(const ExecContext& ctx, TierStep* tiers, bool begun, bool updated) override {
    if (begun && !alone()) parts_.shuffle->Drop();
    parts_.tiers->Release(ctx, tiers, updated);
  }

 private:
  // Sets wanted.scores, where tables keep them.
  void FindScores(const ExecContext& ctx);
  // Where features are read only: sets ruled.trained, the served keys that another feature looks
  // up.
  void FindTrained();

  std::vector<int64_t> row_offsets_;     // [U + 1] lookups of each wanted key
  std::vector<int32_t> lookup_order_;    // [N]
  std::vector<uint64_t> served_values_;  // [served keys] without their tables, where one rounds
};

// A step as the Prefetcher takes it: a job of the pipeline. Until that is done nobody else touches
// it.
struct PrefetchedStep : StepPipeline::Job {
  std::unique_ptr<StepBatch> batch;
  TierStep tiers;
  // Fills batch->input, once, where the batch was not there yet when it was prefetched; else null.
  std::function<absl::Status(ThreadPool*)> take_late;
  // Several ranks: the Prefetcher's work that exchanges keys.
  int64_t id_ticket = -1;
};

}  // namespace hotrow::internal

namespace hotrow {

struct EmbeddingStep::Impl : internal::PrefetchedStep {
  enum class Use { kPrefetched, kBegun, kLookedUp, kUpdateBegun, kFailed };

  EmbeddingCollection::Impl* collection = nullptr;
  Use use = Use::kPrefetched;
  bool late = false;  // take_late was given: batch->input belongs to the Prefetcher until its Wait
  bool awaits_batch() const { return late && use == Use::kPrefetched; }
  const uint32_t* skip = nullptr;  // of the gradient that BeginUpdate took

  // It may have begun an exchange of rows or gradients.
  bool may_have_begun() const { return use != Use::kPrefetched; }
  // Its rows were resolved.
  bool looked_up() const { return may_have_begun() && use != Use::kFailed; }
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_STEP_IMPL_H_
