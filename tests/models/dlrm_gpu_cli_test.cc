// Trains with the program on a GPU, from flags to report. A separate test, since a bundle for GPU
// machines has it: it needs the program beside it and nothing of the build machine.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/env.h"
#include "gtest/gtest.h"
#include "tests/support/gpu_test.h"
#include "tests/support/program_path.h"
#include "tests/support/run_program.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

// A run of a small model with these flags, on one thread.
test::ProgramResult RunDlrm(const std::string& dir, const std::vector<std::string>& flags) {
  std::vector<std::string> all = {
      test::ProgramPath("dlrm"),
      test::ForGpu("--data=synthetic:tables=3,rows=200,dense=2,samples=3000,valid=300,test=500",
                   "--data=synthetic:tables=3,rows=200,dense=2,samples=1000,valid=100,test=500"),
      "--embedding_dim=16",
      "--dense_arch_layer_sizes=16-16",
      "--over_arch_layer_sizes=16-1",
      "--batch_size=64",
      "--threads=1",
      "--store_bytes=64MiB",
      "--report=" + dir + "/report.json"};
  all.insert(all.end(), flags.begin(), flags.end());
  return test::RunProgram({.arguments = all, .joined = true});
}

// Its report.
nlohmann::json Train(const std::vector<std::string>& flags) {
  const std::string dir = test::TempDir();
  const test::ProgramResult result = RunDlrm(dir, flags);
  EXPECT_EQ(result.exit_code, 0) << result;
  const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), dir + "/report.json");
  HOTROW_EXPECT_OK(text);
  return text.ok() ? nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false)
                   : nlohmann::json();
}

// What two runs of equal bits agree in.
std::string EndOf(const nlohmann::json& report) {
  std::string out;
  for (const char* const key :
       {"tables_hash", "dense_hash", "steps", "samples", "epochs", "train", "valid", "test"}) {
    out += report.value(key, nlohmann::json()).dump() + " ";
  }
  return out;
}

// The bits of a GPU are its own: its GEMMs add in another order.
TEST(DlrmGpuCliTest, AGpuLearnsWhatTheCpuLearns) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const nlohmann::json cpu = Train({});
  const nlohmann::json gpu =
      Train({"--device=cuda", "--device_cache_bytes=min", "--prefetch_depth=2"});
  if (HasFailure()) return;
  EXPECT_EQ(gpu["device"], "cuda");
  EXPECT_EQ(gpu["rows"], cpu["rows"]);
  EXPECT_NEAR(gpu["test"]["logloss"].get<double>(), cpu["test"]["logloss"].get<double>(), 1e-3);
  EXPECT_NEAR(gpu["test"]["auc"].get<double>(), cpu["test"]["auc"].get<double>(), 2e-3);
  // But they repeat, with any rows in the cache.
  EXPECT_EQ(EndOf(Train({"--device=cuda", "--device_cache_bytes=1GiB"})), EndOf(gpu));
}

TEST(DlrmGpuCliTest, ProductsOfBf16AndTf32LearnWhatFp32Learns) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const auto on_gpu = [](const std::string& precision) {
    return std::vector<std::string>{"--device=cuda", "--device_cache_bytes=min",
                                    "--precision=" + precision};
  };
  const nlohmann::json cpu = Train({});
  const nlohmann::json tf32 = Train(on_gpu("tf32"));
  const nlohmann::json bf16 = Train(on_gpu("bf16"));
  if (HasFailure()) return;
  for (const nlohmann::json& gpu : {tf32, bf16}) {
    EXPECT_NEAR(gpu["test"]["auc"].get<double>(), cpu["test"]["auc"].get<double>(), 1e-3);
    EXPECT_EQ(gpu["rows"], cpu["rows"]);
  }
  EXPECT_NE(bf16["dense_hash"], tf32["dense_hash"]);
  EXPECT_TRUE(bf16["unfused_products"].empty()) << bf16["unfused_products"];
  // All steps read rows where they lie, which changes no bit.
  EXPECT_EQ(bf16["fused_lookup_steps"], bf16["steps"]);
  std::vector<std::string> pooled = on_gpu("bf16");
  pooled.push_back("--fuse_lookup=false");
  const nlohmann::json unfused = Train(pooled);
  EXPECT_EQ(unfused["fused_lookup_steps"], 0);
  EXPECT_EQ(EndOf(unfused), EndOf(bf16));
  // What is saved on the way changes nothing, and the last checkpoint is the end.
  std::vector<std::string> saving = on_gpu("bf16");
  saving.insert(saving.end(), {"--checkpoint_dir=" + test::TempDir() + "/checkpoints",
                               "--checkpoint_every=7", "--resume"});
  EXPECT_EQ(EndOf(Train(saving)), EndOf(bf16));
  EXPECT_EQ(EndOf(Train(saving)), EndOf(bf16));
}

