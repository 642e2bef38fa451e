#include "tools/plan/plan_check.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "ops/rows/row_layout.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tools/plan/plan.h"
#include "tools/plan/tier_bytes.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

constexpr int64_t kSteps = 400;
constexpr double kDiskBytes = 1e9;

PlanSpec Spec(const std::string& store = "memory") {
  const auto spec = ParsePlanSpec("batch_size: 2048\nstore: " + store +
                                      "\ncache_bytes: 8MiB\nprefetch_depth: 1\ntables:\n"
                                      "- {name: a, rows: 100000, dim: 16}\n"
                                      "- {name: b, rows: 1000000, dim: 16, zipf: 1.2}\n",
                                  "spec.yaml");
  HOTROW_EXPECT_OK(spec);
  return spec.ok() ? *spec : PlanSpec();
}

// A run that went as planned. What a report sums over ranks is so many times that of one.
Json ReportOf(const PlanSpec& spec) {
  const double ranks = spec.ranks;
  PlanSpec run = spec;
  run.run_steps = kSteps;
  run.run_disk_bytes = kDiskBytes;
  const auto planned = MakePlan(run, /*advise=*/false);
  HOTROW_EXPECT_OK(planned);
  const Plan& plan = *planned;
  Json tables = Json::array();
  std::vector<TierRows> rows;
  for (const PlanTable& table : spec.tables) {
    const int64_t bytes = table.layout().row_bytes;
    tables.push_back({{"name", table.name},
                      {"rows", table.rows - 10},
                      {"dim", table.dim},
                      {"row_bytes", bytes}});
    const double share =
        plan.traffic.store_shares.empty() ? 1 : plan.traffic.store_shares[rows.size()];
    rows.push_back({static_cast<double>(table.rows - 10) / ranks * share, bytes});
  }
  double cache_used = 0;
  for (const PlanItem& item : plan.items) {
    if (item.name.rfind("cache: ", 0) == 0) cache_used += item.bytes;
  }
  Json cache = {{"name", "cache"},
                {"budget_bytes", spec.cache_bytes * spec.ranks},
                {"used_bytes", cache_used * ranks},
                {"hit_rate", plan.cache.hit_rate},
                {"unique_hit_rate", plan.cache.unique_hit_rate}};
  Json store = {{"name", std::string(StoreKindName(spec.store))},
                {"budget_bytes", ranks * (1 << 30)}};
  if (spec.store == StoreKind::kMemory) {
    store["used_bytes"] = ranks * SizeOfHostStore(rows, 1 << 30).total();
  } else {
    const SsdStoreBytes size = SizeOfSsdStore(rows, kDiskBytes);
    store["used_bytes"] = ranks * size.memory();
    store["index_bytes"] = ranks * size.index_bytes;
    store["disk_budget_bytes"] = ranks * kDiskBytes;
    store["disk_used_bytes"] = ranks * plan.disk.bytes_written * kSteps;
    store["bytes_written"] = ranks * plan.disk.bytes_written * kSteps;
    store["ios"] = ranks * kSteps * (plan.disk.ios_read + plan.disk.bytes_written / (1 << 20));
  }
  return {{"flags",
           {{"batch_size", spec.batch_size},
            {"optimizer", "rowwise_adagrad"},
            {"store", std::string(StoreKindName(spec.store))},
            {"prefetch_depth", 1}}},
          {"samples", kSteps * spec.batch_size},
          {"steps", kSteps},
          {"resumed_from_step", 0},
          {"threads", 2},
          {"world_size", spec.ranks},
          {"samples_per_second", plan.samples_per_second},
          {"unique_keys_per_step", ranks * plan.traffic.unique_keys},
          {"exchange",
           {{"ids_bytes", ranks * plan.exchange.ids},
            {"forward_bytes", ranks * plan.exchange.forward},
            {"backward_bytes", ranks * plan.exchange.backward},
            {"dense_bytes", 2 * (ranks - 1) * 4 * plan.size.dense_parameters}}},
          {"tables", tables},
          {"tiers", {cache, store}},
          {"stages", Json::array()}};
}

PlanCheck Checked(const PlanSpec& spec, const Json& report) {
  const auto check = CheckPlan(spec, report.dump(), "run.json");
  HOTROW_EXPECT_OK(check);
  return check.ok() ? *check : PlanCheck();
}

std::string Over(const PlanCheck& check) {
  std::string names;
  for (const PlanCheckItem& item : check.items) {
    if (item.verdict == PlanCheckItem::Verdict::kOver) names += item.name + " ";
  }
  return names;
}

