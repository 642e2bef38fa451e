// A plan as one page: no scripts, nothing from elsewhere, light and dark, fit to be printed.

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "models/train/report.h"
#include "tools/plan/plan.h"

namespace hotrow {
namespace {

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string Count(double count) { return FormatCount(static_cast<int64_t>(std::llround(count))); }
std::string Seconds(double seconds) {
  if (!std::isfinite(seconds)) return "endless";
  if (seconds < 1e-3) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.2f ms", seconds * 1e3);
  return absl::StrFormat("%.1f s", seconds);
}

constexpr char kStyle[] = R"css(
:root{--page:#f4f5f7;--card:#ffffff;--ink:#16191d;--soft:#5b6470;--line:#dfe3e8;--good:#0f7b4d;--goodbg:#e2f4ea;
--bad:#b3261e;--badbg:#fbe6e4;--accent:#c2410c;--c0:#2563c9;--c1:#12946b;--c2:#d99100;--c3:#7c4dcc;--c4:#d1457b;
--c5:#5f7d12;--c6:#0e8fa8;--c7:#8a6244;--bar:#7f9fd0}
@media (prefers-color-scheme:dark){:root{--page:#12151a;--card:#1b1f26;--ink:#eceff3;--soft:#9aa5b3;--line:#303742;
--good:#5fd39b;--goodbg:#143527;--bad:#ff8a80;--badbg:#45201d;--accent:#ff9d5c;--c0:#6ea3ff;--c1:#3fcf9c;--c2:#f3b93f;
--c3:#b394f5;--c4:#f283ad;--c5:#a9c94a;--c6:#4fc9e0;--c7:#c79c7a;--bar:#5b7fb8}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",
Arial,sans-serif;-webkit-print-color-adjust:exact;print-color-adjust:exact}
main{max-width:1040px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:26px;line-height:1.25;margin:0 0 2px;overflow-wrap:anywhere}
h2{font-size:17px;margin:0 0 4px}
p{margin:0 0 10px}.soft{color:var(--soft)}
header{display:flex;gap:16px;align-items:flex-start;justify-content:space-between;flex-wrap:wrap;margin-bottom:20px}
.verdict{font-weight:600;padding:8px 16px;border-radius:999px;white-space:nowrap}
.yes{color:var(--good);background:var(--goodbg)}.no{color:var(--bad);background:var(--badbg)}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px 20px;margin-bottom:18px;
break-inside:avoid}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(185px,1fr));gap:12px;margin-bottom:18px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:12px 16px}
.tile b{display:block;font-size:22px;line-height:1.3;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px;display:block}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{font-weight:600;color:var(--soft);font-size:13px;text-align:left}
th,td{padding:5px 10px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;padding-right:0;padding-left:10px;white-space:nowrap}
tr:last-child td{border-bottom:0}
.scroll{overflow-x:auto}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--ink);font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif}
svg .s{fill:var(--soft)}svg .g{stroke:var(--line);stroke-width:1}
.bar{display:flex;height:26px;border-radius:6px;overflow:hidden;background:var(--line);margin:4px 0 8px;gap:1px}
.bar i{display:block;height:100%;min-width:1px}
.meter{height:6px;border-radius:3px;background:var(--line);margin:2px 0 14px;overflow:hidden}
.meter i{display:block;height:100%;background:var(--soft)}.meter .over{background:var(--bad)}
.key{display:grid;grid-template-columns:repeat(auto-fill,minmax(300px,1fr));gap:1px 24px;margin:0 0 8px;padding:0;list-style:none;
font-size:14px}
.key li{display:flex;gap:8px;align-items:baseline}
.key em{margin-left:auto;font-style:normal;font-variant-numeric:tabular-nums;white-space:nowrap}
.key i{width:10px;height:10px;border-radius:3px;flex:none;align-self:center}
ol{margin:6px 0 0;padding-left:22px}li{margin-bottom:2px}
@media print{:root{--page:#fff;--card:#fff;--ink:#111;--soft:#444;--line:#ccc;--good:#0f7b4d;--goodbg:#fff;--bad:#b3261e;
--badbg:#fff;--accent:#c2410c;--c0:#2563c9;--c1:#12946b;--c2:#d99100;--c3:#7c4dcc;--c4:#d1457b;--c5:#5f7d12;--c6:#0e8fa8;
--c7:#8a6244;--bar:#7f9fd0}body{font-size:12px}main{max-width:none;padding:0}section,.tile{border-radius:0}
.verdict{border:1px solid currentColor}}
)css";
constexpr size_t kColours = 8;

