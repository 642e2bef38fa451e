#ifndef HOTROW_EMBEDDING_STATS_H_
#define HOTROW_EMBEDDING_STATS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// What an EmbeddingCollection counts.

namespace hotrow {

class ExpositionWriter;

// Counts of one tier; docs/ARCHITECTURE.md defines them. Never reset.
struct TierStats {
  std::string name;  // "device_cache"; "cache"; "memory", "ssd", "rocksdb"
  int64_t budget_bytes = 0;
  int64_t used_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t unique_keys = 0;  // of training batches, looked up in this tier
  int64_t unique_hits = 0;
  int64_t lookups = 0;  // the same weighted by how often each key occurs in its batch
  int64_t lookup_hits = 0;
  int64_t evictions = 0;
  int64_t dirty_writebacks = 0;
  int64_t ios = 0;
  int64_t rows_read = 0;
  int64_t rows_written = 0;
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t payload_bytes_written = 0;  // the bytes of the rows written, headers and copies apart
  double write_amplification = 0;     // bytes_written over payload_bytes_written; 0: none yet
  int64_t snapshot_bytes = 0;         // on disk, held only by snapshots
  int64_t disk_budget_bytes = 0;      // 0: no limit, or not on a disk
  int64_t disk_used_bytes = 0;        // snapshots included
  int64_t index_bytes = 0;            // the part of used_bytes that finds rows

  void SetWriteAmplification();  // from the counts
};

// How many of something took how many steps.
struct StepHistogram {
  static constexpr std::array<int64_t, 11> kBounds = {1,    4,     16,    64,     256,    1024,
                                                      4096, 16384, 65536, 262144, 1048576};
  // Counts by the first bound that is not below the steps; the last one is of those above all.
  std::array<int64_t, kBounds.size() + 1> counts = {};
  int64_t sum = 0;  // of the steps

  void Add(int64_t steps, int64_t n = 1) {
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), steps);
    counts[static_cast<size_t>(bound - kBounds.begin())] += n;
    sum += steps * n;
  }
  bool operator==(const StepHistogram&) const = default;
};

// How many rows have which score.
struct ScoreHistogram {
  static constexpr std::array<float, 19> kBounds = {-65536, -4096, -256,  -64,   -16,    -4, -1,
                                                    -0.25f, 0,     0.25f, 1,     4,      16, 64,
                                                    256,    1024,  4096,  65536, 1048576};
  // Counts by the first bound that is not below the score; the last one is of those above all.
  std::array<int64_t, kBounds.size() + 1> counts = {};

  void Add(float score, int64_t n = 1) {
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), score);
    counts[static_cast<size_t>(bound - kBounds.begin())] += n;
  }
  bool operator==(const ScoreHistogram&) const = default;
};

// Counts of one table over training steps. Never reset. Lookups are counted when their step is
// updated, misses when its rows are placed, which may be some steps earlier.
struct TableStats {
  std::string name;
  int64_t lookups = 0;      // of this rank's batches
  int64_t unique_keys = 0;  // that this rank keeps, summed over steps, as all that follows
  // What the row cache did not have, its lookups and its distinct keys. 0 without a cache.
  int64_t cache_misses = 0;
  int64_t cache_unique_misses = 0;
  // What no tier had of these, or without a cache of all: keys without a row.
  int64_t store_misses = 0;
  int64_t store_unique_misses = 0;
  // The steps since their update before, of rows that a step updated; not of rows that joined or
  // had aged. Only steps that are multiples of kUpdateGapSteps count; none where rows lie on a
  // device.
  static constexpr int64_t kUpdateGapSteps = 64;
  StepHistogram update_gaps;
  // The steps since their last update, of living rows of a table with min_rows or max_rows, now: as
  // if it had been the first one of its group (row_limit_steps). Empty for others.
  StepHistogram ages;
  // The scores of living rows of a table whose max_rows goes by score, now: each as the lowest one
  // of its range (base/row_lines.h), within 1/128 of it. Empty for others.
  ScoreHistogram scores;
};

