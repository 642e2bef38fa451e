#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "models/train/report.h"
#include "tools/plan/plan.h"

namespace hotrow {
namespace {

constexpr double kShortStepSeconds = 1e-3;

std::string Count(double count) { return FormatCount(static_cast<int64_t>(std::llround(count))); }
std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }
std::string Seconds(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.1f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.2f ms", seconds * 1e3);
  return absl::StrFormat("%.1f s", seconds);
}

// " (fp16)", " (bf16 in 3 of 26 tables)"; nothing where all is fp32.
std::string PrecisionText(const PlanSpec& spec) {
  std::string out;
  for (const WeightsPrecision precision : {WeightsPrecision::kFp16, WeightsPrecision::kBf16}) {
    const auto count =
        std::count_if(spec.tables.begin(), spec.tables.end(),
                      [&](const PlanTable& table) { return table.weights_precision == precision; });
    if (count == 0) continue;
    absl::StrAppend(&out, out.empty() ? " (" : ", ", std::string(WeightsPrecisionName(precision)));
    if (count < std::ssize(spec.tables)) {
      absl::StrAppend(&out, " in ", FormatCount(count), " of ",
                      FormatCount(std::ssize(spec.tables)), " tables");
    }
  }
  return out.empty() ? out : absl::StrCat(out, ")");
}

}  // namespace

std::string FormatAmount(double amount) {
  if (std::isinf(amount)) return amount > 0 ? "endless" : "-endless";
  if (!std::isfinite(amount)) return "unknown";
  const double size = std::abs(amount);
  // The unit is that of the figure as it is printed: 999,999.9 is 1.00 M.
  constexpr struct {
    double unit;
    const char* name;
  } kUnits[] = {{1e15, " P"}, {1e12, " T"}, {1e9, " G"}, {1e6, " M"}};
  for (const auto& [unit, name] : kUnits) {
    if (size >= unit * (1 - 5e-7)) return absl::StrFormat("%.2f%s", amount / unit, name);
  }
  if (size >= 99.995) return FormatCount(std::llround(amount));
  if (size >= 0.9995 || size == 0) return absl::StrFormat("%.4g", amount);
  // Not with an exponent, however little it is.
  return size >= 5e-7 ? absl::StrFormat("%.6f", amount) : "0";
}

std::string FormatChange(double amount) {
  const std::string text = FormatAmount(amount);
  return text[0] == '-' || text == "unknown" ? text : absl::StrCat("+", text);
}

std::string FormatPlanBytes(double bytes) { return FormatBytes(static_cast<int64_t>(bytes)); }

