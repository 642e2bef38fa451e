#ifndef HOTROW_TOOLS_PLAN_TIER_ITEMS_H_
#define HOTROW_TOOLS_PLAN_TIER_ITEMS_H_

#include <vector>

#include "tools/plan/plan.h"
#include "tools/plan/traffic.h"
#include "tools/plan/workload.h"

namespace hotrow {

// What fills the tiers of one rank, but for snapshots: the cache, the store, and what a step needs.
std::vector<PlanItem> TierItems(const Workload& workload, const TierChoice& tiers);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_TIER_ITEMS_H_
