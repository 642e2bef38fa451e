#include "embedding/embedding_collection.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
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
#include "embedding/gradient_clip_impl.h"
#include "embedding/prefetcher_impl.h"
#include "embedding/ranks/device_key_shuffle_impl.h"
#include "embedding/ranks/device_row_shuffle_impl.h"
#include "embedding/ranks/gradient_residuals_impl.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/row_erasure_impl.h"
#include "embedding/row_gradients_impl.h"
#include "embedding/row_life_impl.h"
#include "embedding/row_rounding_impl.h"
#include "embedding/row_writes_impl.h"
#include "embedding/snapshots_impl.h"
#include "embedding/step_impl.h"
#include "embedding/table_decay_impl.h"
#include "embedding/taken_batch_impl.h"
#include "embedding/tiers/step_pipeline_impl.h"
#include "embedding/tiers/tiers_impl.h"
#include "embedding/update_gaps_impl.h"
#include "ops/key_rows.h"

namespace hotrow {

using internal::DeviceKeyShuffle;
using internal::DeviceRowShuffle;
using internal::Evaluation;
using internal::GradientResiduals;
using internal::Plan;
using internal::PlannedFeature;
using internal::PlannedTable;
using internal::Prefetcher;
using internal::RowErasure;
using internal::RowGradients;
using internal::RowLife;
using internal::RowRounding;
using internal::RowShuffle;
using internal::RowWrites;
using internal::Snapshots;
using internal::StepKeys;
using internal::StepPipeline;
using internal::TableDecay;
using internal::TakeArrays;
using internal::TakenBatch;
using internal::Tiers;
using internal::TrainedRows;

namespace {

const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

absl::Status NoStepError(const char* call) {
  return absl::FailedPreconditionError(
      absl::StrCat(call, ": this is no step of Prefetch, or it was moved from"));
}

}  // namespace

struct EmbeddingCollection::Impl : EmbeddingResiduals {
  EmbeddingCollectionOptions options;
  ExecContext ctx;
  CachePlace place;  // of the row caches
  Plan plan;
  std::vector<std::string> feature_names;
  std::unique_ptr<Tiers> tiers;
  std::unique_ptr<TableDecay> decay;
  std::unique_ptr<RowRounding> rounding;
  std::unique_ptr<GradientResiduals> residuals;  // null: no feedback
  std::unique_ptr<RowShuffle> shuffle;           // null: alone
  // For several ranks that are staged: the exchanges of steps, and rows of evaluations.
  std::unique_ptr<DeviceKeyShuffle> device_keys;
  std::unique_ptr<DeviceRowShuffle> device_rows;
  std::unique_ptr<RowLife> life;
  std::unique_ptr<RowGradients> gradients;
  std::unique_ptr<Evaluation> evaluation;
  std::unique_ptr<RowErasure> erasure;
  std::unique_ptr<RowWrites> writes;

  // Outstanding steps in order; the front is the next to be looked up and updated.
  std::deque<EmbeddingStep::Impl*> outstanding;
  // Memory for steps to come, that which was used least lately first.
  std::deque<std::unique_ptr<EmbeddingStep::Impl>> free_steps;
  TrainedRows trained;  // of Update

  uint32_t steps = 0;
  int64_t unique_keys = 0;
  std::vector<TableStats> tables;                 // of EmbeddingStats, without misses
  int64_t initialised_rows = 0;                   // not staged
  DeviceMemory<int64_t> device_initialised_rows;  // staged: one number,
  SharedBuffer<int64_t> read_back_rows;           // and its copy of the last Update that is done
  int64_t lookup_waits = 0;
  int64_t lookup_wait_ns = 0;

  std::unique_ptr<Snapshots> snapshots;
  // The last member, so that its threads end before what they use.
  std::unique_ptr<Prefetcher> prefetcher;

  ~Impl() override { Stop(); }
  void Stop();

