#include "tools/plan/plan.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/plan/advice.h"
#include "tools/plan/planner.h"

namespace hotrow {

double Plan::TierBytes(const std::string& tier) const {
  double bytes = 0;
  for (const PlanItem& item : items) bytes += item.tier == tier ? item.bytes : 0;
  return bytes;
}

std::map<std::string, double> Plan::Values() const {
  return {{"hbm_bytes", TierBytes("hbm")},
          {"dram_bytes", TierBytes("dram")},
          {"ssd_bytes", TierBytes("ssd")},
          {"fits", fits ? 1 : 0},
          {"rows", rows},
          {"weight_bytes", weight_bytes},
          {"payload_bytes", payload_bytes},
          {"row_bytes", row_bytes},
          {"whole_cache_bytes", whole_cache_bytes},
          {"cache_bytes", cache_bytes},
          {"cache_rows", cache_rows},
          {"lookups", lookups},
          {"unique_keys", unique_keys},
          {"hit_rate", hit_rate},
          {"unique_hit_rate", unique_hit_rate},
          {"hit_rate_bound", hit_rate_bound},
          {"miss_rows", miss_rows},
          {"new_rows", new_rows},
          {"link_bytes_down", link_bytes_down},
          {"link_bytes_up", link_bytes_up},
          {"ssd_ios_read", ssd_ios_read},
          {"ssd_bytes_read", ssd_bytes_read},
          {"ssd_bytes_written", ssd_bytes_written},
          {"write_amplification", write_amplification},
          {"exchange_bytes", exchange_bytes},
          {"exchange_bytes_node", exchange_bytes_node},
          {"exchange_bytes_network", exchange_bytes_network},
          {"exchange_ids_bytes", exchange_ids_bytes},
          {"exchange_forward_bytes", exchange_forward_bytes},
          {"exchange_backward_bytes", exchange_backward_bytes},
          {"allreduce_bytes", allreduce_bytes},
          {"step_seconds", step_seconds},
          {"samples_per_second", samples_per_second},
          {"checkpoint_bytes", checkpoint_bytes},
          {"checkpoint_seconds", checkpoint_seconds},
          {"living_rows", living_rows},
          {"delta_rows", delta_rows},
          {"delta_bytes", delta_bytes},
          {"delta_bytes_per_hour", delta_bytes_per_hour},
          {"ssd_life_years", ssd_life_years},
          {"price_per_billion_samples", price_per_billion_samples}};
}

absl::StatusOr<Plan> MakePlan(const PlanSpec& spec, bool advise) {
  if (spec.store == StoreKind::kSsd && !spec.store_auto && spec.cache_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        spec.name,
        ": cache_bytes is 0 with store: ssd; rows of an SSD are trained in a cache, give "
        "its bytes or auto"));
  }
  if (spec.hardware.hbm_bytes > 0 && spec.cache_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.name, ": cache_bytes is 0 with hardware ", spec.hardware.name,
                     "; a GPU trains rows in its cache, give its bytes or auto"));
  }
  HOTROW_ASSIGN_OR_RETURN(const Planner planner, Planner::Create(spec));
  Plan plan = planner.Choose();
  if (!advise) return plan;
  if (plan.fits) {
    plan.marginals = Marginals(planner, plan);
    plan.warnings = Warnings(plan);
  }
  if (!plan.fits || !plan.warnings.empty()) plan.remedies = Remedies(planner, plan);
  return plan;
}

absl::StatusOr<std::vector<PlanCurvePoint>> PlanCurve(const PlanSpec& spec, const Plan& plan) {
  HOTROW_ASSIGN_OR_RETURN(const Planner planner, Planner::Create(spec));
  return planner.Curve(plan);
}

}  // namespace hotrow
