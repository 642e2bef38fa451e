// The page of a plan, and sweeps over ranks.

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tools/plan/page_template.h"
#include "tools/plan/plan.h"
#include "tools/plan/plan_sweep.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

PlanSpec Spec(const std::string& text) {
  const auto spec = ParsePlanSpec(text, "dir/a <spec> & \"more\".yaml");
  HOTROW_EXPECT_OK(spec);
  return spec.ok() ? *spec : PlanSpec();
}

std::string PageOf(const PlanSpec& spec) {
  const auto plan = MakePlan(spec);
  HOTROW_EXPECT_OK(plan);
  const auto curve = PlanCurve(spec, *plan);
  HOTROW_EXPECT_OK(curve);
  return PlanHtml(spec, *plan, *curve);
}

// Every element is closed, in order, and every attribute quoted. Returns what is wrong.
std::string Malformed(std::string_view page) {
  std::vector<std::string> open;
  size_t at = 0;
  while ((at = page.find('<', at)) != std::string_view::npos) {
    const size_t end = page.find('>', at);
    if (end == std::string_view::npos) return "a tag that does not end";
    const std::string_view tag = page.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.starts_with("!DOCTYPE")) continue;
    if (tag.find('<') != std::string_view::npos) return "a < within a tag: " + std::string(tag);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "quotes of " + std::string(tag);
    const std::string name(tag.substr(0, tag.find_first_of(" /\n", 1)));
    if (name.starts_with("/")) {
      if (open.empty() || "/" + open.back() != name) return "closes " + name;
      open.pop_back();
    } else if (!tag.ends_with("/") && name != "meta") {
      open.push_back(name);
    }
    if (name == "style") at = page.find("</style>", at);
  }
  return open.empty() ? "" : "left open: " + open.back();
}

TEST(FillPageTest, FillsNamesAndSections) {
  const nlohmann::ordered_json values = {
      {"title", "a<b> & \"c\""},
      {"rows", {{{"name", "x"}, {"hot", true}}, {{"name", "y"}, {"title", "inner"}}}},
      {"words", {"u", "v"}},
      {"none", nlohmann::ordered_json::array()},
      {"off", false},
      {"one", {{"name", "z"}}}};
  EXPECT_EQ(FillPage("<i>{{title}}</i>", values), "<i>a&lt;b&gt; &amp; &quot;c&quot;</i>");
  EXPECT_EQ(FillPage("{{#rows}}\n{{name}} {{title}}{{#hot}}!{{/hot}}\n{{/rows}}\nend\n", values),
            "x a&lt;b&gt; &amp; &quot;c&quot;!\ny inner\nend\n");
  EXPECT_EQ(FillPage("{{#words}}[{{.}}]{{/words}}{{^words}}no{{/words}}", values), "[u][v]");
  EXPECT_EQ(
      FillPage("{{#none}}a{{/none}}{{^none}}b{{/none}}{{^off}}c{{/off}}{{^absent}}d{{/absent}}",
               values),
      "bcd");
  EXPECT_EQ(FillPage("{{#one}}{{name}}{{/one}}", values), "z");
  EXPECT_DEATH(FillPage("{{absent}}", values), "check failed");
}