TEST(PlanCheckTest, ARunThatWentAsPlannedIsGood) {
  for (const char* const store : {"memory", "ssd"}) {
    const PlanSpec spec = Spec(store);
    const PlanCheck check = Checked(spec, ReportOf(spec));
    EXPECT_TRUE(check.good()) << PlanCheckText(check);
    EXPECT_GE(check.items.size(), 6u);
    const std::string text = PlanCheckText(check);
    EXPECT_THAT(text, AllOf(HasSubstr("cache.unique_hit_rate"), HasSubstr("within its tolerance"),
                            HasSubstr("1,099,980 of the spec's 1,100,000 rows")));
    const Json json = Json::parse(PlanCheckJson(check), nullptr, false);
    EXPECT_EQ(json["good"], true);
    EXPECT_EQ(json["items"].size(), check.items.size());
  }
}

// Each number a bit more than its tolerance off, and a bit less.
TEST(PlanCheckTest, EachItemIsHeldToItsTolerance) {
  const PlanSpec memory = Spec();
  const PlanSpec ssd = Spec("ssd");
  PlanSpec large = ssd;  // of more than a million rows that have left the cache
  large.tables[1].rows = 20'000'000;
  large.tables[1].zipf = 0.5;
  PlanSpec ranks = Spec("ssd");
  ranks.ranks = ranks.ranks_per_node = 3;
  ranks.cache_bytes = 2 << 20;
  ranks.model.top = {16, 1};
  struct Case {
    const PlanSpec* spec;
    const char* item;
    const char* place;
    double tolerance;
    bool points;
  };
  for (const Case& c : {Case{&memory, "cache.used_bytes", "/tiers/0/used_bytes", 2, false},
                        {&memory, "memory.used_bytes", "/tiers/1/used_bytes", 2, false},
                        {&large, "ssd.index_bytes", "/tiers/1/index_bytes", 3.5, false},
                        {&memory, "cache.hit_rate", "/tiers/0/hit_rate", 1, true},
                        {&ssd, "cache.unique_hit_rate", "/tiers/0/unique_hit_rate", 1, true},
                        {&ssd, "ssd.ios per step", "/tiers/1/ios", 5, false},
                        {&memory, "unique_keys_per_step", "/unique_keys_per_step", 5, false},
                        {&memory, "samples_per_second", "/samples_per_second", 20, false},
                        {&ranks, "cache.used_bytes", "/tiers/0/used_bytes", 2, false},
                        {&ranks, "cache.hit_rate", "/tiers/0/hit_rate", 1, true},
                        {&ranks, "cache.unique_hit_rate", "/tiers/0/unique_hit_rate", 1, true},
                        {&ranks, "ssd.ios per step", "/tiers/1/ios", 5, false},
                        {&ranks, "unique_keys_per_step", "/unique_keys_per_step", 5, false},
                        {&ranks, "exchange.ids_bytes", "/exchange/ids_bytes", 5, false},
                        {&ranks, "exchange.forward_bytes", "/exchange/forward_bytes", 5, false},
                        {&ranks, "exchange.backward_bytes", "/exchange/backward_bytes", 5, false},
                        {&ranks, "exchange.dense_bytes", "/exchange/dense_bytes", 5, false}}) {
    for (const double sign : {-1.0, 1.0}) {
      for (const double share : {0.9, 1.1}) {
        Json report = ReportOf(*c.spec);
        Json& value = report[Json::json_pointer(c.place)];
        const double change = sign * share * c.tolerance / 100;
        // The difference is a share of what was measured.
        value = c.points ? value.get<double>() + change : value.get<double>() / (1 + change);
        const PlanCheck check = Checked(*c.spec, report);
        EXPECT_EQ(Over(check), share < 1 ? "" : std::string(c.item) + " ") << c.item << change;
        EXPECT_EQ(check.good(), share < 1);
      }
    }
  }
}

TEST(PlanCheckTest, AReportOfAnotherModelIsNamed) {
  const PlanSpec spec = Spec();
  const auto expect = [&](const char* place, const Json& value,
                          const testing::Matcher<const std::string&>& what) {
    Json report = ReportOf(spec);
    report[Json::json_pointer(place)] = value;
    EXPECT_THAT(
        CheckPlan(spec, report.dump(), "run.json").status(),
        test::StatusIs(absl::StatusCode::kInvalidArgument, AllOf(StartsWith("run.json: "), what)));
  };
  expect("/flags/batch_size", 1024, AllOf(HasSubstr("batch_size"), HasSubstr("1,024")));
  expect("/flags/optimizer", "adam",
         AllOf(HasSubstr("optimizer of table a"), HasSubstr("rowwise_adagrad"), HasSubstr("adam")));
  expect("/tables/0/dim", 32, AllOf(HasSubstr("dim of table a"), HasSubstr("32")));
  expect("/tables/1/row_bytes", 96, AllOf(HasSubstr("row bytes of table b"), HasSubstr("96")));
  expect("/tables/1/rows", 1'000'001, AllOf(HasSubstr("rows of table b"), HasSubstr("1,000,001")));
  expect("/tables/1/name", "c",
         AllOf(HasSubstr("table c: is in the report"), HasSubstr("table b: is in the spec")));
  expect("/tiers/1/name", "rocksdb", HasSubstr("store"));
  expect("/tiers/0/budget_bytes", 1 << 20, HasSubstr("cache_bytes"));
  expect("/world_size", 2, HasSubstr("ranks"));
  expect("/steps", 0, HasSubstr("no step"));
  expect("/resumed_from_step", 7, HasSubstr("checkpoint"));
  for (const char* const bad : {"", "[]", "{}", "not json"}) {
    EXPECT_THAT(CheckPlan(spec, bad, "run.json").status(),
                test::StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(StartsWith("run.json: "), HasSubstr("--report"))));
  }
}

