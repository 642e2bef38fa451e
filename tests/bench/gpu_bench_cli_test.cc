// gpu_bench as a user sees it; where there is a GPU, a run of parts of it.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gpu_test.h"
#include "tests/support/program_path.h"
#include "tests/support/run_program.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using testing::HasSubstr;

ProgramResult GpuBench(const std::vector<std::string>& arguments,
                       const std::vector<std::string>& environment = {}) {
  Program program = {.arguments = arguments, .environment = environment, .joined = true};
  program.arguments.insert(program.arguments.begin(), ProgramPath("gpu_bench"));
  return RunProgram(program);
}

TEST(GpuBenchCliTest, SaysInOneLineThatThereIsNoGpu) {
  const ProgramResult result = GpuBench({"--only=copy"}, {"CUDA_VISIBLE_DEVICES="});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("gpu_bench: no usable GPU: "));
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
}

TEST(GpuBenchCliTest, RefusesByNameBeforeItLooksForAGpu) {
  for (const std::string flag :
       {"--only=coopy", "--dims=8,x", "--loads=2", "--repeats=-1", "--device_bytes=x"}) {
    const ProgramResult result = GpuBench({flag}, {"CUDA_VISIBLE_DEVICES="});
    EXPECT_EQ(result.exit_code, 2) << flag;
    EXPECT_THAT(result.out, HasSubstr(flag));
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
  }
}

TEST(GpuBenchCliTest, HelpNamesTheParts) {
  const ProgramResult result = GpuBench({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("gradient_sum"));
}

TEST(GpuBenchCliTest, ReportsEveryPart) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const std::string dir = TempDir();
  const char* const sizes =
      ForGpu("--quick --repeats=3 --device_bytes=600MiB --host_bytes=64MiB", "--toy");
  std::vector<std::string> flags = absl::StrSplit(sizes, ' ');
  flags.insert(flags.end(),
               {"--path=" + dir, "--ids=" + dir + "/ids", "--report=" + dir + "/report",
                "--dims=8,128", "--loads=0.5,1", "--hits=0,1", "--shares=0.8", "--l2_fetch=32"});
  const ProgramResult result = GpuBench(flags);
  ASSERT_EQ(result.exit_code, 0) << result.out;
  const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), dir + "/report");
  HOTROW_ASSERT_OK(text);
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << *text;
  std::set<std::string> parts;
  std::set<std::string> finds;
  for (const nlohmann::json& figure : json["figures"]) {
    parts.insert(figure["part"].get<std::string>());
    if (figure["part"] == "find") finds.insert(figure["name"].get<std::string>());
    if (figure["part"] == "load") {
      EXPECT_GT(figure["load"], 0.8);
    } else if (figure.contains("skipped")) {
      EXPECT_EQ(figure["store"], "ssd") << figure;
    } else {
      EXPECT_GT(figure["per_second"], 0) << figure;
    }
  }
  EXPECT_THAT(parts,
              testing::ElementsAre("bus", "copy", "dense", "find", "gather", "gemm", "gradient_sum",
                                   "host_gather", "insert", "load", "lookup", "partition", "plans",
                                   "staging", "step", "tiers", "unique", "update"));
  EXPECT_THAT(finds, testing::SizeIs(16));  // each point, copied and in place
  EXPECT_THAT(finds, testing::Contains("find in place dim 128 load 1.00 hits 0.0"));
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