TEST(PlanHtmlTest, IsWholeAndNeedsNothingElse) {
  const std::string model =
      "model: {dense_features: 13, bottom: [64, 16], top: [64, 1], interaction: dot}\n"
      "tables:\n- {name: t, rows: 1e8, dim: 16, optimizer: adam, count: 8}\n";
  for (const std::string& head :
       {std::string("batch_size: 4096\nranks: 4\nstore: ssd\nprefetch_depth: 1\n"
                    "hardware: {profile: h100-sxm, price_per_rank_hour: 3}\n"),
        std::string("batch_size: 4096\nstore: memory\n"),
        std::string("batch_size: 4096\nstore: memory\nhardware: {profile: a10, dram: 1GB}\n")}) {
    const std::string page = PageOf(Spec(head + model));
    EXPECT_EQ(Malformed(page), "") << head;
    EXPECT_THAT(page, AllOf(HasSubstr("a &lt;spec&gt; &amp; &quot;more&quot;.yaml"),
                            HasSubstr("prefers-color-scheme:dark"), HasSubstr("@media print"),
                            HasSubstr("<polyline"), HasSubstr("dense layers")));
    EXPECT_THAT(page, AllOf(Not(HasSubstr("http")), Not(HasSubstr("<script")),
                            Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
  }
  EXPECT_THAT(Malformed("<p><b></p>"), HasSubstr("closes"));
}

TEST(PlanHtmlTest, ShowsTheVerdictAndEveryItem) {
  const PlanSpec spec = Spec(
      "batch_size: 4096\nstore: memory\nhardware: {profile: a100-80, dram: 64GB}\n"
      "tables:\n- {name: t, rows: 100000000, dim: 128, optimizer: adam}\n");
  const auto plan = MakePlan(spec);
  HOTROW_ASSERT_OK(plan);
  const std::string page = PageOf(spec);
  EXPECT_THAT(page, AllOf(HasSubstr(">It does not fit<"), HasSubstr("dram: needs"),
                          HasSubstr("use 4 ranks"), HasSubstr("chosen: ")));
  for (const PlanItem& item : plan->items) EXPECT_THAT(page, HasSubstr(item.name));
  const std::string good = PageOf(Spec("batch_size: 64\ntables: [{name: t, rows: 9, dim: 4}]\n"));
  EXPECT_THAT(good, HasSubstr(">It fits<"));
}

TEST(FormatAmountTest, IsReadByPeople) {
  for (const auto& [amount, text] :
       std::vector<std::pair<double, std::string>>{{0, "0"},
                                                   {1e-9, "0"},
                                                   {0.001234, "0.001234"},
                                                   {0.5, "0.500000"},
                                                   {1, "1"},
                                                   {12.345, "12.35"},
                                                   {99.999, "100"},
                                                   {12'345.6, "12,346"},
                                                   {386'500, "386,500"},
                                                   {999'999, "999,999"},
                                                   {999'999.9, "1.00 M"},
                                                   {3.865e7, "38.65 M"},
                                                   {-3.865e7, "-38.65 M"},
                                                   {1.2e9, "1.20 G"},
                                                   {2.5e12, "2.50 T"},
                                                   {1.0 / 0.0, "endless"}}) {
    EXPECT_EQ(FormatAmount(amount), text);
  }
  EXPECT_EQ(FormatChange(410'000), "+410,000");
  EXPECT_EQ(FormatChange(-2e6), "-2.00 M");
  EXPECT_EQ(FormatChange(0), "+0");
}

// Fast and slow, large and small: nobody is to read exponents.
TEST(FormatAmountTest, NoPlanHasExponents) {
  for (const std::string& head :
       {std::string("batch_size: 262144\nranks: 64\nhardware: h100-sxm\nprefetch_depth: 1\n"),
        std::string("batch_size: 65536\ntarget_samples_per_second: 1e9\nstore: ssd\n"),
        std::string("batch_size: 64\nstore: memory\nhardware: {profile: a10, dram: 1GB}\n")}) {
    const PlanSpec spec = Spec(head +
                               "model: {dense_features: 13, bottom: [64, 128], top: [64, 1]}\n"
                               "tables:\n- {name: t, rows: 2e9, dim: 128}\n");
    const auto plan = MakePlan(spec);
    HOTROW_ASSERT_OK(plan);
    for (const std::string& text : {PlanText(spec, *plan), PageOf(spec)}) {
      EXPECT_THAT(text, Not(testing::ContainsRegex("[0-9]e[+-][0-9]"))) << head;
    }
  }
}

TEST(PlanCurveTest, GrowsToAHitRateOfOne) {
  const PlanSpec spec =
      Spec("batch_size: 2048\nstore: ssd\ntables:\n- {name: t, rows: 1e6, dim: 16, zipf: 0.9}\n");
  const auto plan = MakePlan(spec);
  HOTROW_ASSERT_OK(plan);
  const auto curve = PlanCurve(spec, *plan);
  HOTROW_ASSERT_OK(curve);
  for (size_t i = 1; i < curve->size(); ++i) {
    EXPECT_GT((*curve)[i].cache_bytes, (*curve)[i - 1].cache_bytes);
    EXPECT_GE((*curve)[i].hit_rate, (*curve)[i - 1].hit_rate);
  }
  EXPECT_LT(curve->front().hit_rate, 0.6);
  EXPECT_NEAR(curve->back().unique_hit_rate, 1, 1e-6);
}

TEST(SweepTest, RanksAreReadAndBadOnesRefused) {
  const auto ranks = [](std::string_view text) {
    const auto parsed = ParseSweepRanks(text);
    HOTROW_EXPECT_OK(parsed) << text;
    return parsed.ok() ? *parsed : std::vector<int32_t>();
  };
  EXPECT_THAT(ranks("ranks=1..8"), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(ranks("ranks=3..20"), ElementsAre(3, 6, 12));
  EXPECT_THAT(ranks("ranks=12,1,12"), ElementsAre(1, 12));
  for (const char* const bad :
       {"", "ranks", "ranks=", "ranks=0", "ranks=4..2", "ranks=1..", "ranks=1,,2", "ranks=1e3",
        "ranks=1..100000", "nodes=1", "ranks=-1"}) {
    EXPECT_THAT(ParseSweepRanks(bad).status(),
                test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("FIRST..LAST")))
        << bad;
  }
}

PlanSpec Example(const std::string& name) {
  const std::string path =
      std::string(HOTROW_SOURCE_DIR) + "/tools/plan/examples/" + name + ".yaml";
  const auto text = ReadFileToString(PosixEnv(), path);
  HOTROW_EXPECT_OK(text);
  const auto spec = ParsePlanSpec(*text, path);
  HOTROW_EXPECT_OK(spec);
  return spec.ok() ? *spec : PlanSpec();
}

TEST(SweepTest, MoreRanksAreFasterAndLessEfficient) {
  const PlanSpec spec = Example("dlrm_dcnv2");
  const auto swept = SweepPlan(spec, {.ranks = {1, 8, 64, 256}});
  HOTROW_ASSERT_OK(swept);
  ASSERT_EQ(swept->size(), 4u * 2 * 4);
  for (size_t i = 0; i < swept->size(); ++i) {
    const SweepPoint& point = (*swept)[i];
    EXPECT_EQ(point.batch_size, spec.batch_size);
    EXPECT_GT(point.samples_per_second, 0);
    if (point.ranks == 1) {
      EXPECT_EQ(point.efficiency, 1);
      continue;
    }
    // One GPU has no room for all rows, and waits for those that miss.
    EXPECT_LE(point.efficiency, 1.6);
    // The first network is slower than the last link: only more of the same must help.
    if (point.ranks == 64) continue;
    EXPECT_LT(point.step_seconds, (*swept)[i - 1].step_seconds) << point.node << point.ranks;
  }
  // Between nodes a faster network helps, within one it does not matter.
  const auto at = [&](const std::string& node, double gbits, int32_t ranks) {
    for (const SweepPoint& point : *swept) {
      if (point.node == node && point.network_gbits == gbits && point.ranks == ranks) return point;
    }
    return SweepPoint();
  };
  EXPECT_EQ(at("h200", 200, 8).step_seconds, at("h200", 400, 8).step_seconds);
  EXPECT_LT(at("h200", 400, 64).step_seconds, at("h200", 200, 64).step_seconds);
  EXPECT_LT(at("b200", 400, 8).step_seconds, at("a100-80", 400, 8).step_seconds);
  EXPECT_THAT(SweepText(spec, *swept), HasSubstr("h100-sxm, 400 Gb/s"));

  const auto growing = SweepPlan(spec, {.ranks = {8, 16}, .batch_per_rank = true});
  HOTROW_ASSERT_OK(growing);
  EXPECT_EQ((*growing)[1].batch_size, 2 * spec.batch_size);
  const auto few =
      SweepPlan(Spec("batch_size: 4\ntables: [{name: t, rows: 9, dim: 4}]\n"), {.ranks = {4, 8}});
  HOTROW_ASSERT_OK(few);
  EXPECT_EQ(few->size(), 4u * 2);
}

// docs/planner.md has this figure.
TEST(SweepTest, TheTablesOfDlrmV4TakeOneGpuAndADisk) {
  const PlanSpec spec = Example("dlrmv4");
  const auto plan = MakePlan(spec);
  HOTROW_ASSERT_OK(plan);
  EXPECT_EQ(plan->size.rows, 293'051'712);
  EXPECT_EQ(plan->size.weight_bytes, 293'051'712.0 * 512 * 4);
  EXPECT_EQ(plan->traffic.lookups, 128.0 * (3 * 2830 + 8));
  EXPECT_TRUE(plan->fits) << PlanText(spec, *plan);
  EXPECT_THAT(plan->warnings, IsEmpty());
  EXPECT_GT(plan->disk.ios_read, 100);
  EXPECT_THAT(plan->bottleneck, HasSubstr("dense layers"));
  EXPECT_NEAR(plan->samples_per_second, 2400, 100);
}

// docs/scaling.md has these figures and where they come from. All rows lie in the GPUs' memory, as
// in the published runs.
double PredictedRate(const PlanSpec& base, const std::string& node, int32_t ranks) {
  PlanSpec spec = base;
  spec.hardware = *FindAccelerator(node);
  spec.ranks = ranks;
  spec.ranks_per_node = std::min(ranks, spec.hardware.ranks_per_node);
  const auto first = MakePlan(spec, /*advise=*/false);
  HOTROW_EXPECT_OK(first);
  if (!first.ok()) return 0;
  // A fifth more than the rows leaves room for buffers.
  spec.cache_bytes = std::llround(first->size.whole_cache_bytes * 1.2);
  const auto plan = MakePlan(spec, /*advise=*/false);
  HOTROW_EXPECT_OK(plan);
  if (!plan.ok()) return 0;
  EXPECT_TRUE(plan->fits) << node << " " << ranks;
  EXPECT_EQ(plan->cache.unique_hit_rate, 1);
  return plan->samples_per_second;
}

TEST(SweepTest, PublishedResultsAreAsNearAsTheDocumentSays) {
  const double a100 = PredictedRate(Example("dlrm_criteo"), "a100-80", 8);
  const PlanSpec dcn = Example("dlrm_dcnv2");
  const double h100 = PredictedRate(dcn, "h100-sxm", 8);
  const double many = PredictedRate(dcn, "h100-sxm", 128);
  const double pcie = PredictedRate(dcn, "h100-pcie", 4);
  std::printf(
      "A100 x 8: %.1f M/s; H100 x 8: %.1f M/s, x 128: %.1f M/s; PCIe x 4: %.2f times slower\n",
      a100 / 1e6, h100 / 1e6, many / 1e6, h100 / pcie);
  EXPECT_NEAR(a100, 36.9e6, 0.5e6);
  EXPECT_NEAR(h100, 14.4e6, 0.2e6);
  EXPECT_NEAR(many, 40.3e6, 0.5e6);
  EXPECT_NEAR(h100 / pcie, 4.13, 0.1);
}

}  // namespace
}  // namespace hotrow
