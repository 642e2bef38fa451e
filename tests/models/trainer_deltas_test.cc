// The chain of deltas that a run writes, and a process that follows it while the run is killed at
// random. HOTROW_SLOW_TESTS=1 kills it 100 times.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/out_of_room.h"
#include "base/philox.h"
#include "comm/thread_communicator.h"
#include "models/delta/delta_chain.h"
#include "models/delta/delta_rows.h"
#include "tests/models/chain_test_util.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::BytesOf;
using test::EndOf;
using test::ExpectChainIsTheEnd;
using test::ReadRows;
using test::Rows;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TrainerOptions Options(const std::string& dir, StoreKind store = StoreKind::kMemory) {
  TrainerOptions options = test::SmallRun();
  options.ttl_steps = 9;
  options.store = store;
  if (store != StoreKind::kMemory) {
    options.store_path = dir + "/rows";
    options.store_bytes = int64_t{64} << 20;
    options.disk_bytes = int64_t{1} << 30;
    options.cache_bytes = kSmallestCache;
    options.prefetch_depth = 2;
  }
  options.checkpoint_dir = dir + "/checkpoints";
  options.checkpoint_every = 2;
  options.keep_checkpoints = 1;
  options.resume = true;
  options.delta_dir = dir + "/chain";
  options.delta_every = 4;
  return options;
}

absl::StatusOr<TrainReport> Train(const TrainerOptions& options, int ranks) {
  if (ranks == 1) return test::RunSmall(options);
  std::vector<absl::StatusOr<TrainReport>> reports(static_cast<size_t>(ranks));
  RunOnThreads(ranks, {}, [&](Communicator& communicator) {
    TrainerOptions mine = options;
    mine.communicator = &communicator;
    auto& report = reports[static_cast<size_t>(communicator.rank())];
    report = test::RunSmall(mine);
    if (!report.ok()) communicator.Abort(std::string(report.status().message()));
    return report.status();
  });
  for (auto& report : reports) HOTROW_RETURN_IF_ERROR(report.status());
  return std::move(reports[0]);
}

std::vector<StoreKind> Stores() {
  std::vector<StoreKind> out = {StoreKind::kMemory, StoreKind::kSsd};
#ifndef __SANITIZE_THREAD__  // RocksDB is not built for it
  if (ParseStoreKind("rocksdb").ok()) out.push_back(StoreKind::kRocksDb);
#endif
  return out;
}

// Follows a chain: the base, then each delta once.
class Follower {
 public:
  explicit Follower(std::string dir) : dir_(std::move(dir)) {}

  // Takes what is there now. An error: something was half there.
  absl::Status Poll() {
    const absl::StatusOr<DeltaChain> chain = ReadChain(PosixEnv(), dir_);
    if (absl::IsNotFound(chain.status())) return absl::OkStatus();
    HOTROW_RETURN_IF_ERROR(chain.status());
    if (sequence_ < 0) {
      HOTROW_ASSIGN_OR_RETURN(rows_, ReadRows(chain->base_dir()));
      sequence_ = 0;
      steps_ = {chain->manifest.base_step};
    }
    for (const DeltaManifest& delta : chain->deltas) {
      if (delta.sequence <= sequence_) continue;
      HOTROW_RETURN_IF_ERROR(Apply(delta));
    }
    return absl::OkStatus();
  }

  const Rows& rows() const { return rows_; }
  const std::vector<int64_t>& steps() const { return steps_; }  // of the links
  int64_t tombstones() const { return tombstones_; }

