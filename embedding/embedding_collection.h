#ifndef HOTROW_EMBEDDING_EMBEDDING_COLLECTION_H_
#define HOTROW_EMBEDDING_EMBEDDING_COLLECTION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "base/matrix_view.h"
#include "base/row_lines.h"
#include "embedding/embedding_step.h"
#include "embedding/jagged_batch.h"
#include "embedding/kept_state.h"
#include "embedding/options.h"
#include "embedding/snapshots.h"
#include "embedding/stats.h"
#include "embedding/stored_rows.h"

namespace hotrow {

// EmbeddingCollection is a set of tables that are looked up and trained together.
//
// Use:     step = tables->Prefetch(batch)               any number up to prefetch_depth ahead
//          step.Lookup(output)                          forward
//          std::move(step).Update(gradient)             backward
//          tables->Evaluate(batch, output)              validation: changes nothing
//
// Data:    ids are 64-bit keys; a batch is copied by Prefetch, so the caller may free it at once,
//          or comes with an owner and is read where it lies. Outputs and gradients are float32.
// Devices: with ctx.device kCuda rows are kept in the memory of ctx's GPU (see cache.device_bytes)
//          and looked up and updated there; batches stay host memory, outputs and gradients are
//          device memory. What Lookup, BeginUpdate, Update and Evaluate do to those is enqueued on
//          ctx.stream, and they read and write rows in its order, so no caller needs to wait
//          (Evaluate waits: nothing pins the rows that it reads); the rows of the next steps come
//          on streams of the collection's own meanwhile. Rows have the bits of the CPU where the
//          sums of gradients do, see ops/update/gradient_segment_sum.h.
// Order:   steps are looked up and updated in the order in which they were prefetched. Prefetch
//          makes rows resident and pins them, it hands out no values; Lookup gathers values after
//          the update of the step before. So prefetch depth, cache size and tier change speed and
//          never a bit.
// Overlap: with prefetch_depth > 0 Prefetch checks and takes the batch and returns; a thread of
//          the collection makes the rows of the steps resident, in order, while the caller
//          computes. Lookup waits for its own step. A step whose rows do not fit beside those of
//          the steps before waits for their end.
// Ranks:   with a communicator of several ranks Create, Prefetch, Lookup, Update, Evaluate,
//          ReadRows, WriteRows, Erase, EraseIf, Digest and GlobalStats are collective: all ranks
//          call them in the same order, each with its own batch, which may be empty. A batch's
//          keys are looked up where they are kept: ids travel with Prefetch, rows with Lookup,
//          gradients, summed for each row, with Update. A row's gradients are added in the order of
//          ranks; so for a fixed number of ranks a run repeats bit for bit. An error on any rank
//          fails all ranks at once and names that rank. It is final, a refused argument, an
//          exception and ResourceExhausted included: no rank may try again what another has not.
//          On GPUs, one for each rank, NCCL carries what belongs to steps. A rank that dies may
//          then be found out only behind what is enqueued: outputs and rows are not good any more,
//          and the next collective call says so.
// Threads: one call at a time, calls of steps and the destruction of a step included. Of
//          snapshots() some may run beside other calls. Inside, work spreads over ctx.pool, with
//          the same bits for any pool size.
// Errors:  InvalidArgument (a malformed batch or a view of another shape; names what it is, and
//          what was expected), ResourceExhausted (a budget that one step alone does not fit; names
//          the tier, the budget and the need), FailedPrecondition (calls out of order), and those
//          of the store. Errors while rows are made resident are returned by the Lookup of that
//          step (with prefetch_depth = 0 by its Prefetch, or by its Lookup when it had waited).
//          After an error the tables are as before, or it says that no call may follow: memory ran
//          out while rows changed. A step whose Lookup or Update failed can only be destroyed; with
//          one rank a Lookup of a step that is not the oldest, or into wrong views, may come again.
class EmbeddingCollection {
 public:
  // ctx.pool and ctx.stream must outlive the collection.
  static absl::StatusOr<std::unique_ptr<EmbeddingCollection>> Create(
      const EmbeddingCollectionOptions& options, const ExecContext& ctx);
  ~EmbeddingCollection();
  EmbeddingCollection(const EmbeddingCollection&) = delete;
  EmbeddingCollection& operator=(const EmbeddingCollection&) = delete;

