#include "embedding/embedding_collection.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/check.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "comm/compare_ranks.h"
#include "comm/lane.h"
#include "comm/run_together.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/open_store_impl.h"
#include "embedding/ranks/gradient_residuals.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/tiers/cached_store.h"
#include "embedding/tiers/step_arrays_impl.h"
#include "embedding/tiers/step_pipeline_impl.h"
#include "embedding/tiers/store_reads_impl.h"
#include "embedding/tiers/tiered_table.h"
#include "ops/gradient_segment_sum.h"
#include "ops/partition.h"
#include "ops/pooled_lookup.h"
#include "ops/unique.h"

namespace hotrow {
namespace {

// Unique and Partition number lookups with int32.
constexpr int64_t kMaxLookupsPerBatch = INT32_MAX;
// From so many threads on the pipeline spreads its work over the caller's pool.
constexpr int kPipelinePoolThreads = 4;

using internal::GradientResiduals;
using internal::OpenedStore;
using internal::Plan;
using internal::PlannedFeature;
using internal::PlannedTable;
using internal::RowShuffle;
using internal::ShuffledKeys;
using internal::StepArrays;
using internal::StepPipeline;
using internal::TableKeys;
using internal::WidthClass;

// What finding the distinct keys of a batch needs, grown to the largest batch seen.
struct UniqueScratch {
  std::vector<LookupSegment> segments;
  std::vector<uint64_t> values;
  HostBuffer<std::byte> workspace;
};

absl::Status EnsureBytes(int64_t bytes, HostBuffer<std::byte>* buffer) {
  if (buffer->size() >= bytes) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(*buffer, HostBuffer<std::byte>::Create(bytes, HugePages::kTry));
  return absl::OkStatus();
}

// Room for `size` elements. What was there is lost when it grows, by a quarter more than is needed,
// so that batches of nearly equal size do not each take new memory.
template <typename T>
absl::Status EnsureSize(const ExecContext& ctx, int64_t size, DeviceMemory<T>* memory) {
  if (memory->size() >= size) return absl::OkStatus();
  return memory->Reserve(ctx.device, size + size / 4, ctx.stream);
}

}  // namespace

// As a job of the pipeline it finds the distinct keys, gives them ways in the caches, and then
// reads what is missing; until that is done the caller leaves all members but the first three
// alone.
struct EmbeddingStep::Impl : StepPipeline::Job {
  enum class Use { kPrefetched, kBegun, kLookedUp, kUpdateBegun, kFailed };

  EmbeddingCollection::Impl* collection = nullptr;
  Use use = Use::kPrefetched;
  int64_t batch_size = 0;
  std::vector<uint64_t> values;  // [N]
  int64_t num_lookups = 0;
  std::vector<int64_t> offsets;       // [F*B + 1]
  std::vector<float> weights;         // [N] or empty
  TableKeys wanted;                   // the distinct keys of the batch
  std::vector<int32_t> inverse;       // [N] into wanted
  std::vector<int64_t> row_offsets;   // [U + 1] lookups of each wanted key
  std::vector<int32_t> lookup_order;  // [N]
  std::vector<uint64_t> served_keys;  // [served keys], or empty: no table rounds
  // What the loops or kernels of the device read of the above, and of `rows`.
  struct Pointers {
    const int64_t* offsets = nullptr;
    const float* weights = nullptr;  // or null
    const int32_t* inverse = nullptr;
    const int64_t* row_offsets = nullptr;
    const int32_t* lookup_order = nullptr;
    const std::byte* const* value_rows = nullptr;  // [U]: where the weights of each wanted key lie
    std::byte* const* rows = nullptr;              // [served keys]
    const uint64_t* served_keys = nullptr;         // [served keys], or null: no table rounds
    float* const* gradients = nullptr;             // [U], from BeginUpdate on
  };
  Pointers at;
  // Staged: their copies, and the stream that they travel on. A step's memory is used again, so the
  // stream also waits for the kernels that read the copies of the time before.
  DeviceStream upload;
  StepArrays arrays;
  StepArrays gradient_arrays;
  // Several ranks: what they want of this one. Filled by the work of this ticket of id_lane.
  ShuffledKeys shuffled;
  int64_t id_ticket = -1;
  std::vector<std::byte*> rows;              // [served keys], from BeginLookup on
  std::vector<const std::byte*> value_rows;  // [U], several ranks, in Lookup: floats
  std::vector<StepRows> class_rows;          // [width classes]

  // The keys whose rows this rank keeps and makes resident.
  const TableKeys& served() const;
  // Where `arrays` are, not staged the vectors themselves. `grouped`: with row_offsets,
  // lookup_order and served_keys, which evaluation has not.
  absl::Status PlaceArrays(bool grouped);
};

struct EmbeddingCollection::Impl {
  EmbeddingCollectionOptions options;
  ExecContext ctx;           // of the caller's calls
  ExecContext pipeline_ctx;  // of the pipeline's
  CachePlace place;          // of the row caches
  Plan plan;
  std::vector<std::string> feature_names;
  OpenedStore store;
  std::unique_ptr<CachedStore> host_cache;  // staged over a disk, or null
  // What the tiers read from and write to: host_cache, or the store.
  RowStore* below = nullptr;
  std::vector<std::unique_ptr<TieredTable>> tiers;  // one for each width class
  std::unique_ptr<GradientResiduals> residuals;     // null: no feedback
  std::unique_ptr<RowShuffle> shuffle;              // null: alone

  // Outstanding steps in order; the front is the next to be looked up and updated.
  std::deque<EmbeddingStep::Impl*> outstanding;
  std::vector<std::unique_ptr<EmbeddingStep::Impl>> free_steps;  // memory for steps to come

  uint32_t steps = 0;
  int64_t unique_keys = 0;
  int64_t initialised_rows = 0;                   // not staged
  DeviceMemory<int64_t> device_initialised_rows;  // staged: one number
  std::atomic<int64_t> prefetch_waits{0};
  int64_t lookup_waits = 0;
  int64_t lookup_wait_ns = 0;
  int64_t evaluation_lookups = 0;
  int64_t evaluation_unique_keys = 0;

  // Scratch of the caller's calls, grown to the largest batch seen.
  UniqueScratch unique;
  DeviceMemory<float> gradients;
  std::vector<float*> gradient_rows;  // [U] of what is wanted
  DeviceMemory<float> gradient_sums;  // several ranks
  std::vector<float*> sum_rows;       // [served keys]
  RowShuffle::Scratch evaluation_ids;
  DeviceMemory<std::byte> segment_workspace;
  DeviceMemory<std::byte> evaluation_staging;
  std::unique_ptr<EmbeddingStep::Impl> evaluation_step;
  // Scratch of the pipeline's first stage.
  UniqueScratch pipeline_unique;
  // Of its second stage, and of a first stage while no second one runs.
  std::vector<RowKey> fetch_keys;
  std::vector<std::byte*> fetch_rows;
  std::vector<int64_t> fetch_sizes;  // [width classes]
  std::vector<uint8_t> fetch_found;
  // Of the thread of id_lane, which finds the distinct keys of steps and exchanges them. It never
  // waits for room, so all ranks make their exchanges in the order of Prefetch, whatever becomes of
  // a step later.
  UniqueScratch lane_unique;
  RowShuffle::Scratch lane_ids;
  std::unique_ptr<CommLane> id_lane;  // several ranks

  // The snapshot that was begun last.
  struct Snapshot {
    SnapshotId id = 0;
    bool done = true;
    absl::Status status;
    int64_t begin_ns = 0;
    // Over all of them.
    int64_t count = 0;
    int64_t failed = 0;
    int64_t pause_ns = 0;
    int64_t pause_ns_max = 0;
    int64_t prepare_ns = 0;
  };
  mutable std::mutex snapshot_mutex;  // guards `snapshot`
  Snapshot snapshot;
  std::thread snapshot_thread;
  std::thread tidy_thread;
  bool tidied = false;  // since the last snapshot was begun
  std::atomic<bool> stopping{false};

  // The last member, so that its thread ends before what it uses.
  std::unique_ptr<StepPipeline> pipeline;

  ~Impl() { Stop(); }
  void Stop();

  absl::Status Open();
  absl::Status Connect();
  // The row caches are out of the host's reach, or are to behave as if they were.
  bool staged() const { return place.staged; }
  absl::Status ValidateBatch(const JaggedBatch& batch) const;
  // What several ranks can no longer agree on ends the job on all of them.
  absl::Status EndJobUnlessOk(absl::Status status);
  absl::Status FindUnique(const ExecContext& unique_ctx, const JaggedBatch& batch,
                          EmbeddingStep::Impl* step, UniqueScratch* scratch);
  // The distinct keys of a step, and who wants which of them.
  absl::Status FindKeys(EmbeddingStep::Impl* step, UniqueScratch* scratch);
  // The job of the pipeline: its first stage, the body of that, and its second stage.
  absl::Status PlaceStep(EmbeddingStep::Impl* step);
  absl::Status PlaceRows(EmbeddingStep::Impl* step);
  absl::Status FillStep(EmbeddingStep::Impl* step);
  absl::Status Fetch(EmbeddingStep::Impl* step);
  void GiveUp(EmbeddingStep::Impl* step);
  void End(EmbeddingStep::Impl* step, bool updated);
  std::span<const RowKey> KeysOf(const EmbeddingStep::Impl& step, size_t width) const;
  std::span<const int32_t> CountsOf(const EmbeddingStep::Impl& step, size_t width) const;
  std::span<std::byte*> RowsOf(EmbeddingStep::Impl* step, size_t width) const;
  absl::Status CheckPointers(bool pooled, size_t unpooled, const char* what) const;
  // Reads step.at.
  absl::Status Pool(const EmbeddingStep::Impl& step, const EmbeddingOutput& output);
  absl::Status BeginLookup(EmbeddingStep::Impl* step);
  absl::Status Lookup(EmbeddingStep::Impl* step, const EmbeddingOutput& output);
  absl::Status BeginUpdate(EmbeddingStep::Impl* step, const EmbeddingGradient& gradient);
  absl::Status Update(EmbeddingStep::Impl* step, float learning_rate_factor);
  // Puts one gradient of each key's dim after another; `rows` are their places.
  absl::Status PlaceGradients(const TableKeys& keys, DeviceMemory<float>* floats,
                              std::vector<float*>* rows) const;
  absl::Status EvaluateSlice(const JaggedBatch& batch, const EmbeddingOutput& output);
  absl::StatusOr<std::vector<int64_t>> CutForStaging(const JaggedBatch& batch) const;
  absl::Status Evaluate(const JaggedBatch& batch, const EmbeddingOutput& output);
  absl::Status NoRoomError(const EmbeddingStep::Impl& step) const;
  int64_t InitialisedRows() const;

