// The part "tiers" of gpu_bench on the CPU: all of its code but the clock of a GPU's stream.

#include "bench/gpu_bench_tiers.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "cache/row_cache.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::bench {
namespace {

using test::StatusIs;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

GpuBenchSizes SizesOf(int64_t table_bytes, int64_t host_bytes) {
  GpuBenchSizes sizes;
  sizes.table_bytes = table_bytes;
  sizes.host_bytes = host_bytes;
  sizes.samples = kLookupSamples;
  sizes.warmup = 2;
  return sizes;
}

TEST(TiersPlanTest, TakesTheWholeBatchWhereThereIsRoom) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TiersPlan plan,
                              PlanTiers({.seed = 7}, SizesOf(16 * kGiB, 8 * kGiB), Device::kCuda));
  EXPECT_EQ(plan.tables * plan.samples, 1'048'570);
  EXPECT_EQ(plan.rows(), 10'000'000);
  EXPECT_EQ(plan.row_bytes, 528);  // 128 floats, the last step, up to 16 bytes
  EXPECT_EQ(plan.steps, 101);
  EXPECT_EQ(plan.seed, 7);
  HOTROW_ASSERT_OK_AND_ASSIGN(const TiersPlan quick,
                              PlanTiers({.quick = true}, SizesOf(2 * kGiB, kGiB), Device::kCuda));
  EXPECT_LT(quick.rows_per_table, plan.rows_per_table);
  EXPECT_LT(quick.steps, plan.steps);
  EXPECT_EQ(PlanTiers({.repeats = 3}, SizesOf(kGiB, kGiB), Device::kCuda)->steps, 3);
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const TiersPlan narrow,
      PlanTiers({.dims = "64,8"}, SizesOf(16 * kGiB, 8 * kGiB), Device::kCuda));
  EXPECT_EQ(narrow.dim, 64);
  EXPECT_EQ(narrow.row_bytes, 272);
  EXPECT_FALSE(PlanTiers({.dims = "7"}, SizesOf(kGiB, kGiB), Device::kCuda).ok());
}

TEST(TiersPlanTest, ShrinksToTheMemoryThatIsThere) {
  for (const int64_t table_bytes : {2 * kMiB, 128 * kMiB, kGiB, 4 * kGiB}) {
    for (const int64_t host_bytes : {kMiB, 64 * kMiB, 3 * kGiB}) {
      const auto plan = PlanTiers({}, SizesOf(table_bytes, host_bytes), Device::kCuda);
      HOTROW_ASSERT_OK(plan);
      EXPECT_LE(plan->DeviceCacheBytes(1), table_bytes);
      EXPECT_LE(plan->rows_bytes(), host_bytes);
      EXPECT_GE(plan->rows_per_table, 64);
      EXPECT_LE(plan->samples, plan->rows_per_table / 2);
    }
  }
  EXPECT_THAT(PlanTiers({}, SizesOf(kMiB / 8, kGiB), Device::kCuda).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("raise --device_bytes")));
  EXPECT_THAT(PlanTiers({}, SizesOf(kGiB, 4096), Device::kCuda).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--host_bytes")));
}

