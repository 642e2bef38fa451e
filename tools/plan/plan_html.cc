// A plan as one page: no scripts, nothing from elsewhere, light and dark, fit to be printed. The
// page is plan_page.html; here are the numbers that it shows.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "models/train/report.h"
#include "tools/plan/page_template.h"
#include "tools/plan/plan.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

std::string Count(double count) { return FormatCount(static_cast<int64_t>(std::llround(count))); }
std::string Seconds(double seconds) {
  if (!std::isfinite(seconds)) return "endless";
  if (seconds < 1e-3) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.2f ms", seconds * 1e3);
  return absl::StrFormat("%.1f s", seconds);
}
std::string Plural(const std::string& count, const char* noun, bool one) {
  return absl::StrCat(count, " ", noun, one ? "" : "s");
}
std::string Tenths(double value) { return absl::StrFormat("%.1f", value); }

constexpr size_t kColours = 8;

// Hit rates by the bytes of the cache, on a logarithmic axis.
Json CurveJson(const PlanSpec& spec, const Plan& plan, const std::vector<PlanCurvePoint>& curve) {
  // The plot's box on the page.
  constexpr double kLeft = 52, kRight = 850, kTop = 24, kBottom = 296;
  const double low = std::log(curve.front().cache_bytes);
  const double high = std::max(low + 1e-6, std::log(curve.back().cache_bytes));
  const auto x = [&](double bytes) {
    const double share = (std::log(std::max(bytes, 1.0)) - low) / (high - low);
    return kLeft + std::clamp(share, 0.0, 1.0) * (kRight - kLeft);
  };
  const auto y = [&](double rate) {
    return kTop + (1 - std::clamp(rate, 0.0, 1.0)) * (kBottom - kTop);
  };
  Json json;
  json["rates"] = Json::array();
  for (int percent = 0; percent <= 100; percent += 25) {
    const double at = y(percent / 100.0);
    json["rates"].push_back(
        {{"y", Tenths(at)}, {"label_y", Tenths(at + 4)}, {"percent", absl::StrCat(percent)}});
  }
  // Powers of 1,024 and what lies between them by fours, as far apart as labels need.
  json["sizes"] = Json::array();
  double last = -1e9;
  for (double bytes = 1024; bytes < 1e18; bytes *= 2) {
    if (std::log(bytes) < low || std::log(bytes) > high) continue;
    const double at = x(bytes);
    if (at - last < 84) continue;
    last = at;
    json["sizes"].push_back({{"x", Tenths(at)}, {"bytes", FormatPlanBytes(bytes)}});
  }
  struct Line {
    const char* name;
    const char* colour;
    bool dashed;
    double PlanCurvePoint::*value;
  };
  const Line lines[] = {{"lookups", "--c0", false, &PlanCurvePoint::hit_rate},
                        {"distinct keys", "--c1", false, &PlanCurvePoint::unique_hit_rate},
                        {"hottest kept", "--soft", true, &PlanCurvePoint::hit_rate_bound}};
  json["lines"] = Json::array();
  // The labels at the right end lie over each other where the lines meet: top down, 16 apart.
  std::vector<std::pair<double, const Line*>> labels;
  for (const Line& line : lines) {
    std::string points;
    for (const PlanCurvePoint& point : curve) {
      absl::StrAppendFormat(&points, "%.1f,%.1f ", x(point.cache_bytes), y(point.*line.value));
    }
    json["lines"].push_back(
        {{"colour", line.colour}, {"dashed", line.dashed}, {"points", std::move(points)}});
    labels.emplace_back(y(curve.back().*line.value), &line);
  }
  std::sort(labels.begin(), labels.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  json["labels"] = Json::array();
  double above = -1e9;
  for (const auto& [at, line] : labels) {
    above = std::max(at + 4, above + 16);
    json["labels"].push_back(
        {{"y", Tenths(above)}, {"colour", line->colour}, {"name", line->name}});
  }
  if (plan.cache.bytes > 0) {
    const double at = x(plan.cache.bytes);
    const bool right_half = at > (kLeft + kRight) / 2;
    Json& chosen = json["chosen"];
    chosen = {{"x", Tenths(at)},
              {"label_x", Tenths(at + (right_half ? -8 : 8))},
              {"anchor", right_half ? "end" : "start"},
              {"bytes", FormatPlanBytes(plan.cache.bytes)}};
    for (const auto& [rate, colour] : {std::pair<double, const char*>{plan.cache.hit_rate, "--c0"},
                                       {plan.cache.unique_hit_rate, "--c1"}}) {
      chosen["points"].push_back({{"y", Tenths(y(rate))},
                                  {"colour", colour},
                                  {"label_x", Tenths(at + (right_half ? -10 : 10))},
                                  {"label_y", Tenths(y(rate) + 18)},
                                  {"percent", Tenths(100 * rate)}});
    }
  }
  const double limit =
      spec.hardware.hbm_bytes > 0 ? spec.hardware.hbm_bytes : spec.hardware.dram_bytes;
  if (limit > 0 && std::log(limit) > low && std::log(limit) < high) {
    const double at = x(limit);
    json["limit"] = {
        {"x", Tenths(at)}, {"label_x", Tenths(at - 6)}, {"bytes", FormatPlanBytes(limit)}};
  }
  return json;
}

Json StagesJson(const Plan& plan) {
  // On the page: a bar begins at kLeft, the longest has kWidth, a row is 30 high.
  constexpr double kLeft = 270, kWidth = 520;
  double longest = 0;
  for (const PlanStage& stage : plan.stages) {
    if (std::isfinite(stage.seconds)) longest = std::max(longest, stage.seconds);
  }
  Json json = Json::array();
  int top = 3;
  for (const PlanStage& stage : plan.stages) {
    const bool is_bottleneck =
        plan.bottleneck == absl::StrCat(stage.name, " (", stage.bound_by, ")");
    const double share = !std::isfinite(stage.seconds) ? 1
                         : longest > 0                 ? stage.seconds / longest
                                                       : 0;
    const double width = std::max(2.0, share * kWidth);
    json.push_back({{"name", stage.name},
                    {"text_y", absl::StrCat(top + 19)},
                    {"bar_y", absl::StrCat(top + 4)},
                    {"width", Tenths(width)},
                    {"text_x", Tenths(kLeft + width + 8)},
                    {"colour", is_bottleneck ? "--accent" : "--bar"},
                    {"longest", is_bottleneck},
                    {"pale", stage.overlapped && !is_bottleneck},
                    {"ahead", stage.overlapped},
                    {"seconds", Seconds(stage.seconds)},
                    {"bound_by", stage.bound_by}});
    top += 30;
  }
  return json;
}

Json TiersJson(const Plan& plan) {
  Json json = Json::array();
  for (const PlanTier& tier : plan.tiers) {
    if (tier.bytes <= 0) continue;
    std::vector<const PlanItem*> items;
    for (const PlanItem& item : plan.items) {
      if (item.tier == tier.name && item.bytes > 0) items.push_back(&item);
    }
    std::stable_sort(items.begin(), items.end(),
                     [](const PlanItem* a, const PlanItem* b) { return a->bytes > b->bytes; });
    const double full = tier.limit_bytes > 0 ? tier.bytes / tier.limit_bytes : 2;
    Json bars = Json::array();
    for (size_t i = 0; i < items.size(); ++i) {
      // Beyond the eight largest they are too thin to tell apart.
      bars.push_back({{"name", items[i]->name},
                      {"bytes", FormatPlanBytes(items[i]->bytes)},
                      {"width", absl::StrFormat("%.3f", 100 * items[i]->bytes / tier.bytes)},
                      {"colour", i < kColours ? absl::StrCat("var(--c", i, ")") : "var(--soft)"}});
    }
    json.push_back({{"name", tier.name},
                    {"bytes", FormatPlanBytes(tier.bytes)},
                    {"limit", FormatPlanBytes(tier.limit_bytes)},
                    {"percent", FormatAmount(tier.limit_bytes > 0 ? 100 * full : 0.0)},
                    {"items", std::move(bars)},
                    {"over", full > 1},
                    {"share", absl::StrFormat("%.2f", 100 * std::min(full, 1.0))}});
  }
  return json;
}

// The large numbers at the top.
Json TilesJson(const Plan& plan) {
  Json json = Json::array();
  const auto tile = [&json](const std::string& value, const std::string& name) {
    json.push_back({{"value", value}, {"name", name}});
  };
  tile(FormatAmount(plan.samples_per_second), "samples/s, all ranks");
  tile(Seconds(plan.step_seconds), absl::StrCat("a step; longest: ", plan.bottleneck));
  if (plan.cache.bytes > 0) {
    tile(absl::StrFormat("%.1f %%", 100 * plan.cache.hit_rate),
         absl::StrFormat("of lookups hit the cache, %.1f %% of distinct keys",
                         100 * plan.cache.unique_hit_rate));
    tile(FormatPlanBytes(plan.cache.bytes), absl::StrCat("cache of a rank: ", plan.cache.choice));
  }
  tile(FormatPlanBytes(plan.size.row_bytes), absl::StrCat("all rows with optimizer state; store: ",
                                                          std::string(StoreKindName(plan.store))));
  if (plan.disk.life_years > 0) {
    tile(plan.disk.life_years > 100 ? "over 100 years"
                                    : absl::StrFormat("%.1f years", plan.disk.life_years),
         "life of the SSD at this speed");
  }
  if (plan.price_per_billion_samples > 0) {
    tile(absl::StrFormat("%.2f", plan.price_per_billion_samples),
         "price of a billion samples, in the currency of the spec");
  }
  return json;
}

// A table of names and values.
class Rows {
 public:
  void Add(const std::string& name, const std::string& value) {
    rows_.push_back({{"name", name}, {"value", value}});
  }
  Json Take() { return std::move(rows_); }

 private:
  Json rows_ = Json::array();
};

Json FactsJson(const PlanSpec& spec, const Plan& plan) {
  Rows rows;
  rows.Add("lookups", Count(plan.traffic.lookups));
  rows.Add("distinct keys that it owns", Count(plan.traffic.unique_keys));
  if (plan.cache.bytes > 0) {
    rows.Add("rows in the cache", Count(plan.cache.rows));
    rows.Add("rows read from the store", Count(plan.traffic.miss_rows));
  }
  if (plan.cache.host_bytes > 0) {
    rows.Add("of them from a host cache of " + FormatPlanBytes(plan.cache.host_bytes),
             absl::StrFormat("%.1f %%", 100 * plan.cache.host_hit_rate));
  }
  if (plan.traffic.link_bytes_down > 0) {
    rows.Add("over the host link, down", FormatPlanBytes(plan.traffic.link_bytes_down));
    rows.Add("over the host link, up", FormatPlanBytes(plan.traffic.link_bytes_up));
  }
  if (plan.disk.ios_read > 0) {
    rows.Add("SSD reads", Count(plan.disk.ios_read));
    rows.Add("SSD bytes read", FormatPlanBytes(plan.disk.bytes_read));
    rows.Add("SSD bytes written", FormatPlanBytes(plan.disk.bytes_written));
    rows.Add("write amplification", absl::StrFormat("%.2f", plan.disk.write_amplification));
  }
  if (spec.ranks > 1) {
    rows.Add("sent to ranks of the node", FormatPlanBytes(plan.exchange.node));
    rows.Add("sent to other nodes", FormatPlanBytes(plan.exchange.network));
    rows.Add("sent for dense gradients", FormatPlanBytes(plan.exchange.allreduce));
  }
  rows.Add("a full checkpoint, all ranks", absl::StrCat(FormatPlanBytes(plan.checkpoint.bytes),
                                                        ", ", Seconds(plan.checkpoint.seconds)));
  return rows.Take();
}

Json PricesJson(const PlanSpec& spec, const Plan& plan) {
  Rows rows;
  for (const PlanMarginal& marginal : plan.marginals) {
    rows.Add(
        absl::StrCat(marginal.what, " (", marginal.tier, ")"),
        absl::StrFormat("%s samples/s, %+.2f points of distinct keys",
                        FormatChange(marginal.samples_per_second), 100 * marginal.unique_hit_rate));
  }
  if (spec.hardware.price_per_rank_hour > 0) {
    rows.Add("an hour of all ranks",
             absl::StrFormat("%.2f", spec.hardware.price_per_rank_hour * spec.ranks));
    rows.Add("a billion samples", absl::StrFormat("%.2f", plan.price_per_billion_samples));
  }
  return rows.Take();
}

}  // namespace