  // The smallest cache.bytes that Create accepts for these options (their cache.bytes is ignored).
  // Where max_hotness is known it is room for the unique rows of any one step, with metadata and
  // staging; for a table where it is not, a batch may still need more, and its Prefetch then says
  // so. On a GPU, or when cache.device_bytes > 0, it is the smallest cache.device_bytes.
  static absl::StatusOr<int64_t> MinCacheBytes(const EmbeddingCollectionOptions& options,
                                               Device device = Device::kCpu);

  int32_t num_features() const;
  const std::vector<std::string>& feature_names() const;  // in the order of batches
  // Sum of the dims of the pooled features: the width of EmbeddingOutput::pooled.
  int64_t pooled_dim() const;
  // The columns of EmbeddingOutput::pooled that a feature has:
  // pooled.Columns(*tables->ColumnsOf("item")) is [batch_size, D]. InvalidArgument if no table has
  // it, or it is not pooled.
  absl::StatusOr<ColumnRange> ColumnsOf(std::string_view feature) const;
  // The order of these names, for FeatureBatch::order. InvalidArgument unless `names` has each
  // feature once.
  absl::StatusOr<FeatureOrder> OrderOf(std::span<const std::string> names) const;

  // owner: null: the batch is copied. Otherwise `owner` keeps its arrays, and those that have the
  // engine's form stay where they are, unchanged, until the collection lets go of it: ids and
  // offsets of 64 bits and weights; of a FeatureBatch ids and weights, where those of all features
  // lie end to end. On a GPU page-locked ones alone. That is so when the step ends, by its Update
  // or without, and when Prefetch returns where no array stays; on the thread of that call, which
  // the owner must not use to call the collection.
  //
  // ready: null, or what waits until the arrays have been written: a copy from a GPU, say. It is
  // called once, by the thread that makes rows resident, before any array is read; the owner keeps
  // what a FeatureBatch points to, too. A malformed batch, or what `ready` throws, is then an error
  // of the step's Lookup, before which it has no sizes (batch_size, num_lookups,
  // has_single_lookups). Then the owner stays until the step ends, and there must be one.
  absl::StatusOr<EmbeddingStep> Prefetch(const JaggedBatch& batch,
                                         std::shared_ptr<const void> owner = nullptr,
                                         std::function<absl::Status()> ready = nullptr);
  absl::StatusOr<EmbeddingStep> Prefetch(const FeatureBatch& batch,
                                         std::shared_ptr<const void> owner = nullptr,
                                         std::function<absl::Status()> ready = nullptr);
  // The same values as Lookup would give after the last Update, and no trace left: no row is made,
  // no recency, frequency, pin or residency changes. Unseen keys read their initial rows.
  absl::Status Evaluate(const JaggedBatch& batch, const EmbeddingOutput& output);
  absl::Status Evaluate(const FeatureBatch& batch, const EmbeddingOutput& output);

  // The weights of keys of one table, in host memory: rows is [keys, D]. As Evaluate, it leaves no
  // trace. Unseen keys read their initial rows; found[i] says whether key i has a row. `found` may
  // be left out.
  absl::Status ReadRows(std::string_view table, std::span<const uint64_t> keys,
                        MatrixView<float> rows, std::span<bool> found = {});
  // Calls fn for each row of one table that this rank keeps, in no order, after a Flush. An error
  // of fn ends it and is returned. fn must not call the collection. Not collective.
  absl::Status ForEachRow(
      std::string_view table,
      const std::function<absl::Status(uint64_t key, std::span<const float> weights)>& fn);

