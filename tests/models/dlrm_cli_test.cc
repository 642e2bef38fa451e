// Runs the program as a user does: arguments in, exit status, output and files out.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "gtest/gtest.h"
#include "tests/support/gpu_test.h"
#include "tests/support/run_program.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using test::ProgramResult;

test::Program DlrmProgram(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), HOTROW_DLRM_BINARY);
  return {.arguments = std::move(arguments)};
}

ProgramResult Dlrm(std::vector<std::string> arguments) {
  return test::RunProgram(DlrmProgram(std::move(arguments)));
}

// A running dlrm.
class Child : public test::RunningProgram {
 public:
  explicit Child(std::vector<std::string> arguments)
      : RunningProgram(DlrmProgram(std::move(arguments))) {}
};

// A model small enough to train in a moment, on one thread.
std::vector<std::string> Small(std::vector<std::string> more,
                               const std::string& data =
                                   "synthetic:tables=3,rows=200,dense=2,samples=3000,valid=300,"
                                   "test=500") {
  std::vector<std::string> all = {"--data=" + data,
                                  "--embedding_dim=8",
                                  "--dense_arch_layer_sizes=16-8",
                                  "--over_arch_layer_sizes=16-1",
                                  "--batch_size=64",
                                  "--threads=1",
                                  "--store_bytes=64MiB"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

nlohmann::json ReadJson(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), path);
  HOTROW_EXPECT_OK(text);
  return text.ok() ? nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false)
                   : nlohmann::json();
}

// Exactly one line on stderr, the given exit status, and nothing trained.
void ExpectRefused(const std::vector<std::string>& arguments, int exit_code,
                   const ::testing::Matcher<const std::string&>& message) {
  test::ExpectOneLineError(Dlrm(arguments), exit_code, message);
}

