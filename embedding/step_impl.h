#ifndef HOTROW_EMBEDDING_STEP_IMPL_H_
#define HOTROW_EMBEDDING_STEP_IMPL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/buffer.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "base/matrix_view.h"
#include "base/thread_pool.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/device_keys_impl.h"
#include "embedding/embedding_collection.h"
#include "embedding/ranks/device_key_shuffle_impl.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/rows/row_rules_impl.h"
#include "embedding/stats.h"
#include "embedding/taken_batch_impl.h"
#include "embedding/tiers/step_arrays_impl.h"
#include "embedding/tiers/step_pipeline_impl.h"
#include "embedding/tiers/tiers_impl.h"
#include "ops/jagged.h"
#include "ops/keys/unique.h"

namespace hotrow::internal {

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

// A batch with its distinct keys, the rows of these, and where the loops or kernels of a device
// read all that. Reused, so that its memory is. One thread at a time.
struct StepBatch {
  ~StepBatch() { upload.Wait().IgnoreError(); }

  bool alone = true;    // of one rank
  bool staged = false;  // as in CachePlace
  bool rounds = false;  // some table has weights of 16 bits, which updates round
  bool tells = false;   // the host wants to know the keys of each step, see on_update

  TakenBatch input;
  // Staged, training finds keys on the device (FindOnDevice), and what follows up to `rows` is of
  // the evaluation alone, which finds them on the host.
  TableKeys wanted;                          // the distinct keys of the batch
  std::vector<int32_t> inverse;              // [N] into wanted
  std::vector<int64_t> row_offsets;          // [U + 1] lookups of each wanted key
  std::vector<int32_t> lookup_order;         // [N]
  ShuffledKeys shuffled;                     // several ranks: what they want of this one
  std::vector<uint64_t> served_keys;         // [served keys], or empty: no table rounds
  std::vector<std::byte*> rows;              // [served keys], where they lie
  RowRules::Step ruled;                      // of `rows`: what rules make of them
  std::vector<const std::byte*> value_rows;  // [U], several ranks: floats

  // What loops or kernels read of the above.
  struct Pointers {
    const int64_t* offsets = nullptr;
    const float* weights = nullptr;  // or null
    const int32_t* inverse = nullptr;
    const int64_t* row_offsets = nullptr;
    const int32_t* lookup_order = nullptr;
    const int32_t* ask_order = nullptr;   // of ShuffledKeys, where several ranks evaluate staged
    const int32_t* asked_rows = nullptr;  // the same
    const std::byte* const* value_rows = nullptr;  // [U]: where the weights of each wanted key lie
    std::byte* const* rows = nullptr;              // [served keys]
    const uint64_t* served_keys = nullptr;         // [served keys], or null: no table rounds
    float* const* gradients = nullptr;             // [U], see RowGradients
  };
  Pointers at;
  // Staged: their copies, and the stream that they travel on. Since memory is used again, the
  // stream also waits for the kernels that read the copies of the time before.
  DeviceStream upload;
  StepArrays arrays;
  // Staged, of training: what it looks up, and of several ranks what they want of this one.
  DeviceKeys device_keys;
  DeviceShuffledKeys device_shuffled;

  // The keys whose rows this rank keeps and makes resident.
  DeviceKeys& served_on_device() { return alone ? device_keys : device_shuffled.served; }
  const DeviceKeys& served_on_device() const {
    return alone ? device_keys : device_shuffled.served;
  }
  const TableKeys& served() const { return alone ? wanted : shuffled.served; }
  // Their rows, for the rules.
  RuledRows ruled_rows() const {
    return {.keys = served(),
            .rows = rows,
            .lookups = alone ? wanted.counts : shuffled.lookups,
            .scores = alone ? wanted.scores : shuffled.scores};
  }

  // Sets `wanted` and `inverse` from `input`.
  absl::Status FindUnique(const ExecContext& ctx, const Plan& plan, UniqueScratch* scratch);
  // The same from input.values alone, whose runs of one table are scratch->segments.
  absl::Status FindUniqueOf(const ExecContext& ctx, const Plan& plan, UniqueScratch* scratch);
  // Sets row_offsets and lookup_order from these. `scratch` as FindUnique left it.
  absl::Status GroupByRow(const ExecContext& ctx, UniqueScratch* scratch);
  // Then sets wanted.scores, where tables keep them.
  void FindScores(const ExecContext& ctx, const Plan& plan);
  // Staged: both on the device, of a copy of `input`, and `at` but for what is served. Returns when
  // the host knows how many keys there are. segments: scratch.
  absl::Status FindOnDevice(const ExecContext& ctx, const Plan& plan,
                            std::vector<LookupSegment>* segments);
  // After that, and after the exchange of several ranks: the rest of `at`. Tells the host of the
  // keys where it wants to know them.
  absl::Status ServeOnDevice();
  // What training looks up: `wanted`, wherever it is.
  std::span<const int64_t> wanted_offsets() const {
    return staged ? device_keys.table_offsets() : wanted.table_offsets;
  }
  // The keys whose rows this rank makes resident.
  StepKeys step_keys() const;
  // Where features are read only: sets ruled.trained, the served keys that another feature looks
  // up.
  void FindTrained(const Plan& plan);
  // Sets `at`: where `arrays` are, not staged the vectors themselves. Staged, of several ranks:
  // without the rows of wanted keys. `grouped`, not staged: with
  // row_offsets, lookup_order and served_keys, which evaluation has not. Not staged: `ruled` is of
  // `rows`.
  absl::Status PlaceArrays(bool grouped);
  // Reads `at`.
  absl::Status Pool(const ExecContext& ctx, const Plan& plan, const EmbeddingOutput& output) const;
  void AddTo(EmbeddingStats* stats) const;  // memory of the arrays
};

// A step as the Prefetcher takes it: a job of the pipeline. Until that is done nobody else touches
// it.
struct PrefetchedStep : StepPipeline::Job {
  StepBatch batch;
  TierStep tiers;
  // Fills batch.input, once, where the batch was not there yet when it was prefetched; else null.
  std::function<absl::Status(ThreadPool*)> take_late;
  // Several ranks: the Prefetcher's work that fills batch.shuffled.
  int64_t id_ticket = -1;
};

}  // namespace hotrow::internal

namespace hotrow {

struct EmbeddingStep::Impl : internal::PrefetchedStep {
  enum class Use { kPrefetched, kBegun, kLookedUp, kUpdateBegun, kFailed };

  EmbeddingCollection::Impl* collection = nullptr;
  Use use = Use::kPrefetched;
  bool late = false;  // take_late was given: batch.input belongs to the Prefetcher until its Wait
  bool awaits_batch() const { return late && use == Use::kPrefetched; }
  const uint32_t* skip = nullptr;  // of the gradient that BeginUpdate took

  // An exchange of rows or gradients waits for its end.
  bool begun() const { return use == Use::kBegun || use == Use::kUpdateBegun; }
  // It may have enqueued an exchange.
  bool may_have_begun() const { return looked_up() || use == Use::kFailed; }
  // Its rows were resolved.
  bool looked_up() const { return begun() || use == Use::kLookedUp; }
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_STEP_IMPL_H_
