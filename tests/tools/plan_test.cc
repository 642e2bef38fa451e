#include "tools/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

PlanSpec Spec(const std::string& text) {
  const auto spec = ParsePlanSpec(text, "spec.yaml");
  HOTROW_EXPECT_OK(spec);
  return spec.ok() ? *spec : PlanSpec();
}

Plan Planned(const PlanSpec& spec) {
  const auto plan = MakePlan(spec);
  HOTROW_EXPECT_OK(plan);
  return plan.ok() ? *plan : Plan();
}

constexpr int64_t kCriteoRows[] = {39884406, 39043,  17289,    7420,    20263,  3,        7120,
                                   1543,     63,     38532951, 2953546, 403346, 10,       2208,
                                   11938,    155,    4,        976,     14,     39979771, 25641295,
                                   39664984, 585935, 12972,    108,     36};

std::string CriteoTables(const std::string& optimizer) {
  std::string out = "tables:\n";
  int i = 0;
  for (const int64_t rows : kCriteoRows) {
    absl::StrAppend(&out, "  - {name: C", i++, ", rows: ", rows,
                    ", dim: 128, optimizer: ", optimizer, ", zipf: 1.05}\n");
  }
  return out;
}

TEST(PlanTest, KnowsTheCapacityOfCriteo) {
  const std::string common = "batch_size: 55296\nhardware: {profile: a100-80, dram: 512GB}\n";
  const Plan sgd = Planned(Spec(common + "store: memory\n" + CriteoTables("sgd")));
  EXPECT_EQ(sgd.size.rows, 187'767'399);
  EXPECT_EQ(sgd.size.weight_bytes, 187'767'399.0 * 512);
  EXPECT_NEAR(sgd.size.weight_bytes / (1024.0 * 1024 * 1024), 89.5, 0.05);
  EXPECT_EQ(sgd.size.payload_bytes, sgd.size.weight_bytes);

  // It does not fit the GPU whole, and it does with a cache of 12 GB over host memory.
  const Plan adam =
      Planned(Spec(common + "store: memory\ncache_bytes: 12GB\n" + CriteoTables("adam")));
  EXPECT_EQ(adam.size.payload_bytes, 3 * adam.size.weight_bytes);
  EXPECT_GT(adam.size.whole_cache_bytes, 80e9);
  EXPECT_GT(sgd.size.whole_cache_bytes, 80e9);
  EXPECT_TRUE(adam.fits) << PlanText(Spec(common + CriteoTables("adam")), adam);
  EXPECT_LT(adam.TierBytes("hbm"), 80e9);
  EXPECT_GT(adam.TierBytes("dram"), adam.size.payload_bytes);
  EXPECT_GT(adam.cache.unique_hit_rate, 0.5);
}

TEST(PlanTest, NamesEveryItemOnce) {
  const PlanSpec spec = Spec(
      "batch_size: 4096\nranks: 4\nhardware: h100-sxm\nprefetch_depth: 2\nstore: ssd\n"
      "checkpoint_interval_steps: 1000\n"
      "model: {dense_features: 13, bottom: [64, 16], top: [64, 1], interaction: dot, "
      "dense_optimizer: adam}\n"
      "tables:\n- {name: t, rows: 1e8, dim: 16, optimizer: adam, count: 8}\n");
  const Plan plan = Planned(spec);
  EXPECT_EQ(spec.tables.size(), 8u);
  double sum = 0;
  for (const PlanItem& item : plan.items) {
    EXPECT_GE(item.bytes, 0) << item.name;
    sum += item.bytes;
    for (const PlanItem& other : plan.items) {
      EXPECT_TRUE(&item == &other || item.name != other.name || item.tier != other.tier);
    }
  }
  double tiers = 0;
  for (const PlanTier& tier : plan.tiers) tiers += tier.bytes;
  EXPECT_NEAR(sum, tiers, 1);
  for (const char* const name :
       {"weights", "optimizer state", "record headers and footers", "index of the SSD store",
        "cache: rows", "cache: keys and marks", "cache: overflow", "exchange buffers",
        "dense parameters and gradients", "dense optimizer state", "retained snapshots",
        "batch ids of the steps in flight"}) {
    EXPECT_THAT(plan.items, Contains(testing::Field(&PlanItem::name, name)));
  }
  EXPECT_GT(plan.exchange.total, 0);
  EXPECT_GT(plan.disk.life_years, 0);
  EXPECT_GT(plan.samples_per_second, 0);
}