 private:
  absl::Status Apply(const DeltaManifest& delta) {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<DeltaTable> tables, DeltaTablesOf(delta.model));
    for (size_t part = 0; part < delta.parts.size(); ++part) {
      HOTROW_ASSIGN_OR_RETURN(
          const std::unique_ptr<DeltaRowsReader> reader,
          DeltaRowsReader::Open(PosixEnv(), delta.model.dir, delta.parts[part],
                                {.base = delta.base_id,
                                 .sequence = delta.sequence,
                                 .part = static_cast<int32_t>(part),
                                 .num_parts = static_cast<int32_t>(delta.parts.size())},
                                delta.form, tables));
      for (; !reader->done();) {
        const RowKey key = reader->key();
        if (reader->erased()) {
          ++tombstones_;
          rows_.erase({key.table, key.key});
        } else {
          rows_[{key.table, key.key}] =
              BytesOf(tables[key.table].layout_read(delta.form), reader->row().data());
        }
        HOTROW_RETURN_IF_ERROR(reader->Next());
      }
    }
    std::erase_if(rows_, [&](const auto& row) {
      const uint32_t line = delta.model.tables[row.first.first].lines.age;
      uint32_t last_step;
      std::memcpy(&last_step, row.second.data() + row.second.size() - sizeof(last_step),
                  sizeof(last_step));
      return line > 0 && last_step != 0 && last_step < line;
    });
    sequence_ = delta.sequence;
    steps_.push_back(delta.model.step);
    return absl::OkStatus();
  }

  const std::string dir_;
  int64_t sequence_ = -1;  // of the last link that was taken
  std::vector<int64_t> steps_;
  int64_t tombstones_ = 0;
  Rows rows_;
};

TEST(TrainerDeltasTest, TheChainLeadsToTheEndOnAnyStoreAndNumberOfRanks) {
  for (const int ranks : {1, 2}) {
    std::vector<Rows> ends;
    for (const StoreKind store : Stores()) {
      if (ranks > 1 && store == StoreKind::kRocksDb) continue;  // which opens slowly
      SCOPED_TRACE(absl::StrCat(std::string(StoreKindName(store)), ", ", ranks, " ranks"));
      const std::string dir = test::TempDir();
      TrainerOptions options = Options(dir, store);
      options.checkpoint_in_background = false;
      HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, Train(options, ranks));
      EXPECT_EQ(report.steps, 30);
      Follower follower(dir + "/chain");
      HOTROW_ASSERT_OK(follower.Poll());
      EXPECT_THAT(follower.steps(), ElementsAre(4, 8, 12, 16, 20, 24, 28, 30));
      ends.push_back(ExpectChainIsTheEnd(dir));
      EXPECT_TRUE(follower.rows() == ends.back());
      EXPECT_TRUE(ends.back() == ends.front());
    }
  }
}

// What each delta says of itself: step, rows, tombstones, and the hash of each table behind it.
std::vector<std::string> LinksOf(const std::string& chain_dir) {
  std::vector<std::string> out;
  const absl::StatusOr<DeltaChain> chain = ReadChain(PosixEnv(), chain_dir);
  HOTROW_EXPECT_OK(chain);
  if (!chain.ok()) return out;
  for (const DeltaManifest& delta : chain->deltas) {
    std::string& text = out.emplace_back(absl::StrCat("step ", delta.model.step));
    for (const DeltaPart& part : delta.parts) {
      for (const int64_t rows : part.rows) absl::StrAppend(&text, " ", rows);
      for (const int64_t erased : part.erased) absl::StrAppend(&text, " -", erased);
    }
    for (const SavedModel::Table& table : delta.model.tables) {
      absl::StrAppend(&text, " ", table.hash);
    }
  }
  return out;
}

absl::StatusOr<TrainReport> TrainUntilStep13(const TrainerOptions& options) {
  return test::RunSmall(options, [](Split split, int64_t epoch, int64_t sample) {
    return split == Split::kTrain && epoch == 1 && sample >= 3 * 48
               ? absl::AbortedError("pulled out")
               : absl::OkStatus();
  });
}