  // Gives keys of one table these weights, in host memory: rows is [keys, D]. Their rows, made
  // where there are none, begin with fresh optimizer state, as if the last step had updated them.
  // Weights of fp16 and bf16 tables are rounded to the nearest. For pretrained rows, between two
  // steps: none may be outstanding (FailedPrecondition). A frozen table takes them, too. Durable as
  // updates are, with the next snapshot; waits for one that is being written. Errors:
  // InvalidArgument (a key occurs twice or lies beyond num_embeddings, a weight is not finite;
  // nothing has changed), FailedPrecondition also of a table that decays as a whole, those of the
  // store: then each key has its row from before, the new one or none. With several ranks each
  // gives its own rows, of keys that any may keep; where two ranks give the same key one of the two
  // rows stays.
  absl::Status WriteRows(std::string_view table, std::span<const uint64_t> keys,
                         MatrixView<const float> rows);

  // Removes the rows of keys of one table, on all tiers and ranks: from here on the keys are new.
  // They may repeat or have no row, and with several ranks be kept by any. For between two steps:
  // steps may have been prefetched, none looked up (FailedPrecondition). Durable as updates are,
  // with the next snapshot. Waits for a snapshot that is being written, which still has the rows.
  // After an error of the store each of the keys may be there or not, or go later; call it again.
  absl::Status Erase(std::string_view table, std::span<const uint64_t> keys);
  // Removes, as Erase does, the rows of one table that `wanted` says. Each rank asks for the rows
  // that it keeps, in no order. Rows that have aged are gone already and not asked for.
  // Flushes, and reads every row. Memory: 8 bytes for each row that goes. Returns how many rows of
  // this rank went. FailedPrecondition also of a table that decays as a whole
  // (WeightDecayMode::kTable), whose rows do not know their last update. `wanted` must not call the
  // collection; with several ranks another thread calls it.
  absl::StatusOr<int64_t> EraseIf(std::string_view table,
                                  const std::function<bool(const StoredRow& row)>& wanted);

  // Writes dirty rows down to the store. Waits for a snapshot that is being written.
  absl::Status Flush();
  // Where tables decay as a whole (WeightDecayMode::kTable): brings all rows to where they stand
  // after the last step and flushes them, so that a snapshot reads right without the learning
  // rates of the steps. Changes no bit of what follows. Reads and writes every row; collective.
  // Otherwise it does nothing.
  absl::Status Settle();
  // Counts and hashes all rows, of all ranks, after a Flush. Reads every row.
  absl::StatusOr<CollectionDigest> Digest();
  // Ends a snapshot that is being written, the pipeline, and the store in good order, so that an
  // ssd store opens quickly the next time. Rows that are in no snapshot are not kept for anybody.
  // No call may follow but the destructor; no step may be outstanding (FailedPrecondition). Without
  // it the destructor leaves the store as a kill would: every snapshot is there.
  absl::Status Close();

  EmbeddingSnapshots& snapshots();
  EmbeddingResiduals& residuals();
  EmbeddingCounters& counters();

  int64_t steps() const;  // updates applied so far, start.steps included
  // For StartOptions::learning_rates: the factors of the steps since start.settled_steps, or since
  // start.steps where there were no learning rates. Empty: no table decays as a whole, or none has
  // made a step.
  std::span<const LearningRateRun> learning_rates() const;
  // For StartOptions::age_lines: which rows of each table have aged that were not updated since, as
  // of the snapshot that is begun now.
  std::vector<RowLines> age_lines() const;
  // What this rank has counted. Does not wait for steps on a GPU: what is counted there is as of
  // the last step whose counts have come back.
  EmbeddingStats Stats() const;
  // Sums over all ranks; maxima where the name says max, and of steps and snapshots, which all
  // ranks have had. Ratios are those of the sums. Waits for a GPU, and counts all updates.
  absl::StatusOr<EmbeddingStats> GlobalStats();

  // For an error that the caller finds on its way to a collective call, in its arguments, say:
  // with several ranks, unless `status` is OK, it ends the call of the others, as an error of the
  // call itself does. Returns `status`.
  absl::Status EndJobUnlessOk(absl::Status status);

 private:
  friend class EmbeddingStep;
  struct Impl;
  explicit EmbeddingCollection(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_EMBEDDING_COLLECTION_H_
