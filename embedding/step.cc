#include <algorithm>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "embedding/score_sums_impl.h"
#include "embedding/step_impl.h"
#include "ops/keys/partition.h"
#include "ops/rows/pooled_lookup.h"

namespace hotrow::internal {

namespace {

// The runs of one table: a feature each.
void FindSegments(const Plan& plan, const TakenBatch& input, std::vector<LookupSegment>* segments) {
  segments->clear();
  for (size_t f = 0; f < plan.features.size(); ++f) {
    const std::span<const int64_t> bags = input.bags(f);
    segments->push_back({bags.front(), bags.back(), plan.features[f].table});
  }
}

}  // namespace

absl::Status StepBatch::FindUnique(const ExecContext& ctx, const Plan& plan,
                                   UniqueScratch* scratch) {
  FindSegments(plan, input, &scratch->segments);
  return FindUniqueOf(ctx, plan, scratch);
}

absl::Status StepBatch::FindUniqueOf(const ExecContext& ctx, const Plan& plan,
                                     UniqueScratch* scratch) {
  const auto num_tables = static_cast<int32_t>(plan.tables.size());
  const int64_t n = input.num_lookups();
  inverse.resize(n);
  wanted.counts.resize(n);
  wanted.table_offsets.resize(num_tables + 1);
  scratch->values.resize(n);
  const int64_t workspace_bytes = UniqueWorkspaceBytes(n);
  if (scratch->workspace.size() < workspace_bytes) {
    HOTROW_ASSIGN_OR_RETURN(scratch->workspace,
                            HostBuffer<std::byte>::Create(workspace_bytes, HugePages::kTry));
  }
  HOTROW_RETURN_IF_ERROR(Unique(ctx, {.values = input.values.data(),
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

absl::Status StepBatch::GroupByRow(const ExecContext& ctx, UniqueScratch* scratch) {
  const int64_t num_unique = std::ssize(wanted.keys);
  row_offsets.resize(num_unique + 1);
  lookup_order.resize(input.num_lookups());
  return Partition(ctx, {.part = inverse.data(),
                         .num_items = input.num_lookups(),
                         .num_parts = num_unique,
                         .offsets = row_offsets.data(),
                         .order = lookup_order.data(),
                         .workspace = scratch->workspace.data(),
                         .workspace_bytes = scratch->workspace.size()});
}

void StepBatch::FindScores(const ExecContext& ctx, const Plan& plan) {
  if (!plan.scores) return;
  wanted.scores.assign(wanted.keys.size(), kNoScore);
  if (input.scores.empty()) return;
  constexpr int64_t kKeysPerTask = 1024;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const ScoreRule rule = plan.tables[t].score;
    if (rule == ScoreRule::kNone) continue;
    const int64_t first = wanted.table_offsets[t];
    ParallelFor(ctx.pool, wanted.table_offsets[t + 1] - first, kKeysPerTask,
                [&](int64_t begin, int64_t end) {
                  for (int64_t u = first + begin; u < first + end; ++u) {
                    double score = kNoScore;
                    for (int64_t i = row_offsets[u]; i < row_offsets[u + 1]; ++i) {
                      score = JoinScores(rule, score, input.scores[lookup_order[i]]);
                    }
                    wanted.scores[u] = score;
                  }
                });
  }
}

absl::Status StepBatch::FindOnDevice(const ExecContext& ctx, const Plan& plan,
                                     std::vector<LookupSegment>* segments) {
  FindSegments(plan, input, segments);
  arrays.Clear();
  const size_t values_part = arrays.AddShared(input.values);
  const size_t offsets_part = arrays.AddShared(input.offsets);
  const size_t weights_part = arrays.AddShared(input.weights);
  absl::Status found = arrays.Enqueue(staged, &upload);
  if (found.ok()) {
    found = device_keys.Find(ctx, plan, arrays.At<uint64_t>(values_part), input.num_lookups(),
                             *segments, &upload);
  }
  if (!found.ok()) {
    // What was enqueued reads the batch, the segments and the arrays.
    upload.Wait().IgnoreError();
    return found;
  }
  HOTROW_RETURN_IF_ERROR(device_keys.Group(ctx, &upload));
  at = Pointers();
  at.offsets = arrays.At<int64_t>(offsets_part);
  at.weights = input.weights.empty() ? nullptr : arrays.At<float>(weights_part);
  at.inverse = device_keys.inverse();
  at.row_offsets = device_keys.row_offsets();
  at.lookup_order = device_keys.lookup_order();
  at.value_rows = device_keys.rows().data();
  return absl::OkStatus();
}

absl::Status StepBatch::ServeOnDevice() {
  DeviceKeys& served = served_on_device();
  at.rows = served.rows().data();
  if (rounds) at.served_keys = served.values();
  return tells ? served.Tell() : absl::OkStatus();
}

StepKeys StepBatch::step_keys() const {
  if (staged) {
    const DeviceKeys& keys = served_on_device();
    return {keys.keys(), keys.counts(), keys.table_offsets()};
  }
  return {served().keys.data(), served().counts.data(), served().table_offsets};
}

void StepBatch::FindTrained(const Plan& plan) {
  std::vector<uint8_t>& trained = ruled.trained;
  trained.clear();
  if (!plan.read_only) return;
  trained.resize(served().keys.size());
  if (!alone) {
    // Tables are read only as a whole then.
    for (size_t t = 0; t < plan.tables.size(); ++t) {
      std::fill(trained.begin() + served().table_offsets[t],
                trained.begin() + served().table_offsets[t + 1], plan.tables[t].frozen ? 0 : 1);
    }
    return;
  }
  for (size_t f = 0; f < plan.features.size(); ++f) {
    if (plan.features[f].read_only) continue;
    const std::span<const int64_t> bags = input.bags(f);
    for (int64_t j = bags.front(); j < bags.back(); ++j) trained[inverse[j]] = 1;
  }
}

absl::Status StepBatch::PlaceArrays(bool grouped) {
  const bool with_keys = grouped && rounds;
  const bool with_routes = staged && !alone;
  if (with_keys) {
    const std::vector<RowKey>& keys = served().keys;
    served_keys.resize(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) served_keys[i] = keys[i].key;
  }
  arrays.Clear();
  const size_t offsets_part = arrays.Add(input.offsets);
  const size_t weights_part = arrays.Add(input.weights);
  const size_t inverse_part = arrays.Add(inverse);
  const size_t row_offsets_part = grouped ? arrays.Add(row_offsets) : 0;
  const size_t lookup_order_part = grouped ? arrays.Add(lookup_order) : 0;
  const size_t rows_part = arrays.Add(rows);
  const size_t served_keys_part = with_keys ? arrays.Add(served_keys) : 0;
  const size_t ask_order_part = with_routes ? arrays.Add(shuffled.ask_order) : 0;
  const size_t asked_rows_part = with_routes ? arrays.Add(shuffled.asked_rows) : 0;
  HOTROW_RETURN_IF_ERROR(arrays.Upload(staged, &upload));
  at = Pointers();
  at.offsets = arrays.At<int64_t>(offsets_part);
  at.weights = input.weights.empty() ? nullptr : arrays.At<float>(weights_part);
  at.inverse = arrays.At<int32_t>(inverse_part);
  if (grouped) {
    at.row_offsets = arrays.At<int64_t>(row_offsets_part);
    at.lookup_order = arrays.At<int32_t>(lookup_order_part);
  }
  at.rows = arrays.At<std::byte*>(rows_part);
  at.value_rows = arrays.At<const std::byte*>(rows_part);
  if (const auto read = ruled.weights(); alone && read.data() != rows.data()) {
    value_rows.assign(read.begin(), read.end());
    at.value_rows = value_rows.data();
  }
  if (with_keys) at.served_keys = arrays.At<uint64_t>(served_keys_part);
  if (with_routes) {
    at.ask_order = arrays.At<int32_t>(ask_order_part);
    at.asked_rows = arrays.At<int32_t>(asked_rows_part);
  }
  return absl::OkStatus();
}

absl::Status StepBatch::Pool(const ExecContext& ctx, const Plan& plan,
                             const EmbeddingOutput& output) const {
  TraceSpan span(ctx.trace, "pool");
  std::vector<JaggedFeature> features;
  for (const PlannedFeature& feature : plan.features) {
    features.push_back(PlaceOf(feature, output.pooled, output.unpooled));
    // The shuffle hands out floats.
    if (alone) features.back().precision = plan.tables[feature.table].read_precision;
  }
  return PooledLookup(ctx, {.features = features,
                            .batch_size = input.batch_size,
                            .offsets = at.offsets,
                            .weights = at.weights,
                            .inverse = at.inverse,
                            .rows = at.value_rows});
}

void StepBatch::AddTo(EmbeddingStats* stats) const {
  stats->transfer_host_bytes +=
      arrays.host_bytes() + device_keys.host_bytes() + device_shuffled.served.host_bytes();
  stats->transfer_device_bytes += arrays.device_bytes() + device_keys.device_bytes() +
                                  device_shuffled.device_bytes() +
                                  device_shuffled.served.device_bytes();
  // In training the batch travels from where it lies; the evaluation's goes by way of `arrays`.
  if (device_keys.host_bytes() > 0) stats->transfer_host_bytes += input.bytes();
}

}  // namespace hotrow::internal
