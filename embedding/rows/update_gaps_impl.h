#ifndef HOTROW_EMBEDDING_ROWS_UPDATE_GAPS_IMPL_H_
#define HOTROW_EMBEDDING_ROWS_UPDATE_GAPS_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "embedding/collection_plan_impl.h"
#include "embedding/options.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/stats.h"

namespace hotrow::internal {

// UpdateGaps counts how long ago the rows of steps were updated: TableStats::update_gaps.
class UpdateGaps {
 public:
  // plan outlives it.
  UpdateGaps(const EmbeddingCollectionOptions& options, const Plan& plan)
      : plan_(plan), gaps_(options.tables.size()) {}

  // The rows that `step` is about to move; those that have aged begin again already. trained:
  // empty, or which of them do. Only in steps that are sampled and whose keys the host has;
  // otherwise it does nothing.
  void Count(const TableKeys& keys, std::span<std::byte* const> rows,
             std::span<const uint8_t> trained, uint32_t step);
  void AddTo(EmbeddingStats* stats) const;

 private:
  const Plan& plan_;
  std::vector<StepHistogram> gaps_;  // [tables of the options]
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROWS_UPDATE_GAPS_IMPL_H_
