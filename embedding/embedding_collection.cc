#include "embedding/embedding_collection_impl.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/device_stream.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "embedding/tiers/step_pipeline_impl.h"

namespace hotrow {

using internal::StepPipeline;
using internal::TakeArrays;
using internal::TakenBatch;

EmbeddingCollection::EmbeddingCollection(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EmbeddingCollection::~EmbeddingCollection() {
  // Steps point back here.
  HOTROW_CHECK(impl_->outstanding.empty());
}

int32_t EmbeddingCollection::num_features() const {
  return static_cast<int32_t>(impl_->plan.features.size());
}
const std::vector<std::string>& EmbeddingCollection::feature_names() const {
  return impl_->feature_names;
}
int64_t EmbeddingCollection::pooled_dim() const { return impl_->plan.pooled_dim; }
int64_t EmbeddingCollection::steps() const { return impl_->steps; }
absl::Status EmbeddingCollection::EndJobUnlessOk(absl::Status status) {
  return hotrow::EndJobUnlessOk(impl_->family(), std::move(status));
}

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

// --- Batches

absl::Status EmbeddingCollection::Impl::Take(const JaggedBatch& batch, TakeArrays arrays,
                                             ThreadPool* pool, TakenBatch* taken) const {
  return internal::TakeBatch(plan, options.max_batch_size, pool, batch, arrays, taken);
}

absl::Status EmbeddingCollection::Impl::Take(const FeatureBatch& batch, TakeArrays arrays,
                                             ThreadPool* pool, TakenBatch* taken) const {
  const FeatureOrder none;
  return internal::TakeBatch(plan, options.max_batch_size, pool, batch,
                             (batch.order == nullptr ? none : *batch.order).position_of_, arrays,
                             taken);
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
  TakenBatch* const taken = &impl->batch->input;
  impl->late = ready != nullptr;
  if (impl->late) {
    taken->owner = std::move(owner);
    impl->take_late = [this, batch, arrays, taken, ready = std::move(ready)](ThreadPool* pool) {
      const absl::Status status = ready();
      return status.ok() ? Take(batch, arrays, pool, taken) : status;
    };
  } else {
    // Page-locked memory may be refused while the process has other memory left.
    const absl::Status good =
        Caught(ctx.device == Device::kCpu ? "Prefetch" : "Prefetch, in page-locked memory",
               [&] { return Take(batch, arrays, ctx.pool, taken); });
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
      "Prefetch", [&] { return impl_->Prefetch(batch, std::move(owner), std::move(ready)); });
}

absl::StatusOr<EmbeddingStep> EmbeddingCollection::Prefetch(const FeatureBatch& batch,
                                                            std::shared_ptr<const void> owner,
                                                            std::function<absl::Status()> ready) {
  return impl_->Together(
      "Prefetch", [&] { return impl_->Prefetch(batch, std::move(owner), std::move(ready)); });
}

absl::Status EmbeddingCollection::Impl::CheckIdle(const char* call) const {
  const bool exchanging =
      shuffle != nullptr && (shuffle->busy() || (device_rows != nullptr && device_rows->busy()));
  if (!exchanging) return absl::OkStatus();
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
  return impl_->Together("Evaluate", [&] { return impl_->Evaluate(batch, output); });
}

absl::Status EmbeddingCollection::Evaluate(const FeatureBatch& batch,
                                           const EmbeddingOutput& output) {
  return impl_->Together("Evaluate", [&] { return impl_->Evaluate(batch, output); });
}

// --- Facets

EmbeddingSnapshots& EmbeddingCollection::snapshots() { return *impl_->snapshots; }
EmbeddingResiduals& EmbeddingCollection::residuals() { return *impl_; }
EmbeddingCounters& EmbeddingCollection::counters() { return impl_->rules->counters(); }
std::vector<RowLines> EmbeddingCollection::age_lines() const { return impl_->rules->age_lines(); }
std::span<const LearningRateRun> EmbeddingCollection::learning_rates() const {
  return impl_->rules->learning_rates();
}

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

}  // namespace hotrow
