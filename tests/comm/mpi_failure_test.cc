// Ranks that die or stop under mpirun: the others end in time, with a message that names the rank.
// mpirun itself ends all processes when one dies by a signal; with recovery enabled it leaves that
// to us.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/comm/collectives.h"
#include "tests/support/mpirun.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr double kTimeoutSeconds = 2;

// With recovery each rank says how it ended.
ProgramResult RunUnderMpirun(int ranks, bool recovery, const std::string& arguments) {
  std::vector<std::string> command = {HOTROW_MPI_FAILURE_MAIN};
  for (const absl::string_view argument : absl::StrSplit(arguments, ' ')) {
    command.emplace_back(argument);
  }
  command.push_back(absl::StrCat(kTimeoutSeconds));
  Program program = recovery ? MpirunSayingHowRanksEnd(ranks, command)
                             : Mpirun(ranks, /*recovery=*/false, command);
  program.timeout_seconds = 60;
  return RunProgram(program);
}

// Starting the processes, calls that go well, 5/4 of the timeout, and time for a busy machine.
constexpr double kSecondsMax = 1.25 * kTimeoutSeconds + 20;

class MpiFailureTest : public testing::TestWithParam<Collective> {};

TEST_P(MpiFailureTest, AllSurvivorsNameTheRankThatWasKilled) {
  const int number = static_cast<int>(GetParam());
  const int victim = number % 3;
  // How ranks wait for each other is the same for all calls and sizes.
  const bool always =
      GetParam() == Collective::kAllReduceSlices || GetParam() == Collective::kBarrier;
  for (const int bytes : {1000, 300'000}) {
    if (GetParam() == Collective::kBarrier ? bytes > 1000 : bytes < 300'000 && !RunsSlowTests()) {
      continue;
    }
    if (!always && !RunsSlowTests()) GTEST_SKIP() << "HOTROW_SLOW_TESTS is not set";
    SCOPED_TRACE(bytes);
    const ProgramResult outcome =
        RunUnderMpirun(3, true, absl::StrCat(number, " ", bytes, " ", victim, " kill"));
    EXPECT_LT(outcome.seconds, kSecondsMax);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_THAT(outcome.out, HasSubstr(absl::StrCat("rank ", rank, " ended with 3\n")));
      EXPECT_THAT(
          outcome.out,
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
  const ProgramResult outcome = RunUnderMpirun(3, false, "0 1000 1 kill");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_LT(outcome.seconds, kSecondsMax);
  EXPECT_THAT(outcome.out, AnyOf(HasSubstr("rank 1"), HasSubstr("rank: 1")));
}

TEST(MpiFailureTest, AStoppedRankIsNamed) {
  const ProgramResult outcome = RunUnderMpirun(3, false, "0 1000 2 stop");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_LT(outcome.seconds, kSecondsMax);
  EXPECT_THAT(outcome.out, HasSubstr("AllToAllV: no answer from rank 2 for 2 s"));
}

TEST(MpiFailureTest, ARankThatDoesSomethingElseIsNamed) {
  const ProgramResult outcome = RunUnderMpirun(2, false, "0 1000 0 sleep");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_LT(outcome.seconds, kSecondsMax);
  EXPECT_THAT(outcome.out, HasSubstr("rank 1: DEADLINE_EXCEEDED: AllToAllV: no answer from "
                                     "rank 0 for 2 s (2 ranks)"));
}

TEST(MpiFailureTest, ARankThatIsDoneTooEarlyIsNamed) {
  const ProgramResult outcome = RunUnderMpirun(3, false, "7 0 1 exit");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_LT(outcome.seconds, kSecondsMax);
  EXPECT_THAT(outcome.out, HasSubstr("Barrier: no answer from rank 1 for 2 s"));
}

}  // namespace
}  // namespace hotrow::test
