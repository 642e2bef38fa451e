#include "tools/plan/plan_sweep.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "models/train/report.h"
#include "tools/plan/plan.h"

namespace hotrow {
namespace {

constexpr int32_t kRanksMax = 65'536;
constexpr const char* kNodes[] = {"a100-80", "h100-sxm", "h200", "b200"};
constexpr double kNetworks[] = {200, 400};
// What a rank's network carries of what is printed on it; as the profiles count links.
constexpr double kLinkShare = 0.85;

bool ParseRanks(std::string_view text, int32_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && *out >= 1 && *out <= kRanksMax;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ParseSweepRanks(std::string_view text) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", std::string(text),
                     "\": takes ranks=FIRST..LAST (powers of two) or ranks=A,B,C, each in [1, ",
                     kRanksMax, "]"));
  };
  constexpr std::string_view kName = "ranks=";
  if (text.substr(0, kName.size()) != kName) return bad();
  const std::string_view values = text.substr(kName.size());
  std::vector<int32_t> ranks;
  if (const size_t dots = values.find(".."); dots != std::string_view::npos) {
    int32_t first = 0;
    int32_t last = 0;
    if (!ParseRanks(values.substr(0, dots), &first) ||
        !ParseRanks(values.substr(dots + 2), &last) || first > last) {
      return bad();
    }
    for (int64_t n = first; n <= last; n *= 2) ranks.push_back(static_cast<int32_t>(n));
    return ranks;
  }
  for (const auto& piece : absl::StrSplit(absl::string_view(values.data(), values.size()), ',')) {
    int32_t n = 0;
    if (!ParseRanks(std::string_view(piece.data(), piece.size()), &n)) return bad();
    ranks.push_back(n);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

absl::StatusOr<std::vector<SweepPoint>> SweepPlan(const PlanSpec& spec,
                                                  const SweepOptions& options) {
  std::vector<SweepPoint> points;
  const double batch_of_rank = static_cast<double>(spec.batch_size) / spec.ranks;
  for (const char* const node : kNodes) {
    for (const double gbits : kNetworks) {
      PlanSpec changed = spec;
      HardwareProfile& hardware = changed.hardware;
      hardware = *FindAccelerator(node);
      hardware.network_bytes_per_second = gbits * 1e9 / 8 * kLinkShare;
      hardware.ssd_bytes = spec.hardware.ssd_bytes;
      hardware.ssd_read_ios_per_second = spec.hardware.ssd_read_ios_per_second;
      hardware.ssd_read_bytes_per_second = spec.hardware.ssd_read_bytes_per_second;
      hardware.ssd_write_bytes_per_second = spec.hardware.ssd_write_bytes_per_second;
      hardware.ssd_endurance_bytes = spec.hardware.ssd_endurance_bytes;
      changed.target_samples_per_second = 0;
      double first = 0;
      for (const int32_t ranks : options.ranks) {
        changed.ranks = ranks;
        changed.ranks_per_node = std::min(ranks, hardware.ranks_per_node);
        if (options.batch_per_rank) {
          changed.batch_size = std::max<int64_t>(1, std::llround(batch_of_rank * ranks));
        }
        if (changed.batch_size < ranks) continue;
        HOTROW_ASSIGN_OR_RETURN(const Plan plan, MakePlan(changed, /*advise=*/false));
        SweepPoint point;
        point.node = node;
        point.network_gbits = gbits;
        point.ranks = ranks;
        point.batch_size = changed.batch_size;
        point.step_seconds = plan.step_seconds;
        point.samples_per_second = plan.samples_per_second;
        const double each = plan.samples_per_second / ranks;
        if (first == 0) first = each;
        point.efficiency = first > 0 ? each / first : 0;
        point.bottleneck = plan.bottleneck;
        point.fits = plan.fits;
        if (!plan.over.empty()) point.over = plan.over[0];
        points.push_back(std::move(point));
      }
    }
  }
  return points;
}

std::string SweepText(const PlanSpec& spec, const std::vector<SweepPoint>& points) {
  std::string out =
      absl::StrFormat("%s: %s tables; times rest on data sheets and assumed shares of them\n",
                      spec.name, FormatCount(static_cast<int64_t>(spec.tables.size())));
  std::string node;
  for (const SweepPoint& point : points) {
    const std::string title =
        absl::StrFormat("%s, %g Gb/s a rank between nodes", point.node, point.network_gbits);
    if (title != node) {
      absl::StrAppendFormat(&out, "\n%s\n  %6s %12s %12s %12s %11s  %s\n", title, "ranks", "batch",
                            "step ms", "samples/s", "efficiency", "longest");
      node = title;
    }
    absl::StrAppendFormat(
        &out, "  %6d %12s %12.3f %12s %9.1f %%  %s%s\n", point.ranks, FormatCount(point.batch_size),
        1e3 * point.step_seconds, FormatCount(std::llround(point.samples_per_second)),
        100 * point.efficiency, point.bottleneck,
        point.fits ? std::string() : absl::StrCat("; does not fit: ", point.over));
  }
  return out;
}

std::string SweepJson(const PlanSpec& spec, const std::vector<SweepPoint>& points) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["spec"] = spec.name;
  json["points"] = Json::array();
  for (const SweepPoint& point : points) {
    json["points"].push_back({{"node", point.node},
                              {"network_gbits", point.network_gbits},
                              {"ranks", point.ranks},
                              {"batch_size", point.batch_size},
                              {"step_seconds", point.step_seconds},
                              {"samples_per_second", point.samples_per_second},
                              {"efficiency", point.efficiency},
                              {"bottleneck", point.bottleneck},
                              {"fits", point.fits},
                              {"over", point.over}});
  }
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace hotrow
