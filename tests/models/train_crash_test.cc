// Training that is killed anywhere, resumed, and ends as if nothing had been. The target
// train_slow_test compiles the same with many more kills.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/philox.h"
#include "models/checkpoint.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

// ctest's label slow runs the same cases with larger numbers.
const bool kSlow = test::RunsSlowTests();

using test::EndOf;

constexpr char kData[] =
    "synthetic:tables=3,rows=4000,dense=2,shared=2,hotness=0-3,zipf=0.8,samples=7680,valid=200,"
    "test=200";
constexpr int64_t kDiskBytes = int64_t{8} << 20;

TrainerOptions Options() {
  TrainerOptions options = test::SmallRun();
  options.batch_size = 256;
  options.epochs = 3;
  options.settings = {{"data", kData}};
  options.validation_freq_within_epoch = 11;
  options.store_bytes = int64_t{24} << 20;
  return options;
}

TrainerOptions OptionsOn(StoreKind store, const std::string& dir) {
  TrainerOptions options = Options();
  options.store = store;
  options.cache_bytes = kSmallestCache;
  options.prefetch_depth = 2;
  if (store != StoreKind::kMemory) {
    options.store_path = dir + "/rows";
    options.disk_bytes = store == StoreKind::kSsd ? kDiskBytes : int64_t{1} << 30;
    // RocksDB asks for more than this.
    if (store == StoreKind::kRocksDb) options.store_bytes = int64_t{64} << 20;
  }
  options.checkpoint_dir = dir + "/checkpoints";
  options.checkpoint_every = 3;
  options.keep_checkpoints = 2;
  options.resume = true;
  return options;
}

// One life: trains until it is killed or at the end, where it leaves what it ended with. Writes a
// byte to the pipe for each training batch that it reads.
[[noreturn]] void Child(StoreKind store, const std::string& dir, int pipe) {
  const absl::StatusOr<TrainReport> report = test::RunSmall(
      OptionsOn(store, dir),
      [pipe](Split split, int64_t, int64_t) {
        const char byte = 1;
        if (split == Split::kTrain && ::write(pipe, &byte, 1) != 1) ::_exit(4);
        return absl::OkStatus();
      },
      {}, kData);
  if (!report.ok()) {
    std::fprintf(stderr, "child: %s\n", report.status().ToString().c_str());
    ::_exit(3);
  }
  if (!WriteFileAtomically(PosixEnv(), dir + "/end", EndOf(*report)).ok()) ::_exit(5);
  ::_exit(0);
}

// What the kills met.
struct Kills {
  int64_t kills = 0;
  int64_t in_checkpoint = 0;     // a directory without a name was left
  int64_t before_the_first = 0;  // no checkpoint was there
  int64_t runs = 0;
};

