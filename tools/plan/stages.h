#ifndef HOTROW_TOOLS_PLAN_STAGES_H_
#define HOTROW_TOOLS_PLAN_STAGES_H_

#include <string>
#include <vector>

#include "tools/plan/plan.h"
#include "tools/plan/traffic.h"
#include "tools/plan/workload.h"

namespace hotrow {

// How long a step of one rank takes, and what of it.
struct StepTime {
  std::vector<PlanStage> stages;
  std::vector<PlanChain> chains;  // only with measured costs
  double seconds = 0;
  std::string bottleneck;
};

// From the rates of a data sheet: each stage takes what its slowest resource takes.
StepTime StepTimeFromSheet(const Workload& workload, const TierChoice& tiers,
                           const Traffic& traffic);
// From costs of the table engine that were measured (workload.hardware.calibrated()). Without a
// GPU.
StepTime StepTimeFromMeasurement(const Workload& workload, const TierChoice& tiers,
                                 const Traffic& traffic);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_STAGES_H_
