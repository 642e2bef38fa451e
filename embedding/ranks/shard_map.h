#ifndef HOTROW_EMBEDDING_RANKS_SHARD_MAP_H_
#define HOTROW_EMBEDDING_RANKS_SHARD_MAP_H_

#include <cstdint>

#include "base/hash.h"
#include "base/row_key.h"

namespace hotrow {

// Each table has 4096 virtual shards for life; the shard of a row is a field of its hash. Each rank
// owns a run of shards; the runs have equal lengths, up to one. So rows of every table spread
// evenly over any number of ranks.

inline constexpr int32_t kMaxRanks = RowHash::kNumShards;

// The rank, of world_size in [1, kMaxRanks], that keeps the rows of virtual shard `shard`.
constexpr int32_t RankOfShard(uint32_t shard, int32_t world_size) {
  return static_cast<int32_t>(uint64_t{shard} * static_cast<uint32_t>(world_size) /
                              RowHash::kNumShards);
}

// The rank that keeps this row.
constexpr int32_t OwnerRank(const RowKey& key, int32_t world_size) {
  return RankOfShard(HashRowKey(key).shard(), world_size);
}

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_RANKS_SHARD_MAP_H_
