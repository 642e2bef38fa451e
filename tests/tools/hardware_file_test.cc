#include <string>

#include "tests/support/test_util.h"
#include "tools/calibration.h"
#include "tools/plan/hardware.h"
#include "tools/plan/plan.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

HardwareProfile Measured() {
  HardwareProfile profile = *FindAccelerator("cpu");
  profile.machine = "a \"quoted\" machine";
  profile.threads = 2;
  profile.dram_bytes_per_second = 2e10;
  profile.dense_flops = 1e11;
  profile.dense_flops_narrow = 1e11;
  profile.dense_flops_middle = 2e11;
  profile.dense_flops_wide = 3e11;
  profile.dot_flops_short = 1e10;
  profile.dot_flops_long = 5e10;
  profile.ssd_bytes = 1e12;
  profile.ssd_read_ios_per_second = 50'000;
  profile.ssd_read_bytes_per_second = 2e8;
  profile.ssd_write_bytes_per_second = 1e9;
  profile.engine.unique_seconds_per_lookup = 1e-8;
  profile.engine.in_place = {2e-8, 1e-10};
  profile.engine.hit = {3e-8, 1e-10};
  profile.engine.miss = {1e-7, 2e-10};
  profile.engine.evict = {5e-8, 3e-10};
  profile.engine.ssd_miss = {1e-6, 4e-10};
  profile.engine.pool = {1e-9, 1e-11};
  profile.engine.sum = {2e-9, 2e-11};
  profile.engine.update = {1e-8, 5e-10};
  return profile;
}

TEST(HardwareFileTest, WhatIsWrittenIsRead) {
  const HardwareProfile out = Measured();
  const std::string text = HardwareProfileText(out);
  EXPECT_THAT(text, AllOf(HasSubstr("\nthreads: 2\n"), HasSubstr("# reads/s; random 4 KiB")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const HardwareProfile in, ParseHardwareProfile(text, "m.yaml"));
  EXPECT_EQ(in.name, "m.yaml");
  EXPECT_EQ(in.machine, "a  quoted  machine");
  EXPECT_EQ(in.dense_flops_middle, 2e11);
  EXPECT_EQ(in.ssd_read_ios_per_second, 50'000);
  EXPECT_EQ(in.engine.unique_seconds_per_lookup, 1e-8);
  EXPECT_EQ(in.engine.update.seconds_per_byte, 5e-10);
  EXPECT_EQ(in.engine.evict.seconds, 5e-8);
  EXPECT_EQ(in.engine.miss_busy, 1);
  EXPECT_TRUE(in.calibrated());
  EXPECT_EQ(HardwareProfileText(in), [&] {
    HardwareProfile same = out;
    same.machine = in.machine;
    return HardwareProfileText(same);
  }());
}

TEST(HardwareFileTest, BadFilesAreNamedWithTheirPlace) {
  const std::string head = "format: hotrow hardware 1\n";
  const auto expect = [](const std::string& text, const std::string& place,
                         const testing::Matcher<const std::string&>& what) {
    EXPECT_THAT(ParseHardwareProfile(text, "m.yaml").status(),
                test::StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(StartsWith("m.yaml:" + place), what)))
        << text;
  };
  expect("", "", HasSubstr("hotrow calibrate"));
  expect("dense_flops: 1\n", "1:1", HasSubstr("hotrow calibrate"));
  expect("format: hotrow hardware 9\n", "1:9", HasSubstr("hotrow calibrate"));
  expect(head + "dense_flops: fast\n", "2:14", HasSubstr("a number above 0"));
  expect(head + "dense_flops: -1\n", "2:14", HasSubstr("a number above 0"));
  expect(head + "colour: 1\n", "2:9", HasSubstr("colour"));
}

TEST(HardwareFileTest, RatesBetweenMeasuredSizesLieBetween) {
  const HardwareProfile profile = Measured();
  EXPECT_EQ(profile.LayerFlops(8, 8), 1e11);
  EXPECT_NEAR(profile.LayerFlops(64, 256), 1.5e11, 1);
  EXPECT_NEAR(profile.LayerFlops(256, 256), 2e11, 1);
  EXPECT_EQ(profile.LayerFlops(4096, 4096), 3e11);
  EXPECT_EQ(profile.DotFlops(16), 1e10);
  EXPECT_EQ(FindAccelerator("cpu")->LayerFlops(8, 8), FindAccelerator("cpu")->dense_flops);
}

PlanSpec Spec(const std::string& more) {
  HardwareSource source;
  source.read = [](const std::string& file) -> absl::StatusOr<HardwareProfile> {
    if (file != "m.yaml") return absl::NotFoundError(file + ": no such file");
    return Measured();
  };
  const auto spec =
      ParsePlanSpec("batch_size: 1000\n" + more +
                        "tables:\n- {name: t, rows: 1000000, dim: 16, optimizer: sgd, zipf: 0}\n",
                    "spec.yaml", source);
  EXPECT_THAT(spec, test::IsOk());
  return spec.ok() ? *spec : PlanSpec();
}

double StageSeconds(const Plan& plan, const std::string& name) {
  for (const PlanStage& stage : plan.stages) {
    if (stage.name == name) return stage.seconds;
  }
  return 0;
}

TEST(CalibratedPlanTest, StagesAreMeasuredCostsTimesTheirCounts) {
  const PlanSpec spec = Spec("hardware: m.yaml\nstore: memory\ncache_bytes: 16MiB\n");
  HOTROW_ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(spec));
  const double row_bytes = 80;  // 64 of weights, the step, padding
  const double misses = plan.miss_rows;
  EXPECT_GT(misses, 500);
  EXPECT_NEAR(StageSeconds(plan, "sort ids and find the distinct ones"), 1000 * 1e-8, 1e-12);
  EXPECT_NEAR(StageSeconds(plan, "find rows in the cache"),
              (plan.unique_keys - misses) * (3e-8 + row_bytes * 1e-10), 1e-9);
  EXPECT_NEAR(StageSeconds(plan, "read misses"), misses * (1e-7 + row_bytes * 2e-10), 1e-9);
  EXPECT_NEAR(StageSeconds(plan, "write evicted rows"), misses * (5e-8 + row_bytes * 3e-10), 1e-9);
  EXPECT_NEAR(StageSeconds(plan, "pool"), 1000 * (1e-9 + 64 * 1e-11), 1e-12);
  EXPECT_NEAR(StageSeconds(plan, "update rows"), plan.unique_keys * (1e-8 + row_bytes * 5e-10),
              1e-9);
  double sum = 0;
  for (const PlanStage& stage : plan.stages) sum += stage.seconds;
  EXPECT_NEAR(plan.step_seconds, sum, 1e-12);
  EXPECT_THAT(PlanText(spec, plan), HasSubstr("a \"quoted\" machine"));
}