  static absl::StatusOr<std::unique_ptr<Impl>> Create(const EmbeddingCollectionOptions& options,
                                                      const ExecContext& ctx);
  absl::Status Open();
  absl::StatusOr<std::unique_ptr<CommLane>> Connect();
  absl::Status EndJobUnlessOk(absl::Status status) {
    return internal::EndJobUnlessOk(shuffle == nullptr ? nullptr : options.ranks.communicator,
                                    std::move(status));
  }
  // A call that all ranks make. What this rank alone refuses ends it on all: the others wait in it.
  template <typename Call>
  auto Together(const Call& call) {
    auto out = call();
    EndJobUnlessOk(StatusOf(out)).IgnoreError();
    return out;
  }
  // RowShuffle::RunTogether, whose thread begins without a device.
  absl::Status RunTogether(absl::FunctionRef<absl::Status()> work);
  // Whether rows or gradients of several ranks are under way.
  bool exchanging() const {
    return shuffle != nullptr &&
           (shuffle->busy() || (device_rows != nullptr && device_rows->busy()));
  }
  // The table's position in the plan.
  absl::StatusOr<int32_t> FindTable(const char* call, std::string_view name) const;
  absl::Status CheckBetweenSteps(const char* call) const;
  absl::Status Take(const JaggedBatch& batch, TakeArrays arrays, ThreadPool* pool,
                    TakenBatch* taken) const {
    return internal::TakeBatch(plan, options.max_batch_size, pool, batch, arrays, taken);
  }
  absl::Status Take(const FeatureBatch& batch, TakeArrays arrays, ThreadPool* pool,
                    TakenBatch* taken) const {
    const FeatureOrder none;
    return internal::TakeBatch(plan, options.max_batch_size, pool, batch,
                               (batch.order == nullptr ? none : *batch.order).position_of_, arrays,
                               taken);
  }
  // Take for a step. It throws on the CPU alone, and not on a thread of the pipeline.
  template <typename Batch>
  absl::Status TakeForStep(const Batch& batch, TakeArrays arrays, ThreadPool* pool, bool late,
                           TakenBatch* taken) const;
  // owner: null: the batch is copied. ready: null: it is taken at once.
  template <typename Batch>
  absl::StatusOr<EmbeddingStep> Prefetch(const Batch& batch, std::shared_ptr<const void> owner,
                                         std::function<absl::Status()> ready);
  template <typename Batch>
  absl::Status Evaluate(const Batch& batch, const EmbeddingOutput& output);
  absl::Status CheckIdle(const char* call) const;
  absl::StatusOr<std::unique_ptr<EmbeddingStep::Impl>> NewStep();
  // Nobody is at work on the step, nor will be.
  void End(EmbeddingStep::Impl* step, bool updated);
  absl::Status BeginLookup(EmbeddingStep::Impl* step);
  // The same, if it is the turn of this step.
  absl::Status BeginOldest(EmbeddingStep::Impl* step);
  absl::Status Lookup(EmbeddingStep::Impl* step, const EmbeddingOutput& output);
  // Counts the lookups of a step that was updated.
  void CountLookups(const internal::StepBatch& batch, const StepKeys& served);
  // Calls options.on_update.
  absl::Status TellOfUpdate(internal::StepBatch& batch, const StepKeys& served);
  // Whether a step can be updated that BeginUpdate was not called for.
  absl::Status CheckUpdate(const EmbeddingStep::Impl& step,
                           const EmbeddingGradient& gradient) const;
  absl::Status LookupRows(EmbeddingStep::Impl* step, const float** rows);
  absl::Status BeginUpdate(EmbeddingStep::Impl* step, const EmbeddingGradient& gradient);
  // gradient: unused after BeginUpdate, which has read it.
  absl::Status Update(EmbeddingStep::Impl* step, const EmbeddingGradient& gradient,
                      float learning_rate_factor);
  // How often the batch looks up each table of the plan.
  std::vector<int64_t> LookupsOf(const internal::StepBatch& batch) const;
  // Both move the rows that this rank keeps. sums: the gradient of each served key.
  absl::Status UpdateRows(const internal::StepBatch& b, const float* const* sums,
                          float learning_rate_factor, const uint32_t* skip);
  absl::Status UpdateRowsFused(const internal::StepBatch& b, const EmbeddingGradient& gradient,
                               float learning_rate_factor);
  // What EmbeddingResiduals asks for.
  bool kept() const override { return residuals != nullptr; }
  absl::StatusOr<HostBuffer<std::byte>> Save() override;
  absl::StatusOr<bool> Load(std::span<const std::byte> bytes) override;
};

EmbeddingStep::EmbeddingStep() = default;
EmbeddingStep::EmbeddingStep(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EmbeddingStep::EmbeddingStep(EmbeddingStep&& other) noexcept = default;
EmbeddingStep& EmbeddingStep::operator=(EmbeddingStep&& other) noexcept {
  if (this != &other) {
    Cancel();
    impl_ = std::move(other.impl_);
  }
  return *this;
}
EmbeddingStep::~EmbeddingStep() { Cancel(); }

void EmbeddingStep::Cancel() {
  if (impl_ == nullptr) return;
  EmbeddingCollection::Impl* const collection = impl_->collection;
  collection->prefetcher->Withdraw(impl_.get());
  collection->End(impl_.get(), /*updated=*/false);
  collection->free_steps.push_back(std::move(impl_));
}

int64_t EmbeddingStep::batch_size() const {
  return impl_ == nullptr ? 0 : impl_->batch.input.batch_size;
}
int64_t EmbeddingStep::num_lookups() const {
  return impl_ == nullptr ? 0 : impl_->batch.input.num_lookups();
}
int64_t EmbeddingStep::num_unique_keys() const {
  if (impl_ == nullptr) return 0;
  const bool known =
      impl_->use != Impl::Use::kPrefetched || impl_->collection->options.prefetch_depth == 0;
  if (!known) return 0;  // a thread of the pipeline may be setting them
  const std::span<const int64_t> offsets = impl_->batch.wanted_offsets();
  return offsets.empty() ? 0 : offsets.back();
}

void EmbeddingCollection::Impl::End(EmbeddingStep::Impl* step, bool updated) {
  // Only this step can have begun anything: it was the oldest.
  if (shuffle != nullptr && step->begun()) shuffle->Drop();
  // What a Start that failed has enqueued reads the step, too.
  if (device_rows != nullptr && step->may_have_begun()) device_rows->Drop(ctx);
  tiers->Release(ctx, &step->tiers, updated);
  // An error is one of the device, and the next call that enqueues says it again.
  step->batch.upload.RunAfter(ctx.stream).IgnoreError();
  const auto at = std::find(outstanding.begin(), outstanding.end(), step);
  if (at != outstanding.end()) {
    outstanding.erase(at);
    prefetcher->Forget(step);
  }
  step->take_late = nullptr;
  // Last: what it lets go of may be code of the caller.
  step->batch.input.Clear();
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

absl::Status EmbeddingCollection::Impl::RunTogether(absl::FunctionRef<absl::Status()> work) {
  return shuffle->RunTogether([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(UseDevice(ctx));
    return work();
  });
}

// Everything of this rank alone.
absl::Status EmbeddingCollection::Impl::Open() {
  if (shuffle != nullptr && options.ranks.feedback_bytes > 0) {
    HOTROW_ASSIGN_OR_RETURN(residuals, GradientResiduals::Create(internal::ResidualTables(options),
                                                                 options.ranks.feedback_bytes));
    shuffle->KeepResiduals(residuals.get());
  }
  HOTROW_ASSIGN_OR_RETURN(tiers, Tiers::Create(options, plan, place, ctx.pool));
  if (tiers->staged()) {
    HOTROW_ASSIGN_OR_RETURN(device_initialised_rows,
                            DeviceMemory<int64_t>::Create(1, {ctx.device, ctx.stream}));
    HOTROW_ASSIGN_OR_RETURN(read_back_rows, SharedBuffer<int64_t>::Create(1, {ctx.device}));
    constexpr int64_t kNone = 0;
    HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx, device_initialised_rows.data(), &kNone, sizeof(kNone)));
  }
  steps = static_cast<uint32_t>(options.start.steps);
  decay = std::make_unique<TableDecay>(options, plan);
  rounding = std::make_unique<RowRounding>(plan);
  HOTROW_ASSIGN_OR_RETURN(life, RowLife::Create(options, plan, shuffle.get()));
  if (!options.start.from.empty()) HOTROW_RETURN_IF_ERROR(life->CountRows(tiers->store()));
  gradients = std::make_unique<RowGradients>(plan, ctx, shuffle.get(), device_rows.get());
  evaluation =
      std::make_unique<Evaluation>(options, plan, ctx, tiers.get(), shuffle.get(),
                                   device_rows.get(), decay.get(), life.get(), rounding.get());
  erasure = std::make_unique<RowErasure>(options, plan, ctx, tiers.get(), shuffle.get(),
                                         residuals.get(), life.get());
  writes = std::make_unique<RowWrites>(options, plan, ctx, tiers.get(), shuffle.get(),
                                       erasure.get(), life.get());
  snapshots =
      std::make_unique<Snapshots>(options, ctx, tiers.get(), [this] { prefetcher->NotifyRoom(); });
  return absl::OkStatus();
}

// With several ranks: returns the channel for keys.
absl::StatusOr<std::unique_ptr<CommLane>> EmbeddingCollection::Impl::Connect() {
  Communicator& family = *options.ranks.communicator;
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> ids, family.Duplicate());
  HOTROW_RETURN_IF_ERROR(CompareRanks(*ids, internal::ComparedOptions(options)));
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> rows, family.Duplicate());
  internal::RowShuffleOptions shuffle_options = {.seed = options.seed,
                                                 .forward = options.ranks.forward,
                                                 .backward = options.ranks.backward,
                                                 .rounding = options.ranks.rounding,
                                                 .feedback_bytes = options.ranks.feedback_bytes};
  shuffle_options.sends_lookups =
      std::any_of(options.tables.begin(), options.tables.end(),
                  [](const TableConfig& table) { return !table.admission.always(); });
  for (const PlannedTable& table : plan.tables) {
    shuffle_options.tables.push_back(
        {static_cast<uint32_t>(table.config), table.layout.dim, table.read_precision, table.score});
  }
  HOTROW_ASSIGN_OR_RETURN(shuffle, RowShuffle::Create(shuffle_options, std::move(rows)));
  if (place.staged) {
    HOTROW_ASSIGN_OR_RETURN(device_keys, DeviceKeyShuffle::Create(plan, family, place.device));
    HOTROW_ASSIGN_OR_RETURN(device_rows,
                            DeviceRowShuffle::Create(shuffle_options, family, place.device));
  }
  return std::make_unique<CommLane>(std::move(ids));
}

