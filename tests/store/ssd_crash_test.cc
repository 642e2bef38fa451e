#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <thread>

#include "store/ssd/ssd_store.h"
#include "tests/store/ssd_test_util.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"

// Faults at every file call, power loss, and a process that is killed.

namespace hotrow {
namespace {

// ctest's label slow runs the same cases with larger numbers.
const bool kSlow = test::RunsSlowTests();

using test::Batch;
using test::Dump;
using test::FaultyEnv;
using test::FindAll;
using test::Found;
using test::Holds;
using test::kKiB;
using test::MakeRow;
using test::Row;
using test::RowMap;
using test::Seeds;
using test::SmallSsd;
using test::SsdOracle;
using test::StatusIs;
using test::Striped;
using testing::HasSubstr;

// --- Faults --------------------------------------------------------------------------------------

// A fixed list of calls on a store in a FaultyEnv, and what the store must hold after each.
class Script {
 public:
  Script(FaultyEnv& env, bool striped) : env_(env) {
    options_ = SmallSsd(&env, 40);
    if (striped) options_ = Striped(options_);
    options_.tables = {{1, 17}, {2, 512}, {3, 1500}};
    options_.memory_budget_bytes = 600 * kKiB;
    // The store's directory is made by whoever owns the one above.
    env.CreateDirs("/store").IgnoreError();
    env.SyncDir("/").IgnoreError();
  }

  // go_on: a call that fails is made once more, and must then succeed, unless a sync has failed:
  // then the store only reads until it is opened again, and the script ends. Otherwise the script
  // ends at the first error.
  void Run(bool go_on) {
    go_on_ = go_on;
    for (uint64_t round = 0; round < 3 && !ended_; ++round) {
      Do([&] { return Open(0); });
      Insert(0, 26, 3);
      Insert(0, 20, 1);
      Flush();
      Insert(5, 30, 2);
      Check();
      Erase(3, 9);
      Prepare(10 * round + 1);
      for (uint64_t i = 0; i < 5; ++i) Insert(4 * i, 7, 1 + i % 3);
      Do([&] { return store_->CommitSnapshot(10 * round + 1); });
      if (round > 0) Drop(10 * round - 9);
      for (uint64_t i = 0; i < 5; ++i) Insert(3 * i, 8, 3 - i % 3);
      Erase(20, 5);
      Prepare(10 * round + 2);
      Drop(10 * round + 2);
      Do([&] { return store_->CleanAll(); });
      Check();
      Insert(2, 12, 3);
      if (round == 1) {
        Reopen();
        Insert(1, 9, 2);
        Check();
        Flush();
      } else if (round == 0) {
        Do([&] { return store_->Close(); }, [&] { oracle_.Commit(); });
      }
      if (round < 2 && !ended_) {
        store_.reset();
        if (round == 1) crashed_ = true;
      }
    }
  }

