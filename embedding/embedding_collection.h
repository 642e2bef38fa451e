#ifndef HOTROW_EMBEDDING_EMBEDDING_COLLECTION_H_
#define HOTROW_EMBEDDING_EMBEDDING_COLLECTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "base/hash.h"
#include "cache/row_cache.h"
#include "embedding/jagged_batch.h"
#include "embedding/store_kind.h"
#include "ops/jagged.h"
#include "ops/row_init.h"
#include "ops/sparse_optimizer.h"
#include "store/row_store.h"

namespace hotrow {

class Env;

// One embedding table. A table has no fixed size: any 64-bit key gets a row at its first update.
struct TableConfig {
  std::string name;                        // required, distinct
  int32_t embedding_dim = 0;               // D > 0, any number
  std::vector<std::string> feature_names;  // required; the features that look rows up here
  Pooling pooling = Pooling::kSum;
  SparseOptimizerConfig optimizer;
  Initializer initializer;
  // 0: any key. Otherwise keys lie in [0, num_embeddings) and others are InvalidArgument.
  int64_t num_embeddings = 0;
  // The most lookups a feature of this table has in one sample; 0 when that is not known. Known for
  // all tables, a cache too small for one step is refused by Create instead of by the first batch
  // that does not fit.
  int64_t max_hotness = 0;
};

struct EmbeddingCollectionOptions {
  std::vector<TableConfig> tables;  // required
  // The order of the features in batches and outputs; empty: table by table, as feature_names list
  // them.
  std::vector<std::string> feature_order;
  uint64_t seed = 0;           // of row initialisation
  int64_t max_batch_size = 0;  // B at most; required
  StoreKind store = StoreKind::kMemory;
  int64_t store_bytes = 0;  // required; budget of the store's memory, a hard limit
  // Budget of the row cache over the store: rows, keys, marks, overflow and staging, a hard limit.
  // 0: no cache, rows are trained where the store keeps them. Rows have the same bits either way.
  int64_t cache_bytes = 0;
  CachePolicy cache_policy = CachePolicy::kLru;
  int32_t prefetch_depth = 0;  // steps prefetched beyond the current one, in [0, 32]
  // Rows that evaluation brings in for a moment; batches are cut into slices that fit. A hard
  // limit.
  int64_t evaluation_staging_bytes = int64_t{64} << 20;
  std::string snapshot_dir;  // where PrepareSnapshot writes; empty: no snapshots
  // Starts from this snapshot of open_dir (empty: of snapshot_dir) instead of from empty tables; 0:
  // empty tables. The tables must be those of the snapshot: their number, their order and their row
  // widths are checked; names, optimizers and the number of steps are for the caller to keep.
  // Nothing is written to open_dir.
  SnapshotId open_at = 0;
  std::string open_dir;
  int64_t open_steps = 0;  // updates that the snapshot has seen: steps() goes on from here
  Env* env = nullptr;      // of snapshots; not owned; null: the real file system

  absl::Status Validate() const;  // names the table or field, the limit and the value it got
};

// Where Lookup and Evaluate write. Dimensions as in JaggedBatch.
struct EmbeddingOutput {
  float* pooled = nullptr;  // [B, pooled_dim()]: the pooled features side by side, in feature order
  int64_t pooled_stride = 0;     // floats between rows; 0 = pooled_dim()
  std::vector<float*> unpooled;  // for each kNone feature, in feature order: [its lookups, D]
};

// The gradient of EmbeddingOutput, same shapes.
struct EmbeddingGradient {
  const float* pooled = nullptr;
  int64_t pooled_stride = 0;
  std::vector<const float*> unpooled;
};

// Readings of one tier; see docs/ARCHITECTURE.md for each. Never reset.
struct TierStats {
  std::string name;  // "cache", "memory"
  int64_t budget_bytes = 0;
  int64_t used_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t unique_keys = 0;  // of training batches, asked of this tier
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
  double write_amplification = 0;
  int64_t snapshot_bytes = 0;
};

struct EmbeddingStats {
  std::vector<TierStats> tiers;  // from the top down
  int64_t steps = 0;             // updates applied since Create
  int64_t unique_keys = 0;       // summed over training batches
  int64_t initialised_rows = 0;  // rows that joined a table by their first update
  int64_t prefetch_waits = 0;    // prefetches that had to wait for room beside pinned rows
  int64_t overflow_rows = 0;     // rows that went to the cache's overflow area
  // Evaluation, counted apart.
  int64_t evaluation_lookups = 0;
  int64_t evaluation_unique_keys = 0;
};

struct TableDigest {
  std::string name;
  int64_t rows = 0;
  int32_t dim = 0;
  int64_t row_bytes = 0;
  Hash128 hash;  // sum over rows of a keyed hash of {table, key, weights and optimizer state}
};

struct CollectionDigest {
  Hash128 hash;  // sum of the tables' hashes: independent of order, tier, cache and padding
  std::vector<TableDigest> tables;
};

// One batch on its way through the tables; made by Prefetch, consumed by Update. Destroying it
// instead cancels the step: its rows are unpinned and nothing is updated. Must not outlive its
// collection.
class EmbeddingStep {
 public:
  ~EmbeddingStep();
  EmbeddingStep(const EmbeddingStep&) = delete;
  EmbeddingStep& operator=(const EmbeddingStep&) = delete;

