// Training that is killed anywhere, resumed, and ends as if nothing had been. In every second life
// writes fail as well. HOTROW_SLOW_TESTS=1 kills it 500 times, and as often where it is stopped by
// signals, too, forks, and moves between its lives.

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/philox.h"
#include "comm/thread_communicator.h"
#include "models/data/open_data_source.h"
#include "models/saving/checkpoint.h"
#include "models/saving/packed_writer.h"
#include "tests/models/chain_test_util.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::EndOf;

constexpr char kData[] =
    "synthetic:tables=3,rows=4000,dense=2,shared=2,hotness=0-3,zipf=0.8,samples=7680,valid=200,"
    "test=200";
constexpr int64_t kDiskBytes = int64_t{8} << 20;

// What trains: threads of one process as ranks.
struct Run {
  StoreKind store = StoreKind::kMemory;
  int ranks = 1;
  bool lives = false;   // rows are admitted by count, and age, with a floor and a capacity
  bool chain = false;   // the run writes its chain of deltas
  bool packed = false;  // the data are packed, and shuffled in groups of blocks
  // Some lives are ended by signals that ask for it. All that a life leaves is moved, or copied,
  // before the next. Children are forked that live for a while.
  bool moves = false;
};

// kData, packed; once a test, in the directory that goes with it.
std::string PackedSpec() {
  static std::string dir;
  if (dir.empty() || !std::filesystem::exists(dir)) {
    dir = test::TempDir() + "/packed";
    auto data = OpenDataSource(kData, 5);
    HOTROW_CHECK(data.ok());
    HOTROW_CHECK(PackData(**data, {.dir = dir, .block_samples = 200, .source = kData}).ok());
  }
  return "packed:" + dir;
}
std::string DataOf(const Run& run) { return run.packed ? PackedSpec() : kData; }

TrainerOptions Options(const Run& run) {
  TrainerOptions options = test::SmallRun();
  options.batch_size = 256;
  options.epochs = 3;
  options.settings = {{"data", DataOf(run)}};
  if (run.packed) options.shuffle_bytes = 64 << 10;
  options.validation_freq_within_epoch = 11;
  options.store_bytes = int64_t{24} << 20;
  if (run.lives) {
    options.admission = {.rule = Admission::Rule::kLookups, .lookups = 2, .forget_steps = 9};
    options.admission_bytes = int64_t{4} << 20;
    options.ttl_steps = 4;
    options.min_rows = 50;
    options.max_rows = 400;
    options.row_limit_steps = 3;
  }
  return options;
}

TrainerOptions OptionsOn(const Run& run, const std::string& dir) {
  const StoreKind store = run.store;
  TrainerOptions options = Options(run);
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
  if (run.chain) {
    options.delta_dir = dir + "/chain";
    options.delta_every = 6;
    options.keep_deltas = 4;
  }
  return options;
}

std::string NameOf(const Run& run) {
  return absl::StrCat(std::string(StoreKindName(run.store)), ", ", run.ranks, " ranks",
                      run.lives ? ", rows live and die" : "", run.chain ? ", deltas" : "",
                      run.packed ? ", packed data" : "", run.moves ? ", moved and stopped" : "");
}

// What a run of these options comes to, on all its ranks. `watch` hears of rank 0's batches.
absl::StatusOr<TrainReport> Train(const TrainerOptions& options, const Run& run,
                                  const test::WatchedData::Watch& watch) {
  const std::string data = DataOf(run);
  if (run.ranks == 1) return test::RunSmall(options, watch, {}, data);
  std::vector<absl::StatusOr<TrainReport>> reports(static_cast<size_t>(run.ranks));
  RunOnThreads(run.ranks, {}, [&](Communicator& communicator) {
    TrainerOptions mine = options;
    mine.communicator = &communicator;
    const bool watches = communicator.rank() == 0;
    auto& report = reports[static_cast<size_t>(communicator.rank())];
    report = test::RunSmall(
        mine,
        [&](Split split, int64_t epoch, int64_t sample) {
          return watches ? watch(split, epoch, sample) : absl::OkStatus();
        },
        {}, data);
    if (!report.ok()) communicator.Abort(std::string(report.status().message()));
    return report.status();
  });
  for (auto& report : reports) {
    if (!report.ok()) return report.status();
  }
  return std::move(reports[0]);
}