TEST(PlanCheckTest, WhatTheSpecLeavesOpenIsTheRuns) {
  PlanSpec spec = Spec();
  const Json report = ReportOf(spec);
  spec.cache_bytes = PlanSpec::kAuto;
  spec.store_auto = true;
  const PlanCheck check = Checked(spec, report);
  EXPECT_TRUE(check.good()) << PlanCheckText(check);
  EXPECT_THAT(PlanCheckText(check), HasSubstr("checked with the run's 8.0 MiB"));
}

TEST(PlanCheckTest, OfSeveralRanksEachHasItsShare) {
  PlanSpec spec = Spec();
  spec.ranks = spec.ranks_per_node = 4;
  const Json report = ReportOf(spec);
  const PlanCheck check = Checked(spec, report);
  EXPECT_TRUE(check.good()) << PlanCheckText(check);
  std::map<std::string, double> measured;
  for (const PlanCheckItem& item : check.items) measured[item.name] = item.measured;
  EXPECT_NEAR(measured["cache.used_bytes"], report["tiers"][0]["used_bytes"].get<double>() / 4, 1);
  EXPECT_EQ(measured["unique_keys_per_step"], report["unique_keys_per_step"].get<double>());
  EXPECT_EQ(measured["exchange.forward_bytes"], report["exchange"]["forward_bytes"].get<double>());
  // Nothing is said of a dense model.
  EXPECT_EQ(measured.count("exchange.dense_bytes"), 0u);
  EXPECT_THAT(PlanCheckText(check), HasSubstr("the spec has no dense model"));
  // What the cache of a rank may take is the fourth of what the report says.
  PlanSpec other = spec;
  other.cache_bytes = spec.cache_bytes * 4;
  EXPECT_THAT(CheckPlan(other, report.dump(), "run.json").status(),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cache_bytes")));
  other = spec;
  other.cache_bytes = PlanSpec::kAuto;
  EXPECT_THAT(PlanCheckText(Checked(other, report)), HasSubstr("checked with the run's 8.0 MiB"));
}

// On a measured machine: what is held depends on whether the run had its threads.
TEST(PlanCheckTest, SpeedIsHeldWhereTheRunHadTheThreadsThatWereMeasured) {
  const auto verdict = [](int32_t ranks, int run_threads, std::string* text) {
    PlanSpec spec = Spec();
    spec.ranks = spec.ranks_per_node = ranks;
    spec.hardware.threads = 4;
    EngineCosts& engine = spec.hardware.engine;
    engine.unique_seconds_per_lookup = 1e-8;
    engine.hit = engine.miss = engine.evict = engine.pool = engine.sum = engine.update = {1e-7, 0};
    Json report = ReportOf(spec);
    report["threads"] = run_threads;
    report["samples_per_second"] = 1.5 * report["samples_per_second"].get<double>();
    const PlanCheck check = Checked(spec, report);
    *text = PlanCheckText(check);
    for (const PlanCheckItem& item : check.items) {
      if (item.name == "samples_per_second") return item.verdict;
    }
    return PlanCheckItem::Verdict::kGood;
  };
  std::string text;
  EXPECT_EQ(verdict(1, 4, &text), PlanCheckItem::Verdict::kOver);
  EXPECT_EQ(verdict(2, 2, &text), PlanCheckItem::Verdict::kOver);
  EXPECT_EQ(verdict(1, 2, &text), PlanCheckItem::Verdict::kNotHeld);
  EXPECT_THAT(text, HasSubstr("calibrate with as many"));
  EXPECT_EQ(verdict(8, 1, &text), PlanCheckItem::Verdict::kNotHeld);
  EXPECT_THAT(text, HasSubstr("8 ranks of 1 threads on 4 processors"));
}

}  // namespace
}  // namespace hotrow
