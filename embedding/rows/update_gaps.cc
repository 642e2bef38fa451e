#include "embedding/rows/update_gaps_impl.h"

#include <cstring>

namespace hotrow::internal {

void UpdateGaps::Count(const TableKeys& keys, std::span<std::byte* const> rows,
                       std::span<const uint8_t> trained, uint32_t step) {
  if (step % TableStats::kUpdateGapSteps != 0 || keys.table_offsets.empty()) return;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    const PlannedTable& table = plan_.tables[t];
    if (table.frozen) continue;
    StepHistogram& gaps = gaps_[static_cast<size_t>(table.config)];
    const auto end = static_cast<size_t>(keys.table_offsets[t + 1]);
    for (auto i = static_cast<size_t>(keys.table_offsets[t]); i < end; ++i) {
      if (!trained.empty() && trained[i] == 0) continue;
      uint32_t last_step;
      std::memcpy(&last_step, rows[i] + table.layout.step_offset, sizeof(last_step));
      if (last_step != 0) gaps.Add(int64_t{step} - int64_t{last_step});
    }
  }
}

void UpdateGaps::AddTo(EmbeddingStats* stats) const {
  for (size_t t = 0; t < gaps_.size(); ++t) stats->tables[t].update_gaps = gaps_[t];
}

}  // namespace hotrow::internal
