// Runs that are watched: by a file, by a port, and by clients that hang.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/exposition.h"
#include "base/exposition_reader.h"
#include "base/fetch_text.h"
#include "base/matrix_view.h"
#include "base/text_server.h"
#include "base/trace.h"
#include "comm/thread_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/train/non_finite_impl.h"
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

// --- Several ranks

std::vector<absl::Status> RunOnTwoRanks(const TrainerOptions& options) {
  std::vector<absl::Status> said(2);
  RunOnThreads(2, {.timeout_seconds = 60}, [&](Communicator& communicator) {
    TrainerOptions mine = options;
    mine.communicator = &communicator;
    absl::Status& status = said[static_cast<size_t>(communicator.rank())];
    status = test::RunSmall(mine).status();
    return status;
  });
  return said;
}

TEST(RunWatchRanksTest, EachRankTellsOfItselfAndTheirSumIsTheRun) {
  const std::string dir = test::TempDir();
  TrainerOptions options = test::SmallRun();
  options.metrics_file = dir + "/run.prom";
  options.metrics_every = 1e-9;
  for (const absl::Status& status : RunOnTwoRanks(options)) HOTROW_EXPECT_OK(status);
  double lookups = 0;
  for (const std::string rank : {"0", "1"}) {
    SCOPED_TRACE(rank);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text,
                                ReadFileToString(PosixEnv(), dir + "/run.rank" + rank + ".prom"));
    const MetricFamilies last = Parsed(text);
    EXPECT_EQ(Value(last, "hotrow_run_state", {{"rank", rank}, {"state", "finished"}}), 1);
    EXPECT_EQ(Value(last, "hotrow_run_ranks", {{"rank", rank}}), 2);
    EXPECT_EQ(Value(last, "hotrow_steps_total", {{"rank", rank}}), test::kSmallSteps);
    EXPECT_EQ(Value(last, "hotrow_samples_total", {{"rank", rank}}), 3 * 480);
    EXPECT_GT(Value(last, "hotrow_exchange_bytes_total", {{"rank", rank}, {"what", "rows"}}), 0);
    const double mine = Sum(last, "hotrow_table_lookups_total");
    EXPECT_GT(mine, 0);
    lookups += mine;
  }
  // The numbers of a run of one rank.
  options.metrics_file = dir + "/alone.prom";
  HOTROW_ASSERT_OK(test::RunSmall(options));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text,
                              ReadFileToString(PosixEnv(), options.metrics_file));
  EXPECT_EQ(lookups, Sum(Parsed(text), "hotrow_table_lookups_total"));
}

TEST(RunWatchRanksTest, APortThatOneRankCannotHaveEndsAll) {
  // Rank 1 listens at the port behind that of rank 0.
  const auto taken = TextServer::Start({}, [] { return std::shared_ptr<const std::string>(); });
  HOTROW_ASSERT_OK(taken);
  TrainerOptions options = test::SmallRun();
  options.metrics_port = (*taken)->port() - 1;
  const std::vector<absl::Status> said = RunOnTwoRanks(options);
  EXPECT_THAT(said[1],
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--metrics_port=" + std::to_string((*taken)->port())),
                             HasSubstr("another process"))));
  EXPECT_FALSE(said[0].ok());
  // Unless somebody has that of rank 0, too.
  if (!absl::IsFailedPrecondition(said[0])) {
    EXPECT_THAT(said[0].message(), AllOf(HasSubstr("rank 1"), HasSubstr("another process")));
  }
}

// --- Numbers that are not finite

TEST(AllFiniteTest, SeesANumberWhereverItLies) {
  using Limits = std::numeric_limits<float>;
  for (const size_t size : {0, 1, 63, 64, 65, 200}) {
    std::vector<float> numbers(size);
    for (size_t i = 0; i < size; ++i) {
      numbers[i] = i % 3 == 0   ? Limits::max()
                   : i % 3 == 1 ? Limits::lowest()
                                : Limits::denorm_min();
    }
    EXPECT_TRUE(AllFinite(numbers)) << size;
    for (size_t i = 0; i < size; ++i) {
      for (const float bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
        const float good = std::exchange(numbers[i], bad);
        EXPECT_FALSE(AllFinite(numbers)) << bad << " at " << i << " of " << size;
        numbers[i] = good;
      }
    }
  }
}

TEST(AllFiniteTest, OfAMatrixSeesItsColumnsAlone) {
  std::vector<float> numbers(static_cast<size_t>(3 * 100), 1.0f);
  numbers[150] = std::numeric_limits<float>::infinity();  // row 1, column 50
  const MatrixView<const float> all(numbers.data(), 3, 100);
  EXPECT_FALSE(AllFinite(all));
  EXPECT_FALSE(AllFinite(all.Columns({.first = 50, .count = 50})));
  EXPECT_TRUE(AllFinite(all.Columns({.first = 0, .count = 50})));
  EXPECT_TRUE(AllFinite(all.Rows(2, 1)));
  EXPECT_TRUE(AllFinite(MatrixView<const float>()));
}

}  // namespace
}  // namespace hotrow
