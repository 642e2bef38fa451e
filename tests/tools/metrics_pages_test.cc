// docs/metrics.md and the dashboard name the metrics that there are, all of them and no others.

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/env.h"
#include "base/exposition_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/train/run_metrics.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

std::string Page(const std::string& name) {
  const auto text = ReadFileToString(PosixEnv(), std::string(HOTROW_SOURCE_DIR) + "/docs/" + name);
  HOTROW_EXPECT_OK(text);
  return text.ok() ? *text : std::string();
}

MetricFamilies All() {
  auto families = ParseExposition(AllMetricsText());
  HOTROW_EXPECT_OK(families);
  return families.ok() ? *families : MetricFamilies();
}

// Every name of a metric in the text.
std::set<std::string> NamesIn(const std::string& text) {
  std::set<std::string> names;
  constexpr char kParts[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
  for (size_t at = text.find("hotrow_"); at != std::string::npos;
       at = text.find("hotrow_", at + 1)) {
    names.insert(text.substr(at, text.find_first_not_of(kParts, at) - at));
  }
  return names;
}

// A histogram has three kinds of samples, which queries name.
bool Exists(const MetricFamilies& all, const std::string& name) {
  if (all.contains(name)) return true;
  for (const std::string suffix : {"_bucket", "_sum", "_count"}) {
    if (!name.ends_with(suffix)) continue;
    const auto family = all.find(name.substr(0, name.size() - suffix.size()));
    if (family != all.end() && family->second.kind == "histogram") return true;
  }
  return false;
}

TEST(MetricsPagesTest, ThePageHasEachMetricWithItsTypeItsLabelsAndItsHelp) {
  const std::string page = Page("metrics.md");
  const MetricFamilies all = All();
  for (const auto& [name, family] : all) {
    std::string labels;
    for (const MetricSample& sample : family.samples) {
      for (const auto& [label, value] : sample.labels) {
        if (label == "rank" || label == "le") continue;  // of all, and of histograms
        if (labels.find("`" + label + "`") == std::string::npos) {
          labels += (labels.empty() ? "`" : ", `") + label + "`";
        }
      }
    }
    // hotrow_run_info has them in another order than the alphabet's.
    if (name == "hotrow_run_info") labels = "`model`, `device`, `store`";
    const std::string row =
        "\n| `" + name + "` | " + family.kind + " | " + labels + " | " + family.help + " |\n";
    EXPECT_THAT(page, HasSubstr(row));
  }
  for (const std::string& name : NamesIn(page)) {
    EXPECT_TRUE(Exists(all, name)) << "docs/metrics.md names " << name;
  }
}

// The expressions of all panels and of the variables above them.
void CollectExpressions(const Json& json, std::string* out) {
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      if (value.is_string() && (key == "expr" || key == "query" || key == "definition")) {
        *out += value.get<std::string>() + "\n";
      }
      CollectExpressions(value, out);
    }
  } else if (json.is_array()) {
    for (const Json& value : json) CollectExpressions(value, out);
  }
}

TEST(MetricsPagesTest, TheDashboardAsksForMetricsThatExist) {
  const Json dashboard = Json::parse(Page("grafana_dashboard.json"), nullptr, false);
  ASSERT_TRUE(dashboard.is_object());
  std::string expressions;
  CollectExpressions(dashboard, &expressions);
  const MetricFamilies all = All();
  const std::set<std::string> names = NamesIn(expressions);
  EXPECT_GT(names.size(), 35U);
  for (const std::string& name : names) EXPECT_TRUE(Exists(all, name)) << name;
  // Counters are asked for as rates, but for those that are shown as they stand.
  const std::set<std::string> as_they_stand = {
      "hotrow_steps_total", "hotrow_non_finite_gradients_total", "hotrow_divergences_total",
      "hotrow_checkpoints_total", "hotrow_snapshots_failed_total"};
  for (const std::string& name : names) {
    if (!name.ends_with("_total") || as_they_stand.contains(name)) continue;
    EXPECT_THAT(expressions, HasSubstr("rate(" + name)) << name;
  }
  std::set<int64_t> ids;
  for (const Json& panel : dashboard["panels"]) {
    EXPECT_TRUE(ids.insert(panel["id"].get<int64_t>()).second) << panel["title"];
    EXPECT_LE(panel["gridPos"]["x"].get<int64_t>() + panel["gridPos"]["w"].get<int64_t>(), 24);
    for (const Json& target : panel.value("targets", Json::array())) {
      EXPECT_FALSE(target["expr"].get<std::string>().empty()) << panel["title"];
    }
  }
}

}  // namespace
}  // namespace hotrow