// 26 tables, dim 16, dot interaction, one rank on a CPU: the numbers by hand.
TEST(PlanTest, CountsTheDenseModel) {
  const PlanSpec spec = Spec(
      "batch_size: 1000\nstore: memory\n"
      "hardware: {profile: cpu, dense_flops: 1e9, dram_bytes_per_second: 1e18, "
      "cpu_seconds_per_key: 1e-12}\n"
      "model: {dense_features: 4, bottom: [8, 16], top: [10, 1], interaction: dot}\n"
      "tables:\n- {name: t, rows: 100, dim: 16, count: 2, optimizer: sgd}\n");
  const Plan plan = Planned(spec);
  // Bottom 4*8 + 8*16; dot 3 vectors: 3 pairs of 16; top (16 + 3) * 10 + 10.
  const double macs = 32 + 128 + 48 + 190 + 10;
  EXPECT_NEAR(plan.step_seconds, 6 * macs * 1000 / 1e9, 1e-6);
  EXPECT_THAT(plan.bottleneck, HasSubstr("flops"));
  const double parameters = 5 * 8 + 9 * 16 + 20 * 10 + 11;
  EXPECT_THAT(plan.items,
              Contains(AllOf(testing::Field(&PlanItem::name, "dense parameters and gradients"),
                             testing::Field(&PlanItem::bytes, parameters * 8))));
}

// 8 columns with the step in 48 bytes, which a score does not fit into.
TEST(PlanTest, CountsScores) {
  const std::string head = "batch_size: 1000\nstore: memory\nhardware: {profile: cpu}\ntables:\n";
  const std::string table = "- {name: t, rows: 1000, dim: 11, optimizer: sgd, count: 3";
  const auto bytes = [](const Plan& plan, const char* name) {
    double sum = 0;
    for (const PlanItem& item : plan.items) sum += item.name == name ? item.bytes : 0;
    return sum;
  };
  const PlanSpec plain = Spec(head + table + "}\n");
  const PlanSpec scored = Spec(head + table + ", score: max, max_rows_by: score}\n");
  EXPECT_EQ(plain.tables[0].layout().row_bytes, 48);
  EXPECT_EQ(scored.tables[0].layout().row_bytes, 64);
  EXPECT_EQ(bytes(Planned(plain), "counts of rows by score"), 0);
  EXPECT_EQ(bytes(Planned(scored), "counts of rows by score"), 3 * (2 << 20));
  EXPECT_THAT(
      std::string(
          ParsePlanSpec(head + table + ", max_rows_by: score}\n", "spec.yaml").status().message()),
      HasSubstr("the table keeps none"));
}