std::string PlanText(const PlanSpec& spec, const Plan& plan) {
  std::string out;
  absl::StrAppendFormat(&out, "%s: %s tables, %s rows, batch %s, %d rank%s of %s\n", spec.name,
                        FormatCount(static_cast<int64_t>(spec.tables.size())),
                        Count(plan.size.rows), FormatCount(spec.batch_size), spec.ranks,
                        spec.ranks == 1 ? "" : "s", spec.hardware.name);
  if (spec.hardware.calibrated()) {
    absl::StrAppendFormat(&out, "times as measured on: %s, %d threads\n", spec.hardware.machine,
                          spec.hardware.threads);
  } else {
    absl::StrAppend(&out, "times from data sheets and assumed shares of them, not measured here\n");
  }
  if (spec.hardware.hbm_bytes == 0 && plan.step_seconds < kShortStepSeconds) {
    absl::StrAppend(&out,
                    "a step of less than a millisecond takes several times as long: what each "
                    "costs,\n  however few rows it has, is left out (docs/planner.md)\n");
  }
  absl::StrAppendFormat(&out, "weights %s%s, with optimizer state %s, as rows %s\n",
                        FormatPlanBytes(plan.size.weight_bytes), PrecisionText(spec),
                        FormatPlanBytes(plan.size.payload_bytes),
                        FormatPlanBytes(plan.size.row_bytes));
  absl::StrAppend(&out, plan.fits ? "It fits.\n" : "It does not fit.\n");
  for (const std::string& line : plan.over) absl::StrAppend(&out, "  ", line, "\n");
  for (const std::string& line : plan.warnings) absl::StrAppend(&out, "  warning: ", line, "\n");
  for (size_t i = 0; i < plan.remedies.size(); ++i) {
    absl::StrAppendFormat(&out, "  %d. %s\n", i + 1, plan.remedies[i]);
  }
  absl::StrAppendFormat(
      &out, "\nStore: %s. Cache: %s%s%s.\n", std::string(StoreKindName(plan.store)),
      plan.cache.bytes > 0 ? FormatPlanBytes(plan.cache.bytes) + ", " : std::string(),
      plan.cache.bytes > 0 ? Count(plan.cache.rows) + " rows, " : std::string(), plan.cache.choice);
  if (plan.cache.host_bytes > 0) {
    absl::StrAppendFormat(
        &out, "Host cache: %s, %s rows that the GPU evicted%s.\n",
        FormatPlanBytes(plan.cache.host_bytes), Count(plan.cache.host_rows),
        spec.host_cache_bytes == PlanSpec::kAuto ? ", of the host memory that is free" : "");
  }
  if (spec.hardware.hbm_bytes > 0) {
    absl::StrAppendFormat(&out, "A cache of all rows would take %s of each rank's %s.\n",
                          FormatPlanBytes(plan.size.whole_cache_bytes),
                          FormatPlanBytes(spec.hardware.hbm_bytes));
  }

  absl::StrAppend(&out, "\nBytes of a rank\n");
  for (const PlanTier& tier : plan.tiers) {
    absl::StrAppendFormat(&out, "  %-5s %14s of %s\n", tier.name, FormatPlanBytes(tier.bytes),
                          FormatPlanBytes(tier.limit_bytes));
    for (const PlanItem& item : plan.items) {
      if (item.tier != tier.name) continue;
      absl::StrAppendFormat(&out, "    %-40s %14s\n", item.name, FormatPlanBytes(item.bytes));
    }
  }

  absl::StrAppend(&out, "\nA step of a rank\n");
  const auto line = [&](const char* name, const std::string& value) {
    absl::StrAppendFormat(&out, "  %-42s %s\n", name, value);
  };
  line("lookups, distinct keys",
       absl::StrCat(Count(plan.traffic.lookups), ", ", Count(plan.traffic.unique_keys)));
  if (plan.cache.bytes > 0) {
    line("hit rate of lookups, of distinct keys",
         absl::StrCat(Percent(plan.cache.hit_rate), ", ", Percent(plan.cache.unique_hit_rate),
                      "; with the hottest rows kept ", Percent(plan.cache.hit_rate_bound)));
    line("rows read from the store", Count(plan.traffic.miss_rows));
  }
  if (plan.cache.host_bytes > 0) {
    line("of them from the host cache", Percent(plan.cache.host_hit_rate));
  }
  if (plan.traffic.link_bytes_down > 0) {
    line("host link, down and up", absl::StrCat(FormatPlanBytes(plan.traffic.link_bytes_down), ", ",
                                                FormatPlanBytes(plan.traffic.link_bytes_up)));
  }
  if (plan.disk.ios_read > 0) {
    line("SSD reads",
         absl::StrCat(Count(plan.disk.ios_read), ", ", FormatPlanBytes(plan.disk.bytes_read)));
    line("SSD writes",
         absl::StrFormat("%s at a write amplification of %.2f",
                         FormatPlanBytes(plan.disk.bytes_written), plan.disk.write_amplification));
  }
  if (spec.ranks > 1) {
    line("sent to ranks of the node, to others",
         absl::StrCat(FormatPlanBytes(plan.exchange.node), ", ",
                      FormatPlanBytes(plan.exchange.network)));
  }
  for (const PlanStage& stage : plan.stages) {
    line(stage.name.c_str(), absl::StrFormat("%10s  %s%s", Seconds(stage.seconds), stage.bound_by,
                                             stage.overlapped ? ", ahead of the step" : ""));
  }
  line("step", absl::StrFormat("%10s  longest: %s", Seconds(plan.step_seconds), plan.bottleneck));
  for (const PlanChain& chain : plan.chains) {
    line(absl::StrCat("chain: ", chain.name).c_str(),
         absl::StrFormat("%10s", Seconds(chain.seconds)) +
             (chain.held_up > 0 ? absl::StrCat(" and ", Seconds(chain.held_up), " held up") : ""));
  }
  line("samples/s, all ranks", FormatAmount(plan.samples_per_second));

  absl::StrAppend(&out, "\n");
  line("checkpoint", absl::StrCat(FormatPlanBytes(plan.checkpoint.bytes), ", ",
                                  Seconds(plan.checkpoint.seconds)));
  if (plan.deltas.living_rows > 0) {
    line("rows alive under ttl_steps, all ranks",
         absl::StrCat(Count(plan.deltas.living_rows), ", ",
                      Percent(plan.deltas.living_rows / plan.size.rows), " of all"));
  }
  if (plan.deltas.bytes > 0) {
    line("a delta, deltas of an hour",
         absl::StrCat(Count(plan.deltas.rows), " rows of ", FormatPlanBytes(plan.deltas.bytes),
                      ", ", FormatPlanBytes(plan.deltas.bytes_per_hour)));
  }
  if (plan.disk.life_years > 0) {
    line("life of the SSD", absl::StrFormat("%.1f years", plan.disk.life_years));
  }
  if (plan.price_per_billion_samples > 0) {
    line("price of a billion samples", absl::StrFormat("%.2f", plan.price_per_billion_samples));
  }
  for (const PlanMarginal& marginal : plan.marginals) {
    line(marginal.what.c_str(), absl::StrFormat("%s samples/s, %+.2f points of distinct keys",
                                                FormatChange(marginal.samples_per_second),
                                                100 * marginal.unique_hit_rate));
  }
  return out;
}

