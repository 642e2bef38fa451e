#ifndef HOTROW_TOOLS_PLAN_STAGES_H_
#define HOTROW_TOOLS_PLAN_STAGES_H_

#include <string>
#include <vector>

#include "tools/plan/plan.h"
#include "tools/plan/traffic.h"
#include "tools/plan/workload.h"

namespace hotrow {

// Duration of a step of one rank, by stages.
struct StepTime {
  std::vector<PlanStage> stages;
  std::vector<PlanChain> chains;  // only with measured costs
  double seconds = 0;
  std::string bottleneck;
};

// The step from data-sheet rates: a stage takes as long as its slowest resource.
StepTime StepTimeFromSheet(const Workload& workload, const TierChoice& tiers,
                           const Traffic& traffic);
// The step from measured costs of the table engine: workload.hardware.calibrated(), and no GPU.
StepTime StepTimeFromMeasurement(const Workload& workload, const TierChoice& tiers,
                                 const Traffic& traffic);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_STAGES_H_