  int64_t batch_size() const;
  int64_t num_lookups() const;
  int64_t num_unique_keys() const;

 private:
  friend class EmbeddingCollection;
  struct Impl;
  explicit EmbeddingStep(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// EmbeddingCollection is a set of tables that are looked up and trained together.
//
// Use:     step = tables->Prefetch(batch)               any number up to prefetch_depth ahead
//          tables->Lookup(*step, output)                forward
//          tables->Update(std::move(step), gradient)    backward
//          tables->Evaluate(batch, output)              validation: changes nothing
//
// Data:    ids are 64-bit keys; a batch is copied by Prefetch, so the caller may free it at once.
//          Outputs and gradients are float32.
// Order:   steps are looked up and updated in the order in which they were prefetched. Prefetch
//          makes rows resident and pins them, it hands out no values; Lookup gathers values after
//          the update of the step before. So prefetch depth, cache size and tier change speed and
//          never a bit.
// Threads: one call at a time; inside, work spreads over ctx.pool, with the same bits for any pool
//          size.
// Errors:  InvalidArgument (a malformed batch; names feature, sample and value), ResourceExhausted
//          (a budget that one step alone does not fit; names the tier, the budget and the need),
//          FailedPrecondition (calls out of order), and what the store says. After an error the
//          tables are as before; a step whose Update failed is cancelled.
class EmbeddingCollection {
 public:
  // ctx.pool must outlive the collection.
  static absl::StatusOr<std::unique_ptr<EmbeddingCollection>> Create(
      const EmbeddingCollectionOptions& options, const ExecContext& ctx);
  ~EmbeddingCollection();
  EmbeddingCollection(const EmbeddingCollection&) = delete;
  EmbeddingCollection& operator=(const EmbeddingCollection&) = delete;

  // The smallest cache_bytes that Create accepts for these options (their cache_bytes is ignored).
  // Where max_hotness is known it is room for the unique rows of any one step, with metadata and
  // staging; for a table where it is not, a batch may still need more, and its Prefetch then says
  // so.
  static absl::StatusOr<int64_t> MinCacheBytes(const EmbeddingCollectionOptions& options);

  int32_t num_features() const;
  const std::vector<std::string>& feature_names() const;  // in batch order
  // Sum of the dims of the pooled features: the width of EmbeddingOutput::pooled.
  int64_t pooled_dim() const;

  absl::StatusOr<std::unique_ptr<EmbeddingStep>> Prefetch(const JaggedBatch& batch);
  absl::Status Lookup(EmbeddingStep& step, const EmbeddingOutput& output);
  // learning_rate_factor multiplies every table's learning rate: the schedule.
  absl::Status Update(std::unique_ptr<EmbeddingStep> step, const EmbeddingGradient& gradient,
                      float learning_rate_factor = 1);
  // The same values as Lookup would give after the last Update, and no trace left: no row is made,
  // no recency, frequency, pin or residency changes. Unseen keys read their initial rows.
  absl::Status Evaluate(const JaggedBatch& batch, const EmbeddingOutput& output);

  // Writes dirty rows down to the store.
  absl::Status Flush();
  // Counts and hashes all rows, after a Flush. Reads every row.
  absl::StatusOr<CollectionDigest> Digest();

  // Two-phase snapshots of all rows, see store/row_store.h: PrepareSnapshot flushes and makes the
  // tables as they are after the last update durable under this name; the caller's manifest
  // commits. Steps may be in flight. Errors: FailedPrecondition (no snapshot_dir; a name that is 0
  // or used), and what the file system says; the tables are then as before.
  absl::Status PrepareSnapshot(SnapshotId snapshot);
  absl::Status CommitSnapshot(SnapshotId snapshot);
  absl::Status DropSnapshot(SnapshotId snapshot);
  absl::StatusOr<std::vector<SnapshotId>> ListSnapshots();

  int64_t steps() const;  // updates applied so far, those before open_at included
  EmbeddingStats Stats() const;

 private:
  friend class EmbeddingStep;
  struct Impl;
  explicit EmbeddingCollection(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_EMBEDDING_COLLECTION_H_
