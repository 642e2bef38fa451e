// The numbers of a run: their text, and how they come to a file and a port beside the run.

#include "models/train/run_metrics.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/exposition.h"
#include "base/exposition_reader.h"
#include "base/fetch_text.h"
#include "base/text_server.h"
#include "base/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/train/metrics_export.h"
#include "tests/support/mem_env.h"
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

RunMetrics OfStep(int64_t step) {
  RunMetrics metrics;
  metrics.state = RunState::kTraining;
  metrics.steps = step;
  metrics.samples = 48 * step;
  return metrics;
}

// --- The text

TEST(RunMetricsTest, EachFamilyIsThereOnceAndFollowsTheConventions) {
  const std::string text = AllMetricsText();
  std::set<std::string> names;
  for (const auto& [name, family] : Parsed(text)) {
    names.insert(name);
    EXPECT_TRUE(name.starts_with("hotrow_")) << name;
    EXPECT_TRUE(family.help.ends_with(".")) << name;
    EXPECT_EQ(family.kind == "counter", name.ends_with("_total")) << name;
    EXPECT_EQ(name.find("_ms"), std::string::npos) << name;
    ASSERT_FALSE(family.samples.empty()) << name;
    EXPECT_EQ(family.samples[0].labels.at("rank"), "0") << name;
  }
  EXPECT_GT(names.size(), 80U);
}

TEST(RunMetricsTest, TheStateIsOneOfAll) {
  RunMetrics metrics = OfStep(7);
  metrics.state = RunState::kEvaluating;
  const MetricFamilies families = Parsed(MetricsText(metrics));
  EXPECT_EQ(families.at("hotrow_run_state").samples.size(), kRunStates.size());
  EXPECT_EQ(Sum(families, "hotrow_run_state"), 1);
  EXPECT_EQ(Value(families, "hotrow_run_state", {{"state", "evaluating"}}), 1);
  EXPECT_EQ(Value(families, "hotrow_steps_total"), 7);
}

TEST(TimeBucketsTest, ATimeIsUnderTheFirstBoundThatItDoesNotExceed) {
  TimeBuckets times;
  times.Add(0);
  times.Add(100'000);         // 0.1 ms: the bound itself
  times.Add(100'001);         // above it
  times.Add(3'000'000'000);   // 3 s
  times.Add(60'000'000'000);  // a minute: above all bounds
  EXPECT_EQ(times.counts().front(), 2);
  EXPECT_EQ(times.counts()[1], 1);
  EXPECT_EQ(times.counts()[TimeBuckets::kBoundSeconds.size() - 2], 1);
  EXPECT_EQ(times.counts().back(), 1);
  EXPECT_NEAR(times.sum_seconds(), 63.0002, 1e-6);
  EXPECT_TRUE(std::is_sorted(TimeBuckets::kBoundSeconds.begin(), TimeBuckets::kBoundSeconds.end()));
}

TEST(MetricsFilePathTest, RanksHaveFilesOfTheirOwnWithTheSameEnding) {
  EXPECT_EQ(MetricsFilePath("run.prom", 0, 1), "run.prom");
  EXPECT_EQ(MetricsFilePath("run.prom", 2, 4), "run.rank2.prom");
  EXPECT_EQ(MetricsFilePath("/a.b/run", 2, 4), "/a.b/run.rank2");
  EXPECT_EQ(MetricsFilePath("/a.b/.run", 2, 4), "/a.b/.run.rank2");
  EXPECT_EQ(MetricsFilePath("", 2, 4), "");
}

// --- The export

TEST(MetricsExportTest, AReaderOfTheFileNeverSeesHalfAText) {
  const std::string file = test::TempDir() + "/run.prom";
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto exported, MetricsExport::Start({.file = file}));
  std::atomic<bool> stop{false};
  std::atomic<int64_t> reads{0};
  std::thread reader([&] {
    MetricFamilies before;
    while (!stop) {
      const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), file);
      HOTROW_ASSERT_OK(text);  // it is there at any time
      const absl::StatusOr<MetricFamilies> now = ParseExposition(*text);
      HOTROW_ASSERT_OK(now);
      if (now->empty()) continue;  // not begun
      EXPECT_EQ(Value(*now, "hotrow_samples_total"), 48 * Value(*now, "hotrow_steps_total"));
      ExpectGrown(before, *now);
      before = *now;
      ++reads;
    }
  });
  int64_t step = 0;
  while (step < 300 || reads < 20) {
    exported->Publish(OfStep(++step));
    if (step % 10 == 0) std::this_thread::yield();
  }
  HOTROW_EXPECT_OK(exported->Close());
  stop = true;
  reader.join();
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string last, ReadFileToString(PosixEnv(), file));
  EXPECT_EQ(Value(Parsed(last), "hotrow_steps_total"), static_cast<double>(step));
}