// With a store on a disk: rows that it only moved may be in a delta, so deltas are not alike.
TEST(TrainerDeltasTest, ARunOverADiskThatIsResumedLeavesNoneOut) {
  for (const StoreKind store : Stores()) {
    if (store == StoreKind::kMemory) continue;
    SCOPED_TRACE(std::string(StoreKindName(store)));
    for (const bool without_link : {false, true}) {
      if (without_link && store == StoreKind::kRocksDb) continue;
      const std::string dir = test::TempDir();
      TrainerOptions options = Options(dir, store);
      options.checkpoint_in_background = false;
      options.prefetch_depth = 0;  // so that the step is known
      EXPECT_THAT(TrainUntilStep13(options),
                  StatusIs(absl::StatusCode::kAborted, HasSubstr("pulled out")));
      HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaChain chain, ReadChain(PosixEnv(), options.delta_dir));
      ASSERT_EQ(chain.head().step, 12);
      if (without_link) {
        ASSERT_GT(std::filesystem::remove_all(chain.delta_dir(chain.head().sequence)), 0u);
      }
      HOTROW_ASSERT_OK(Train(options, 1));
      Follower follower(options.delta_dir);
      HOTROW_ASSERT_OK(follower.Poll());
      EXPECT_THAT(follower.steps(), ElementsAre(4, 8, 12, 16, 20, 24, 28, 30));
      EXPECT_TRUE(follower.rows() == ExpectChainIsTheEnd(dir));
    }
  }
}

// A run that ends in step 13, between a checkpoint and its link, too, has the links of one that
// did not.
TEST(TrainerDeltasTest, AResumedRunLeavesNoneOutAndMakesNoneTwice) {
  const std::string whole = test::TempDir();
  TrainerOptions options = Options(whole);
  options.checkpoint_in_background = false;
  HOTROW_ASSERT_OK(Train(options, 1));
  const std::vector<std::string> expected = LinksOf(options.delta_dir);
  ASSERT_EQ(expected.size(), 7u);
  for (const bool without_link : {false, true}) {
    const std::string dir = test::TempDir();
    options = Options(dir);
    options.checkpoint_in_background = false;
    EXPECT_THAT(TrainUntilStep13(options),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("pulled out")));
    HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaChain chain, ReadChain(PosixEnv(), options.delta_dir));
    ASSERT_EQ(chain.head().step, 12);
    if (without_link) {
      ASSERT_GT(std::filesystem::remove_all(chain.delta_dir(chain.head().sequence)), 0u);
    }
    HOTROW_ASSERT_OK(Train(options, 1));
    EXPECT_EQ(LinksOf(options.delta_dir), expected);
    ExpectChainIsTheEnd(dir);
  }
}

// A run whose checkpoints hold many old versions of rows, on a disk of 14 MiB or less.
constexpr char kShortDiskData[] =
    "synthetic:tables=3,rows=4000,dense=2,shared=2,hotness=0-3,zipf=0.8,samples=7680,valid=200,"
    "test=200";
TrainerOptions ShortDiskRun(const std::string& dir) {
  TrainerOptions options = Options(dir, StoreKind::kSsd);
  options.ttl_steps = 0;
  options.batch_size = 256;
  options.epochs = 4;
  options.settings = {{"data", kShortDiskData}};
  options.validation_freq_within_epoch = 0;
  options.checkpoint_every = 3;
  // All 40 are taken: how many there are in the background depends on the disk's speed.
  options.checkpoint_in_background = false;
  options.delta_every = 60;
  options.prefetch_depth = 0;
  return options;
}
absl::StatusOr<TrainReport> TrainOnShortDisk(const TrainerOptions& options) {
  return test::RunSmall(
      options, [](Split, int64_t, int64_t) { return absl::OkStatus(); }, {}, kShortDiskData);
}
absl::StatusOr<TrainReport> TrainOnLongDisk() {
  TrainerOptions options = ShortDiskRun(test::TempDir());
  options.delta_dir.clear();
  options.delta_every = 0;
  return TrainOnShortDisk(options);
}

