// The parts of a plan, each by itself.

#include "tools/plan/planner.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tools/plan/advice.h"
#include "tools/plan/stages.h"
#include "tools/plan/tier_items.h"
#include "tools/plan/traffic.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::StartsWith;

constexpr char kTables[] =
    "tables:\n- {name: a, rows: 1e6, dim: 64, zipf: 1.05}\n- {name: b, rows: 1000, dim: 16, zipf: "
    "0}\n";

PlanSpec Spec(const std::string& text) {
  const auto spec = ParsePlanSpec(text + kTables, "spec.yaml");
  HOTROW_EXPECT_OK(spec);
  return spec.ok() ? *spec : PlanSpec();
}

TEST(WorkloadTest, AddsUpTablesAndRanks) {
  const PlanSpec spec = Spec("batch_size: 4096\nhardware: cpu\nranks: 4\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const Workload workload, Workload::Of(spec));
  EXPECT_EQ(workload.rows, 1'001'000);
  EXPECT_EQ(workload.weight_bytes, 1e6 * 256 + 1000 * 64);
  EXPECT_EQ(workload.classes.size(), 2u);
  EXPECT_EQ(workload.lookups, 2 * 1024);
  EXPECT_EQ(workload.pooled_dim, 80);
  EXPECT_LT(workload.unique_keys, workload.lookups);
  EXPECT_FALSE(workload.has_gpu());
  EXPECT_EQ(workload.near_tier(), "dram");
  EXPECT_LT(workload.min_cache_bytes, workload.whole_cache_bytes);
}

// Rows of a sequence stay as they are: one for each lookup, where others are a vector a feature.
TEST(WorkloadTest, LookupsThatAreNotPooledStayRows) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const PlanSpec spec,
      ParsePlanSpec("batch_size: 64\nhardware: cpu\ntables:\n"
                    "- {name: s, rows: 1000, dim: 8, hotness: 50, pooling: none}\n"
                    "- {name: p, rows: 1000, dim: 8, hotness: 50, pooling: mean}\n",
                    "spec.yaml"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const Workload workload, Workload::Of(spec));
  EXPECT_EQ(workload.pooled_dim, 16);
  EXPECT_EQ(workload.output_dim, 50 * 8 + 8);
  EXPECT_EQ(workload.lookups, 64 * 100);
  for (const PlanItem& item : TierItems(workload, TierChoice(workload, StoreKind::kMemory, 0))) {
    if (!item.name.starts_with("pooled rows")) continue;
    EXPECT_EQ(item.bytes, 64.0 * 408 * 4 * 2);
  }
}

