#include "embedding/stats.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/exposition.h"
#include "store/store_facts.h"

namespace hotrow {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter;
constexpr MetricKind kGauge = MetricKind::kGauge;

// --- Of the whole collection

struct CollectionFamily {
  const char* name;
  MetricKind kind;
  const char* help;
  int64_t EmbeddingStats::*count;
  bool nanos = false;  // counted in nanoseconds, written in seconds
};

constexpr CollectionFamily kCollection[] = {
    {"hotrow_updates_total", kCounter, "Steps that updated the tables in this process.",
     &EmbeddingStats::steps},
    {"hotrow_unique_keys_total", kCounter,
     "Distinct keys of training batches, summed over the batches.", &EmbeddingStats::unique_keys},
    {"hotrow_initialised_rows_total", kCounter, "Rows that joined a table by their first update.",
     &EmbeddingStats::initialised_rows},
    {"hotrow_rejected_keys_total", kCounter,
     "Distinct keys that a step left without a row, summed over the steps.",
     &EmbeddingStats::admission_rejected_keys},
    {"hotrow_admission_counters", kGauge, "Keys without a row whose lookups are counted.",
     &EmbeddingStats::admission_counters},
    {"hotrow_admission_counter_bytes", kGauge, "Memory of these counters, outside all tiers.",
     &EmbeddingStats::admission_counter_bytes},
    {"hotrow_row_count_bytes", kGauge,
     "Memory of the counts of rows by age and score, outside all tiers.",
     &EmbeddingStats::row_count_bytes},
    {"hotrow_aged_rows_total", kCounter,
     "Rows that had aged when their key came back, and began afresh.", &EmbeddingStats::aged_rows},
    {"hotrow_dropped_rows_total", kCounter, "Aged rows that the store has dropped.",
     &EmbeddingStats::dropped_rows},
    {"hotrow_prefetch_waits_total", kCounter,
     "Prefetches that waited because pinned rows left no room.", &EmbeddingStats::prefetch_waits},
    {"hotrow_overflow_rows_total", kCounter,
     "Rows that found their buckets full and went to the cache's overflow area.",
     &EmbeddingStats::overflow_rows},
    {"hotrow_lookup_waits_total", kCounter, "Lookups whose rows were not resident yet.",
     &EmbeddingStats::lookup_waits},
    {"hotrow_lookup_wait_seconds_total", kCounter, "How long these lookups waited for their rows.",
     &EmbeddingStats::lookup_wait_ns, true},
    {"hotrow_snapshots_total", kCounter, "Snapshots of the tables that were begun.",
     &EmbeddingStats::snapshots},
    {"hotrow_snapshots_failed_total", kCounter, "Snapshots of the tables that failed.",
     &EmbeddingStats::snapshots_failed},
    {"hotrow_snapshot_pause_seconds", kGauge,
     "How long training stood still for the last snapshot.", &EmbeddingStats::snapshot_pause_ns,
     true},
    {"hotrow_snapshot_pause_max_seconds", kGauge, "The longest pause for a snapshot.",
     &EmbeddingStats::snapshot_pause_ns_max, true},
    {"hotrow_snapshot_prepare_seconds", kGauge,
     "From the beginning of the last snapshot until it was durable.",
     &EmbeddingStats::snapshot_prepare_ns, true},
    {"hotrow_snapshot_rows_total", kCounter,
     "Changed rows that were written to the store for snapshots.", &EmbeddingStats::snapshot_rows},
    {"hotrow_snapshot_row_bytes_total", kCounter, "Bytes of these rows.",
     &EmbeddingStats::snapshot_row_bytes},
    {"hotrow_snapshot_rows_copied_total", kCounter,
     "Rows copied for snapshots because an update was about to change them.",
     &EmbeddingStats::snapshot_rows_copied},
    {"hotrow_snapshot_rows_held_total", kCounter,
     "Evicted rows that were held back until a snapshot was captured.",
     &EmbeddingStats::snapshot_rows_held},
    {"hotrow_snapshot_update_waits_total", kCounter,
     "Updates that waited for room for copies of a snapshot's rows.",
     &EmbeddingStats::snapshot_update_waits},
    {"hotrow_snapshot_update_wait_seconds_total", kCounter, "How long these updates waited.",
     &EmbeddingStats::snapshot_update_wait_ns, true},
    {"hotrow_snapshot_evict_waits_total", kCounter,
     "Prefetches that waited for room for rows held back for a snapshot.",
     &EmbeddingStats::snapshot_evict_waits},
    {"hotrow_snapshot_evict_wait_seconds_total", kCounter, "How long these prefetches waited.",
     &EmbeddingStats::snapshot_evict_wait_ns, true},
    {"hotrow_transfer_host_bytes", kGauge,
     "Page-locked memory between host and device, beside the budgets of the tiers.",
     &EmbeddingStats::transfer_host_bytes},
    {"hotrow_transfer_device_bytes", kGauge,
     "Device memory of steps and gradients, beside the budgets of the tiers.",
     &EmbeddingStats::transfer_device_bytes},
    {"hotrow_device_index_bytes", kGauge, "Device memory that finds rows of a memory store.",
     &EmbeddingStats::device_index_bytes},
    {"hotrow_device_index_keys", kGauge, "Keys whose rows it knows.",
     &EmbeddingStats::device_index_keys},
    {"hotrow_device_index_left_out_total", kCounter, "Keys that found no room in it, each time.",
     &EmbeddingStats::device_index_left_out},
    {"hotrow_device_index_rows_read_total", kCounter,
     "Rows of the store that the device found by itself.", &EmbeddingStats::device_index_rows_read},
    {"hotrow_evaluation_lookups_total", kCounter, "Lookups of evaluation, which no tier counts.",
     &EmbeddingStats::evaluation_lookups},
    {"hotrow_evaluation_unique_keys_total", kCounter,
     "Distinct keys of evaluated batches, summed over the batches.",
     &EmbeddingStats::evaluation_unique_keys},
    {"hotrow_exchange_wait_seconds_total", kCounter,
     "How long this rank waited for rows and gradients of others.",
     &EmbeddingStats::exchange_wait_ns, true},
    {"hotrow_exchange_buffer_bytes", kGauge,
     "Memory of exchanges between ranks, beside the budgets of the tiers.",
     &EmbeddingStats::exchange_buffer_bytes},
    {"hotrow_feedback_bytes", kGauge, "Memory of the residuals of error feedback.",
     &EmbeddingStats::exchange_feedback_bytes},
    {"hotrow_feedback_keys_total", kCounter, "Gradients that were sent with error feedback on.",
     &EmbeddingStats::exchange_feedback_keys},
    {"hotrow_feedback_hits_total", kCounter, "Gradients that had a residual of an earlier step.",
     &EmbeddingStats::exchange_feedback_hits},
};

struct ExchangeCount {
  const char* what;
  int64_t EmbeddingStats::*bytes;
};

constexpr ExchangeCount kExchanges[] = {
    {"ids", &EmbeddingStats::exchange_ids_bytes},
    {"rows", &EmbeddingStats::exchange_forward_bytes},
    {"gradients", &EmbeddingStats::exchange_backward_bytes},
    {"evaluation", &EmbeddingStats::exchange_evaluation_bytes},
};

// --- Of each tier

enum class TierKind {
  kAll,
  kWithLookups,  // that know how many lookups each key had
  kCaches,
  kStore,
  kDisk,  // the store, where it lies on one
};

struct TierFamily {
  const char* name;
  MetricKind kind;
  const char* help;
  int64_t TierStats::*count;
  TierKind of = TierKind::kAll;
};

constexpr TierFamily kTiers[] = {
    {"hotrow_tier_lookups_total", kCounter,
     "Training lookups that a tier was asked for: the top tier all, others what the tier above "
     "missed.",
     &TierStats::lookups, TierKind::kWithLookups},
    {"hotrow_tier_hits_total", kCounter, "Lookups whose row the tier had.", &TierStats::lookup_hits,
     TierKind::kWithLookups},
    {"hotrow_tier_unique_keys_total", kCounter,
     "Distinct keys that a tier was asked for, summed over the batches.", &TierStats::unique_keys},
    {"hotrow_tier_unique_hits_total", kCounter, "Distinct keys whose row the tier had.",
     &TierStats::unique_hits},
    {"hotrow_tier_memory_bytes", kGauge, "Memory that a tier takes, everything counted.",
     &TierStats::used_bytes},
    {"hotrow_tier_memory_budget_bytes", kGauge, "The most memory that a tier may take.",
     &TierStats::budget_bytes},
    {"hotrow_tier_memory_peak_bytes", kGauge, "The most memory that a tier has taken.",
     &TierStats::peak_bytes},
    {"hotrow_tier_index_bytes", kGauge, "The part of the store's memory that finds rows.",
     &TierStats::index_bytes, TierKind::kStore},
    {"hotrow_tier_evictions_total", kCounter, "Rows that left a cache for others.",
     &TierStats::evictions, TierKind::kCaches},
    {"hotrow_tier_write_backs_total", kCounter,
     "Evicted rows that had changed and were written down.", &TierStats::dirty_writebacks,
     TierKind::kCaches},
    {"hotrow_tier_rows_read_total", kCounter, "Rows that were read from the store.",
     &TierStats::rows_read, TierKind::kStore},
    {"hotrow_tier_rows_written_total", kCounter, "Rows that were written to the store.",
     &TierStats::rows_written, TierKind::kStore},
    {"hotrow_disk_operations_total", kCounter, "Reads and writes of the store's disk.",
     &TierStats::ios, TierKind::kDisk},
    {"hotrow_disk_read_bytes_total", kCounter, "Bytes read from the store's disk.",
     &TierStats::bytes_read, TierKind::kDisk},
    {"hotrow_disk_written_bytes_total", kCounter,
     "Bytes written to the store's disk: rows, headers and what the cleaner copies.",
     &TierStats::bytes_written, TierKind::kDisk},
    {"hotrow_disk_payload_bytes_total", kCounter,
     "Bytes of the rows that were written, without anything else.",
     &TierStats::payload_bytes_written, TierKind::kDisk},
    {"hotrow_disk_bytes", kGauge, "Bytes on the store's disk, snapshots included.",
     &TierStats::disk_used_bytes, TierKind::kDisk},
    {"hotrow_disk_budget_bytes", kGauge, "The most bytes that may be there; 0: no limit.",
     &TierStats::disk_budget_bytes, TierKind::kDisk},
    {"hotrow_disk_snapshot_bytes", kGauge, "Bytes there that only snapshots hold.",
     &TierStats::snapshot_bytes, TierKind::kDisk},
};

// --- Of each table

struct TableFamily {
  const char* name;
  const char* help;
  // One of them; of misses two: of the cache, and of the store.
  int64_t TableStats::*count;
  int64_t TableStats::*of_store = nullptr;
};

constexpr TableFamily kTables[] = {
    {"hotrow_table_lookups_total", "Training lookups in a table.", &TableStats::lookups},
    {"hotrow_table_unique_keys_total",
     "Distinct keys of a table in training batches, summed over the batches.",
     &TableStats::unique_keys},
    {"hotrow_table_misses_total",
     "Training lookups whose row a tier was asked for and did not have, counted when rows are "
     "prefetched.",
     &TableStats::cache_misses, &TableStats::store_misses},
    {"hotrow_table_unique_misses_total", "The same with each key counted once a batch.",
     &TableStats::cache_unique_misses, &TableStats::store_unique_misses},
};

std::vector<double> AgeBounds() {
  return {StepHistogram::kBounds.begin(), StepHistogram::kBounds.end()};
}

// Samples of a gauge with a label `le`: how many rows of a table lie at or below each bound.
template <typename Histogram>
void AppendUpTo(const std::string& table, const Histogram& histogram, ExpositionWriter* out) {
  int64_t rows = 0;
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    rows += histogram.counts[i];
    const std::string bound =
        i < Histogram::kBounds.size() ? absl::StrCat(Histogram::kBounds[i]) : std::string("+Inf");
    out->Sample({{{"table", table}, {"le", bound}}}, rows);
  }
}