// Old versions of rows that only checkpoints hold would fill the disk: the link of the newest one
// is made at once, so that those before it can go. The chain still leads to the end, and the run to
// where it would have ended.
TEST(TrainerDeltasTest, AShortDiskMakesLinksEarly) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, TrainOnLongDisk());
  const std::string dir = test::TempDir();
  TrainerOptions options = ShortDiskRun(dir);
  options.disk_bytes = int64_t{14} << 20;
  test::Output out;
  options.out = out.file();
  const absl::StatusOr<TrainReport> report = TrainOnShortDisk(options);
  const std::string text = out.Text();
  ASSERT_TRUE(report.ok()) << report.status() << "\n" << text;
  EXPECT_EQ(EndOf(*report), EndOf(whole));
  EXPECT_THAT(text, ::testing::AnyOf(HasSubstr("taking one early, which replaces them"),
                                     HasSubstr("taking a checkpoint early, which replaces")));
  Follower follower(dir + "/chain");
  HOTROW_ASSERT_OK(follower.Poll());
  // 120 steps have two links that are due.
  EXPECT_GT(follower.steps().size(), 2u) << text;
  EXPECT_TRUE(follower.rows() == ExpectChainIsTheEnd(dir));
}

// A separate file system for the chain, which may be full.
class ChainEnv : public test::MemEnv {
 public:
  explicit ChainEnv(std::string chain) : chain_(std::move(chain)) {}
  void SetFull(bool full) { full_ = full; }
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    if (full_ && mode != OpenMode::kRead && absl::StartsWith(path, chain_)) {
      return OutOfRoomError(absl::StrCat(path, ": the chain's disk is full"));
    }
    return MemEnv::Open(path, mode);
  }

 private:
  const std::string chain_;
  std::atomic<bool> full_ = false;  // links are written on a thread of the run
};

// A link that is needed before old checkpoints can go, and that cannot be written, is named,
// whether a checkpoint without room has asked for it or the watch over the disk. The run goes on
// where it was.
TEST(TrainerDeltasTest, AnEarlyLinkThatHasNoRoomIsNamed) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport whole, TrainOnLongDisk());
  for (const int64_t mib : {14, 17}) {
    SCOPED_TRACE(mib);
    TrainerOptions options = ShortDiskRun("/run");
    ChainEnv env(options.delta_dir);
    HOTROW_ASSERT_OK(CreateDirsDurably(env, "/run"));
    options.env = &env;
    options.disk_bytes = mib << 20;
    env.SetFull(true);
    const absl::Status refused = TrainOnShortDisk(options).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                  AllOf(HasSubstr("--delta_dir=/run/chain: /run/chain"),
                                        HasSubstr("the chain's disk is full"))));
    env.SetFull(false);
    HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport report, TrainOnShortDisk(options));
    EXPECT_EQ(EndOf(report), EndOf(whole));
    EXPECT_GT(report.resumed_step, 0);
  }
}

TEST(TrainerDeltasTest, DeltasChangeNothing) {
  TrainerOptions plain = Options(test::TempDir());
  plain.delta_dir.clear();
  plain.delta_every = 0;
  HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport without, Train(plain, 1));
  for (const StoreKind store : Stores()) {
    const std::string dir = test::TempDir();
    HOTROW_ASSERT_OK_AND_ASSIGN(const TrainReport with, Train(Options(dir, store), 1));
    EXPECT_EQ(EndOf(with), EndOf(without));
    ExpectChainIsTheEnd(dir);
  }
}

TEST(TrainerDeltasTest, OldDeltasGoAndTheChainStaysWhole) {
  const std::string dir = test::TempDir();
  TrainerOptions options = Options(dir);
  options.checkpoint_in_background = false;
  options.keep_deltas = 3;
  HOTROW_ASSERT_OK(Train(options, 1));
  HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaChain chain, ReadChain(PosixEnv(), dir + "/chain"));
  // Deltas 1 to 7 lead from step 4 to step 30; 3 and 6 became the base.
  EXPECT_EQ(chain.manifest.base_sequence, 6);
  EXPECT_EQ(chain.deltas.size(), 1u);
  for (const int64_t sequence : {3, 4, 5, 6, 7}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const bool there, PosixEnv().Exists(chain.delta_dir(sequence)));
    EXPECT_EQ(there, sequence > 3) << sequence;
  }
  ExpectChainIsTheEnd(dir);
}

