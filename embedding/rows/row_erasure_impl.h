#ifndef HOTROW_EMBEDDING_ROWS_ROW_ERASURE_IMPL_H_
#define HOTROW_EMBEDDING_ROWS_ROW_ERASURE_IMPL_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/options.h"
#include "embedding/ranks/gradient_residuals_impl.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/rows/row_rules_impl.h"
#include "embedding/stored_rows.h"
#include "embedding/tiers/tiers_impl.h"

namespace hotrow::internal {

// RowErasure removes rows by key, with all that is kept of them: on every tier of the rank that
// keeps them, their counters there, and the residuals of their gradients on all ranks. From then on
// the keys are new.
//
// Threads: the caller's, while the pipeline is paused, no snapshot is being written, no step has
//          been looked up and no exchange is under way. With several ranks all call these together,
//          each with its own keys, wherever they are kept.
// Errors:  InvalidArgument when the ranks name different tables, those of the tiers and the
//          communicator.
class RowErasure {
 public:
  // Not owned: all outlive this. shuffle: null with one rank. residuals: null where none are kept.
  RowErasure(const EmbeddingCollectionOptions& options, const Plan& plan, const ExecContext& ctx,
             Tiers* tiers, RowShuffle* shuffle, GradientResiduals* residuals, RowRules* rules)
      : options_(options),
        plan_(plan),
        ctx_(ctx),
        tiers_(tiers),
        shuffle_(shuffle),
        residuals_(residuals),
        rules_(rules) {}

  // table: a position in the plan. Keys may repeat or have no row.
  absl::Status Run(int32_t table, std::span<const uint64_t> keys);

  // The rows of this rank that `wanted` says; aged ones are not asked for, because whether they are
  // still there depends on the store. Their keys, for Run.
  using Wanted = std::function<bool(const StoredRow& row)>;
  absl::StatusOr<std::vector<uint64_t>> Choose(int32_t table, const Wanted& wanted);

 private:
  // Those of a piece that this rank keeps.
  absl::Status EraseOwn(int32_t table, std::span<const uint64_t> keys);
  // The same of a table that counts its rows (min_rows, max_rows).
  absl::Status EraseCounted(int32_t table);
  absl::Status RunTogether(int32_t table, std::span<const uint64_t> keys);

  const EmbeddingCollectionOptions& options_;
  const Plan& plan_;
  const ExecContext ctx_;
  Tiers* const tiers_;
  RowShuffle* const shuffle_;
  GradientResiduals* const residuals_;
  RowRules* const rules_;
  std::vector<RowKey> own_;  // of a piece, ascending
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROWS_ROW_ERASURE_IMPL_H_