  absl::Status CheckSnapshotName(SnapshotId id) const;
  absl::Status WriteSnapshot(SnapshotId id, bool tidy);
  void FinishSnapshot(absl::Status status);
  void JoinSnapshot();  // waits for the one that is being written
  absl::Status FlushTiers();
  absl::Status DigestOwn(CollectionDigest* digest);
};

const TableKeys& EmbeddingStep::Impl::served() const {
  return collection->shuffle == nullptr ? wanted : shuffled.served;
}

absl::Status EmbeddingStep::Impl::PlaceArrays(bool grouped) {
  const bool with_keys = grouped && collection->plan.rounds;
  if (with_keys) {
    const std::vector<RowKey>& keys = served().keys;
    served_keys.resize(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) served_keys[i] = keys[i].key;
  }
  arrays.Clear();
  const size_t offsets_part = arrays.Add(offsets);
  const size_t weights_part = arrays.Add(weights);
  const size_t inverse_part = arrays.Add(inverse);
  const size_t row_offsets_part = grouped ? arrays.Add(row_offsets) : 0;
  const size_t lookup_order_part = grouped ? arrays.Add(lookup_order) : 0;
  const size_t rows_part = arrays.Add(rows);
  const size_t served_keys_part = with_keys ? arrays.Add(served_keys) : 0;
  HOTROW_RETURN_IF_ERROR(arrays.Upload(collection->staged(), &upload));
  at = Pointers();
  at.offsets = arrays.At<int64_t>(offsets_part);
  at.weights = weights.empty() ? nullptr : arrays.At<float>(weights_part);
  at.inverse = arrays.At<int32_t>(inverse_part);
  if (grouped) {
    at.row_offsets = arrays.At<int64_t>(row_offsets_part);
    at.lookup_order = arrays.At<int32_t>(lookup_order_part);
  }
  at.rows = arrays.At<std::byte*>(rows_part);
  at.value_rows = arrays.At<const std::byte*>(rows_part);
  if (with_keys) at.served_keys = arrays.At<uint64_t>(served_keys_part);
  return absl::OkStatus();
}

EmbeddingStep::EmbeddingStep(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

EmbeddingStep::~EmbeddingStep() {
  if (impl_ == nullptr) return;
  EmbeddingCollection::Impl* const collection = impl_->collection;
  collection->pipeline->Withdraw(impl_.get());
  collection->End(impl_.get(), /*updated=*/false);
  collection->free_steps.push_back(std::move(impl_));
}

int64_t EmbeddingStep::batch_size() const { return impl_->batch_size; }
int64_t EmbeddingStep::num_lookups() const { return impl_->num_lookups; }
int64_t EmbeddingStep::num_unique_keys() const {
  const bool known =
      impl_->use != Impl::Use::kPrefetched || impl_->collection->options.prefetch_depth == 0;
  return known ? std::ssize(impl_->wanted.keys) : 0;
}

// --- The pieces
// ------------------------------------------------------------------------------------------

absl::Status EmbeddingCollection::Impl::ValidateBatch(const JaggedBatch& batch) const {
  const auto num_features = static_cast<int64_t>(plan.features.size());
  if (batch.batch_size < 0 || batch.batch_size > options.max_batch_size) {
    return absl::InvalidArgumentError(absl::StrCat("batch_size ", batch.batch_size,
                                                   ": must lie in [0, ", options.max_batch_size,
                                                   "] (max_batch_size)"));
  }
  const int64_t bags = num_features * batch.batch_size;
  const auto num_lookups = static_cast<int64_t>(batch.values.size());
  if (static_cast<int64_t>(batch.offsets.size()) != bags + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("offsets: expected ", num_features, " features x ", batch.batch_size,
                     " samples + 1 = ", bags + 1, " entries, got ", batch.offsets.size()));
  }
  if (num_lookups > kMaxLookupsPerBatch) {
    return absl::InvalidArgumentError(absl::StrCat("values: ", num_lookups,
                                                   " lookups in one batch; at most ",
                                                   kMaxLookupsPerBatch, ": use a smaller batch"));
  }
  if (!batch.weights.empty() && batch.weights.size() != batch.values.size()) {
    return absl::InvalidArgumentError(absl::StrCat("weights: expected none or one for each of the ",
                                                   num_lookups, " values, got ",
                                                   batch.weights.size()));
  }
  if (batch.offsets.front() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("offsets[0] must be 0, is ", batch.offsets.front()));
  }
  for (int64_t i = 0; i < bags; ++i) {
    if (batch.offsets[i + 1] < batch.offsets[i]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "offsets fall at feature \"", plan.features[i / batch.batch_size].name, "\", sample ",
          i % batch.batch_size, ": ", batch.offsets[i], " then ", batch.offsets[i + 1]));
    }
  }
  if (batch.offsets.back() != num_lookups) {
    return absl::InvalidArgumentError(absl::StrCat("the last offset must be the number of values, ",
                                                   num_lookups, ", is ", batch.offsets.back()));
  }
  for (int64_t f = 0; f < num_features; ++f) {
    const PlannedFeature& feature = plan.features[f];
    if (feature.num_embeddings == 0) continue;
    const int64_t begin = batch.offsets[f * batch.batch_size];
    const int64_t end = batch.offsets[(f + 1) * batch.batch_size];
    for (int64_t j = begin; j < end; ++j) {
      if (batch.values[j] < static_cast<uint64_t>(feature.num_embeddings)) continue;
      const int64_t* const first = batch.offsets.data() + f * batch.batch_size;
      const int64_t sample = std::upper_bound(first, first + batch.batch_size, j) - first - 1;
      return absl::InvalidArgumentError(
          absl::StrCat("feature \"", feature.name, "\", sample ", sample, ": key ", batch.values[j],
                       " is not in [0, ", feature.num_embeddings,
                       ") (num_embeddings of its table; 0 there takes any key)"));
    }
  }
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Impl::EndJobUnlessOk(absl::Status status) {
  if (shuffle != nullptr && !status.ok())
    options.communicator->Abort(std::string(status.message()));
  return status;
}