absl::StatusOr<std::unique_ptr<EmbeddingCollection>> EmbeddingCollection::Create(
    const EmbeddingCollectionOptions& options, const ExecContext& ctx) {
  auto made = Impl::Create(options, ctx);
  Communicator* const ranks = options.ranks.communicator;
  internal::EndJobUnlessOk(ranks != nullptr && ranks->world_size() > 1 ? ranks : nullptr,
                           made.status())
      .IgnoreError();
  HOTROW_RETURN_IF_ERROR(made.status());
  return std::unique_ptr<EmbeddingCollection>(new EmbeddingCollection(*std::move(made)));
}

absl::StatusOr<std::unique_ptr<EmbeddingCollection::Impl>> EmbeddingCollection::Impl::Create(
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
  for (const TableConfig& table : options.tables) impl->tables.push_back({.name = table.name});
  std::unique_ptr<CommLane> id_lane;
  if (internal::WorldSize(options) == 1) {
    HOTROW_RETURN_IF_ERROR(impl->Open());
  } else {
    // A rank may copy rows for long while others have none to copy.
    HOTROW_ASSIGN_OR_RETURN(id_lane, impl->Connect());
    HOTROW_RETURN_IF_ERROR(impl->RunTogether([&impl]() -> absl::Status { return impl->Open(); }));
  }
  impl->prefetcher = std::make_unique<Prefetcher>(impl->options, impl->plan, ctx, impl->tiers.get(),
                                                  impl->shuffle.get(), impl->device_keys.get(),
                                                  std::move(id_lane));
  // Here, before the lanes of `impl` leave the job and that is what others hear.
  HOTROW_RETURN_IF_ERROR(impl->EndJobUnlessOk(impl->prefetcher->status()));
  return impl;
}

int32_t EmbeddingCollection::num_features() const {
  return static_cast<int32_t>(impl_->plan.features.size());
}
const std::vector<std::string>& EmbeddingCollection::feature_names() const {
  return impl_->feature_names;
}
int64_t EmbeddingCollection::pooled_dim() const { return impl_->plan.pooled_dim; }
int64_t EmbeddingCollection::steps() const { return impl_->steps; }

EmbeddingSnapshots& EmbeddingCollection::snapshots() { return *impl_->snapshots; }
EmbeddingResiduals& EmbeddingCollection::residuals() { return *impl_; }
EmbeddingCounters& EmbeddingCollection::counters() { return *impl_->life; }
std::vector<RowLines> EmbeddingCollection::age_lines() const { return impl_->life->age_lines(); }

absl::StatusOr<ColumnRange> EmbeddingCollection::ColumnsOf(std::string_view feature) const {
  for (const internal::PlannedFeature& planned : impl_->plan.features) {
    if (planned.name != feature) continue;
    if (planned.unpooled_index >= 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ColumnsOf: feature \"", std::string(feature),
          "\" is not pooled; it is EmbeddingOutput::unpooled[", planned.unpooled_index, "]"));
    }
    return ColumnRange{planned.pooled_offset, planned.dim};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("ColumnsOf: no table has a feature \"", std::string(feature), "\""));
}

absl::StatusOr<FeatureOrder> EmbeddingCollection::OrderOf(
    std::span<const std::string> names) const {
  FeatureOrder order;
  order.position_of_.assign(impl_->feature_names.size(), -1);
  for (size_t i = 0; i < names.size(); ++i) {
    const auto at = std::find(impl_->feature_names.begin(), impl_->feature_names.end(), names[i]);
    if (at == impl_->feature_names.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("OrderOf: no table has a feature \"", names[i], "\""));
    }
    int32_t& position = order.position_of_[static_cast<size_t>(at - impl_->feature_names.begin())];
    if (position >= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("OrderOf: feature \"", names[i], "\" occurs twice"));
    }
    position = static_cast<int32_t>(i);
  }
  for (size_t f = 0; f < order.position_of_.size(); ++f) {
    if (order.position_of_[f] >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("OrderOf: feature \"", impl_->feature_names[f], "\" is missing"));
  }
  return order;
}

absl::StatusOr<int32_t> EmbeddingCollection::Impl::FindTable(const char* call,
                                                             std::string_view name) const {
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    if (options.tables[plan.tables[t].config].name == name) return static_cast<int32_t>(t);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(call, ": there is no table \"", std::string(name), "\""));
}

