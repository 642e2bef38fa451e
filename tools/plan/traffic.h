#ifndef HOTROW_TOOLS_PLAN_TRAFFIC_H_
#define HOTROW_TOOLS_PLAN_TRAFFIC_H_

#include <vector>

#include "store/open.h"
#include "tools/plan/tier_bytes.h"
#include "tools/plan/workload.h"

namespace hotrow {

// A store and a cache of one rank, divided among the width classes as the engine does.
struct TierChoice {
  TierChoice(const Workload& workload, StoreKind store_kind, double budget_bytes);

  const StoreKind store;
  const double cache_bytes;        // 0: no cache
  std::vector<CacheBytes> caches;  // of each width class; empty without a cache

  bool has_cache() const { return cache_bytes > 0; }
};

// Rows of one rank that a step moves between these tiers.
struct Traffic {
  double unique_keys = 0;
  double misses = 0;
  double miss_bytes = 0;
  double evicted = 0;  // as many as come in, but in a run that begins with an empty cache
  double evicted_bytes = 0;
  double new_rows = 0;  // that no step of the run had used before
  double new_bytes = 0;
  double hit_rate = 1;  // of lookups
  double unique_hit_rate = 1;
  double hit_rate_bound = 1;
  std::vector<double> store_shares;  // as in Plan

  // What finds its row in the SSD store, and what is written there.
  double ssd_reads = 0;
  double ssd_read_bytes = 0;
  double ssd_record_bytes = 0;
  // What the disk does for that: CountDisk.
  double ssd_ios_read = 0;
  double ssd_bytes_read = 0;
  double ssd_bytes_written = 0;
  double write_amplification = 0;  // 0: no SSD

  // Between host memory and a GPU.
  double link_bytes_down = 0;
  double link_bytes_up = 0;
};
Traffic CountTraffic(const Workload& workload, const TierChoice& tiers);

// An SSD store's room on the disk, within the limits of the spec.
SsdStoreBytes SsdStoreSize(const Workload& workload);
// Adds what an SSD store's disk does. log_bytes: what the log may grow to before it is cleaned.
void CountDisk(const Workload& workload, const TierChoice& tiers, double log_bytes,
               Traffic* traffic);

// What a rank sends to others in a step; zeros with one rank.
struct ExchangeBytes {
  double ids = 0;       // keys, and how many there are of each table
  double forward = 0;   // rows
  double backward = 0;  // their gradients
  double total = 0;
  double node = 0;  // of total, to ranks of the same node
  double network = 0;
  double allreduce = 0;  // of dense gradients, in its node and over the network
};
ExchangeBytes CountExchange(const Workload& workload);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_TRAFFIC_H_
