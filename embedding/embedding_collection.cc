#include "embedding/embedding_collection.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "comm/communicator.h"
#include "comm/compare_ranks.h"
#include "comm/lane.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/evaluation_impl.h"
#include "embedding/ranks/gradient_residuals.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/snapshots_impl.h"
#include "embedding/step_impl.h"
#include "embedding/tiers/step_arrays_impl.h"
#include "embedding/tiers/step_pipeline_impl.h"
#include "embedding/tiers/tiers_impl.h"
#include "ops/gradient_segment_sum.h"

namespace hotrow {
namespace {

// From so many threads on the pipeline spreads its work over the caller's pool.
constexpr int kPipelinePoolThreads = 4;

using internal::Evaluation;
using internal::GradientResiduals;
using internal::Plan;
using internal::PlannedFeature;
using internal::PlannedTable;
using internal::RowShuffle;
using internal::Snapshots;
using internal::StepArrays;
using internal::StepPipeline;
using internal::TableKeys;
using internal::Tiers;
using internal::UniqueScratch;

// Room for `size` elements. What was there is lost when it grows, by a quarter more than is needed,
// so that batches of nearly equal size do not each take new memory.
template <typename T>
absl::Status EnsureSize(const ExecContext& ctx, int64_t size, DeviceMemory<T>* memory) {
  if (memory->size() >= size) return absl::OkStatus();
  return memory->Reserve(ctx.device, size + size / 4, ctx.stream);
}

}  // namespace

struct EmbeddingCollection::Impl {
  EmbeddingCollectionOptions options;
  ExecContext ctx;           // of the caller's calls
  ExecContext pipeline_ctx;  // of the pipeline's
  CachePlace place;          // of the row caches
  Plan plan;
  std::vector<std::string> feature_names;
  std::unique_ptr<Tiers> tiers;
  std::unique_ptr<GradientResiduals> residuals;  // null: no feedback
  std::unique_ptr<RowShuffle> shuffle;           // null: alone
  std::unique_ptr<Evaluation> evaluation;

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

  // Scratch of the caller's calls, grown to the largest batch seen.
  DeviceMemory<float> gradients;
  std::vector<float*> gradient_rows;  // [U] of what is wanted
  DeviceMemory<float> gradient_sums;  // several ranks
  std::vector<float*> sum_rows;       // [served keys]
  DeviceMemory<std::byte> segment_workspace;
  // Scratch of the pipeline's first stage.
  UniqueScratch pipeline_unique;
  // Of the thread of id_lane, which finds the distinct keys of steps and exchanges them. It never
  // waits for room, so all ranks make their exchanges in the order of Prefetch, whatever becomes of
  // a step later.
  UniqueScratch lane_unique;
  RowShuffle::Scratch lane_ids;
  std::unique_ptr<CommLane> id_lane;  // several ranks

  std::unique_ptr<Snapshots> snapshots;
  // The last member, so that its thread ends before what it uses.
  std::unique_ptr<StepPipeline> pipeline;

  ~Impl() { Stop(); }
  void Stop();

