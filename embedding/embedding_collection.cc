#include "embedding/embedding_collection.h"

#include <algorithm>
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
#include "embedding/digest_impl.h"
#include "embedding/evaluation_impl.h"
#include "embedding/prefetcher_impl.h"
#include "embedding/ranks/gradient_residuals.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/row_gradients_impl.h"
#include "embedding/snapshots_impl.h"
#include "embedding/step_impl.h"
#include "embedding/tiers/step_pipeline_impl.h"
#include "embedding/tiers/tiers_impl.h"

namespace hotrow {

using internal::Evaluation;
using internal::GradientResiduals;
using internal::Plan;
using internal::PlannedFeature;
using internal::PlannedTable;
using internal::Prefetcher;
using internal::RowGradients;
using internal::RowShuffle;
using internal::Snapshots;
using internal::StepPipeline;
using internal::TableKeys;
using internal::Tiers;

struct EmbeddingCollection::Impl {
  EmbeddingCollectionOptions options;
  ExecContext ctx;
  CachePlace place;  // of the row caches
  Plan plan;
  std::vector<std::string> feature_names;
  std::unique_ptr<Tiers> tiers;
  std::unique_ptr<GradientResiduals> residuals;  // null: no feedback
  std::unique_ptr<RowShuffle> shuffle;           // null: alone
  std::unique_ptr<RowGradients> gradients;
  std::unique_ptr<Evaluation> evaluation;

  // Outstanding steps in order; the front is the next to be looked up and updated.
  std::deque<EmbeddingStep::Impl*> outstanding;
  std::vector<std::unique_ptr<EmbeddingStep::Impl>> free_steps;  // memory for steps to come

  uint32_t steps = 0;
  int64_t unique_keys = 0;
  int64_t initialised_rows = 0;                   // not staged
  DeviceMemory<int64_t> device_initialised_rows;  // staged: one number
  int64_t lookup_waits = 0;
  int64_t lookup_wait_ns = 0;

  std::unique_ptr<Snapshots> snapshots;
  // The last member, so that its threads end before what they use.
  std::unique_ptr<Prefetcher> prefetcher;

  ~Impl() { Stop(); }
  void Stop();

  absl::Status Open();
  absl::StatusOr<std::unique_ptr<CommLane>> Connect();
  absl::Status EndJobUnlessOk(absl::Status status) {
    return internal::EndJobUnlessOk(shuffle == nullptr ? nullptr : options.communicator,
                                    std::move(status));
  }
  absl::StatusOr<std::unique_ptr<EmbeddingStep::Impl>> NewStep(const JaggedBatch& batch);
  // Nobody is at work on the step, nor will be.
  void End(EmbeddingStep::Impl* step, bool updated);
  absl::Status BeginLookup(EmbeddingStep::Impl* step);
  absl::Status Lookup(EmbeddingStep::Impl* step, const EmbeddingOutput& output);
  absl::Status Update(EmbeddingStep::Impl* step, float learning_rate_factor);
  int64_t InitialisedRows() const;
};

EmbeddingStep::EmbeddingStep(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

EmbeddingStep::~EmbeddingStep() {
  if (impl_ == nullptr) return;
  EmbeddingCollection::Impl* const collection = impl_->collection;
  collection->prefetcher->Withdraw(impl_.get());
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

void EmbeddingCollection::Impl::End(EmbeddingStep::Impl* step, bool updated) {
  // Only this step can have begun anything: it was the oldest.
  if (shuffle != nullptr && step->begun()) shuffle->Drop();
  tiers->Release(ctx, &step->tiers, updated);
  // An error is one of the device, and the next call that enqueues says it again.
  step->batch.upload.RunAfter(ctx.stream).IgnoreError();
  const auto at = std::find(outstanding.begin(), outstanding.end(), step);
  if (at == outstanding.end()) return;
  outstanding.erase(at);
  prefetcher->Forget(step);
}

// --- The collection

EmbeddingCollection::EmbeddingCollection(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EmbeddingCollection::~EmbeddingCollection() {
  // Steps point back here.
  HOTROW_CHECK(impl_->outstanding.empty());
}

void EmbeddingCollection::Impl::Stop() {
  // The snapshot first: the pipeline may be waiting for it.
  if (snapshots != nullptr) snapshots->Stop();
  if (prefetcher != nullptr) prefetcher->Stop();
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
                            DeviceMemory<int64_t>::Create(1, {ctx.device, ctx.stream}));
    constexpr int64_t kNone = 0;
    HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx, device_initialised_rows.data(), &kNone, sizeof(kNone)));
  }
  steps = static_cast<uint32_t>(options.open_steps);
  gradients = std::make_unique<RowGradients>(plan, ctx, shuffle.get());
  evaluation = std::make_unique<Evaluation>(options, plan, ctx, tiers.get(), shuffle.get());
  snapshots = std::make_unique<Snapshots>(options, ctx.trace, tiers.get(),
                                          [this] { prefetcher->NotifyRoom(); });
  return absl::OkStatus();
}