absl::Status EmbeddingCollection::Impl::FindUnique(const ExecContext& unique_ctx,
                                                   const JaggedBatch& batch,
                                                   EmbeddingStep::Impl* step,
                                                   UniqueScratch* scratch) {
  const auto num_features = static_cast<int64_t>(plan.features.size());
  const auto num_tables = static_cast<int32_t>(plan.tables.size());
  const auto n = static_cast<int64_t>(batch.values.size());
  TableKeys& wanted = step->wanted;
  step->inverse.resize(n);
  wanted.counts.resize(n);
  wanted.table_offsets.resize(num_tables + 1);
  scratch->segments.clear();
  for (int64_t f = 0; f < num_features; ++f) {
    scratch->segments.push_back({batch.offsets[f * batch.batch_size],
                                 batch.offsets[(f + 1) * batch.batch_size],
                                 plan.features[f].table});
  }
  scratch->values.resize(n);
  const int64_t workspace_bytes = UniqueWorkspaceBytes(n);
  HOTROW_RETURN_IF_ERROR(EnsureBytes(workspace_bytes, &scratch->workspace));
  HOTROW_RETURN_IF_ERROR(Unique(unique_ctx, {.values = batch.values.data(),
                                             .num_values = n,
                                             .segments = scratch->segments,
                                             .num_tables = num_tables,
                                             .unique = scratch->values.data(),
                                             .table_offsets = wanted.table_offsets.data(),
                                             .inverse = step->inverse.data(),
                                             .counts = wanted.counts.data(),
                                             .workspace = scratch->workspace.data(),
                                             .workspace_bytes = workspace_bytes}));
  const int64_t num_unique = wanted.table_offsets[num_tables];
  wanted.counts.resize(num_unique);
  wanted.keys.resize(num_unique);
  for (int32_t t = 0; t < num_tables; ++t) {
    const auto table = static_cast<uint32_t>(plan.tables[t].config);
    for (int64_t u = wanted.table_offsets[t]; u < wanted.table_offsets[t + 1]; ++u) {
      wanted.keys[u] = {scratch->values[u], table};
    }
  }
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Impl::FindKeys(EmbeddingStep::Impl* step,
                                                 UniqueScratch* scratch) {
  TraceSpan span(ctx.trace, "unique");
  HOTROW_RETURN_IF_ERROR(FindUnique(
      pipeline_ctx, {step->batch_size, step->values, step->offsets, step->weights}, step, scratch));
  const int64_t num_unique = std::ssize(step->wanted.keys);
  step->row_offsets.resize(num_unique + 1);
  step->lookup_order.resize(step->num_lookups);
  return Partition(pipeline_ctx, {.part = step->inverse.data(),
                                  .num_items = step->num_lookups,
                                  .num_parts = num_unique,
                                  .offsets = step->row_offsets.data(),
                                  .order = step->lookup_order.data()});
}

std::span<const RowKey> EmbeddingCollection::Impl::KeysOf(const EmbeddingStep::Impl& step,
                                                          size_t width) const {
  const TableKeys& served = step.served();
  const int64_t begin = served.table_offsets[plan.classes[width].first_table];
  const int64_t end = served.table_offsets[plan.classes[width].last_table];
  return std::span(served.keys).subspan(begin, end - begin);
}

std::span<const int32_t> EmbeddingCollection::Impl::CountsOf(const EmbeddingStep::Impl& step,
                                                             size_t width) const {
  const TableKeys& served = step.served();
  const int64_t begin = served.table_offsets[plan.classes[width].first_table];
  const int64_t end = served.table_offsets[plan.classes[width].last_table];
  return std::span(served.counts).subspan(begin, end - begin);
}

std::span<std::byte*> EmbeddingCollection::Impl::RowsOf(EmbeddingStep::Impl* step,
                                                        size_t width) const {
  const TableKeys& served = step->served();
  const int64_t begin = served.table_offsets[plan.classes[width].first_table];
  const int64_t end = served.table_offsets[plan.classes[width].last_table];
  return std::span(step->rows).subspan(begin, end - begin);
}

absl::Status EmbeddingCollection::Impl::PlaceStep(EmbeddingStep::Impl* step) {
  const absl::Status status = [&]() -> absl::Status {
    if (shuffle == nullptr) {
      HOTROW_RETURN_IF_ERROR(FindKeys(step, &pipeline_unique));
    } else {
      HOTROW_RETURN_IF_ERROR(id_lane->Wait(step->id_ticket));
    }
    return PlaceRows(step);
  }();
  if (!status.ok()) {
    GiveUp(step);
    pipeline->NotifyRoom();
  }
  return status;
}

void EmbeddingCollection::Impl::GiveUp(EmbeddingStep::Impl* step) {
  for (size_t c = 0; c < tiers.size(); ++c) tiers[c]->GiveUp(&step->class_rows[c]);
}

// Rows that this step shares with the one before may still be on their way for that one: they are
// placed, so they count as hits, and are there before this step's own are read.
absl::Status EmbeddingCollection::Impl::PlaceRows(EmbeddingStep::Impl* step) {
  bool waited = false;
  bool from_scratch = false;
  for (;;) {
    if (pipeline->cancelled(step)) return absl::CancelledError("the step was cancelled");
    const uint64_t epoch = pipeline->room_epoch();
    const bool alone = pipeline->RunsAlone(step);
    TieredTable::Placed placed = TieredTable::Placed::kAll;
    {
      TraceSpan span(ctx.trace, "place");
      for (size_t c = 0; c < tiers.size() && placed == TieredTable::Placed::kAll; ++c) {
        HOTROW_ASSIGN_OR_RETURN(placed, tiers[c]->Place(pipeline_ctx, KeysOf(*step, c),
                                                        CountsOf(*step, c), &step->class_rows[c]));
      }
    }
    if (placed == TieredTable::Placed::kAll) break;
    // The rows that found room come while this step waits for the others'.
    HOTROW_ASSIGN_OR_RETURN(const bool kept, pipeline->Join(step, [&] { GiveUp(step); }));
    if (!kept) continue;
    HOTROW_RETURN_IF_ERROR(Fetch(step));
    if (alone && placed == TieredTable::Placed::kNoRoom) {
      // What was placed beside the rows of an older step may stand in the way of the rest.
      if (from_scratch) return NoRoomError(*step);
      from_scratch = true;
      GiveUp(step);
      continue;
    }
    if (!waited) prefetch_waits.fetch_add(1, std::memory_order_relaxed);
    waited = true;
    TraceSpan span(ctx.trace, "wait_for_room");
    pipeline->WaitForRoom(step, epoch);
  }
  for (const std::unique_ptr<TieredTable>& tier : tiers) tier->FinishPlacing(pipeline_ctx);
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Impl::FillStep(EmbeddingStep::Impl* step) {
  TraceSpan span(ctx.trace, "fill");
  HOTROW_RETURN_IF_ERROR(Fetch(step));
  for (StepRows& rows : step->class_rows) rows.resident = true;
  if (!staged()) return absl::OkStatus();
  // With a cache a row stays where it is until the step ends.
  step->rows.resize(step->served().keys.size());
  for (size_t w = 0; w < tiers.size(); ++w) {
    HOTROW_RETURN_IF_ERROR(tiers[w]->ResolveForRead(
        pipeline_ctx, KeysOf(*step, w), CountsOf(*step, w), &step->class_rows[w], RowsOf(step, w)));
  }
  TraceSpan upload(ctx.trace, "upload");
  return step->PlaceArrays(/*grouped=*/true);
}

// One call of the store for all tables: the more it knows, the better it can sort and merge, and
// its queue of reads drains only once. With caches on a GPU there are more calls when staging is
// too small, and none where the GPU reads the rows itself.
absl::Status EmbeddingCollection::Impl::Fetch(EmbeddingStep::Impl* step) {
  if (tiers[0]->fills_in_place()) {
    TraceSpan span(ctx.trace, "read_rows");
    for (size_t c = 0; c < tiers.size(); ++c) {
      HOTROW_RETURN_IF_ERROR(
          tiers[c]->FillInPlace(pipeline_ctx, CountsOf(*step, c), &step->class_rows[c]));
    }
    return absl::OkStatus();
  }
  for (;;) {
    fetch_keys.clear();
    fetch_rows.clear();
    fetch_sizes.clear();
    for (size_t c = 0; c < tiers.size(); ++c) {
      HOTROW_ASSIGN_OR_RETURN(const int64_t n,
                              tiers[c]->NextMisses(&step->class_rows[c], &fetch_keys, &fetch_rows));
      fetch_sizes.push_back(n);
    }
    if (fetch_keys.empty()) return absl::OkStatus();
    fetch_found.assign(fetch_keys.size(), 0);
    {
      TraceSpan span(ctx.trace, "read_rows");
      HOTROW_RETURN_IF_ERROR(internal::FindInStore(pipeline_ctx, below, store.host != nullptr,
                                                   fetch_keys, fetch_rows, fetch_found));
    }
    size_t first = 0;
    for (size_t c = 0; c < tiers.size(); ++c) {
      const auto n = static_cast<size_t>(fetch_sizes[c]);
      HOTROW_RETURN_IF_ERROR(tiers[c]->Fill(pipeline_ctx, CountsOf(*step, c), &step->class_rows[c],
                                            std::span(fetch_found).subspan(first, n)));
      first += n;
    }
  }
}

// The step's job does not run and will not.
void EmbeddingCollection::Impl::End(EmbeddingStep::Impl* step, bool updated) {
  // Its work reads and writes the step; other ranks wait for our part of it. An error of it is one
  // of the communicator, which says it again in the next call.
  if (step->id_ticket >= 0) id_lane->Wait(step->id_ticket).IgnoreError();
  // Only this step can have begun anything: it was the oldest.
  const bool begun = step->use == EmbeddingStep::Impl::Use::kBegun ||
                     step->use == EmbeddingStep::Impl::Use::kUpdateBegun;
  if (shuffle != nullptr && begun) shuffle->Drop();
  for (size_t c = 0; c < step->class_rows.size(); ++c)
    tiers[c]->Release(ctx, &step->class_rows[c], updated);
  // An error is one of the device, and the next call that enqueues says it again.
  step->upload.RunAfter(ctx.stream).IgnoreError();
  const auto at = std::find(outstanding.begin(), outstanding.end(), step);
  if (at == outstanding.end()) return;
  outstanding.erase(at);
  pipeline->Forget(step);
}

absl::Status EmbeddingCollection::Impl::NoRoomError(const EmbeddingStep::Impl& step) const {
  int64_t need = 0;
  for (size_t c = 0; c < plan.classes.size(); ++c) {
    need += TieredTable::MinCacheBytes(static_cast<int64_t>(KeysOf(step, c).size()),
                                       plan.classes[c].row_bytes, place);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(staged() ? "device cache" : "cache", " budget of ",
                   internal::CacheBudget(options, place), " bytes: one batch of ", step.batch_size,
                   shuffle == nullptr ? " samples has " : " samples and those of other ranks have ",
                   step.served().keys.size(), " distinct rows", shuffle == nullptr ? "" : " here",
                   ", which need ", need, " bytes; raise ", internal::CacheBudgetName(place),
                   " or lower the batch size"));
}

absl::Status EmbeddingCollection::Impl::CheckPointers(bool pooled, size_t unpooled,
                                                      const char* what) const {
  if (plan.pooled_dim > 0 && !pooled) {
    return absl::InvalidArgumentError(absl::StrCat(what, ".pooled is null"));
  }
  if (unpooled != static_cast<size_t>(plan.num_unpooled)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ".unpooled: expected one pointer for each of the ", plan.num_unpooled,
                     " unpooled features, got ", unpooled));
  }
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Impl::Pool(const EmbeddingStep::Impl& step,
                                             const EmbeddingOutput& output) {
  TraceSpan span(ctx.trace, "pool");
  const int64_t stride = output.pooled_stride == 0 ? plan.pooled_dim : output.pooled_stride;
  std::vector<JaggedFeature> features;
  for (const PlannedFeature& feature : plan.features) {
    const bool pooled = feature.pooling != Pooling::kNone;
    features.push_back({.dim = feature.dim,
                        .pooling = feature.pooling,
                        .data = pooled ? output.pooled + feature.pooled_offset
                                       : output.unpooled[feature.unpooled_index],
                        .stride = pooled ? stride : feature.dim,
                        // The shuffle hands out floats.
                        .precision = shuffle == nullptr
                                         ? plan.tables[feature.table].layout.precision
                                         : WeightsPrecision::kFp32});
  }
  return PooledLookup(ctx, {.features = features,
                            .batch_size = step.batch_size,
                            .offsets = step.at.offsets,
                            .weights = step.at.weights,
                            .inverse = step.at.inverse,
                            .rows = step.at.value_rows});
}

// --- The collection
// --------------------------------------------------------------------------------------

EmbeddingCollection::EmbeddingCollection(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EmbeddingCollection::~EmbeddingCollection() {
  // Steps point back here.
  HOTROW_CHECK(impl_->outstanding.empty());
}

void EmbeddingCollection::Impl::Stop() {
  // The snapshot first: the pipeline may be waiting for it.
  stopping.store(true);
  JoinSnapshot();
  if (pipeline != nullptr) pipeline->Stop();
  // What is enqueued reads arrays that go with us.
  for (const std::unique_ptr<TieredTable>& tier : tiers) tier->WaitForDevice();
  WaitForStream(ctx).IgnoreError();
}

absl::StatusOr<int64_t> EmbeddingCollection::MinCacheBytes(
    const EmbeddingCollectionOptions& options, Device device) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  return internal::MakePlan(options, internal::PlaceOfCaches(options, device)).min_cache_bytes;
}

int64_t EmbeddingCollection::MinFeedbackBytes(const EmbeddingCollectionOptions& options) {
  return GradientResiduals::MinBytes(internal::ResidualTables(options));
}

// Everything of this rank alone.
absl::Status EmbeddingCollection::Impl::Open() {
  const int64_t cache_budget = internal::CacheBudget(options, place);
  if (cache_budget > 0) {
    if (cache_budget < plan.min_cache_bytes) {
      const char* const name = internal::CacheBudgetName(place);
      return absl::ResourceExhaustedError(
          absl::StrCat(name, ": the cache budget is ", cache_budget, " bytes, but one step of ",
                       options.max_batch_size, " samples needs at least ", plan.min_cache_bytes,
                       " bytes; raise ", name, " or lower the batch size"));
    }
    internal::SplitCacheBytes(options, place, &plan);
  }
  std::vector<StoreTable> store_tables;
  for (const PlannedTable& table : plan.tables) {
    store_tables.push_back({static_cast<uint32_t>(table.config), table.layout.row_bytes});
  }
  if (shuffle != nullptr && options.exchange_feedback_bytes > 0) {
    HOTROW_ASSIGN_OR_RETURN(residuals, GradientResiduals::Create(internal::ResidualTables(options),
                                                                 options.exchange_feedback_bytes));
    shuffle->KeepResiduals(residuals.get());
  }
  HOTROW_ASSIGN_OR_RETURN(store, internal::OpenCollectionStore(options, store_tables, ctx.device));
  below = store.store.get();
  if (staged() && options.cache_bytes > 0) {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<CachedStoreWidth> widths,
                            internal::SplitHostCacheBytes(options, plan));
    HOTROW_ASSIGN_OR_RETURN(host_cache, CachedStore::Create(below, widths, options.cache_policy));
    below = host_cache.get();
  }
  if (staged()) {
    HOTROW_ASSIGN_OR_RETURN(device_initialised_rows,
                            DeviceMemory<int64_t>::Create(ctx.device, 1, ctx.stream));
    constexpr int64_t kNone = 0;
    HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx, device_initialised_rows.data(), &kNone, sizeof(kNone)));
  }
  steps = static_cast<uint32_t>(options.open_steps);
  for (const WidthClass& width : plan.classes) {
    TieredTableOptions tier_options;
    tier_options.seed = options.seed;
    tier_options.place = place;
    tier_options.cache_bytes = cache_budget > 0 ? width.cache_bytes : 0;
    tier_options.cache_policy = options.cache_policy;
    for (int32_t t = width.first_table; t < width.last_table; ++t) {
      const PlannedTable& table = plan.tables[t];
      const TableConfig& config = options.tables[table.config];
      tier_options.tables.push_back({static_cast<uint32_t>(table.config), table.layout,
                                     config.initializer, config.optimizer});
    }
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<TieredTable> tier,
                            TieredTable::Create(tier_options, below, store.host));
    tiers.push_back(std::move(tier));
  }
  return absl::OkStatus();
}