TEST(MetricsExportTest, ThePortServesWhatWasPublishedLast) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto exported, MetricsExport::Start({.port = 0}));
  const std::string url = exported->url();
  ASSERT_THAT(url, AllOf(HasSubstr("http://127.0.0.1:"), HasSubstr("/metrics")));
  const TextAddress at = {.port = std::stoi(url.substr(std::string("http://127.0.0.1:").size()))};
  exported->Publish(OfStep(5));
  // The text is made beside this thread.
  for (int64_t begin = NowNanos(); NowNanos() - begin < kLongMs * 1'000'000;) {
    const absl::StatusOr<std::string> text = FetchText(at, kLongMs, kExpositionBytesMax);
    if (!text.ok()) continue;  // 503: there is none yet
    EXPECT_EQ(Value(Parsed(*text), "hotrow_steps_total"), 5);
    HOTROW_EXPECT_OK(exported->Close());
    EXPECT_THAT(FetchText(at, kLongMs, kExpositionBytesMax),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nobody serves")));
    return;
  }
  FAIL() << "no text";
}

TEST(MetricsExportTest, APublicationIsDueOnceInAWhile) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto exported,
                              MetricsExport::Start({.port = 0, .every_seconds = 1000}));
  EXPECT_TRUE(exported->due());
  exported->Publish(OfStep(1));
  EXPECT_FALSE(exported->due());
}

TEST(MetricsExportTest, WhatCannotBeHadIsRefusedWithFlagAndRemedy) {
  EXPECT_THAT(MetricsExport::Start({.file = test::TempDir() + "/none/run.prom"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--metrics_file="), HasSubstr("run.prom"),
                             HasSubstr("a directory that exists"))));
  const auto server = TextServer::Start({}, [] { return std::shared_ptr<const std::string>(); });
  HOTROW_ASSERT_OK(server);
  EXPECT_THAT(MetricsExport::Start({.port = (*server)->port()}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(absl::StrCat("--metrics_port=", (*server)->port())),
                             HasSubstr("another process has this port"))));
  EXPECT_THAT(MetricsExport::Start({.port = 0, .address = "everywhere"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--metrics_address=everywhere"), HasSubstr("0.0.0.0"))));
}

// A file system whose renames hang until they are let go, and then fail or not.
class HangingEnv : public test::MemEnv {
 public:
  absl::Status Rename(const std::string& from, const std::string& to) override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return open_; });
      --waiting_;
      changed_.notify_all();
      if (!status_.ok()) return status_;
    }
    return test::MemEnv::Rename(from, to);
  }
  void Set(bool open, absl::Status status = absl::OkStatus()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = open;
    status_ = std::move(status);
    changed_.notify_all();
  }
  // Until so many renames hang.
  void Await(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this, count] { return waiting_ == count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int waiting_ = 0;
  absl::Status status_;
};

TEST(MetricsExportTest, ADiskThatHangsHoldsUpNoPublication) {
  HangingEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto exported,
                              MetricsExport::Start({.file = "/run.prom", .env = &env}));
  env.Set(/*open=*/false);
  exported->Publish(OfStep(1));
  env.Await(1);
  // Would never end if it waited for the disk.
  for (int64_t step = 2; step <= 1000; ++step) exported->Publish(OfStep(step));
  env.Set(/*open=*/true);
  HOTROW_EXPECT_OK(exported->Close());
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string last, ReadFileToString(env, "/run.prom"));
  EXPECT_EQ(Value(Parsed(last), "hotrow_steps_total"), 1000);
}

TEST(MetricsExportTest, AnErrorOfTheFileIsKeptAndTheNextPublicationTriesAgain) {
  HangingEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto exported,
                              MetricsExport::Start({.file = "/run.prom", .env = &env}));
  env.Set(/*open=*/false);
  exported->Publish(OfStep(1));
  env.Await(1);
  env.Set(/*open=*/true, absl::ResourceExhaustedError("disk full"));
  env.Await(0);
  env.Set(/*open=*/true);
  exported->Publish(OfStep(2));
  EXPECT_THAT(exported->Close(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("disk full")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string last, ReadFileToString(env, "/run.prom"));
  EXPECT_EQ(Value(Parsed(last), "hotrow_steps_total"), 2);
}

TEST(MetricsExportTest, CloseSaysWhatWentWrongWithTheFile) {
  HangingEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto exported,
                              MetricsExport::Start({.file = "/run.prom", .env = &env}));
  env.Set(/*open=*/true, absl::ResourceExhaustedError("disk full"));
  exported->Publish(OfStep(1));
  EXPECT_THAT(exported->Close(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("disk full")));
  EXPECT_THAT(exported->Close(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("full")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool left, env.Exists("/run.prom.tmp"));
  EXPECT_FALSE(left);
}

}  // namespace
}  // namespace hotrow
