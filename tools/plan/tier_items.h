#ifndef HOTROW_TOOLS_PLAN_TIER_ITEMS_H_
#define HOTROW_TOOLS_PLAN_TIER_ITEMS_H_

#include <vector>

#include "tools/plan/plan.h"
#include "tools/plan/traffic.h"
#include "tools/plan/workload.h"

namespace hotrow {

// The contents of one rank's tiers without snapshots: cache, store, and the buffers of a step.
std::vector<PlanItem> TierItems(const Workload& workload, const TierChoice& tiers);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_TIER_ITEMS_H_