// RocksDB writes past any Env of ours. The kernel refuses its writes (EFBIG) while no file may have
// a byte: for a moment now and then.
class NoFileMayGrow {
 public:
  explicit NoFileMayGrow(uint64_t seed) : random_(seed, RandomPurpose::kTest) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    thread_ = std::thread([this] {
      while (!ends_) {
        Sleep(40'000);
        const rlimit nothing = {.rlim_cur = 0, .rlim_max = before_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &nothing);
        Sleep(4'000);
        ::setrlimit(RLIMIT_FSIZE, &before_);
      }
    });
  }
  ~NoFileMayGrow() {
    ends_ = true;
    thread_.join();
  }

 private:
  void Sleep(uint64_t microseconds_max) {
    std::this_thread::sleep_for(std::chrono::microseconds(random_.Below(microseconds_max)));
  }
  rlimit before_ = {};
  RandomStream random_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

constexpr int kExitFailedWrite = 6;
constexpr int kExitStopped = 7;

constexpr std::array kStops = {SIGTERM, SIGHUP, SIGPIPE};
std::atomic<int> stop_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free);

// Leaves a child that ends at once, or keeps what it has of its parent for a moment.
void ForkSome() {
  static std::atomic<uint64_t> calls = 0;
  const uint64_t random = Mix64(static_cast<uint64_t>(::getpid()) << 32 | ++calls);
  if (random % 8 != 0 || ::fork() != 0) return;
  if (random / 8 % 2 == 0) ::usleep(static_cast<useconds_t>(random / 16 % 60'000));
  ::_exit(0);
}

// One life: trains until it is killed or at the end, where it leaves what it ended with. Writes a
// byte to the pipe for each training batch that it reads. faults: the seed of the writes that fail,
// 0: none does.
[[noreturn]] void Child(const Run& run, const std::string& dir, int pipe, uint64_t faults) {
  test::FaultyEnv env(&PosixEnv());
  std::unique_ptr<NoFileMayGrow> no_growth;
  TrainerOptions options = OptionsOn(run, dir);
  options.env = &env;
  RandomStream random(faults, RandomPurpose::kTest);
  if (faults != 0 && run.store == StoreKind::kRocksDb && random.Below(4) != 0) {
    no_growth = std::make_unique<NoFileMayGrow>(random.Next64());
  } else if (faults != 0) {
    const uint64_t one_in = std::array{10, 100, 1000}[random.Below(3)];
    env.FailWrites(random.Next64(), one_in,
                   random.Below(4) == 0 ? absl::ResourceExhaustedError("injected")
                                        : absl::DataLossError("injected"));
  }
  if (run.moves) {
    options.stop_signal = &stop_signal;
    ::signal(SIGCHLD, SIG_IGN);
    for (const int number : kStops) ::signal(number, [](int which) { stop_signal = which; });
  }
  const absl::StatusOr<TrainReport> report =
      Train(options, run, [&](Split split, int64_t, int64_t) {
        const char byte = 1;
        if (split == Split::kTrain && ::write(pipe, &byte, 1) != 1 && !run.moves) ::_exit(4);
        if (run.moves) ForkSome();
        return absl::OkStatus();
      });
  if (!report.ok() && (env.faults() > 0 || no_growth != nullptr)) ::_exit(kExitFailedWrite);
  if (!report.ok()) {
    std::fprintf(stderr, "child: %s\n", report.status().ToString().c_str());
    ::_exit(3);
  }
  no_growth = nullptr;
  if (report->stopped_by_signal != 0) ::_exit(kExitStopped);
  if (!WriteFileAtomically(PosixEnv(), dir + "/end", EndOf(*report)).ok()) ::_exit(5);
  ::_exit(0);
}

// What the kills met.
struct Kills {
  int64_t kills = 0;
  int64_t in_checkpoint = 0;     // a directory without a name was left
  int64_t in_delta = 0;          // the same, of the chain
  int64_t before_the_first = 0;  // no checkpoint was there
  int64_t failed_writes = 0;     // lives that they ended
  int64_t stopped = 0;           // by a signal that asks for a checkpoint
  int64_t moves = 0;
  int64_t copies = 0;
  int64_t runs = 0;
};

// Moves what a life has left, or goes on with a copy of it.
void Move(RandomStream& random, std::string* dir, Kills* met) {
  if (random.Below(3) == 0 || !std::filesystem::exists(*dir)) return;
  const std::string to = absl::StrCat(test::TempDir(), "/moved");
  if (random.Below(2) == 0) {
    std::filesystem::rename(*dir, to);
    ++met->moves;
  } else {
    std::filesystem::copy(*dir, to, std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(*dir);
    ++met->copies;
  }
  *dir = to;
}

// Directories that were not given their names.
int64_t CountUnfinished(const std::string& dir) {
  const auto names = PosixEnv().ListDir(dir);
  int64_t out = 0;
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    out += name.find("partial") != std::string::npos;
  }
  return out;
}

// Runs what uses a store. RocksDB leaves threads behind, which a child that is forked later does not
// have but waits for: so the process that forks the lives uses none.
void InAChild(const std::function<void()>& what) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    what();
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int how = 0;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << how;
}

Kills KillOften(const Run& run, int64_t kills, uint64_t seed, const std::string& expected) {
  Kills out;
  std::string dir = test::TempDir();
  RandomStream random(seed, RandomPurpose::kTest,
                      static_cast<uint64_t>(run.store) + 16 * static_cast<uint64_t>(run.ranks));
  Env& env = PosixEnv();
  for (int64_t life = 0;; ++life) {
    const bool to_the_end = out.kills + out.stopped >= kills;
    if (run.moves) Move(random, &dir, &out);
    const uint64_t faults = life % 2 == 1 && !to_the_end ? 1 + random.Below(1'000'000) : 0;
    SCOPED_TRACE(absl::StrCat(NameOf(run), ", kill ", out.kills, ", HOTROW_TEST_SEED=", seed,
                              faults == 0 ? "" : ", writes fail"));
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      Child(run, dir, ends[1], faults);
    }
    ::close(ends[1]);
    if (!to_the_end) {
      // At any moment of its life, also while it opens what the last one left.
      const uint64_t batches = random.Below(4) == 0 ? 0 : 1 + random.Below(14);
      char byte = 0;
      for (uint64_t i = 0; i < batches; ++i) {
        if (::read(ends[0], &byte, 1) != 1) break;
      }
      ::usleep(static_cast<useconds_t>(random.Below(batches == 0 ? 30'000 : 80'000)));
      const bool asks = run.moves && random.Below(2) == 0;
      ::kill(child, asks ? kStops[random.Below(kStops.size())] : SIGKILL);
    }
    char rest[256];
    while (::read(ends[0], rest, sizeof(rest)) > 0) {
    }
    ::close(ends[0]);
    int how = 0;
    EXPECT_EQ(::waitpid(child, &how, 0), child);
    if (WIFSIGNALED(how)) {
      // One that asks kills, too, before the run listens.
      EXPECT_TRUE(WTERMSIG(how) == SIGKILL || run.moves) << WTERMSIG(how);
      if (testing::Test::HasFailure()) return out;
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
      out.in_delta += run.chain && CountUnfinished(dir + "/chain") > 0;
      continue;
    }
    if (faults != 0 && WEXITSTATUS(how) == kExitFailedWrite) {
      ++out.failed_writes;
      continue;
    }
    if (run.moves && WEXITSTATUS(how) == kExitStopped) {
      ++out.stopped;
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
    if (run.chain) InAChild([&] { test::ExpectChainIsTheEnd(dir); });
    if (to_the_end || testing::Test::HasFailure()) return out;
    std::filesystem::remove_all(dir + "/rows");
    std::filesystem::remove_all(dir + "/checkpoints");
    std::filesystem::remove_all(dir + "/chain");
    std::filesystem::remove(dir + "/end");
  }
}

std::string Expected(const Run& run) {
  DataOf(run);  // once, for all children
  const std::string file = test::TempDir() + "/expected";
  InAChild([&] {
    const absl::StatusOr<TrainReport> report =
        Train(Options(run), run, [](Split, int64_t, int64_t) { return absl::OkStatus(); });
    HOTROW_ASSERT_OK(report);
    HOTROW_EXPECT_OK(WriteFileAtomically(PosixEnv(), file, EndOf(*report)));
  });
  const auto end = ReadFileToString(PosixEnv(), file);
  return end.ok() ? *end : "";
}

void TestKills(const Run& run, int64_t kills) {
  for (const uint64_t seed : test::Seeds(1)) {
    const Kills met = KillOften(run, kills, seed, Expected(run));
    if (testing::Test::HasFailure()) return;
    EXPECT_GE(met.kills + met.stopped, kills);
    for (const auto& [name, count] : {std::pair<const char*, int64_t>{"kills", met.kills},
                                      {"in_checkpoint", met.in_checkpoint},
                                      {"in_delta", met.in_delta},
                                      {"before_the_first", met.before_the_first},
                                      {"failed_writes", met.failed_writes},
                                      {"stopped", met.stopped},
                                      {"moves", met.moves},
                                      {"copies", met.copies},
                                      {"runs", met.runs}}) {
      testing::Test::RecordProperty(name, std::to_string(count));
    }
    std::printf(
        "%s: %lld kills, %lld in a checkpoint, %lld in a delta, %lld before the first one, %lld "
        "lives that failed writes ended, %lld stopped, %lld moves, %lld copies, %lld whole runs\n",
        NameOf(run).c_str(), static_cast<long long>(met.kills),
        static_cast<long long>(met.in_checkpoint), static_cast<long long>(met.in_delta),
        static_cast<long long>(met.before_the_first), static_cast<long long>(met.failed_writes),
        static_cast<long long>(met.stopped), static_cast<long long>(met.moves),
        static_cast<long long>(met.copies), static_cast<long long>(met.runs));
    if (test::SlowShare() == 1) {  // fewer kills may miss some of it
      EXPECT_GT(met.in_checkpoint, 0);
      EXPECT_GT(met.failed_writes, 0);
      EXPECT_EQ(std::min({met.stopped, met.moves, met.copies}) > 0, run.moves);
      // A chain over RocksDB begins with all of its rows, which takes longer than most lives: so
      // its first link may come with the life that nobody kills.
      if (run.store != StoreKind::kRocksDb) {
        EXPECT_EQ(met.in_delta > 0, run.chain);
      }
    }
  }
}

TEST(TrainKillTest, OnAnSsdTheEndIsTheSame) {
  TestKills({StoreKind::kSsd}, test::SlowRuns(200, 6));
}
TEST(TrainKillTest, InMemoryTheEndIsTheSame) { TestKills({.packed = true}, test::SlowRuns(60, 4)); }
TEST(TrainKillTest, OnSsdsOfTwoRanksTheEndIsTheSame) {
  TestKills({StoreKind::kSsd, 2}, test::SlowRuns(120, 4));
}
TEST(TrainKillTest, InMemoryOfTwoRanksTheEndIsTheSame) {
  TestKills({.ranks = 2, .packed = true}, test::SlowRuns(40, 2));
}
// All policies of rows at once: admission by lookups with forgetting, ageing, floor and capacity.
constexpr int kPolicyKills = 100;
TEST(TrainKillTest, OnAnSsdWithAllPoliciesAndDeltasTheEndAndTheChainAreTheSame) {
  TestKills({.store = StoreKind::kSsd, .lives = true, .chain = true},
            test::SlowRuns(kPolicyKills, 3));
}
TEST(TrainKillTest, InMemoryWithAllPoliciesAndDeltasTheEndAndTheChainAreTheSame) {
  TestKills({.lives = true, .chain = true}, test::SlowRuns(kPolicyKills, 3));
}
TEST(TrainKillTest, OnTwoRanksWithAllPoliciesAndDeltasTheEndAndTheChainAreTheSame) {
  TestKills({.store = StoreKind::kSsd, .ranks = 2, .lives = true, .chain = true},
            test::SlowRuns(kPolicyKills, 2));
  TestKills({.ranks = 2, .lives = true, .chain = true}, test::SlowRuns(kPolicyKills, 2));
}

std::string WhyNoRocksDb() {
#ifdef __SANITIZE_THREAD__
  return "RocksDB is not built for ThreadSanitizer, which then cannot see it order anything";
#else
  return ParseStoreKind("rocksdb").ok() ? "" : "this build has no RocksDB";
#endif
}
TEST(TrainKillTest, OnRocksDbTheEndIsTheSame) {
  if (const std::string why = WhyNoRocksDb(); !why.empty()) GTEST_SKIP() << why;
  TestKills({StoreKind::kRocksDb}, test::SlowRuns(80, 3));
}
TEST(TrainKillTest, OnRocksDbWithAllPoliciesAndDeltasTheEndAndTheChainAreTheSame) {
  if (const std::string why = WhyNoRocksDb(); !why.empty()) GTEST_SKIP() << why;
  TestKills({.store = StoreKind::kRocksDb, .lives = true, .chain = true},
            test::SlowRuns(kPolicyKills, 2));
}

// Stores and checkpoints move together between lives; half of these end by a signal that asks.
constexpr int kMovedKills = 80;
TEST(TrainKillTest, MovedForkedAndStoppedOnSsdsTheEndIsTheSame) {
  TestKills({.store = StoreKind::kSsd, .moves = true}, test::SlowRuns(kMovedKills, 2));
  TestKills({.store = StoreKind::kSsd, .ranks = 2, .moves = true}, test::SlowRuns(kMovedKills, 1));
}
TEST(TrainKillTest, MovedForkedAndStoppedInMemoryTheEndIsTheSame) {
  TestKills({.packed = true, .moves = true}, test::SlowRuns(kMovedKills, 1));
  TestKills({.ranks = 2, .moves = true}, test::SlowRuns(kMovedKills, 1));
}
TEST(TrainKillTest, MovedForkedAndStoppedOnRocksDbTheEndIsTheSame) {
  if (const std::string why = WhyNoRocksDb(); !why.empty()) GTEST_SKIP() << why;
  TestKills({.store = StoreKind::kRocksDb, .moves = true}, test::SlowRuns(kMovedKills, 1));
}

// Last, since it starts threads. What the tests above kill writes its disk full more than once, so
// that cleaning is among what is killed.
TEST(TrainKillTest, TheSsdIsCleanedMeanwhile) {
  const std::string dir = test::TempDir();
  const absl::StatusOr<TrainReport> report = test::RunSmall(
      OptionsOn({StoreKind::kSsd}, dir), [](Split, int64_t, int64_t) { return absl::OkStatus(); },
      {}, kData);
  HOTROW_ASSERT_OK(report);
  const TierStats& ssd = report->tables.tiers.back();
  EXPECT_GT(ssd.bytes_written, kDiskBytes);
  EXPECT_LE(ssd.disk_used_bytes, kDiskBytes);
}

}  // namespace
}  // namespace hotrow