// With several ranks.
absl::Status EmbeddingCollection::Impl::Connect() {
  Communicator& family = *options.communicator;
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> ids, family.Duplicate());
  HOTROW_RETURN_IF_ERROR(CompareRanks(*ids, internal::RankOptions(options)));
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> rows, family.Duplicate());
  internal::RowShuffleOptions shuffle_options = {.seed = options.seed,
                                                 .forward = options.exchange_forward,
                                                 .backward = options.exchange_backward,
                                                 .rounding = options.exchange_rounding,
                                                 .feedback_bytes = options.exchange_feedback_bytes};
  for (const PlannedTable& table : plan.tables) {
    shuffle_options.tables.push_back(
        {static_cast<uint32_t>(table.config), table.layout.dim, table.layout.precision});
  }
  HOTROW_ASSIGN_OR_RETURN(shuffle, RowShuffle::Create(shuffle_options, std::move(rows)));
  id_lane = std::make_unique<CommLane>(std::move(ids));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<EmbeddingCollection>> EmbeddingCollection::Create(
    const EmbeddingCollectionOptions& options, const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  HOTROW_RETURN_IF_ERROR(internal::CheckDevice(options, ctx));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->ctx = ctx;
  impl->place = internal::PlaceOfCaches(options, ctx.device);
  impl->plan = internal::MakePlan(options, impl->place);
  for (const PlannedFeature& feature : impl->plan.features)
    impl->feature_names.push_back(feature.name);
  if (options.communicator == nullptr || options.communicator->world_size() == 1) {
    HOTROW_RETURN_IF_ERROR(impl->Open());
  } else {
    // A rank may copy rows for long while others have none to copy.
    HOTROW_RETURN_IF_ERROR(impl->Connect());
    HOTROW_RETURN_IF_ERROR(
        impl->shuffle->RunTogether([&impl]() -> absl::Status { return impl->Open(); }));
  }
  const bool threaded = options.prefetch_depth > 0;
  // The pipeline's loops are the host's; what it enqueues goes to streams of the tiers' own.
  impl->pipeline_ctx = ctx.OnHost();
  // Where there are few processors the pool belongs to the caller's computing: the pipeline's
  // thread takes its share of one when somebody waits. Where there are many, it alone would not
  // keep up.
  if (threaded && ctx.pool != nullptr && ctx.pool->num_threads() < kPipelinePoolThreads) {
    impl->pipeline_ctx.pool = nullptr;
  }
  const auto step_of = [](StepPipeline::Job* job) {
    return static_cast<EmbeddingStep::Impl*>(job);
  };
  impl->pipeline = std::make_unique<StepPipeline>(
      threaded,
      StepPipeline::Stages{
          .first = [c = impl.get(),
                    step_of](StepPipeline::Job* job) { return c->PlaceStep(step_of(job)); },
          .second = [c = impl.get(),
                     step_of](StepPipeline::Job* job) { return c->FillStep(step_of(job)); },
          .undo = [c = impl.get(), step_of](StepPipeline::Job* job) { c->GiveUp(step_of(job)); },
      });
  HOTROW_RETURN_IF_ERROR(impl->EndJobUnlessOk(impl->pipeline->status()));
  return std::unique_ptr<EmbeddingCollection>(new EmbeddingCollection(std::move(impl)));
}

int32_t EmbeddingCollection::num_features() const {
  return static_cast<int32_t>(impl_->plan.features.size());
}
const std::vector<std::string>& EmbeddingCollection::feature_names() const {
  return impl_->feature_names;
}
int64_t EmbeddingCollection::pooled_dim() const { return impl_->plan.pooled_dim; }
int64_t EmbeddingCollection::steps() const { return impl_->steps; }

absl::StatusOr<std::unique_ptr<EmbeddingStep>> EmbeddingCollection::Prefetch(
    const JaggedBatch& batch) {
  Impl& c = *impl_;
  if (static_cast<int32_t>(c.outstanding.size()) > c.options.prefetch_depth) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Prefetch: ", c.outstanding.size(), " steps are outstanding, prefetch_depth is ",
        c.options.prefetch_depth, "; update the oldest first"));
  }
  HOTROW_RETURN_IF_ERROR(c.ValidateBatch(batch));
  std::unique_ptr<EmbeddingStep::Impl> impl;
  if (c.free_steps.empty()) {
    impl = std::make_unique<EmbeddingStep::Impl>();
    impl->collection = &c;
    HOTROW_ASSIGN_OR_RETURN(impl->upload, DeviceStream::Create(c.ctx.device));
  } else {
    impl = std::move(c.free_steps.back());
    c.free_steps.pop_back();
  }
  impl->use = EmbeddingStep::Impl::Use::kPrefetched;
  impl->batch_size = batch.batch_size;
  impl->num_lookups = static_cast<int64_t>(batch.values.size());
  impl->id_ticket = -1;
  impl->values.assign(batch.values.begin(), batch.values.end());
  impl->offsets.assign(batch.offsets.begin(), batch.offsets.end());
  impl->weights.assign(batch.weights.begin(), batch.weights.end());
  impl->class_rows.resize(c.plan.classes.size());
  // From here on the step object undoes everything if we fail.
  std::unique_ptr<EmbeddingStep> step(new EmbeddingStep(std::move(impl)));
  EmbeddingStep::Impl* const job = step->impl_.get();
  c.outstanding.push_back(job);
  if (c.shuffle != nullptr) {
    job->id_ticket = c.id_lane->Start([&c, job](Communicator& channel) {
      return c.EndJobUnlessOk([&]() -> absl::Status {
        HOTROW_RETURN_IF_ERROR(c.FindKeys(job, &c.lane_unique));
        TraceSpan span(c.ctx.trace, "id_shuffle");
        return c.shuffle->ExchangeKeys(c.pipeline_ctx, channel, job->wanted, /*evaluation=*/false,
                                       &c.lane_ids, &job->shuffled);
      }());
    });
  }
  c.pipeline->Submit(job);
  if (c.options.prefetch_depth == 0) {
    int64_t waited_ns = 0;
    HOTROW_RETURN_IF_ERROR(c.pipeline->Wait(step->impl_.get(), &waited_ns));
  }
  return step;
}

