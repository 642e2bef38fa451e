#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "embedding/step_impl.h"
#include "ops/partition.h"
#include "ops/pooled_lookup.h"

namespace hotrow::internal {

// Unique and Partition number lookups with int32.
static constexpr int64_t kMaxLookupsPerBatch = INT32_MAX;

absl::Status ValidateBatch(const Plan& plan, int64_t max_batch_size, const JaggedBatch& batch) {
  const auto num_features = static_cast<int64_t>(plan.features.size());
  if (batch.batch_size < 0 || batch.batch_size > max_batch_size) {
    return absl::InvalidArgumentError(absl::StrCat("batch_size ", batch.batch_size,
                                                   ": must lie in [0, ", max_batch_size,
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

absl::Status CheckPointers(const Plan& plan, bool pooled, size_t unpooled, const char* what) {
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

void StepBatch::Assign(const JaggedBatch& batch) {
  batch_size = batch.batch_size;
  num_lookups = static_cast<int64_t>(batch.values.size());
  offsets.assign(batch.offsets.begin(), batch.offsets.end());
  weights.assign(batch.weights.begin(), batch.weights.end());
}

absl::Status StepBatch::FindUnique(const ExecContext& ctx, const Plan& plan,
                                   const JaggedBatch& batch, UniqueScratch* scratch) {
  const auto num_features = static_cast<int64_t>(plan.features.size());
  const auto num_tables = static_cast<int32_t>(plan.tables.size());
  const auto n = static_cast<int64_t>(batch.values.size());
  inverse.resize(n);
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
  if (scratch->workspace.size() < workspace_bytes) {
    HOTROW_ASSIGN_OR_RETURN(scratch->workspace,
                            HostBuffer<std::byte>::Create(workspace_bytes, HugePages::kTry));
  }
  HOTROW_RETURN_IF_ERROR(Unique(ctx, {.values = batch.values.data(),
                                      .num_values = n,
                                      .segments = scratch->segments,
                                      .num_tables = num_tables,
                                      .unique = scratch->values.data(),
                                      .table_offsets = wanted.table_offsets.data(),
                                      .inverse = inverse.data(),
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

absl::Status StepBatch::GroupByRow(const ExecContext& ctx) {
  const int64_t num_unique = std::ssize(wanted.keys);
  row_offsets.resize(num_unique + 1);
  lookup_order.resize(num_lookups);
  return Partition(ctx, {.part = inverse.data(),
                         .num_items = num_lookups,
                         .num_parts = num_unique,
                         .offsets = row_offsets.data(),
                         .order = lookup_order.data()});
}

absl::Status StepBatch::PlaceArrays(bool grouped) {
  const bool with_keys = grouped && rounds;
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
  HOTROW_RETURN_IF_ERROR(arrays.Upload(staged, &upload));
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

absl::Status StepBatch::Pool(const ExecContext& ctx, const Plan& plan,
                             const EmbeddingOutput& output) const {
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
                        .precision = alone ? plan.tables[feature.table].layout.precision
                                           : WeightsPrecision::kFp32});
  }
  return PooledLookup(ctx, {.features = features,
                            .batch_size = batch_size,
                            .offsets = at.offsets,
                            .weights = at.weights,
                            .inverse = at.inverse,
                            .rows = at.value_rows});
}

void StepBatch::AddTo(EmbeddingStats* stats) const {
  for (const StepArrays* const part : {&arrays, &gradient_arrays}) {
    stats->transfer_host_bytes += part->host_bytes();
    stats->transfer_device_bytes += part->device_bytes();
  }
}

absl::Status EndJobUnlessOk(Communicator* family, absl::Status status) {
  if (family != nullptr && !status.ok()) family->Abort(std::string(status.message()));
  return status;
}

}  // namespace hotrow::internal
