#ifndef HOTROW_EMBEDDING_EMBEDDING_COLLECTION_H_
#define HOTROW_EMBEDDING_EMBEDDING_COLLECTION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "base/hash.h"
#include "base/row_key.h"
#include "cache/row_cache.h"
#include "embedding/jagged_batch.h"
#include "ops/jagged.h"
#include "ops/row_codec.h"
#include "ops/row_init.h"
#include "ops/sparse_optimizer.h"
#include "ops/weights_precision.h"
#include "store/open.h"
#include "store/row_store.h"

namespace hotrow {

class Communicator;
class Env;

// One embedding table. A table has no fixed size: any 64-bit key gets a row at its first update.
struct TableConfig {
  std::string name;                        // required, distinct
  int32_t embedding_dim = 0;               // D > 0, any number
  std::vector<std::string> feature_names;  // required; the features that look rows up here
  Pooling pooling = Pooling::kSum;
  // As what rows keep their weights: fp16 and bf16 halve them wherever a row lies, in memory and on
  // disk. Outputs, gradients and optimizer state are float; an update rounds stochastically, see
  // ops/weights_precision.h. Between ranks rows travel as exchange_forward says, whatever this is;
  // there the same type as here loses nothing.
  WeightsPrecision weights_precision = WeightsPrecision::kFp32;
  SparseOptimizerConfig optimizer;
  Initializer initializer;
  // 0: any key. Otherwise keys lie in [0, num_embeddings) and others are InvalidArgument.
  int64_t num_embeddings = 0;
  // The most lookups a feature of this table has in one sample; 0 when that is not known. Known for
  // all tables, a cache too small for one step is refused by Create instead of by the first batch
  // that does not fit.
  int64_t max_hotness = 0;
};

// Where rows come from: a snapshot of the store of one collection, or of one rank's part of it.
struct SnapshotSource {
  SnapshotId snapshot = 0;  // required
  // Known: the snapshot must have this identity, FailedPrecondition otherwise.
  UniqueId identity;
  std::optional<StoreKind> store;  // none: the kind of the collection that is to be opened
  // The store_path of an ssd or rocksdb store, the snapshot_dir of a memory store; empty: those of
  // the collection that is to be opened.
  std::string dir;
};

struct EmbeddingCollectionOptions {
  std::vector<TableConfig> tables;  // required
  // The order of the features in batches and outputs; empty: table by table, as feature_names list
  // them.
  std::vector<std::string> feature_order;
  uint64_t seed = 0;           // of row initialisation and of stochastic rounding
  int64_t max_batch_size = 0;  // B at most; with several ranks of all together; required

  // Several ranks share the tables: each keeps the rows of its shards (embedding/ranks/shard_map.h)
  // in a store of its own, and rows and gradients travel. Not owned; null or of one rank: all rows
  // are here. All ranks have the same options but for paths, cache_policy, prefetch_depth and the
  // sizes of budgets; which tiers there are is the same. Create compares them: InvalidArgument
  // names what differs.
  Communicator* communicator = nullptr;
  // In what form rows and gradients travel in training; evaluation reads fp32. What stays on its
  // rank is never rounded.
  ExchangeType exchange_forward = ExchangeType::kFp32;
  ExchangeType exchange_backward = ExchangeType::kFp32;
  ExchangeRounding exchange_rounding = ExchangeRounding::kNearest;
  // Error feedback: what a gradient loses on its way to another rank is kept by the rank that sends
  // it, and added to the next one that it sends for the same row. Budget of the memory for that, on
  // each rank, a hard limit; all ranks have the same. Rows that find no room go without, see
  // embedding/ranks/gradient_residuals.h. 0: none. Only where exchange_backward loses something,
  // not with fp32; of one rank nothing travels, and nothing is taken. A step that is cancelled
  // behind its BeginUpdate leaves residuals behind as if it had been applied.
  int64_t exchange_feedback_bytes = 0;

