#ifndef HOTROW_EMBEDDING_ROWS_ROW_RULES_IMPL_H_
#define HOTROW_EMBEDDING_ROWS_ROW_RULES_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "base/row_line_fields.h"
#include "base/row_lines.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/kept_state.h"
#include "embedding/options.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/rows/row_life_impl.h"
#include "embedding/rows/row_rounding_impl.h"
#include "embedding/rows/table_decay_impl.h"
#include "embedding/rows/update_gaps_impl.h"
#include "embedding/stats.h"
#include "ops/update/step_history.h"
#include "store/row_store.h"

namespace hotrow::internal {

// The rows of a batch that this rank keeps, as rules take them.
struct RuledRows {
  const TableKeys& keys;
  std::span<std::byte* const> rows;  // [keys] where they lie
  // [keys] or empty, in training: how often all ranks look each key up, needed where
  // RowRules::AskForLookups; and what the batch brings to its score, where tables keep scores.
  std::span<const int32_t> lookups;
  std::span<const double> scores;
};

// Who reads rows.
enum class RowReader {
  kTraining,    // lookups whose update may follow
  kEvaluation,  // lookups without a trace
  kByKey,       // rows by key: their own weights, not those that serving keeps
};

// RowRules is all that holds of rows beside their weights and their optimizer: which keys have
// rows, who trains, and what is read of a row. The rules know nothing of each other; this
// class asks them, in an order that decides bits.
//
//   TableDecay     tables that decay as a whole: rows make up for the steps that they have missed
//   RowLife        admission, ageing, floors, capacities and scores
//   RowRounding    lookups read rows as serving keeps them
//   ClipGradients  gradients are scaled down to a norm
//   UpdateGaps     how long ago rows were updated, for the metrics
//
// A step:    Read, in its lookup. In its update ChooseTrained, and ScaleGradients when the sums of
//            the gradients are there; both may fail, and no row has changed then. Then
//            BeforeUpdate, the optimizer with history(), AfterUpdate, EndStep, and DropAged.
// Devices:   with caches on one no table has a rule, see options.cc; the calls of a step then do
//            nothing, and its rows and table_offsets may be left out.
// Threads:   the caller's of the collection. Rows are in host memory, and nothing moves them.
// Errors:    ResourceExhausted (memory for copies, room for counters), OutOfRange (a gradient that
//            cannot be scaled), those of the store and the communicator.
class RowRules {
 public:
  // What the rules know of the rows of one batch. Kept from step to step, so that its memory is.
  class Step {
   public:
    // [keys] which of them the step trains; empty: all. The owner's until ChooseTrained.
    std::vector<uint8_t> trained;

    // Where rows are read, set by Read: whole, with their marks; and their weights, as
    // PlannedTable::read_precision.
    std::span<std::byte* const> whole_rows() const { return whole_rows_; }
    std::span<std::byte* const> weights() const { return weights_; }

   private:
    friend class RowRules;
    std::span<std::byte* const> whole_rows_;
    std::span<std::byte* const> weights_;
    DecayedRows decayed_;
    LivingRows living_;
    RoundedRows rounded_;
  };

  // Whether some rule goes by RuledRows::lookups.
  static bool AskForLookups(const EmbeddingCollectionOptions& options);

  // options and plan outlive it. shuffle: null with one rank; outlives it, too. Errors:
  // ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<RowRules>> Create(const EmbeddingCollectionOptions& options,
                                                          const Plan& plan, RowShuffle* shuffle);

  // Counts the rows of tables with limits, all of which are in the store. Errors: those of the
  // store; FailedPrecondition where a row is younger than the collection.
  absl::Status CountRows(RowStore* store) { return life_->CountRows(store); }

  // --- A step

