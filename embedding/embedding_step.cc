#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device_stream.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "embedding/embedding_collection_impl.h"
#include "ops/keys/key_rows.h"

namespace hotrow {

using internal::PlannedTable;
using internal::StepBatch;
using internal::StepKeys;
using internal::TakenBatch;

namespace {

absl::Status NoStepError(const char* call) {
  return absl::FailedPreconditionError(
      absl::StrCat(call, ": this is no step of Prefetch, or it was moved from"));
}

}  // namespace

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
  collection->End(impl_.get(), /*updated=*/false).IgnoreError();
  collection->free_steps.push_back(std::move(impl_));  // there is room
}

int64_t EmbeddingStep::batch_size() const {
  return impl_ == nullptr || impl_->awaits_batch() ? 0 : impl_->batch->input.batch_size;
}
int64_t EmbeddingStep::num_lookups() const {
  return impl_ == nullptr || impl_->awaits_batch() ? 0 : impl_->batch->input.num_lookups();
}
int64_t EmbeddingStep::num_unique_keys() const {
  if (impl_ == nullptr) return 0;
  const bool known =
      impl_->use != Impl::Use::kPrefetched || impl_->collection->options.prefetch_depth == 0;
  if (!known) return 0;  // a thread of the pipeline may be setting them
  const std::span<const int64_t> offsets = impl_->batch->wanted_offsets();
  return offsets.empty() ? 0 : offsets.back();
}

absl::StatusOr<std::unique_ptr<EmbeddingStep::Impl>> EmbeddingCollection::Impl::NewStep() {
  std::unique_ptr<EmbeddingStep::Impl> step;
  // A device may still be at work with the step that ended last, and one that takes its memory
  // waits for that: so there is one more.
  const bool rests = ctx.device != Device::kCpu && options.prefetch_depth > 0;
  if (free_steps.size() <= (rests ? 1 : 0)) {
    step = std::make_unique<EmbeddingStep::Impl>();
    step->collection = this;
    HOTROW_ASSIGN_OR_RETURN(step->batch, StepBatch::Create(Parts(), ctx));
    free_steps.reserve(free_steps.size() + outstanding.size() + 1);
  } else {
    step = std::move(free_steps.front());
    free_steps.erase(free_steps.begin());
  }
  step->use = EmbeddingStep::Impl::Use::kPrefetched;
  return step;
}

absl::Status EmbeddingCollection::Impl::End(EmbeddingStep::Impl* step, bool updated) {
  const absl::Status ended = Changing("the end of a step", [&]() -> absl::Status {
    // Only this step can have begun anything: it was the oldest.
    step->batch->End(ctx, &step->tiers, step->may_have_begun(), updated);
    return absl::OkStatus();
  });
  const auto at = std::find(outstanding.begin(), outstanding.end(), step);
  if (at != outstanding.end()) {
    outstanding.erase(at);
    prefetcher->Forget(step);
  }
  step->take_late = nullptr;
  // Last: what it lets go of may be code of the caller.
  step->batch->input.Clear();
  return ended;
}

// --- Its lookup

