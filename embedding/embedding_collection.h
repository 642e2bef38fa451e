#ifndef HOTROW_EMBEDDING_EMBEDDING_COLLECTION_H_
#define HOTROW_EMBEDDING_EMBEDDING_COLLECTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "base/hash.h"
#include "embedding/jagged_batch.h"
#include "embedding/options.h"
#include "embedding/stats.h"
#include "store/row_store.h"

namespace hotrow {

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
//          repeats bit for bit. An error on any rank fails all ranks and names that rank. It is
//          final, ResourceExhausted included.
// Threads: one call at a time; that includes destroying a step. CommitSnapshot, DropSnapshot,
//          ListSnapshots and DescribeSnapshot may run beside other calls. Inside, work spreads over
//          ctx.pool, with the same bits for any pool size.
// Errors:  InvalidArgument (a malformed batch; names feature, sample and value; from Prefetch),
//          ResourceExhausted (a budget that one step alone does not fit; names the tier, the budget
//          and the need), FailedPrecondition (calls out of order), and those of the store. Errors
//          while rows are made resident are returned by the Lookup of that step (with
//          prefetch_depth = 0 by its Prefetch, or by its Lookup when it had waited). After an error
//          the tables are as before; a step whose Lookup or Update failed can only be destroyed,
//          except that a Lookup of a step that is not the oldest may come again in its turn.
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
  // so. On a GPU, or when device_cache_bytes > 0, it is the smallest device_cache_bytes.
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
  // being written), and without a cache those of the file system.
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
