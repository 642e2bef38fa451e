#ifndef HOTROW_TOOLS_PLAN_ADVICE_H_
#define HOTROW_TOOLS_PLAN_ADVICE_H_

#include <string>
#include <vector>

#include "tools/plan/plan.h"
#include "tools/plan/planner.h"

namespace hotrow {

// For a plan that does not fit: changes of the spec that help, each planned, with its effect.
std::vector<std::string> Remedies(const Planner& planner, const Plan& plan);

// What one GB more of a tier buys.
std::vector<PlanMarginal> Marginals(const Planner& planner, const Plan& plan);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_ADVICE_H_