  // Ends the run, with or without a loss of power, and looks at what is there afterwards.
  void Verify(const std::function<void()>& lose_power) {
    store_.reset();
    env_.FailFrom(INT64_MAX, absl::OkStatus());
    lose_power();
    go_on_ = false;
    ended_ = false;
    HOTROW_ASSERT_OK(OpenStore(0));
    HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*store_));
    ASSERT_TRUE(oracle_.Recover(rows));
    last_keys_.clear();
    ASSERT_TRUE(Holds(*store_, oracle_.now()));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<SnapshotId> ids, store_->ListSnapshots());
    for (const auto& [id, expected] : snapshots_) {
      ASSERT_TRUE(std::count(ids.begin(), ids.end(), id) == 1) << "snapshot " << id << " is lost";
    }
    // It works.
    Insert(0, 10, 2);
    Flush();
    ASSERT_FALSE(ended_);
    Check();
    for (const SnapshotId id : ids) {
      const bool certain = snapshots_.contains(id);
      ASSERT_TRUE(certain || maybe_snapshots_.contains(id)) << "snapshot " << id;
      store_.reset();
      HOTROW_ASSERT_OK(OpenStore(id));
      ASSERT_TRUE(Holds(*store_, certain ? snapshots_[id] : maybe_snapshots_[id]))
          << "snapshot " << id;
    }
  }

  absl::Status OpenStore(SnapshotId at) {
    store_.reset();
    SsdStoreOptions options = options_;
    options.open_at = at;
    absl::StatusOr<std::unique_ptr<SsdStore>> opened = SsdStore::Open(options);
    if (!opened.ok()) return opened.status();
    store_ = *std::move(opened);
    return absl::OkStatus();
  }
  SsdStore* store() { return store_.get(); }
  SsdOracle& oracle() { return oracle_; }
  const std::map<SnapshotId, RowMap>& snapshots() const { return snapshots_; }
  bool ended() const { return ended_; }
  // What errors are to look like.
  void set_injected(absl::StatusCode code) { injected_ = code; }

 private:
  // Runs a call by the rule of go_on_; then what its success brings about.
  void Do(
      const std::function<absl::Status()>& call, const std::function<void()>& then = [] {}) {
    if (ended_ || testing::Test::HasFatalFailure()) return;
    absl::Status status = call();
    if (!status.ok()) {
      EXPECT_EQ(status.code(), injected_) << status;
      const bool broken = status.message().find("a sync failed") != std::string::npos;
      if (go_on_ && !broken) {
        const absl::Status again = call();
        EXPECT_TRUE(again.ok()) << "again: " << again << "; first: " << status;
        status = again;
      } else if (go_on_ && store_ != nullptr) {
        EXPECT_TRUE(call().message().find("a sync failed") != std::string::npos);
        // What was taken in can still be read.
        ended_ = true;
        CheckEach();
      }
      if (!status.ok()) {
        ended_ = true;
        return;
      }
    }
    then();
  }

  absl::Status Open(SnapshotId at) {
    const absl::Status status = OpenStore(at);
    if (!status.ok() || !crashed_) return status;
    crashed_ = false;
    const absl::StatusOr<RowMap> rows = Dump(*store_);
    if (!rows.ok()) {
      crashed_ = true;
      store_.reset();
      return rows.status();
    }
    const testing::AssertionResult recovered = oracle_.Recover(*rows);
    EXPECT_TRUE(recovered);
    return absl::OkStatus();
  }

  void Reopen() {
    if (ended_) return;
    store_.reset();
    crashed_ = true;
    Do([&] { return Open(0); });
  }

  void Insert(uint64_t first, uint64_t count, uint32_t table) {
    if (ended_) return;
    Batch batch;
    ++version_;
    for (uint64_t i = first; i < first + count; ++i) {
      const RowKey key = {i, table};
      batch.Add(key, MakeRow(key, version_, store_->row_bytes(table)));
    }
    // If it fails, the first so many rows may have been written.
    last_keys_ = batch.keys;
    last_rows_ = oracle_.now();
    for (size_t i = 0; i < batch.keys.size(); ++i) oracle_.Write(batch.keys[i], batch.rows[i]);
    Do([&] { return batch.InsertInto(*store_); }, [&] { last_keys_.clear(); });
  }

  void Erase(uint64_t first, uint64_t count) {
    if (ended_) return;
    std::vector<RowKey> keys;
    for (uint64_t i = first; i < first + count; ++i) keys.push_back({i, i % 2 == 0 ? 1u : 2u});
    last_keys_ = keys;
    last_rows_ = oracle_.now();
    for (const RowKey& key : keys) oracle_.Erase(key);
    Do([&] { return store_->Erase(keys); }, [&] { last_keys_.clear(); });
  }

  void Flush() {
    Do([&] { return store_->Flush(); }, [&] { oracle_.Commit(); });
  }

  void Prepare(SnapshotId id) {
    if (ended_) return;
    maybe_snapshots_[id] = oracle_.now();
    Do([&] { return store_->PrepareSnapshot(id); },
       [&] {
         oracle_.Commit();
         maybe_snapshots_.erase(id);
         snapshots_[id] = oracle_.now();
       });
  }

  void Drop(SnapshotId id) {
    if (ended_) return;
    maybe_snapshots_[id] = snapshots_[id];
    snapshots_.erase(id);
    Do([&] { return store_->DropSnapshot(id); }, [&] { maybe_snapshots_.erase(id); });
  }

  void Check() {
    absl::StatusOr<RowMap> rows = RowMap();
    Do([&] {
      rows = Dump(*store_);
      return rows.status();
    });
    if (ended_) return;
    ASSERT_TRUE(*rows == oracle_.now());
    Do([&] { return FindEach(); });
  }

  // Rows that the last call, which failed, may not have got to are the old ones or the new ones.
  absl::Status FindEach() {
    for (const auto& [key, row] : oracle_.now()) {
      const RowKey row_key = {key.second, key.first};
      const absl::StatusOr<Found> found = FindAll(*store_, {{row_key}});
      if (!found.ok()) return found.status();
      const bool uncertain = std::count(last_keys_.begin(), last_keys_.end(), row_key) > 0;
      const auto old = last_rows_.find(key);
      const bool is_new = found->found[0] == 1 && found->rows[0] == row;
      const bool is_old = found->found[0] == 0
                              ? old == last_rows_.end()
                              : old != last_rows_.end() && found->rows[0] == old->second;
      EXPECT_TRUE(is_new || (uncertain && is_old))
          << "key " << key.second << " of table " << key.first;
    }
    return absl::OkStatus();
  }
  void CheckEach() { HOTROW_EXPECT_OK(FindEach()); }

  FaultyEnv& env_;
  SsdStoreOptions options_;
  std::unique_ptr<SsdStore> store_;
  SsdOracle oracle_;
  std::map<SnapshotId, RowMap> snapshots_;        // that must be there
  std::map<SnapshotId, RowMap> maybe_snapshots_;  // that may
  std::vector<RowKey> last_keys_;                 // of a call that has not succeeded
  RowMap last_rows_;
  uint64_t version_ = 0;
  absl::StatusCode injected_ = absl::StatusCode::kDataLoss;
  bool go_on_ = false;
  bool ended_ = false;
  bool crashed_ = false;
};

