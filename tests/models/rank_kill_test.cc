// A rank that is killed in the midst of each kind of exchange, and between the two phases of a
// checkpoint: the others end in time and name it, and the next start goes on with the same bits.

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/philox.h"
#include "gtest/gtest.h"
#include "tests/support/mpirun.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::ProgramResult;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
// Others than the killed rank may be slow, but not that slow. Where nobody is killed, nobody is in
// a hurry: to leave MPI takes seconds on a busy machine with sanitizers.
constexpr double kTimeoutSeconds = 6;
constexpr double kPatientSeconds = 60;
constexpr double kSecondsMax = 30;  // from the kill to the end of the last process

struct Kill {
  std::string kind;  // as rank_kill_main says them
  std::string moment;
  int victim = 0;
};

// Kills of one run after another.
struct Chain {
  std::string store;
  std::vector<Kill> kills;
};

std::vector<std::string> Program(const std::string& store, const std::string& dir, int epochs,
                                 double timeout_seconds,
                                 const std::vector<std::string>& kill = {}) {
  std::vector<std::string> command = {HOTROW_RANK_KILL_MAIN, store, dir, absl::StrCat(epochs),
                                      absl::StrCat(timeout_seconds)};
  command.insert(command.end(), kill.begin(), kill.end());
  return command;
}

// What a run ends with that nobody disturbs.
std::string EndOfRun(const std::string& store, const std::string& dir, int epochs,
                     int ranks = kRanks) {
  HOTROW_EXPECT_OK(PosixEnv().CreateDirs(dir));
  const ProgramResult outcome = test::RunProgram(
      test::Mpirun(ranks, /*recovery=*/false, Program(store, dir, epochs, kPatientSeconds)));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  const absl::StatusOr<std::string> end = ReadFileToString(PosixEnv(), dir + "/end");
  HOTROW_EXPECT_OK(end);
  return end.value_or("");
}

// One life, which this kill ends.
void ExpectNamed(const std::string& store, const std::string& dir, int epochs, const Kill& kill) {
  for (const char* const name : {"/committing", "/dying", "/killed"}) {
    PosixEnv().Remove(dir + name).IgnoreError();
  }
  const ProgramResult outcome = test::RunProgram(test::MpirunSayingHowRanksEnd(
      kRanks, Program(store, dir, epochs, kTimeoutSeconds,
                      {kill.kind, kill.moment, absl::StrCat(kill.victim)})));
  const auto now = std::filesystem::file_time_type::clock::now();
  std::error_code error;
  const auto killed = std::filesystem::last_write_time(dir + "/killed", error);
  EXPECT_FALSE(error) << "nobody was killed";
  EXPECT_LT(std::chrono::duration<double>(now - killed).count(), kSecondsMax);
  EXPECT_THAT(outcome.out, HasSubstr(absl::StrCat("rank ", kill.victim, " ended with 137\n")));
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kill.victim) continue;
    EXPECT_THAT(outcome.out, HasSubstr(absl::StrCat("rank ", rank, " ended with 1\n")));
    EXPECT_THAT(outcome.out, ::testing::ContainsRegex(
                                 absl::StrCat("rank ", rank, ": [A-Za-z]+: no answer from rank ",
                                              kill.victim, " for ", kTimeoutSeconds, " s")));
  }
  if (::testing::Test::HasFailure()) ADD_FAILURE() << outcome.out;
}

