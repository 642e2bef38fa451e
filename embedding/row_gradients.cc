#include <algorithm>

#include "base/status_macros.h"
#include "base/trace.h"
#include "embedding/row_gradients_impl.h"
#include "ops/keys/key_rows.h"
#include "ops/update/fused_sparse_update.h"
#include "ops/update/gradient_segment_sum.h"

namespace hotrow::internal {
namespace {

// Room for `size` elements. What was there is lost when it grows, by a quarter more than is needed,
// so that batches of nearly equal size do not each take new memory.
template <typename T>
absl::Status EnsureSize(const ExecContext& ctx, int64_t size, DeviceMemory<T>* memory) {
  if (memory->size() >= size) return absl::OkStatus();
  return memory->Reserve(size + size / 4, {ctx.device, ctx.stream});
}

}  // namespace

absl::Status RowGradients::PlaceRows(std::span<const int64_t> offsets, DeviceMemory<float>* floats,
                                     DeviceMemory<float*>* rows) const {
  std::vector<FloatRows> runs;
  int64_t total = 0;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    const int64_t dim = plan_.tables[t].layout.dim;
    runs.push_back({.begin = offsets[t], .end = offsets[t + 1], .stride = dim});
    total += (offsets[t + 1] - offsets[t]) * dim;
  }
  HOTROW_RETURN_IF_ERROR(EnsureSize(ctx_, total, floats));
  HOTROW_RETURN_IF_ERROR(EnsureSize(ctx_, offsets.back(), rows));
  float* next = floats->data();
  for (FloatRows& run : runs) {
    run.first = next;
    next += (run.end - run.begin) * run.stride;
  }
  return AddressRuns(ctx_, {.runs = runs, .rows = rows->data()});
}

// Their lookups count as ever, so that nothing else need know.
void RowGradients::TakeReadOnly(const TakenBatch& input, std::span<JaggedFeature> features) {
  int64_t size = 0;
  for (size_t f = 0; f < features.size(); ++f) {
    if (!plan_.features[f].read_only) continue;
    size = std::max(size, std::max(input.batch_size, input.num_lookups()) * features[f].dim);
  }
  if (std::ssize(zeros_) < size) zeros_.resize(static_cast<size_t>(size));
  for (size_t f = 0; f < features.size(); ++f) {
    if (!plan_.features[f].read_only) continue;
    features[f].data = zeros_.data();
    features[f].stride = features[f].dim;
  }
}

std::vector<JaggedFeature> RowGradients::FeaturesOf(const EmbeddingGradient& gradient,
                                                    const TakenBatch& input) {
  std::vector<JaggedFeature> features;
  for (const PlannedFeature& feature : plan_.features) {
    features.push_back(PlaceOf(feature, gradient.pooled, gradient.unpooled));
  }
  if (plan_.read_only) TakeReadOnly(input, features);
  return features;
}

absl::Status RowGradients::Begin(const EmbeddingGradient& gradient, uint32_t step,
                                 StepBatch* batch) {
  StepBatch& b = *batch;
  const int64_t num_wanted = b.wanted_offsets().back();
  HOTROW_RETURN_IF_ERROR(PlaceRows(b.wanted_offsets(), &wanted_, &wanted_rows_));
  b.at.gradients = wanted_rows_.data();
  {
    TraceSpan span(ctx_.trace, "segment_sum");
    const std::vector<JaggedFeature> features = FeaturesOf(gradient, b.input);
    int32_t widest_dim = 0;
    for (const JaggedFeature& feature : features) widest_dim = std::max(widest_dim, feature.dim);
    const int64_t workspace_bytes =
        GradientSegmentSumWorkspaceBytes(b.input.num_lookups(), ctx_.device, widest_dim);
    HOTROW_RETURN_IF_ERROR(EnsureSize(ctx_, workspace_bytes, &workspace_));
    HOTROW_RETURN_IF_ERROR(GradientSegmentSum(ctx_, {.features = features,
                                                     .batch_size = b.input.batch_size,
                                                     .offsets = b.at.offsets,
                                                     .weights = b.at.weights,
                                                     .row_offsets = b.at.row_offsets,
                                                     .lookup_order = b.at.lookup_order,
                                                     .num_rows = num_wanted,
                                                     .gradients = b.at.gradients,
                                                     .num_lookups = b.input.num_lookups(),
                                                     .workspace = workspace_.data(),
                                                     .workspace_bytes = workspace_bytes}));
  }
  if (alone_) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(PlaceRows(b.served().table_offsets, &served_, &served_rows_));
  return b.StartGradients(ctx_, step, served_rows_.data());
}

absl::Status RowGradients::Update(const EmbeddingGradient& gradient, FusedSparseUpdateArgs update,
                                  const StepBatch& batch) {
  const std::vector<JaggedFeature> features = FeaturesOf(gradient, batch.input);
  int32_t widest_dim = 0;
  for (const FusedTable& table : update.tables) {
    widest_dim = std::max(widest_dim, table.layout->dim);
  }
  update.features = features;
  update.batch_size = batch.input.batch_size;
  update.offsets = batch.at.offsets;
  update.weights = batch.at.weights;
  update.inverse = batch.at.inverse;
  update.row_offsets = batch.at.row_offsets;
  update.lookup_order = batch.at.lookup_order;
  update.num_rows = batch.wanted_offsets().back();
  update.num_lookups = batch.input.num_lookups();
  update.workspace_bytes =
      FusedSparseUpdateWorkspaceBytes(std::ssize(features), update.num_lookups, widest_dim);
  HOTROW_RETURN_IF_ERROR(EnsureSize(ctx_, update.workspace_bytes, &workspace_));
  update.workspace = workspace_.data();
  return FusedSparseUpdate(ctx_, update);
}

absl::StatusOr<float* const*> RowGradients::Finish(StepBatch* batch) {
  if (alone_) return batch->at.gradients;
  TraceSpan span(ctx_.trace, "gradient_shuffle");
  HOTROW_RETURN_IF_ERROR(batch->FinishGradients(ctx_, served_rows_.data()));
  return served_rows_.data();
}

}  // namespace hotrow::internal
