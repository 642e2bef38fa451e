#include "tools/plan/tier_items.h"

#include <string>

#include "embedding/table_policies.h"
#include "tools/plan/tier_bytes.h"

namespace hotrow {
namespace {

using Items = std::vector<PlanItem>;

void AddCaches(const Workload& workload, const TierChoice& tiers, Items* items) {
  double rows = 0;
  double metadata = 0;
  double overflow = 0;
  double buffers = 0;
  for (const CacheBytes& cache : tiers.caches) {
    rows += static_cast<double>(cache.rows_bytes);
    metadata += static_cast<double>(cache.metadata_bytes);
    overflow += static_cast<double>(cache.overflow_bytes);
    buffers += static_cast<double>(cache.buffer_bytes);
  }
  const std::string tier = workload.near_tier();
  items->push_back({tier, "cache: rows", rows});
  items->push_back({tier, "cache: keys and marks", metadata});
  items->push_back({tier, "cache: overflow", overflow});
  items->push_back({tier, "cache: staging and snapshot buffers", buffers});
  double host = 0;
  for (const CacheBytes& cache : tiers.host_caches) host += static_cast<double>(cache.total());
  if (host > 0) items->push_back({"dram", "host cache: rows that the GPU evicted", host});
}

void AddStore(const Workload& workload, StoreKind store, Items* items) {
  const double weights = workload.weight_bytes / workload.ranks();
  const double state = (workload.payload_bytes - workload.weight_bytes) / workload.ranks();
  const double padding = (workload.row_bytes - workload.payload_bytes) / workload.ranks();
  if (!FactsOf(store).on_disk) {
    std::vector<TierRows> tables;
    for (size_t t = 0; t < workload.spec.tables.size(); ++t) {
      tables.push_back({workload.RowsOf(workload.spec.tables[t]) / workload.ranks(),
                        workload.layouts[t].row_bytes});
    }
    const HostStoreBytes size = SizeOfHostStore(tables, 0);
    items->push_back({"dram", "weights", weights});
    if (state > 0) items->push_back({"dram", "optimizer state", state});
    items->push_back({"dram", "last step and padding", padding});
    items->push_back({"dram", "keys", size.key_bytes});
    items->push_back({"dram", "index", size.index_bytes});
    items->push_back({"dram", "free slots and extents", size.slack_bytes});
    return;
  }
  const SsdStoreBytes size = SsdStoreSize(workload);
  items->push_back({"dram", "index of the SSD store", size.index_bytes});
  items->push_back({"dram", "buffers of the SSD store", size.buffer_bytes});
  items->push_back({"ssd", "weights", weights});
  if (state > 0) items->push_back({"ssd", "optimizer state", state});
  items->push_back({"ssd", "last step and padding", padding});
  items->push_back(
      {"ssd", "record headers and footers", size.live_bytes - weights - state - padding});
  items->push_back({"ssd", "room for cleaning", size.disk_bytes - size.live_bytes});
}

void AddStep(const Workload& workload, Items* items) {
  const std::string tier = workload.near_tier();
  const auto add = [&](const char* name, double bytes) {
    if (bytes > 0) items->push_back({tier, name, bytes});
  };
  const double samples = workload.samples();
  const double steps = workload.steps_in_flight();
  add("batch ids of the steps in flight", workload.lookups * kKeyBytes * 2 * steps);
  add("pooled rows and their gradients", samples * workload.output_dim * kFloatBytes * 2);
  if (workload.spec.ranks > 1) {
    add("exchange buffers", workload.unique_keys * kKeyBytes * 2 * steps +
                                2 * (workload.forward_wire_bytes + workload.backward_wire_bytes));
  }
  add("activations", samples * workload.activations * kFloatBytes * 2);
  add("dense parameters and gradients", workload.dense_parameters * kFloatBytes * 2);
  add("dense optimizer state",
      workload.dense_parameters * kFloatBytes * workload.spec.model.dense_optimizer_states);
}

}  // namespace

std::vector<PlanItem> TierItems(const Workload& workload, const TierChoice& tiers) {
  Items items;
  if (tiers.has_cache()) AddCaches(workload, tiers, &items);
  AddStore(workload, tiers.store, &items);
  if (workload.spec.admission_bytes > 0) {
    items.push_back({"dram", "counters of keys without rows", workload.spec.admission_bytes});
  }
  double score_counts = 0;
  for (const PlanTable& table : workload.spec.tables) {
    if (table.max_rows_by == RowOrder::kScore) score_counts += kScoreCountBytes;
  }
  if (score_counts > 0) items.push_back({"dram", "counts of rows by score", score_counts});
  AddStep(workload, &items);
  return items;
}

}  // namespace hotrow