Kills KillOften(StoreKind store, int64_t kills, uint64_t seed, const std::string& expected) {
  Kills out;
  const std::string dir = test::TempDir();
  RandomStream random(seed, RandomPurpose::kTest, static_cast<uint64_t>(store));
  Env& env = PosixEnv();
  while (true) {
    SCOPED_TRACE(absl::StrCat(std::string(StoreKindName(store)), ", kill ", out.kills,
                              ", HOTROW_TEST_SEED=", seed));
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      Child(store, dir, ends[1]);
    }
    ::close(ends[1]);
    const bool to_the_end = out.kills >= kills;
    if (!to_the_end) {
      // At any moment of its life, also while it opens what the last one left.
      const uint64_t batches = random.Below(4) == 0 ? 0 : 1 + random.Below(14);
      char byte = 0;
      for (uint64_t i = 0; i < batches; ++i) {
        if (::read(ends[0], &byte, 1) != 1) break;
      }
      ::usleep(static_cast<useconds_t>(random.Below(batches == 0 ? 30'000 : 80'000)));
      ::kill(child, SIGKILL);
    }
    char rest[256];
    while (::read(ends[0], rest, sizeof(rest)) > 0) {
    }
    ::close(ends[0]);
    int how = 0;
    EXPECT_EQ(::waitpid(child, &how, 0), child);
    if (WIFSIGNALED(how)) {
      ++out.kills;
      const auto names = env.ListDir(dir + "/checkpoints");
      bool committed = false;
      for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
        if (!absl::StartsWith(name, "step-")) continue;
        if (absl::EndsWith(name, ".tmp")) {
          ++out.in_checkpoint;
        } else {
          committed = true;
        }
      }
      out.before_the_first += !committed;
      continue;
    }
    EXPECT_EQ(WEXITSTATUS(how), 0);
    if (testing::Test::HasFailure()) return out;
    ++out.runs;
    const absl::StatusOr<std::string> end = ReadFileToString(env, dir + "/end");
    HOTROW_EXPECT_OK(end);
    if (end.ok()) {
      EXPECT_EQ(*end, expected);
    }
    if (to_the_end || testing::Test::HasFailure()) return out;
    std::filesystem::remove_all(dir + "/rows");
    std::filesystem::remove_all(dir + "/checkpoints");
    std::filesystem::remove(dir + "/end");
  }
}

std::string Expected() {
  // Without a cache, so that no thread is there when the first child is forked.
  const absl::StatusOr<TrainReport> report = test::RunSmall(
      Options(), [](Split, int64_t, int64_t) { return absl::OkStatus(); }, {}, kData);
  HOTROW_EXPECT_OK(report);
  return report.ok() ? EndOf(*report) : "";
}

void TestKills(StoreKind store, int64_t kills) {
  for (const uint64_t seed : test::Seeds(1)) {
    const Kills met = KillOften(store, kills, seed, Expected());
    if (testing::Test::HasFailure()) return;
    EXPECT_GE(met.kills, kills);
    testing::Test::RecordProperty("in_checkpoint", std::to_string(met.in_checkpoint));
    testing::Test::RecordProperty("before_the_first", std::to_string(met.before_the_first));
    testing::Test::RecordProperty("runs", std::to_string(met.runs));
    std::printf("%lld kills, %lld in a checkpoint, %lld before the first one, %lld whole runs\n",
                static_cast<long long>(met.kills), static_cast<long long>(met.in_checkpoint),
                static_cast<long long>(met.before_the_first), static_cast<long long>(met.runs));
    if (kSlow) {
      EXPECT_GT(met.in_checkpoint, 0);
    }
  }
}

TEST(TrainKillTest, OnAnSsdTheEndIsTheSame) { TestKills(StoreKind::kSsd, kSlow ? 200 : 10); }
TEST(TrainKillTest, InMemoryTheEndIsTheSame) { TestKills(StoreKind::kMemory, kSlow ? 50 : 4); }
TEST(TrainKillTest, OnRocksDbTheEndIsTheSame) {
  if (!ParseStoreKind("rocksdb").ok()) GTEST_SKIP() << "this build has no RocksDB";
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP()
      << "RocksDB is not built for ThreadSanitizer, which then cannot see it order anything";
#endif
  TestKills(StoreKind::kRocksDb, kSlow ? 40 : 3);
}

// Last, since it starts threads. What the tests above kill writes its disk full more than once, so
// that cleaning is among what is killed.
TEST(TrainKillTest, TheSsdIsCleanedMeanwhile) {
  const std::string dir = test::TempDir();
  const absl::StatusOr<TrainReport> report = test::RunSmall(
      OptionsOn(StoreKind::kSsd, dir), [](Split, int64_t, int64_t) { return absl::OkStatus(); }, {},
      kData);
  HOTROW_ASSERT_OK(report);
  const TierStats& ssd = report->tables.tiers.back();
  EXPECT_GT(ssd.bytes_written, kDiskBytes);
  EXPECT_LE(ssd.disk_used_bytes, kDiskBytes);
}

}  // namespace
}  // namespace hotrow