  StoreKind store = StoreKind::kMemory;
  // Required; budget of the store's memory. memory: all rows, a hard limit. ssd: index, buffers and
  // metadata, a hard limit. rocksdb: see store/rocks/rocks_store.h.
  int64_t store_bytes = 0;
  // ssd, rocksdb: required; the directory of the store, made if missing, and the budget of all its
  // files, snapshots included. One collection at a time, in whatever process. memory: neither.
  std::string store_path;
  int64_t disk_bytes = 0;
  // Without device_cache_bytes: budget of the row cache over the store: rows, keys, marks,
  // overflow, staging and the buffers of a snapshot that is being written; a hard limit. 0, with
  // the memory store only: no cache, rows are trained where the store keeps them. Rows have the
  // same bits either way. With it: budget of the host memory that keeps evicted rows of an ssd or
  // rocksdb store, see embedding/tiers/cached_store.h; 0: none. With the memory store there is
  // none, and this must be 0.
  int64_t cache_bytes = 0;
  // On a GPU: required; budget of device memory for the row cache: rows, keys, marks, overflow and
  // staging of rows on their way in. A hard limit; EmbeddingStats says what is taken beside it. On
  // the CPU 0, or else the tiers of a GPU in host memory, to try them out.
  int64_t device_cache_bytes = 0;
  CachePolicy cache_policy = CachePolicy::kLru;
  // Steps prefetched beyond the current one, in [0, 32]. 0: everything runs on the caller's thread,
  // in a fixed order, so that statistics are the same in each run. From 1 up rows are made resident
  // by a thread of the collection's own.
  int32_t prefetch_depth = 0;
  // Rows that evaluation brings in for a moment; batches are cut into slices that fit. A hard
  // limit.
  int64_t evaluation_staging_bytes = int64_t{64} << 20;
  // memory: where snapshots are written; empty: no snapshots. ssd and rocksdb keep theirs in
  // store_path, and this must be empty.
  std::string snapshot_dir;

  // Starts from these snapshots instead of from empty tables: one, or one from each of the ranks
  // that wrote them, in their order. One of this collection's own store, written by as many ranks,
  // is opened in place: rows written after it are dropped, other snapshots stay. Others are copied
  // row by row, by each rank those of its shards, and nothing changes where they lie; then, as with
  // empty tables, what is in store_path must be no store or one without rows and snapshots,
  // FailedPrecondition otherwise. The tables must be those of the snapshots: their number, their
  // order and their row widths are checked; names, dims, optimizers, precisions and the number of
  // steps are for the caller to keep: rows of 64 weights in fp16 are as wide as rows of 64 in bf16,
  // or of 32 in fp32, and would be taken for them. When Create refuses, nothing has changed on
  // disk; a copy that fails midway leaves store_path as start_over takes it.
  std::vector<SnapshotSource> open_from;
  int64_t open_steps = 0;  // updates that open_from has seen: steps() goes on from here
  // Instead of refusing a store in store_path that has rows, empties it, as long as no snapshot of
  // it was committed: what a run leaves that was killed before its first checkpoint.
  bool start_over = false;
  Env* env = nullptr;  // of all files, but RocksDB's; not owned; null: the real file system
  // Null, or called by the thread of each Update once that has changed its rows, for every table:
  // its number in `tables`, the distinct keys of the step that are kept here, how often each was
  // looked up (several ranks: by how many ranks). Sees the steps that were trained, each once and
  // in order, and no evaluation. Must not call the collection.
  std::function<void(uint32_t table, std::span<const RowKey> keys,
                     std::span<const int32_t> lookups)>
      on_update;

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
  std::string name;  // "device_cache"; "cache"; "memory", "ssd", "rocksdb"
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
  int64_t payload_bytes_written = 0;  // the bytes of the rows written, headers and copies apart
  double write_amplification = 0;     // bytes_written over payload_bytes_written; 0: none yet
  int64_t snapshot_bytes = 0;         // on disk, held only by snapshots
  int64_t disk_budget_bytes = 0;      // 0: no limit, or not on a disk
  int64_t disk_used_bytes = 0;        // snapshots included
  int64_t index_bytes = 0;            // the part of used_bytes that finds rows
};

struct EmbeddingStats {
  std::vector<TierStats> tiers;  // from the top down
  int64_t steps = 0;             // updates applied since Create
  int64_t unique_keys = 0;       // summed over training batches
  int64_t initialised_rows = 0;  // rows that joined a table by their first update
  int64_t prefetch_waits = 0;    // prefetches that had to wait for room beside pinned rows
  int64_t overflow_rows = 0;     // rows that went to the cache's overflow area
  int64_t lookup_waits = 0;      // Lookups whose rows were not resident yet
  int64_t lookup_wait_ns = 0;    // how long they waited
  // Snapshots; see BeginSnapshot.
  int64_t snapshots = 0;              // begun
  int64_t snapshots_failed = 0;       // of them
  int64_t snapshot_pause_ns = 0;      // BeginSnapshot: of the last one,
  int64_t snapshot_pause_ns_max = 0;  // of the longest,
  int64_t snapshot_prepare_ns = 0;    // and from the last one's begin until it was prepared
  int64_t snapshot_rows = 0;          // dirty rows that went to the store for a snapshot
  int64_t snapshot_row_bytes = 0;     // their bytes
  int64_t snapshot_rows_copied = 0;   // of them, copied because an update was about to change them
  int64_t snapshot_rows_held = 0;     // evicted rows held back until a snapshot was captured
  int64_t snapshot_update_waits = 0;  // updates that waited for room for such copies
  int64_t snapshot_update_wait_ns = 0;
  int64_t snapshot_evict_waits = 0;  // prefetches that waited for room for rows to be held back
  int64_t snapshot_evict_wait_ns = 0;
  // With device_cache_bytes, beside the budgets of the tiers: page-locked memory through which rows
  // and the arrays of steps pass, and device memory of those arrays and of gradients.
  int64_t transfer_host_bytes = 0;
  int64_t transfer_device_bytes = 0;
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
  int64_t exchange_feedback_hits = 0;   // of them, with a residual of a step before
};

struct TableDigest {
  std::string name;
  int64_t rows = 0;
  int32_t dim = 0;
  int64_t row_bytes = 0;
  // Sum over rows of a keyed hash of {table, key, weights and optimizer state}, the weights in
  // their precision.
  Hash128 hash;
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
  int64_t num_unique_keys() const;  // from Lookup on; with prefetch_depth = 0 from Prefetch on

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
// Devices: with ctx.device kCuda rows are kept in the memory of GPU 0 (see device_cache_bytes) and
//          looked up and updated there; batches stay host memory, outputs and gradients are device
//          memory. What Lookup, BeginUpdate, Update and Evaluate do to those is enqueued on
//          ctx.stream, and they read and write rows in its order, so no caller needs to wait; the
//          rows of the next steps come on streams of the collection's own meanwhile. Rows have the
//          bits of the CPU where the sums of gradients do, see ops/gradient_segment_sum.h. One
//          rank only so far (Unimplemented).
// Order:   steps are looked up and updated in the order in which they were prefetched. Prefetch
//          makes rows resident and pins them, it hands out no values; Lookup gathers values after
//          the update of the step before. So prefetch depth, cache size and tier change speed and
//          never a bit.
// Overlap: with prefetch_depth > 0 Prefetch checks and copies the batch and returns; a thread of
//          the collection makes the rows of the steps resident, in order, while the caller
//          computes. Lookup waits for its own step. A step whose rows do not fit beside those of
//          the steps before waits for their end.
// Ranks:   with a communicator of several ranks Create, Prefetch, Lookup, Update, Evaluate, Digest
//          and GlobalStats are collective: all ranks call them in the same order, each with a batch
//          of its own, which may be empty. A batch's keys are looked up where they are kept: ids
//          travel with Prefetch, rows with Lookup, gradients, summed for each row, with Update. A
//          row's gradients are added in the order of ranks; so for a fixed number of ranks a run
//          repeats bit for bit. What goes wrong on one rank fails the others, too, with an error
//          that names it: there is no going on, also after ResourceExhausted.
// Threads: one call at a time; that includes destroying a step. CommitSnapshot, DropSnapshot,
//          ListSnapshots and DescribeSnapshot may run beside other calls. Inside, work spreads over
//          ctx.pool, with the same bits for any pool size.
// Errors:  InvalidArgument (a malformed batch; names feature, sample and value; from Prefetch),
//          ResourceExhausted (a budget that one step alone does not fit; names the tier, the budget
//          and the need), FailedPrecondition (calls out of order), and what the store says. What
//          goes wrong while rows are made resident, the Lookup of that step says (with
//          prefetch_depth = 0 its Prefetch, or its Lookup when it had waited). After an error the
//          tables are as before; a step whose Lookup or Update failed can only be destroyed, except
//          that a Lookup of a step that is not the oldest may come again in its turn.
class EmbeddingCollection {
 public:
  // ctx.pool and ctx.stream must outlive the collection.
  static absl::StatusOr<std::unique_ptr<EmbeddingCollection>> Create(
      const EmbeddingCollectionOptions& options, const ExecContext& ctx);
  ~EmbeddingCollection();
  EmbeddingCollection(const EmbeddingCollection&) = delete;
  EmbeddingCollection& operator=(const EmbeddingCollection&) = delete;