// The oldest step: its rows are resident, or come now.
absl::Status EmbeddingCollection::Impl::BeginLookup(EmbeddingStep::Impl* step) {
  int64_t waited_ns = 0;
  const int64_t begin_ns = NowNanos();
  const absl::Status resident = pipeline->Wait(step, &waited_ns);
  if (waited_ns > 0) {
    lookup_waits += 1;
    lookup_wait_ns += waited_ns;
    if (ctx.trace != nullptr) ctx.trace->Record("wait", begin_ns, begin_ns + waited_ns);
  }
  if (!resident.ok()) {
    step->use = EmbeddingStep::Impl::Use::kFailed;
    return resident;
  }
  if (staged()) {
    step->use = EmbeddingStep::Impl::Use::kBegun;
    return absl::OkStatus();
  }
  TraceSpan span(ctx.trace, "gather");
  step->rows.resize(step->served().keys.size());
  for (size_t w = 0; w < tiers.size(); ++w) {
    HOTROW_RETURN_IF_ERROR(tiers[w]->ResolveForRead(ctx, KeysOf(*step, w), CountsOf(*step, w),
                                                    &step->class_rows[w], RowsOf(step, w)));
  }
  HOTROW_RETURN_IF_ERROR(step->PlaceArrays(/*grouped=*/true));
  if (shuffle != nullptr) {
    HOTROW_RETURN_IF_ERROR(
        shuffle->StartRows(ctx, step->shuffled, step->rows, steps + 1, /*evaluation=*/false));
  }
  step->use = EmbeddingStep::Impl::Use::kBegun;
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Impl::Lookup(EmbeddingStep::Impl* step,
                                               const EmbeddingOutput& output) {
  if (shuffle != nullptr) {
    TraceSpan span(ctx.trace, "embedding_shuffle");
    step->value_rows.resize(step->wanted.keys.size());
    HOTROW_RETURN_IF_ERROR(shuffle->FinishRows(ctx, step->shuffled, step->rows, step->value_rows));
    step->at.value_rows = step->value_rows.data();
  }
  HOTROW_RETURN_IF_ERROR(Pool(*step, output));
  step->use = EmbeddingStep::Impl::Use::kLookedUp;
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::BeginLookup(EmbeddingStep& step) {
  Impl& c = *impl_;
  EmbeddingStep::Impl& s = *step.impl_;
  if (s.collection != &c || c.outstanding.empty() || c.outstanding.front() != &s) {
    return absl::FailedPreconditionError(
        "Lookup: this is not the oldest outstanding step; steps are looked up and updated in the "
        "order of their Prefetch");
  }
  if (s.use == EmbeddingStep::Impl::Use::kBegun) return absl::OkStatus();
  // Its gradients may be on their way to other ranks, in the memory that rows come to.
  if (s.use == EmbeddingStep::Impl::Use::kUpdateBegun) {
    return absl::FailedPreconditionError(
        "Lookup: BeginUpdate was called for this step; its Update is all that may follow");
  }
  return c.EndJobUnlessOk(c.BeginLookup(&s));
}

absl::Status EmbeddingCollection::Lookup(EmbeddingStep& step, const EmbeddingOutput& output) {
  Impl& c = *impl_;
  HOTROW_RETURN_IF_ERROR(
      c.CheckPointers(output.pooled != nullptr, output.unpooled.size(), "EmbeddingOutput"));
  HOTROW_RETURN_IF_ERROR(BeginLookup(step));
  return c.EndJobUnlessOk(c.Lookup(step.impl_.get(), output));
}

absl::Status EmbeddingCollection::Impl::PlaceGradients(const TableKeys& keys,
                                                       DeviceMemory<float>* floats,
                                                       std::vector<float*>* rows) const {
  const auto num_tables = static_cast<int32_t>(plan.tables.size());
  int64_t total = 0;
  for (int32_t t = 0; t < num_tables; ++t) {
    total += (keys.table_offsets[t + 1] - keys.table_offsets[t]) * plan.tables[t].layout.dim;
  }
  HOTROW_RETURN_IF_ERROR(EnsureSize(ctx, total, floats));
  rows->resize(keys.keys.size());
  float* next = floats->data();
  for (int32_t t = 0; t < num_tables; ++t) {
    for (int64_t u = keys.table_offsets[t]; u < keys.table_offsets[t + 1]; ++u) {
      (*rows)[u] = next;
      next += plan.tables[t].layout.dim;
    }
  }
  return absl::OkStatus();
}

// One gradient for each wanted key, and off with those that others keep.
absl::Status EmbeddingCollection::Impl::BeginUpdate(EmbeddingStep::Impl* step,
                                                    const EmbeddingGradient& gradient) {
  EmbeddingStep::Impl& s = *step;
  HOTROW_RETURN_IF_ERROR(PlaceGradients(s.wanted, &gradients, &gradient_rows));
  s.gradient_arrays.Clear();
  const size_t part = s.gradient_arrays.Add(gradient_rows);
  HOTROW_RETURN_IF_ERROR(s.gradient_arrays.Upload(staged(), &s.upload));
  s.at.gradients = s.gradient_arrays.At<float*>(part);
  {
    TraceSpan span(ctx.trace, "segment_sum");
    const int64_t stride = gradient.pooled_stride == 0 ? plan.pooled_dim : gradient.pooled_stride;
    std::vector<JaggedFeature> features;
    int32_t widest_dim = 0;
    for (const PlannedFeature& feature : plan.features) {
      widest_dim = std::max(widest_dim, feature.dim);
      const bool pooled = feature.pooling != Pooling::kNone;
      // JaggedFeature serves both directions; here its data is only read.
      float* const data = const_cast<float*>(pooled ? gradient.pooled + feature.pooled_offset
                                                    : gradient.unpooled[feature.unpooled_index]);
      features.push_back({.dim = feature.dim,
                          .pooling = feature.pooling,
                          .data = data,
                          .stride = pooled ? stride : feature.dim});
    }
    const int64_t workspace_bytes =
        GradientSegmentSumWorkspaceBytes(s.num_lookups, ctx.device, widest_dim);
    HOTROW_RETURN_IF_ERROR(EnsureSize(ctx, workspace_bytes, &segment_workspace));
    HOTROW_RETURN_IF_ERROR(GradientSegmentSum(ctx, {.features = features,
                                                    .batch_size = s.batch_size,
                                                    .offsets = s.at.offsets,
                                                    .weights = s.at.weights,
                                                    .row_offsets = s.at.row_offsets,
                                                    .lookup_order = s.at.lookup_order,
                                                    .num_rows = std::ssize(s.wanted.keys),
                                                    .gradients = s.at.gradients,
                                                    .num_lookups = s.num_lookups,
                                                    .workspace = segment_workspace.data(),
                                                    .workspace_bytes = workspace_bytes}));
  }
  if (shuffle != nullptr) {
    HOTROW_RETURN_IF_ERROR(
        shuffle->StartGradients(ctx, s.wanted, s.shuffled, gradient_rows, steps + 1));
  }
  step->use = EmbeddingStep::Impl::Use::kUpdateBegun;
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::BeginUpdate(EmbeddingStep& step,
                                              const EmbeddingGradient& gradient) {
  Impl& c = *impl_;
  EmbeddingStep::Impl& s = *step.impl_;
  if (s.collection != &c || s.use != EmbeddingStep::Impl::Use::kLookedUp) {
    return absl::FailedPreconditionError("Update: the step has not been looked up");
  }
  if (c.steps == UINT32_MAX) {
    return absl::ResourceExhaustedError("Update: a table counts at most 2^32 - 1 steps");
  }
  HOTROW_RETURN_IF_ERROR(
      c.CheckPointers(gradient.pooled != nullptr, gradient.unpooled.size(), "EmbeddingGradient"));
  return c.EndJobUnlessOk(c.BeginUpdate(&s, gradient));
}

absl::Status EmbeddingCollection::Update(std::unique_ptr<EmbeddingStep> step,
                                         const EmbeddingGradient& gradient,
                                         float learning_rate_factor) {
  Impl& c = *impl_;
  if (step == nullptr) return absl::InvalidArgumentError("Update: the step is null");
  EmbeddingStep::Impl& s = *step->impl_;
  if (s.collection != &c || s.use != EmbeddingStep::Impl::Use::kUpdateBegun) {
    HOTROW_RETURN_IF_ERROR(BeginUpdate(*step, gradient));
  }
  return c.EndJobUnlessOk(c.Update(&s, learning_rate_factor));
}

absl::Status EmbeddingCollection::Impl::Update(EmbeddingStep::Impl* step,
                                               float learning_rate_factor) {
  EmbeddingStep::Impl& s = *step;
  float* const* sums = s.at.gradients;
  if (shuffle != nullptr) {
    TraceSpan span(ctx.trace, "gradient_shuffle");
    HOTROW_RETURN_IF_ERROR(PlaceGradients(s.shuffled.served, &gradient_sums, &sum_rows));
    HOTROW_RETURN_IF_ERROR(shuffle->FinishGradients(ctx, s.shuffled, gradient_rows, sum_rows));
    sums = sum_rows.data();
  }
  for (size_t w = 0; w < tiers.size(); ++w) {
    const absl::Status ready =
        tiers[w]->ResolveForUpdate(KeysOf(s, w), &s.class_rows[w], RowsOf(&s, w));
    if (ready.ok()) continue;
    for (size_t d = 0; d < w; ++d)
      HOTROW_RETURN_IF_ERROR(tiers[d]->Withdraw(KeysOf(s, d), s.class_rows[d]));
    return ready;
  }

  TraceSpan span(ctx.trace, "sparse_update");
  for (size_t w = 0; w < tiers.size(); ++w)
    HOTROW_RETURN_IF_ERROR(tiers[w]->PrepareForUpdate(ctx, s.class_rows[w]));
  const uint32_t now = steps + 1;
  const TableKeys& served = s.served();
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const PlannedTable& table = plan.tables[t];
    const int64_t begin = served.table_offsets[t];
    const int64_t n = served.table_offsets[t + 1] - begin;
    // A row whose last step is 0 has never been updated: it joins its table with this update.
    HOTROW_RETURN_IF_ERROR(SparseUpdate(
        ctx, {.config = options.tables[table.config].optimizer,
              .layout = &table.layout,
              .num_rows = n,
              .rows = s.at.rows + begin,
              .gradients = sums + begin,
              .learning_rate_factor = learning_rate_factor,
              .step = now,
              .seed = options.seed,
              .table = static_cast<uint32_t>(table.config),
              .keys = s.at.served_keys == nullptr ? nullptr : s.at.served_keys + begin,
              .new_rows = staged() ? device_initialised_rows.data() : &initialised_rows}));
  }
  steps = now;
  unique_keys += std::ssize(served.keys);
  for (size_t t = 0; options.on_update != nullptr && t < plan.tables.size(); ++t) {
    const int64_t begin = served.table_offsets[t];
    const int64_t n = served.table_offsets[t + 1] - begin;
    options.on_update(static_cast<uint32_t>(plan.tables[t].config),
                      std::span(served.keys).subspan(begin, n),
                      std::span(served.counts).subspan(begin, n));
  }
  End(&s, /*updated=*/true);
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Impl::EvaluateSlice(const JaggedBatch& batch,
                                                      const EmbeddingOutput& output) {
  EmbeddingStep::Impl& s = *evaluation_step;
  // What was enqueued for the slice before may still read its arrays.
  HOTROW_RETURN_IF_ERROR(s.upload.RunAfter(ctx.stream));
  s.batch_size = batch.batch_size;
  s.num_lookups = static_cast<int64_t>(batch.values.size());
  s.offsets.assign(batch.offsets.begin(), batch.offsets.end());
  s.weights.assign(batch.weights.begin(), batch.weights.end());
  HOTROW_RETURN_IF_ERROR(FindUnique(ctx.OnHost(), batch, &s, &unique));
  if (shuffle != nullptr) {
    HOTROW_RETURN_IF_ERROR(shuffle->ExchangeKeysInTurn(ctx, s.wanted, /*evaluation=*/true,
                                                       &evaluation_ids, &s.shuffled));
  }
  const int64_t served_rows = std::ssize(s.served().keys);
  std::byte* staging = evaluation_staging.data();
  s.rows.resize(served_rows);
  for (size_t w = 0; w < tiers.size(); ++w) {
    const std::span<const RowKey> keys = KeysOf(s, w);
    HOTROW_RETURN_IF_ERROR(tiers[w]->Read(ctx, keys, staging, RowsOf(&s, w)));
    staging += static_cast<int64_t>(keys.size()) * tiers[w]->row_bytes();
  }
  evaluation_lookups += s.num_lookups;
  evaluation_unique_keys += served_rows;
  HOTROW_RETURN_IF_ERROR(s.PlaceArrays(/*grouped=*/false));
  if (shuffle == nullptr) return Pool(s, output);
  HOTROW_RETURN_IF_ERROR(
      shuffle->StartRows(ctx, s.shuffled, s.rows, steps + 1, /*evaluation=*/true));
  s.value_rows.resize(s.wanted.keys.size());
  HOTROW_RETURN_IF_ERROR(shuffle->FinishRows(ctx, s.shuffled, s.rows, s.value_rows));
  s.at.value_rows = s.value_rows.data();
  return Pool(s, output);
}

// Runs of samples whose rows fit into the staging area: where each begins, and the end of the last.
absl::StatusOr<std::vector<int64_t>> EmbeddingCollection::Impl::CutForStaging(
    const JaggedBatch& batch) const {
  // Of several ranks each may be asked for the rows of all of them.
  const int64_t ranks = shuffle == nullptr ? 1 : shuffle->world_size();
  const int64_t slice_lookups =
      options.evaluation_staging_bytes / plan.classes.back().row_bytes / ranks;
  const auto num_features = static_cast<int64_t>(plan.features.size());
  if (std::ssize(batch.values) <= slice_lookups) return std::vector<int64_t>{0, batch.batch_size};
  std::vector<int64_t> cuts = {0};
  int64_t lookups = 0;
  for (int64_t b = 0; b < batch.batch_size; ++b) {
    int64_t n = 0;
    for (int64_t f = 0; f < num_features; ++f) {
      const int64_t bag = f * batch.batch_size + b;
      n += batch.offsets[bag + 1] - batch.offsets[bag];
    }
    if (n > slice_lookups) {
      return absl::ResourceExhaustedError(
          absl::StrCat("evaluation_staging_bytes: sample ", b, " alone has ", n,
                       " lookups, which need ", n * plan.classes.back().row_bytes * ranks,
                       " bytes; the budget is ", options.evaluation_staging_bytes));
    }
    if (lookups + n > slice_lookups) {
      cuts.push_back(b);
      lookups = 0;
    }
    lookups += n;
  }
  cuts.push_back(batch.batch_size);
  return cuts;
}

absl::Status EmbeddingCollection::Impl::Evaluate(const JaggedBatch& batch,
                                                 const EmbeddingOutput& output) {
  // Rows that are not pinned must stay where they are until they have been read.
  const StepPipeline::Pause pause(pipeline.get());
  if (evaluation_step == nullptr) {
    HOTROW_ASSIGN_OR_RETURN(evaluation_staging, DeviceMemory<std::byte>::Create(
                                                    ctx.device, options.evaluation_staging_bytes,
                                                    ctx.stream, HugePages::kTry));
    evaluation_step = std::make_unique<EmbeddingStep::Impl>();
    evaluation_step->collection = this;
    HOTROW_ASSIGN_OR_RETURN(evaluation_step->upload, DeviceStream::Create(ctx.device));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> cuts, CutForStaging(batch));
  const auto own_slices = static_cast<int64_t>(cuts.size()) - 1;
  int64_t slices = own_slices;
  if (shuffle != nullptr) {
    // All ranks serve each other in every slice, also when their own batch has ended.
    std::vector<int64_t> of_ranks(shuffle->world_size());
    HOTROW_RETURN_IF_ERROR(shuffle->AllGather({&own_slices, 1}, of_ranks));
    slices = *std::max_element(of_ranks.begin(), of_ranks.end());
  }
  if (slices == 1) return EvaluateSlice(batch, output);

  const auto num_features = static_cast<int64_t>(plan.features.size());
  std::vector<uint64_t> values;
  std::vector<int64_t> offsets;
  std::vector<float> weights;
  for (int64_t slice = 0; slice < slices; ++slice) {
    const int64_t begin = slice < own_slices ? cuts[slice] : batch.batch_size;
    const int64_t end = slice < own_slices ? cuts[slice + 1] : batch.batch_size;
    values.clear();
    weights.clear();
    offsets.assign(1, 0);
    EmbeddingOutput part = output;
    const int64_t stride = output.pooled_stride == 0 ? plan.pooled_dim : output.pooled_stride;
    if (output.pooled != nullptr) part.pooled = output.pooled + begin * stride;
    part.pooled_stride = stride;
    for (int64_t f = 0; f < num_features; ++f) {
      const PlannedFeature& feature = plan.features[f];
      const int64_t* const bags = batch.offsets.data() + f * batch.batch_size;
      if (feature.unpooled_index >= 0) {
        part.unpooled[feature.unpooled_index] =
            output.unpooled[feature.unpooled_index] + (bags[begin] - bags[0]) * feature.dim;
      }
      const auto base = static_cast<int64_t>(values.size());
      values.insert(values.end(), batch.values.begin() + bags[begin],
                    batch.values.begin() + bags[end]);
      if (!batch.weights.empty()) {
        weights.insert(weights.end(), batch.weights.begin() + bags[begin],
                       batch.weights.begin() + bags[end]);
      }
      for (int64_t b = begin; b < end; ++b) offsets.push_back(base + bags[b + 1] - bags[begin]);
    }
    HOTROW_RETURN_IF_ERROR(EvaluateSlice({end - begin, values, offsets, weights}, part));
  }
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Evaluate(const JaggedBatch& batch,
                                           const EmbeddingOutput& output) {
  Impl& c = *impl_;
  HOTROW_RETURN_IF_ERROR(c.ValidateBatch(batch));
  HOTROW_RETURN_IF_ERROR(
      c.CheckPointers(output.pooled != nullptr, output.unpooled.size(), "EmbeddingOutput"));
  if (c.shuffle != nullptr && c.shuffle->busy()) {
    return absl::FailedPreconditionError(
        "Evaluate: a BeginLookup or BeginUpdate waits for its Lookup or Update");
  }
  return c.EndJobUnlessOk(c.Evaluate(batch, output));
}

absl::Status EmbeddingCollection::Impl::FlushTiers() {
  for (const std::unique_ptr<TieredTable>& tier : tiers) HOTROW_RETURN_IF_ERROR(tier->Flush());
  return store.store->Flush();
}

absl::Status EmbeddingCollection::Flush() {
  impl_->JoinSnapshot();
  const StepPipeline::Pause pause(impl_->pipeline.get());
  return impl_->FlushTiers();
}

// --- Snapshots
// ---------------------------------------------------------------------------------------------------

void EmbeddingCollection::Impl::JoinSnapshot() {
  if (snapshot_thread.joinable()) snapshot_thread.join();
  if (tidy_thread.joinable()) tidy_thread.join();
}

absl::Status EmbeddingCollection::Impl::CheckSnapshotName(SnapshotId id) const {
  if (id == 0)
    return absl::FailedPreconditionError("BeginSnapshot: a snapshot's name must not be 0");
  if (options.store == StoreKind::kMemory && options.snapshot_dir.empty()) {
    return absl::FailedPreconditionError(
        "BeginSnapshot: snapshot_dir is empty, so this collection keeps no snapshots");
  }
  HOTROW_ASSIGN_OR_RETURN(const std::vector<SnapshotId> used, store.store->ListSnapshots());
  if (std::find(used.begin(), used.end(), id) != used.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("BeginSnapshot: there is a snapshot ", id, " already"));
  }
  return absl::OkStatus();
}

// On the snapshot's thread.
absl::Status EmbeddingCollection::Impl::WriteSnapshot(SnapshotId id, bool tidy) {
  const auto end_capture = [&] {
    for (const std::unique_ptr<TieredTable>& tier : tiers) tier->EndSnapshot();
    pipeline->NotifyRoom();
  };
  const absl::Status status = [&]() -> absl::Status {
    // A part of each class in turn: an update may be waiting for any of them.
    std::vector<TieredTable*> unfinished;
    for (const std::unique_ptr<TieredTable>& tier : tiers) unfinished.push_back(tier.get());
    while (!unfinished.empty()) {
      for (size_t i = 0; i < unfinished.size();) {
        if (stopping.load()) return absl::CancelledError("the collection is closing");
        TraceSpan span(ctx.trace, "snapshot_rows");
        HOTROW_ASSIGN_OR_RETURN(const bool more, unfinished[i]->WriteSnapshotPart());
        pipeline->NotifyRoom();
        if (more) {
          ++i;
        } else {
          unfinished.erase(unfinished.begin() + static_cast<int64_t>(i));
        }
      }
    }
    if (tidy) {
      TraceSpan span(ctx.trace, "snapshot_tidy");
      store.store->TidyForSnapshot();
    }
    TraceSpan span(ctx.trace, "snapshot");
    return store.store->PrepareSnapshot(id, end_capture);
  }();
  if (!status.ok()) end_capture();
  return status;
}

void EmbeddingCollection::Impl::FinishSnapshot(absl::Status status) {
  const std::lock_guard<std::mutex> lock(snapshot_mutex);
  snapshot.prepare_ns = NowNanos() - snapshot.begin_ns;
  if (!status.ok()) snapshot.failed += 1;
  snapshot.status = std::move(status);
  snapshot.done = true;
}

void EmbeddingCollection::AnnounceSnapshot() {
  Impl& c = *impl_;
  if (c.tidied) return;
  {
    const std::lock_guard<std::mutex> lock(c.snapshot_mutex);
    if (!c.snapshot.done) return;
  }
  c.JoinSnapshot();
  absl::StatusOr<std::thread> thread = StartThread("tidying up for a snapshot", [&c] {
    TraceSpan span(c.ctx.trace, "snapshot_tidy");
    c.store.store->TidyForSnapshot();
  });
  if (!thread.ok()) return;  // then the snapshot does it, or says why it cannot be begun
  c.tidy_thread = *std::move(thread);
  c.tidied = true;
}

absl::Status EmbeddingCollection::BeginSnapshot(SnapshotId snapshot) {
  Impl& c = *impl_;
  {
    const std::lock_guard<std::mutex> lock(c.snapshot_mutex);
    if (!c.snapshot.done) {
      return absl::FailedPreconditionError(absl::StrCat("BeginSnapshot ", snapshot, ": snapshot ",
                                                        c.snapshot.id, " is still being written"));
    }
  }
  if (c.snapshot_thread.joinable()) c.snapshot_thread.join();
  const int64_t begin_ns = NowNanos();
  HOTROW_RETURN_IF_ERROR(c.CheckSnapshotName(snapshot));
  const bool in_place = !c.tiers[0]->has_cache();
  if (!in_place) {
    for (size_t w = 0; w < c.tiers.size(); ++w) {
      const absl::Status begun = c.tiers[w]->BeginSnapshot();
      if (begun.ok()) continue;
      for (size_t d = 0; d < w; ++d) c.tiers[d]->EndSnapshot();
      c.pipeline->NotifyRoom();
      return begun;
    }
  }
  {
    const std::lock_guard<std::mutex> lock(c.snapshot_mutex);
    c.snapshot.id = snapshot;
    c.snapshot.done = false;
    c.snapshot.status = absl::OkStatus();
    c.snapshot.begin_ns = begin_ns;
    c.snapshot.count += 1;
  }
  const bool tidy = !std::exchange(c.tidied, false);
  absl::Status status;
  if (in_place) {
    // Nothing may change a row meanwhile, and the caller is here.
    TraceSpan span(c.ctx.trace, "snapshot");
    if (tidy) c.store.store->TidyForSnapshot();
    status = c.store.store->PrepareSnapshot(snapshot, [] {});
    c.FinishSnapshot(status);
  } else {
    absl::StatusOr<std::thread> thread = StartThread("writing a snapshot", [&c, snapshot, tidy] {
      c.FinishSnapshot(c.WriteSnapshot(snapshot, tidy));
    });
    if (thread.ok()) {
      c.snapshot_thread = *std::move(thread);
    } else {
      for (const std::unique_ptr<TieredTable>& tier : c.tiers) tier->EndSnapshot();
      c.pipeline->NotifyRoom();
      c.tidied = !tidy;
      status = thread.status();
      c.FinishSnapshot(status);
    }
  }
  const std::lock_guard<std::mutex> lock(c.snapshot_mutex);
  c.snapshot.pause_ns = NowNanos() - begin_ns;
  c.snapshot.pause_ns_max = std::max(c.snapshot.pause_ns_max, c.snapshot.pause_ns);
  return status;
}

absl::StatusOr<bool> EmbeddingCollection::SnapshotPrepared() {
  const std::lock_guard<std::mutex> lock(impl_->snapshot_mutex);
  if (impl_->snapshot.id == 0) {
    return absl::FailedPreconditionError("SnapshotPrepared: no snapshot was begun");
  }
  if (!impl_->snapshot.done) return false;
  HOTROW_RETURN_IF_ERROR(impl_->snapshot.status);
  return true;
}

absl::Status EmbeddingCollection::WaitSnapshot() {
  if (impl_->snapshot_thread.joinable()) impl_->snapshot_thread.join();
  return SnapshotPrepared().status();
}

absl::Status EmbeddingCollection::PrepareSnapshot(SnapshotId snapshot) {
  const auto written = [&] {
    const std::lock_guard<std::mutex> lock(impl_->snapshot_mutex);
    return impl_->snapshot.done;
  };
  if (written() && !impl_->tidied) {
    // Nobody trains meanwhile, so now is as good as ahead.
    TraceSpan span(impl_->ctx.trace, "snapshot_tidy");
    impl_->store.store->TidyForSnapshot();
    impl_->tidied = true;
  }
  HOTROW_RETURN_IF_ERROR(BeginSnapshot(snapshot));
  return WaitSnapshot();
}

absl::Status EmbeddingCollection::CommitSnapshot(SnapshotId snapshot) {
  return impl_->store.store->CommitSnapshot(snapshot);
}

absl::Status EmbeddingCollection::DropSnapshot(SnapshotId snapshot) {
  return impl_->store.store->DropSnapshot(snapshot);
}

absl::StatusOr<std::vector<SnapshotId>> EmbeddingCollection::ListSnapshots() {
  return impl_->store.store->ListSnapshots();
}

absl::StatusOr<SnapshotInfo> EmbeddingCollection::DescribeSnapshot(SnapshotId snapshot) {
  return impl_->store.store->DescribeSnapshot(snapshot);
}

bool EmbeddingCollection::keeps_residuals() const { return impl_->residuals != nullptr; }

absl::StatusOr<HostBuffer<std::byte>> EmbeddingCollection::SaveResiduals() {
  Impl& c = *impl_;
  if (c.residuals == nullptr || c.shuffle->busy()) {
    return absl::FailedPreconditionError(
        c.residuals == nullptr ? "SaveResiduals: this collection keeps none"
                               : "SaveResiduals: a BeginLookup or BeginUpdate waits for its Lookup "
                                 "or Update");
  }
  TraceSpan span(c.ctx.trace, "save_residuals");
  return c.residuals->Save(c.ctx);
}

absl::StatusOr<bool> EmbeddingCollection::LoadResiduals(std::span<const std::byte> bytes) {
  Impl& c = *impl_;
  if (c.residuals == nullptr || c.steps != c.options.open_steps || !c.outstanding.empty()) {
    return absl::FailedPreconditionError(c.residuals == nullptr
                                             ? "LoadResiduals: this collection keeps none"
                                             : "LoadResiduals: comes before the first Prefetch");
  }
  return c.residuals->Load(bytes, c.steps);
}

absl::Status EmbeddingCollection::Close() {
  if (!impl_->outstanding.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("Close: ", impl_->outstanding.size(), " steps are outstanding"));
  }
  impl_->JoinSnapshot();
  impl_->Stop();
  return impl_->store.store->Close();
}

// --- Reading all of it
// -------------------------------------------------------------------------------------------

absl::Status EmbeddingCollection::Impl::DigestOwn(CollectionDigest* digest) {
  HOTROW_RETURN_IF_ERROR(FlushTiers());
  std::vector<int64_t> payload_bytes(options.tables.size());
  digest->tables.resize(options.tables.size());
  for (const PlannedTable& table : plan.tables) {
    const TableConfig& config = options.tables[table.config];
    TableDigest& out = digest->tables[table.config];
    out.name = config.name;
    out.dim = config.embedding_dim;
    out.row_bytes = table.layout.row_bytes;
    payload_bytes[table.config] = table.layout.payload_bytes;
  }
  return store.store->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
    TableDigest& out = digest->tables[key.table];
    out.rows += 1;
    out.hash += HashBytes(key.key, key.table, row.first(payload_bytes[key.table]));
    return absl::OkStatus();
  });
}

