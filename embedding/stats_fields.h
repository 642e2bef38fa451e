#ifndef HOTROW_EMBEDDING_STATS_FIELDS_H_
#define HOTROW_EMBEDDING_STATS_FIELDS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "embedding/stats.h"

namespace hotrow {

// How counts of several ranks are merged.
enum class OverRanks { kSum, kMax };

// Describes one count of a struct, for code that treats all counts alike.
template <typename Struct>
struct StatsField {
  const char* name;  // the member's
  int64_t Struct::*count;
  OverRanks over_ranks;
};

// Every int64_t of the structs, each once; `tiers`, `tables` and histograms apart.
std::span<const StatsField<TierStats>> TierStatsFields();
std::span<const StatsField<TableStats>> TableStatsFields();
std::span<const StatsField<EmbeddingStats>> EmbeddingStatsFields();

// All counts in one row, those of the tiers first, then those of the tables. Ranks with the same
// tiers and tables have rows with the same fields.
std::vector<int64_t> PackCounts(const EmbeddingStats& stats);
// Sets the counts to those of all ranks together. `rows` holds the PackCounts of the ranks, one
// after another. Ratios become those of the sums. `stats` must have the ranks' tiers and tables.
void MergeCounts(std::span<const int64_t> rows, EmbeddingStats* stats);

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_STATS_FIELDS_H_