double ChainSeconds(const Plan& plan, const std::string& name) {
  for (const PlanChain& chain : plan.chains) {
    if (chain.name == name) return chain.seconds;
  }
  return 0;
}

Plan PlanOf(const PlanSpec& spec) {
  const auto plan = MakePlan(spec);
  EXPECT_THAT(plan, test::IsOk());
  return plan.ok() ? *plan : Plan();
}

TEST(CalibratedPlanTest, AStepIsItsLongestChain) {
  const std::string common = "hardware: m.yaml\nstore: ssd\ncache_bytes: 16MiB\n";
  const auto plan_of = [&](const std::string& more) {
    PlanSpec spec = Spec(common + more);
    spec.hardware.ssd_write_bytes_per_second = 1e12;
    return PlanOf(spec);
  };
  const Plan behind = plan_of("");
  const Plan one = plan_of("prefetch_depth: 1\n");
  const Plan two = plan_of("prefetch_depth: 2\n");
  // Without prefetching everything is one chain, but that the disk writes by itself.
  double sum = 0;
  for (const PlanStage& stage : behind.stages) {
    if (stage.name.rfind("reads of the disk", 0) != 0 &&
        stage.name.rfind("writes of the disk", 0) != 0) {
      sum += stage.seconds;
    }
  }
  EXPECT_NEAR(behind.step_seconds, sum, 1e-12);
  EXPECT_NEAR(ChainSeconds(behind, "the step"), sum, 1e-12);
  // The rows that are read are dealt with meanwhile, so the longer of both counts.
  EXPECT_NEAR(StageSeconds(two, "reads of the disk"), two.ssd_ios_read / 50'000, 1e-9);
  EXPECT_NEAR(StageSeconds(two, "read misses") + StageSeconds(two, "wait for reads of the disk"),
              two.ssd_ios_read / 50'000, 1e-9);
  // Two steps in flight: one is read while the next is placed.
  const double place = ChainSeconds(two, "placing rows ahead");
  const double read = ChainSeconds(two, "reading rows ahead");
  EXPECT_GT(place, 0);
  EXPECT_NEAR(read, two.ssd_ios_read / 50'000, 1e-9);
  EXPECT_NEAR(ChainSeconds(one, "placing and reading rows ahead"),
              StageSeconds(one, "read misses") + StageSeconds(one, "wait for reads of the disk") +
                  StageSeconds(one, "sort ids and find the distinct ones") +
                  StageSeconds(one, "find rows in the cache") +
                  StageSeconds(one, "write evicted rows"),
              1e-12);
  for (const Plan* const plan : {&behind, &one, &two}) {
    double longest = 0;
    for (const PlanChain& chain : plan->chains) longest = std::max(longest, chain.seconds);
    EXPECT_EQ(plan->step_seconds, longest);
  }
  EXPECT_GT(one.step_seconds, two.step_seconds);
  EXPECT_THAT(PlanText(Spec(common), two), HasSubstr("chain: reading rows ahead"));
}

// What one thread does ahead leaves the other to the step: it takes longer by itself, and less of
// the processors, than with both at work.
TEST(CalibratedPlanTest, WorkOfOneThreadLeavesTheOthers) {
  PlanSpec spec = Spec("hardware: m.yaml\nstore: memory\ncache_bytes: 16MiB\nprefetch_depth: 1\n");
  spec.hardware.engine.unique_seconds_per_lookup = 1e-5;
  const Plan all = PlanOf(spec);
  spec.hardware.engine.unique_busy = 0.5;
  const Plan half = PlanOf(spec);
  const double seconds = 1000 * 1e-5;
  const char* const stage = "sort ids and find the distinct ones";
  EXPECT_NEAR(StageSeconds(all, stage), 2 * seconds, 1e-12);
  EXPECT_NEAR(StageSeconds(half, stage), seconds, 1e-12);
  EXPECT_NEAR(ChainSeconds(all, "all work on the processors") -
                  ChainSeconds(half, "all work on the processors"),
              seconds / 2, 1e-12);
}

TEST(CalibratedPlanTest, ReadingTheDataHasAThreadWhereThereAreTwo) {
  PlanSpec spec = Spec("hardware: m.yaml\nstore: memory\ncache_bytes: 0\n");
  spec.data_seconds_per_sample = 1e-3;
  const Plan two = PlanOf(spec);
  EXPECT_NEAR(ChainSeconds(two, "reading the data"), 1000 * 1e-3, 1e-12);
  EXPECT_EQ(two.step_seconds, ChainSeconds(two, "reading the data"));
  spec.hardware.threads = 1;
  const Plan one = PlanOf(spec);
  EXPECT_EQ(ChainSeconds(one, "reading the data"), 0);
  EXPECT_GT(one.step_seconds, 1000 * 1e-3);
}

// Ranks of a machine have what it does all together.
TEST(CalibratedPlanTest, RanksShareTheirMachine) {
  const std::string common = "hardware: m.yaml\nstore: memory\ncache_bytes: 0\n";
  const Plan alone = PlanOf(Spec(common));
  const Plan shared = PlanOf(Spec(common + "ranks: 4\nranks_per_node: 4\n"));
  const Plan apart = PlanOf(Spec(common + "ranks: 4\nranks_per_node: 1\n"));
  // Four ranks pool a fourth each, at a fourth of the speed.
  EXPECT_NEAR(StageSeconds(shared, "pool"), StageSeconds(alone, "pool"), 1e-15);
  EXPECT_NEAR(StageSeconds(apart, "pool"), StageSeconds(alone, "pool") / 4, 1e-15);
  EXPECT_GT(StageSeconds(shared, "exchange rows"), 0);
  EXPECT_LT(shared.samples_per_second, alone.samples_per_second);
  EXPECT_EQ(shared.exchange_bytes, shared.exchange_bytes_node);
  EXPECT_EQ(apart.exchange_bytes, apart.exchange_bytes_network);
  for (const PlanTier& tier : shared.tiers) {
    if (tier.name != "dram") continue;
    EXPECT_EQ(tier.limit_bytes, Measured().dram_bytes / 4);
  }
}

TEST(CalibratedPlanTest, ARunFromNothingMakesItsRows) {
  PlanSpec spec = Spec("hardware: m.yaml\nstore: memory\ncache_bytes: 0\n");
  spec.hardware.engine.new_in_place = {1e-6, 1e-9};
  EXPECT_EQ(StageSeconds(PlanOf(spec), "make new rows"), 0);
  spec.run_steps = 10;
  // Of a million rows, used alike, each of ten steps finds nearly 1,000 new ones.
  const Plan run = PlanOf(spec);
  EXPECT_NEAR(run.new_rows, 995, 6);
  EXPECT_NEAR(StageSeconds(run, "make new rows"), run.new_rows * (1e-6 + 80e-9), 1e-9);
}

TEST(CalibratedPlanTest, AFileStandsWhereAProfileStandsAndItsDiskCounts) {
  EXPECT_EQ(Spec("hardware: m.yaml\n").hardware.ssd_bytes, 1e12);
  EXPECT_EQ(Spec("hardware: {profile: m.yaml, dram: 8GB}\n").hardware.dram_bytes, 8e9);
  EXPECT_EQ(Spec("hardware: {profile: m.yaml, disk: sata}\n").hardware.ssd_bytes, 3.84e12);
  // A figure of one's own counts for all widths.
  EXPECT_EQ(Spec("hardware: {profile: m.yaml, dense_flops: 5e9}\n").hardware.LayerFlops(64, 64),
            5e9);
  HardwareSource source;
  source.instead = Measured();
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const PlanSpec spec,
      ParsePlanSpec("batch_size: 1\nhardware: h200\ntables: [{name: a, rows: 1, dim: 1}]\n", "s",
                    source));
  EXPECT_EQ(spec.hardware.hbm_bytes, 0);
  EXPECT_EQ(spec.hardware.threads, 2);
}

TEST(CalibrationTest, OptionsAreChecked) {
  const auto nothing = [](std::string_view) {};
  EXPECT_THAT(Calibrate({.threads = 0}, nothing).status(),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("threads")));
  EXPECT_THAT(Calibrate({.effort = 2}, nothing).status(),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("effort")));
  EXPECT_THAT(Calibrate({.dir = "/no/such/dir"}, nothing).status(),
              test::StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/dir")));
}

}  // namespace
}  // namespace hotrow