TEST(DlrmGpuCliTest, GradientsAreClippedOnTheGpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const std::vector<std::string> on_gpu = {"--device=cuda", "--device_cache_bytes=min"};
  const auto with = [](std::vector<std::string> flags, const std::string& flag) {
    flags.push_back(flag);
    return flags;
  };
  const nlohmann::json whole = Train(on_gpu);
  const nlohmann::json cpu = Train({"--max_gradient_norm=0.02"});
  const nlohmann::json clipped = Train(with(on_gpu, "--max_gradient_norm=0.02"));
  if (HasFailure()) return;
  EXPECT_NEAR(clipped["test"]["logloss"].get<double>(), cpu["test"]["logloss"].get<double>(), 1e-3);
  EXPECT_NE(clipped["dense_hash"], whole["dense_hash"]);
  EXPECT_EQ(EndOf(Train(with(on_gpu, "--max_gradient_norm=0.02"))), EndOf(clipped));
  // A limit that nothing reaches moves no bit.
  EXPECT_EQ(EndOf(Train(with(on_gpu, "--max_gradient_norm=1e6"))), EndOf(whole));
}

// The GPU's losses are read a step late; what is said of them is of their own step.
TEST(DlrmGpuCliTest, DivergenceNamesTheStepAndTheLayerOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const std::vector<std::string> diverging = {"--dense_optimizer=sgd",
                                              "--dense_learning_rate=1e30"};
  const test::ProgramResult cpu = RunDlrm(test::TempDir(), diverging);
  std::vector<std::string> flags = diverging;
  flags.insert(flags.end(), {"--device=cuda", "--device_cache_bytes=min", "--prefetch_depth=1"});
  const test::ProgramResult gpu = RunDlrm(test::TempDir(), flags);
  const auto step_of = [](const test::ProgramResult& result) {
    const size_t end = result.out.find(": the training loss is not a finite number");
    if (end == std::string::npos) return "none in " + result.out;
    const size_t begin = result.out.rfind("step ", end);
    return result.out.substr(begin, end - begin);
  };
  const auto cause_of = [](const test::ProgramResult& result) {
    const size_t begin = result.out.find("for dense parameters). ");
    if (begin == std::string::npos) return "none in " + result.out;
    return result.out.substr(begin, result.out.find('\n', begin) - begin);
  };
  EXPECT_EQ(cpu.exit_code, 1);
  EXPECT_EQ(gpu.exit_code, 1);
  EXPECT_EQ(step_of(gpu), step_of(cpu));
  EXPECT_THAT(cause_of(cpu), testing::HasSubstr("layer \""));
  EXPECT_EQ(cause_of(gpu), cause_of(cpu));
}

// What a checkpoint and the report hold of losses is of all steps before.
TEST(DlrmGpuCliTest, ARunThatGoesOnReportsTheLossesOfOneThatWasNotStopped) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const std::vector<std::string> on_gpu = {"--device=cuda", "--device_cache_bytes=min"};
  const nlohmann::json whole = Train(on_gpu);
  std::vector<std::string> flags = on_gpu;
  flags.insert(flags.end(), {"--checkpoint_dir=" + test::TempDir() + "/checkpoints",
                             "--checkpoint_every=7", "--resume"});
  const nlohmann::json saving = Train(flags);
  EXPECT_EQ(EndOf(saving), EndOf(whole));
  // Nothing is left to train: what it says comes from the checkpoint.
  EXPECT_EQ(EndOf(Train(flags)), EndOf(whole));
}

TEST(DlrmGpuCliTest, RowsBelowTheGpuMayLieOnAnSsd) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const std::string dir = test::TempDir();
  const std::vector<std::string> on_gpu = {"--device=cuda", "--device_cache_bytes=min",
                                           "--prefetch_depth=1"};
  const nlohmann::json memory = Train(on_gpu);
  std::vector<std::string> flags = on_gpu;
  flags.insert(flags.end(), {"--store=ssd", "--store_path=" + dir + "/store", "--store_bytes=8MiB",
                             "--disk_bytes=256MiB", "--cache_bytes=1MiB"});
  EXPECT_EQ(EndOf(Train(flags)), EndOf(memory));
}

}  // namespace
}  // namespace hotrow