absl::StatusOr<CollectionDigest> EmbeddingCollection::Digest() {
  Impl& c = *impl_;
  c.JoinSnapshot();
  const StepPipeline::Pause pause(c.pipeline.get());
  CollectionDigest digest;
  if (c.shuffle == nullptr) {
    HOTROW_RETURN_IF_ERROR(c.DigestOwn(&digest));
  } else {
    HOTROW_RETURN_IF_ERROR(
        c.shuffle->RunTogether([&]() -> absl::Status { return c.DigestOwn(&digest); }));
    // Rows and both halves of the hash of each table.
    std::vector<int64_t> mine;
    for (const TableDigest& table : digest.tables) {
      mine.insert(mine.end(), {table.rows, static_cast<int64_t>(table.hash.hi),
                               static_cast<int64_t>(table.hash.lo)});
    }
    std::vector<int64_t> all(mine.size() * c.shuffle->world_size());
    HOTROW_RETURN_IF_ERROR(c.shuffle->AllGather(mine, all));
    for (size_t i = 0; i < all.size(); i += 3) {
      TableDigest& table = digest.tables[i % mine.size() / 3];
      if (i < mine.size()) table.rows = 0, table.hash = {};
      table.rows += all[i];
      table.hash += {static_cast<uint64_t>(all[i + 1]), static_cast<uint64_t>(all[i + 2])};
    }
  }
  for (const TableDigest& table : digest.tables) digest.hash += table.hash;
  return digest;
}

