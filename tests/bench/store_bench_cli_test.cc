// Runs store_bench as a user does, at sizes that take a moment, and reads its report.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/run_program.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using testing::HasSubstr;

// With both streams in `out`.
ProgramResult StoreBench(const std::string& arguments) {
  Program program = {.arguments = {HOTROW_STORE_BENCH_BINARY}, .joined = true};
  for (const absl::string_view argument : absl::StrSplit(arguments, ' ', absl::SkipEmpty())) {
    program.arguments.emplace_back(argument);
  }
  return RunProgram(program);
}

// The report of a run that must succeed.
nlohmann::json Report(const std::string& arguments) {
  const std::string dir = TempDir();
  const ProgramResult result =
      StoreBench(absl::StrCat("--rows=20000 --row_bytes=64 --batch=500 --batches=20 --threads=2 "
                              "--rocks_threads=4 --path=",
                              dir, "/data --report=", dir, "/report ", arguments));
  EXPECT_EQ(result.exit_code, 0) << result.out;
  const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), dir + "/report");
  HOTROW_EXPECT_OK(text);
  if (!text.ok()) return {};
  nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object()) << *text;
  const auto left = PosixEnv().ListDir(dir);
  HOTROW_EXPECT_OK(left);
  if (left.ok()) {
    EXPECT_THAT(*left, testing::ElementsAre("report"));  // the data is gone
  }
  return json;
}

void ExpectFields(const nlohmann::json& json) {
  for (const char* name :
       {"rows_per_second", "cpu_us_per_row", "ios_per_row", "bytes_read_per_row", "p50_batch_ms",
        "p99_batch_ms", "max_batch_ms", "write_amplification", "space_amplification",
        "snapshot_bytes", "index_bytes_per_row", "rss_bytes", "reopen_seconds"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  EXPECT_GT(json["rows_per_second"], 0);
  EXPECT_GT(json["cpu_us_per_row"], 0);
  EXPECT_GE(json["p99_batch_ms"], json["p50_batch_ms"]);
  EXPECT_GE(json["max_batch_ms"], json["p99_batch_ms"]);
}

class StoreBenchTest : public testing::TestWithParam<std::string> {};

TEST_P(StoreBenchTest, ReadsAndVerifiesEveryRow) {
  const nlohmann::json json = Report(absl::StrCat(
      "--store=", GetParam(), " --pattern=zipf:1.05 --ram_bytes=24MB --warmup_batches=4"));
  ExpectFields(json);
  // 20 batches of 500, and all 20,000 once more at the end.
  EXPECT_EQ(json["rows_verified"], 20 * 500 + 20'000);
  EXPECT_TRUE(json["write_amplification"].is_null());  // nothing was written
}

TEST_P(StoreBenchTest, ReadsAndWritesBackThroughASmallCache) {
  const nlohmann::json json = Report(
      absl::StrCat("--store=", GetParam(), " --mix=read_write --ram_bytes=24MB --row_cache=200KB"));
  ExpectFields(json);
  EXPECT_GT(json["cache_rows"], 0);
  EXPECT_LT(json["cache_rows"], 5000);  // so that rows were evicted, written back and read again
  EXPECT_GT(json["misses_per_row"], 0.5);
}

TEST_P(StoreBenchTest, UpdatesUntilThreeTimesTheRowsAreWritten) {
  const nlohmann::json json = Report(absl::StrCat(
      "--store=", GetParam(), " --mix=update --batches=1000 --read_batches=3 --ram_bytes=24MB",
      GetParam() == "memory" ? "" : " --kill"));
  ExpectFields(json);
  EXPECT_EQ(json["batches"], 120);  // 3 * 20,000 / 500
  EXPECT_GT(json["reads_before_per_second"], 0);
  EXPECT_GT(json["reads_after_per_second"], 0);
  if (GetParam() == "memory") return;
  EXPECT_GT(json["write_amplification"], 0.5);
  EXPECT_GT(json["space_amplification"], 0.9);
  EXPECT_GT(json["reopen_after_kill_seconds"], 0);
}

std::vector<std::string> Kinds() {
  std::vector<std::string> kinds = {"memory", "ssd"};
#ifdef HOTROW_HAVE_ROCKSDB
  kinds.push_back("rocksdb");
#endif
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Kinds, StoreBenchTest, testing::ValuesIn(Kinds()),
                         [](const auto& info) { return info.param; });

TEST(StoreBenchRawTest, MeasuresTheDeviceBothWays) {
  const nlohmann::json json = Report("--store=raw");
  EXPECT_GT(json["rows_per_second"], 0);
  EXPECT_EQ(json["bytes_read_per_row"], 4096);
  EXPECT_GT(json["write_bytes_per_second"], 0);
  EXPECT_GT(json["by_io_queue"]["rows_per_second"], 0);
  EXPECT_TRUE(json.contains("by_liburing"));
  EXPECT_GT(json["mixed"]["rows_per_second"], 0);
  EXPECT_GT(json["mixed"]["write_bytes_per_second"], 0);
}

TEST(StoreBenchRefusalTest, NamesTheFlag) {
  const std::string dir = TempDir();
  const struct {
    std::string arguments;
    std::string message;
  } cases[] = {{"--store=tape", "--store=tape"},
               {"--row_bytes=100", "--row_bytes=100"},
               {"--rows=10 --batch=11", "--batch=11"},
               {"--pattern=zipf:x", "--pattern=zipf:x"},
               {"--store=raw", "--path"},
               {"--mix=delete", "--mix=delete"}};
  for (const auto& one : cases) {
    const ProgramResult result = StoreBench(one.arguments);
    EXPECT_EQ(result.exit_code, 2) << one.arguments;
    EXPECT_THAT(result.out, HasSubstr(one.message));
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
  }
  // It does not empty what it did not fill.
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/precious", "data"));
  const ProgramResult result = StoreBench(absl::StrCat("--store=raw --path=", dir));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, HasSubstr(dir));
  HOTROW_EXPECT_OK(ReadFileToString(PosixEnv(), dir + "/precious"));
}

}  // namespace
}  // namespace hotrow::test