  absl::Status Open();
  absl::Status Connect();
  // What several ranks can no longer agree on ends the job on all of them.
  absl::Status EndJobUnlessOk(absl::Status status);
  absl::StatusOr<std::unique_ptr<EmbeddingStep::Impl>> NewStep(const JaggedBatch& batch);
  // The distinct keys of a step, and who wants which of them.
  absl::Status FindKeys(EmbeddingStep::Impl* step, UniqueScratch* scratch);
  // The job of the pipeline: its first stage, the body of that, its second stage, and its undoing.
  absl::Status PlaceStep(EmbeddingStep::Impl* step);
  absl::Status PlaceRows(EmbeddingStep::Impl* step);
  absl::Status FillStep(EmbeddingStep::Impl* step);
  void GiveUp(EmbeddingStep::Impl* step) { tiers->GiveUp(&step->tiers); }
  // The step's job does not run and will not.
  void End(EmbeddingStep::Impl* step, bool updated);
  absl::Status BeginLookup(EmbeddingStep::Impl* step);
  absl::Status Lookup(EmbeddingStep::Impl* step, const EmbeddingOutput& output);
  absl::Status BeginUpdate(EmbeddingStep::Impl* step, const EmbeddingGradient& gradient);
  absl::Status Update(EmbeddingStep::Impl* step, float learning_rate_factor);
  // Puts one gradient of each key's dim after another; `rows` are their places.
  absl::Status PlaceGradients(const TableKeys& keys, DeviceMemory<float>* floats,
                              std::vector<float*>* rows) const;
  absl::Status NoRoomError(const EmbeddingStep::Impl& step) const;
  int64_t InitialisedRows() const;
  absl::Status DigestOwn(CollectionDigest* digest);
};

EmbeddingStep::EmbeddingStep(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

EmbeddingStep::~EmbeddingStep() {
  if (impl_ == nullptr) return;
  EmbeddingCollection::Impl* const collection = impl_->collection;
  collection->pipeline->Withdraw(impl_.get());
  collection->End(impl_.get(), /*updated=*/false);
  collection->free_steps.push_back(std::move(impl_));
}

int64_t EmbeddingStep::batch_size() const { return impl_->batch.batch_size; }
int64_t EmbeddingStep::num_lookups() const { return impl_->batch.num_lookups; }
int64_t EmbeddingStep::num_unique_keys() const {
  const bool known =
      impl_->use != Impl::Use::kPrefetched || impl_->collection->options.prefetch_depth == 0;
  return known ? std::ssize(impl_->batch.wanted.keys) : 0;
}

// --- Making rows resident

absl::Status EmbeddingCollection::Impl::EndJobUnlessOk(absl::Status status) {
  if (shuffle != nullptr && !status.ok())
    options.communicator->Abort(std::string(status.message()));
  return status;
}

absl::Status EmbeddingCollection::Impl::FindKeys(EmbeddingStep::Impl* step,
                                                 UniqueScratch* scratch) {
  TraceSpan span(ctx.trace, "unique");
  internal::StepBatch& b = step->batch;
  HOTROW_RETURN_IF_ERROR(
      b.FindUnique(pipeline_ctx, plan, {b.batch_size, b.values, b.offsets, b.weights}, scratch));
  return b.GroupByRow(pipeline_ctx);
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

// Rows that this step shares with the one before may still be on their way for that one: they are
// placed, so they count as hits, and are there before this step's own are read.
absl::Status EmbeddingCollection::Impl::PlaceRows(EmbeddingStep::Impl* step) {
  bool waited = false;
  bool from_scratch = false;
  for (;;) {
    if (pipeline->cancelled(step)) return absl::CancelledError("the step was cancelled");
    const uint64_t epoch = pipeline->room_epoch();
    const bool alone = pipeline->RunsAlone(step);
    HOTROW_ASSIGN_OR_RETURN(const TieredTable::Placed placed,
                            tiers->Place(pipeline_ctx, &step->tiers));
    if (placed == TieredTable::Placed::kAll) break;
    // The rows that found room come while this step waits for the others'.
    HOTROW_ASSIGN_OR_RETURN(const bool kept, pipeline->Join(step, [&] { GiveUp(step); }));
    if (!kept) continue;
    HOTROW_RETURN_IF_ERROR(tiers->Fetch(pipeline_ctx, &step->tiers));
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
  tiers->FinishPlacing(pipeline_ctx);
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Impl::FillStep(EmbeddingStep::Impl* step) {
  TraceSpan span(ctx.trace, "fill");
  HOTROW_RETURN_IF_ERROR(tiers->MakeResident(pipeline_ctx, &step->tiers));
  if (!tiers->staged()) return absl::OkStatus();
  // With a cache a row stays where it is until the step ends.
  HOTROW_RETURN_IF_ERROR(tiers->Resolve(pipeline_ctx, &step->tiers, &step->batch.rows));
  TraceSpan upload(ctx.trace, "upload");
  return step->batch.PlaceArrays(/*grouped=*/true);
}

void EmbeddingCollection::Impl::End(EmbeddingStep::Impl* step, bool updated) {
  // Its work reads and writes the step; other ranks wait for our part of it. An error of it is one
  // of the communicator, which says it again in the next call.
  if (step->id_ticket >= 0) id_lane->Wait(step->id_ticket).IgnoreError();
  // Only this step can have begun anything: it was the oldest.
  if (shuffle != nullptr && step->begun()) shuffle->Drop();
  tiers->Release(ctx, &step->tiers, updated);
  // An error is one of the device, and the next call that enqueues says it again.
  step->batch.upload.RunAfter(ctx.stream).IgnoreError();
  const auto at = std::find(outstanding.begin(), outstanding.end(), step);
  if (at == outstanding.end()) return;
  outstanding.erase(at);
  pipeline->Forget(step);
}

absl::Status EmbeddingCollection::Impl::NoRoomError(const EmbeddingStep::Impl& step) const {
  const TableKeys& served = step.batch.served();
  return absl::ResourceExhaustedError(absl::StrCat(
      tiers->staged() ? "device cache" : "cache", " budget of ",
      internal::CacheBudget(options, place), " bytes: one batch of ", step.batch.batch_size,
      shuffle == nullptr ? " samples has " : " samples and those of other ranks have ",
      served.keys.size(), " distinct rows", shuffle == nullptr ? "" : " here", ", which need ",
      tiers->MinCacheBytes(served), " bytes; raise ", internal::CacheBudgetName(place),
      " or lower the batch size"));
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
  if (snapshots != nullptr) snapshots->Stop();
  if (pipeline != nullptr) pipeline->Stop();
  // What is enqueued reads arrays that go with us.
  if (tiers != nullptr) tiers->WaitForDevice();
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
  if (shuffle != nullptr && options.exchange_feedback_bytes > 0) {
    HOTROW_ASSIGN_OR_RETURN(residuals, GradientResiduals::Create(internal::ResidualTables(options),
                                                                 options.exchange_feedback_bytes));
    shuffle->KeepResiduals(residuals.get());
  }
  HOTROW_ASSIGN_OR_RETURN(tiers, Tiers::Create(options, plan, place));
  if (tiers->staged()) {
    HOTROW_ASSIGN_OR_RETURN(device_initialised_rows,
                            DeviceMemory<int64_t>::Create(ctx.device, 1, ctx.stream));
    constexpr int64_t kNone = 0;
    HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx, device_initialised_rows.data(), &kNone, sizeof(kNone)));
  }
  steps = static_cast<uint32_t>(options.open_steps);
  evaluation = std::make_unique<Evaluation>(options, plan, ctx, tiers.get(), shuffle.get());
  snapshots = std::make_unique<Snapshots>(options, ctx.trace, tiers.get(),
                                          [this] { pipeline->NotifyRoom(); });
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

absl::StatusOr<std::unique_ptr<EmbeddingStep::Impl>> EmbeddingCollection::Impl::NewStep(
    const JaggedBatch& batch) {
  std::unique_ptr<EmbeddingStep::Impl> step;
  if (free_steps.empty()) {
    step = std::make_unique<EmbeddingStep::Impl>();
    step->collection = this;
    step->batch.alone = shuffle == nullptr;
    step->batch.staged = tiers->staged();
    step->batch.rounds = plan.rounds;
    step->tiers.keys = &step->batch.served();
    HOTROW_ASSIGN_OR_RETURN(step->batch.upload, DeviceStream::Create(ctx.device));
  } else {
    step = std::move(free_steps.back());
    free_steps.pop_back();
  }
  step->use = EmbeddingStep::Impl::Use::kPrefetched;
  step->id_ticket = -1;
  step->batch.Assign(batch);
  step->batch.values.assign(batch.values.begin(), batch.values.end());
  return step;
}

// --- Steps

absl::StatusOr<std::unique_ptr<EmbeddingStep>> EmbeddingCollection::Prefetch(
    const JaggedBatch& batch) {
  Impl& c = *impl_;
  if (static_cast<int32_t>(c.outstanding.size()) > c.options.prefetch_depth) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Prefetch: ", c.outstanding.size(), " steps are outstanding, prefetch_depth is ",
        c.options.prefetch_depth, "; update the oldest first"));
  }
  HOTROW_RETURN_IF_ERROR(internal::ValidateBatch(c.plan, c.options.max_batch_size, batch));
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<EmbeddingStep::Impl> impl, c.NewStep(batch));
  // From here on the step object undoes everything if we fail.
  std::unique_ptr<EmbeddingStep> step(new EmbeddingStep(std::move(impl)));
  EmbeddingStep::Impl* const job = step->impl_.get();
  c.outstanding.push_back(job);
  if (c.shuffle != nullptr) {
    job->id_ticket = c.id_lane->Start([&c, job](Communicator& channel) {
      return c.EndJobUnlessOk([&]() -> absl::Status {
        HOTROW_RETURN_IF_ERROR(c.FindKeys(job, &c.lane_unique));
        TraceSpan span(c.ctx.trace, "id_shuffle");
        return c.shuffle->ExchangeKeys(c.pipeline_ctx, channel, job->batch.wanted,
                                       /*evaluation=*/false, &c.lane_ids, &job->batch.shuffled);
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
  if (tiers->staged()) {
    step->use = EmbeddingStep::Impl::Use::kBegun;
    return absl::OkStatus();
  }
  TraceSpan span(ctx.trace, "gather");
  HOTROW_RETURN_IF_ERROR(tiers->Resolve(ctx, &step->tiers, &step->batch.rows));
  HOTROW_RETURN_IF_ERROR(step->batch.PlaceArrays(/*grouped=*/true));
  if (shuffle != nullptr) {
    HOTROW_RETURN_IF_ERROR(shuffle->StartRows(ctx, step->batch.shuffled, step->batch.rows,
                                              steps + 1, /*evaluation=*/false));
  }
  step->use = EmbeddingStep::Impl::Use::kBegun;
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Impl::Lookup(EmbeddingStep::Impl* step,
                                               const EmbeddingOutput& output) {
  internal::StepBatch& b = step->batch;
  if (shuffle != nullptr) {
    TraceSpan span(ctx.trace, "embedding_shuffle");
    b.value_rows.resize(b.wanted.keys.size());
    HOTROW_RETURN_IF_ERROR(shuffle->FinishRows(ctx, b.shuffled, b.rows, b.value_rows));
    b.at.value_rows = b.value_rows.data();
  }
  HOTROW_RETURN_IF_ERROR(b.Pool(ctx, plan, output));
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
  HOTROW_RETURN_IF_ERROR(internal::CheckPointers(c.plan, output.pooled != nullptr,
                                                 output.unpooled.size(), "EmbeddingOutput"));
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
  internal::StepBatch& b = step->batch;
  HOTROW_RETURN_IF_ERROR(PlaceGradients(b.wanted, &gradients, &gradient_rows));
  step->gradient_arrays.Clear();
  const size_t part = step->gradient_arrays.Add(gradient_rows);
  HOTROW_RETURN_IF_ERROR(step->gradient_arrays.Upload(b.staged, &b.upload));
  step->gradients = step->gradient_arrays.At<float*>(part);
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
        GradientSegmentSumWorkspaceBytes(b.num_lookups, ctx.device, widest_dim);
    HOTROW_RETURN_IF_ERROR(EnsureSize(ctx, workspace_bytes, &segment_workspace));
    HOTROW_RETURN_IF_ERROR(GradientSegmentSum(ctx, {.features = features,
                                                    .batch_size = b.batch_size,
                                                    .offsets = b.at.offsets,
                                                    .weights = b.at.weights,
                                                    .row_offsets = b.at.row_offsets,
                                                    .lookup_order = b.at.lookup_order,
                                                    .num_rows = std::ssize(b.wanted.keys),
                                                    .gradients = step->gradients,
                                                    .num_lookups = b.num_lookups,
                                                    .workspace = segment_workspace.data(),
                                                    .workspace_bytes = workspace_bytes}));
  }
  if (shuffle != nullptr) {
    HOTROW_RETURN_IF_ERROR(
        shuffle->StartGradients(ctx, b.wanted, b.shuffled, gradient_rows, steps + 1));
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
  HOTROW_RETURN_IF_ERROR(internal::CheckPointers(c.plan, gradient.pooled != nullptr,
                                                 gradient.unpooled.size(), "EmbeddingGradient"));
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
  internal::StepBatch& b = step->batch;
  float* const* sums = step->gradients;
  if (shuffle != nullptr) {
    TraceSpan span(ctx.trace, "gradient_shuffle");
    HOTROW_RETURN_IF_ERROR(PlaceGradients(b.shuffled.served, &gradient_sums, &sum_rows));
    HOTROW_RETURN_IF_ERROR(shuffle->FinishGradients(ctx, b.shuffled, gradient_rows, sum_rows));
    sums = sum_rows.data();
  }
  HOTROW_RETURN_IF_ERROR(tiers->ResolveForUpdate(&step->tiers, b.rows));

  TraceSpan span(ctx.trace, "sparse_update");
  HOTROW_RETURN_IF_ERROR(tiers->PrepareForUpdate(ctx, step->tiers));
  const uint32_t now = steps + 1;
  const TableKeys& served = b.served();
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const PlannedTable& table = plan.tables[t];
    const int64_t begin = served.table_offsets[t];
    const int64_t n = served.table_offsets[t + 1] - begin;
    // A row whose last step is 0 has never been updated: it joins its table with this update.
    HOTROW_RETURN_IF_ERROR(SparseUpdate(
        ctx, {.config = options.tables[table.config].optimizer,
              .layout = &table.layout,
              .num_rows = n,
              .rows = b.at.rows + begin,
              .gradients = sums + begin,
              .learning_rate_factor = learning_rate_factor,
              .step = now,
              .seed = options.seed,
              .table = static_cast<uint32_t>(table.config),
              .keys = b.at.served_keys == nullptr ? nullptr : b.at.served_keys + begin,
              .new_rows = tiers->staged() ? device_initialised_rows.data() : &initialised_rows}));
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
  End(step, /*updated=*/true);
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Evaluate(const JaggedBatch& batch,
                                           const EmbeddingOutput& output) {
  Impl& c = *impl_;
  HOTROW_RETURN_IF_ERROR(internal::ValidateBatch(c.plan, c.options.max_batch_size, batch));
  HOTROW_RETURN_IF_ERROR(internal::CheckPointers(c.plan, output.pooled != nullptr,
                                                 output.unpooled.size(), "EmbeddingOutput"));
  if (c.shuffle != nullptr && c.shuffle->busy()) {
    return absl::FailedPreconditionError(
        "Evaluate: a BeginLookup or BeginUpdate waits for its Lookup or Update");
  }
  const StepPipeline::Pause pause(c.pipeline.get());
  return c.EndJobUnlessOk(c.evaluation->Run(batch, output, c.steps + 1));
}

absl::Status EmbeddingCollection::Flush() {
  impl_->snapshots->Join();
  const StepPipeline::Pause pause(impl_->pipeline.get());
  return impl_->tiers->Flush();
}

// --- Snapshots

void EmbeddingCollection::AnnounceSnapshot() { impl_->snapshots->Announce(); }

absl::Status EmbeddingCollection::BeginSnapshot(SnapshotId snapshot) {
  return impl_->snapshots->Begin(snapshot);
}

absl::StatusOr<bool> EmbeddingCollection::SnapshotPrepared() {
  return impl_->snapshots->Prepared();
}

absl::Status EmbeddingCollection::WaitSnapshot() { return impl_->snapshots->Wait(); }

absl::Status EmbeddingCollection::PrepareSnapshot(SnapshotId snapshot) {
  return impl_->snapshots->Prepare(snapshot);
}

absl::Status EmbeddingCollection::CommitSnapshot(SnapshotId snapshot) {
  return impl_->tiers->store()->CommitSnapshot(snapshot);
}

absl::Status EmbeddingCollection::DropSnapshot(SnapshotId snapshot) {
  return impl_->tiers->store()->DropSnapshot(snapshot);
}

absl::StatusOr<std::vector<SnapshotId>> EmbeddingCollection::ListSnapshots() {
  return impl_->tiers->store()->ListSnapshots();
}

absl::StatusOr<SnapshotInfo> EmbeddingCollection::DescribeSnapshot(SnapshotId snapshot) {
  return impl_->tiers->store()->DescribeSnapshot(snapshot);
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
  impl_->snapshots->Join();
  impl_->Stop();
  return impl_->tiers->Close();
}

// --- Reading all of it

absl::Status EmbeddingCollection::Impl::DigestOwn(CollectionDigest* digest) {
  HOTROW_RETURN_IF_ERROR(tiers->Flush());
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
  return tiers->store()->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
    TableDigest& out = digest->tables[key.table];
    out.rows += 1;
    out.hash += HashBytes(key.key, key.table, row.first(payload_bytes[key.table]));
    return absl::OkStatus();
  });
}

absl::StatusOr<CollectionDigest> EmbeddingCollection::Digest() {
  Impl& c = *impl_;
  c.snapshots->Join();
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
  if (!tiers->staged()) return initialised_rows;
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
  c.snapshots->AddTo(&stats);
  c.evaluation->AddTo(&stats);
  const auto add_arrays = [&](const EmbeddingStep::Impl& step) {
    for (const StepArrays* const arrays : {&step.batch.arrays, &step.gradient_arrays}) {
      stats.transfer_host_bytes += arrays->host_bytes();
      stats.transfer_device_bytes += arrays->device_bytes();
    }
  };
  for (const EmbeddingStep::Impl* const step : c.outstanding) add_arrays(*step);
  for (const auto& step : c.free_steps) add_arrays(*step);
  if (c.tiers->staged()) {
    stats.transfer_device_bytes += c.gradients.bytes() + c.segment_workspace.bytes();
  }
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
  c.tiers->AddTo(&stats);
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