const absl::Status kEio = absl::DataLossError("/store: injected EIO");
const absl::Status kEnospc = absl::ResourceExhaustedError("/store: injected ENOSPC");

int64_t ScriptCalls() {
  FaultyEnv env;
  Script script(env, /*striped=*/false);
  const int64_t begin = env.calls();
  script.Run(/*go_on=*/true);
  EXPECT_FALSE(script.ended());
  EXPECT_GT(script.store()->SsdStats().segments_cleaned, 0);
  return env.calls() - begin;
}

// Runs the script once for each call k that is to go wrong, over one directory and two in turn.
void Walk(const std::function<void(FaultyEnv& env, int64_t k)>& arm, absl::StatusCode code,
          bool go_on, bool power_loss) {
  const int64_t calls = ScriptCalls();
  ASSERT_GT(calls, 300);
  testing::Test::RecordProperty("calls", std::to_string(calls));
  for (const uint64_t seed : Seeds(kSlow ? 3 : 1)) {
    const int64_t stride = kSlow ? 1 : test::ForSanitizer(8, 19);
    for (int64_t k = static_cast<int64_t>(seed) % stride; k < calls; k += stride) {
      const bool striped = k / stride % 2 == 1;
      SCOPED_TRACE(absl::StrCat("call ", k, ", striped ", striped, ", HOTROW_TEST_SEED=", seed));
      FaultyEnv env;
      Script script(env, striped);
      script.set_injected(code);
      arm(env, env.calls() + k);
      script.Run(go_on);
      ASSERT_GT(env.faults(), 0);
      const auto power_seed = static_cast<uint64_t>(k) * 1000 + seed;
      ASSERT_NO_FATAL_FAILURE(script.Verify([&] {
        if (!power_loss) return;
        if (k % 2 == 0) {
          env.DropUnsyncedData();
        } else {
          env.LosePower(power_seed);
        }
      }));
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(SsdFaultTest, AFailedCallIsReportedAndTheStoreGoesOn) {
  Walk([](FaultyEnv& env, int64_t k) { env.FailCall(k, kEio); }, absl::StatusCode::kDataLoss, true,
       false);
}
TEST(SsdFaultTest, AFullDiskIsReportedAndTheStoreGoesOn) {
  Walk([](FaultyEnv& env, int64_t k) { env.FailCall(k, kEnospc); },
       absl::StatusCode::kResourceExhausted, true, false);
}
TEST(SsdFaultTest, AFailedCallAndThenPowerLossLoseNothingCommitted) {
  Walk([](FaultyEnv& env, int64_t k) { env.FailCall(k, kEio); }, absl::StatusCode::kDataLoss, false,
       true);
}
TEST(SsdFaultTest, ADiskThatIsGoneLosesNothingCommitted) {
  Walk([](FaultyEnv& env, int64_t k) { env.FailFrom(k, kEio); }, absl::StatusCode::kDataLoss, false,
       true);
}
TEST(SsdFaultTest, AFullDiskAndThenAKillLoseNothingCommitted) {
  Walk([](FaultyEnv& env, int64_t k) { env.FailFrom(k, kEnospc); },
       absl::StatusCode::kResourceExhausted, false, false);
}

TEST(SsdFaultTest, TransfersThatFallShortAreContinued) {
  const int64_t calls = ScriptCalls();
  FaultyEnv env;
  Script script(env, /*striped=*/true);
  for (int64_t k = 0; k < calls * 2; ++k) {
    if (k % 3 != 0) env.ShortenCall(env.calls() + k);
  }
  script.Run(/*go_on=*/false);
  EXPECT_FALSE(script.ended());
  EXPECT_GT(env.faults(), 100);
  script.Verify([&] { env.DropUnsyncedData(); });
}

// What is opened: a store that was closed, one that lost power, and a snapshot of the latter.
void WalkOpening(bool closed, bool at_snapshot) {
  for (int mode = 0; mode < 4; ++mode) {
    const int64_t stride = kSlow ? 1 : test::ForSanitizer(3, 7);
    for (int64_t k = mode % stride;; k += stride) {
      SCOPED_TRACE(absl::StrCat("mode ", mode, ", call ", k, " of Open"));
      FaultyEnv env;
      Script script(env, /*striped=*/mode == 1 || mode == 2);
      script.Run(/*go_on=*/true);
      ASSERT_FALSE(script.ended());
      if (closed) {
        HOTROW_ASSERT_OK(script.store()->Close());
        script.oracle().Commit();
      }
      const SnapshotId at = at_snapshot ? script.snapshots().begin()->first : 0;
      const RowMap snapshot = script.snapshots().begin()->second;
      if (!closed) env.LosePower(static_cast<uint64_t>(k));
      const absl::Status error = mode % 2 == 0 ? kEio : kEnospc;
      const int64_t call = env.calls() + k;
      if (mode < 2) {
        env.FailCall(call, error);
      } else {
        env.FailFrom(call, error);
      }
      const absl::Status first = script.OpenStore(at);
      const bool done = env.faults() == 0;
      if (!first.ok()) {
        EXPECT_EQ(first.code(), error.code()) << first;
      }
      if (at_snapshot && first.ok()) {
        script.oracle().Reset(snapshot);
      }
      env.FailFrom(INT64_MAX, absl::OkStatus());
      env.FailCall(call, absl::OkStatus());
      if (mode >= 2) {
        if (k % 2 == 0) {
          env.LosePower(static_cast<uint64_t>(k) + 77);
        } else {
          env.DropUnsyncedData();
        }
      }
      if (at_snapshot) {
        HOTROW_ASSERT_OK(script.OpenStore(at));
        script.oracle().Reset(snapshot);
      }
      ASSERT_NO_FATAL_FAILURE(script.Verify([] {}));
      if (done || testing::Test::HasFailure()) break;
    }
  }
}

TEST(SsdFaultTest, OpeningAClosedStoreMayFailAtEveryCall) { WalkOpening(true, false); }
TEST(SsdFaultTest, RecoveryMayFailAtEveryCall) { WalkOpening(false, false); }
TEST(SsdFaultTest, OpeningASnapshotMayFailAtEveryCall) { WalkOpening(false, true); }

// --- A process that is killed --------------------------------------------------------------------

// Step by step the same, whoever runs it: rows are a function of key and step.
struct KillScript {
  static constexpr uint64_t kKeys = 240;

  static std::vector<StoreTable> Tables() { return {{1, 40}, {2, 512}, {3, 1500}}; }
  static Batch Rows(uint64_t step) {
    RandomStream random(step, RandomPurpose::kTest);
    Batch batch;
    for (uint64_t i = 0; i < 30; ++i) {
      const StoreTable table = Tables()[random.Below(3)];
      const RowKey key = {Mix64(random.Below(kKeys)), table.table};
      batch.Add(key, MakeRow(key, step * 100 + i, table.row_bytes));
    }
    return batch;
  }
  static std::vector<RowKey> Erased(uint64_t step) {
    RandomStream random(step, RandomPurpose::kTest, 1);
    std::vector<RowKey> keys;
    for (uint64_t i = 0; i < 4; ++i) {
      keys.push_back({Mix64(random.Below(kKeys)), Tables()[random.Below(3)].table});
    }
    return keys;
  }
  static SsdStoreOptions Options(const std::string& dir, SnapshotId at, bool striped) {
    SsdStoreOptions options;
    options.path = dir + "/store";
    if (striped) options = Striped(options);
    options.tables = Tables();
    options.memory_budget_bytes = 4 << 20;
    // Little, so that snapshots that follow each other must not hand their garbage on.
    options.disk_budget_bytes = 48 * 64 * kKiB;
    options.segment_bytes = 64 * kKiB;
    options.chunk_bytes = 16 * kKiB;
    options.open_at = at;
    return options;
  }

  // Runs until it is killed. Each step is a snapshot; the two before it are kept. Writes the number
  // of each committed step to the pipe.
  [[noreturn]] static void Child(const std::string& dir, uint64_t last_step, bool striped,
                                 int pipe) {
    const auto give_up = [](const absl::Status& status) {
      std::fprintf(stderr, "child: %s\n", status.ToString().c_str());
      ::_exit(3);
    };
    absl::StatusOr<std::unique_ptr<SsdStore>> store =
        SsdStore::Open(Options(dir, last_step, striped));
    if (!store.ok()) give_up(store.status());
    // Snapshots that were made and not reported, and one that there was no time to drop.
    const absl::StatusOr<std::vector<SnapshotId>> ids = (*store)->ListSnapshots();
    if (!ids.ok()) give_up(ids.status());
    for (const SnapshotId id : *ids) {
      if (id <= last_step && id + 2 > last_step) continue;
      if (const absl::Status dropped = (*store)->DropSnapshot(id); !dropped.ok()) give_up(dropped);
    }
    for (uint64_t step = last_step + 1;; ++step) {
      absl::Status status = Rows(step).InsertInto(**store);
      if (status.ok()) status = (*store)->Erase(Erased(step));
      if (status.ok()) status = (*store)->PrepareSnapshot(step);
      if (status.ok()) status = (*store)->CommitSnapshot(step);
      if (!status.ok()) give_up(status);
      if (::write(pipe, &step, sizeof(step)) != sizeof(step)) ::_exit(4);
      if (step > 2) {
        const absl::Status dropped = (*store)->DropSnapshot(step - 2);
        // One that was dropped before the last kill.
        if (!dropped.ok() && !absl::IsFailedPrecondition(dropped)) give_up(dropped);
      }
    }
  }
};

TEST(SsdKillTest, ExactlyTheCommittedSnapshotIsThereAfterEachKill) {
  const int kills = test::SlowRuns(200, 10);
  constexpr int kFreshStart = 20;
  constexpr int kSecondDirectory = 5;  // is added at this kill of each start
  for (const uint64_t seed : Seeds(1)) {
    const std::string dir = test::TempDir();
    RandomStream random(seed, RandomPurpose::kTest);
    uint64_t last_step = 0;
    uint64_t oracle_step = 0;
    RowMap oracle;
    int64_t steps_at_most = 0;
    for (int kill = 0; kill < kills; ++kill) {
      SCOPED_TRACE(absl::StrCat("kill ", kill, ", HOTROW_TEST_SEED=", seed));
      if (kill % kFreshStart == 0) {
        last_step = 0;
        oracle_step = 0;
        oracle.clear();
      }
      // What was written before the first report is no known state.
      if (last_step == 0) {
        std::filesystem::remove_all(dir + "/store");
        std::filesystem::remove_all(dir + "/store-2");
      }
      const bool striped = kill % kFreshStart >= kSecondDirectory;
      int ends[2];
      ASSERT_EQ(::pipe(ends), 0);
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        ::close(ends[0]);
        KillScript::Child(dir, last_step, striped, ends[1]);
      }
      ::close(ends[1]);
      // At any moment of the life of the child, also while it opens the store.
      const uint64_t wanted_steps = random.Below(4) == 0 ? 0 : 1 + random.Below(25);
      uint64_t step = last_step;
      for (uint64_t i = 0; i < wanted_steps; ++i) {
        if (::read(ends[0], &step, sizeof(step)) != sizeof(step)) break;
      }
      ::usleep(static_cast<useconds_t>(random.Below(12'000)));
      ASSERT_EQ(::kill(child, SIGKILL), 0);
      // What it still had reported.
      uint64_t number = 0;
      while (::read(ends[0], &number, sizeof(number)) == sizeof(number)) step = number;
      ::close(ends[0]);
      int how = 0;
      ASSERT_EQ(::waitpid(child, &how, 0), child);
      ASSERT_TRUE(WIFSIGNALED(how)) << "the child ended by itself with " << WEXITSTATUS(how);
      steps_at_most = std::max<int64_t>(steps_at_most, static_cast<int64_t>(step - last_step));
      last_step = step;
      if (last_step == 0) continue;

      while (oracle_step < last_step) {
        ++oracle_step;
        const Batch batch = KillScript::Rows(oracle_step);
        for (size_t i = 0; i < batch.keys.size(); ++i) {
          oracle[{batch.keys[i].table, batch.keys[i].key}] = batch.rows[i];
        }
        for (const RowKey& key : KillScript::Erased(oracle_step)) {
          oracle.erase({key.table, key.key});
        }
      }
      SsdStoreOptions options = KillScript::Options(dir, last_step, striped);
      options.background = false;  // no threads where the next child is forked
      options.io.kind = IoQueueKind::kThreads;
      options.io.threads = 1;
      {
        HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
        ASSERT_TRUE(Holds(*store, oracle)) << "snapshot " << last_step;
        if (random.Below(3) == 0) {
          HOTROW_ASSERT_OK(store->CleanAll());
        }
        if (random.Below(3) == 0) {
          HOTROW_ASSERT_OK(store->Close());
        }
      }
    }
    EXPECT_GT(steps_at_most, 3);
    RecordProperty("steps", std::to_string(last_step));
  }
}

}  // namespace
}  // namespace hotrow
