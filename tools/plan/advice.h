#ifndef HOTROW_TOOLS_PLAN_ADVICE_H_
#define HOTROW_TOOLS_PLAN_ADVICE_H_

#include <string>
#include <vector>

#include "tools/plan/plan.h"
#include "tools/plan/planner.h"

namespace hotrow {

// What is to be looked at although the plan fits: an SSD that is worn out in less than three years,
// and a step that waits for the SSD or the host link most of its time.
std::vector<std::string> Warnings(const Plan& plan);

// Changes of the spec that help, each with its planned effect. Of a plan that does not fit: those
// that make it fit first. Of one that fits: those that change no result but by rounding and gain
// speed or years of the SSD, the fastest first.
std::vector<std::string> Remedies(const Planner& planner, const Plan& plan);

// The effect of one more GB (1e9 bytes) of a tier.
std::vector<PlanMarginal> Marginals(const Planner& planner, const Plan& plan);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_ADVICE_H_
