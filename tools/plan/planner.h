#ifndef HOTROW_TOOLS_PLAN_PLANNER_H_
#define HOTROW_TOOLS_PLAN_PLANNER_H_

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/plan/plan.h"
#include "tools/plan/workload.h"

namespace hotrow {

// Plans one spec with any store and cache size, without advice (advice.h). Callers outside
// tools/plan use MakePlan and PlanCurve (plan.h).
class Planner {
 public:
  // `spec` must outlive it. Errors: as Workload::Of.
  static absl::StatusOr<Planner> Create(const PlanSpec& spec);

  const Workload& workload() const { return workload_; }

  // The plan with this store and this cache budget of a rank.
  Plan With(StoreKind store, double cache_bytes) const;
  // The plan with the cache of the spec, or the best one for cache_bytes: auto.
  Plan WithStore(StoreKind store) const;
  // The plan with the store of the spec, or the first that fits for store: auto.
  Plan Choose() const;
  // Caches of growing sizes over the store of `plan`.
  std::vector<PlanCurvePoint> Curve(const Plan& plan) const;

 private:
  explicit Planner(Workload workload) : workload_(std::move(workload)) {}

  Plan ChooseCache(StoreKind store) const;
  // Of a rank: as the spec says, or what is free of host memory beside what else lies there.
  double HostCacheBytes(StoreKind store, double cache_bytes) const;

  Workload workload_;
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_PLAN_PLANNER_H_