absl::StatusOr<std::unique_ptr<EmbeddingStep::Impl>> EmbeddingCollection::Impl::NewStep() {
  std::unique_ptr<EmbeddingStep::Impl> step;
  // A device may still be at work with the step that ended last, and one that takes its memory
  // waits for that: so there is one more.
  const bool rests = tiers->staged() && ctx.device != Device::kCpu && options.prefetch_depth > 0;
  if (free_steps.size() <= (rests ? 1 : 0)) {
    step = std::make_unique<EmbeddingStep::Impl>();
    step->collection = this;
    step->batch.alone = shuffle == nullptr;
    step->batch.staged = tiers->staged();
    step->batch.rounds = plan.rounds;
    step->batch.input = TakenBatch(ctx.device);
    step->batch.tells = options.on_update != nullptr;
    HOTROW_ASSIGN_OR_RETURN(step->batch.upload,
                            DeviceStream::Create(ctx.device, /*is_urgent=*/true));
  } else {
    step = std::move(free_steps.front());
    free_steps.pop_front();
  }
  step->use = EmbeddingStep::Impl::Use::kPrefetched;
  return step;
}

// --- Steps

template <typename Batch>
absl::Status EmbeddingCollection::Impl::TakeForStep(const Batch& batch, TakeArrays arrays,
                                                    ThreadPool* pool, bool late,
                                                    TakenBatch* taken) const {
  try {
    return Take(batch, arrays, pool, taken);
  } catch (const std::bad_alloc&) {
    // Page-locked memory may be refused while the process has other memory left.
    if (ctx.device == Device::kCpu && !late) throw;
    return absl::ResourceExhaustedError("Prefetch: no page-locked memory for the batch");
  }
}

template <typename Batch>
absl::StatusOr<EmbeddingStep> EmbeddingCollection::Impl::Prefetch(
    const Batch& batch, std::shared_ptr<const void> owner, std::function<absl::Status()> ready) {
  if (static_cast<int32_t>(outstanding.size()) > options.prefetch_depth) {
    return absl::FailedPreconditionError(
        absl::StrCat("Prefetch: ", outstanding.size(), " steps are outstanding, prefetch_depth is ",
                     options.prefetch_depth, "; update the oldest first"));
  }
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<EmbeddingStep::Impl> impl, NewStep());
  const TakeArrays arrays = owner == nullptr ? TakeArrays::kCopy : TakeArrays::kInPlace;
  TakenBatch* const taken = &impl->batch.input;
  impl->late = ready != nullptr;
  if (impl->late) {
    taken->owner = std::move(owner);
    impl->take_late = [this, batch, arrays, taken, ready = std::move(ready)](ThreadPool* pool) {
      const absl::Status status = ready();
      return status.ok() ? TakeForStep(batch, arrays, pool, /*late=*/true, taken) : status;
    };
  } else {
    const absl::Status good = TakeForStep(batch, arrays, ctx.pool, /*late=*/false, taken);
    if (!good.ok()) {
      taken->Clear();
      free_steps.push_back(std::move(impl));
      return good;
    }
    if (taken->in_place()) taken->owner = std::move(owner);
  }
  // From here on the step object undoes everything if we fail.
  EmbeddingStep step(std::move(impl));
  outstanding.push_back(step.impl_.get());
  prefetcher->Start(step.impl_.get());
  if (options.prefetch_depth == 0) {
    int64_t waited_ns = 0;
    HOTROW_RETURN_IF_ERROR(prefetcher->Wait(step.impl_.get(), &waited_ns));
  }
  return step;
}

absl::StatusOr<EmbeddingStep> EmbeddingCollection::Prefetch(const JaggedBatch& batch,
                                                            std::shared_ptr<const void> owner,
                                                            std::function<absl::Status()> ready) {
  return impl_->Together(
      [&] { return impl_->Prefetch(batch, std::move(owner), std::move(ready)); });
}