TEST(DlrmCliTest, TrainsAndSaysHowItWent) {
  const std::string dir = test::TempDir();
  const ProgramResult result =
      Dlrm(Small({"--cache_bytes=min", "--report", dir + "/report.json", "--trace",
                  dir + "/trace.json", "--learning_rate=0.05", "--dense_learning_rate=0"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* const text :
       {"test AUC", "best possible", "samples/s", "hit rate", "cache", "memory", "budget",
        "try next", "dlrm --", "hotrow pack synthetic"}) {
    EXPECT_THAT(result.out, HasSubstr(text));
  }

  const nlohmann::json report = ReadJson(dir + "/report.json");
  EXPECT_EQ(report["steps"], 47);
  EXPECT_EQ(report["flags"]["dense_arch_layer_sizes"], "16-8");
  EXPECT_EQ(report["flags"]["threads"], 1);
  EXPECT_EQ(report["flags"]["dense_learning_rate"], 0.05);
  EXPECT_EQ(report["flags"]["cache_bytes"], report["tiers"][0]["budget_bytes"]);
  EXPECT_GT(report["test"]["auc"], 0.6);

  const nlohmann::json trace = ReadJson(dir + "/trace.json");
  ASSERT_TRUE(trace["traceEvents"].is_array());
  int64_t lookups = 0;
  for (const auto& event : trace["traceEvents"]) lookups += event["name"] == "lookup" ? 1 : 0;
  EXPECT_EQ(lookups, 47);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> files, PosixEnv().ListDir(dir));
  EXPECT_EQ(std::count(files.begin(), files.end(), "report.json.tmp"), 0);
}

TEST(DlrmCliTest, WithoutADigestTheReportHasNeitherHashesNorRows) {
  const std::string dir = test::TempDir();
  const auto run = [&](const std::string& digest) {
    const ProgramResult result = Dlrm(Small({digest, "--report=" + dir + "/report.json"}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out.find("tables_hash") != std::string::npos, digest == "--digest=true");
    return ReadJson(dir + "/report.json");
  };
  const nlohmann::json with = run("--digest=true");
  const nlohmann::json without = run("--digest=false");
  EXPECT_EQ(with["test"], without["test"]);
  EXPECT_EQ(with["tables"].size(), 3);
  for (const char* const name : {"tables_hash", "dense_hash", "rows", "tables"}) {
    EXPECT_TRUE(with.contains(name)) << name;
    EXPECT_FALSE(without.contains(name)) << name;
  }
}

TEST(DlrmCliTest, ProductsOfBf16LearnWhatFp32LearnsOnAnyNumberOfThreads) {
  const std::string dir = test::TempDir();
  const auto run = [&](const std::string& name, std::vector<std::string> more) {
    const std::string path = dir + "/" + name;
    more.push_back("--learning_rate=0.05");
    more.push_back("--report=" + path);
    const ProgramResult result = Dlrm(Small(std::move(more)));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::pair(ReadJson(path), result.out);
  };
  test::Program without = DlrmProgram(Small({"--precision=bf16"}));
  without.environment = {"ONEDNN_MAX_CPU_ISA=AVX2"};
  test::ExpectOneLineError(test::RunProgram(without), 1,
                           AllOf(HasSubstr("--precision=bf16"), HasSubstr("AVX-512 BF16"),
                                 HasSubstr("avx2"), HasSubstr("--precision=fp32")));
  test::ExpectOneLineError(Dlrm(Small({"--precision=tf32"})), 2,
                           AllOf(HasSubstr("--precision=tf32 is for GPUs"),
                                 HasSubstr("on the CPU use --precision=fp32")));
  test::ExpectOneLineError(Dlrm(Small({"--precision=fp16"})), 2,
                           AllOf(HasSubstr("--precision=fp16 is for GPUs"),
                                 HasSubstr("use --precision=bf16 or --precision=fp32")));
  test::ExpectOneLineError(Dlrm(Small({"--loss_scale=3"})), 2,
                           HasSubstr("--loss_scale must be a power of two from 1 to 2^40, is 3"));
  if (Dlrm(Small({"--precision=bf16"})).exit_code != 0) {
    GTEST_SKIP() << "this processor has no bf16";
  }
  const auto [fp32, plain_out] = run("fp32.json", {});
  const auto [one, out] = run("one.json", {"--precision=bf16"});
  const auto [three, unused] = run("three.json", {"--precision=bf16", "--threads=3"});
  EXPECT_THAT(out, HasSubstr(", products in bf16\n"));
  EXPECT_THAT(plain_out, Not(HasSubstr("products in")));
  EXPECT_EQ(one["flags"]["precision"], "bf16");
  EXPECT_EQ(one["dense_hash"], three["dense_hash"]);
  EXPECT_EQ(one["tables_hash"], three["tables_hash"]);
  EXPECT_NE(one["dense_hash"], fp32["dense_hash"]);
  const auto figure = [](const nlohmann::json& report, const char* of, const char* name) {
    return report[of][name].get<double>();
  };
  EXPECT_NEAR(figure(one, "train", "logloss"), figure(fp32, "train", "logloss"), 1e-3);
  EXPECT_NEAR(figure(one, "test", "auc"), figure(fp32, "test", "auc"), 5e-3);
}

TEST(DlrmCliTest, TheReportShowsTheSizesThatWereChosen) {
  const std::string report_path = test::TempDir() + "/report.json";
  const ProgramResult result = Dlrm(
      {"--data=synthetic:tables=2,rows=50,dense=2,samples=64,valid=8,test=8", "--embedding_dim=4",
       "--batch_size=64", "--threads=1", "--store_bytes=64MiB", "--report=" + report_path});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = ReadJson(report_path);
  EXPECT_EQ(report["flags"]["dense_arch_layer_sizes"], "512-256-64-4");
  EXPECT_EQ(report["flags"]["over_arch_layer_sizes"], "512-256-1");
}

TEST(DlrmCliTest, SigintEndsCleanlyWithTheReportWritten) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2, SIGXCPU}) {
    const std::string report_path = test::TempDir() + "/stopped.json";
    Child child(Small({"--epochs=1000000", "--report=" + report_path}));
    ASSERT_TRUE(child.ReadUntil("threads on the cpu\n"));
    child.Signal(signal);
    const ProgramResult result = child.Wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_THAT(result.out,
                HasSubstr(absl::StrCat("Stopped by SIG", ::sigabbrev_np(signal), " after step")));
    const nlohmann::json report = ReadJson(report_path);
    EXPECT_LT(report["epochs"], 1000000);
    EXPECT_EQ(report["tables_hash"].get<std::string>().size(), 32u);
  }
}

