#include "tools/top_screen.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/exposition_reader.h"
#include "embedding/stats.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/train/run_metrics.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tools/serve/serve_metrics.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

MetricFamilies Parsed(const std::string& text) {
  auto families = ParseExposition(text);
  HOTROW_EXPECT_OK(families);
  return families.ok() ? *families : MetricFamilies();
}

// A run over a disk, `seconds` after it began.
RunMetrics At(int64_t seconds) {
  RunMetrics metrics;
  metrics.model = "dlrm";
  metrics.device = "cpu";
  metrics.store = "ssd";
  metrics.state = RunState::kTraining;
  metrics.start_unix_seconds = 1'700'000'000;
  metrics.unix_seconds = metrics.start_unix_seconds + static_cast<double>(seconds);
  metrics.steps = 10 * seconds;
  metrics.samples = 20'480 * seconds;
  metrics.epochs = 0.25;
  metrics.loss = 0.4567;
  for (int64_t i = 0; i < metrics.steps; ++i) metrics.step_times.Add(8'000'000);
  metrics.stages = {{.name = "lookup", .ms = 250.0 * static_cast<double>(seconds)},
                    {.name = "forward", .ms = 500.0 * static_cast<double>(seconds)}};
  metrics.disk_endurance_bytes = int64_t{600} * 1'000'000'000'000;
  TierStats& cache = metrics.tables.tiers.emplace_back();
  cache.name = "cache";
  cache.lookups = 1'000'000 * seconds;
  cache.lookup_hits = 900'000 * seconds;
  cache.unique_keys = 1000 * seconds;
  cache.unique_hits = 500 * seconds;
  cache.used_bytes = cache.budget_bytes = int64_t{512} << 20;
  cache.evictions = 1500 * seconds;
  TierStats& ssd = metrics.tables.tiers.emplace_back();
  ssd.name = "ssd";
  ssd.lookups = 100'000 * seconds;
  ssd.lookup_hits = 95'000 * seconds;
  ssd.bytes_written = (int64_t{3} << 20) * seconds;
  ssd.payload_bytes_written = (int64_t{2} << 20) * seconds;
  ssd.disk_used_bytes = int64_t{1} << 30;
  ssd.SetWriteAmplification();
  metrics.tables.tables = {
      {.name = "small", .lookups = 10 * seconds},
      {.name = "large", .lookups = 999'990 * seconds, .cache_misses = 100'000 * seconds}};
  return metrics;
}

