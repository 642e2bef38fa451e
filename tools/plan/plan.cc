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
          {"rows", size.rows},
          {"weight_bytes", size.weight_bytes},
          {"payload_bytes", size.payload_bytes},
          {"row_bytes", size.row_bytes},
          {"whole_cache_bytes", size.whole_cache_bytes},
          {"cache_bytes", cache.bytes},
          {"cache_rows", cache.rows},
          {"host_cache_bytes", cache.host_bytes},
          {"host_cache_rows", cache.host_rows},
          {"host_hit_rate", cache.host_hit_rate},
          {"lookups", traffic.lookups},
          {"unique_keys", traffic.unique_keys},
          {"hit_rate", cache.hit_rate},
          {"unique_hit_rate", cache.unique_hit_rate},
          {"hit_rate_bound", cache.hit_rate_bound},
          {"miss_rows", traffic.miss_rows},
          {"new_rows", traffic.new_rows},
          {"link_bytes_down", traffic.link_bytes_down},
          {"link_bytes_up", traffic.link_bytes_up},
          {"ssd_ios_read", disk.ios_read},
          {"ssd_bytes_read", disk.bytes_read},
          {"ssd_bytes_written", disk.bytes_written},
          {"write_amplification", disk.write_amplification},
          {"exchange_bytes", exchange.total},
          {"exchange_bytes_node", exchange.node},
          {"exchange_bytes_network", exchange.network},
          {"exchange_ids_bytes", exchange.ids},
          {"exchange_forward_bytes", exchange.forward},
          {"exchange_backward_bytes", exchange.backward},
          {"allreduce_bytes", exchange.allreduce},
          {"step_seconds", step_seconds},
          {"samples_per_second", samples_per_second},
          {"checkpoint_bytes", checkpoint.bytes},
          {"checkpoint_seconds", checkpoint.seconds},
          {"living_rows", deltas.living_rows},
          {"delta_rows", deltas.rows},
          {"delta_bytes", deltas.bytes},
          {"delta_bytes_per_hour", deltas.bytes_per_hour},
          {"ssd_life_years", disk.life_years},
          {"price_per_billion_samples", price_per_billion_samples}};
}

absl::StatusOr<Plan> MakePlan(const PlanSpec& spec, bool advise) {
  if (!spec.store_auto && !FactsOf(spec.store).in_place && spec.cache_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        spec.name, ": cache_bytes is 0 with store: ", std::string(StoreKindName(spec.store)),
        "; rows of an SSD are trained in a cache, give its bytes or auto"));
  }
  if (spec.hardware.hbm_bytes > 0 && spec.cache_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.name, ": cache_bytes is 0 with hardware ", spec.hardware.name,
                     "; a GPU trains rows in its cache, give its bytes or auto"));
  }
  if (spec.host_cache_bytes > 0 &&
      (spec.hardware.hbm_bytes == 0 || (!spec.store_auto && !FactsOf(spec.store).on_disk))) {
    return absl::InvalidArgumentError(absl::StrCat(
        spec.name,
        ": host_cache_bytes keeps rows that a GPU evicts over a store on a disk; leave it "
        "out, or give a GPU and store: ",
        std::string(StoreKindName(PlannedStore(/*on_disk=*/true)))));
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