void AppendAges(const std::vector<TableStats>& tables, ExpositionWriter* out) {
  const std::vector<double> bounds = AgeBounds();
  out->Family("hotrow_row_age_steps", MetricKind::kHistogram,
              "Steps between two updates of a row, noted in every 64th step; rows that join, or "
              "had aged, do not count.");
  for (const TableStats& table : tables) {
    out->Buckets({{{"table", table.name}}}, bounds, table.update_gaps.counts,
                 static_cast<double>(table.update_gaps.sum));
  }
  bool any = false;
  for (const TableStats& table : tables) any = any || !(table.ages == StepHistogram());
  if (!any) return;
  out->Family("hotrow_living_rows", kGauge,
              "Living rows of a table with a floor or a capacity, by steps since the first step of "
              "the group of row_limit_steps in which they were updated last.");
  for (const TableStats& table : tables) {
    if (!(table.ages == StepHistogram())) AppendUpTo(table.name, table.ages, out);
  }
}

void AppendScores(const std::vector<TableStats>& tables, ExpositionWriter* out) {
  bool any = false;
  for (const TableStats& table : tables) any = any || !(table.scores == ScoreHistogram());
  if (!any) return;
  out->Family("hotrow_living_row_scores", kGauge,
              "Living rows of a table whose capacity goes by score, by score, to within 1/128.");
  for (const TableStats& table : tables) {
    if (!(table.scores == ScoreHistogram())) AppendUpTo(table.name, table.scores, out);
  }
}

