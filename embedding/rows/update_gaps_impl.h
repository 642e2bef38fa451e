#ifndef HOTROW_EMBEDDING_ROWS_UPDATE_GAPS_IMPL_H_
#define HOTROW_EMBEDDING_ROWS_UPDATE_GAPS_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "embedding/collection_plan_impl.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/stats.h"

namespace hotrow::internal {

// Counts how long ago the rows that `step` is about to move were updated, in
// TableStats::update_gaps of their tables, which are in the order of the options. Rows that have
// aged begin again already. trained: as in StepBatch. Only in steps that are sampled; otherwise it
// does nothing.
void CountUpdateGaps(const Plan& plan, const TableKeys& keys, std::span<std::byte* const> rows,
                     std::span<const uint8_t> trained, uint32_t step, std::span<TableStats> tables);

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROWS_UPDATE_GAPS_IMPL_H_
