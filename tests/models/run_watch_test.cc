// Runs that are watched: by a file, by a port, and by clients that hang.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/exposition.h"
#include "base/text_server.h"
#include "base/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/train/trainer.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/support/metrics_text.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::ExpectGrown;
using test::Parsed;
using test::StatusIs;
using test::Sum;
using test::Value;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kLongMs = 60'000;

// Clients that connect and say nothing, for as long as this lives.
class SilentClients {
 public:
  SilentClients(int32_t port, int count) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    for (int i = 0; i < count; ++i) {
      fds_.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      ::connect(fds_.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    }
  }
  ~SilentClients() {
    for (const int fd : fds_) ::close(fd);
  }
  SilentClients(const SilentClients&) = delete;

 private:
  std::vector<int> fds_;
};

int32_t FreePort() {
  const auto server = TextServer::Start({}, [] { return std::shared_ptr<const std::string>(); });
  HOTROW_EXPECT_OK(server);
  return server.ok() ? (*server)->port() : 0;
}

TEST(RunWatchTest, ARunThatIsWatchedHasTheSameBitsAndItsNumbersGrow) {
  TrainerOptions options = test::SmallRun();
  options.store = StoreKind::kSsd;
  options.store_bytes = int64_t{4} << 20;
  options.disk_bytes = int64_t{64} << 20;
  options.cache_bytes = kSmallestCache;
  options.prefetch_depth = 1;
  options.store_path = test::TempDir() + "/unwatched";
  TraceRecorder trace(/*keep_events=*/false);
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport unwatched,
                              test::RunSmall(options, {.trace = &trace}));

  options.store_path = test::TempDir() + "/watched";
  options.metrics_file = test::TempDir() + "/run.prom";
  options.metrics_port = FreePort();
  options.metrics_every = 1e-9;  // after each step
  options.disk_endurance_bytes = int64_t{1} << 40;
  TraceRecorder watched_trace(/*keep_events=*/false);
  const TextAddress at = {.port = options.metrics_port};
  std::vector<std::unique_ptr<SilentClients>> silent;
  MetricFamilies before;
  int64_t texts = 0;
  const auto watch = [&](Split split, int64_t, int64_t) {
    if (split != Split::kTrain) return absl::OkStatus();
    // Each batch finds more who hang on.
    silent.push_back(
        std::make_unique<SilentClients>(options.metrics_port, TextServer::kClientsMax));
    if (silent.size() > 4) silent.erase(silent.begin());  // descriptors are few
    absl::StatusOr<std::string> text = FetchText(at, kLongMs, kExpositionBytesMax);
    // The first text is made beside this thread.
    while (texts == 0 && absl::IsFailedPrecondition(text.status())) {
      text = FetchText(at, kLongMs, kExpositionBytesMax);
    }
    HOTROW_EXPECT_OK(text);
    if (!text.ok()) return absl::OkStatus();
    MetricFamilies now = Parsed(*text);
    ExpectGrown(before, now);
    before = std::move(now);
    ++texts;
    return absl::OkStatus();
  };
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report,
                              test::RunSmall(options, watch, {.trace = &watched_trace}));
  EXPECT_EQ(test::EndOf(report), test::EndOf(unwatched));
  EXPECT_GE(texts, test::kSmallSteps);

  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text,
                              ReadFileToString(PosixEnv(), options.metrics_file));
  const MetricFamilies last = Parsed(text);
  ExpectGrown(before, last);
  EXPECT_EQ(Value(last, "hotrow_run_state", {{"state", "finished"}}), 1);
  EXPECT_EQ(Value(last, "hotrow_steps_total"), test::kSmallSteps);
  EXPECT_EQ(Value(last, "hotrow_samples_total"), static_cast<double>(report.samples));
  EXPECT_EQ(Value(last, "hotrow_step_seconds_count"), test::kSmallSteps);
  EXPECT_EQ(Value(last, "hotrow_epochs"), 3);
  EXPECT_EQ(Value(last, "hotrow_gradient_checks_total"), test::kSmallSteps);
  EXPECT_EQ(Value(last, "hotrow_non_finite_gradients_total"), 0);
  EXPECT_EQ(Value(last, "hotrow_divergences_total"), 0);
  EXPECT_EQ(Value(last, "hotrow_validation_auc_ratio"), report.valid.auc);
  EXPECT_EQ(Value(last, "hotrow_lookups_total"),
            static_cast<double>(report.tables.tiers.front().lookups));
  EXPECT_EQ(Sum(last, "hotrow_table_lookups_total"), Value(last, "hotrow_lookups_total"));
  EXPECT_GT(Value(last, "hotrow_disk_written_bytes_total", {{"tier", "ssd"}}), 0);
  EXPECT_GT(Value(last, "hotrow_disk_endurance_used_ratio"), 0);
  EXPECT_GT(Value(last, "hotrow_stage_seconds_total", {{"stage", "update"}}), 0);
  EXPECT_GT(Value(last, "hotrow_last_step_timestamp_seconds"), 1.6e9);
  // The process ends with the run: so does the port.
  EXPECT_FALSE(FetchText(at, kLongMs, kExpositionBytesMax).ok());
}

TEST(RunWatchTest, ARunThatDivergesSaysSoInItsLastNumbers) {
  TrainerOptions options = test::SmallRun();
  options.dense_optimizer.kind = DenseOptimizerKind::kSgd;
  options.dense_optimizer.learning_rate = 1e30f;
  options.schedule = {};
  options.metrics_file = test::TempDir() + "/run.prom";
  ASSERT_THAT(test::RunSmall(options), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("step ")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text,
                              ReadFileToString(PosixEnv(), options.metrics_file));
  const MetricFamilies last = Parsed(text);
  EXPECT_EQ(Value(last, "hotrow_run_state", {{"state", "failed"}}), 1);
  EXPECT_EQ(Value(last, "hotrow_divergences_total"), 1);
}

TEST(RunWatchTest, ATakenPortEndsTheRunBeforeAnythingIsMade) {
  const auto server = TextServer::Start({}, [] { return std::shared_ptr<const std::string>(); });
  HOTROW_ASSERT_OK(server);
  TrainerOptions options = test::SmallRun();
  options.save_dir = test::TempDir() + "/model";
  options.metrics_port = (*server)->port();
  EXPECT_THAT(test::RunSmall(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--metrics_port="), HasSubstr("another process"))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool made, PosixEnv().Exists(options.save_dir));
  EXPECT_FALSE(made);
}

}  // namespace
}  // namespace hotrow
