#include "base/trace.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

nlohmann::json WriteAndParse(const TraceRecorder& recorder) {
  test::MemEnv env;
  HOTROW_EXPECT_OK(recorder.WriteChromeTrace(env, "trace.json"));
  const auto text = ReadFileToString(env, "trace.json");
  HOTROW_EXPECT_OK(text);
  return nlohmann::json::parse(text.ok() ? *text : "null");
}

TEST(TraceRecorderTest, TotalsAreKeptPerNameInOrderOfFirstSight) {
  TraceRecorder recorder(/*keep_events=*/false);
  const std::string copy = "gather";  // the same name at another address
  recorder.Record("unique", 0, 1'000'000);
  recorder.Record("gather", 0, 2'500'000);
  recorder.Record(copy.c_str(), 10'000'000, 10'500'000);
  const auto totals = recorder.StageTotals();
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals[0].name, "unique");
  EXPECT_DOUBLE_EQ(totals[0].ms, 1.0);
  EXPECT_EQ(totals[0].count, 1);
  EXPECT_EQ(totals[1].name, "gather");
  EXPECT_DOUBLE_EQ(totals[1].ms, 3.0);
  EXPECT_EQ(totals[1].count, 2);
  EXPECT_EQ(recorder.events_dropped(), 0);
}

TEST(TraceRecorderTest, WritesCompleteEventsInMicroseconds) {
  TraceRecorder recorder(/*keep_events=*/true);
  const int64_t now = NowNanos();
  recorder.Record("first", now, now + 1'234'567);
  recorder.Record("second", now + 2'000'000, now + 2'000'001);
  const nlohmann::json trace = WriteAndParse(recorder);
  EXPECT_EQ(trace["displayTimeUnit"], "ms");
  const auto& events = trace["traceEvents"];
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["name"], "first");
  EXPECT_EQ(events[0]["ph"], "X");
  EXPECT_DOUBLE_EQ(events[0]["dur"], 1234.567);
  EXPECT_DOUBLE_EQ(events[1]["dur"], 0.001);
  EXPECT_NEAR(events[1]["ts"].get<double>() - events[0]["ts"].get<double>(), 2000, 0.002);
  EXPECT_EQ(events[0]["pid"], events[1]["pid"]);
  EXPECT_EQ(events[0]["tid"], events[1]["tid"]);
}

TEST(TraceRecorderTest, EscapesNames) {
  TraceRecorder recorder(true);
  const char* const name = "a \"b\" \\ c\n\x01 \xc3\xa9";
  recorder.Record(name, 0, 1);
  EXPECT_EQ(WriteAndParse(recorder)["traceEvents"][0]["name"], name);
}

TEST(TraceRecorderTest, NoEventsAreStillValid) {
  TraceRecorder keeps(true);
  EXPECT_EQ(WriteAndParse(keeps)["traceEvents"].size(), 0u);
  TraceRecorder totals_only(false);
  totals_only.Record("x", 0, 1);
  EXPECT_EQ(WriteAndParse(totals_only)["traceEvents"].size(), 0u);
}

// More events than one write holds, from several threads.
TEST(TraceRecorderTest, RecordsFromAllThreads) {
  TraceRecorder recorder(true);
  ThreadPool pool(3);
  pool.ParallelFor(20000, 100, [&recorder](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) const TraceSpan span(&recorder, "row");
  });
  const auto totals = recorder.StageTotals();
  ASSERT_EQ(totals.size(), 1u);
  EXPECT_EQ(totals[0].count, 20000);
  const nlohmann::json trace = WriteAndParse(recorder);
  ASSERT_EQ(trace["traceEvents"].size(), 20000u);
  for (const auto& event : trace["traceEvents"]) {
    ASSERT_EQ(event["name"], "row");
    ASSERT_GE(event["tid"], 1);
    ASSERT_LE(event["tid"], 3);
  }
}

TEST(TraceRecorderTest, EventsBehindTheLimitAreCountedAsDropped) {
  TraceRecorder recorder(true);
  for (int64_t i = 0; i < TraceRecorder::kMaxEvents + 3; ++i) recorder.Record("x", i, i);
  EXPECT_EQ(recorder.events_dropped(), 3);
  EXPECT_EQ(recorder.StageTotals()[0].count, TraceRecorder::kMaxEvents + 3);
}

TEST(TraceRecorderTest, WriteErrorsAreReported) {
  TraceRecorder recorder(true);
  recorder.Record("x", 0, 1);
  for (int64_t k = 0;; ++k) {
    test::FaultyEnv env;
    env.FailCall(k, absl::ResourceExhaustedError("injected"));
    const absl::Status status = recorder.WriteChromeTrace(env, "trace.json");
    if (env.faults() == 0) {
      HOTROW_EXPECT_OK(status);
      EXPECT_GE(k, 3);  // open, write, close
      break;
    }
    EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kResourceExhausted, "injected"));
  }
}

TEST(TraceSpanTest, MeasuresAndToleratesNoRecorder) {
  TraceRecorder recorder(false);
  const int64_t begin = NowNanos();
  {
    const TraceSpan span(&recorder, "work");
    while (NowNanos() - begin < 1'000'000) {
    }
  }
  const int64_t end = NowNanos();
  ASSERT_EQ(recorder.StageTotals().size(), 1u);
  EXPECT_GE(recorder.StageTotals()[0].ms, 0.9);
  EXPECT_LE(recorder.StageTotals()[0].ms, static_cast<double>(end - begin) * 1e-6);
  const TraceSpan nothing(nullptr, "x");
}

}  // namespace
}  // namespace hotrow