TEST(WorkloadTest, CountsThePartsOfADenseModel) {
  const std::string head = "batch_size: 64\nhardware: {profile: cpu, dense_flops: 1e9}\n";
  const PlanSpec plain_spec = Spec(head + "model: {top: [8, 1], top_inputs: 90}\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const Workload plain, Workload::Of(plain_spec));
  EXPECT_EQ(plain.dense_parameters, 91 * 8 + 9);
  EXPECT_EQ(plain.dense_macs, 90 * 8 + 8);
  const PlanSpec spec = Spec(head +
                             "model:\n  top: [8, 1]\n  top_inputs: 90\n  parts:\n"
                             "    - {name: cin, rows: 10, inputs: 25, outputs: 6, macs: 250, "
                             "activations: 250}\n"
                             "    - {name: batch_norm, count: 2, parameters: 16, macs: 32, "
                             "activations: 8}\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const Workload workload, Workload::Of(spec));
  EXPECT_EQ(workload.dense_parameters - plain.dense_parameters, 26 * 6 + 2 * 16);
  EXPECT_EQ(workload.dense_macs - plain.dense_macs, 10 * 25 * 6 + 250 + 2 * 32);
  EXPECT_EQ(workload.activations - plain.activations, 10 * 6 + 250 + 2 * 8);
  EXPECT_NEAR(workload.DenseSeconds(100) / plain.DenseSeconds(100),
              workload.dense_macs / plain.dense_macs, 1e-9);
  const auto refused = [&](const std::string& parts) {
    return std::string(
        ParsePlanSpec(head + "model: {parts: " + parts + "}\n" + kTables, "spec.yaml")
            .status()
            .message());
  };
  EXPECT_THAT(refused("[{name: x, inputs: 3}]"),
              testing::HasSubstr("model.parts[0].inputs and model.parts[0].outputs: give both"));
  EXPECT_THAT(refused("[{name: x, mac: 3}]"), testing::HasSubstr("model.parts[0].mac"));
  EXPECT_THAT(refused("3"), testing::HasSubstr("a list of parts"));
}

TEST(TrafficTest, FallsWithTheCache) {
  const PlanSpec spec = Spec("batch_size: 4096\nhardware: h100-sxm\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const Workload workload, Workload::Of(spec));
  const auto with = [&](double cache_bytes) {
    return CountTraffic(workload, TierChoice(workload, StoreKind::kMemory, cache_bytes));
  };
  const Traffic none = with(0);
  EXPECT_EQ(none.misses, 0);
  EXPECT_EQ(none.unique_hit_rate, 1);
  const Traffic small = with(workload.min_cache_bytes);
  const Traffic large = with(workload.whole_cache_bytes / 4);
  EXPECT_GT(small.misses, large.misses);
  EXPECT_LT(small.unique_hit_rate, large.unique_hit_rate);
  EXPECT_LE(large.unique_hit_rate, large.hit_rate_bound);
  EXPECT_EQ(large.link_bytes_down, large.miss_bytes);
  EXPECT_EQ(large.evicted, large.misses);
}

TEST(TrafficTest, ADiskReadsWhatMissesAndWritesMoreThanWhatLeaves) {
  const PlanSpec spec = Spec("batch_size: 4096\nhardware: cpu\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const Workload workload, Workload::Of(spec));
  const TierChoice tiers(workload, StoreKind::kSsd, workload.whole_cache_bytes / 4);
  Traffic traffic = CountTraffic(workload, tiers);
  CountDisk(workload, tiers, SsdStoreSize(workload).disk_bytes, &traffic);
  EXPECT_GT(traffic.ssd_ios_read, 0);
  EXPECT_LE(traffic.ssd_ios_read, traffic.ssd_reads);
  EXPECT_GT(traffic.write_amplification, 1);
  EXPECT_GT(traffic.ssd_bytes_written, traffic.evicted_bytes);
}

TEST(TrafficTest, RanksSendNothingToThemselves) {
  const PlanSpec one = Spec("batch_size: 4096\nhardware: cpu\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const Workload alone, Workload::Of(one));
  EXPECT_EQ(CountExchange(alone).total, 0);
  const PlanSpec four = Spec("batch_size: 4096\nhardware: cpu\nranks: 4\nranks_per_node: 2\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const Workload workload, Workload::Of(four));
  const ExchangeBytes exchange = CountExchange(workload);
  EXPECT_DOUBLE_EQ(exchange.total, exchange.ids + exchange.forward + exchange.backward);
  EXPECT_DOUBLE_EQ(exchange.total, exchange.node + exchange.network);
  EXPECT_DOUBLE_EQ(exchange.network, 2 * exchange.node);  // two of the three others
  EXPECT_DOUBLE_EQ(exchange.forward, workload.forward_wire_bytes * 3 / 4);
}

TEST(TierItemsTest, ACacheLiesWhereRowsAreTrained) {
  for (const auto& [hardware, tier] :
       {std::pair<std::string, std::string>{"cpu", "dram"}, {"h100-sxm", "hbm"}}) {
    const PlanSpec spec = Spec("batch_size: 4096\nhardware: " + hardware + "\n");
    HOTROW_ASSERT_OK_AND_ASSIGN(const Workload workload, Workload::Of(spec));
    const TierChoice tiers(workload, StoreKind::kMemory, workload.min_cache_bytes);
    double bytes = 0;
    for (const PlanItem& item : TierItems(workload, tiers)) {
      if (!absl::StartsWith(item.name, "cache: ")) continue;
      EXPECT_EQ(item.tier, tier);
      bytes += item.bytes;
    }
    EXPECT_LE(bytes, workload.min_cache_bytes);
    EXPECT_GT(bytes, 0.9 * workload.min_cache_bytes);
  }
}

TEST(StagesTest, TheSlowestStageIsTheBottleneck) {
  const PlanSpec spec = Spec("batch_size: 4096\nhardware: cpu\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const Workload workload, Workload::Of(spec));
  const TierChoice tiers(workload, StoreKind::kMemory, 0);
  const StepTime time = StepTimeFromSheet(workload, tiers, CountTraffic(workload, tiers));
  double sum = 0;
  for (const PlanStage& stage : time.stages) sum += stage.seconds;
  EXPECT_DOUBLE_EQ(time.seconds, sum);  // without prefetching
  const auto slowest = std::max_element(
      time.stages.begin(), time.stages.end(),
      [](const PlanStage& a, const PlanStage& b) { return a.seconds < b.seconds; });
  EXPECT_EQ(time.bottleneck, slowest->name + " (" + slowest->bound_by + ")");
}

TEST(PlannerTest, TheChosenCacheIsTheLeastThatReachesTheTarget) {
  PlanSpec spec = Spec("batch_size: 4096\nhardware: h100-sxm\nstore: memory\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const Planner free, Planner::Create(spec));
  const Plan least = free.With(StoreKind::kMemory, free.workload().min_cache_bytes);
  const Plan best = free.With(StoreKind::kMemory, free.workload().whole_cache_bytes * 64 / 55);
  ASSERT_LT(least.samples_per_second, best.samples_per_second);
  spec.target_samples_per_second = (least.samples_per_second + best.samples_per_second) / 2;
  HOTROW_ASSERT_OK_AND_ASSIGN(const Planner planner, Planner::Create(spec));
  const Plan plan = planner.Choose();
  EXPECT_GE(plan.samples_per_second, spec.target_samples_per_second);
  EXPECT_LT(planner.With(StoreKind::kMemory, plan.cache.bytes - (2 << 20)).samples_per_second,
            spec.target_samples_per_second);
}

TEST(AdviceTest, ARemedySaysWhetherThePlanThenFits) {
  const PlanSpec spec = Spec("batch_size: 4096\nhardware: cpu\nstore: memory\nmax_dram: 100MB\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const Planner planner, Planner::Create(spec));
  const Plan plan = planner.Choose();
  ASSERT_FALSE(plan.fits);
  EXPECT_THAT(Remedies(planner, plan),
              ElementsAre(AllOf(StartsWith("keep the rows on the SSD"), EndsWith("then it fits")),
                          AllOf(StartsWith("use 4 ranks"), EndsWith("then it fits"))));
}

TEST(AdviceTest, MoreCacheBuysHitsAndMoreDiskBuysSpeed) {
  const PlanSpec spec = Spec("batch_size: 4096\nhardware: cpu\nstore: ssd\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const Planner planner, Planner::Create(spec));
  const Plan plan = planner.With(StoreKind::kSsd, planner.workload().min_cache_bytes);
  const std::vector<PlanMarginal> marginals = Marginals(planner, plan);
  ASSERT_EQ(marginals.size(), 2u);
  EXPECT_EQ(marginals[0].tier, "dram");
  EXPECT_GT(marginals[0].unique_hit_rate, 0);
  EXPECT_EQ(marginals[1].tier, "ssd");
  EXPECT_GE(marginals[1].samples_per_second, 0);
}

}  // namespace
}  // namespace hotrow