struct Line {
  const char* name;
  const char* colour;
  const char* dash;
  double PlanCurvePoint::*value;
};

// Hit rates by the bytes of the cache, on a logarithmic axis.
std::string CurveChart(const PlanSpec& spec, const Plan& plan,
                       const std::vector<PlanCurvePoint>& curve) {
  constexpr double kWidth = 1000, kHeight = 340, kLeft = 52, kRight = 150, kTop = 24, kBottom = 44;
  const double low = std::log(curve.front().cache_bytes);
  const double high = std::max(low + 1e-6, std::log(curve.back().cache_bytes));
  const auto x = [&](double bytes) {
    const double share = (std::log(std::max(bytes, 1.0)) - low) / (high - low);
    return kLeft + std::clamp(share, 0.0, 1.0) * (kWidth - kLeft - kRight);
  };
  const auto y = [&](double rate) {
    return kTop + (1 - std::clamp(rate, 0.0, 1.0)) * (kHeight - kTop - kBottom);
  };
  std::string out = absl::StrFormat(
      "<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"Hit rate by cache size\">\n", kWidth,
      kHeight);
  for (int percent = 0; percent <= 100; percent += 25) {
    const double at = y(percent / 100.0);
    absl::StrAppendFormat(
        &out,
        "<line class=\"g\" x1=\"%g\" y1=\"%.1f\" x2=\"%g\" y2=\"%.1f\"/>"
        "<text class=\"s\" x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n",
        kLeft, at, kWidth - kRight, at, kLeft - 8, at + 4, percent);
  }
  // Powers of 1,024 and what lies between them by fours, as far apart as labels need.
  double last = -1e9;
  for (double bytes = 1024; bytes < 1e18; bytes *= 2) {
    if (std::log(bytes) < low || std::log(bytes) > high) continue;
    const double at = x(bytes);
    if (at - last < 84) continue;
    last = at;
    absl::StrAppendFormat(
        &out,
        "<line class=\"g\" x1=\"%.1f\" y1=\"%g\" x2=\"%.1f\" y2=\"%g\"/>"
        "<text class=\"s\" x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>\n",
        at, kTop, at, kHeight - kBottom + 4, at, kHeight - kBottom + 20, FormatPlanBytes(bytes));
  }
  absl::StrAppendFormat(&out,
                        "<text class=\"s\" x=\"%g\" y=\"%g\" text-anchor=\"middle\">cache of a "
                        "rank</text>\n",
                        (kLeft + kWidth - kRight) / 2, kHeight - 6);
  const Line lines[] = {
      {"lookups", "--c0", "", &PlanCurvePoint::hit_rate},
      {"distinct keys", "--c1", "", &PlanCurvePoint::unique_hit_rate},
      {"hottest kept", "--soft", " stroke-dasharray=\"5 4\"", &PlanCurvePoint::hit_rate_bound}};
  double label_above = 1e9;
  // The labels at the right end lie over each other where the lines meet: top down, 16 apart.
  std::vector<std::pair<double, const Line*>> labels;
  for (const Line& line : lines) {
    std::string points;
    for (const PlanCurvePoint& point : curve) {
      absl::StrAppendFormat(&points, "%.1f,%.1f ", x(point.cache_bytes), y(point.*line.value));
    }
    absl::StrAppendFormat(&out,
                          "<polyline fill=\"none\" stroke=\"var(%s)\" stroke-width=\"2.5\" "
                          "stroke-linejoin=\"round\"%s points=\"%s\"/>\n",
                          line.colour, line.dash, points);
    labels.emplace_back(y(curve.back().*line.value), &line);
  }
  std::sort(labels.begin(), labels.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  label_above = -1e9;
  for (const auto& [at, line] : labels) {
    const double place = std::max(at + 4, label_above + 16);
    label_above = place;
    absl::StrAppendFormat(&out,
                          "<text x=\"%g\" y=\"%.1f\" style=\"fill:var(%s);font-weight:600\">%s"
                          "</text>\n",
                          kWidth - kRight + 10, place, line->colour, line->name);
  }
  if (plan.cache_bytes > 0) {
    const double at = x(plan.cache_bytes);
    const bool right_half = at > (kLeft + kWidth - kRight) / 2;
    absl::StrAppendFormat(
        &out,
        "<line x1=\"%.1f\" y1=\"%g\" x2=\"%.1f\" y2=\"%g\" stroke=\"var(--accent)\" "
        "stroke-width=\"2\"/>\n"
        "<text x=\"%.1f\" y=\"%g\" text-anchor=\"%s\" style=\"fill:var(--accent);font-weight:600\">"
        "chosen: %s</text>\n",
        at, kTop - 6, at, kHeight - kBottom, at + (right_half ? -8 : 8), kTop - 8,
        right_half ? "end" : "start", FormatPlanBytes(plan.cache_bytes));
    for (const auto& [rate, colour] :
         {std::pair<double, const char*>{plan.hit_rate, "--c0"}, {plan.unique_hit_rate, "--c1"}}) {
      absl::StrAppendFormat(&out,
                            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"var(%s)\" "
                            "stroke=\"var(--card)\" stroke-width=\"2\"/>\n"
                            "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%.1f %%</text>\n",
                            at, y(rate), colour, at + (right_half ? -10 : 10), y(rate) + 18,
                            right_half ? "end" : "start", 100 * rate);
    }
  }
  const double limit =
      spec.hardware.hbm_bytes > 0 ? spec.hardware.hbm_bytes : spec.hardware.dram_bytes;
  if (limit > 0 && std::log(limit) > low && std::log(limit) < high) {
    const double at = x(limit);
    absl::StrAppendFormat(&out,
                          "<line x1=\"%.1f\" y1=\"%g\" x2=\"%.1f\" y2=\"%g\" stroke=\"var(--bad)\" "
                          "stroke-width=\"1.5\" stroke-dasharray=\"2 4\"/>\n"
                          "<text x=\"%.1f\" y=\"%g\" text-anchor=\"end\" style=\"fill:var(--bad)\">"
                          "all of its memory: %s</text>\n",
                          at, kTop, at, kHeight - kBottom, at - 6, kHeight - kBottom - 8,
                          FormatPlanBytes(limit));
  }
  return out + "</svg>\n";
}

std::string StageChart(const Plan& plan) {
  double longest = 0;
  for (const PlanStage& stage : plan.stages) {
    if (std::isfinite(stage.seconds)) longest = std::max(longest, stage.seconds);
  }
  constexpr double kWidth = 1000, kRow = 30, kLeft = 270, kRight = 210;
  const double height = kRow * static_cast<double>(plan.stages.size()) + 6;
  std::string out = absl::StrFormat(
      "<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"Time of each stage of a step\">\n",
      kWidth, height);
  double top = 3;
  for (const PlanStage& stage : plan.stages) {
    const bool is_bottleneck =
        plan.bottleneck == absl::StrCat(stage.name, " (", stage.bound_by, ")");
    const double share = !std::isfinite(stage.seconds) ? 1
                         : longest > 0                 ? stage.seconds / longest
                                                       : 0;
    const double width = std::max(2.0, share * (kWidth - kLeft - kRight));
    absl::StrAppendFormat(
        &out,
        "<text x=\"%g\" y=\"%g\" text-anchor=\"end\"%s>%s</text>"
        "<rect x=\"%g\" y=\"%g\" width=\"%.1f\" height=\"%g\" rx=\"4\" fill=\"var(%s)\"%s/>"
        "<text x=\"%.1f\" y=\"%g\"%s>%s<tspan class=\"s\" dx=\"8\">%s%s</tspan></text>\n",
        kLeft - 12, top + 19, is_bottleneck ? " style=\"font-weight:600\"" : "",
        Escaped(stage.name), kLeft, top + 4, width, kRow - 10, is_bottleneck ? "--accent" : "--bar",
        stage.overlapped && !is_bottleneck ? " opacity=\"0.55\"" : "", kLeft + width + 8, top + 19,
        is_bottleneck ? " style=\"font-weight:600\"" : "", Seconds(stage.seconds),
        Escaped(stage.bound_by), stage.overlapped ? ", ahead" : "");
    top += kRow;
  }
  return out + "</svg>\n";
}

std::string ChainList(const Plan& plan) {
  if (plan.chains.empty()) return "";
  std::string out =
      "<p class=\"soft\">Chains of work that run beside each other; a step takes as long as the "
      "longest.</p>\n<ul class=\"key\">\n";
  for (const PlanChain& chain : plan.chains) {
    absl::StrAppend(&out, "<li>", Escaped(chain.name), "<em>",
                    Seconds(chain.seconds + chain.held_up), "</em></li>\n");
  }
  return out + "</ul>\n";
}

std::string TierBars(const Plan& plan) {
  std::string out;
  for (const PlanTier& tier : plan.tiers) {
    if (tier.bytes <= 0) continue;
    std::vector<const PlanItem*> items;
    for (const PlanItem& item : plan.items) {
      if (item.tier == tier.name && item.bytes > 0) items.push_back(&item);
    }
    std::stable_sort(items.begin(), items.end(),
                     [](const PlanItem* a, const PlanItem* b) { return a->bytes > b->bytes; });
    const double full = tier.limit_bytes > 0 ? tier.bytes / tier.limit_bytes : 2;
    absl::StrAppendFormat(&out, "<p><b>%s</b> %s <span class=\"soft\">of %s, %s %%</span></p>\n",
                          tier.name, FormatPlanBytes(tier.bytes), FormatPlanBytes(tier.limit_bytes),
                          FormatAmount(tier.limit_bytes > 0 ? 100 * full : 0.0));
    absl::StrAppend(&out, "<div class=\"bar\">");
    std::string key;
    for (size_t i = 0; i < items.size(); ++i) {
      // Beyond the eight largest they are too thin to tell apart.
      const std::string colour =
          i < kColours ? absl::StrCat("var(--c", i, ")") : std::string("var(--soft)");
      absl::StrAppendFormat(&out, "<i style=\"width:%.3f%%;background:%s\" title=\"%s: %s\"></i>",
                            100 * items[i]->bytes / tier.bytes, colour, Escaped(items[i]->name),
                            FormatPlanBytes(items[i]->bytes));
      absl::StrAppendFormat(&key, "<li><i style=\"background:%s\"></i>%s<em>%s</em></li>\n", colour,
                            Escaped(items[i]->name), FormatPlanBytes(items[i]->bytes));
    }
    absl::StrAppendFormat(&out,
                          "</div>\n<ul class=\"key\">\n%s</ul>\n<div class=\"meter\"><i%s "
                          "style=\"width:%.2f%%\"></i></div>\n",
                          key, full > 1 ? " class=\"over\"" : "", 100 * std::min(full, 1.0));
  }
  return out;
}

}  // namespace

