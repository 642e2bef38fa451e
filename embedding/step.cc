#include <algorithm>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "base/trace.h"
#include "embedding/score_sums_impl.h"
#include "embedding/step_impl.h"
#include "ops/keys/partition.h"
#include "ops/rows/pooled_lookup.h"

namespace hotrow::internal {

void StepBatch::FindSegments(std::vector<LookupSegment>* segments) const {
  segments->clear();
  for (size_t f = 0; f < parts_.plan.features.size(); ++f) {
    const std::span<const int64_t> bags = input.bags(f);
    segments->push_back({bags.front(), bags.back(), parts_.plan.features[f].table});
  }
}

absl::Status StepBatch::Pool(const ExecContext& ctx, const EmbeddingOutput& output) const {
  TraceSpan span(ctx.trace, "pool");
  std::vector<JaggedFeature> features;
  for (const PlannedFeature& feature : parts_.plan.features) {
    features.push_back(PlaceOf(feature, output.pooled, output.unpooled));
    // The shuffle hands out floats.
    if (alone()) features.back().precision = parts_.plan.tables[feature.table].read_precision;
  }
  return PooledLookup(ctx, {.features = features,
                            .batch_size = input.batch_size,
                            .offsets = at.offsets,
                            .weights = at.weights,
                            .inverse = at.inverse,
                            .rows = at.value_rows});
}

// --- In host memory

absl::Status HostStep::FindUnique(const ExecContext& ctx, UniqueScratch* scratch) {
  const Plan& plan = parts_.plan;
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

absl::Status HostStep::FindKeys(const ExecContext& ctx, UniqueScratch* scratch) {
  FindSegments(&scratch->segments);
  HOTROW_RETURN_IF_ERROR(FindUnique(ctx, scratch));
  row_offsets_.resize(wanted.keys.size() + 1);
  lookup_order_.resize(input.num_lookups());
  HOTROW_RETURN_IF_ERROR(Partition(ctx, {.part = inverse.data(),
                                         .num_items = input.num_lookups(),
                                         .num_parts = std::ssize(wanted.keys),
                                         .offsets = row_offsets_.data(),
                                         .order = lookup_order_.data(),
                                         .workspace = scratch->workspace.data(),
                                         .workspace_bytes = scratch->workspace.size()}));
  FindScores(ctx);
  return absl::OkStatus();
}

void HostStep::FindScores(const ExecContext& ctx) {
  const Plan& plan = parts_.plan;
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
                    for (int64_t i = row_offsets_[u]; i < row_offsets_[u + 1]; ++i) {
                      score = JoinScores(rule, score, input.scores[lookup_order_[i]]);
                    }
                    wanted.scores[u] = score;
                  }
                });
  }
}

void HostStep::FindTrained() {
  const Plan& plan = parts_.plan;
  std::vector<uint8_t>& trained = ruled.trained;
  trained.clear();
  if (!plan.read_only) return;
  trained.resize(served_keys().keys.size());
  if (!alone()) {
    // Tables are read only as a whole then.
    for (size_t t = 0; t < plan.tables.size(); ++t) {
      std::fill(trained.begin() + served_keys().table_offsets[t],
                trained.begin() + served_keys().table_offsets[t + 1],
                plan.tables[t].frozen ? 0 : 1);
    }
    return;
  }
  for (size_t f = 0; f < plan.features.size(); ++f) {
    if (plan.features[f].read_only) continue;
    const std::span<const int64_t> bags = input.bags(f);
    for (int64_t j = bags.front(); j < bags.back(); ++j) trained[inverse[j]] = 1;
  }
}

absl::Status HostStep::BeginLookup(const ExecContext& ctx, TierStep* tiers, uint32_t update) {
  TraceSpan span(ctx.trace, "gather");
  const std::vector<RowKey>& keys = served_keys().keys;
  places.resize(keys.size());
  HOTROW_RETURN_IF_ERROR(parts_.tiers->Resolve(ctx, tiers, places));
  FindTrained();
  HOTROW_RETURN_IF_ERROR(parts_.rules->Read(ctx, ruled_rows(), RowReader::kTraining, &ruled));
  at = {.offsets = input.offsets.data(),
        .weights = input.weights.empty() ? nullptr : input.weights.data(),
        .inverse = inverse.data(),
        .row_offsets = row_offsets_.data(),
        .lookup_order = lookup_order_.data(),
        .value_rows = ruled.weights().data(),
        .rows = places.data()};
  if (parts_.plan.rounds) {
    served_values_.resize(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) served_values_[i] = keys[i].key;
    at.served_keys = served_values_.data();
  }
  if (alone()) return absl::OkStatus();
  return parts_.shuffle->StartRows(ctx, shuffled, ruled.weights(), update, /*evaluation=*/false);
}

absl::Status HostStep::FinishLookup(const ExecContext& ctx) {
  value_rows.resize(wanted.keys.size());
  at.value_rows = value_rows.data();
  return parts_.shuffle->FinishRows(ctx, shuffled, ruled.weights(), value_rows);
}

}  // namespace hotrow::internal