  // The smallest cache_bytes that Create accepts for these options (their cache_bytes is ignored).
  // Where max_hotness is known it is room for the unique rows of any one step, with metadata and
  // staging; for a table where it is not, a batch may still need more, and its Prefetch then says
  // so. With kCuda, or where device_cache_bytes > 0, the same of that.
  static absl::StatusOr<int64_t> MinCacheBytes(const EmbeddingCollectionOptions& options,
                                               Device device = Device::kCpu);
  // The smallest exchange_feedback_bytes, but 0, that Create accepts for these tables.
  static int64_t MinFeedbackBytes(const EmbeddingCollectionOptions& options);

  int32_t num_features() const;
  const std::vector<std::string>& feature_names() const;  // in batch order
  // Sum of the dims of the pooled features: the width of EmbeddingOutput::pooled.
  int64_t pooled_dim() const;

  absl::StatusOr<std::unique_ptr<EmbeddingStep>> Prefetch(const JaggedBatch& batch);
  // What Lookup would do first: with several ranks the rows set out, so that they travel while the
  // caller computes what needs none. May be left out; so may BeginUpdate, which reads the whole
  // gradient and sends it off.
  absl::Status BeginLookup(EmbeddingStep& step);
  absl::Status Lookup(EmbeddingStep& step, const EmbeddingOutput& output);
  absl::Status BeginUpdate(EmbeddingStep& step, const EmbeddingGradient& gradient);
  // learning_rate_factor multiplies every table's learning rate: the schedule. After BeginUpdate
  // `gradient` is not looked at.
  absl::Status Update(std::unique_ptr<EmbeddingStep> step, const EmbeddingGradient& gradient,
                      float learning_rate_factor = 1);
  // The same values as Lookup would give after the last Update, and no trace left: no row is made,
  // no recency, frequency, pin or residency changes. Unseen keys read their initial rows.
  absl::Status Evaluate(const JaggedBatch& batch, const EmbeddingOutput& output);