absl::Status EmbeddingCollection::Impl::BeginLookup(EmbeddingStep::Impl* step) {
  int64_t waited_ns = 0;
  const int64_t begin_ns = NowNanos();
  const absl::Status resident = prefetcher->Wait(step, &waited_ns);
  if (waited_ns > 0) {
    lookup_waits += 1;
    lookup_wait_ns += waited_ns;
    if (ctx.trace != nullptr) ctx.trace->Record("wait", begin_ns, begin_ns + waited_ns);
  }
  step->use = EmbeddingStep::Impl::Use::kFailed;  // unless all goes well
  HOTROW_RETURN_IF_ERROR(resident);
  HOTROW_RETURN_IF_ERROR(step->batch->BeginLookup(ctx, &step->tiers, steps + 1));
  step->use = EmbeddingStep::Impl::Use::kBegun;
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Impl::Lookup(EmbeddingStep::Impl* step,
                                               const EmbeddingOutput& output) {
  StepBatch& b = *step->batch;
  if (!b.alone()) {
    TraceSpan span(ctx.trace, "embedding_shuffle");
    HOTROW_RETURN_IF_ERROR(b.FinishLookup(ctx));
  }
  HOTROW_RETURN_IF_ERROR(b.Pool(ctx, output));
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
  return c.Together("Lookup", [&] { return c.BeginOldest(impl_.get()); });
}

absl::Status EmbeddingStep::Lookup(const EmbeddingOutput& output) {
  if (impl_ == nullptr) return NoStepError("Lookup");
  EmbeddingCollection::Impl& c = *impl_->collection;
  return c.Together("Lookup", [&]() -> absl::Status {
    // A late batch has its sizes then.
    if (impl_->late) HOTROW_RETURN_IF_ERROR(c.BeginOldest(impl_.get()));
    HOTROW_RETURN_IF_ERROR(internal::CheckShapes(c.plan, impl_->batch->input, output));
    HOTROW_RETURN_IF_ERROR(c.BeginOldest(impl_.get()));
    return c.Lookup(impl_.get(), output);
  });
}

absl::Status EmbeddingCollection::Impl::LookupRows(EmbeddingStep::Impl* step, const float** rows) {
  const StepBatch& b = *step->batch;
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
  if (impl_ == nullptr || impl_->awaits_batch()) return false;
  const TakenBatch& input = impl_->batch->input;
  const internal::Plan& plan = impl_->collection->plan;
  if (!impl_->batch->alone() || !input.single_lookups || !input.weights.empty()) return false;
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
  return c.Alone("LookupRows", [&] { return c.LookupRows(impl_.get(), rows); });
}

// --- Its update

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
  return internal::CheckShapes(plan, step.batch->input, gradient);
}

absl::Status EmbeddingCollection::Impl::BeginUpdate(EmbeddingStep::Impl* step,
                                                    const EmbeddingGradient& gradient) {
  HOTROW_RETURN_IF_ERROR(CheckUpdate(*step, gradient));
  HOTROW_RETURN_IF_ERROR(gradients->Begin(gradient, steps + 1, step->batch.get()));
  step->use = EmbeddingStep::Impl::Use::kUpdateBegun;
  step->skip = gradient.skip;
  return absl::OkStatus();
}

absl::Status EmbeddingStep::BeginUpdate(const EmbeddingGradient& gradient) {
  if (impl_ == nullptr) return NoStepError("Update");
  EmbeddingCollection::Impl& c = *impl_->collection;
  return c.Together("Update", [&] { return c.BeginUpdate(impl_.get(), gradient); });
}

absl::Status EmbeddingStep::Update(const EmbeddingGradient& gradient,
                                   float learning_rate_factor) && {
  EmbeddingStep step = std::move(*this);  // it ends here
  if (step.impl_ == nullptr) return NoStepError("Update");
  EmbeddingCollection::Impl& c = *step.impl_->collection;
  return c.Together("Update", [&]() -> absl::Status {
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
    return c.Changing("Update",
                      [&] { return c.Update(step.impl_.get(), gradient, learning_rate_factor); });
  });
}

absl::Status EmbeddingCollection::Impl::Update(EmbeddingStep::Impl* step,
                                               const EmbeddingGradient& gradient,
                                               float learning_rate_factor) {
  StepBatch& b = *step->batch;
  const bool begun = step->use == EmbeddingStep::Impl::Use::kUpdateBegun;
  HOTROW_RETURN_IF_ERROR(rules->ChooseTrained(ctx, b.ruled_rows(), steps + 1, &b.ruled));
  const float* const* sums = nullptr;
  if (begun) {
    HOTROW_ASSIGN_OR_RETURN(float* const* const finished, gradients->Finish(&b));
    HOTROW_RETURN_IF_ERROR(rules->ScaleGradients(ctx, b.ruled_rows().keys, b.ruled, finished));
    sums = finished;
  }
  const StepKeys& served = step->tiers.keys;
  HOTROW_RETURN_IF_ERROR(tiers->ResolveForUpdate(&step->tiers, b.ruled.trained, b.rows()));

  TraceSpan span(ctx.trace, "sparse_update");
  HOTROW_RETURN_IF_ERROR(tiers->PrepareForUpdate(ctx, step->tiers));
  HOTROW_RETURN_IF_ERROR(rules->BeforeUpdate(ctx, b.ruled_rows(), steps + 1, b.ruled));
  HOTROW_RETURN_IF_ERROR(begun ? UpdateRows(b, sums, learning_rate_factor, step->skip)
                               : UpdateRowsFused(b, gradient, learning_rate_factor));
  rules->AfterUpdate(b.ruled_rows(), b.ruled);
  HOTROW_RETURN_IF_ERROR(
      EnqueueCopy(ctx, read_back_rows.data(), initialised_rows.data(), sizeof(int64_t)));
  steps += 1;
  absl::Status ended = rules->EndStep(steps, learning_rate_factor);
  unique_keys += served.size();
  CountLookups(b, served);
  // What the caller's function throws takes nothing from the rows.
  ended.Update(Caught("on_update", [&] { return TellOfUpdate(&b); }));
  ended.Update(End(step, /*updated=*/true));
  // What has aged since a snapshot began still belongs to it.
  if (snapshots->ended()) rules->DropAged(steps, tiers->store());
  return ended;
}

