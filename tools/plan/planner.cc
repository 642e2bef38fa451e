#include "tools/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "tools/plan/stages.h"
#include "tools/plan/tier_bytes.h"
#include "tools/plan/tier_items.h"
#include "tools/plan/traffic.h"

namespace hotrow {
namespace {

// auto: of splits whose rates are this near each other, the smaller cache is the better plan.
constexpr double kRateSlack = 0.01;
constexpr double kSearchStepBytes = 1 << 20;
constexpr double kSecondsPerYear = 365.25 * 86'400;
constexpr double kLastStepBytes = 4;
// host_cache_bytes auto: the rest of the host's memory is for the system and for batches that the
// reader has drawn.
constexpr double kHostShare = 0.9;

// What the log may grow to before it is cleaned.
double LogBytes(const Plan& plan) { return plan.TierBytes("ssd"); }

void AddTraffic(const Traffic& traffic, Plan* plan) {
  plan->cache.hit_rate = traffic.hit_rate;
  plan->cache.unique_hit_rate = traffic.unique_hit_rate;
  plan->cache.hit_rate_bound = traffic.hit_rate_bound;
  if (traffic.misses > 0) plan->cache.host_hit_rate = traffic.host_hits / traffic.misses;
  plan->traffic.unique_keys = traffic.unique_keys;
  plan->traffic.miss_rows = traffic.misses;
  plan->traffic.new_rows = traffic.new_rows;
  plan->traffic.link_bytes_down = traffic.link_bytes_down;
  plan->traffic.link_bytes_up = traffic.link_bytes_up;
  plan->traffic.store_shares = traffic.store_shares;
  plan->disk.ios_read = traffic.ssd_ios_read;
  plan->disk.bytes_read = traffic.ssd_bytes_read;
  plan->disk.bytes_written = traffic.ssd_bytes_written;
  plan->disk.write_amplification = traffic.write_amplification;
}

// Rows that a number of steps uses: those that live under a TTL of so many steps, and those that a
// delta of so many has.
void AddRowsOfSteps(const Workload& workload, Plan* plan) {
  const PlanSpec& spec = workload.spec;
  const auto used_in = [&](size_t table, double steps) {
    if (steps == 0) return 0.0;
    return workload.DistinctRows(
        table, spec.tables[table].step_lookups(static_cast<double>(spec.batch_size)) * steps);
  };
  for (size_t t = 0; t < spec.tables.size(); ++t) {
    plan->deltas.living_rows += used_in(t, spec.ttl_steps);
    const double rows = used_in(t, spec.delta_interval_steps);
    const double state = spec.delta_weights_only ? 0 : workload.layouts[t].state_floats;
    plan->deltas.rows += rows;
    plan->deltas.bytes +=
        rows * (kKeyBytes + kLastStepBytes + WireBytes(spec.delta_rows, spec.tables[t].dim) +
                kFloatBytes * state);
  }
  if (plan->deltas.bytes > 0 && plan->step_seconds > 0) {
    plan->deltas.bytes_per_hour =
        plan->deltas.bytes / (spec.delta_interval_steps * plan->step_seconds) * 3600;
  }
}

void AddCheckpoint(const Workload& workload, Plan* plan) {
  const PlanSpec& spec = workload.spec;
  const HardwareProfile& hardware = workload.hardware;
  const double ranks = workload.ranks();
  const double dense =
      workload.dense_parameters * kFloatBytes * (1 + spec.model.dense_optimizer_states);
  plan->checkpoint.bytes = (plan->size.row_bytes + plan->size.rows * kKeyBytes) + dense;
  plan->checkpoint.seconds =
      hardware.ssd_write_bytes_per_second > 0
          ? plan->checkpoint.bytes / ranks / hardware.ssd_write_bytes_per_second
          : 0;
  double written = plan->disk.bytes_written / std::max(1e-30, plan->step_seconds);
  if (spec.checkpoint_interval_steps > 0) {
    const double interval = spec.checkpoint_interval_steps * plan->step_seconds;
    if (!FactsOf(plan->store).on_disk) {
      plan->items.push_back({"ssd", "retained snapshots",
                             (spec.retained_snapshots + 1.0) * plan->checkpoint.bytes / ranks});
      written += plan->checkpoint.bytes / ranks / interval;
    } else {
      // Rows that change between two snapshots exist once more for each that is retained, at most
      // twice that with the garbage beside them.
      double changed = 0;
      for (size_t t = 0; t < spec.tables.size(); ++t) {
        const double lookups = spec.tables[t].step_lookups(static_cast<double>(spec.batch_size)) *
                               spec.checkpoint_interval_steps;
        changed += workload.DistinctRows(t, lookups) *
                   static_cast<double>(SsdBytesPerRow(workload.layouts[t].row_bytes));
      }
      plan->items.push_back(
          {"ssd", "retained snapshots", 2 * spec.retained_snapshots * changed / ranks});
    }
  }
  if (written > 0 && hardware.ssd_endurance_bytes > 0) {
    plan->disk.life_years = hardware.ssd_endurance_bytes / written / kSecondsPerYear;
  }
  if (hardware.price_per_rank_hour > 0 && plan->samples_per_second > 0) {
    plan->price_per_billion_samples =
        hardware.price_per_rank_hour * ranks / 3600 / plan->samples_per_second * 1e9;
  }
}

void Judge(const Workload& workload, Plan* plan) {
  const PlanSpec& spec = workload.spec;
  struct Tier {
    const char* name;
    double limit;
  };
  for (const Tier& tier : {Tier{"hbm", workload.hbm_limit()}, Tier{"dram", workload.dram_limit()},
                           Tier{"ssd", workload.ssd_limit()}}) {
    const double bytes = plan->TierBytes(tier.name);
    if (bytes == 0 && tier.limit == 0) continue;
    plan->tiers.push_back({tier.name, bytes, tier.limit});
    if (bytes > tier.limit) {
      plan->fits = false;
      plan->over.push_back(absl::StrCat(tier.name, ": needs ", FormatPlanBytes(bytes), ", has ",
                                        FormatPlanBytes(tier.limit), ", over by ",
                                        FormatPlanBytes(bytes - tier.limit)));
    }
  }
  if (plan->cache.bytes > 0 && plan->cache.bytes < workload.min_cache_bytes) {
    plan->fits = false;
    plan->over.push_back(absl::StrCat("cache: ", FormatPlanBytes(plan->cache.bytes),
                                      " do not hold the rows of the steps in flight; about ",
                                      FormatPlanBytes(workload.min_cache_bytes), " do"));
  }
  if (spec.target_samples_per_second > 0 &&
      plan->samples_per_second < spec.target_samples_per_second) {
    plan->fits = false;
    plan->over.push_back(absl::StrCat("speed: ", FormatAmount(plan->samples_per_second),
                                      " samples/s, the target is ",
                                      FormatAmount(spec.target_samples_per_second)));
  }
}

}  // namespace

absl::StatusOr<Planner> Planner::Create(const PlanSpec& spec) {
  HOTROW_ASSIGN_OR_RETURN(Workload workload, Workload::Of(spec));
  return Planner(std::move(workload));
}

Plan Planner::With(StoreKind store, double cache_bytes) const {
  Plan plan;
  plan.store = store;
  plan.cache.bytes = cache_bytes;
  plan.size.rows = workload_.rows;
  plan.size.weight_bytes = workload_.weight_bytes;
  plan.size.payload_bytes = workload_.payload_bytes;
  plan.size.row_bytes = workload_.row_bytes;
  plan.size.whole_cache_bytes = workload_.whole_cache_bytes;
  plan.traffic.lookups = workload_.lookups;
  plan.size.dense_parameters = workload_.dense_parameters;

  plan.cache.host_bytes = HostCacheBytes(store, cache_bytes);
  const TierChoice tiers(workload_, store, cache_bytes, plan.cache.host_bytes);
  for (const CacheBytes& cache : tiers.caches) plan.cache.rows += static_cast<double>(cache.ways);
  for (const CacheBytes& cache : tiers.host_caches) {
    plan.cache.host_rows += static_cast<double>(cache.ways);
  }
  plan.items = TierItems(workload_, tiers);
  Traffic traffic = CountTraffic(workload_, tiers);
  CountDisk(workload_, tiers, LogBytes(plan), &traffic);
  AddTraffic(traffic, &plan);
  plan.exchange = CountExchange(workload_);

  const bool measured = !workload_.has_gpu() && workload_.hardware.calibrated();
  StepTime time = measured ? StepTimeFromMeasurement(workload_, tiers, traffic)
                           : StepTimeFromSheet(workload_, tiers, traffic);
  plan.stages = std::move(time.stages);
  plan.chains = std::move(time.chains);
  plan.step_seconds = time.seconds;
  plan.bottleneck = std::move(time.bottleneck);
  if (time.seconds > 0) {
    plan.samples_per_second = static_cast<double>(workload_.spec.batch_size) / time.seconds;
  }
  AddCheckpoint(workload_, &plan);
  AddRowsOfSteps(workload_, &plan);
  Judge(workload_, &plan);
  return plan;
}

double Planner::HostCacheBytes(StoreKind store, double cache_bytes) const {
  if (!workload_.has_gpu() || !FactsOf(store).on_disk) return 0;
  const int64_t said = workload_.spec.host_cache_bytes;
  if (said != PlanSpec::kAuto) return static_cast<double>(said);
  Plan without;
  without.items = TierItems(workload_, TierChoice(workload_, store, cache_bytes));
  const double free = workload_.dram_limit() * kHostShare - without.TierBytes("dram");
  return free < kSearchStepBytes ? 0 : std::min(free, workload_.whole_cache_bytes);
}

// The rate grows with the cache, so the least cache that gives a rate is found by bisection.
Plan Planner::ChooseCache(StoreKind store) const {
  if (!workload_.has_gpu() && FactsOf(store).in_place) {
    Plan plan = With(store, 0);
    plan.cache.choice = "none: rows are trained where the memory store keeps them";
    return plan;
  }
  const double limit = workload_.has_gpu() ? workload_.hbm_limit() : workload_.dram_limit();
  const Plan least = With(store, workload_.min_cache_bytes);
  const double others = least.TierBytes(workload_.near_tier()) - workload_.min_cache_bytes;
  // Beyond a cache of all rows nothing is gained; its buffers take at most 9/64.
  const double most =
      std::min(limit - others, least.size.whole_cache_bytes * 64 / 55 + workload_.min_cache_bytes);
  if (most <= workload_.min_cache_bytes) {
    Plan plan = least;
    plan.cache.choice = "the least that holds the steps in flight";
    return plan;
  }
  const double best = With(store, most).samples_per_second;
  const bool reaches_target = workload_.spec.target_samples_per_second > 0 &&
                              best >= workload_.spec.target_samples_per_second;
  const double wanted =
      reaches_target ? workload_.spec.target_samples_per_second : best * (1 - kRateSlack);
  double enough = std::floor((most - workload_.min_cache_bytes) / kSearchStepBytes);
  double too_small = -1;
  const auto budget = [&](double steps) {
    return workload_.min_cache_bytes + steps * kSearchStepBytes;
  };
  while (enough - too_small > 1) {
    const double middle = std::floor((too_small + enough) / 2);
    (With(store, budget(middle)).samples_per_second >= wanted ? enough : too_small) = middle;
  }
  Plan plan = With(store, budget(enough));
  plan.cache.choice = reaches_target ? "the least that reaches the target"
                                     : absl::StrFormat(
                                           "the least within %g %% of the fastest that fits (%s "
                                           "samples/s)",
                                           100 * kRateSlack, FormatAmount(best));
  return plan;
}

Plan Planner::WithStore(StoreKind store) const {
  const int64_t cache_bytes = workload_.spec.cache_bytes;
  if (cache_bytes == PlanSpec::kAuto) return ChooseCache(store);
  Plan plan = With(store, static_cast<double>(cache_bytes));
  plan.cache.choice = "as the spec says";
  return plan;
}

Plan Planner::Choose() const {
  const PlanSpec& spec = workload_.spec;
  Plan plan = WithStore(spec.store_auto ? PlannedStore(/*on_disk=*/false) : spec.store);
  if (spec.store_auto && !plan.fits && spec.cache_bytes != 0 && workload_.hardware.ssd_bytes > 0) {
    Plan on_disk = WithStore(PlannedStore(/*on_disk=*/true));
    if (on_disk.fits) plan = std::move(on_disk);
  }
  return plan;
}

std::vector<PlanCurvePoint> Planner::Curve(const Plan& plan) const {
  constexpr int kPoints = 64;
  std::vector<PlanCurvePoint> points;
  // A cache of all rows, its buffers included.
  const double most =
      std::max(plan.size.whole_cache_bytes * 64 / 55, workload_.min_cache_bytes * 1.01);
  for (int i = 0; i <= kPoints; ++i) {
    const double bytes =
        std::round(workload_.min_cache_bytes *
                   std::pow(most / workload_.min_cache_bytes, i / double{kPoints}));
    const Plan other = With(plan.store, bytes);
    points.push_back({bytes, other.cache.rows, other.cache.hit_rate, other.cache.unique_hit_rate,
                      other.cache.hit_rate_bound, other.samples_per_second});
  }
  return points;
}

}  // namespace hotrow