absl::StatusOr<EmbeddingStep> EmbeddingCollection::Prefetch(const FeatureBatch& batch,
                                                            std::shared_ptr<const void> owner,
                                                            std::function<absl::Status()> ready) {
  return impl_->Together(
      [&] { return impl_->Prefetch(batch, std::move(owner), std::move(ready)); });
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
    internal::StepBatch& b = step->batch;
    absl::Status started;
    if (device_rows != nullptr) {
      started = device_rows->StartRows(ctx, b.device_shuffled.routes(), b.at.rows, steps + 1,
                                       /*evaluation=*/false,
                                       const_cast<const std::byte**>(b.device_keys.rows().data()));
    }
    step->use = started.ok() ? EmbeddingStep::Impl::Use::kBegun : EmbeddingStep::Impl::Use::kFailed;
    return started;
  }
  TraceSpan span(ctx.trace, "gather");
  step->batch.rows.resize(static_cast<size_t>(step->tiers.keys.size()));
  HOTROW_RETURN_IF_ERROR(tiers->Resolve(ctx, &step->tiers, step->batch.rows));
  if (decay->any()) {
    HOTROW_RETURN_IF_ERROR(
        decay->Read(ctx, step->batch.served(), step->batch.rows, &step->batch.decayed));
  }
  step->batch.living.rows.clear();
  step->batch.rounded.rows.clear();
  if (life->looks()) {
    HOTROW_RETURN_IF_ERROR(life->Read(ctx, step->batch.served(), step->batch.whole_rows(),
                                      /*training=*/true, &step->batch.living));
  }
  if (rounding->any()) {
    HOTROW_RETURN_IF_ERROR(rounding->Read(ctx, step->batch.served(), step->batch.whole_rows(),
                                          /*round=*/true, &step->batch.rounded));
  }
  HOTROW_RETURN_IF_ERROR(step->batch.PlaceArrays(/*grouped=*/true));
  if (shuffle != nullptr) {
    HOTROW_RETURN_IF_ERROR(shuffle->StartRows(ctx, step->batch.shuffled, step->batch.read_rows(),
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
    if (device_rows != nullptr) {
      HOTROW_RETURN_IF_ERROR(device_rows->FinishRows(ctx));
    } else {
      b.value_rows.resize(b.wanted.keys.size());
      HOTROW_RETURN_IF_ERROR(shuffle->FinishRows(ctx, b.shuffled, b.read_rows(), b.value_rows));
      b.at.value_rows = b.value_rows.data();
    }
  }
  HOTROW_RETURN_IF_ERROR(b.Pool(ctx, plan, output));
  step->use = EmbeddingStep::Impl::Use::kLookedUp;
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Impl::BeginOldest(EmbeddingStep::Impl* step) {
  if (outstanding.empty() || outstanding.front() != step) {
    return absl::FailedPreconditionError(
        "Lookup: this is not the oldest outstanding step; steps are looked up and updated in the "
        "order of their Prefetch");
  }
  if (step->use == EmbeddingStep::Impl::Use::kBegun) return absl::OkStatus();
  // Its gradients may be on their way to other ranks, in the memory that rows come to.
  if (step->use == EmbeddingStep::Impl::Use::kUpdateBegun) {
    return absl::FailedPreconditionError(
        "Lookup: BeginUpdate was called for this step; its Update is all that may follow");
  }
  return BeginLookup(step);
}

absl::Status EmbeddingStep::BeginLookup() {
  if (impl_ == nullptr) return NoStepError("Lookup");
  EmbeddingCollection::Impl& c = *impl_->collection;
  return c.Together([&] { return c.BeginOldest(impl_.get()); });
}

absl::Status EmbeddingStep::Lookup(const EmbeddingOutput& output) {
  if (impl_ == nullptr) return NoStepError("Lookup");
  EmbeddingCollection::Impl& c = *impl_->collection;
  return c.Together([&]() -> absl::Status {
    // A late batch has its sizes then.
    if (impl_->late) HOTROW_RETURN_IF_ERROR(c.BeginOldest(impl_.get()));
    HOTROW_RETURN_IF_ERROR(internal::CheckShapes(c.plan, impl_->batch.input, output));
    HOTROW_RETURN_IF_ERROR(c.BeginOldest(impl_.get()));
    return c.Lookup(impl_.get(), output);
  });
}

absl::Status EmbeddingCollection::Impl::LookupRows(EmbeddingStep::Impl* step, const float** rows) {
  const internal::StepBatch& b = step->batch;
  TraceSpan span(ctx.trace, "pool");
  HOTROW_RETURN_IF_ERROR(AddressLookups(ctx, {.rows = b.at.value_rows,
                                              .inverse = b.at.inverse,
                                              .num_features = std::ssize(plan.features),
                                              .batch_size = b.input.batch_size,
                                              .lookups = rows}));
  step->use = EmbeddingStep::Impl::Use::kLookedUp;
  return absl::OkStatus();
}

bool EmbeddingStep::has_single_lookups() const {
  if (impl_ == nullptr) return false;
  const TakenBatch& input = impl_->batch.input;
  const internal::Plan& plan = impl_->collection->plan;
  if (!impl_->batch.alone || !input.single_lookups || !input.weights.empty()) return false;
  return std::all_of(plan.features.begin(), plan.features.end(),
                     [&plan](const internal::PlannedFeature& feature) {
                       return feature.pooling != Pooling::kNone &&
                              plan.tables[static_cast<size_t>(feature.table)].read_precision ==
                                  WeightsPrecision::kFp32;
                     });
}

absl::Status EmbeddingStep::LookupRows(const float** rows) {
  if (impl_ == nullptr) return NoStepError("LookupRows");
  if (!has_single_lookups()) {
    return absl::FailedPreconditionError(
        "LookupRows: needs one rank, pooled features, one lookup without a weight in each bag, and "
        "rows of fp32; use Lookup");
  }
  EmbeddingCollection::Impl& c = *impl_->collection;
  HOTROW_RETURN_IF_ERROR(BeginLookup());
  return c.LookupRows(impl_.get(), rows);  // of one rank alone
}

absl::Status EmbeddingCollection::Impl::CheckUpdate(const EmbeddingStep::Impl& step,
                                                    const EmbeddingGradient& gradient) const {
  if (step.use != EmbeddingStep::Impl::Use::kLookedUp) {
    return absl::FailedPreconditionError("Update: the step has not been looked up");
  }
  if (gradient.skip != nullptr && ctx.device == Device::kCpu) {
    return absl::UnimplementedError(
        "Update: EmbeddingGradient.skip is for tables on a GPU only; leave it out");
  }
  if (steps == UINT32_MAX) {
    return absl::ResourceExhaustedError("Update: a table counts at most 2^32 - 1 steps");
  }
  return internal::CheckShapes(plan, step.batch.input, gradient);
}

absl::Status EmbeddingCollection::Impl::BeginUpdate(EmbeddingStep::Impl* step,
                                                    const EmbeddingGradient& gradient) {
  HOTROW_RETURN_IF_ERROR(CheckUpdate(*step, gradient));
  HOTROW_RETURN_IF_ERROR(gradients->Begin(gradient, steps + 1, &step->batch));
  step->use = EmbeddingStep::Impl::Use::kUpdateBegun;
  step->skip = gradient.skip;
  return absl::OkStatus();
}

absl::Status EmbeddingStep::BeginUpdate(const EmbeddingGradient& gradient) {
  if (impl_ == nullptr) return NoStepError("Update");
  EmbeddingCollection::Impl& c = *impl_->collection;
  return c.Together([&] { return c.BeginUpdate(impl_.get(), gradient); });
}

absl::Status EmbeddingStep::Update(const EmbeddingGradient& gradient,
                                   float learning_rate_factor) && {
  EmbeddingStep step = std::move(*this);  // it ends here
  if (step.impl_ == nullptr) return NoStepError("Update");
  EmbeddingCollection::Impl& c = *step.impl_->collection;
  return c.Together([&]() -> absl::Status {
    // Before gradients set out.
    if (!(learning_rate_factor >= 0) || !std::isfinite(learning_rate_factor)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Update: learning_rate_factor must be finite and >= 0, is ", learning_rate_factor));
    }
    if (step.impl_->use != Impl::Use::kUpdateBegun) {
      HOTROW_RETURN_IF_ERROR(c.gradients->fuses_update()
                                 ? c.CheckUpdate(*step.impl_, gradient)
                                 : c.BeginUpdate(step.impl_.get(), gradient));
    }
    return c.Update(step.impl_.get(), gradient, learning_rate_factor);
  });
}

absl::Status EmbeddingCollection::Impl::Update(EmbeddingStep::Impl* step,
                                               const EmbeddingGradient& gradient,
                                               float learning_rate_factor) {
  internal::StepBatch& b = step->batch;
  const bool begun = step->use == EmbeddingStep::Impl::Use::kUpdateBegun;
  b.FindTrained(plan);
  if (life->looks()) life->LookAgain(ctx, b.served(), b.rows, &b.living);
  if (life->admits()) {
    HOTROW_RETURN_IF_ERROR(
        life->Admit(b.served(), b.served_lookups(), b.living, steps + 1, &b.trained));
  }
  const float* const* sums = nullptr;
  if (begun) {
    HOTROW_ASSIGN_OR_RETURN(float* const* const finished, gradients->Finish(b));
    HOTROW_RETURN_IF_ERROR(internal::ClipGradients(ctx, options, plan, b.served(), b.trained,
                                                   finished, shuffle.get()));
    sums = finished;
  }
  const StepKeys& served = step->tiers.keys;
  HOTROW_RETURN_IF_ERROR(tiers->ResolveForUpdate(
      &step->tiers, b.trained, b.staged ? b.served_on_device().rows() : std::span(b.rows)));

  TraceSpan span(ctx.trace, "sparse_update");
  HOTROW_RETURN_IF_ERROR(tiers->PrepareForUpdate(ctx, step->tiers));
  if (life->ages()) {
    HOTROW_RETURN_IF_ERROR(life->Renew(ctx, b.served(), b.rows, b.living, b.trained));
  }
  if (life->limits() || plan.scores) {
    life->NoteUpdate(b.served(), b.served_scores(), b.living, b.trained, steps + 1);
  }
  if (!b.staged) {
    internal::CountUpdateGaps(plan, b.served(), b.rows, b.trained, steps + 1, tables);
  }
  HOTROW_RETURN_IF_ERROR(begun ? UpdateRows(b, sums, learning_rate_factor, step->skip)
                               : UpdateRowsFused(b, gradient, learning_rate_factor));
  if (plan.scores) life->WriteScores(b.served(), b.rows, b.trained);
  if (tiers->staged()) {
    HOTROW_RETURN_IF_ERROR(
        EnqueueCopy(ctx, read_back_rows.data(), device_initialised_rows.data(), sizeof(int64_t)));
  }
  steps += 1;
  decay->Append(learning_rate_factor);
  absl::Status ended = life->EndStep(steps);
  unique_keys += served.size();
  CountLookups(b, served);
  ended.Update(TellOfUpdate(b, served));
  End(step, /*updated=*/true);
  // What has aged since a snapshot began still belongs to it.
  if (life->ages() && snapshots->ended()) life->DropSome(steps, tiers->store());
  return ended;
}

void EmbeddingCollection::Impl::CountLookups(const internal::StepBatch& batch,
                                             const StepKeys& served) {
  const std::vector<int64_t> lookups = LookupsOf(batch);
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    TableStats& table = tables[static_cast<size_t>(plan.tables[t].config)];
    table.lookups += lookups[t];
    table.unique_keys += served.table_offsets[t + 1] - served.table_offsets[t];
  }
}

absl::Status EmbeddingCollection::Impl::TellOfUpdate(internal::StepBatch& batch,
                                                     const StepKeys& served) {
  if (options.on_update == nullptr) return absl::OkStatus();
  const auto n = static_cast<size_t>(served.size());
  std::span<const RowKey> keys(served.keys, n);
  std::span<const int32_t> counts(served.counts, n);
  if (batch.staged) HOTROW_RETURN_IF_ERROR(batch.served_on_device().Told(&keys, &counts));
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const int64_t begin = served.table_offsets[t];
    const int64_t of_table = served.table_offsets[t + 1] - begin;
    options.on_update(static_cast<uint32_t>(plan.tables[t].config), keys.subspan(begin, of_table),
                      counts.subspan(begin, of_table));
  }
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Impl::UpdateRows(const internal::StepBatch& b,
                                                   const float* const* sums,
                                                   float learning_rate_factor,
                                                   const uint32_t* skip) {
  const StepKeys served = b.step_keys();
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const PlannedTable& table = plan.tables[t];
    if (table.frozen) continue;
    const int64_t begin = served.table_offsets[t];
    int64_t n = served.table_offsets[t + 1] - begin;
    std::byte* const* rows = b.at.rows + begin;
    const float* const* row_gradients = sums + begin;
    const uint64_t* keys = b.at.served_keys == nullptr ? nullptr : b.at.served_keys + begin;
    if (!b.trained.empty()) {
      trained.Take({b.trained.data() + begin, static_cast<size_t>(n)}, rows, row_gradients, keys);
      n = std::ssize(trained.rows);
      rows = trained.rows.data();
      row_gradients = trained.gradients.data();
      if (keys != nullptr) keys = trained.keys.data();
    }
    // A row whose last step is 0 has never been updated: it joins its table with this update.
    HOTROW_RETURN_IF_ERROR(SparseUpdate(
        ctx, {.config = options.tables[table.config].optimizer,
              .layout = &table.layout,
              .num_rows = n,
              .rows = rows,
              .gradients = row_gradients,
              .learning_rate_factor = learning_rate_factor,
              .step = steps + 1,
              .seed = options.seed,
              .table = static_cast<uint32_t>(table.config),
              .keys = keys,
              .new_rows = tiers->staged() ? device_initialised_rows.data() : &initialised_rows,
              .history = decay->history(t),
              .skip = skip}));
  }
  return absl::OkStatus();
}

