#ifndef HOTROW_EMBEDDING_ROWS_TABLE_DECAY_IMPL_H_
#define HOTROW_EMBEDDING_ROWS_TABLE_DECAY_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/options.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "ops/update/step_history.h"
#include "store/row_store.h"

namespace hotrow::internal {

// Rows as they are read where whole tables decay: where they lie, or copies of those that have
// missed steps. Kept from step to step, so that its memory is.
struct DecayedRows {
  std::vector<std::byte*> rows;  // empty: all are read where they lie
  HostBuffer<std::byte> copies;
  std::vector<std::byte*> stale;  // of one table
  std::vector<uint64_t> stale_keys;
};

// TableDecay is the tables of WeightDecayMode::kTable: the steps that they have made, and their
// rows as they stand after those. A row that is kept is as its last update left it; it makes up for
// the steps since when it is updated, and copies of it do when it is read.
//
// Threads: the caller's of the collection, while nothing moves the rows it is given.
// Errors:  ResourceExhausted (memory for copies), those of the store.
class TableDecay {
 public:
  // Not owned: both outlive this.
  TableDecay(const EmbeddingCollectionOptions& options, const Plan& plan);

  bool any() const { return !histories_.empty(); }  // some table decays as a whole
  // The steps for SparseUpdate; null: the table, a position in the plan, is of another mode.
  const StepHistory* history(size_t table) const { return history_of_[table]; }
  // All tables have made a step.
  void Append(float learning_rate_factor);
  // The rates of the steps since StartOptions::settled_steps; none where no table decays as a
  // whole.
  std::span<const LearningRateRun> learning_rates() const { return learning_rates_; }

  // out->rows[i]: where row i of the keys is to be read. Empty where no table decays as a whole.
  absl::Status Read(const ExecContext& ctx, const TableKeys& keys, std::span<std::byte* const> rows,
                    DecayedRows* out) const;
  // Brings copies of rows of any tables, RowKey::table, up to the last step. mark: they are as of
  // that step from then on.
  absl::Status CatchUpCopies(const ExecContext& ctx, std::span<const RowKey> keys,
                             std::span<std::byte* const> copies, bool mark = false) const;
  // All rows of the store make up for what they have missed. Rows that a cache holds, clean, may
  // stay as they are: they go on with the same bits. Reads the store once, and once more for every
  // 16 Mi rows that have missed steps; holds up to 272 MiB.
  absl::Status Settle(const ExecContext& ctx, RowStore* store) const;

 private:
  // Settles the rows of keys that the store has; copies: room for their rows.
  absl::Status SettleRows(const ExecContext& ctx, std::span<const RowKey> keys,
                          std::span<std::byte* const> copies, RowStore* store) const;
  absl::Status CatchUpRows(const ExecContext& ctx, size_t table, std::span<std::byte* const> rows,
                           std::span<const uint64_t> keys, bool mark) const;

  const EmbeddingCollectionOptions& options_;
  const Plan& plan_;
  std::vector<std::unique_ptr<StepHistory>> histories_;  // of distinct optimizers
  std::vector<const StepHistory*> history_of_;           // [tables of the plan]
  std::vector<int32_t> position_of_;                     // [tables of the options], in the plan
  std::vector<LearningRateRun> learning_rates_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROWS_TABLE_DECAY_IMPL_H_