struct EmbeddingStats {
  std::vector<TierStats> tiers;    // from the top down
  std::vector<TableStats> tables;  // in the order of the options
  int64_t steps = 0;               // updates applied since Create
  int64_t unique_keys = 0;         // summed over training batches
  int64_t initialised_rows = 0;    // rows that joined a table by their first update
  int64_t prefetch_waits = 0;      // prefetches that waited because pinned rows left no room
  int64_t overflow_rows = 0;       // rows that went to the cache's overflow area
  int64_t lookup_waits = 0;        // Lookups whose rows were not resident yet
  int64_t lookup_wait_ns = 0;      // how long they waited
  // Table policies, docs/row_life.md.
  int64_t admission_rejected_keys = 0;  // distinct keys that a step left without a row, over steps
  int64_t admission_counters = 0;       // of keys, now; about: forgotten ones go a little later
  int64_t admission_counter_bytes = 0;  // their memory; outside the tiers' budgets
  int64_t row_count_bytes = 0;          // of counts of rows by age and score; outside them, too
  int64_t aged_rows = 0;                // rows that had aged, were still there and began again
  int64_t dropped_rows = 0;             // aged rows that the store has dropped
  // Snapshots; see EmbeddingSnapshots.
  int64_t snapshots = 0;              // begun
  int64_t snapshots_failed = 0;       // of them
  int64_t snapshot_pause_ns = 0;      // time of the last Begin
  int64_t snapshot_pause_ns_max = 0;  // of the longest one
  int64_t snapshot_prepare_ns = 0;    // from the last Begin until prepared
  int64_t snapshot_rows = 0;          // dirty rows written to the store for snapshots
  int64_t snapshot_row_bytes = 0;     // their bytes
  int64_t snapshot_rows_copied = 0;   // of them, copied before an update changed them
  int64_t snapshot_rows_held = 0;     // evicted rows held back until a snapshot was captured
  int64_t snapshot_update_waits = 0;  // updates that waited for room for such copies
  int64_t snapshot_update_wait_ns = 0;
  int64_t snapshot_evict_waits = 0;  // prefetches that waited for room for held-back rows
  int64_t snapshot_evict_wait_ns = 0;
  // Page-locked staging of rows and step arrays, and device memory of step arrays and gradients,
  // with CacheOptions::device_bytes; outside the budgets of the tiers.
  int64_t transfer_host_bytes = 0;
  int64_t transfer_device_bytes = 0;
  // What an index takes of CacheOptions::device_index_bytes, the keys that it has, those that found
  // no room (a key as often as it did not), and rows of the store that the device found.
  int64_t device_index_bytes = 0;
  int64_t device_index_keys = 0;
  int64_t device_index_left_out = 0;
  int64_t device_index_rows_read = 0;
  // Evaluation, counted apart.
  int64_t evaluation_lookups = 0;
  int64_t evaluation_unique_keys = 0;
  // Several ranks: bytes sent to others.
  int64_t exchange_ids_bytes = 0;
  int64_t exchange_forward_bytes = 0;
  int64_t exchange_backward_bytes = 0;
  int64_t exchange_evaluation_bytes = 0;
  int64_t exchange_wait_ns = 0;       // for rows and gradients
  int64_t exchange_buffer_bytes = 0;  // outside the tiers' budgets, feedback apart
  // Error feedback.
  int64_t exchange_feedback_bytes = 0;  // its memory; outside the tiers' budgets
  int64_t exchange_feedback_keys = 0;   // gradients that were sent
  int64_t exchange_feedback_hits = 0;   // of them, with a residual of an earlier step
};

// --- The same as Prometheus reads it; docs/metrics.md has all of it ---

// For one's own training loop, on the thread that calls the collection:
//
//   text = MetricsText(tables->Stats());
//
// Stats waits for nobody and resets nothing, so this may be called between any two steps; once a
// second is often. The text, kept behind a mutex or as a shared_ptr, may then be served by another
// thread (TextServer, base/text_server.h) or written to a file.
std::string MetricsText(const EmbeddingStats& stats);

// The same as families of a text that has others, too, whose names must not be hotrow's.
void AppendMetrics(const EmbeddingStats& stats, ExpositionWriter* out);

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_STATS_H_