  // Sets where the reader finds the rows: they stay where they are, or are copies in *step.
  absl::Status Read(const ExecContext& ctx, const RuledRows& rows, RowReader reader,
                    Step* step) const;
  // Takes the keys that `update`, a step, gives no row out of step->trained. Changes nothing else.
  absl::Status ChooseTrained(const ExecContext& ctx, const RuledRows& rows, uint32_t update,
                             Step* step);
  // gradients[i]: of key i, in host memory. Collective where options.max_gradient_norm is set.
  absl::Status ScaleGradients(const ExecContext& ctx, const TableKeys& keys, const Step& step,
                              float* const* gradients) const;
  // The optimizer is about to move the rows that train, which lie where they may be changed.
  absl::Status BeforeUpdate(const ExecContext& ctx, const RuledRows& rows, uint32_t update,
                            const Step& step);
  // What SparseUpdate makes up for in a table, a position in the plan; null: nothing.
  const StepHistory* history(size_t table) const { return decay_.history(table); }
  // The rows have moved.
  void AfterUpdate(const RuledRows& rows, const Step& step) const;
  // The update is done. Collective at multiples of row_limit_steps, where tables have limits.
  absl::Status EndStep(uint32_t update, float learning_rate_factor);
  // Lets the store drop some rows that have aged. Between two steps, while no snapshot is being
  // written. An error of the store is left to its next call.
  void DropAged(uint32_t update, RowStore* store) { life_->DropSome(update, store); }

  // --- Rows of a store. table: a position in the plan

  // Whether a row that has not aged stands as it was updated last. Otherwise it has missed steps:
  // CatchUp brings copies of rows of any tables up to the last one, and Settle all of a store.
  bool stands() const { return !decay_.any(); }
  absl::Status CatchUp(const ExecContext& ctx, std::span<const RowKey> keys,
                       std::span<std::byte* const> copies) const {
    return decay_.CatchUpCopies(ctx, keys, copies);
  }
  absl::Status Settle(const ExecContext& ctx, RowStore* store) const {
    return decay_.Settle(ctx, store);
  }
  // FailedPrecondition where the table decays as a whole: its rows take no weights from outside,
  // and do not know their last update.
  absl::Status CheckWritable(size_t table) const;
  absl::Status CheckDated(size_t table) const;

  // Whether this row is as if it were not there, and what a row says of itself.
  bool IsAged(size_t table, const std::byte* row) const { return life_->IsAged(table, row); }
  RowMark MarkOf(size_t table, const std::byte* row) const { return life_->MarkOf(table, row); }
  // What a row gets that is written from outside.
  RowMark FirstMark(size_t table, uint32_t last_step) const {
    return {.last_step = last_step, .score = life_->FirstScore(table, last_step)};
  }
  // These keys are new from here on.
  void Forget(std::span<const RowKey> keys) { life_->Erase(keys); }
  // Whether rows of the table are counted, and then: these living ones are gone.
  bool counts(size_t table) const { return life_->limits(table); }
  void CountGone(size_t table, std::span<const RowMark> rows) { life_->ForgetRows(table, rows); }
  // The table has got so many rows from outside.
  void CountWritten(size_t table, const RowMark& row, int64_t n) {
    life_->CountWritten(table, row, n);
  }

  // --- What goes with a snapshot, see EmbeddingCollection

  EmbeddingCounters& counters() { return *life_; }
  std::vector<RowLines> age_lines() const { return life_->age_lines(); }
  std::span<const LearningRateRun> learning_rates() const { return decay_.learning_rates(); }

  // The tables are there, in the order of the options.
  void AddTo(EmbeddingStats* stats) const;

 private:
  RowRules(const EmbeddingCollectionOptions& options, const Plan& plan, RowShuffle* shuffle,
           std::unique_ptr<RowLife> life);
  const TableConfig& ConfigOf(size_t table) const {
    return options_.tables[static_cast<size_t>(plan_.tables[table].config)];
  }

  const EmbeddingCollectionOptions& options_;
  const Plan& plan_;
  RowShuffle* const shuffle_;
  TableDecay decay_;
  const std::unique_ptr<RowLife> life_;
  const RowRounding rounding_;
  UpdateGaps gaps_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROWS_ROW_RULES_IMPL_H_