std::vector<int64_t> EmbeddingCollection::Impl::LookupsOf(const internal::StepBatch& batch) const {
  std::vector<int64_t> lookups(plan.tables.size());
  for (size_t f = 0; f < plan.features.size(); ++f) {
    const auto bag = static_cast<int64_t>(f) * batch.input.batch_size;
    lookups[static_cast<size_t>(plan.features[f].table)] +=
        batch.input.offsets[static_cast<size_t>(bag + batch.input.batch_size)] -
        batch.input.offsets[static_cast<size_t>(bag)];
  }
  return lookups;
}

absl::Status EmbeddingCollection::Impl::UpdateRowsFused(const internal::StepBatch& b,
                                                        const EmbeddingGradient& gradient,
                                                        float learning_rate_factor) {
  const std::vector<int64_t> lookups = LookupsOf(b);
  std::vector<FusedTable> fused;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const PlannedTable& table = plan.tables[t];
    if (table.frozen) continue;
    fused.push_back({.config = options.tables[table.config].optimizer,
                     .layout = &table.layout,
                     .row_begin = b.wanted_offsets()[t],
                     .row_end = b.wanted_offsets()[t + 1],
                     .num_lookups = lookups[t],
                     .table = static_cast<uint32_t>(table.config)});
  }
  return gradients->Update(gradient,
                           {.tables = fused,
                            .rows = b.at.rows,
                            .learning_rate_factor = learning_rate_factor,
                            .step = steps + 1,
                            .seed = options.seed,
                            .keys = b.at.served_keys,
                            .new_rows = device_initialised_rows.data(),
                            .skip = gradient.skip},
                           b);
}