// The tiers of a collection, and what they are.
class TierView {
 public:
  explicit TierView(const std::vector<TierStats>& tiers) : tiers_(tiers) {}

  bool is_store(size_t i) const { return i + 1 == tiers_.size(); }
  bool is_disk(size_t i) const {
    const StoreFacts* const facts = is_store(i) ? FindStoreFacts(tiers_[i].name) : nullptr;
    return facts != nullptr && facts->on_disk;
  }
  // A cache below another one is told of keys alone.
  bool has_lookups(size_t i) const { return i == 0 || is_store(i); }
  bool Has(size_t i, TierKind of) const {
    switch (of) {
      case TierKind::kAll:
        return true;
      case TierKind::kWithLookups:
        return has_lookups(i);
      case TierKind::kCaches:
        return !is_store(i);
      case TierKind::kStore:
        return is_store(i);
      case TierKind::kDisk:
        return is_disk(i);
    }
    return false;
  }
  bool HasAny(TierKind of) const {
    for (size_t i = 0; i < tiers_.size(); ++i) {
      if (Has(i, of)) return true;
    }
    return false;
  }

 private:
  const std::vector<TierStats>& tiers_;
};

double Ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

void AppendHierarchy(const EmbeddingStats& stats, const TierView& view, ExpositionWriter* out) {
  int64_t hits = 0;
  for (size_t i = 0; i < stats.tiers.size(); ++i) {
    if (!view.is_disk(i)) hits += stats.tiers[i].lookup_hits;
    // A lower bound: each of these keys has one lookup or more.
    if (!view.has_lookups(i)) hits += stats.tiers[i].unique_hits;
  }
  const TierStats& top = stats.tiers.front();
  const TierStats& store = stats.tiers.back();
  out->Family("hotrow_lookups_total", kCounter, "Training lookups.");
  out->Sample(top.lookups);
  out->Family("hotrow_memory_hits_total", kCounter,
              "Lookups whose row a tier in memory had, a device's included.");
  out->Sample(hits);
  out->Family("hotrow_new_key_lookups_total", kCounter,
              "Lookups of keys that had no row in any tier.");
  out->Sample(store.lookups - store.lookup_hits);
  out->Family(
      "hotrow_hit_ratio", kGauge,
      "Hit rate of the whole hierarchy: share of all lookups whose row a tier in memory had.");
  out->Sample({}, Ratio(hits, top.lookups));
}

}  // namespace

