#ifndef HOTROW_TOOLS_PLAN_TRAFFIC_H_
#define HOTROW_TOOLS_PLAN_TRAFFIC_H_

#include <vector>

#include "tools/plan/plan.h"
#include "tools/plan/tier_bytes.h"
#include "tools/plan/workload.h"

namespace hotrow {

// The store and the caches of one rank. Each cache is divided among the width classes as the engine
// divides it.
struct TierChoice {
  TierChoice(const Workload& workload, StoreKind store_kind, double budget_bytes,
             double host_budget_bytes = 0);

  const StoreKind store;
  const double cache_bytes;             // 0: no cache
  std::vector<CacheBytes> caches;       // of each width class; empty without a cache
  std::vector<CacheBytes> host_caches;  // between a GPU's and a disk; empty without one

  bool has_cache() const { return cache_bytes > 0; }
};

// The rows of one rank that a step moves between its tiers.
struct Traffic {
  double unique_keys = 0;
  double misses = 0;
  double miss_bytes = 0;
  double evicted = 0;  // as many as misses, fewer in a run that begins with an empty cache
  double evicted_bytes = 0;
  double new_rows = 0;  // that no step of the run had used before
  double new_bytes = 0;
  double hit_rate = 1;  // of lookups
  double unique_hit_rate = 1;
  double hit_rate_bound = 1;
  std::vector<double> store_shares;  // as in Plan
  double host_hits = 0;              // misses that the host cache has
  // Steps that a row stays in it, of each width class; empty without one.
  std::vector<double> host_stays;

  // Rows found in the SSD store, and bytes of records written to it.
  double ssd_reads = 0;
  double ssd_read_bytes = 0;
  double ssd_record_bytes = 0;
  // Transfers of the disk for these; filled by CountDisk.
  double ssd_ios_read = 0;
  double ssd_bytes_read = 0;
  double ssd_bytes_written = 0;
  double write_amplification = 0;  // 0: no SSD

  // Bytes between host memory and a GPU.
  double link_bytes_down = 0;
  double link_bytes_up = 0;
};
Traffic CountTraffic(const Workload& workload, const TierChoice& tiers);

// Size of an SSD store within the limits of the spec.
SsdStoreBytes SsdStoreSize(const Workload& workload);
// Fills in the disk's transfers of an SSD store. log_bytes: size of the log when cleaning begins.
void CountDisk(const Workload& workload, const TierChoice& tiers, double log_bytes,
               Traffic* traffic);

ExchangeBytes CountExchange(const Workload& workload);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_TRAFFIC_H_
