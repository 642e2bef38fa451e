#ifndef HOTROW_CACHE_CACHE_SIMULATION_H_
#define HOTROW_CACHE_CACHE_SIMULATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/row_key.h"
#include "cache/row_cache.h"

namespace hotrow {

struct CacheSimulationOptions {
  int64_t rows = 0;  // required; ways, rounded up to whole buckets
  CachePolicy policy = CachePolicy::kLru;
  // Lookups of one training step; the last step may have fewer.
  int64_t step_lookups = 1;
  // Steps prefetched while one computes; their rows are pinned, too.
  int32_t prefetch_depth = 0;

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

// Hit rates of a RowCache of a given size on a stream of lookups. Runs the cache's own code on rows
// of the least width through the steps of training: find or insert the distinct keys, pin, age,
// unpin prefetch_depth steps later. Memory: 16 bytes a way, and the keys of one step.
//
// Threads: one at a time. Errors: InvalidArgument, and ResourceExhausted (no memory), from Create.
class CacheSimulation {
 public:
  struct Counts {
    int64_t lookups = 0;
    int64_t lookup_hits = 0;  // weighted by lookups, as TierStats::lookup_hits
    int64_t unique_keys = 0;  // summed over steps
    int64_t unique_hits = 0;
    int64_t no_room = 0;  // keys that found all their ways pinned: misses
    double hit_rate() const {
      return lookups == 0 ? 0 : static_cast<double>(lookup_hits) / static_cast<double>(lookups);
    }
    double unique_hit_rate() const {
      return unique_keys == 0 ? 0
                              : static_cast<double>(unique_hits) / static_cast<double>(unique_keys);
    }
  };

  static absl::StatusOr<std::unique_ptr<CacheSimulation>> Create(
      const CacheSimulationOptions& options);

  // One lookup; every step_lookups of them are a step.
  void Add(RowKey key);
  // One whole step: distinct keys and the lookups of each (empty: one each). Lookups that Add still
  // holds become a step before it.
  void Step(std::span<const RowKey> keys, std::span<const int32_t> lookups);
  // Ends the step that Add has begun.
  void EndStep();

  int64_t ways() const { return cache_->Size().ways; }
  const Counts& counts() const { return counts_; }

 private:
  CacheSimulation(const CacheSimulationOptions& options, std::unique_ptr<RowCache> cache);

  struct HashOfKey {
    size_t operator()(const RowKey& key) const;
  };

  CacheSimulationOptions options_;
  std::unique_ptr<RowCache> cache_;
  Counts counts_;
  // The step that Add fills.
  int64_t step_lookups_ = 0;
  std::vector<RowKey> step_keys_;
  std::vector<int32_t> step_counts_;
  absl::flat_hash_map<RowKey, size_t, HashOfKey> step_positions_;
  // Slots of the steps in flight, a ring of prefetch_depth + 1.
  std::vector<std::vector<int64_t>> in_flight_;
  size_t next_in_flight_ = 0;
  // Scratch of one step.
  std::vector<int64_t> slots_;
  std::vector<Placement> placement_;
  std::vector<uint8_t> evicted_;
  std::vector<RowKey> evicted_keys_;
  std::vector<std::byte> evicted_rows_;
  std::vector<int64_t> filled_;
};

}  // namespace hotrow

#endif  // HOTROW_CACHE_CACHE_SIMULATION_H_