TEST(TrainerDeltasTest, OtherFormsServe) {
  const std::string dir = test::TempDir();
  TrainerOptions options = Options(dir);
  options.delta_rows = ExchangeType::kInt8;
  options.delta_weights_only = true;
  HOTROW_ASSERT_OK(Train(options, 1));
  HOTROW_EXPECT_OK(VerifyChain(PosixEnv(), dir + "/chain", 1 << 20));
  options.delta_rows = ExchangeType::kFp16;
  EXPECT_THAT(Train(options, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another --delta_rows")));
}

// A directory that is there and empty, as a mounted volume is, through a link. Then a run does not
// go on behind a link of its chain that nobody can read.
TEST(TrainerDeltasTest, AnEmptyDirectoryIsBegunAndADamagedLinkIsNamed) {
  const std::string dir = test::TempDir();
  std::filesystem::create_directories(dir + "/volume");
  std::filesystem::create_directory_symlink(dir + "/volume", dir + "/chain");
  TrainerOptions options = Options(dir);
  options.checkpoint_in_background = false;  // so that no link is left out
  HOTROW_ASSERT_OK(Train(options, 1));
  ExpectChainIsTheEnd(dir);
  EXPECT_TRUE(std::filesystem::is_symlink(dir + "/chain"));
  // A model that is written through a link, too.
  std::filesystem::create_directory_symlink("linked", dir + "/link");
  HOTROW_ASSERT_OK(ApplyChain({.chain = dir + "/chain", .dir = dir + "/link"}));
  EXPECT_TRUE(std::filesystem::exists(dir + "/linked/manifest.json"));

  HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaChain chain, ReadChain(PosixEnv(), dir + "/chain"));
  const std::string rows =
      absl::StrCat(chain.delta_dir(1), "/", chain.deltas.at(0).parts.at(0).file);
  HOTROW_ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFileToString(PosixEnv(), rows));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), rows, bytes));
  options.epochs += 1;
  EXPECT_THAT(Train(options, 1), StatusIs(absl::StatusCode::kDataLoss,
                                          AllOf(HasSubstr("--delta_dir"), HasSubstr(rows))));
}

TEST(TrainerDeltasTest, AChainOfAnotherRunIsRefused) {
  const std::string dir = test::TempDir();
  HOTROW_ASSERT_OK(Train(Options(dir), 1));
  TrainerOptions other = Options(test::TempDir());
  other.delta_dir = dir + "/chain";
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(Train(other, ranks), StatusIs(absl::StatusCode::kFailedPrecondition,
                                              HasSubstr("give another --delta_dir")));
  }
}

TEST(TrainerDeltasTest, RefusesWhatCannotBe) {
  const auto error = [](auto change) {
    TrainerOptions options = Options("/nowhere");
    change(options);
    return std::string(options.Validate().message());
  };
  EXPECT_EQ(error([](TrainerOptions&) {}), "");
  EXPECT_THAT(error([](TrainerOptions& o) { o.delta_every = 3; }),
              HasSubstr("multiple of --checkpoint_every=2, is 3"));
  EXPECT_THAT(error([](TrainerOptions& o) { o.delta_every = 0; }), HasSubstr("is 0"));
  EXPECT_THAT(error([](TrainerOptions& o) { o.delta_dir.clear(); }),
              HasSubstr("need --delta_dir=DIR"));
  EXPECT_THAT(error([](TrainerOptions& o) { o.checkpoint_every = 0; }),
              HasSubstr("needs --checkpoint_dir=DIR and --checkpoint_every"));
  EXPECT_THAT(error([](TrainerOptions& o) { o.delta_dir = o.checkpoint_dir; }),
              HasSubstr("a directory of its own"));
  EXPECT_THAT(error([](TrainerOptions& o) { o.delta_bytes = 1 << 20; }),
              HasSubstr("--delta_bytes must be at least 67108864, is 1048576"));
}

