// The training program under mpirun, as a user starts it: ranks are processes, and one may die.

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "gtest/gtest.h"
#include "tests/support/mpirun.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::Mpirun;
using test::Program;
using test::ProgramResult;
using test::RunProgram;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> Dlrm(const std::vector<std::string>& more) {
  std::vector<std::string> command = {
      HOTROW_DLRM_BINARY,
      "--data=synthetic:tables=3,rows=300,dense=2,samples=4000,valid=300,test=900",
      "--embedding_dim=8",
      "--dense_arch_layer_sizes=16-8",
      "--over_arch_layer_sizes=16-1",
      "--batch_size=64",
      "--threads=1",
      "--store_bytes=64MiB"};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

ProgramResult OnRanks(int ranks, const std::vector<std::string>& flags) {
  return RunProgram(Mpirun(ranks, /*recovery=*/false, Dlrm(flags)));
}

nlohmann::json ReadJson(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), path);
  HOTROW_EXPECT_OK(text);
  return text.ok() ? nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false)
                   : nlohmann::json();
}

TEST(RanksCliTest, TheSameCommandOnAnyNumberOfRanks) {
  const std::string dir = test::TempDir();
  const auto run = [&](int ranks, std::vector<std::string> flags) {
    flags.push_back(absl::StrCat("--report=", dir, "/report.json"));
    const ProgramResult outcome = OnRanks(ranks, flags);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    // One rank speaks for all.
    EXPECT_EQ(outcome.out.find("test AUC"), outcome.out.rfind("test AUC")) << outcome.out;
    return ReadJson(dir + "/report.json");
  };
  const nlohmann::json one = run(1, {});
  const nlohmann::json two = run(2, {});
  const nlohmann::json four = run(4, {"--prefetch_depth=2", "--cache_bytes=min"});
  for (const nlohmann::json* many : {&two, &four}) {
    EXPECT_EQ((*many)["steps"], one["steps"]);
    EXPECT_EQ((*many)["rows"], one["rows"]);
    EXPECT_EQ((*many)["samples"], one["samples"]);
    EXPECT_NEAR((*many)["test"]["auc"].get<double>(), one["test"]["auc"].get<double>(), 5e-4);
    for (const char* const field :
         {"ids_bytes", "forward_bytes", "backward_bytes", "dense_bytes"}) {
      EXPECT_GT((*many)["exchange"][field], 0) << field;
      EXPECT_EQ(one["exchange"][field], 0) << field;
    }
  }
  EXPECT_EQ(two["world_size"], 2);
  const nlohmann::json again = run(2, {"--store=ssd", absl::StrCat("--store_path=", dir, "/rows"),
                                       "--disk_bytes=64MiB", "--cache_bytes=min"});
  EXPECT_EQ(again["tables_hash"], two["tables_hash"]);
  EXPECT_EQ(again["dense_hash"], two["dense_hash"]);
  EXPECT_TRUE(*PosixEnv().Exists(dir + "/rows/rank-00001-of-00002"));
}

TEST(RanksCliTest, WrongUsageIsSaidByEachRankAndEndsAll) {
  const ProgramResult outcome = OnRanks(2, {"--exchange_forward=fp8"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("--exchange_forward=fp8"), HasSubstr("int8")));
  const ProgramResult comm = RunProgram({.arguments = Dlrm({"--comm=tcp"}), .joined = true});
  EXPECT_EQ(comm.exit_code, 2);
  EXPECT_THAT(comm.out, AllOf(HasSubstr("--comm=tcp"), HasSubstr("mpi")));
}

// Ranks that would train another model, validate at other steps or read other data end before the
// first step, and none waits for the timeout. All differences there are: trainer_ranks_test.
TEST(RanksCliTest, OtherFlagsOfARankAreNamedAtOnce) {
  for (const auto& [flag, difference] :
       {std::pair<const char*, const char*>{
            "--dense_learning_rate=0.5",
            "--dense_learning_rate is 0.01 on rank 0 and 0.5 on rank 1"},
        {"--data=synthetic:tables=3,rows=300,dense=2,samples=4000,valid=300,test=900,zipf=0.5",
         "--data, generated is tables=3,rows=300,zipf=1.05,"}}) {
    Program program = Mpirun(1, /*recovery=*/false, Dlrm({"--comm_timeout=600"}));
    std::vector<std::string>& words = program.arguments;
    words.insert(words.end(), {":", HOTROW_MPIEXEC_NUMPROC_FLAG, "1"});
    const std::vector<std::string> second = Dlrm({"--comm_timeout=600", flag});
    words.insert(words.end(), second.begin(), second.end());
    const ProgramResult outcome = RunProgram(program);
    // 1 where a rank hears that the other has ended the job before it has compared by itself.
    EXPECT_THAT(outcome.exit_code, testing::AnyOf(1, 2)) << outcome.out;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("the ranks differ: "), HasSubstr(difference)));
  }
}