// --- Reading without a trace

// No exchange may be under way.
absl::Status EmbeddingCollection::Impl::CheckIdle(const char* call) const {
  if (!exchanging()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(call, ": a BeginLookup or BeginUpdate waits for its Lookup or Update"));
}

template <typename Batch>
absl::Status EmbeddingCollection::Impl::Evaluate(const Batch& batch,
                                                 const EmbeddingOutput& output) {
  // It stays until this call returns.
  HOTROW_RETURN_IF_ERROR(Take(batch, TakeArrays::kInPlace, ctx.pool, &evaluation->input()));
  HOTROW_RETURN_IF_ERROR(internal::CheckShapes(plan, evaluation->input(), output));
  HOTROW_RETURN_IF_ERROR(CheckIdle("Evaluate"));
  const StepPipeline::Pause pause(prefetcher->pipeline());
  absl::Status status = evaluation->Run(output, steps + 1);
  // What is enqueued reads rows that nobody has pinned: the pipeline must not evict them before.
  status.Update(WaitForStream(ctx));
  if (device_rows != nullptr) status.Update(device_rows->status());
  return status;
}

absl::Status EmbeddingCollection::Evaluate(const JaggedBatch& batch,
                                           const EmbeddingOutput& output) {
  return impl_->Together([&] { return impl_->Evaluate(batch, output); });
}

absl::Status EmbeddingCollection::Evaluate(const FeatureBatch& batch,
                                           const EmbeddingOutput& output) {
  return impl_->Together([&] { return impl_->Evaluate(batch, output); });
}

absl::Status EmbeddingCollection::ReadRows(std::string_view table, std::span<const uint64_t> keys,
                                           MatrixView<float> rows, std::span<bool> found) {
  Impl& c = *impl_;
  return c.Together([&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const int32_t position, c.FindTable("ReadRows", table));
    const int64_t dim = c.plan.tables[position].layout.dim;
    HOTROW_RETURN_IF_ERROR(internal::CheckShape(rows, std::ssize(keys), dim,
                                                [] { return std::string("ReadRows: rows"); }));
    if (!found.empty() && found.size() != keys.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("ReadRows: found: expected none or ", keys.size(), ", got ", found.size()));
    }
    HOTROW_RETURN_IF_ERROR(c.CheckIdle("ReadRows"));
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    return c.evaluation->ReadRows(position, keys, rows, found, c.steps + 1);
  });
}

absl::Status EmbeddingCollection::ForEachRow(
    std::string_view table,
    const std::function<absl::Status(uint64_t key, std::span<const float> weights)>& fn) {
  Impl& c = *impl_;
  HOTROW_ASSIGN_OR_RETURN(const int32_t position, c.FindTable("ForEachRow", table));
  HOTROW_RETURN_IF_ERROR(Flush());
  const StepPipeline::Pause pause(c.prefetcher->pipeline());
  return internal::ForEachRowOf(c.ctx, c.plan, static_cast<size_t>(position), *c.decay, *c.life,
                                c.tiers->store(), fn);
}

absl::Status EmbeddingCollection::WriteRows(std::string_view table, std::span<const uint64_t> keys,
                                            MatrixView<const float> rows) {
  Impl& c = *impl_;
  return c.Together([&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const int32_t position, c.FindTable("WriteRows", table));
    const internal::PlannedTable& planned = c.plan.tables[position];
    const TableConfig& config = c.options.tables[planned.config];
    HOTROW_RETURN_IF_ERROR(internal::CheckShape(rows, std::ssize(keys), planned.layout.dim,
                                                [] { return std::string("WriteRows: rows"); }));
    HOTROW_RETURN_IF_ERROR(internal::CheckWrittenRows(config, keys, rows));
    if (config.optimizer.weight_decay_mode == WeightDecayMode::kTable) {
      return absl::FailedPreconditionError(absl::StrCat(
          "WriteRows: table \"", config.name,
          "\" decays as a whole (weight_decay_mode table), so what a row is depends on "
          "the steps that it has missed; use l2 or decoupled, or start from a model"));
    }
    if (!c.outstanding.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("WriteRows: ", c.outstanding.size(),
                       " steps are outstanding; update or drop them first"));
    }
    HOTROW_RETURN_IF_ERROR(c.CheckIdle("WriteRows"));
    c.snapshots->Join();
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    // A row that no step has updated would be none, so before the first one it counts as the first.
    return c.writes->Run(position, keys, rows, std::max(c.steps, 1u));
  });
}

absl::Status EmbeddingCollection::Impl::CheckBetweenSteps(const char* call) const {
  if (outstanding.empty() || !outstanding.front()->looked_up()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      call, ": a step was looked up and waits for its Update; call ", call, " between two steps"));
}

absl::Status EmbeddingCollection::Erase(std::string_view table, std::span<const uint64_t> keys) {
  Impl& c = *impl_;
  return c.Together([&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const int32_t position, c.FindTable("Erase", table));
    HOTROW_RETURN_IF_ERROR(c.CheckBetweenSteps("Erase"));
    c.snapshots->Join();
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    return c.erasure->Run(position, keys);
  });
}

