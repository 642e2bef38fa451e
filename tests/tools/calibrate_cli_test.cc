// hotrow calibrate, as an operator runs it, in small.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#include "tests/tools/run_hotrow.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CalibrateCliTest, WritesAProfileThatPlansUse) {
  const std::string dir = test::TempDir();
  HOTROW_ASSERT_OK(PosixEnv().CreateDirs(dir + "/disk"));
  const ProgramResult made =
      RunHotrow({"calibrate", "--effort=0.01", "--threads=2", "--path=" + dir + "/disk",
                 "--output=" + dir + "/machine.yaml"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr("random 4 KiB reads"), HasSubstr("GFLOP/s"),
                              HasSubstr("missed, read from memory"), HasSubstr("64 samples"),
                              HasSubstr("beside")));
  EXPECT_TRUE(std::filesystem::is_empty(dir + "/disk"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text,
                              ReadFileToString(PosixEnv(), dir + "/machine.yaml"));
  for (const char* const field :
       {"machine: \"", "dram_bytes_per_second: ", "gather_rows_per_second: ",
        "ssd_read_ios_per_second: ", "dense_flops_wide: ", "unique_seconds_per_lookup: ",
        "update_seconds", "pool_seconds", "sum_seconds", "dense_flops_wide_64: ",
        "dot_flops_short_256: ", "step_beside: ", "disk_beside: ", "ssd_wait_seconds"}) {
    EXPECT_THAT(text, HasSubstr(field));
  }
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/spec.yaml",
                                       "batch_size: 1024\nhardware: machine.yaml\n"
                                       "tables:\n- {name: a, rows: 100000, dim: 32}\n"));
  const ProgramResult plan = RunHotrow({"plan", dir + "/spec.yaml"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("times as measured on: "));
  const ProgramResult by_flag =
      RunHotrow({"plan", dir + "/spec.yaml", "--hardware=" + dir + "/machine.yaml"});
  // The name of the hardware alone differs.
  EXPECT_EQ(by_flag.exit_code, 0) << by_flag.err;
  EXPECT_EQ(by_flag.out.substr(by_flag.out.find('\n')), plan.out.substr(plan.out.find('\n')));
}

TEST(CalibrateCliTest, MeasuresAGpuWhereThereIsOne) {
  const std::string dir = test::TempDir();
  const std::string file = dir + "/gpu.yaml";
  const std::vector<std::string> command = {"calibrate",   "--device=cuda", "--effort=0.01",
                                            "--threads=2", "--path=" + dir, "--output=" + file};
  const ProgramResult made = RunHotrow(command);
#if !HOTROW_EMULATED_GPU
  if (made.exit_code != 0) {
    test::ExpectOneLineError(made, 2,
                             AllOf(HasSubstr("--device=cuda: "), HasSubstr("no usable GPU")));
    EXPECT_FALSE(std::filesystem::exists(file));
    return;
  }
#endif
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr("GPU memory, copied"), HasSubstr("TFLOP/s")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(PosixEnv(), file));
  for (const char* const field :
       {"hbm_bytes: ", "hbm_bytes_per_second: ", "host_link_bytes_per_second: ", "dense_flops: ",
        "dense_flops_16: ", "activation_bytes: ", "unique_seconds_per_lookup: ", "update_seconds",
        "pool_seconds", "sum_seconds"}) {
    EXPECT_THAT(text, HasSubstr(field));
  }
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/spec.yaml",
                                       "batch_size: 1024\nhardware: gpu.yaml\n"
                                       "tables:\n- {name: a, rows: 10000, dim: 32}\n"));
  const ProgramResult plan = RunHotrow({"plan", dir + "/spec.yaml"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("times as measured on: "), HasSubstr("  hbm ")));
}

TEST(CalibrateCliTest, BadArgumentsAreOneLine) {
  ExpectRefused({"calibrate", "--path=/no/such/dir"},
                AllOf(HasSubstr("--path=/no/such/dir"), HasSubstr("No such file")));
  ExpectRefused({"calibrate", "--output=/no/such/dir/f"}, HasSubstr("--output=/no/such/dir/f"));
  ExpectRefused({"calibrate", "--device=tpu"}, HasSubstr("cpu"));
  ExpectRefused({"calibrate", "--threads=-1"}, HasSubstr("threads"));
  ExpectRefused({"calibrate", "here"}, HasSubstr("here"));
  const ProgramResult help = RunHotrow({"calibrate", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--output"));
}

}  // namespace
}  // namespace hotrow
