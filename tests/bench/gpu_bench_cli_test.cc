// gpu_bench as a user sees it; where there is a GPU, a run of parts of it.

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gpu_test.h"
#include "tests/support/program_path.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using testing::HasSubstr;

struct Result {
  int exit_code = -1;
  std::string output;  // both streams
};

// `environment`: "NAME=value " or nothing.
Result GpuBench(const std::string& environment, const std::string& arguments) {
  Result result;
  FILE* const pipe = ::popen(
      absl::StrCat(environment, "'", ProgramPath("gpu_bench"), "' ", arguments, " 2>&1").c_str(),
      "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    result.output.append(buffer.data(), n);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

TEST(GpuBenchCliTest, SaysInOneLineThatThereIsNoGpu) {
  const Result result = GpuBench("CUDA_VISIBLE_DEVICES= ", "--only=copy");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("gpu_bench: no usable GPU: "));
  EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
}

TEST(GpuBenchCliTest, RefusesByNameBeforeItLooksForAGpu) {
  for (const std::string flag : {"--only=coopy", "--repeats=-1", "--device_bytes=x"}) {
    const Result result = GpuBench("CUDA_VISIBLE_DEVICES= ", flag);
    EXPECT_EQ(result.exit_code, 2) << flag;
    EXPECT_THAT(result.output, HasSubstr(flag));
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
  }
}

TEST(GpuBenchCliTest, HelpNamesTheParts) {
  const Result result = GpuBench("", "--help");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("gradient_sum"));
}

TEST(GpuBenchCliTest, ReportsEveryPart) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const std::string dir = TempDir();
  const char* const sizes =
      ForGpu("--quick --repeats=3 --device_bytes=600MiB --host_bytes=64MiB", "--toy");
  const Result result = GpuBench("", absl::StrCat(sizes, " --path='", dir, "' --ids='", dir,
                                                  "/ids' --report='", dir, "/report'"));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), dir + "/report");
  HOTROW_ASSERT_OK(text);
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << *text;
  std::set<std::string> parts;
  for (const nlohmann::json& figure : json["figures"]) {
    parts.insert(figure["part"].get<std::string>());
    if (figure["part"] == "load") {
      EXPECT_GT(figure["load"], 0.8);
    } else if (figure.contains("skipped")) {
      EXPECT_EQ(figure["store"], "ssd") << figure;
    } else {
      EXPECT_GT(figure["per_second"], 0) << figure;
    }
  }
  EXPECT_THAT(parts, testing::ElementsAre("bus", "copy", "find", "gather", "gemm", "gradient_sum",
                                          "host_gather", "insert", "load", "lookup", "partition",
                                          "staging", "tiers", "unique", "update"));
  // What a peer takes to measure the same: the ids of all lookups.
  const absl::StatusOr<std::string> ids = ReadFileToString(PosixEnv(), dir + "/ids");
  HOTROW_ASSERT_OK(ids);
  for (const nlohmann::json& figure : json["figures"]) {
    if (figure["part"] != "unique") continue;
    EXPECT_EQ(ids->size(), 8 * figure["lookups"].get<size_t>());
  }
}

}  // namespace
}  // namespace hotrow::test