// A table so small that each step uses all of it, and one of which a step uses hardly a row twice.
TEST(PlanTest, CountsRowsUnderATtlAndInDeltas) {
  const std::string tables =
      "batch_size: 1000\nstore: memory\nhardware: {profile: cpu}\n"
      "tables:\n- {name: small, rows: 10, dim: 8, optimizer: adagrad}\n"
      "- {name: large, rows: 1e12, dim: 16, optimizer: sgd, zipf: 0}\n";
  const Plan none = Planned(Spec(tables));
  EXPECT_EQ(none.deltas.living_rows, 0);
  EXPECT_EQ(none.deltas.bytes, 0);
  const PlanSpec spec = Spec(tables + "ttl_steps: 20\ndelta_interval_steps: 50\n");
  const Plan plan = Planned(spec);
  EXPECT_NEAR(plan.deltas.living_rows, 10 + 20 * 1000, 1);
  EXPECT_NEAR(plan.deltas.rows, 10 + 50 * 1000, 1);
  EXPECT_NEAR(plan.deltas.bytes, 10 * (12 + 2 * 8 * 4) + 50'000 * (12 + 16 * 4), 100);
  EXPECT_NEAR(plan.deltas.bytes_per_hour, plan.deltas.bytes * 3600 / (50 * plan.step_seconds),
              1e-6 * plan.deltas.bytes_per_hour);
  EXPECT_THAT(PlanText(spec, plan),
              AllOf(HasSubstr("rows alive under ttl_steps"), HasSubstr("deltas of an hour")));
  const Plan rounded = Planned(
      Spec(tables + "delta_interval_steps: 50\ndelta_rows: int8\ndelta_weights_only: true\n"));
  EXPECT_NEAR(rounded.deltas.bytes, 10 * (12 + 8 + 4) + 50'000 * (12 + 16 + 4), 100);
}

TEST(PlanTest, RemediesAreNumberedAndPlanned) {
  const PlanSpec spec = Spec(
      "batch_size: 4096\nstore: memory\nhardware: {profile: a100-80, dram: 64GB}\n"
      "tables:\n- {name: t, rows: 100000000, dim: 128, optimizer: adam}\n");
  const Plan plan = Planned(spec);
  EXPECT_FALSE(plan.fits);
  EXPECT_THAT(plan.over, Contains(AllOf(StartsWith("dram: needs "), HasSubstr("over by"))));
  EXPECT_THAT(plan.remedies, Contains(AllOf(HasSubstr("store: ssd"), HasSubstr("then it fits"))));
  EXPECT_THAT(plan.remedies, Contains(AllOf(StartsWith("use 4 ranks"), HasSubstr("then it fits"))));
  EXPECT_THAT(plan.remedies, Contains(HasSubstr("rowwise_adagrad")));
  EXPECT_THAT(plan.remedies, Contains(HasSubstr("weights_precision: fp16")));
  EXPECT_THAT(PlanText(spec, plan), AllOf(HasSubstr("It does not fit"), HasSubstr("\n  1. ")));
}

// 40 million rows of 512 bytes in each of 26 tables, far more than the memory of a GPU.
TEST(PlanTest, APlanThatFitsMayHaveWarningsAndRankedRemedies) {
  const PlanSpec spec = Spec(
      "batch_size: 65536\nhardware: {profile: h100-sxm, disk: nvme-mixed, dram: 256GB}\n"
      "tables:\n- {name: t, count: 26, rows: 40_000_000, dim: 128}\n");
  const Plan plan = Planned(spec);
  EXPECT_TRUE(plan.fits);
  ASSERT_LT(plan.disk.life_years, 3);
  EXPECT_THAT(plan.warnings, ElementsAre(StartsWith("ssd: worn out in "),
                                         AllOf(StartsWith("ssd: "), HasSubstr("% of a step's time"),
                                               HasSubstr("(read misses, write evicted rows)"))));
  ASSERT_GE(plan.remedies.size(), 2u);
  double before = HUGE_VAL;
  for (const std::string& remedy : plan.remedies) {
    EXPECT_THAT(remedy, HasSubstr(" samples/s instead of "));
    std::string rate = remedy.substr(remedy.rfind(": ") + 2);
    std::erase(rate, ',');
    const double now = std::atof(rate.c_str()) * (rate.find(" M samples") < 8 ? 1e6 : 1);
    EXPECT_LE(now, before) << remedy;
    before = now;
  }
  EXPECT_THAT(plan.remedies, Contains(HasSubstr("weights_precision: fp16")));
  EXPECT_THAT(plan.remedies, Contains(AllOf(HasSubstr("hardware.drives"),
                                            HasSubstr(" years of the SSD instead of "))));
  EXPECT_THAT(plan.remedies, Not(Contains(HasSubstr("halve"))));
  EXPECT_THAT(PlanText(spec, plan), AllOf(HasSubstr("It fits.\n  warning: "), HasSubstr("  1. ")));
  EXPECT_THAT(PlanHtml(spec, plan, {}),
              AllOf(HasSubstr("It fits, with warnings"), HasSubstr("What to look at")));
  // Rows that fit into memory need no SSD.
  const std::string few = "hardware: cpu\ntables:\n- {name: t, rows: 100000, dim: 16}\n";
  const Plan on_disk = Planned(Spec("batch_size: 4096\nstore: ssd\ncache_bytes: 2MB\n" + few));
  ASSERT_TRUE(on_disk.fits);
  ASSERT_GT(on_disk.disk.life_years, 0);
  EXPECT_THAT(on_disk.remedies, Contains(StartsWith("keep all rows in memory (store: memory): ")));
  // Nothing to look at, but that a data sheet knows no short steps.
  const PlanSpec small =
      Spec("batch_size: 16\nhardware: cpu\ntables:\n- {name: t, rows: 100, dim: 4}\n");
  EXPECT_THAT(Planned(small).warnings, IsEmpty());
  EXPECT_THAT(PlanText(small, Planned(small)),
              AllOf(HasSubstr("times from data sheets"), HasSubstr("several times as long")));
}

// The same between a GPU and an SSD: host memory that is free keeps what the GPU evicts.
TEST(PlanTest, FreeHostMemoryKeepsWhatAGpuEvicts) {
  const std::string head =
      "batch_size: 65536\nhardware: {profile: h100-sxm, disk: nvme-mixed, dram: 256GB}\n";
  const std::string tables = "tables:\n- {name: t, count: 26, rows: 40_000_000, dim: 128}\n";
  const PlanSpec spec = Spec(head + tables);
  const Plan plan = Planned(spec);
  EXPECT_NEAR(plan.TierBytes("dram"), 0.9 * 256e9, 1e9);
  EXPECT_GT(plan.cache.host_rows, 3e8);
  EXPECT_THAT(PlanText(spec, plan), AllOf(HasSubstr("Host cache: "), HasSubstr("from the host")));
  const PlanSpec without_spec = Spec(head + "host_cache_bytes: 0\n" + tables);
  const Plan without = Planned(without_spec);
  EXPECT_LT(without.TierBytes("dram"), 12e9);
  EXPECT_EQ(without.cache.host_hit_rate, 0);
  EXPECT_GT(plan.samples_per_second, 1.2 * without.samples_per_second);
  // Each row that the host has is not read, and each that the GPU evicts is written all the same.
  const double missed = 1 - plan.cache.host_hit_rate;
  EXPECT_NEAR(plan.disk.ios_read, missed * without.disk.ios_read, 0.05 * without.disk.ios_read);
  EXPECT_NEAR(plan.disk.bytes_written, without.disk.bytes_written,
              0.03 * without.disk.bytes_written);
  EXPECT_THAT(without.remedies, Contains(AllOf(HasSubstr("(host_cache_bytes: auto)"),
                                               HasSubstr(" samples/s instead of "))));
  EXPECT_THAT(plan.remedies, Not(Contains(HasSubstr("host_cache_bytes"))));
  // As the spec says; over all of its memory it does not fit.
  const Plan some = Planned(Spec(head + "host_cache_bytes: 40GB\n" + tables));
  EXPECT_NEAR(some.TierBytes("dram") - without.TierBytes("dram"), 40e9, 1e9);
  EXPECT_LT(some.cache.host_hit_rate, plan.cache.host_hit_rate);
  EXPECT_FALSE(Planned(Spec(head + "host_cache_bytes: 300GB\n" + tables)).fits);
  for (const char* const bad : {"hardware: cpu\nstore: ssd\n", "hardware: h200\nstore: memory\n"}) {
    EXPECT_THAT(MakePlan(Spec(std::string(bad) + "batch_size: 64\nhost_cache_bytes: 1GB\n"
                                                 "tables: [{name: t, rows: 9, dim: 4}]\n"))
                    .status(),
                test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("host_cache_bytes")));
  }
}

double StagesSeconds(const Plan& plan, const std::vector<std::string>& names) {
  double seconds = 0;
  for (const PlanStage& stage : plan.stages) {
    for (const std::string& name : names) seconds += stage.name == name ? stage.seconds : 0;
  }
  return seconds;
}

// 400 million rows of 512 columns, of which a step reads and writes so many that it waits for the
// disk alone.
TEST(PlanTest, SeveralDrivesAddUp) {
  const auto plan = [](const std::string& drives) {
    return Planned(
        Spec("batch_size: 65536\nstore: ssd\ncache_bytes: 4GB\nhost_cache_bytes: 0\n"
             "prefetch_depth: 2\nhardware: {profile: h100-sxm, disk: nvme-mixed, dram: 64GB" +
             drives + "}\ntables: [{name: t, rows: 4e8, dim: 512, zipf: 0.8}]\n"));
  };
  const Plan one = plan("");
  const Plan two = plan(", drives: 2");
  for (const char* const stage : {"read misses", "write evicted rows"}) {
    EXPECT_GT(StagesSeconds(one, {stage}), 0.04);
    EXPECT_NEAR(StagesSeconds(two, {stage}) / StagesSeconds(one, {stage}), 0.5, 1e-6) << stage;
  }
  EXPECT_NEAR(two.samples_per_second / one.samples_per_second, 2, 0.01);
  // Twice the endurance, written twice as fast.
  EXPECT_NEAR(two.disk.life_years / one.disk.life_years, 1, 0.01);
  const auto disk = [](const Plan& plan) { return plan.tiers.back(); };
  EXPECT_EQ(disk(two).name, "ssd");
  EXPECT_EQ(disk(two).limit_bytes, 2 * disk(one).limit_bytes);
  EXPECT_THAT(one.remedies, Contains(StartsWith("stripe the rows over twice as many drives")));
}

constexpr double kMs = 1e-3;
constexpr double kFifth = 0.2;

// bench/results/gpu.md: commit 84b1f9e on an H100, gradients of weights with the three lines.
TEST(GpuPlanTest, StepsTakeWhatTheyTookOnAnH100) {
  const std::string dlrm =
      "hardware: h100-sxm\nstore: memory\ncache_bytes: 40GB\nprefetch_depth: 1\n"
      "model: {dense_features: 13, bottom: [512, 256, 128], top: [1024, 1024, 512, 256, 1], "
      "interaction: dot, dense_optimizer: adagrad, precision: bf16}\n"
      "tables: [{name: t, count: 26, rows: 10_000_000, dim: 128, zipf: 1.05}]\n";
  for (const auto& [batch, ms] : {std::pair{2048, 0.4109}, {16'384, 1.8123}, {65'536, 6.1302}}) {
    PlanSpec spec = Spec(absl::StrCat("batch_size: ", batch, "\n", dlrm));
    // Ten million rows a table were drawn from; the cache had those of the batch.
    spec.hardware.hbm_bytes = 1e12;
    spec.cache_bytes = static_cast<int64_t>(4e11);
    const Plan plan = Planned(spec);
    EXPECT_NEAR(plan.step_seconds, ms * kMs, kFifth * ms * kMs) << batch;
    std::printf("batch %d: planned %.3f ms, measured %.3f\n", batch, plan.step_seconds / kMs, ms);
    if (batch < 65'536) continue;
    EXPECT_NEAR(plan.traffic.unique_keys, 677'000, 7000);
    EXPECT_NEAR(StagesSeconds(plan, {"sum gradients", "update rows"}), 0.9985 * kMs,
                kFifth * 0.9985 * kMs);
    // MLPs and dot products, forward and backward.
    EXPECT_NEAR(StagesSeconds(plan, {"dense layers"}), 5.044 * kMs, kFifth * 5.044 * kMs);
  }
  // `dlrm --device=cuda`, a million rows a table, where the data were there.
  PlanSpec spec = Spec("batch_size: 65536\n" + dlrm);
  for (PlanTable& table : spec.tables) table.rows = 1'000'000;
  EXPECT_NEAR(Planned(spec).step_seconds, 6.7 * kMs, kFifth * 6.7 * kMs);
}

TEST(GpuPlanTest, TiersAndOpsTakeWhatTheyTookOnAnH100) {
  const auto planned = [](int64_t batch, int64_t rows, int dim, int hotness,
                          const std::string& cache, const std::string& optimizer) {
    return Planned(Spec(absl::StrCat(
        "batch_size: ", batch, "\nhardware: h100-sxm\nstore: memory\ncache_bytes: ", cache,
        "\ntables: [{name: t, count: 10, rows: ", rows, ", dim: ", dim, ", hotness: ", hotness,
        ", zipf: 1.05, optimizer: ", optimizer, "}]\n")));
  };
  const auto expect = [](double seconds, double ms) {
    EXPECT_NEAR(seconds, ms * kMs, kFifth * ms * kMs);
  };
  // Ten tables of 200,000 rows in a cache of all and of 80 % of them: steps from ids to updated
  // rows. A plan has what starts a step, too.
  for (const auto& [cache, misses, lookup_ms, training_ms] :
       {std::tuple{"2GB", 0.0, 2.2844, 2.9427}, {"960MB", 15'114.0, 3.4478, 7.9837}}) {
    const Plan plan = planned(104'857, 200'000, 128, 1, cache, "sgd");
    EXPECT_NEAR(plan.traffic.unique_keys, 239'289, 0.05 * 239'289);
    EXPECT_NEAR(plan.traffic.miss_rows, misses, kFifth * misses + 1) << plan.cache.rows;
    expect(StagesSeconds(plan, {"sort ids and find the distinct ones", "find and gather rows",
                                "read misses", "pool"}),
           lookup_ms);
    expect(plan.step_seconds, training_ms);
  }
  // Ops alone: lookups of one id and of eight a bag, sums and updates in one.
  for (const auto& [dim, ms, bags_ms] : {std::tuple{128, 0.2833, 0.1285}, {32, 0.1044, 0.0576}}) {
    expect(StagesSeconds(planned(104'857, 200'000, dim, 1, "2GB", "sgd"), {"pool"}), ms);
    expect(StagesSeconds(planned(13'107, 200'000, dim, 8, "2GB", "sgd"), {"pool"}), bags_ms);
  }
  const Plan updated = planned(104'857, 1'000'000, 128, 1, "20GB", "rowwise_adagrad");
  EXPECT_NEAR(updated.traffic.unique_keys, 315'570, 3200);
  expect(StagesSeconds(updated, {"sum gradients", "update rows"}), 0.5948);
}

TEST(GpuPlanTest, OwnFiguresCount) {
  const std::string rest =
      "batch_size: 4096\nstore: memory\ntables: [{name: t, rows: 1e6, dim: 64}]\n";
  const PlanSpec spec = Spec("hardware: h100-sxm\n" + rest);
  const Plan plan = Planned(spec);
  EXPECT_THAT(PlanText(spec, plan), HasSubstr("times as measured on: an H100 SXM, 2026-11-28"));
  const PlanSpec other = Spec("hardware: b200\n" + rest);
  EXPECT_THAT(PlanText(other, Planned(other)), HasSubstr(", scaled by data sheets, 16 threads"));
  const Plan half =
      Planned(Spec("hardware: {profile: h100-sxm, hbm_bytes_per_second: 1507500000000}\n" + rest));
  for (const char* const name : {"pool", "sum gradients", "update rows"}) {
    EXPECT_NEAR(StagesSeconds(half, {name}), 2 * StagesSeconds(plan, {name}), 1e-9) << name;
  }
}

TEST(PlanTest, WeightsOf16BitsTakeHalf) {
  const std::string head = "batch_size: 4096\nstore: memory\n";
  const std::string tables =
      "tables:\n- {name: a, rows: 1000, dim: 17}\n- {name: b, rows: 500, dim: 64, "
      "weights_precision: bf16}\n";
  const PlanSpec by_table = Spec(head + tables);
  EXPECT_EQ(by_table.tables[0].weights_precision, WeightsPrecision::kFp32);
  EXPECT_EQ(by_table.tables[1].weights_precision, WeightsPrecision::kBf16);
  const Plan mixed = Planned(by_table);
  EXPECT_EQ(mixed.size.weight_bytes, 1000 * 17 * 4 + 500 * 64 * 2);
  EXPECT_EQ(mixed.size.payload_bytes, mixed.size.weight_bytes + 1500 * 4);
  // 68 + 4 + 4 and 128 + 4 + 4, in units of 16.
  EXPECT_EQ(mixed.size.row_bytes, 1000 * 80 + 500 * 144);
  EXPECT_THAT(PlanText(by_table, mixed), HasSubstr("(bf16 in 1 of 2 tables), with"));

  const PlanSpec by_model = Spec(head + "model: {weights_precision: fp16}\n" + tables);
  EXPECT_EQ(by_model.tables[0].weights_precision, WeightsPrecision::kFp16);
  EXPECT_EQ(by_model.tables[1].weights_precision, WeightsPrecision::kBf16);
  const Plan all = Planned(by_model);
  // 17 columns of 2 bytes are padded to 36.
  EXPECT_EQ(all.size.weight_bytes, 1000 * 36 + 500 * 64 * 2);
  EXPECT_EQ(all.size.row_bytes, 1000 * 48 + 500 * 144);
  EXPECT_THAT(PlanText(by_model, all),
              HasSubstr("(fp16 in 1 of 2 tables, bf16 in 1 of 2 tables), with"));

  const std::string one = "tables:\n- {name: a, rows: 1000, dim: 16";
  const PlanSpec whole = Spec(head + one + ", dtype: fp32}\n");
  const PlanSpec older = Spec(head + one + ", dtype: fp16}\n");
  EXPECT_EQ(older.tables[0].weights_precision, WeightsPrecision::kFp16);
  EXPECT_EQ(Planned(whole).size.weight_bytes, 2 * Planned(older).size.weight_bytes);
  EXPECT_THAT(PlanText(older, Planned(older)), HasSubstr(" (fp16), with"));
  EXPECT_THAT(PlanText(whole, Planned(whole)), testing::Not(HasSubstr("fp")));
}

// The split that `auto` finds against all splits there are.
TEST(PlanTest, AutoFindsWhatBruteForceFinds) {
  const std::vector<std::string> tables = {
      "- {name: a, rows: 400000, dim: 32, zipf: 1.05, optimizer: adam}\n",
      "- {name: a, rows: 300000, dim: 16, zipf: 0.6}\n- {name: b, rows: 90000, dim: 64}\n"};
  for (const std::string& list : tables) {
    for (const double target : {0.0, 2e5, 1e9}) {
      const std::string text = absl::StrCat(
          "batch_size: 2048\nstore: ssd\nmax_hbm: 160MiB\ntarget_samples_per_second: ",
          static_cast<int64_t>(target),
          "\nhost_cache_bytes: 0\nhardware: {profile: a10, ssd_read_ios_per_second: 70000}\n",
          "tables:\n", list);
      const PlanSpec spec = Spec(text);
      const Plan chosen = Planned(spec);
      // Every MiB above the same start.
      double best = 0;
      std::vector<Plan> plans;
      for (double bytes = 1 << 20; bytes < 200 << 20; bytes += 1 << 20) {
        PlanSpec fixed = spec;
        fixed.cache_bytes = static_cast<int64_t>(bytes);
        fixed.target_samples_per_second = 0;
        Plan plan = Planned(fixed);
        if (!plan.fits) continue;
        best = std::max(best, plan.samples_per_second);
        plans.push_back(std::move(plan));
      }
      ASSERT_FALSE(plans.empty());
      const bool reachable = target > 0 && best >= target;
      const double wanted = reachable ? target : best * 0.99;
      double least = 1e18;
      for (const Plan& plan : plans) {
        if (plan.samples_per_second >= wanted) least = std::min(least, plan.cache.bytes);
      }
      EXPECT_NEAR(chosen.cache.bytes, least, 2.1 * (1 << 20)) << text;
      EXPECT_EQ(chosen.fits, target == 0 || reachable) << text;
    }
  }
}

TEST(PlanTest, AThousandTablesTakeLessThanTwoSeconds) {
  std::string text = "batch_size: 65536\nranks: 8\nhardware: h100-sxm\nstore: ssd\ntables:\n";
  for (int i = 0; i < 1000; ++i) {
    absl::StrAppend(&text, "- {name: t", i, ", rows: ", 1000 + i * 977 * 41,
                    ", dim: ", 16 << (i % 4), ", optimizer: rowwise_adagrad, hotness: ", 1 + i % 7,
                    ", zipf: 1.", i % 30 + 10, "}\n");
  }
  auto seconds = [begin = std::clock()]() mutable {  // of the processor, since the last call
    const std::clock_t now = std::clock();
    return static_cast<double>(now - std::exchange(begin, now)) / CLOCKS_PER_SEC;
  };
  const Plan plan = Planned(Spec(text));
  const double took = seconds();
  std::printf("1,000 tables: %.3f s\n", took);
  EXPECT_GT(plan.samples_per_second, 0);
  // Remedies, each planned, count too.
  const Plan over = Planned(Spec("max_dram: 1GB\nmax_ssd: 100GB\n" + text));
  const double took_over = seconds();
  std::printf("over its limits, with %zu remedies: %.3f s\n", over.remedies.size(), took_over);
  EXPECT_FALSE(over.fits);
  EXPECT_FALSE(over.remedies.empty());
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(took, 2);
  EXPECT_LT(took_over, 4);
#endif
}

TEST(PlanTest, MoreCacheNeverHitsLess) {
  PlanSpec spec = Spec(
      "batch_size: 8192\nstore: ssd\nhardware: a100-40\n"
      "tables:\n- {name: a, rows: 5e7, dim: 64, zipf: 1.1}\n- {name: b, rows: 1e6, dim: 16}\n");
  double last = 0;
  for (int64_t bytes = int64_t{64} << 20; bytes < int64_t{32} << 30; bytes *= 2) {
    spec.cache_bytes = bytes;
    const Plan plan = Planned(spec);
    EXPECT_GE(plan.cache.unique_hit_rate, last);
    EXPECT_LE(plan.TierBytes("hbm") - bytes, 1e9);
    last = plan.cache.unique_hit_rate;
  }
  EXPECT_GT(last, 0.9);
}

// A measured curve of a Zipf stream gives what the law gives.
TEST(PlanTest, ACurveOfTheLawIsWorthTheLaw) {
  PlanSpec law = Spec(
      "batch_size: 4096\nstore: ssd\nhardware: a10\ncache_bytes: 64MiB\n"
      "tables:\n- {name: a, rows: 1000000, dim: 32, zipf: 1.05}\n");
  PlanSpec measured = law;
  const Popularity zipf = Popularity::Zipf(1e6, 1.05);
  const CacheClient one = {.law = &zipf, .step_lookups = 1};
  const CacheModel model(std::span(&one, 1));
  for (double rows = 10; rows < 1e6; rows *= 1.3) {
    measured.tables[0].curve.push_back({rows, model.Lru(rows).lookups});
  }
  const Plan a = Planned(law);
  const Plan b = Planned(measured);
  EXPECT_NEAR(a.traffic.unique_keys, b.traffic.unique_keys, 0.02 * a.traffic.unique_keys);
  EXPECT_NEAR(a.cache.unique_hit_rate, b.cache.unique_hit_rate, 0.01);
  EXPECT_NEAR(a.cache.hit_rate, b.cache.hit_rate, 0.01);
}

void ExpectRefused(const std::string& text, const std::string& place,
                   const testing::Matcher<const std::string&>& what) {
  const auto spec = ParsePlanSpec(text, "spec.yaml");
  EXPECT_THAT(spec.status(), test::StatusIs(absl::StatusCode::kInvalidArgument,
                                            AllOf(StartsWith("spec.yaml:" + place + ": "), what)))
      << text;
}

TEST(PlanSpecTest, BadSpecsAreNamedWithTheirPlace) {
  const std::string table = "tables:\n- {name: a, rows: 10, dim: 4";
  ExpectRefused("batch_size: 1\n", "1:1", HasSubstr("tables is missing"));
  ExpectRefused("batch_size: 1\ntables: []\n", "2:9", HasSubstr("at least one table"));
  ExpectRefused(table + "}\n", "1:1", HasSubstr("batch_size is missing"));
  ExpectRefused("tables:\n- {name: a, rows: -5, dim: 4}\n", "2:19",
                AllOf(HasSubstr("tables[0].rows"), HasSubstr("\"-5\"")));
  ExpectRefused("tables:\n- name: a\n  rows: 10\n  dim: 0\n", "4:8", HasSubstr("tables[0].dim"));
  ExpectRefused("tables:\n- {rows: 10}\n", "2:3", HasSubstr("tables[0].dim is missing"));
  ExpectRefused(table + ", zipf: -1}\n", "2:37", HasSubstr("tables[0].zipf"));
  ExpectRefused(table + ", colour: red}\n", "2:39",
                AllOf(HasSubstr("colour"), HasSubstr("there are: name, rows")));
  ExpectRefused(table + ", optimizer: adamw}\n", "2:42",
                AllOf(HasSubstr("adamw"), HasSubstr("rowwise_adagrad")));
  ExpectRefused(table + ", weights_precision: fp8}\n", "2:50",
                AllOf(HasSubstr("tables[0].weights_precision"), HasSubstr("fp32, fp16, bf16")));
  ExpectRefused(table + ", weights_precision: fp16, dtype: fp32}\n", "2:63",
                HasSubstr("dtype and weights_precision are the same"));
  ExpectRefused("batch_size: 1\nmodel: {weights_precision: int8}\n" + table + "}\n", "2:28",
                HasSubstr("model.weights_precision"));
  ExpectRefused(table + ", zipf: 1, histogram: [[1, 2]]}\n", "2:3", HasSubstr("give one of them"));
  ExpectRefused(table + ", histogram: [[100, 2]]}\n", "2:42", HasSubstr("the table has 10"));
  ExpectRefused(table + ", histogram: [[1, 0]]}\n", "2:43", HasSubstr("histogram"));
  ExpectRefused("batch_size: 1\n" + table + "}\n- {name: a, rows: 3, dim: 4}\n", "4:3",
                HasSubstr("occurs twice"));
  ExpectRefused("batch_size: 1.5\n" + table + "}\n", "1:13", HasSubstr("whole number"));
  ExpectRefused("batch_size: 1\nhardware: a99\n" + table + "}\n", "2:11",
                AllOf(HasSubstr("a99"), HasSubstr("h100-sxm")));
  ExpectRefused("batch_size: 1\nhardware: {disk: floppy}\n" + table + "}\n", "2:11",
                HasSubstr("nvme-mixed"));
  ExpectRefused("batch_size: 1\nhardware: {drives: 0}\n" + table + "}\n", "2:20",
                HasSubstr("whole number in [1, 64]"));
  ExpectRefused("batch_size: 1\nmodel: {top: [0]}\n" + table + "}\n", "2:15",
                HasSubstr("layer sizes"));
  ExpectRefused("batch_size: 1\ncache_bytes: much\n" + table + "}\n", "2:14",
                HasSubstr("byte count"));
  ExpectRefused("batch_size: 1\nbatch: 2\n" + table + "}\n", "2:8",
                AllOf(HasSubstr("batch"), HasSubstr("there are: tables")));
  ExpectRefused("- 1\n", "1:1", HasSubstr("must be a map"));
}

TEST(PlanSpecTest, ReadsJsonAndUnits) {
  const PlanSpec spec = Spec(R"({"batch_size": 4096, "ranks": 16, "cache_bytes": "12GB",
    "hardware": {"profile": "h200", "hbm": "100GiB", "price_per_rank_hour": 3.5},
    "exchange_forward": "int8",
    "tables": [{"name": "a", "rows": 40_000_000, "rows_per_day": 1e5, "dim": 64, "hotness": 20,
                "features": 2, "histogram": [[10, 1000], [1000, 2.5]]}], "days": 30})");
  EXPECT_EQ(spec.cache_bytes, 12'000'000'000);
  EXPECT_EQ(spec.hardware.hbm_bytes, 100.0 * (1 << 30));
  EXPECT_EQ(spec.ranks_per_node, 8);
  EXPECT_EQ(spec.tables[0].rows, 40'000'000);
  EXPECT_EQ(spec.tables[0].step_lookups(10), 400);
  EXPECT_EQ(spec.tables[0].histogram.size(), 2u);
  EXPECT_EQ(WireBytes(spec.forward_wire, 64), 68);
  const Plan plan = Planned(spec);
  EXPECT_EQ(plan.size.rows, 43'000'000);
  EXPECT_GT(plan.price_per_billion_samples, 0);
}

TEST(PlanSpecTest, ReadsCurves) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const std::vector<CurvePoint> curve,
      ParseCurve(R"({"points": [{"size": 20, "hit_rate": 0.5}, {"size": 10, "hit_rate": 0.25}]})",
                 "c.json"));
  ASSERT_EQ(curve.size(), 2u);
  EXPECT_EQ(curve[0].rows, 10);
  for (const char* const bad : {"", "[]", "{}", R"({"points": []})", R"({"points": [{}]})",
                                R"({"points": [{"size": 1, "hit_rate": 2}]})",
                                R"({"points": [{"size": 0, "hit_rate": 1}]})"}) {
    EXPECT_THAT(ParseCurve(bad, "c.json").status(),
                test::StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("c.json"), HasSubstr("hotrow trace mrc"))));
  }
}

TEST(ConditionTest, ComparesAndJoins) {
  const std::map<std::string, double> values = {{"hbm_bytes", 80e9}, {"fits", 1}};
  const auto holds = [&](const std::string& text) {
    const absl::StatusOr<bool> result = EvaluateCondition(text, values);
    HOTROW_EXPECT_OK(result);
    return result.ok() && *result;
  };
  EXPECT_TRUE(holds("hbm_bytes>70e9"));
  EXPECT_FALSE(holds("hbm_bytes > 90e9"));
  EXPECT_TRUE(holds("fits==1 && hbm_bytes<=80e9"));
  EXPECT_TRUE(holds("fits!=1&&hbm_bytes<1 || fits>=1"));
  EXPECT_FALSE(holds("fits<1 || hbm_bytes<fits"));
  for (const char* const bad : {"", "hbm", "fits", "fits=1", "fits==", "fits==1 &&", "1<2 x"}) {
    EXPECT_THAT(EvaluateCondition(bad, values).status(),
                test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at character")))
        << bad;
  }
}

}  // namespace
}  // namespace hotrow
