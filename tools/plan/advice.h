#ifndef HOTROW_TOOLS_PLAN_ADVICE_H_
#define HOTROW_TOOLS_PLAN_ADVICE_H_

#include <string>
#include <vector>

#include "tools/plan/plan.h"
#include "tools/plan/planner.h"

namespace hotrow {

// Changes of the spec that help a plan that does not fit, each with its planned effect.
std::vector<std::string> Remedies(const Planner& planner, const Plan& plan);

// The effect of one more GB (1e9 bytes) of a tier.
std::vector<PlanMarginal> Marginals(const Planner& planner, const Plan& plan);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_ADVICE_H_
