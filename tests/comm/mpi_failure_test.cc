// Ranks that die or stop under mpirun: the others end in time, with a message that names the rank.
// mpirun itself ends all processes when one dies by a signal; with recovery enabled it leaves that
// to us.

#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/comm/collectives.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr double kTimeoutSeconds = 2;

struct Outcome {
  int exit_status = 0;  // -1: by a signal
  double seconds = 0;
  std::string output;
};

// With recovery mpirun itself returns 0 whatever becomes of the ranks, so each says how it ended.
Outcome RunUnderMpirun(int ranks, bool recovery, const std::string& arguments) {
  const std::string program =
      absl::StrCat("'", HOTROW_MPI_FAILURE_MAIN, "' ", arguments, " ", kTimeoutSeconds);
  const std::string command = absl::StrCat(
      "env ", HOTROW_MPI_ENVIRONMENT, " OMPI_MCA_orte_enable_recovery=", recovery ? 1 : 0,
      " timeout -k 5 60 '", HOTROW_MPIEXEC, "' ", HOTROW_MPIEXEC_NUMPROC_FLAG, " ", ranks, " ",
      recovery ? absl::StrCat("sh -c \"", program, "; echo ended with \\$?\"") : program,
      " 2>&1 </dev/null");
  Outcome outcome;
  const auto begin = std::chrono::steady_clock::now();
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    outcome.output.append(buffer, n);
  }
  const int status = ::pclose(pipe);
  outcome.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  outcome.seconds = took.count();
  return outcome;
}

// Starting the processes, calls that go well, 5/4 of the timeout, and time for a busy machine.
constexpr double kSecondsMax = 1.25 * kTimeoutSeconds + 20;

class MpiFailureTest : public testing::TestWithParam<Collective> {};

TEST_P(MpiFailureTest, AllSurvivorsNameTheRankThatWasKilled) {
  const int number = static_cast<int>(GetParam());
  const int victim = number % 3;
  for (const int bytes : {1000, 300'000}) {
    if (GetParam() == Collective::kBarrier && bytes > 1000) continue;
    SCOPED_TRACE(bytes);
    const Outcome outcome =
        RunUnderMpirun(3, true, absl::StrCat(number, " ", bytes, " ", victim, " kill"));
    EXPECT_LT(outcome.seconds, kSecondsMax);
    int ended_with_3 = 0;
    for (const absl::string_view line : absl::StrSplit(outcome.output, '\n')) {
      ended_with_3 += line == "ended with 3";
    }
    EXPECT_EQ(ended_with_3, 2) << outcome.output;
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_THAT(
          outcome.output,
          HasSubstr(absl::StrCat("rank ", rank, ": DEADLINE_EXCEEDED: ", CollectiveName(GetParam()),
                                 ": no answer from rank ", victim, " for 2 s")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MpiFailureTest,
                         testing::Values(Collective::kAllToAllV, Collective::kAllReduceSlices,
                                         Collective::kAllGatherV, Collective::kBroadcastSlices,
                                         Collective::kBarrier),
                         [](const auto& info) { return CollectiveName(info.param); });

TEST(MpiFailureTest, MpirunEndsTheOthersOfAKilledRank) {
  const Outcome outcome = RunUnderMpirun(3, false, "0 1000 1 kill");
  EXPECT_NE(outcome.exit_status, 0);
  EXPECT_LT(outcome.seconds, kSecondsMax);
  EXPECT_THAT(outcome.output, AnyOf(HasSubstr("rank 1"), HasSubstr("rank: 1")));
}

TEST(MpiFailureTest, AStoppedRankIsNamed) {
  const Outcome outcome = RunUnderMpirun(3, false, "0 1000 2 stop");
  EXPECT_NE(outcome.exit_status, 0);
  EXPECT_LT(outcome.seconds, kSecondsMax);
  EXPECT_THAT(outcome.output, HasSubstr("AllToAllV: no answer from rank 2 for 2 s"));
}

TEST(MpiFailureTest, ARankThatDoesSomethingElseIsNamed) {
  const Outcome outcome = RunUnderMpirun(2, false, "0 1000 0 sleep");
  EXPECT_NE(outcome.exit_status, 0);
  EXPECT_LT(outcome.seconds, kSecondsMax);
  EXPECT_THAT(outcome.output, HasSubstr("rank 1: DEADLINE_EXCEEDED: AllToAllV: no answer from "
                                        "rank 0 for 2 s (2 ranks)"));
}

TEST(MpiFailureTest, ARankThatIsDoneTooEarlyIsNamed) {
  const Outcome outcome = RunUnderMpirun(3, false, "7 0 1 exit");
  EXPECT_NE(outcome.exit_status, 0);
  EXPECT_LT(outcome.seconds, kSecondsMax);
  EXPECT_THAT(outcome.output, HasSubstr("Barrier: no answer from rank 1 for 2 s"));
}

}  // namespace
}  // namespace hotrow::test