std::string PlanJson(const PlanSpec& spec, const Plan& plan) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["spec"] = spec.name;
  json["hardware"] = spec.hardware.name;
  json["ranks"] = spec.ranks;
  json["fits"] = plan.fits;
  json["over"] = plan.over;
  json["warnings"] = plan.warnings;
  json["remedies"] = plan.remedies;
  json["store"] = std::string(StoreKindName(plan.store));
  json["cache_choice"] = plan.cache.choice;
  json["bottleneck"] = plan.bottleneck;
  for (const auto& [name, value] : plan.Values()) {
    if (name == "fits") continue;
    json[name] = std::isfinite(value) ? Json(value) : Json(nullptr);
  }
  Json tiers = Json::array();
  for (const PlanTier& tier : plan.tiers) {
    Json items = Json::array();
    for (const PlanItem& item : plan.items) {
      if (item.tier == tier.name) items.push_back({{"name", item.name}, {"bytes", item.bytes}});
    }
    tiers.push_back({{"name", tier.name},
                     {"bytes", tier.bytes},
                     {"limit_bytes", tier.limit_bytes},
                     {"items", std::move(items)}});
  }
  json["tiers"] = std::move(tiers);
  Json stages = Json::array();
  for (const PlanStage& stage : plan.stages) {
    stages.push_back({{"name", stage.name},
                      {"seconds", stage.seconds},
                      {"bound_by", stage.bound_by},
                      {"overlapped", stage.overlapped}});
  }
  json["stages"] = std::move(stages);
  Json chains = Json::array();
  for (const PlanChain& chain : plan.chains) {
    chains.push_back(
        {{"name", chain.name}, {"seconds", chain.seconds}, {"held_up_seconds", chain.held_up}});
  }
  json["chains"] = std::move(chains);
  Json marginals = Json::array();
  for (const PlanMarginal& marginal : plan.marginals) {
    marginals.push_back({{"tier", marginal.tier},
                         {"what", marginal.what},
                         {"samples_per_second", marginal.samples_per_second},
                         {"unique_hit_rate", marginal.unique_hit_rate}});
  }
  json["marginals"] = std::move(marginals);
  return json.dump(2) + "\n";
}

}  // namespace hotrow