std::string PlanHtml(const PlanSpec& spec, const Plan& plan,
                     const std::vector<PlanCurvePoint>& curve) {
  const bool no_speed = std::all_of(plan.over.begin(), plan.over.end(), [](const std::string& o) {
    return o.rfind("speed: ", 0) == 0;
  });
  Json page;
  page["title"] = spec.name.substr(spec.name.rfind('/') + 1);
  page["tables"] =
      Plural(Count(static_cast<double>(spec.tables.size())), "table", spec.tables.size() == 1);
  page["rows"] = Count(plan.size.rows);
  page["batch"] = Count(static_cast<double>(spec.batch_size));
  page["ranks"] = Plural(absl::StrCat(spec.ranks), "rank", spec.ranks == 1);
  page["hardware"] = spec.hardware.name;
  page["fits"] = plan.fits;
  page["careful"] = plan.fits && !plan.warnings.empty();
  page["verdict"] = page["careful"]                  ? "It fits, with warnings"
                    : plan.fits                      ? "It fits"
                    : no_speed && !plan.over.empty() ? "It fits, but is too slow"
                                                     : "It does not fit";
  page["tiles"] = TilesJson(plan);
  if (!plan.fits || page["careful"]) {
    page["advice"] = {
        {"heading", plan.fits ? "What to look at, and what helps" : "What is over, and what helps"},
        {"over", plan.over},
        {"warnings", plan.warnings},
        {"remedies", plan.remedies},
        {"has_remedies", !plan.remedies.empty()}};
  }
  if (curve.size() > 1) page["curve"] = CurveJson(spec, plan, curve);
  page["tiers"] = TiersJson(plan);
  page["stages"] = StagesJson(plan);
  page["stages_height"] = absl::StrCat(30 * plan.stages.size() + 6);
  page["has_chains"] = !plan.chains.empty();
  page["chains"] = Json::array();
  for (const PlanChain& chain : plan.chains) {
    page["chains"].push_back(
        {{"name", chain.name}, {"seconds", Seconds(chain.seconds + chain.held_up)}});
  }
  page["facts"] = FactsJson(spec, plan);
  page["items"] = Json::array();
  for (const PlanItem& item : plan.items) {
    page["items"].push_back(
        {{"tier", item.tier}, {"name", item.name}, {"bytes", Count(item.bytes)}});
  }
  page["prices"] = PricesJson(spec, plan);
  page["has_prices"] = !page["prices"].empty();
  page["basis"] = spec.hardware.calibrated()
                      ? absl::StrCat("Times rest on measurements of ", spec.hardware.machine, ".")
                      : "Times rest on data sheets and assumed shares of them.";
  return FillPage(kPlanPage, page);
}

}  // namespace hotrow
