#include <algorithm>
#include <string>

#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tools/calibration/calibration.h"
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
  profile.dense_flops_16 = 5e11;
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
  EXPECT_EQ(in.dense_flops_16, 5e11);
  EXPECT_EQ(in.dense_flops_middle, 2e11);
  EXPECT_EQ(in.ssd_read_ios_per_second, 50'000);
  EXPECT_EQ(in.engine.unique_seconds_per_lookup, 1e-8);
  EXPECT_EQ(in.engine.update.seconds_per_byte, 5e-10);
  EXPECT_EQ(in.engine.evict.seconds, 5e-8);
  EXPECT_EQ(in.engine.miss_busy, 1);
  // What was not measured is left out, and stays so.
  EXPECT_EQ(in.engine.step_beside, 0);
  EXPECT_FALSE(in.engine.ssd_wait_measured());
  EXPECT_EQ(in.dense_small.narrow, 0);
  EXPECT_THAT(text, testing::Not(HasSubstr("beside:")));
  EXPECT_TRUE(in.calibrated());
  EXPECT_EQ(HardwareProfileText(in), [&] {
    HardwareProfile same = out;
    same.machine = in.machine;
    return HardwareProfileText(same);
  }());
}

TEST(HardwareFileTest, FiguresOfSmallBatchesAndOfWorkBesideWorkAreKept) {
  HardwareProfile out = Measured();
  out.dense_small = {1e9, 2e9, 3e9, 4e9, 5e9};
  out.dense_middle = {6e9, 7e9, 8e9, 9e9, 1e10};
  out.engine.step_beside = 1.25;
  out.engine.disk_beside = 0.5;
  out.engine.ssd_wait = {1e-7, 2e-10};
  const std::string text = HardwareProfileText(out);
  EXPECT_THAT(text, AllOf(HasSubstr("\ndense_flops_narrow_64: 1e+09"),
                          HasSubstr("\ndot_flops_long_256: 1e+10"),
                          HasSubstr("\nstep_beside: 1.25 "), HasSubstr("# s a step takes longer")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const HardwareProfile in, ParseHardwareProfile(text, "m.yaml"));
  EXPECT_EQ(in.dense_small.middle, 2e9);
  EXPECT_EQ(in.dense_small.dot_short, 4e9);
  EXPECT_EQ(in.dense_middle.wide, 8e9);
  EXPECT_EQ(in.dense_middle.dot_long, 1e10);
  EXPECT_EQ(in.engine.step_beside, 1.25);
  EXPECT_EQ(in.engine.disk_beside, 0.5);
  EXPECT_EQ(in.engine.ssd_wait.seconds, 1e-7);
  EXPECT_EQ(in.engine.ssd_wait.seconds_per_byte, 2e-10);
  EXPECT_TRUE(in.engine.ssd_wait_measured());
}

TEST(HardwareFileTest, AGpuKeepsItsFigures) {
  HardwareProfile out = Measured();
  out.hbm_bytes = 8e10;
  out.hbm_bytes_per_second = 3e12;
  out.host_link_bytes_per_second = 5e10;
  out.activation_bytes = 30;
  out.step_seconds = 2e-4;
  HOTROW_ASSERT_OK_AND_ASSIGN(const HardwareProfile in,
                              ParseHardwareProfile(HardwareProfileText(out), "gpu.yaml"));
  EXPECT_EQ(in.hbm_bytes, 8e10);
  EXPECT_EQ(in.hbm_bytes_per_second, 3e12);
  EXPECT_EQ(in.host_link_bytes_per_second, 5e10);
  EXPECT_EQ(in.activation_bytes, 30);
  EXPECT_EQ(in.step_seconds, 2e-4);
}

TEST(HardwareFileTest, DrivesMultiplyTheDiskAlone) {
  const std::string text = HardwareProfileText(Measured());
  HOTROW_ASSERT_OK_AND_ASSIGN(const HardwareProfile in,
                              ParseHardwareProfile("drives: 4\n" + text, "m.yaml"));
  EXPECT_EQ(in.ssd_bytes, 4e12);
  EXPECT_EQ(in.ssd_read_ios_per_second, 200'000);
  EXPECT_EQ(in.ssd_read_bytes_per_second, 8e8);
  EXPECT_EQ(in.ssd_write_bytes_per_second, 4e9);
  EXPECT_EQ(in.dram_bytes_per_second, 2e10);
  EXPECT_EQ(in.engine.ssd_miss.seconds, 1e-6);
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
  expect(head + "drives: 1.5\n", "2:9", HasSubstr("whole number in [1, 64]"));
  expect(head + "step_beside: 0\n", "2:14", AllOf(HasSubstr("step_beside"), HasSubstr("above 0")));
  expect(head + "disk_beside: -1\n", "2:14", HasSubstr("disk_beside"));
  expect(head + "ssd_wait_seconds: long\n", "2:19", HasSubstr("ssd_wait_seconds"));
  expect(head + "dense_flops_wide_64: nan\n", "2:22", HasSubstr("dense_flops_wide_64"));
  expect(head + "dense_flops_wide_32: 1\n", "2:22", HasSubstr("no such field"));
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

// For small batches the time of a step is a line in the samples, through what was measured.
TEST(HardwareFileTest, SmallBatchesTakeLongerForASample) {
  HardwareProfile profile = Measured();
  const double large = profile.LayerFlops(64, 64);
  EXPECT_EQ(profile.LayerFlops(64, 64, 64), large);  // not measured
  profile.dense_small = {large / 4, 4e10, 6e10, 2e9, 1e10};
  profile.dense_middle = {large / 2, 1e11, 1.5e11, 5e9, 2e10};
  const auto step = [&](double samples) { return samples / profile.LayerFlops(64, 64, samples); };
  EXPECT_NEAR(profile.LayerFlops(64, 64, 64), large / 4, 1);
  EXPECT_NEAR(profile.LayerFlops(64, 64, 256), large / 2, 1);
  EXPECT_NEAR(profile.LayerFlops(64, 64, 2048), large, 1);
  EXPECT_EQ(profile.LayerFlops(64, 64, 65536), large);
  EXPECT_NEAR(step(160), (step(64) + step(256)) / 2, 1e-15);
  EXPECT_NEAR(step(1152), (step(256) + step(2048)) / 2, 1e-15);
  // Below the smallest: the line goes on, a step of 16 takes more than a fourth of one of 64.
  EXPECT_NEAR(step(16), step(64) - 48 * (step(256) - step(64)) / 192, 1e-15);
  // A layer of few operations costs a step what one 64 wide does, beside its operations.
  const double beside = 64 * 64 * step(64) - 64 * 64 * 64 / large;
  EXPECT_NEAR(8 * 64 / profile.LayerFlops(8, 1, 64), 8 * 64 / large + beside, 1e-12);
  EXPECT_NEAR(profile.DotFlops(16, 64), 2e9, 1);
  EXPECT_NEAR(profile.DotFlops(128, 256), 2e10, 1);
  EXPECT_EQ(profile.DotFlops(16, 2048), 1e10);
  // Ranks share them.
  EXPECT_NEAR(profile.SharedBy(2).LayerFlops(64, 64, 64), large / 8, 1);
  EXPECT_NEAR(profile.SharedBy(2).DotFlops(16, 64), 1e9, 1);
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
  HOTROW_EXPECT_OK(spec);
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
  const double misses = plan.traffic.miss_rows;
  EXPECT_GT(misses, 500);
  EXPECT_NEAR(StageSeconds(plan, "sort ids and find the distinct ones"), 1000 * 1e-8, 1e-12);
  EXPECT_NEAR(StageSeconds(plan, "find rows in the cache"),
              (plan.traffic.unique_keys - misses) * (3e-8 + row_bytes * 1e-10), 1e-9);
  EXPECT_NEAR(StageSeconds(plan, "read misses"), misses * (1e-7 + row_bytes * 2e-10), 1e-9);
  EXPECT_NEAR(StageSeconds(plan, "write evicted rows"), misses * (5e-8 + row_bytes * 3e-10), 1e-9);
  EXPECT_NEAR(StageSeconds(plan, "pool"), 1000 * (1e-9 + 64 * 1e-11), 1e-12);
  EXPECT_NEAR(StageSeconds(plan, "update rows"),
              plan.traffic.unique_keys * (1e-8 + row_bytes * 5e-10), 1e-9);
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
  HOTROW_EXPECT_OK(plan);
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
  EXPECT_NEAR(StageSeconds(two, "reads of the disk"), two.disk.ios_read / 50'000, 1e-9);
  EXPECT_NEAR(StageSeconds(two, "read misses") + StageSeconds(two, "wait for reads of the disk"),
              two.disk.ios_read / 50'000, 1e-9);
  // Two steps in flight: one is read while the next is placed.
  const double place = ChainSeconds(two, "placing rows ahead");
  const double read = ChainSeconds(two, "reading rows ahead");
  EXPECT_GT(place, 0);
  EXPECT_NEAR(read, two.disk.ios_read / 50'000, 1e-9);
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

// Chains on the same processors hold each other up by what was measured for each second of work.
TEST(CalibratedPlanTest, ChainsHoldEachOtherUp) {
  PlanSpec spec = Spec("hardware: m.yaml\nstore: memory\ncache_bytes: 16MiB\nprefetch_depth: 1\n");
  spec.hardware.engine.update.seconds = 1e-6;
  const Plan before = PlanOf(spec);
  spec.hardware.engine.disk_beside = 2;  // there is no disk
  EXPECT_EQ(PlanOf(spec).step_seconds, before.step_seconds);
  spec.hardware.engine.step_beside = 2;
  const Plan plan = PlanOf(spec);
  const double step = ChainSeconds(before, "the step");
  const double work = ChainSeconds(before, "all work on the processors");
  EXPECT_EQ(before.step_seconds, work);
  EXPECT_EQ(ChainSeconds(plan, "the step"), step);
  EXPECT_NEAR(plan.chains.front().held_up, 2 * (work - step), 1e-12);
  EXPECT_NEAR(plan.step_seconds, step + 2 * (work - step), 1e-12);
  EXPECT_THAT(PlanText(spec, plan), HasSubstr("held up"));
  EXPECT_THAT(PlanJson(spec, plan), HasSubstr("\"held_up_seconds\""));
  // No figure makes more of the processors than there is.
  spec.hardware.engine.step_beside = 0.5;
  EXPECT_EQ(PlanOf(spec).step_seconds, work);
}

// What reads from a disk is held up by the step, and deals with rows between reads where that was
// measured.
TEST(CalibratedPlanTest, ReadingFromADiskIsMeasuredByItself) {
  for (const int depth : {1, 2}) {
    PlanSpec spec = Spec("hardware: m.yaml\nstore: ssd\ncache_bytes: 16MiB\n");
    spec.prefetch_depth = depth;
    spec.hardware.ssd_write_bytes_per_second = 1e12;
    const char* const chain = depth == 1 ? "placing and reading rows ahead" : "reading rows ahead";
    const Plan before = PlanOf(spec);
    spec.hardware.engine.ssd_wait = {1e-7, 1e-9};
    const Plan waits = PlanOf(spec);
    const double reads = waits.disk.ios_read / 50'000;
    EXPECT_NEAR(StageSeconds(before, "wait for reads of the disk"),
                reads - StageSeconds(before, "read misses"), 1e-12);
    EXPECT_NEAR(StageSeconds(waits, "wait for reads of the disk"),
                reads + waits.traffic.miss_rows * (1e-7 + 80e-9), 1e-9);
    EXPECT_NEAR(ChainSeconds(waits, chain) - ChainSeconds(before, chain),
                StageSeconds(before, "read misses") + waits.traffic.miss_rows * (1e-7 + 80e-9),
                1e-9);
    spec.hardware.engine.disk_beside = 3;
    const Plan held = PlanOf(spec);
    // The step's own work and, with two steps in flight, what places rows.
    double others = 0;
    for (const PlanChain& of : held.chains) {
      if (of.name == chain) others = of.held_up / 3;
      EXPECT_TRUE(of.name == chain || of.held_up == 0) << of.name;
    }
    EXPECT_GE(others, ChainSeconds(held, "the step") * 0.999);
    EXPECT_LT(others, ChainSeconds(held, "all work on the processors"));
    EXPECT_NEAR(held.step_seconds, ChainSeconds(held, chain) + 3 * others, 1e-12);
  }
}

TEST(CalibratedPlanTest, SmallBatchesPayForTheirLayers) {
  PlanSpec spec = Spec("hardware: m.yaml\nstore: memory\ncache_bytes: 0\n");
  spec.model.top = {64, 1};
  spec.batch_size = 64;
  const double before = StageSeconds(PlanOf(spec), "dense layers");
  spec.hardware.dense_small = {1e10, 1e10, 1e10, 1e9, 1e9};
  spec.hardware.dense_middle = {5e10, 5e10, 5e10, 5e9, 5e9};
  EXPECT_GT(StageSeconds(PlanOf(spec), "dense layers"), 2 * before);
  spec.batch_size = 2048;
  const double large = StageSeconds(PlanOf(spec), "dense layers");
  EXPECT_NEAR(large, 32 * before, 1e-12);
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
  spec.data_bytes_per_sample = 157;
  spec.hardware.ssd_read_bytes_per_second = 1e9;
  EXPECT_NEAR(StageSeconds(PlanOf(spec), "read the data from the disk"), 1000 * 157e-9, 1e-12);
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
  EXPECT_EQ(shared.exchange.total, shared.exchange.node);
  EXPECT_EQ(apart.exchange.total, apart.exchange.network);
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
  // With a million rows, used alike, each of ten steps finds nearly 1,000 new ones.
  const Plan run = PlanOf(spec);
  EXPECT_NEAR(run.traffic.new_rows, 995, 6);
  EXPECT_NEAR(StageSeconds(run, "make new rows"), run.traffic.new_rows * (1e-6 + 80e-9), 1e-9);
}

TEST(CalibratedPlanTest, AFileStandsWhereAProfileStandsAndItsDiskCounts) {
  EXPECT_EQ(Spec("hardware: m.yaml\n").hardware.ssd_bytes, 1e12);
  EXPECT_EQ(Spec("hardware: {profile: m.yaml, dram: 8GB}\n").hardware.dram_bytes, 8e9);
  EXPECT_EQ(Spec("hardware: {profile: m.yaml, disk: sata}\n").hardware.ssd_bytes, 3.84e12);
  // One's own figure counts for all widths.
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