// With several ranks: returns the channel for keys.
absl::StatusOr<std::unique_ptr<CommLane>> EmbeddingCollection::Impl::Connect() {
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
  return std::make_unique<CommLane>(std::move(ids));
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
  std::unique_ptr<CommLane> id_lane;
  if (internal::WorldSize(options) == 1) {
    HOTROW_RETURN_IF_ERROR(impl->Open());
  } else {
    // A rank may copy rows for long while others have none to copy.
    HOTROW_ASSIGN_OR_RETURN(id_lane, impl->Connect());
    HOTROW_RETURN_IF_ERROR(
        impl->shuffle->RunTogether([&impl]() -> absl::Status { return impl->Open(); }));
  }
  impl->prefetcher = std::make_unique<Prefetcher>(impl->options, impl->plan, ctx, impl->tiers.get(),
                                                  impl->shuffle.get(), std::move(id_lane));
  HOTROW_RETURN_IF_ERROR(impl->EndJobUnlessOk(impl->prefetcher->status()));
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
  c.outstanding.push_back(step->impl_.get());
  c.prefetcher->Start(step->impl_.get());
  if (c.options.prefetch_depth == 0) {
    int64_t waited_ns = 0;
    HOTROW_RETURN_IF_ERROR(c.prefetcher->Wait(step->impl_.get(), &waited_ns));
  }
  return step;
}

// The oldest step: its rows are resident, or come now.
absl::Status EmbeddingCollection::Impl::BeginLookup(EmbeddingStep::Impl* step) {
  int64_t waited_ns = 0;
  const int64_t begin_ns = NowNanos();
  const absl::Status resident = prefetcher->Wait(step, &waited_ns);
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
  HOTROW_RETURN_IF_ERROR(c.EndJobUnlessOk(c.gradients->Begin(gradient, c.steps + 1, &s.batch)));
  s.use = EmbeddingStep::Impl::Use::kUpdateBegun;
  return absl::OkStatus();
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
  HOTROW_ASSIGN_OR_RETURN(float* const* const sums, gradients->Finish(b));
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
  const StepPipeline::Pause pause(c.prefetcher->pipeline());
  return c.EndJobUnlessOk(c.evaluation->Run(batch, output, c.steps + 1));
}

absl::Status EmbeddingCollection::Flush() {
  impl_->snapshots->Join();
  const StepPipeline::Pause pause(impl_->prefetcher->pipeline());
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

absl::StatusOr<CollectionDigest> EmbeddingCollection::Digest() {
  Impl& c = *impl_;
  c.snapshots->Join();
  const StepPipeline::Pause pause(c.prefetcher->pipeline());
  CollectionDigest digest;
  const auto own = [&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(c.tiers->Flush());
    HOTROW_ASSIGN_OR_RETURN(digest.tables,
                            internal::DigestRows(c.options, c.plan, c.tiers->store()));
    return absl::OkStatus();
  };
  if (c.shuffle == nullptr) {
    HOTROW_RETURN_IF_ERROR(own());
  } else {
    HOTROW_RETURN_IF_ERROR(c.shuffle->RunTogether(own));
    HOTROW_RETURN_IF_ERROR(internal::SumOverRanks(c.shuffle.get(), &digest.tables));
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
  stats.prefetch_waits = c.prefetcher->prefetch_waits();
  stats.lookup_waits = c.lookup_waits;
  stats.lookup_wait_ns = c.lookup_wait_ns;
  c.snapshots->AddTo(&stats);
  c.evaluation->AddTo(&stats);
  for (const EmbeddingStep::Impl* const step : c.outstanding) step->batch.AddTo(&stats);
  for (const auto& step : c.free_steps) step->batch.AddTo(&stats);
  if (c.tiers->staged()) stats.transfer_device_bytes += c.gradients->device_bytes();
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