void EmbeddingCollection::Impl::CountLookups(const StepBatch& batch, const StepKeys& served) {
  const std::vector<int64_t> lookups = LookupsOf(batch);
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    TableStats& table = tables[static_cast<size_t>(plan.tables[t].config)];
    table.lookups += lookups[t];
    table.unique_keys += served.table_offsets[t + 1] - served.table_offsets[t];
  }
}

absl::Status EmbeddingCollection::Impl::TellOfUpdate(StepBatch* batch) {
  if (options.on_update == nullptr) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const StepKeys told, batch->Told());
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const int64_t begin = told.table_offsets[t];
    const auto n = static_cast<size_t>(told.table_offsets[t + 1] - begin);
    options.on_update(static_cast<uint32_t>(plan.tables[t].config), {told.keys + begin, n},
                      {told.counts + begin, n});
  }
  return absl::OkStatus();
}

absl::Status EmbeddingCollection::Impl::UpdateRows(const StepBatch& b, const float* const* sums,
                                                   float learning_rate_factor,
                                                   const uint32_t* skip) {
  const StepKeys served = b.served();
  const std::vector<uint8_t>& marks = b.ruled.trained;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const PlannedTable& table = plan.tables[t];
    if (table.frozen) continue;
    const int64_t begin = served.table_offsets[t];
    int64_t n = served.table_offsets[t + 1] - begin;
    std::byte* const* rows = b.at.rows + begin;
    const float* const* row_gradients = sums + begin;
    const uint64_t* keys = b.at.served_keys == nullptr ? nullptr : b.at.served_keys + begin;
    if (!marks.empty()) {
      trained.Take({marks.data() + begin, static_cast<size_t>(n)}, rows, row_gradients, keys);
      n = std::ssize(trained.rows);
      rows = trained.rows.data();
      row_gradients = trained.gradients.data();
      if (keys != nullptr) keys = trained.keys.data();
    }
    // A row whose last step is 0 has never been updated: it joins its table with this update.
    HOTROW_RETURN_IF_ERROR(SparseUpdate(ctx, {.config = options.tables[table.config].optimizer,
                                              .layout = &table.layout,
                                              .num_rows = n,
                                              .rows = rows,
                                              .gradients = row_gradients,
                                              .learning_rate_factor = learning_rate_factor,
                                              .step = steps + 1,
                                              .seed = options.seed,
                                              .table = static_cast<uint32_t>(table.config),
                                              .keys = keys,
                                              .new_rows = initialised_rows.data(),
                                              .history = rules->history(t),
                                              .skip = skip}));
  }
  return absl::OkStatus();
}

std::vector<int64_t> EmbeddingCollection::Impl::LookupsOf(const StepBatch& batch) const {
  std::vector<int64_t> lookups(plan.tables.size());
  for (size_t f = 0; f < plan.features.size(); ++f) {
    const auto bag = static_cast<int64_t>(f) * batch.input.batch_size;
    lookups[static_cast<size_t>(plan.features[f].table)] +=
        batch.input.offsets[static_cast<size_t>(bag + batch.input.batch_size)] -
        batch.input.offsets[static_cast<size_t>(bag)];
  }
  return lookups;
}

absl::Status EmbeddingCollection::Impl::UpdateRowsFused(const StepBatch& b,
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
                            .new_rows = initialised_rows.data(),
                            .skip = gradient.skip},
                           b);
}

}  // namespace hotrow
