#include "embedding/stats.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/check.h"
#include "embedding/stats_fields.h"

namespace hotrow {
namespace {

constexpr auto kTierFields = std::to_array<StatsField<TierStats>>({
    {"budget_bytes", &TierStats::budget_bytes, OverRanks::kSum},
    {"used_bytes", &TierStats::used_bytes, OverRanks::kSum},
    {"peak_bytes", &TierStats::peak_bytes, OverRanks::kSum},
    {"unique_keys", &TierStats::unique_keys, OverRanks::kSum},
    {"unique_hits", &TierStats::unique_hits, OverRanks::kSum},
    {"lookups", &TierStats::lookups, OverRanks::kSum},
    {"lookup_hits", &TierStats::lookup_hits, OverRanks::kSum},
    {"evictions", &TierStats::evictions, OverRanks::kSum},
    {"dirty_writebacks", &TierStats::dirty_writebacks, OverRanks::kSum},
    {"ios", &TierStats::ios, OverRanks::kSum},
    {"rows_read", &TierStats::rows_read, OverRanks::kSum},
    {"rows_written", &TierStats::rows_written, OverRanks::kSum},
    {"bytes_read", &TierStats::bytes_read, OverRanks::kSum},
    {"bytes_written", &TierStats::bytes_written, OverRanks::kSum},
    {"payload_bytes_written", &TierStats::payload_bytes_written, OverRanks::kSum},
    {"snapshot_bytes", &TierStats::snapshot_bytes, OverRanks::kSum},
    {"disk_budget_bytes", &TierStats::disk_budget_bytes, OverRanks::kSum},
    {"disk_used_bytes", &TierStats::disk_used_bytes, OverRanks::kSum},
    {"index_bytes", &TierStats::index_bytes, OverRanks::kSum},
});
// All but the name and the ratio.
static_assert(sizeof(TierStats) ==
              sizeof(std::string) + sizeof(double) + kTierFields.size() * sizeof(int64_t));

constexpr auto kTableFields = std::to_array<StatsField<TableStats>>({
    {"lookups", &TableStats::lookups, OverRanks::kSum},
    {"unique_keys", &TableStats::unique_keys, OverRanks::kSum},
    {"cache_misses", &TableStats::cache_misses, OverRanks::kSum},
    {"cache_unique_misses", &TableStats::cache_unique_misses, OverRanks::kSum},
    {"store_misses", &TableStats::store_misses, OverRanks::kSum},
    {"store_unique_misses", &TableStats::store_unique_misses, OverRanks::kSum},
});
// All but the name and the histograms.
static_assert(sizeof(TableStats) == sizeof(std::string) + kTableFields.size() * sizeof(int64_t) +
                                        2 * sizeof(StepHistogram) + sizeof(ScoreHistogram));
constexpr auto kTableHistograms = {&TableStats::update_gaps, &TableStats::ages};
constexpr size_t kHistogramColumns =
    (2 * sizeof(StepHistogram) + sizeof(ScoreHistogram)) / sizeof(int64_t);  // of a table

// Steps and snapshots are those of all ranks alike; the longest pause is the one that counts.
constexpr auto kFields = std::to_array<StatsField<EmbeddingStats>>({
    {"steps", &EmbeddingStats::steps, OverRanks::kMax},
    {"unique_keys", &EmbeddingStats::unique_keys, OverRanks::kSum},
    {"initialised_rows", &EmbeddingStats::initialised_rows, OverRanks::kSum},
    {"prefetch_waits", &EmbeddingStats::prefetch_waits, OverRanks::kSum},
    {"overflow_rows", &EmbeddingStats::overflow_rows, OverRanks::kSum},
    {"lookup_waits", &EmbeddingStats::lookup_waits, OverRanks::kSum},
    {"lookup_wait_ns", &EmbeddingStats::lookup_wait_ns, OverRanks::kSum},
    {"admission_rejected_keys", &EmbeddingStats::admission_rejected_keys, OverRanks::kSum},
    {"admission_counters", &EmbeddingStats::admission_counters, OverRanks::kSum},
    {"admission_counter_bytes", &EmbeddingStats::admission_counter_bytes, OverRanks::kSum},
    {"row_count_bytes", &EmbeddingStats::row_count_bytes, OverRanks::kSum},
    {"aged_rows", &EmbeddingStats::aged_rows, OverRanks::kSum},
    {"dropped_rows", &EmbeddingStats::dropped_rows, OverRanks::kSum},
    {"snapshots", &EmbeddingStats::snapshots, OverRanks::kMax},
    {"snapshots_failed", &EmbeddingStats::snapshots_failed, OverRanks::kMax},
    {"snapshot_pause_ns", &EmbeddingStats::snapshot_pause_ns, OverRanks::kMax},
    {"snapshot_pause_ns_max", &EmbeddingStats::snapshot_pause_ns_max, OverRanks::kMax},
    {"snapshot_prepare_ns", &EmbeddingStats::snapshot_prepare_ns, OverRanks::kMax},
    {"snapshot_rows", &EmbeddingStats::snapshot_rows, OverRanks::kSum},
    {"snapshot_row_bytes", &EmbeddingStats::snapshot_row_bytes, OverRanks::kSum},
    {"snapshot_rows_copied", &EmbeddingStats::snapshot_rows_copied, OverRanks::kSum},
    {"snapshot_rows_held", &EmbeddingStats::snapshot_rows_held, OverRanks::kSum},
    {"snapshot_update_waits", &EmbeddingStats::snapshot_update_waits, OverRanks::kSum},
    {"snapshot_update_wait_ns", &EmbeddingStats::snapshot_update_wait_ns, OverRanks::kSum},
    {"snapshot_evict_waits", &EmbeddingStats::snapshot_evict_waits, OverRanks::kSum},
    {"snapshot_evict_wait_ns", &EmbeddingStats::snapshot_evict_wait_ns, OverRanks::kSum},
    {"transfer_host_bytes", &EmbeddingStats::transfer_host_bytes, OverRanks::kSum},
    {"transfer_device_bytes", &EmbeddingStats::transfer_device_bytes, OverRanks::kSum},
    {"device_index_bytes", &EmbeddingStats::device_index_bytes, OverRanks::kSum},
    {"device_index_keys", &EmbeddingStats::device_index_keys, OverRanks::kSum},
    {"device_index_left_out", &EmbeddingStats::device_index_left_out, OverRanks::kSum},
    {"device_index_rows_read", &EmbeddingStats::device_index_rows_read, OverRanks::kSum},
    {"evaluation_lookups", &EmbeddingStats::evaluation_lookups, OverRanks::kSum},
    {"evaluation_unique_keys", &EmbeddingStats::evaluation_unique_keys, OverRanks::kSum},
    {"exchange_ids_bytes", &EmbeddingStats::exchange_ids_bytes, OverRanks::kSum},
    {"exchange_forward_bytes", &EmbeddingStats::exchange_forward_bytes, OverRanks::kSum},
    {"exchange_backward_bytes", &EmbeddingStats::exchange_backward_bytes, OverRanks::kSum},
    {"exchange_evaluation_bytes", &EmbeddingStats::exchange_evaluation_bytes, OverRanks::kSum},
    {"exchange_wait_ns", &EmbeddingStats::exchange_wait_ns, OverRanks::kSum},
    {"exchange_buffer_bytes", &EmbeddingStats::exchange_buffer_bytes, OverRanks::kSum},
    {"exchange_feedback_bytes", &EmbeddingStats::exchange_feedback_bytes, OverRanks::kSum},
    {"exchange_feedback_keys", &EmbeddingStats::exchange_feedback_keys, OverRanks::kSum},
    {"exchange_feedback_hits", &EmbeddingStats::exchange_feedback_hits, OverRanks::kSum},
});
static_assert(sizeof(EmbeddingStats) == sizeof(std::vector<TierStats>) +
                                            sizeof(std::vector<TableStats>) +
                                            kFields.size() * sizeof(int64_t));

template <typename Struct>
void Append(const Struct& from, std::span<const StatsField<Struct>> fields,
            std::vector<int64_t>* row) {
  for (const StatsField<Struct>& field : fields) row->push_back(from.*field.count);
}

// The fields are columns *column on of `rows`, each `width` long.
template <typename Struct>
void Merge(std::span<const int64_t> rows, size_t width, std::span<const StatsField<Struct>> fields,
           size_t* column, Struct* to) {
  for (const StatsField<Struct>& field : fields) {
    int64_t merged = rows[*column];
    for (size_t i = *column + width; i < rows.size(); i += width) {
      merged = field.over_ranks == OverRanks::kSum ? merged + rows[i] : std::max(merged, rows[i]);
    }
    to->*field.count = merged;
    ++*column;
  }
}

void Append(const StepHistogram& from, std::vector<int64_t>* row) {
  row->insert(row->end(), from.counts.begin(), from.counts.end());
  row->push_back(from.sum);
}

// Adds a column up.
int64_t MergeSum(std::span<const int64_t> rows, size_t width, size_t* column) {
  int64_t sum = 0;
  for (size_t i = *column; i < rows.size(); i += width) sum += rows[i];
  ++*column;
  return sum;
}

void Merge(std::span<const int64_t> rows, size_t width, size_t* column, StepHistogram* to) {
  for (int64_t& count : to->counts) count = MergeSum(rows, width, column);
  to->sum = MergeSum(rows, width, column);
}

}  // namespace

void TierStats::SetWriteAmplification() {
  if (payload_bytes_written == 0) return;
  write_amplification =
      static_cast<double>(bytes_written) / static_cast<double>(payload_bytes_written);
}

std::span<const StatsField<TierStats>> TierStatsFields() { return kTierFields; }
std::span<const StatsField<TableStats>> TableStatsFields() { return kTableFields; }
std::span<const StatsField<EmbeddingStats>> EmbeddingStatsFields() { return kFields; }

std::vector<int64_t> PackCounts(const EmbeddingStats& stats) {
  std::vector<int64_t> row;
  for (const TierStats& tier : stats.tiers) Append(tier, TierStatsFields(), &row);
  for (const TableStats& table : stats.tables) {
    Append(table, TableStatsFields(), &row);
    for (const auto histogram : kTableHistograms) Append(table.*histogram, &row);
    row.insert(row.end(), table.scores.counts.begin(), table.scores.counts.end());
  }
  Append(stats, EmbeddingStatsFields(), &row);
  return row;
}

void MergeCounts(std::span<const int64_t> rows, EmbeddingStats* stats) {
  const size_t width = stats->tiers.size() * kTierFields.size() +
                       stats->tables.size() * (kTableFields.size() + kHistogramColumns) +
                       kFields.size();
  HOTROW_CHECK(!rows.empty() && rows.size() % width == 0);
  size_t column = 0;
  for (TierStats& tier : stats->tiers) {
    Merge(rows, width, TierStatsFields(), &column, &tier);
    tier.SetWriteAmplification();
  }
  for (TableStats& table : stats->tables) {
    Merge(rows, width, TableStatsFields(), &column, &table);
    for (const auto histogram : kTableHistograms) {
      Merge(rows, width, &column, &(table.*histogram));
    }
    for (int64_t& count : table.scores.counts) count = MergeSum(rows, width, &column);
  }
  Merge(rows, width, EmbeddingStatsFields(), &column, stats);
}

}  // namespace hotrow