// A script whose arguments are the command line of dlrm.
test::Program UnderBash(const std::string& script, std::vector<std::string> arguments) {
  test::Program program = DlrmProgram(std::move(arguments));
  program.arguments.insert(program.arguments.begin(), {"bash", "-c", script, "bash"});
  return program;
}

// Such as `nohup`: who ignores a signal goes on ignoring it.
TEST(DlrmCliTest, AHangUpThatIsIgnoredDoesNotStopTheRun) {
  test::RunningProgram child(UnderBash("trap '' HUP; exec \"$@\"", Small({"--epochs=1000000"})));
  ASSERT_TRUE(child.ReadUntil("threads on the cpu\n"));
  child.Signal(SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  child.Signal(SIGTERM);
  EXPECT_THAT(child.Wait().out, HasSubstr("Stopped by SIGTERM"));
}

// A closed pipe is no failure of the run: it ends as on SIGTERM, and says that its output is lost.
TEST(DlrmCliTest, AReaderOfItsOutputThatDiesStopsTheRun) {
  const std::string dir = test::TempDir();
  const ProgramResult result =
      test::RunProgram(UnderBash("\"$@\" | head -1 > /dev/null; exit ${PIPESTATUS[0]}",
                                 Small({"--epochs=1000000", "--checkpoint_dir=" + dir + "/c",
                                        "--checkpoint_every=0", "--report=" + dir + "/r"})));
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("standard output cannot be written"));
  EXPECT_EQ(ReadJson(dir + "/r")["checkpoints"]["count"], 1);
}

// Each stays what it is; a device that takes no bytes is an error.
TEST(DlrmCliTest, OutputsMayBeLinksAndDevices) {
  const std::string dir = test::TempDir();
  std::filesystem::create_symlink("target", dir + "/link");
  for (const char* const flag : {"--report=", "--metrics_file=", "--save_spec=", "--trace="}) {
    SCOPED_TRACE(flag);
    const ProgramResult result = Dlrm(Small({absl::StrCat(flag, dir, "/link")}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(std::filesystem::is_symlink(dir + "/link"));
    EXPECT_GT(std::filesystem::file_size(dir + "/target"), 100u);
    std::filesystem::remove(dir + "/target");
  }
  const ProgramResult printed = Dlrm(Small({"--report=/dev/stdout"}));
  EXPECT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_THAT(printed.out, HasSubstr("\"tables_hash\""));
}

TEST(DlrmCliTest, GoesOnFromASavedModel) {
  const std::string dir = test::TempDir();
  const ProgramResult first = Dlrm(Small({"--save_dir=" + dir + "/day1"}));
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("model of step 47 saved to " + dir + "/day1"));
  const ProgramResult second =
      Dlrm(Small({"--init_from=" + dir + "/day1", "--save_dir", dir + "/day1", "--seed=2",
                  "--report=" + dir + "/report.json"}));
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("from     " + dir + "/day1: step 47"));
  EXPECT_THAT(second.out, HasSubstr("model of step 94 saved"));
  const nlohmann::json report = ReadJson(dir + "/report.json");
  EXPECT_EQ(report["resumed_from_step"], 47);
  EXPECT_EQ(report["steps"], 47);

  ExpectRefused(Small({"--init_from=" + dir + "/day1", "--over_arch_layer_sizes=8-1"}), 1,
                AllOf(HasSubstr("--over_arch_layer_sizes is 8-1 here and 16-1 in the saved model"),
                      HasSubstr("use --over_arch_layer_sizes=16-1")));
  ExpectRefused(Small({"--init_from=" + dir + "/day1", "--optimizer=sgd"}), 1,
                AllOf(HasSubstr("table "), HasSubstr("--optimizer=rowwise_adagrad")));
}

TEST(DlrmCliTest, DirectoriesThatCannotBeUsedAreRefusedBeforeTraining) {
  const std::string dir = test::TempDir();
  ExpectRefused(Small({"--init_from=" + dir}), 1,
                AllOf(HasSubstr(dir + "/manifest.json"), HasSubstr("--save_dir")));
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/file", "x"));
  ExpectRefused(Small({"--save_dir=" + dir + "/file"}), 1,
                AllOf(HasSubstr("--save_dir=" + dir + "/file"), HasSubstr("give a directory")));
}