// One life after another, each killed in its own way; the last one gets to the end. `base` is an
// empty directory.
void ExpectTheSameEnd(const Chain& chain, const std::string& base) {
  const auto& [store, kills] = chain;
  // A life goes on for a checkpoint or two; there is one every five steps, two in an epoch.
  const int epochs = 4 * static_cast<int>(kills.size() + 1);
  const std::string undisturbed = base + "/undisturbed";
  const std::string dir = base + "/killed";
  HOTROW_ASSERT_OK(PosixEnv().CreateDirs(undisturbed));
  HOTROW_ASSERT_OK(PosixEnv().CreateDirs(dir));
  const std::string expected = EndOfRun(store, undisturbed, epochs);
  ASSERT_NE(expected, "");
  for (const Kill& kill : kills) {
    SCOPED_TRACE(
        absl::StrCat(store, ": rank ", kill.victim, " killed in ", kill.kind, ", ", kill.moment));
    ExpectNamed(store, dir, epochs, kill);
    // A life that went another way would leave nothing for the next ones.
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(EndOfRun(store, dir, epochs), expected);
}

TEST(RankKillTest, OthersNameItAndTheNextStartGoesOn) {
  ExpectTheSameEnd({"memory", {{"gradients", "halfway", 1}, {"commit", "before", 2}}},
                   test::TempDir());
}

TEST(RankKillSlowTest, InTheMidstOfEveryExchange) {
  const std::vector<Chain> chains = {{"memory",
                                      {{"key_counts", "halfway", 0},
                                       {"keys", "halfway", 1},
                                       {"rows", "halfway", 2},
                                       {"gradients", "halfway", 0},
                                       {"dense", "halfway", 1}}},
                                     {"ssd",
                                      {{"keys", "before", 2},
                                       {"rows", "before", 1},
                                       {"gradients", "after", 1},
                                       {"loss", "halfway", 0},
                                       {"dense", "after", 2}}},
                                     {"memory",
                                      {{"evaluation_counts", "halfway", 2},
                                       {"evaluation_keys", "halfway", 0},
                                       {"evaluation_rows", "halfway", 1},
                                       {"logits", "halfway", 2},
                                       {"logits", "before", 0}}},
                                     {"memory",
                                      {{"snapshots", "before", 1},
                                       {"snapshots", "halfway", 0},
                                       {"commit", "halfway", 1},
                                       {"commit", "before", 0},
                                       {"commit", "after", 0}}},
                                     {"ssd",
                                      {{"snapshots", "halfway", 2},
                                       {"snapshots", "after", 0},
                                       {"commit", "after", 2},
                                       {"commit", "before", 0},
                                       {"commit", "after", 0}}}};
  // Most of the time is spent in waiting for the rank that is dead.
  std::vector<std::thread> threads;
  for (const Chain& chain : chains) {
    threads.emplace_back([&chain, dir = test::TempDir()] { ExpectTheSameEnd(chain, dir); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Lives of two ranks, each ended by a kill of one of them at any moment; in every second one writes
// fail, too, which may end it before.
void KillAnytime(const std::string& store, int64_t kills, uint64_t seed, const std::string& base) {
  constexpr int kEpochs = 12;
  constexpr double kShortTimeoutSeconds = 2;
  const std::string expected = EndOfRun(store, base + "/undisturbed", kEpochs, 2);
  ASSERT_NE(expected, "");
  RandomStream random(seed, RandomPurpose::kTest);
  const std::string dir = base + "/killed";
  HOTROW_ASSERT_OK(PosixEnv().CreateDirs(dir));
  int64_t killed = 0;
  int64_t whole = 0;
  for (int64_t life = 0; killed < kills; ++life) {
    SCOPED_TRACE(absl::StrCat(store, ", life ", life, ", HOTROW_TEST_SEED=", seed));
    PosixEnv().Remove(dir + "/killed").IgnoreError();
    const uint64_t faults = life % 2 == 0 ? 0 : 1 + random.Below(1'000'000);
    const uint64_t ms = random.Below(2000);
    const uint64_t victim = random.Below(2);
    const ProgramResult outcome = test::RunProgram(test::MpirunSayingHowRanksEnd(
        2, Program(store, dir, kEpochs, kShortTimeoutSeconds,
                   {"anytime", absl::StrCat(ms), absl::StrCat(victim), absl::StrCat(faults)})));
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_THAT(outcome.out,
                  ::testing::ContainsRegex(absl::StrCat("rank ", rank, " ended with (0|1|137)\n")));
    }
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << outcome.out;
      return;
    }
    killed += PosixEnv().Exists(dir + "/killed").value_or(false);
    const absl::StatusOr<std::string> end = ReadFileToString(PosixEnv(), dir + "/end");
    if (!end.ok()) continue;
    ++whole;
    EXPECT_EQ(*end, expected);
    std::filesystem::remove_all(dir);
    HOTROW_ASSERT_OK(PosixEnv().CreateDirs(dir));
  }
  EXPECT_EQ(EndOfRun(store, dir, kEpochs, 2), expected);
  std::printf("%s: %lld kills, %lld whole runs\n", store.c_str(), static_cast<long long>(killed),
              static_cast<long long>(whole));
}

TEST(RankKillSlowTest, AtAnyMomentWhileWritesFail) {
  for (const uint64_t seed : test::Seeds(1)) {
    std::vector<std::thread> threads;
    for (const char* const store : {"memory", "ssd"}) {
      threads.emplace_back(
          [store, seed, dir = test::TempDir()] { KillAnytime(store, 40, seed, dir); });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace hotrow