// What the staging of rows leaves of the budget has as many ways as rows are to have a place.
TEST(TiersPlanTest, BudgetsHoldTheirShareOfTheRows) {
  for (const int64_t rows_per_table : {2'000, 200'000, 1'000'000}) {
    TiersPlan plan;
    plan.rows_per_table = rows_per_table;
    plan.row_bytes = 528;
    for (const auto& [share, want] : std::map<double, double>{{0.8, 0.8}, {1.0, 1.125}}) {
      const int64_t budget = plan.DeviceCacheBytes(share);
      const int64_t staging = std::min<int64_t>(budget / 16, 65'536 * plan.row_bytes);
      const RowCacheStats size = RowCache::SizeForBudget(budget - staging, plan.row_bytes);
      EXPECT_NEAR(static_cast<double>(size.ways) / static_cast<double>(plan.rows()), want, 0.02)
          << rows_per_table;
    }
  }
}

TEST(TiersPlanTest, CountsWhatCrossesTheBusBesideRows) {
  // Ids 24, offsets 32; a miss 86, one that the device has found 2.
  EXPECT_EQ(TierStepBytes(3, 0), 56);
  EXPECT_EQ(TierStepBytes(3, 2), 56 + 172);
  EXPECT_EQ(TierStepBytes(3, 2, 5), 56 + 172 + 10);
}

TEST(TiersPlanTest, PercentilesAreOfTheSamples) {
  EXPECT_EQ(Percentile({7}, 0.99), 7);
  EXPECT_EQ(Percentile({3, 1, 2}, 0.5), 2);
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  EXPECT_EQ(Percentile(hundred, 0.99), 99);
  hundred.push_back(101);
  EXPECT_EQ(Percentile(hundred, 0.99), 100);
  EXPECT_EQ(Percentile(hundred, 0), 1);
  EXPECT_EQ(Percentile(hundred, 1), 101);
}

class TiersTest : public testing::Test {
 protected:
  // 20,000 rows of a small width in 4 tables.
  TiersTest() {
    TiersPlan& plan = run_.plan;
    plan.shares = {0.8, 1.0};
    plan.tables = 4;
    plan.dim = 16;
    plan.row_bytes = 80;
    plan.rows_per_table = 5000;
    plan.samples = 1000;
    plan.steps = 5;
    plan.warmup = 2;
    plan.seed = 3;
    plan.store_bytes = 64 * kMiB;
    plan.device_index_bytes = 2 * kMiB;
    plan.ssd_store_bytes = 16 * kMiB;
    plan.disk_bytes = 64 * kMiB;
    plan.host_cache_bytes = kMiB;
    plan.needs_direct_io = false;  // wherever the test runs
    run_.ctx.pool = &pool_;
    run_.path = test::TempDir();
    run_.bus_bytes_per_second = 1e9;
    run_.add = [this](nlohmann::ordered_json json, const std::string& line) {
      figures_.push_back(std::move(json));
      lines_.push_back(line);
    };
  }

  ThreadPool pool_{2};
  TiersRun run_;
  std::vector<nlohmann::ordered_json> figures_;
  std::vector<std::string> lines_;
};

TEST_F(TiersTest, MeasuresLookupsAndTrainingOverEachStore) {
  HOTROW_ASSERT_OK(MeasureTiers(run_));
  // Shares, and the smaller one with an index too, and over an SSD; each with and without training.
  ASSERT_EQ(figures_.size(), 10u);
  for (size_t i = 0; i < figures_.size(); ++i) {
    const nlohmann::ordered_json& figure = figures_[i];
    SCOPED_TRACE(figure.dump());
    const bool ssd = i >= 6;
    const bool indexed = i == 4 || i == 5;
    const double share = i / 2 == 0 || i / 2 == 3 ? 1.0 : 0.8;
    const bool training = i % 2 == 1;
    EXPECT_EQ(figure["part"], "tiers");
    EXPECT_EQ(figure["store"], ssd ? "ssd" : "memory");
    EXPECT_EQ(figure["cache_share"], share);
    EXPECT_EQ(figure["training"], training);
    // All rows have been in the store.
    EXPECT_EQ(figure["known_share"], indexed ? 1.0 : 0.0);
    EXPECT_EQ(figure["limit_per_second"], 1e9);
    EXPECT_GT(figure["per_second"], 0);
    EXPECT_GT(figure["median_seconds"], 0);
    EXPECT_GE(figure["p99_seconds"], figure["median_seconds"]);
    EXPECT_GT(figure["lookup_alone_median_seconds"], 0);
    EXPECT_LT(figure["lookup_alone_median_seconds"], figure["median_seconds"]);
    const auto unique = figure["unique_keys"].get<double>();
    const auto misses = figure["misses"].get<double>();
    const auto in = figure["row_bytes_in"].get<double>();
    const auto out = figure["row_bytes_out"].get<double>();
    EXPECT_GT(unique, 400);
    EXPECT_LT(unique, 4000);
    EXPECT_DOUBLE_EQ(in, misses * 80);
    EXPECT_DOUBLE_EQ(figure["amount"].get<double>(),
                     in + out + figure["array_bytes"].get<double>());
    if (share == 1.0) {
      EXPECT_EQ(misses, 0);  // all rows are there
      EXPECT_EQ(figure["disk_bytes_read"], 0);
    } else {
      // The coldest fifth of the rows, which a step asks for now and then.
      EXPECT_GT(misses, 0);
      EXPECT_LT(misses, 0.3 * unique);
    }
    // A miss takes the place of a row, which has been trained since it was written, or has not.
    EXPECT_LE(out, training ? in : 0);
    EXPECT_GE(out, training ? 0.9 * in : 0);
    EXPECT_EQ(figure["host_cache_bytes"], ssd ? kMiB : 0);
    // These tables are smaller than those of the target, and every line says how large they are.
    EXPECT_FALSE(figure.contains("target_seconds"));
    EXPECT_EQ(lines_[i].find("not those of the target") != std::string::npos, i == 2 || i == 4);
    EXPECT_THAT(lines_[i],
                AllOf(HasSubstr("p99"), HasSubstr("misses"), HasSubstr(" rows a table")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(run_.path));  // the stores are gone
}

// What a stream's clock says is taken, and what it cannot do ends the run.
TEST_F(TiersTest, TimesLookupsByTheTimerThatItGets) {
  class Timer final : public StreamTimer {
   public:
    absl::Status Begin() override { return open ? absl::InternalError("begun") : Set(true); }
    absl::Status End() override { return open ? Set(false) : absl::InternalError("ended"); }
    absl::StatusOr<double> Seconds() override {
      if (broken) return absl::InternalError("no clock");
      return 0.25 * static_cast<double>(++asked);
    }
    absl::Status Set(bool value) {
      open = value;
      return absl::OkStatus();
    }
    bool open = false;
    bool broken = false;
    int asked = 0;
  } timer;
  run_.timer = &timer;
  run_.plan.disk_bytes = INT64_MAX / 2;  // no SSD
  HOTROW_ASSERT_OK(MeasureTiers(run_));
  EXPECT_EQ(timer.asked, 6 * 5);  // measured steps alone
  EXPECT_EQ(figures_[0]["lookup_alone_median_seconds"], 0.75);
  EXPECT_EQ(figures_[0]["lookup_alone_p99_seconds"], 1.25);
  timer.broken = true;
  EXPECT_THAT(MeasureTiers(run_), StatusIs(absl::StatusCode::kInternal, HasSubstr("no clock")));
}

TEST_F(TiersTest, SkipsTheSsdWithALine) {
  run_.plan.disk_bytes = INT64_MAX / 2;
  run_.plan.steps = 1;
  HOTROW_ASSERT_OK(MeasureTiers(run_));
  ASSERT_EQ(figures_.size(), 7u);
  EXPECT_EQ(figures_[6]["store"], "ssd");
  EXPECT_THAT(figures_[6]["skipped"].get<std::string>(),
              AllOf(HasSubstr(run_.path), HasSubstr("GiB free"), HasSubstr("--path")));
  EXPECT_THAT(lines_[6], HasSubstr("ssd skipped: "));
  EXPECT_FALSE(figures_[6].contains("per_second"));
}

TEST_F(TiersTest, NamesADirectoryThatIsNotThere) {
  run_.path += "/absent";
  EXPECT_THAT(WhyNoSsd(run_.plan, run_.path).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/absent")));
}

// Whether there is direct I/O depends on where the test runs; what is asked is the file system.
TEST_F(TiersTest, AsksTheFileSystemForDirectIo) {
  run_.plan.needs_direct_io = true;
  const absl::StatusOr<std::string> why = WhyNoSsd(run_.plan, run_.path);
  HOTROW_ASSERT_OK(why);
  if (!why->empty()) {
    EXPECT_THAT(*why, HasSubstr("without direct I/O"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(run_.path));
}

TEST_F(TiersTest, ACacheThatCannotHoldAStepIsRefused) {
  run_.plan.samples = run_.plan.rows_per_table;
  run_.plan.steps = 1;
  EXPECT_THAT(MeasureTiers(run_),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cache.device_bytes")));
}

}  // namespace
}  // namespace hotrow::bench
