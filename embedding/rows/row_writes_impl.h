#ifndef HOTROW_EMBEDDING_ROWS_ROW_WRITES_IMPL_H_
#define HOTROW_EMBEDDING_ROWS_ROW_WRITES_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/matrix_view.h"
#include "base/row_key.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/options.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/rows/row_erasure_impl.h"
#include "embedding/rows/row_rules_impl.h"
#include "embedding/tiers/initial_rows_impl.h"
#include "embedding/tiers/tiers_impl.h"

namespace hotrow::internal {

// InvalidArgument where a key occurs twice or lies beyond num_embeddings, or a weight is not
// finite. weights: [keys, D].
absl::Status CheckWrittenRows(const TableConfig& config, std::span<const uint64_t> keys,
                              MatrixView<const float> weights);

// RowWrites gives rows weights from outside. What was kept of the keys goes first, as RowErasure
// does it; the rows then begin with fresh optimizer state.
//
// Threads, several ranks: as RowErasure, and no step is outstanding.
// Errors:  those of RowErasure and of Tiers::Write. Then each key has its row from before, the new
//          one or none.
class RowWrites {
 public:
  // Not owned: all outlive this. shuffle: null with one rank.
  RowWrites(const EmbeddingCollectionOptions& options, const Plan& plan, const ExecContext& ctx,
            Tiers* tiers, RowShuffle* shuffle, RowErasure* erasure, RowRules* rules);

  // table: a position in the plan. keys: distinct. weights: [keys, D], finite. last_step: that the
  // rows get, at least 1.
  absl::Status Run(int32_t table, std::span<const uint64_t> keys, MatrixView<const float> weights,
                   uint32_t last_step);

 private:
  absl::Status RunTogether(int32_t table, std::span<const uint64_t> keys,
                           MatrixView<const float> weights, uint32_t last_step);
  // Rows that this rank keeps.
  absl::Status WriteOwn(int32_t table, std::span<const RowKey> keys,
                        std::span<const float* const> weights, uint32_t last_step);

  const Plan& plan_;
  const ExecContext ctx_;
  Tiers* const tiers_;
  RowShuffle* const shuffle_;
  RowErasure* const erasure_;
  RowRules* const rules_;
  const InitialRows initial_rows_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROWS_ROW_WRITES_IMPL_H_
