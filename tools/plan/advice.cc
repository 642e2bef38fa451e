#include "tools/plan/advice.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ops/update/sparse_optimizer.h"

namespace hotrow {
namespace {

constexpr double kGB = 1e9;
constexpr double kYearsMin = 3;
// Gains that are worth a line, of samples/s and of years.
constexpr double kFaster = 1.05;
constexpr double kLonger = 1.2;

struct Remedy {
  std::string text;
  bool fits = false;
  double samples_per_second = 0;
};

// Whether an SSD that wears out too soon lasts longer.
bool LastsLonger(const Plan& before, const Plan& after) {
  if (before.disk.life_years <= 0 || before.disk.life_years >= kYearsMin) return false;
  return after.disk.life_years <= 0 || after.disk.life_years > before.disk.life_years * kLonger;
}

// "12,000 samples/s instead of 9,000, 1.2 years of the SSD instead of 0.6".
std::string Gain(const Plan& before, const Plan& after) {
  std::string out = absl::StrCat(FormatAmount(after.samples_per_second), " samples/s instead of ",
                                 FormatAmount(before.samples_per_second));
  if (!LastsLonger(before, after)) return out;
  if (after.disk.life_years <= 0) {
    absl::StrAppend(&out, ", and nothing is written to an SSD");
  } else {
    absl::StrAppendFormat(&out, ", %.1f years of the SSD instead of %.1f", after.disk.life_years,
                          before.disk.life_years);
  }
  return out;
}

}  // namespace

std::vector<std::string> Warnings(const Plan& plan) {
  std::vector<std::string> out;
  if (plan.disk.life_years > 0 && plan.disk.life_years < kYearsMin) {
    out.push_back(absl::StrFormat(
        "ssd: worn out in %.1f years at this speed, with what its data sheet lets be written",
        plan.disk.life_years));
  }
  for (const char* const tier : {"ssd", "host link"}) {
    double seconds = 0;
    std::string names;
    bool overlapped = false;
    const auto is_longest = [&](const PlanStage& stage) {
      return plan.bottleneck == absl::StrCat(stage.name, " (", stage.bound_by, ")");
    };
    for (const PlanStage& stage : plan.stages) {
      if (is_longest(stage)) overlapped = stage.overlapped;
    }
    for (const PlanStage& stage : plan.stages) {
      // Chains of measured costs run beside each other: of them the longest stage alone.
      const bool counts = plan.chains.empty() ? stage.overlapped == overlapped : is_longest(stage);
      if (!counts || !stage.bound_by.starts_with(tier)) continue;
      seconds += stage.seconds;
      absl::StrAppend(&names, names.empty() ? "" : ", ", stage.name);
    }
    if (seconds <= 0 || seconds < plan.step_seconds / 2) continue;
    out.push_back(absl::StrFormat("%s: %.0f %% of a step's time (%s)", tier,
                                  100 * seconds / plan.step_seconds, names));
  }
  return out;
}

std::vector<std::string> Remedies(const Planner& planner, const Plan& plan) {
  const PlanSpec& spec = planner.workload().spec;
  std::vector<Remedy> out;
  // Each remedy is planned, and named when it helps.
  const auto try_spec = [&](const std::string& what, const std::function<void(PlanSpec*)>& change) {
    PlanSpec changed = spec;
    change(&changed);
    const absl::StatusOr<Planner> other = Planner::Create(changed);
    if (!other.ok()) return false;
    const Plan result = other->WithStore(changed.store_auto ? plan.store : changed.store);
    if (plan.fits) {
      if (result.fits && (result.samples_per_second > plan.samples_per_second * kFaster ||
                          LastsLonger(plan, result))) {
        out.push_back(
            {absl::StrCat(what, ": ", Gain(plan, result)), true, result.samples_per_second});
      }
      return result.fits;
    }
    std::string effect;
    for (const PlanTier& tier : result.tiers) {
      const double before = plan.TierBytes(tier.name);
      if (std::abs(tier.bytes - before) < 0.01 * before) continue;
      absl::StrAppend(&effect, effect.empty() ? "" : ", ", tier.name, " ",
                      FormatPlanBytes(tier.bytes), " instead of ", FormatPlanBytes(before));
    }
    if (effect.empty()) {
      effect = absl::StrCat(FormatAmount(result.samples_per_second), " samples/s instead of ",
                            FormatAmount(plan.samples_per_second));
    }
    if (result.fits || result.over.size() < plan.over.size() ||
        (result.over.size() == plan.over.size() &&
         result.samples_per_second > plan.samples_per_second * kFaster)) {
      out.push_back(
          {absl::StrCat(what, ": ", effect, result.fits ? "; then it fits" : "; not enough alone"),
           result.fits});
    }
    return result.fits;
  };
  if (!FactsOf(plan.store).on_disk && planner.workload().hardware.ssd_bytes > 0) {
    const StoreKind on_disk = PlannedStore(/*on_disk=*/true);
    try_spec(
        absl::StrCat("keep the rows on the SSD (store: ", std::string(StoreKindName(on_disk)), ")"),
        [on_disk](PlanSpec* spec) {
          spec->store = on_disk;
          spec->store_auto = false;
          if (spec->cache_bytes == 0) spec->cache_bytes = PlanSpec::kAuto;
        });
  }
  if (FactsOf(plan.store).on_disk) {
    try_spec("stripe the rows over twice as many drives (hardware.drives)",
             [](PlanSpec* spec) { spec->hardware.MultiplyDisk(2); });
  }
  if (FactsOf(plan.store).on_disk && !spec.store_auto) {
    const StoreKind in_memory = PlannedStore(/*on_disk=*/false);
    try_spec(absl::StrCat("keep all rows in memory (store: ", std::string(StoreKindName(in_memory)),
                          ")"),
             [in_memory](PlanSpec* spec) {
               spec->store = in_memory;
               spec->cache_bytes = PlanSpec::kAuto;
             });
  }
  if (spec.prefetch_depth == 0) {
    try_spec("bring rows into the cache a step ahead (prefetch_depth: 1)",
             [](PlanSpec* spec) { spec->prefetch_depth = 1; });
  }
  if (spec.cache_bytes > 0) {
    try_spec("let the cache be chosen (cache_bytes: auto)",
             [](PlanSpec* spec) { spec->cache_bytes = PlanSpec::kAuto; });
  }
  if (spec.host_cache_bytes != PlanSpec::kAuto && planner.workload().has_gpu() &&
      FactsOf(plan.store).on_disk) {
    try_spec("keep rows that the GPU evicts in free host memory (host_cache_bytes: auto)",
             [](PlanSpec* spec) { spec->host_cache_bytes = PlanSpec::kAuto; });
  }
  // What is over by a factor of f needs f times the ranks at least.
  double factor = 2;
  for (const PlanTier& tier : plan.tiers) {
    if (tier.limit_bytes > 0) factor = std::max(factor, tier.bytes / tier.limit_bytes);
  }
  if (plan.samples_per_second > 0) {
    factor = std::max(factor, spec.target_samples_per_second / plan.samples_per_second);
  }
  constexpr double kRanksMax = 65'536;
  double ranks = spec.ranks * std::exp2(std::ceil(std::log2(factor)));
  for (int attempt = 0; attempt < 3 && ranks <= kRanksMax; ++attempt, ranks *= 2) {
    const auto n = static_cast<int32_t>(ranks);
    if (try_spec(absl::StrCat("use ", n, " ranks"), [&](PlanSpec* spec) {
          spec->ranks = n;
          spec->ranks_per_node = std::min(n, spec->hardware.ranks_per_node);
        })) {
      break;
    }
    // Only the number that fits is worth reading.
    if (!out.empty() && out.back().text.starts_with("use ") &&
        out.back().text.find(" ranks: ") != std::string::npos) {
      out.pop_back();
    }
  }
  const bool has_state =
      !plan.fits && std::any_of(spec.tables.begin(), spec.tables.end(), [](const PlanTable& table) {
        return SparseStateFloats(table.optimizer, table.dim) > 1;
      });
  if (has_state) {
    try_spec("use row-wise Adagrad, one number of state a row (optimizer: rowwise_adagrad)",
             [](PlanSpec* spec) {
               for (PlanTable& table : spec->tables) {
                 table.optimizer = SparseOptimizerKind::kRowWiseAdagrad;
               }
             });
  }
  if (std::any_of(spec.tables.begin(), spec.tables.end(), [](const PlanTable& table) {
        return table.weights_precision == WeightsPrecision::kFp32;
      })) {
    try_spec("keep weights in 16 bits (weights_precision: fp16)", [](PlanSpec* spec) {
      for (PlanTable& table : spec->tables) {
        if (table.weights_precision != WeightsPrecision::kFp32) continue;
        table.weights_precision = WeightsPrecision::kFp16;
      }
    });
  }
  // These train another model, which a plan that fits is not asked for.
  if (!plan.fits && std::any_of(spec.tables.begin(), spec.tables.end(),
                                [](const PlanTable& table) { return table.dim > 1; })) {
    try_spec("halve the dims", [](PlanSpec* spec) {
      for (PlanTable& table : spec->tables) table.dim = (table.dim + 1) / 2;
    });
  }
  if (!plan.fits && spec.batch_size > 1) {
    try_spec("halve the batch",
             [](PlanSpec* spec) { spec->batch_size = (spec->batch_size + 1) / 2; });
  }
  std::stable_sort(out.begin(), out.end(), [](const Remedy& a, const Remedy& b) {
    return a.fits != b.fits ? a.fits : a.samples_per_second > b.samples_per_second;
  });
  std::vector<std::string> texts;
  for (Remedy& remedy : out) texts.push_back(std::move(remedy.text));
  return texts;
}

std::vector<PlanMarginal> Marginals(const Planner& planner, const Plan& plan) {
  std::vector<PlanMarginal> out;
  if (plan.cache.bytes > 0) {
    const Plan more = planner.With(plan.store, plan.cache.bytes + kGB);
    out.push_back({planner.workload().near_tier(), "one GB more of cache",
                   more.samples_per_second - plan.samples_per_second,
                   more.cache.unique_hit_rate - plan.cache.unique_hit_rate});
  }
  if (FactsOf(plan.store).on_disk) {
    // A GB more of disk lowers the fill u of the log, and with it what the cleaner moves.
    double disk = 0;
    double live = 0;
    for (const PlanItem& item : plan.items) {
      if (item.tier != "ssd" || item.name == "retained snapshots") continue;
      disk += item.bytes;
      if (item.name != "room for cleaning") live += item.bytes;
    }
    if (disk > 0) {
      const double amplification = 1 / (1 - live / (disk + kGB));
      // Writing less is writing faster where that is what a step waits for.
      double seconds = 0;
      for (const PlanStage& stage : plan.stages) {
        if (stage.bound_by == "ssd written bytes") seconds += stage.seconds;
      }
      const double saved = seconds * (1 - amplification / plan.disk.write_amplification);
      const bool waits = plan.bottleneck.find("ssd") != std::string::npos;
      const double rate = waits ? static_cast<double>(planner.workload().spec.batch_size) /
                                      (plan.step_seconds - saved)
                                : plan.samples_per_second;
      out.push_back({"ssd", "one GB more to clean in", rate - plan.samples_per_second, 0});
    }
  }
  return out;
}

}  // namespace hotrow