absl::StatusOr<int64_t> EmbeddingCollection::EraseIf(
    std::string_view table, const std::function<bool(const StoredRow& row)>& wanted) {
  Impl& c = *impl_;
  return c.Together([&]() -> absl::StatusOr<int64_t> {
    HOTROW_ASSIGN_OR_RETURN(const int32_t position, c.FindTable("EraseIf", table));
    HOTROW_RETURN_IF_ERROR(c.CheckBetweenSteps("EraseIf"));
    const TableConfig& config = c.options.tables[c.plan.tables[position].config];
    if (config.optimizer.weight_decay_mode == WeightDecayMode::kTable) {
      return absl::FailedPreconditionError(absl::StrCat(
          "EraseIf: table \"", config.name,
          "\" decays as a whole (weight_decay_mode table), so its rows do not know their last "
          "update; name the keys, with Erase"));
    }
    c.snapshots->Join();
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    return c.erasure->RunIf(position, wanted);
  });
}

absl::Status EmbeddingCollection::Flush() {
  impl_->snapshots->Join();
  const StepPipeline::Pause pause(impl_->prefetcher->pipeline());
  return impl_->tiers->Flush();
}

// --- Tables that decay as a whole

absl::Status EmbeddingCollection::Settle() {
  Impl& c = *impl_;
  return c.Together([&]() -> absl::Status {
    if (!c.decay->any()) return absl::OkStatus();
    c.snapshots->Join();
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    const auto own = [&c]() -> absl::Status {
      HOTROW_RETURN_IF_ERROR(c.tiers->Flush());
      return c.decay->Settle(c.ctx, c.tiers->store());
    };
    return c.shuffle == nullptr ? own() : c.RunTogether(own);
  });
}

absl::Status EmbeddingCollection::EndJobUnlessOk(absl::Status status) {
  return impl_->EndJobUnlessOk(std::move(status));
}

std::span<const LearningRateRun> EmbeddingCollection::learning_rates() const {
  return impl_->decay->learning_rates();
}

// --- Residuals

absl::StatusOr<HostBuffer<std::byte>> EmbeddingCollection::Impl::Save() {
  if (residuals == nullptr) {
    return absl::FailedPreconditionError("EmbeddingResiduals::Save: this collection keeps none");
  }
  HOTROW_RETURN_IF_ERROR(CheckIdle("EmbeddingResiduals::Save"));
  TraceSpan span(ctx.trace, "save_residuals");
  return residuals->Save(ctx);
}

absl::StatusOr<bool> EmbeddingCollection::Impl::Load(std::span<const std::byte> bytes) {
  if (residuals == nullptr || steps != options.start.steps || !outstanding.empty()) {
    return absl::FailedPreconditionError(
        residuals == nullptr ? "EmbeddingResiduals::Load: this collection keeps none"
                             : "EmbeddingResiduals::Load: comes before the first Prefetch");
  }
  return residuals->Load(bytes, steps);
}

// --- All of it

absl::Status EmbeddingCollection::Close() {
  if (!impl_->outstanding.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("Close: ", impl_->outstanding.size(), " steps are outstanding"));
  }
  impl_->snapshots->Join();
  impl_->Stop();
  return impl_->tiers->Close();
}

absl::StatusOr<CollectionDigest> EmbeddingCollection::Digest() {
  Impl& c = *impl_;
  return c.Together([&]() -> absl::StatusOr<CollectionDigest> {
    c.snapshots->Join();
    const StepPipeline::Pause pause(c.prefetcher->pipeline());
    CollectionDigest digest;
    const auto own = [&]() -> absl::Status {
      HOTROW_RETURN_IF_ERROR(c.tiers->Flush());
      HOTROW_ASSIGN_OR_RETURN(digest.tables,
                              internal::DigestRows(c.ctx, c.options, c.plan, *c.decay, *c.life,
                                                   c.tiers->store(), c.tiers->host_store()));
      return absl::OkStatus();
    };
    if (c.shuffle == nullptr) {
      HOTROW_RETURN_IF_ERROR(own());
    } else {
      HOTROW_RETURN_IF_ERROR(c.RunTogether(own));
      HOTROW_RETURN_IF_ERROR(internal::SumOverRanks(c.shuffle.get(), &digest.tables));
    }
    for (const TableDigest& table : digest.tables) digest.hash += table.hash;
    return digest;
  });
}

EmbeddingStats EmbeddingCollection::Stats() const {
  const Impl& c = *impl_;
  EmbeddingStats stats;
  stats.steps = c.steps - c.options.start.steps;
  stats.unique_keys = c.unique_keys;
  stats.tables = c.tables;
  // The device may be writing it.
  stats.initialised_rows =
      c.tiers->staged()
          ? std::atomic_ref<int64_t>(*impl_->read_back_rows.data()).load(std::memory_order_relaxed)
          : c.initialised_rows;
  stats.prefetch_waits = c.prefetcher->prefetch_waits();
  stats.lookup_waits = c.lookup_waits;
  stats.lookup_wait_ns = c.lookup_wait_ns;
  c.snapshots->AddTo(&stats);
  c.evaluation->AddTo(&stats);
  c.life->AddTo(&stats);
  for (const EmbeddingStep::Impl* const step : c.outstanding) {
    // The Prefetcher may be taking a late batch.
    if (!step->late || step->use != EmbeddingStep::Impl::Use::kPrefetched) {
      step->batch.AddTo(&stats);
    }
  }
  for (const auto& step : c.free_steps) step->batch.AddTo(&stats);
  if (c.tiers->staged()) stats.transfer_device_bytes += c.gradients->device_bytes();
  if (c.shuffle != nullptr) {
    internal::RowShuffleBytes sent = c.shuffle->bytes();
    if (c.device_rows != nullptr) {
      sent.ids += c.device_keys->bytes_sent();
      sent.rows += c.device_rows->bytes().rows;
      sent.gradients += c.device_rows->bytes().gradients;
      sent.evaluation += c.device_rows->bytes().evaluation;
      stats.transfer_device_bytes += c.device_keys->device_bytes() + c.device_rows->device_bytes();
    }
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
  // A device that has failed says so in the next call that needs it.
  c.tiers->WaitForDevice();
  WaitForStream(c.ctx).IgnoreError();
  EmbeddingStats stats = Stats();
  if (c.shuffle == nullptr) return stats;
  const std::vector<int64_t> mine = PackCounts(stats);
  std::vector<int64_t> all(mine.size() * static_cast<size_t>(c.shuffle->world_size()));
  HOTROW_RETURN_IF_ERROR(c.Together([&] { return c.shuffle->AllGather(mine, all); }));
  MergeCounts(all, &stats);
  return stats;
}

}  // namespace hotrow