TEST(TopScreenTest, ShowsAServer) {
  ServeMetrics metrics;
  ServeState state = {.model_name = "dlrm", .step = 304, .rows = 5000, .ready = true};
  state.queue_requests_max = 64;
  const MetricFamilies before = Parsed(metrics.Text(state));
  for (int i = 0; i < 40; ++i) {
    metrics.CountScored({.queue_ns = 500'000, .score_ns = 1'000'000, .total_ns = 2'000'000}, 100);
    metrics.CountBatch(1, 100);
    metrics.CountReply(200);
  }
  metrics.CountReply(400);
  const MetricFamilies now = Parsed(metrics.Text(state));
  const std::string screen = TopScreen(before, now, 2, 20);
  EXPECT_THAT(screen, AllOf(HasSubstr("dlrm served, of step 304, 5,000 rows in 0 B: ready"),
                            HasSubstr("20 requests/s, 2.0 k samples/s; 0 of 64 places"),
                            HasSubstr("2 ms a request, 0.5 ms of them waiting, 1 ms scoring"),
                            HasSubstr("100 samples a batch"),
                            HasSubstr("replies: 40 of 200, 1 of 400"), Not(HasSubstr("BEHIND"))));
  EXPECT_THAT(TopScreen({}, now, 0, 20), HasSubstr("40 requests, 4.0 k samples so far"));
  state.follow.emplace().newest_step = 310;
  EXPECT_THAT(TopScreen({}, Parsed(metrics.Text(state)), 0, 20), HasSubstr("BEHIND BY 6 STEPS"));
}

TEST(TopScreenTest, ShowsRatesBetweenTwoStates) {
  const MetricFamilies before = Parsed(MetricsText(At(10)));
  const MetricFamilies now = Parsed(MetricsText(At(12)));
  const std::string screen = TopScreen(before, now, 2, 20);
  EXPECT_THAT(screen,
              AllOf(HasSubstr("dlrm on the cpu over ssd: training"),
                    HasSubstr("step 120, epoch 0.250, loss 0.4567"),
                    HasSubstr("20.5 k samples/s, 10 steps/s, 8 ms a step, 99 % within 10 ms"),
                    HasSubstr("1.00 M lookups/s, 90.0 % found in memory, 0.5 % of new keys")));
  EXPECT_THAT(screen,
              AllOf(HasSubstr("512.0 MiB"), HasSubstr("1.5 k"), HasSubstr("3.0 MiB/s written"),
                    HasSubstr("amplification 1.50; 1.0 GiB of no limit"), HasSubstr("endurance: "),
                    HasSubstr("years")));
  EXPECT_THAT(screen, HasSubstr("forward 50.0 %, lookup 25.0 %"));
  // The table with the most lookups comes first.
  EXPECT_LT(screen.find("large"), screen.find("small"));
  for (const absl::string_view line : absl::StrSplit(screen, '\n'))
    EXPECT_LE(line.size(), 100U) << line;
  const std::string one = TopScreen(before, now, 2, 1);
  EXPECT_THAT(one, AllOf(HasSubstr("and 1 more tables"), Not(HasSubstr("small"))));
}

TEST(TopScreenTest, TheFirstScreenHasRatesSinceTheBeginning) {
  const std::string screen = TopScreen({}, Parsed(MetricsText(At(10))), 10, 20);
  EXPECT_THAT(screen, AllOf(HasSubstr("20.5 k samples/s"), HasSubstr("1.00 M lookups/s")));
}

// The totals of steps and samples begin with those of the checkpoint.
TEST(TopScreenTest, TheFirstScreenOfARunThatWentOnHasTheRatesOfItsProcess) {
  RunMetrics metrics = At(10);
  metrics.steps *= 1000;
  metrics.samples *= 1000;
  EXPECT_THAT(TopScreen({}, Parsed(MetricsText(metrics)), 10, 20),
              HasSubstr("20.5 k samples/s, 10 steps/s"));
}

TEST(TopScreenTest, ACounterThatFellIsOfANewProcess) {
  const MetricFamilies before = Parsed(MetricsText(At(1000)));
  EXPECT_THAT(TopScreen(before, Parsed(MetricsText(At(2))), 2, 20), HasSubstr("20.5 k samples/s"));
}

TEST(TopScreenTest, TextsOfOtherTrainersHaveTheirTablesAlone) {
  const std::string screen = TopScreen({}, Parsed(MetricsText(At(2).tables)), 2, 20);
  EXPECT_THAT(screen, AllOf(HasSubstr("1.00 M lookups/s"), HasSubstr("large"),
                            Not(HasSubstr("epoch")), Not(HasSubstr("samples/s"))));
  EXPECT_EQ(TopScreen({}, {}, 1, 20), "no numbers of hotrow yet\n");
}

TEST(TopScreenTest, GradientsThatAreNotFiniteAreHardToMiss) {
  RunMetrics metrics = At(2);
  EXPECT_THAT(TopScreen({}, Parsed(MetricsText(metrics)), 2, 20), Not(HasSubstr("NOT FINITE")));
  metrics.non_finite_gradients = 1;
  EXPECT_THAT(TopScreen({}, Parsed(MetricsText(metrics)), 2, 20), HasSubstr("NOT FINITE"));
}

TEST(TopScreenTest, NamesOfTablesCannotCommandTheTerminal) {
  RunMetrics metrics = At(2);
  metrics.tables.tables[0].name = "\x1b[2Jevil\n\x7f\xc2\x9b\xc3\xbc";
  metrics.tables.tables[1].name = std::string(80, 'x');
  const std::string screen = TopScreen({}, Parsed(MetricsText(metrics)), 2, 20);
  EXPECT_THAT(screen, AllOf(HasSubstr("?[2Jevil???\xc3\xbc"), Not(HasSubstr("\x1b")),
                            Not(HasSubstr("\x7f")), Not(HasSubstr("\xc2\x9b")),
                            Not(HasSubstr(std::string(25, 'x')))));
}

TEST(TopStateTest, SaysWhetherTheRunIsOver) {
  RunMetrics metrics = At(3);
  EXPECT_EQ(TopStateOf(Parsed(MetricsText(metrics))).name, "training");
  EXPECT_FALSE(TopStateOf(Parsed(MetricsText(metrics))).over());
  EXPECT_EQ(TopStateOf(Parsed(MetricsText(metrics))).unix_seconds, 1'700'000'003);
  metrics.state = RunState::kFailed;
  EXPECT_TRUE(TopStateOf(Parsed(MetricsText(metrics))).over());
  EXPECT_FALSE(TopStateOf({}).over());
}

TEST(TopSourceTest, IsAPortAnAddressOrAFile) {
  const auto server = [](const std::string& text) {
    const auto source = ParseTopSource(text);
    HOTROW_EXPECT_OK(source);
    if (!source.ok()) return std::string();
    EXPECT_EQ(source->file, "");
    return source->server.address + " " + std::to_string(source->server.port) + " " +
           source->server.path;
  };
  EXPECT_EQ(server("9400"), "127.0.0.1 9400 /metrics");
  EXPECT_EQ(server("10.0.0.7:9400"), "10.0.0.7 9400 /metrics");
  EXPECT_EQ(server("[::1]:9400"), "::1 9400 /metrics");
  EXPECT_EQ(server("http://localhost:9400/numbers"), "localhost 9400 /numbers");
  for (const std::string file : {"run.prom", "/tmp/9400", "./9400", "run:prom", "/tmp/run:9400"}) {
    const auto source = ParseTopSource(file);
    HOTROW_ASSERT_OK(source);
    EXPECT_EQ(source->file, file);
  }
  for (const std::string bad : {"", "http://host", "0", "70000", "host:0"}) {
    EXPECT_THAT(ParseTopSource(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("port")))
        << bad;
  }
}

}  // namespace
}  // namespace hotrow
