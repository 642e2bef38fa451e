#ifndef HOTROW_TOOLS_PLAN_PLANNER_H_
#define HOTROW_TOOLS_PLAN_PLANNER_H_

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/plan/plan.h"
#include "tools/plan/workload.h"

namespace hotrow {

// Plans of one spec with one store or another and caches of any size, without advice (advice.h).
// For what is asked more than once; MakePlan and PlanCurve (plan.h) are for callers outside.
class Planner {
 public:
  // The spec outlives it. Errors: as Workload::Of.
  static absl::StatusOr<Planner> Create(const PlanSpec& spec);

  const Workload& workload() const { return workload_; }

  // The plan with this store and this cache budget of a rank.
  Plan With(StoreKind store, double cache_bytes) const;
  // With the cache that the spec says, or the best one.
  Plan WithStore(StoreKind store) const;
  // With the store that the spec says, or the first that fits.
  Plan Choose() const;
  // Caches of growing sizes over the store of `plan`.
  std::vector<PlanCurvePoint> Curve(const Plan& plan) const;

 private:
  explicit Planner(Workload workload) : workload_(std::move(workload)) {}

  Plan ChooseCache(StoreKind store) const;

  Workload workload_;
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_PLANNER_H_