  // Writes dirty rows down to the store. Waits for a snapshot that is being written.
  absl::Status Flush();
  // Counts and hashes all rows, of all ranks, after a Flush. Reads every row.
  absl::StatusOr<CollectionDigest> Digest();

  // Two-phase snapshots of all rows, see store/row_store.h. The caller chooses the name (a trainer
  // uses the step), makes the tables durable under it, makes its own manifest durable, and then
  // commits.
  //
  // AnnounceSnapshot says that one will be begun before long, some hundred steps ahead say. A
  // thread then does what can be done before: an ssd store moves rows out of segments that are
  // mostly garbage, which a snapshot would hold on to. Without it that is done between begin and
  // capture, and training may have to wait for it. Returns at once; does nothing while a snapshot
  // is being written.
  void AnnounceSnapshot();
  // BeginSnapshot takes the tables as they are after the last Update. It returns after a pause of
  // milliseconds: it only marks the dirty rows. A thread writes them to the store while training
  // goes on; an Update that is about to change a marked row copies it first, and a row that was
  // changed since and is evicted waits in a buffer of the cache's budget until the store has
  // captured the snapshot. Steps may be in flight. One snapshot at a time. Without a cache there is
  // nothing to copy from: rows are trained where the store keeps them, and the pause is the whole
  // write.
  // Errors: FailedPrecondition (no snapshot_dir; a name that is 0 or used; another snapshot is
  // being written), and without a cache what the file system says.
  absl::Status BeginSnapshot(SnapshotId snapshot);
  // Whether the snapshot that was begun last is durable under its name. An error says that it
  // failed: it does not exist, the tables are as if it had never been begun, and the next may
  // begin. FailedPrecondition when none was begun.
  absl::StatusOr<bool> SnapshotPrepared();
  // Waits until it is, or has failed; the same errors.
  absl::Status WaitSnapshot();
  // Both: BeginSnapshot, then WaitSnapshot.
  absl::Status PrepareSnapshot(SnapshotId snapshot);
  absl::Status CommitSnapshot(SnapshotId snapshot);
  absl::Status DropSnapshot(SnapshotId snapshot);
  // Prepared and committed ones, ascending, with those that were there before.
  absl::StatusOr<std::vector<SnapshotId>> ListSnapshots();
  // Of this rank's store, once it is prepared. Errors: FailedPrecondition (there is none).
  absl::StatusOr<SnapshotInfo> DescribeSnapshot(SnapshotId snapshot);

  // What exchange_feedback_bytes keeps is in no snapshot: it belongs to this rank among so many.
  // Whether there is any; the same on all ranks.
  bool keeps_residuals() const;
  // A copy, after the last Update. No BeginUpdate may wait for its Update (FailedPrecondition).
  absl::StatusOr<HostBuffer<std::byte>> SaveResiduals();
  // Takes such a copy, of this rank among as many, before the first Prefetch; open_steps is that of
  // SaveResiduals. False when it is of other tables or another budget: then none are kept yet.
  // DataLoss when the bytes are no such copy.
  absl::StatusOr<bool> LoadResiduals(std::span<const std::byte> bytes);

  // Ends a snapshot that is being written, the pipeline, and the store in good order, so that an
  // ssd store opens quickly the next time. Rows that are in no snapshot are not kept for anybody.
  // No call may follow but the destructor; no step may be outstanding (FailedPrecondition). Without
  // it the destructor leaves the store as a kill would: every snapshot is there.
  absl::Status Close();

  int64_t steps() const;         // updates applied so far, those before open_from included
  EmbeddingStats Stats() const;  // of this rank
  // Sums over all ranks; maxima where the name says max, and of steps and snapshots, which all
  // ranks have had. Ratios are those of the sums.
  absl::StatusOr<EmbeddingStats> GlobalStats();

 private:
  friend class EmbeddingStep;
  struct Impl;
  explicit EmbeddingCollection(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_EMBEDDING_COLLECTION_H_