std::string PlanHtml(const PlanSpec& spec, const Plan& plan,
                     const std::vector<PlanCurvePoint>& curve) {
  const std::string title = Escaped(spec.name.substr(spec.name.rfind('/') + 1));
  std::string out = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>Plan of ",
      title, "</title>\n<style>", kStyle, "</style>\n</head>\n<body>\n<main>\n");
  const bool no_speed = std::all_of(plan.over.begin(), plan.over.end(), [](const std::string& o) {
    return o.rfind("speed: ", 0) == 0;
  });
  const char* const verdict = plan.fits                        ? "It fits"
                              : no_speed && !plan.over.empty() ? "It fits, but is too slow"
                                                               : "It does not fit";
  absl::StrAppendFormat(
      &out,
      "<header><div><h1>%s</h1><p class=\"soft\">%s table%s, %s rows, batch %s, %d rank%s of "
      "%s</p></div><div class=\"verdict %s\">%s</div></header>\n",
      title, Count(static_cast<double>(spec.tables.size())), spec.tables.size() == 1 ? "" : "s",
      Count(plan.rows), Count(static_cast<double>(spec.batch_size)), spec.ranks,
      spec.ranks == 1 ? "" : "s", Escaped(spec.hardware.name), plan.fits ? "yes" : "no", verdict);

  const auto tile = [&](const std::string& value, const std::string& name) {
    absl::StrAppend(&out, "<div class=\"tile\"><b>", Escaped(value), "</b><span>", Escaped(name),
                    "</span></div>\n");
  };
  absl::StrAppend(&out, "<div class=\"tiles\">\n");
  tile(FormatAmount(plan.samples_per_second), "samples/s, all ranks");
  tile(Seconds(plan.step_seconds), absl::StrCat("a step; longest: ", plan.bottleneck));
  if (plan.cache_bytes > 0) {
    tile(absl::StrFormat("%.1f %%", 100 * plan.hit_rate),
         absl::StrFormat("of lookups hit the cache, %.1f %% of distinct keys",
                         100 * plan.unique_hit_rate));
    tile(FormatPlanBytes(plan.cache_bytes), absl::StrCat("cache of a rank: ", plan.cache_choice));
  }
  tile(FormatPlanBytes(plan.row_bytes), absl::StrCat("all rows with optimizer state; store: ",
                                                     std::string(StoreKindName(plan.store))));
  if (plan.ssd_life_years > 0) {
    tile(plan.ssd_life_years > 100 ? "over 100 years"
                                   : absl::StrFormat("%.1f years", plan.ssd_life_years),
         "life of the SSD at this speed");
  }
  if (plan.price_per_billion_samples > 0) {
    tile(absl::StrFormat("%.2f", plan.price_per_billion_samples),
         "price of a billion samples, in the currency of the spec");
  }
  absl::StrAppend(&out, "</div>\n");

  if (!plan.fits) {
    absl::StrAppend(&out, "<section><h2>What is over, and what helps</h2>\n");
    for (const std::string& over : plan.over) {
      absl::StrAppend(&out, "<p style=\"color:var(--bad)\">", Escaped(over), "</p>\n");
    }
    if (plan.remedies.empty()) {
      absl::StrAppend(&out, "<p>No single change that was tried helps.</p>\n");
    } else {
      absl::StrAppend(&out, "<ol>\n");
      for (const std::string& remedy : plan.remedies) {
        absl::StrAppend(&out, "<li>", Escaped(remedy), "</li>\n");
      }
      absl::StrAppend(&out, "</ol>\n");
    }
    absl::StrAppend(&out, "</section>\n");
  }

  if (curve.size() > 1) {
    absl::StrAppend(&out,
                    "<section><h2>Hit rate by cache size</h2><p class=\"soft\">What an LRU cache "
                    "hits, once it is full. The dashed line is the best that any cache could do "
                    "which keeps rows fixed.</p>\n",
                    CurveChart(spec, plan, curve), "</section>\n");
  }
  absl::StrAppend(&out, "<section><h2>Bytes of a rank</h2>\n", TierBars(plan), "</section>\n");
  absl::StrAppend(&out,
                  "<section><h2>Time of a step</h2><p class=\"soft\">Each stage takes as long as "
                  "the slowest thing it uses. The longest on the way is marked; paler ones run "
                  "while the step before computes.</p>\n",
                  StageChart(plan), ChainList(plan), "</section>\n");

  const auto row = [&](const std::string& name, const std::string& value) {
    absl::StrAppend(&out, "<tr><td>", Escaped(name), "</td><td class=\"n\">", Escaped(value),
                    "</td></tr>\n");
  };
  absl::StrAppend(&out, "<section><h2>A step of a rank</h2><div class=\"scroll\"><table>\n");
  row("lookups", Count(plan.lookups));
  row("distinct keys that it owns", Count(plan.unique_keys));
  if (plan.cache_bytes > 0) {
    row("rows in the cache", Count(plan.cache_rows));
    row("rows read from the store", Count(plan.miss_rows));
  }
  if (plan.link_bytes_down > 0) {
    row("over the host link, down", FormatPlanBytes(plan.link_bytes_down));
    row("over the host link, up", FormatPlanBytes(plan.link_bytes_up));
  }
  if (plan.ssd_ios_read > 0) {
    row("SSD reads", Count(plan.ssd_ios_read));
    row("SSD bytes read", FormatPlanBytes(plan.ssd_bytes_read));
    row("SSD bytes written", FormatPlanBytes(plan.ssd_bytes_written));
    row("write amplification", absl::StrFormat("%.2f", plan.write_amplification));
  }
  if (spec.ranks > 1) {
    row("sent to ranks of the node", FormatPlanBytes(plan.exchange_bytes_node));
    row("sent to other nodes", FormatPlanBytes(plan.exchange_bytes_network));
    row("sent for dense gradients", FormatPlanBytes(plan.allreduce_bytes));
  }
  row("a full checkpoint, all ranks",
      absl::StrCat(FormatPlanBytes(plan.checkpoint_bytes), ", ", Seconds(plan.checkpoint_seconds)));
  absl::StrAppend(&out, "</table></div></section>\n");

  absl::StrAppend(&out,
                  "<section><h2>Every item</h2><div class=\"scroll\"><table>\n<tr><th>tier</th>"
                  "<th>item</th><th class=\"n\">bytes</th></tr>\n");
  for (const PlanItem& item : plan.items) {
    absl::StrAppend(&out, "<tr><td>", item.tier, "</td><td>", Escaped(item.name),
                    "</td><td class=\"n\">", Count(item.bytes), "</td></tr>\n");
  }
  absl::StrAppend(&out, "</table></div></section>\n");

  if (!plan.marginals.empty() || spec.hardware.price_per_rank_hour > 0) {
    absl::StrAppend(&out, "<section><h2>Prices</h2><div class=\"scroll\"><table>\n");
    for (const PlanMarginal& marginal : plan.marginals) {
      row(absl::StrCat(marginal.what, " (", marginal.tier, ")"),
          absl::StrFormat("%s samples/s, %+.2f points of distinct keys",
                          FormatChange(marginal.samples_per_second),
                          100 * marginal.unique_hit_rate));
    }
    if (spec.hardware.price_per_rank_hour > 0) {
      row("an hour of all ranks",
          absl::StrFormat("%.2f", spec.hardware.price_per_rank_hour * spec.ranks));
      row("a billion samples", absl::StrFormat("%.2f", plan.price_per_billion_samples));
    }
    absl::StrAppend(&out, "</table></div></section>\n");
  }
  absl::StrAppend(
      &out, "<p class=\"soft\">Made by hotrow plan. ",
      spec.hardware.calibrated()
          ? absl::StrCat("Times rest on measurements of ", Escaped(spec.hardware.machine), ".")
          : std::string("Times rest on data sheets and assumed shares of them."),
      "</p>\n</main>\n</body>\n</html>\n");
  return out;
}

}  // namespace hotrow