TEST(DlrmCliTest, MllogLinesBeginTheirLines) {
  const ProgramResult result = Dlrm(Small({"--mllog"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::istringstream lines(result.out);
  std::vector<std::string> keys;
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(":::MLLOG ");
    if (at == std::string::npos) continue;
    EXPECT_EQ(at, 0u) << line;
    const nlohmann::json json = nlohmann::json::parse(line.substr(9), nullptr, false);
    ASSERT_TRUE(json.is_object()) << line;
    keys.push_back(json["key"]);
  }
  ASSERT_FALSE(keys.empty());
  EXPECT_EQ(keys.front(), "init_start");
  EXPECT_EQ(keys.back(), "run_stop");
  EXPECT_EQ(std::count(keys.begin(), keys.end(), "eval_accuracy"), 1);
  EXPECT_THAT(Dlrm(Small({})).out, Not(HasSubstr("MLLOG")));
}

TEST(DlrmCliTest, AnUnknownPresetListsTheKnown) {
  ExpectRefused(Small({"--preset=kaggle"}), 2, HasSubstr("--preset=kaggle: takes frappe"));
  EXPECT_THAT(Dlrm({"--help"}).out, AllOf(HasSubstr("--preset=frappe"), HasSubstr("test AUC")));
}

TEST(DlrmCliTest, GivenFlagsWinOverThePreset) {
  const std::string report_path = test::TempDir() + "/report.json";
  const ProgramResult result =
      Dlrm(Small({"--preset=frappe", "--epochs=1", "--report=" + report_path}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = ReadJson(report_path);
  EXPECT_EQ(report["flags"]["preset"], "frappe");
  EXPECT_EQ(report["flags"]["optimizer"], "adam");  // of the preset
  EXPECT_EQ(report["flags"]["batch_size"], 64);     // given before it
  EXPECT_EQ(report["best_epoch"], 1);
}

TEST(DlrmCliTest, NoThreadSpins) {
  // Products run on our own threads (ops/gemm.h): the library's pool of OpenMP threads, which spins
  // between products and would starve those that wait for the disk, must not exist.
  Child child(Small({"--epochs=1000000", "--threads=2"}));
  ASSERT_TRUE(child.ReadUntil("epoch 2, step"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> threads,
                              PosixEnv().ListDir("/proc/" + std::to_string(child.pid()) + "/task"));
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait().exit_code, 0);
  // Main, one worker, one for signals, one that reads ahead, two that make rows resident.
  size_t most = 6;
#ifdef __SANITIZE_THREAD__
  most += 1;  // ThreadSanitizer's own
#endif
  EXPECT_LE(threads.size(), most);
  EXPECT_GE(threads.size(), 3u);
}

TEST(DlrmCliTest, HelpNeedsNoManual) {
  const ProgramResult result = Dlrm({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  for (const char* const text :
       {"Usage: dlrm", "--data=", "--cache_bytes=", "--learning_rate=", "--store_path=DIR",
        "--checkpoint_dir=DIR", "--resume", "synthetic", "zipf", "Exit status"}) {
    EXPECT_THAT(result.out, HasSubstr(text));
  }
}

// What is wrong in general is flag_set_test's.
TEST(DlrmCliTest, AnUnknownFlagIsNamedWithTheNearest) {
  ExpectRefused(Small({"--cache_byte=1G"}), 2,
                AllOf(HasSubstr("--cache_byte;"), HasSubstr("did you mean --cache_bytes?")));
}

TEST(DlrmCliTest, SizesThatDoNotFitAreRefused) {
  ExpectRefused({"--dense_arch_layer_sizes=512-256-64", "--embedding_dim=16"}, 2,
                AllOf(HasSubstr("--dense_arch_layer_sizes ends in 64 but --embedding_dim is 16"),
                      HasSubstr("use --dense_arch_layer_sizes=512-256-16")));
  ExpectRefused({"--over_arch_layer_sizes=512-256"}, 2,
                HasSubstr("--over_arch_layer_sizes=512-256-1"));
}

TEST(DlrmCliTest, ACacheTooSmallForOneStepIsRefused) {
  ExpectRefused(
      Small({"--cache_bytes=1KiB"}), 1,
      AllOf(HasSubstr("--cache_bytes=1024 is too small"), HasSubstr("--cache_bytes=min")));
}

TEST(DlrmCliTest, AnUnwritableReportIsRefusedBeforeTraining) {
  const std::string dir = test::TempDir();
  ExpectRefused(
      Small({"--report=" + dir + "/missing/report.json"}), 1,
      AllOf(HasSubstr("--report="), HasSubstr("missing/report.json"), HasSubstr("give a file")));
  ExpectRefused(Small({"--report=" + dir}), 1,
                AllOf(HasSubstr("--report="), HasSubstr("directory")));
  ExpectRefused(Small({"--trace=" + dir + "/missing/trace.json"}), 1, HasSubstr("--trace="));
}

TEST(DlrmCliTest, WhatIsForThePlannerIsCheckedBeforeTraining) {
  const std::string dir = test::TempDir();
  const std::string trace = "--record_trace=" + dir + "/trace";
  for (const std::string rate : {"0", "2"}) {
    ExpectRefused(Small({trace, "--sample_rate=" + rate}), 2,
                  AllOf(HasSubstr("--sample_rate=" + rate), HasSubstr("to 1")));
  }
  ExpectRefused(Small({"--sample_rate=0.5"}), 2,
                AllOf(HasSubstr("--sample_rate=0.5"), HasSubstr("add --record_trace=FILE")));
  ExpectRefused(Small({"--mrc"}), 2, AllOf(HasSubstr("--mrc"), HasSubstr("add --report=FILE")));
  for (const std::string flag : {"save_spec", "record_trace"}) {
    ExpectRefused(
        Small({"--" + flag + "=" + dir + "/missing/file"}), 1,
        AllOf(HasSubstr("--" + flag + "="), HasSubstr("missing/file"), HasSubstr("give a file")));
    ExpectRefused(Small({"--" + flag + "=" + dir}), 1,
                  AllOf(HasSubstr("--" + flag + "="), HasSubstr("directory")));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> files, PosixEnv().ListDir(dir));
  EXPECT_TRUE(files.empty()) << files[0];
}

TEST(DlrmCliTest, RecordsForThePlannerMoveNoBitAndStandInTheReport) {
  const std::string dir = test::TempDir();
  EXPECT_EQ(Dlrm(Small({"--report=" + dir + "/plain.json"})).exit_code, 0);
  const ProgramResult result =
      Dlrm(Small({"--report=" + dir + "/report.json", "--save_spec=" + dir + "/spec.json",
                  "--record_trace=" + dir + "/trace", "--mrc"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("spec written to " + dir + "/spec.json"),
                                HasSubstr("accesses recorded in " + dir + "/trace")));
  const nlohmann::json plain = ReadJson(dir + "/plain.json");
  const nlohmann::json report = ReadJson(dir + "/report.json");
  EXPECT_EQ(report["tables_hash"], plain["tables_hash"]);
  EXPECT_EQ(report["dense_hash"], plain["dense_hash"]);
  EXPECT_EQ(report["flags"]["sample_rate"], 0.01);
  EXPECT_EQ(plain.count("mrc"), 0u);
  ASSERT_EQ(report["mrc"]["tables"].size(), 3u);
  EXPECT_EQ(report["mrc"]["tables"][1]["name"], report["tables"][1]["name"]);
  EXPECT_NEAR(report["mrc"]["accesses"].get<double>(),
              report["unique_keys_per_step"].get<double>() * 47, 0.5);
  EXPECT_EQ(ReadJson(dir + "/spec.json")["batch_size"], 64);
}

TEST(DlrmCliTest, StoresThatCannotBeOpenedAreRefused) {
  const std::string dir = test::TempDir();
  ExpectRefused(Small({"--disk_bytes=1G"}), 2, HasSubstr("--disk_bytes"));
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), dir + "/file", "x"));
  ExpectRefused(Small({"--store=ssd", "--store_path=" + dir + "/file", "--cache_bytes=1MiB"}), 1,
                HasSubstr(dir + "/file"));
  ExpectRefused(
      Small({"--store=ssd", "--store_path=" + dir + "/rows", "--cache_bytes=1MiB",
             "--disk_bytes=10KiB"}),
      1,
      AllOf(HasSubstr("disk budget of 10240 bytes is too small"), HasSubstr("raise --disk_bytes")));
  ExpectRefused(Small({"--store=ssd", "--store_path=" + dir + "/rows", "--cache_bytes=1MiB",
                       "--store_bytes=10KiB"}),
                1, AllOf(HasSubstr("memory budget of 10240"), HasSubstr("raise --store_bytes")));
  ExpectRefused(Small({"--store_bytes=10KiB"}), 1,
                AllOf(HasSubstr("memory budget of 10240"), HasSubstr("raise --store_bytes")));
}

// The hashes and metrics that two runs must agree in.
std::string EndOf(const nlohmann::json& report) {
  std::string out;
  for (const char* const key :
       {"tables_hash", "dense_hash", "steps", "samples", "epochs", "train", "valid", "test"}) {
    out += report[key].dump() + " ";
  }
  return out;
}

TEST(DlrmCliTest, ASignalTakesACheckpointAndResumeGoesOn) {
  const std::string dir = test::TempDir();
  const std::string report = dir + "/report.json";
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--epochs=40", "--report=" + report});
    return Small(more);
  };
  ASSERT_EQ(Dlrm(run({})).exit_code, 0);
  const std::string expected = EndOf(ReadJson(report));
  int stopped = 0;
  const std::string here = dir + "/here";
  const std::vector<std::string> flags = {"--store=ssd",
                                          "--store_path=" + here + "/rows",
                                          "--cache_bytes=min",
                                          "--disk_bytes=64MiB",
                                          "--checkpoint_dir=" + here + "/saved",
                                          "--checkpoint_every=300",
                                          "--prefetch_depth=2",
                                          "--resume"};
  // Summed over the lives: the last one may have too few steps left for its own checkpoint.
  int64_t checkpoints = 0;
  double pause_ms = 0;
  for (int life = 0;; ++life) {
    ASSERT_LT(life, 20);
    Child child(run(flags));
    ASSERT_TRUE(child.ReadUntil("threads on the cpu\n"));
    if (life < 3) {
      usleep(150'000);
      child.Signal(SIGTERM);
    }
    const ProgramResult result = child.Wait();
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_THAT(result.out, HasSubstr("checkpoint in " + here + "/saved/step-"));
    if (life == 0) {
      EXPECT_THAT(result.out, HasSubstr("none is there to go on from"));
    } else {
      EXPECT_THAT(result.out, HasSubstr("from     " + here + "/saved/step-"));
    }
    const nlohmann::json life_report = ReadJson(report);
    checkpoints += life_report["checkpoints"]["count"].get<int64_t>();
    pause_ms += life_report["checkpoints"]["pause_ms"]["max"].get<double>();
    if (result.out.find("Stopped by") == std::string::npos) break;
    ++stopped;
    EXPECT_THAT(result.out, HasSubstr("--resume"));
  }
  EXPECT_EQ(EndOf(ReadJson(report)), expected);
  const nlohmann::json json = ReadJson(report);
  EXPECT_EQ(json["tiers"][1]["name"], "ssd");
  EXPECT_GT(json["tiers"][1]["disk_used_bytes"], 0);
  EXPECT_GE(checkpoints, 1);
  EXPECT_GT(pause_ms, 0);

  EXPECT_THAT(Dlrm(run(flags)).out, HasSubstr("; nothing was left to train: raise --epochs\n"));

  // The same command in a second process at once, and without --resume.
  std::vector<std::string> again = flags;
  again.back() = "--epochs=1000000";
  ExpectRefused(Small(again), 1, AllOf(HasSubstr("--checkpoint_dir="), HasSubstr("--resume")));
  again.push_back("--resume");
  again.push_back("--learning_rate=0.5");
  ExpectRefused(Small(again), 1,
                AllOf(HasSubstr("--learning_rate was 0.02 and is 0.5"),
                      HasSubstr("use --learning_rate=0.02")));
  again.pop_back();
  Child holder(Small(again));
  ASSERT_TRUE(holder.ReadUntil("threads on the cpu\n"));
  ExpectRefused(Small(again), 1, AllOf(HasSubstr("--checkpoint_dir="), HasSubstr("another job")));
  std::vector<std::string> elsewhere = again;
  elsewhere.push_back("--checkpoint_dir=" + test::TempDir());
  ExpectRefused(Small(elsewhere), 1, AllOf(HasSubstr("/rows"), HasSubstr("open")));
  holder.Signal(SIGTERM);
  EXPECT_EQ(holder.Wait().exit_code, 0);
  EXPECT_GT(stopped, 0) << "no signal came in time: nothing was tested";
}

TEST(DlrmCliTest, ADeviceThatIsNotThereIsRefused) {
  ExpectRefused(Small({"--device=gpu"}), 2,
                AllOf(HasSubstr("--device=gpu"), HasSubstr("takes cpu or cuda")));
  if (test::UsableGpu().ok()) {
    ExpectRefused(Small({"--device=cuda"}), 2, HasSubstr("--device_cache_bytes=BYTES"));
    return;
  }
  ExpectRefused(Small({"--device=cuda", "--device_cache_bytes=1GiB"}), 1,
                AllOf(HasSubstr("--device=cuda: no usable GPU"), HasSubstr("--device=cpu")));
}

TEST(DlrmCliTest, TheTiersOfADeviceMoveNoBit) {
  const std::string dir = test::TempDir();
  const auto train = [&](std::vector<std::string> flags) {
    const std::string report = dir + "/report.json";
    flags.push_back("--report=" + report);
    const ProgramResult result = Dlrm(Small(flags));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return ReadJson(report);
  };
  const nlohmann::json plain = train({});
  const nlohmann::json over_memory = train({"--device_cache_bytes=min", "--prefetch_depth=2"});
  EXPECT_EQ(EndOf(over_memory), EndOf(plain));
  EXPECT_EQ(over_memory["tiers"][0]["name"], "device_cache");
  EXPECT_GT(over_memory["tiers"][0]["evictions"], 0);
  EXPECT_GT(over_memory["transfer"]["host_bytes"], 0);
  EXPECT_EQ(plain["transfer"]["host_bytes"], 0);
  const nlohmann::json over_disk =
      train({"--device_cache_bytes=min", "--store=ssd", "--store_path=" + dir + "/store",
             "--store_bytes=8MiB", "--disk_bytes=256MiB", "--cache_bytes=1MiB"});
  EXPECT_EQ(EndOf(over_disk), EndOf(plain));
  EXPECT_EQ(over_disk["tiers"][1]["name"], "cache");
  EXPECT_GT(over_disk["tiers"][1]["unique_hit_rate"], 0);

  ExpectRefused(Small({"--device_cache_bytes=min", "--cache_bytes=min", "--store=ssd",
                       "--store_path=" + dir + "/other"}),
                2, HasSubstr("--cache_bytes=min"));
  ExpectRefused(Small({"--device_cache_bytes=1"}), 1, HasSubstr("--device_cache_bytes=min"));
  ExpectRefused(Small({"--device_cache_bytes=min", "--cache_bytes=1MiB"}), 2,
                AllOf(HasSubstr("--cache_bytes"), HasSubstr("the memory store")));
}

TEST(DlrmCliTest, ABadDataKeyIsRefused) {
  ExpectRefused({"--data=synthetic:tabels=3"}, 2, AllOf(HasSubstr("--data"), HasSubstr("tabels")));
  ExpectRefused({"--data=nowhere"}, 2, AllOf(HasSubstr("--data"), HasSubstr("synthetic")));
}

TEST(DlrmCliTest, AStoreTooSmallForTheTablesSaysSo) {
  const ProgramResult result = Dlrm(Small({"--store_bytes=1KiB"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("1024"));
}

// What limits or the world do to a run is an error with one line, never a signal.
TEST(DlrmCliTest, AFileAboveTheLimitIsAnError) {
  const std::string dir = test::TempDir();
  for (const std::string store : {"memory", "ssd"}) {
    std::vector<std::string> arguments =
        Small({absl::StrCat("--checkpoint_dir=", dir, "/", store), "--store=" + store});
    if (store == "ssd") {
      arguments.push_back("--store_path=" + dir + "/store");
      arguments.push_back("--disk_bytes=64MiB");
    }
    test::Program program = DlrmProgram(arguments);
    program.file_bytes = 4096;
    const ProgramResult result = test::RunProgram(program);
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("File too large"), HasSubstr("ulimit -f"))) << store;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

// AddressSanitizer reserves more than any limit.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(DlrmCliTest, TooLittleMemoryIsAnError) {
  int64_t failed = 0;
  for (const int64_t kib : {140'000, 150'000, 160'000, 180'000, 220'000}) {
    test::Program program = DlrmProgram(Small({"--threads=4"}));
    program.address_space_bytes = kib * 1024;
    const ProgramResult result = test::RunProgram(program);
    EXPECT_GE(result.exit_code, 0) << kib << ": " << result.err;
    EXPECT_LE(result.exit_code, 2) << kib << ": " << result.err;
    if (result.exit_code == 0) continue;
    ++failed;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  EXPECT_GT(failed, 0);
}
#endif

TEST(DlrmCliTest, DataThatAreNoFileAreRefused) {
  const std::string dir = test::TempDir();
  const std::string fifo = dir + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  ExpectRefused({"--data=criteo:" + fifo}, 1, AllOf(HasSubstr(fifo), HasSubstr("is a FIFO")));
  ExpectRefused({"--data=table:/dev/zero"}, 1, HasSubstr("is a character device"));
  for (const std::string flag : {"--trace=", "--record_trace="}) {
    for (const std::string& path : {fifo, dir + "/none/file"}) {
      const ProgramResult result = Dlrm(Small({flag + path}));
      EXPECT_EQ(result.exit_code, 1);
      EXPECT_THAT(result.err, AllOf(HasSubstr(flag + path), HasSubstr("give a file"),
                                    testing::Not(HasSubstr("copy its contents"))));
      EXPECT_EQ(result.out, "");  // before training
    }
  }
  const ProgramResult unread = Dlrm(Small({"--report=" + fifo}));
  EXPECT_EQ(unread.exit_code, 1);
  EXPECT_THAT(unread.err, AllOf(HasSubstr("--report=" + fifo), HasSubstr("nobody reads")));
}

TEST(DlrmCliTest, SchemasThatAreTooDeepOrTooLargeAreRefused) {
  const std::string path = test::TempDir() + "/schema.json";
  HOTROW_ASSERT_OK(
      WriteFileAtomically(PosixEnv(), path,
                          absl::StrCat("{\"name\": \"t\", \"header\": ", std::string(100'000, '['),
                                       std::string(100'000, ']'), "}")));
  ExpectRefused({"--data=table:" + path}, 2, AllOf(HasSubstr(path), HasSubstr("deep")));
  std::filesystem::resize_file(path, uint64_t{200} << 30);
  ExpectRefused({"--data=table:" + path}, 1, AllOf(HasSubstr(path), HasSubstr("214748364800")));
}

// The first one goes on.
TEST(DlrmCliTest, ASecondJobInADirectoryIsRefusedByName) {
  const std::string dir = test::TempDir();
  for (const std::string flag : {"checkpoint_dir", "save_dir"}) {
    const std::string argument = absl::StrCat("--", flag, "=", dir, "/", flag);
    Child first(Small({argument, "--epochs=1000"}));
    ASSERT_TRUE(first.ReadUntil("step")) << "it did not start";
    const ProgramResult second = Dlrm(Small({argument}));
    EXPECT_EQ(second.exit_code, 1);
    EXPECT_THAT(second.err, AllOf(HasSubstr(argument), HasSubstr("another job"))) << second.err;
    EXPECT_EQ(std::count(second.err.begin(), second.err.end(), '\n'), 1) << second.err;
    first.Signal(SIGINT);
    EXPECT_EQ(first.Wait().exit_code, 0);
  }
}

TEST(DlrmCliTest, DivergenceNamesTheRemedy) {
  const ProgramResult result = Dlrm(Small({"--dense_optimizer=sgd", "--dense_learning_rate=1e30"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("step "), HasSubstr("lower --learning_rate")));
}

}  // namespace
}  // namespace hotrow