// Runs are killed, and a follower looks on. In every fourth life the run is left to its end.
void TestKills(StoreKind store, int ranks, int64_t kills, uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest,
                      static_cast<uint64_t>(ranks) + 16 * static_cast<uint64_t>(store));
  int64_t killed = 0;
  int64_t half_written = 0;
  for (int64_t run = 0; killed < kills; ++run) {
    SCOPED_TRACE(absl::StrCat("run ", run, ", HOTROW_TEST_SEED=", seed));
    const std::string dir = test::TempDir();
    Follower follower(dir + "/chain");
    for (int64_t life = 0;; ++life) {
      const bool to_the_end = life == 5;
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        const absl::StatusOr<TrainReport> report = Train(Options(dir, store), ranks);
        if (!report.ok()) std::fprintf(stderr, "child: %s\n", report.status().ToString().c_str());
        ::_exit(report.ok() ? 0 : 3);
      }
      const auto end = std::chrono::steady_clock::now() +
                       std::chrono::microseconds(random.Below(ranks == 1 ? 150'000 : 400'000));
      int how = 0;
      bool ended = false;
      while (!ended && (to_the_end || std::chrono::steady_clock::now() < end)) {
        HOTROW_EXPECT_OK(follower.Poll());
        ended = ::waitpid(child, &how, WNOHANG) == child;
        ::usleep(500);
      }
      if (!ended) {
        ::kill(child, SIGKILL);
        ASSERT_EQ(::waitpid(child, &how, 0), child);
      }
      HOTROW_EXPECT_OK(follower.Poll());
      if (testing::Test::HasFailure()) return;
      if (WIFSIGNALED(how)) {
        ASSERT_EQ(WTERMSIG(how), SIGKILL);
        ++killed;
        const auto names = PosixEnv().ListDir(dir + "/chain");
        for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
          half_written += name.find("partial") != std::string::npos;
        }
        continue;
      }
      ASSERT_EQ(WEXITSTATUS(how), 0);
      break;
    }
    // Each link leads further, and the last one to the end.
    for (size_t i = 1; i < follower.steps().size(); ++i) {
      EXPECT_LT(follower.steps()[i - 1], follower.steps()[i]);
    }
    ASSERT_FALSE(follower.steps().empty());
    EXPECT_EQ(follower.steps().back(), 30);
    EXPECT_TRUE(follower.rows() == ExpectChainIsTheEnd(dir));
    if (testing::Test::HasFailure()) return;
  }
  std::printf("%lld kills, %lld in a delta\n", static_cast<long long>(killed),
              static_cast<long long>(half_written));
}

TEST(DeltaKillTest, AFollowerSeesWholeDeltasAndTheEnd) {
  for (const uint64_t seed : test::Seeds(1))
    TestKills(StoreKind::kMemory, 1, test::SlowRuns(100, 10), seed);
}
TEST(DeltaKillTest, OnTwoRanksToo) {
  for (const uint64_t seed : test::Seeds(1))
    TestKills(StoreKind::kMemory, 2, test::SlowRuns(40, 3), seed);
}
// RocksDB's threads do not outlive a fork, and the cases above have used it: train_crash_test has
// it.
TEST(DeltaKillTest, OnAnSsdToo) {
  for (const uint64_t seed : test::Seeds(1)) {
    TestKills(StoreKind::kSsd, 1, test::SlowRuns(100, 5), seed);
    TestKills(StoreKind::kSsd, 2, test::SlowRuns(40, 2), seed);
  }
}

}  // namespace
}  // namespace hotrow