void AppendMetrics(const EmbeddingStats& stats, ExpositionWriter* out) {
  for (const CollectionFamily& family : kCollection) {
    out->Family(family.name, family.kind, family.help);
    const int64_t count = stats.*family.count;
    if (family.nanos) {
      out->Sample({}, 1e-9 * static_cast<double>(count));
    } else {
      out->Sample(count);
    }
  }
  out->Family("hotrow_exchange_bytes_total", kCounter, "Bytes sent to other ranks.");
  for (const ExchangeCount& exchange : kExchanges) {
    out->Sample({{{"what", exchange.what}}}, stats.*exchange.bytes);
  }
  // A collection has a tier at least; a struct that nobody filled has none.
  if (stats.tiers.empty()) return;
  const TierView view(stats.tiers);
  AppendHierarchy(stats, view, out);
  for (const TierFamily& family : kTiers) {
    if (!view.HasAny(family.of)) continue;
    out->Family(family.name, family.kind, family.help);
    for (size_t i = 0; i < stats.tiers.size(); ++i) {
      const TierStats& tier = stats.tiers[i];
      if (view.Has(i, family.of)) out->Sample({{{"tier", tier.name}}}, tier.*family.count);
    }
  }
  const TierStats& store = stats.tiers.back();
  if (view.HasAny(TierKind::kDisk)) {
    out->Family("hotrow_disk_write_amplification_ratio", kGauge,
                "Bytes written to the store's disk over the bytes of the rows; 0: none yet.");
    out->Sample({{{"tier", store.name}}}, store.write_amplification);
  }
  const bool cached = stats.tiers.size() > 1;
  for (const TableFamily& family : kTables) {
    if (stats.tables.empty()) break;
    out->Family(family.name, kCounter, family.help);
    for (const TableStats& table : stats.tables) {
      if (family.of_store == nullptr) {
        out->Sample({{{"table", table.name}}}, table.*family.count);
        continue;
      }
      if (cached) {
        out->Sample({{{"table", table.name}, {"tier", stats.tiers.front().name}}},
                    table.*family.count);
      }
      out->Sample({{{"table", table.name}, {"tier", store.name}}}, table.*family.of_store);
    }
  }
  if (stats.tables.empty()) return;
  AppendAges(stats.tables, out);
  AppendScores(stats.tables, out);
}

std::string MetricsText(const EmbeddingStats& stats) {
  ExpositionWriter writer;
  AppendMetrics(stats, &writer);
  return writer.Take();
}

}  // namespace hotrow