TEST(RanksCliTest, AFailureOfRankZeroEndsAll) {
  const ProgramResult outcome = OnRanks(3, {"--report=/nowhere/report.json"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("--report=/nowhere/report.json"));
}

// A rank is killed at some moment, again and again until the run is over; each time the others end
// by themselves and name it, and the next start goes on. The end is that of a run without a kill.
// rank_kill_test chooses the moments, and always runs.
TEST(RanksCliTest, ARankThatIsKilledIsNamedAndTheRunGoesOn) {
  if (!test::RunsSlowTests()) GTEST_SKIP() << "HOTROW_SLOW_TESTS is not set";
  constexpr int kRanks = 3;
  constexpr int kKillsMax = 30;
  for (const std::string store : {"memory", "ssd"}) {
    const std::string dir = test::TempDir();
    const auto flags = [&](const std::string& name) {
      std::vector<std::string> out = {
          "--epochs=8",
          "--cache_bytes=min",
          "--prefetch_depth=2",
          "--resume",
          "--checkpoint_every=15",
          absl::StrCat("--checkpoint_dir=", dir, "/", name, "/saved"),
          absl::StrCat("--report=", dir, "/report.json"),
      };
      if (store == "ssd") {
        out.insert(out.end(),
                   {"--store=ssd", absl::StrCat("--store_path=", dir, "/", name, "/rows"),
                    "--disk_bytes=64MiB"});
      }
      return out;
    };
    // Others than the killed rank may be slow, but not that slow. Who leaves MPI may be, too.
    constexpr char kTimeout[] = "--comm_timeout=6";
    const ProgramResult straight = OnRanks(kRanks, flags("straight"));
    ASSERT_EQ(straight.exit_code, 0) << straight.out;
    const nlohmann::json expected = ReadJson(dir + "/report.json");

    int killed = 0;
    bool ended = false;
    for (int life = 0; life < 30 && !ended; ++life) {
      const int victim = life % kRanks;
      // Later in each life, so that the run gets on. Not before the ranks know each other: who dies
      // while MPI starts is for mpirun, which ends the others unless it is told not to, as here.
      const double delay = 0.02 + 0.05 * life * life;
      const bool kills = killed < kKillsMax;
      const std::string out = absl::StrCat(dir, "/out.", life, ".");
      const std::string script = absl::StrCat(
          "\"$@\" >", out, "$OMPI_COMM_WORLD_RANK 2>&1 & p=$!; ", kills ? "" : "false && ",
          "[ $OMPI_COMM_WORLD_RANK = ", victim, " ] && (until grep -q 'threads on' ", out,
          "0; do sleep 0.05; done; sleep ", delay, "; kill -9 $p) 2>/dev/null & ",
          "wait $p; echo rank $OMPI_COMM_WORLD_RANK ended with $?; cat ", out,
          "$OMPI_COMM_WORLD_RANK");
      std::vector<std::string> command = {"/bin/sh", "-c", script, "sh"};
      const std::vector<std::string> dlrm = Dlrm(flags("killed"));
      command.insert(command.end(), dlrm.begin(), dlrm.end());
      if (kills) command.push_back(kTimeout);
      const ProgramResult outcome = RunProgram(Mpirun(kRanks, /*recovery=*/true, command));
      const auto status_of = [&](int rank, int status) {
        return absl::StrCat("rank ", rank, " ended with ", status, "\n");
      };
      ended = outcome.out.find(status_of(0, 0)) != std::string::npos;
      if (outcome.out.find(status_of(victim, 137)) == std::string::npos) continue;
      ++killed;
      // It had nothing left to do, or the others had nothing left to do with it.
      const int other = (victim + 1) % kRanks;
      if (ended || outcome.out.find(status_of(other, 0)) != std::string::npos) continue;
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank == victim) continue;
        EXPECT_THAT(outcome.out, HasSubstr(status_of(rank, 1))) << outcome.out;
      }
      EXPECT_THAT(outcome.out, HasSubstr(absl::StrCat("no answer from rank ", victim)))
          << outcome.out;
    }
    EXPECT_TRUE(ended);
    EXPECT_GE(killed, 2);
    const nlohmann::json report = ReadJson(dir + "/report.json");
    EXPECT_EQ(report["tables_hash"], expected["tables_hash"]) << store;
    EXPECT_EQ(report["dense_hash"], expected["dense_hash"]);
    EXPECT_EQ(report["steps"], expected["steps"]);
    EXPECT_EQ(report["test"]["auc"], expected["test"]["auc"]);
  }
}

}  // namespace
}  // namespace hotrow