// Waits for the updates that are enqueued.
int64_t EmbeddingCollection::Impl::InitialisedRows() const {
  if (!staged()) return initialised_rows;
  int64_t rows = 0;
  if (!EnqueueCopy(ctx, &rows, device_initialised_rows.data(), sizeof(rows)).ok() ||
      !WaitForStream(ctx).ok()) {
    return 0;  // the device has failed, and the next call that needs it says so
  }
  return rows;
}

EmbeddingStats EmbeddingCollection::Stats() const {
  const Impl& c = *impl_;
  EmbeddingStats stats;
  stats.steps = c.steps - c.options.open_steps;
  stats.unique_keys = c.unique_keys;
  stats.initialised_rows = c.InitialisedRows();
  stats.prefetch_waits = c.prefetch_waits.load(std::memory_order_relaxed);
  stats.lookup_waits = c.lookup_waits;
  stats.lookup_wait_ns = c.lookup_wait_ns;
  {
    const std::lock_guard<std::mutex> lock(c.snapshot_mutex);
    stats.snapshots = c.snapshot.count;
    stats.snapshots_failed = c.snapshot.failed;
    stats.snapshot_pause_ns = c.snapshot.pause_ns;
    stats.snapshot_pause_ns_max = c.snapshot.pause_ns_max;
    stats.snapshot_prepare_ns = c.snapshot.prepare_ns;
  }
  stats.evaluation_lookups = c.evaluation_lookups;
  stats.evaluation_unique_keys = c.evaluation_unique_keys;
  stats.transfer_device_bytes =
      c.gradients.bytes() + c.segment_workspace.bytes() + c.evaluation_staging.bytes();
  const auto add_arrays = [&](const EmbeddingStep::Impl& step) {
    for (const StepArrays* const arrays : {&step.arrays, &step.gradient_arrays}) {
      stats.transfer_host_bytes += arrays->host_bytes();
      stats.transfer_device_bytes += arrays->device_bytes();
    }
  };
  for (const EmbeddingStep::Impl* const step : c.outstanding) add_arrays(*step);
  for (const auto& step : c.free_steps) add_arrays(*step);
  if (c.evaluation_step != nullptr) add_arrays(*c.evaluation_step);
  if (!c.staged()) stats.transfer_device_bytes = 0;
  if (c.shuffle != nullptr) {
    const internal::RowShuffleBytes sent = c.shuffle->bytes();
    stats.exchange_ids_bytes = sent.ids;
    stats.exchange_forward_bytes = sent.rows;
    stats.exchange_backward_bytes = sent.gradients;
    stats.exchange_evaluation_bytes = sent.evaluation;
    stats.exchange_wait_ns = c.shuffle->wait_ns();
    stats.exchange_buffer_bytes = c.shuffle->buffer_bytes();
  }
  if (c.residuals != nullptr) {
    stats.exchange_feedback_bytes = c.residuals->bytes();
    stats.exchange_feedback_keys = c.residuals->counts().keys;
    stats.exchange_feedback_hits = c.residuals->counts().hits;
  }

  TierStats cache;
  cache.name = c.staged() ? "device_cache" : "cache";
  cache.budget_bytes = internal::CacheBudget(c.options, c.place);
  TierStats store;
  store.name = std::string(StoreKindName(c.options.store));
  for (const std::unique_ptr<TieredTable>& tier : c.tiers) {
    const TieredTableStats table = tier->Stats();
    cache.used_bytes += table.cache_used_bytes;
    stats.transfer_host_bytes += table.host_bytes;
    cache.unique_keys += table.cache_counts.unique_keys;
    cache.unique_hits += table.cache_counts.unique_hits;
    cache.lookups += table.cache_counts.lookups;
    cache.lookup_hits += table.cache_counts.lookup_hits;
    cache.evictions += table.cache.evictions;
    cache.dirty_writebacks += table.cache.dirty_evictions;
    stats.overflow_rows += table.cache.overflow_inserts;
    store.unique_keys += table.store_counts.unique_keys;
    store.unique_hits += table.store_counts.unique_hits;
    store.lookups += table.store_counts.lookups;
    store.lookup_hits += table.store_counts.lookup_hits;
    store.rows_read += table.rows_read;
    store.rows_written += table.rows_written;
    stats.snapshot_rows += table.snapshot.rows;
    stats.snapshot_row_bytes += table.snapshot.rows * tier->row_bytes();
    stats.snapshot_rows_copied += table.snapshot.copied;
    stats.snapshot_rows_held += table.snapshot.held;
    stats.snapshot_update_waits += table.snapshot.update_waits;
    stats.snapshot_update_wait_ns += table.snapshot.update_wait_ns;
    stats.snapshot_evict_waits += table.snapshot.evict_waits;
    stats.snapshot_evict_wait_ns += table.snapshot.evict_wait_ns;
  }
  cache.peak_bytes = cache.used_bytes;  // a cache takes its memory at creation
  if (cache.budget_bytes > 0) stats.tiers.push_back(std::move(cache));
  if (c.host_cache != nullptr) {
    const CachedStoreStats kept = c.host_cache->cache_stats();
    TierStats host;
    host.name = "cache";
    host.budget_bytes = kept.budget_bytes;
    host.used_bytes = kept.used_bytes;
    host.peak_bytes = kept.used_bytes;
    host.unique_keys = kept.finds;
    host.unique_hits = kept.hits;
    host.evictions = kept.evictions;
    stats.tiers.push_back(std::move(host));
  }
  const RowStoreStats row_store = c.store.store->Stats();
  store.budget_bytes = row_store.budget_bytes;
  store.used_bytes = row_store.used_bytes;
  store.peak_bytes = row_store.peak_bytes;
  store.ios = row_store.ios;
  store.bytes_read = row_store.bytes_read;
  store.bytes_written = row_store.bytes_written;
  store.snapshot_bytes = row_store.snapshot_bytes;
  store.disk_budget_bytes = row_store.disk_budget_bytes;
  store.disk_used_bytes = row_store.disk_used_bytes;
  store.index_bytes =
      c.store.ssd != nullptr ? c.store.ssd->SsdStats().index_bytes : row_store.metadata_bytes;
  store.payload_bytes_written = row_store.payload_bytes_written;
  store.SetWriteAmplification();
  stats.tiers.push_back(std::move(store));
  return stats;
}

absl::StatusOr<EmbeddingStats> EmbeddingCollection::GlobalStats() {
  Impl& c = *impl_;
  EmbeddingStats stats = Stats();
  if (c.shuffle == nullptr) return stats;
  const std::vector<int64_t> mine = PackCounts(stats);
  std::vector<int64_t> all(mine.size() * static_cast<size_t>(c.shuffle->world_size()));
  HOTROW_RETURN_IF_ERROR(c.shuffle->AllGather(mine, all));
  MergeCounts(all, &stats);
  return stats;
}

}  // namespace hotrow
