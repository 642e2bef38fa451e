// Snapshots that are written while training goes on.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/io_queue.h"
#include "base/philox.h"
#include "base/trace.h"
#include "embedding/embedding_collection.h"
#include "embedding/snapshots_impl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/host/host_store.h"
#include "tests/embedding/store_kinds.h"
#include "tests/embedding/trainer.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::Batch;
using ::hotrow::test::BatchOf;
using ::hotrow::test::FaultyEnv;
using ::hotrow::test::kBatchSize;
using ::hotrow::test::kMiB;
using ::hotrow::test::PutStore;
using ::hotrow::test::ReferenceHashes;
using ::hotrow::test::SmallTables;
using ::hotrow::test::StatusIs;
using ::hotrow::test::Trainer;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class SnapshotTest : public testing::TestWithParam<StoreKind> {};

INSTANTIATE_TEST_SUITE_P(All, SnapshotTest, testing::ValuesIn(test::StoreKinds()),
                         test::NameOfStoreKind);

TEST_P(SnapshotTest, EachShowsItsStepWhateverHappensMeanwhile) {
  constexpr int kSteps = 60;
  const bool rocks = GetParam() == StoreKind::kRocksDb;
  EmbeddingStats sum;
  for (const uint64_t seed : test::Seeds(rocks ? 3 : 8)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const uint64_t rows = 100 + random.Below(3000);
    const EmbeddingCollectionOptions plain = SmallTables();
    const std::vector<Hash128> expected = ReferenceHashes(plain, kSteps, rows);

    EmbeddingCollectionOptions options = plain;
    HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t least, EmbeddingCollection::MinCacheBytes(options));
    options.cache.bytes = least + static_cast<int64_t>(random.Below(4)) * least / 2;
    options.prefetch_depth = static_cast<int32_t>(random.Below(4));
    options.cache.policy = random.Below(2) == 0 ? CachePolicy::kLru : CachePolicy::kLfu;
    const std::string dir = test::TempDir();
    PutStore(GetParam(), dir, &options);
    std::vector<int> taken;
    {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
      Trainer trainer(tables.get(), options.prefetch_depth, 0, kSteps, rows);
      bool writing = false;
      while (trainer.step() < kSteps) {
        HOTROW_ASSERT_OK(trainer.Step());
        if (writing) {
          HOTROW_ASSERT_OK_AND_ASSIGN(const bool prepared, tables->snapshots().Prepared());
          if (!prepared && random.Below(6) == 0) {
            HOTROW_ASSERT_OK(tables->snapshots().Wait());
          }
          if (prepared && random.Below(2) == 0) {
            HOTROW_ASSERT_OK(tables->snapshots().Commit(static_cast<SnapshotId>(taken.back())));
            writing = false;
          }
          if (!prepared) {
            const absl::Status second = tables->snapshots().Begin(1000);
            // It may have come to its end by now, and then the name is good.
            if (second.ok()) {
              HOTROW_ASSERT_OK(tables->snapshots().Wait());
              HOTROW_ASSERT_OK(tables->snapshots().Drop(1000));
              writing = false;
            } else {
              EXPECT_THAT(second, StatusIs(absl::StatusCode::kFailedPrecondition,
                                           HasSubstr(absl::StrCat(taken.back()))));
            }
          }
        } else if (random.Below(3) == 0) {
          if (random.Below(3) == 0) tables->snapshots().Announce();
          HOTROW_ASSERT_OK(tables->snapshots().Begin(static_cast<SnapshotId>(trainer.step())));
          taken.push_back(trainer.step());
          writing = true;
        }
        if (random.Below(10) == 0) {
          const Batch batch = BatchOf(trainer.step() / 2, rows * 2);
          std::vector<float> output(static_cast<size_t>(kBatchSize * tables->pooled_dim()));
          HOTROW_ASSERT_OK(tables->Evaluate(
              batch.view(), {.pooled = test::RowsOf(*tables, batch.batch_size, output)}));
        }
        if (random.Below(20) == 0) {
          HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
          ASSERT_EQ(digest.hash, expected[trainer.step()]) << "after " << trainer.step();
        }
      }
      if (writing) {
        HOTROW_ASSERT_OK(tables->snapshots().Wait());
      }
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
      EXPECT_EQ(digest.hash, expected[kSteps]);
      const EmbeddingStats stats = tables->Stats();
      EXPECT_EQ(stats.snapshots_failed, 0);
      EXPECT_GE(stats.snapshots, std::ssize(taken));
      EXPECT_LE(stats.tiers[0].used_bytes, stats.tiers[0].budget_bytes);
      sum.snapshot_rows += stats.snapshot_rows;
      sum.snapshot_rows_copied += stats.snapshot_rows_copied;
      sum.snapshot_rows_held += stats.snapshot_rows_held;
      if (random.Below(2) == 0) {
        HOTROW_ASSERT_OK(tables->Close());
      }
    }
    // Each in turn, in any order but that the last one is trained on.
    options.cache.bytes = 2 * kMiB;
    for (const int at : taken) {
      options.start.from = {{.snapshot = static_cast<SnapshotId>(at)}};
      options.start.steps = at;
      HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
      EXPECT_EQ(digest.hash, expected[at]) << "snapshot " << at;
      if (at != taken.back()) continue;
      Trainer trainer(tables.get(), options.prefetch_depth, at, kSteps, rows);
      while (trainer.step() < kSteps) {
        HOTROW_ASSERT_OK(trainer.Step());
      }
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest end, tables->Digest());
      EXPECT_EQ(end.hash, expected[kSteps]) << "from snapshot " << at;
    }
  }
  // Otherwise the test has not met what it is about.
  EXPECT_GT(sum.snapshot_rows, 0);
  EXPECT_GT(sum.snapshot_rows_copied, 0);
}

// --- With a disk that can be held still
// --------------------------------------------------------------------------

// Holds every Sync of a file up while the gate is shut.
class GateEnv : public Env {
 public:
  explicit GateEnv(Env* base) : base_(base) {}

  void Shut() {
    const std::lock_guard<std::mutex> lock(mutex_);
    shut_ = true;
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    shut_ = false;
    changed_.notify_all();
  }
  // Until somebody stands before the gate.
  void AwaitVisitor() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<File> file, base_->Open(path, mode));
    return std::unique_ptr<File>(new GateFile(this, std::move(file)));
  }
  absl::StatusOr<std::unique_ptr<File>> OpenDirect(const std::string& path,
                                                   OpenMode mode) override {
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<File> file, base_->OpenDirect(path, mode));
    return std::unique_ptr<File>(new GateFile(this, std::move(file)));
  }
  absl::Status CreateDirs(const std::string& path) override { return base_->CreateDirs(path); }
  absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path) override {
    return base_->ListDir(path);
  }
  absl::StatusOr<bool> Exists(const std::string& path) override { return base_->Exists(path); }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return base_->Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override { return base_->Remove(path); }
  absl::Status RemoveDir(const std::string& path) override { return base_->RemoveDir(path); }
  absl::Status SyncDir(const std::string& path) override { return base_->SyncDir(path); }
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    return base_->FreeBytes(path);
  }

 private:
  class GateFile : public File {
   public:
    GateFile(GateEnv* env, std::unique_ptr<File> base) : env_(env), base_(std::move(base)) {}
    absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) override {
      return base_->ReadAt(offset, bytes);
    }
    absl::StatusOr<int64_t> WriteAt(int64_t offset, std::span<const std::byte> bytes) override {
      return base_->WriteAt(offset, bytes);
    }
    absl::Status Sync() override {
      env_->Pass();
      return base_->Sync();
    }
    absl::StatusOr<int64_t> Size() override { return base_->Size(); }
    absl::Status Truncate(int64_t size) override { return base_->Truncate(size); }
    absl::Status Allocate(int64_t bytes) override { return base_->Allocate(bytes); }
    absl::Status Close() override { return base_->Close(); }
    const std::string& path() const override { return base_->path(); }
    int64_t block_bytes() const override { return base_->block_bytes(); }

   private:
    GateEnv* env_;
    std::unique_ptr<File> base_;
  };

  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !shut_; });
    --waiting_;
  }

  Env* base_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool shut_ = false;
  int waiting_ = 0;
};

// The memory store captures when its file is synced: while that takes its time, rows that were
// updated and evicted are held back, misses on them are served, and once there is no room for more
// the pipeline waits.
TEST(SnapshotOverASlowDiskTest, HoldsBackWhatWasUpdatedSince) {
  constexpr int kSteps = 60;
  constexpr uint64_t kRows = 3000;
  const std::vector<Hash128> expected = ReferenceHashes(SmallTables(), kSteps, kRows);
  for (const int depth : {0, 2}) {
    SCOPED_TRACE(depth);
    test::MemEnv memory;
    GateEnv env(&memory);
    EmbeddingCollectionOptions options = SmallTables();
    HOTROW_ASSERT_OK_AND_ASSIGN(options.cache.bytes, EmbeddingCollection::MinCacheBytes(options));
    options.cache.bytes *= 2;
    options.prefetch_depth = depth;
    std::get<MemoryStorage>(options.store).snapshot_dir = "/snapshots";
    options.env = &env;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    Trainer trainer(tables.get(), depth, 0, kSteps, kRows);
    while (trainer.step() < 20) {
      HOTROW_ASSERT_OK(trainer.Step());
    }

    env.Shut();
    HOTROW_ASSERT_OK(tables->snapshots().Begin(20));
    env.AwaitVisitor();
    // The store takes nothing from here on, so training comes to a halt; then the gate opens.
    std::atomic<int> done{trainer.step()};
    std::thread opener([&] {
      for (int seen = -1; seen != done.load();) {
        seen = done.load();
        std::this_thread::sleep_for(std::chrono::seconds(1));
      }
      env.Open();
    });
    HOTROW_ASSERT_OK_AND_ASSIGN(const bool prepared, tables->snapshots().Prepared());
    EXPECT_FALSE(prepared);
    absl::Status status;
    while (status.ok() && trainer.step() < 45) {
      status = trainer.Step();
      done = trainer.step();
    }
    opener.join();
    HOTROW_ASSERT_OK(status);
    HOTROW_ASSERT_OK(tables->snapshots().Wait());
    const EmbeddingStats stats = tables->Stats();
    EXPECT_GT(stats.snapshot_rows_held, 0);
    EXPECT_GT(stats.snapshot_evict_waits, 0);
    EXPECT_GT(stats.snapshot_evict_wait_ns, 0);
    // The next one holds what the first held back.
    HOTROW_ASSERT_OK(tables->snapshots().Prepare(45));
    while (trainer.step() < kSteps) {
      HOTROW_ASSERT_OK(trainer.Step());
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
    EXPECT_EQ(digest.hash, expected[kSteps]);
    tables.reset();
    for (const int at : {20, 45}) {
      EmbeddingCollectionOptions again = SmallTables();
      std::get<MemoryStorage>(again.store).snapshot_dir = "/snapshots";
      again.env = &env;
      again.start.from = {{.snapshot = static_cast<SnapshotId>(at)}};
      HOTROW_ASSERT_OK_AND_ASSIGN(auto reopened, EmbeddingCollection::Create(again, {}));
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest there, reopened->Digest());
      EXPECT_EQ(there.hash, expected[at]);
    }
  }
}

// --- Failures
// ----------------------------------------------------------------------------------------------------

// One call fails, some time after the snapshot was begun. The snapshot is there and right, or it is
// not there; the tables go on.
void RunSnapshotsOverFaults(bool throws) {
  constexpr int kSteps = 40;
  constexpr uint64_t kRows = 2000;
  const std::vector<Hash128> expected = ReferenceHashes(SmallTables(), kSteps, kRows);
  int failed = 0;
  for (int64_t k = 0;; ++k) {
    SCOPED_TRACE(absl::StrCat("call ", k));
    FaultyEnv env;
    EmbeddingCollectionOptions options = SmallTables();
    HOTROW_ASSERT_OK_AND_ASSIGN(options.cache.bytes, EmbeddingCollection::MinCacheBytes(options));
    options.prefetch_depth = static_cast<int32_t>(k % 3);
    std::get<MemoryStorage>(options.store).snapshot_dir = "/snapshots";
    options.env = &env;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    Trainer trainer(tables.get(), options.prefetch_depth, 0, kSteps, kRows);
    while (trainer.step() < 10) {
      HOTROW_ASSERT_OK(trainer.Step());
    }
    if (throws) {
      env.ThrowCall(env.calls() + k);
    } else {
      env.FailCall(env.calls() + k, absl::ResourceExhaustedError("injected"));
    }
    const absl::Status begun = tables->snapshots().Begin(10);
    if (begun.ok()) {
      while (trainer.step() < 20) {
        HOTROW_ASSERT_OK(trainer.Step());
      }
    }
    const absl::Status first = begun.ok() ? tables->snapshots().Wait() : begun;
    if (env.faults() == 0) break;
    if (!first.ok()) {
      EXPECT_THAT(first, StatusIs(absl::StatusCode::kResourceExhausted,
                                  HasSubstr(throws ? "out of memory" : "injected")));
      if (begun.ok()) {
        EXPECT_THAT(tables->snapshots().Prepared(), Not(test::IsOk()));
      }
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<SnapshotId> there, tables->snapshots().List());
      EXPECT_THAT(there, Not(Contains(10)));
      ++failed;
    }
    const auto second = static_cast<SnapshotId>(trainer.step());
    if (second != 10 || !first.ok()) {
      HOTROW_ASSERT_OK(tables->snapshots().Prepare(second));
    }
    EXPECT_EQ(tables->Stats().snapshots_failed, first.ok() || !begun.ok() ? 0 : 1);
    while (trainer.step() < kSteps) {
      HOTROW_ASSERT_OK(trainer.Step());
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
    EXPECT_EQ(digest.hash, expected[kSteps]);
    tables.reset();
    for (const SnapshotId at : {SnapshotId{10}, second}) {
      if (at == 10 && !first.ok() && second != 10) continue;
      EmbeddingCollectionOptions again = SmallTables();
      std::get<MemoryStorage>(again.store).snapshot_dir = "/snapshots";
      again.env = &env;
      again.start.from = {{.snapshot = at}};
      HOTROW_ASSERT_OK_AND_ASSIGN(auto reopened, EmbeddingCollection::Create(again, {}));
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest there, reopened->Digest());
      EXPECT_EQ(there.hash, expected[at]);
    }
  }
  EXPECT_GE(failed, 4) << "a snapshot makes more calls than that";
}

TEST(SnapshotFailureTest, TheTablesGoOnAndTheNextOneIsWhole) { RunSnapshotsOverFaults(false); }
// On the thread that writes it nobody would catch what is thrown.
TEST(SnapshotFailureTest, AlsoWhereThereWasNoMemory) { RunSnapshotsOverFaults(true); }

// An SSD that fails at some call and from there on: what was prepared before is there again
// when the disk is.
TEST(SnapshotFailureTest, AnSsdThatGoesAwayKeepsWhatWasPrepared) {
  constexpr int kSteps = 40;
  constexpr uint64_t kRows = 2000;
  const std::vector<Hash128> expected = ReferenceHashes(SmallTables(), kSteps, kRows);
  int prepared_late = 0;
  int failed = 0;
  for (int64_t k = 0; k < 30; ++k) {
    SCOPED_TRACE(absl::StrCat("call ", k));
    test::MemEnv memory;
    EmbeddingCollectionOptions options = SmallTables();
    HOTROW_ASSERT_OK_AND_ASSIGN(options.cache.bytes, EmbeddingCollection::MinCacheBytes(options));
    options.prefetch_depth = static_cast<int32_t>(k % 3);
    PutStore(StoreKind::kSsd, "/store", &options);
    bool second = false;
    {
      FaultyEnv env(&memory);
      options.env = &env;
      HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
      Trainer trainer(tables.get(), options.prefetch_depth, 0, kSteps, kRows);
      while (trainer.step() < 10) {
        HOTROW_ASSERT_OK(trainer.Step());
      }
      HOTROW_ASSERT_OK(tables->snapshots().Prepare(10));
      HOTROW_ASSERT_OK(tables->snapshots().Commit(10));
      while (trainer.step() < 20) {
        HOTROW_ASSERT_OK(trainer.Step());
      }
      env.FailFrom(env.calls() + k * k / 3, absl::DataLossError("injected"));
      absl::Status status = tables->snapshots().Begin(20);
      const bool begun = status.ok();
      while (status.ok() && trainer.step() < 30) status = trainer.Step();
      if (!status.ok()) {
        EXPECT_THAT(status.message(), HasSubstr("injected"));
      }
      second = begun && tables->snapshots().Wait().ok();
      (second ? prepared_late : failed) += 1;
    }
    options.env = &memory;
    options.start.from = {{.snapshot = second ? SnapshotId{20} : SnapshotId{10}}};
    options.start.steps = second ? 20 : 10;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
    EXPECT_EQ(digest.hash, expected[second ? 20 : 10]);
    Trainer trainer(tables.get(), options.prefetch_depth, static_cast<int>(options.start.steps),
                    kSteps, kRows);
    while (trainer.step() < kSteps) {
      HOTROW_ASSERT_OK(trainer.Step());
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest end, tables->Digest());
    EXPECT_EQ(end.hash, expected[kSteps]);
  }
  EXPECT_GE(failed, 5);
  EXPECT_GE(prepared_late, 1);
}

// --- Refusals and ends
// -----------------------------------------------------------------------------------------

TEST(SnapshotRulesTest, NamesAndOrderAreChecked) {
  test::MemEnv env;
  for (const int64_t cache_bytes : {int64_t{0}, kMiB}) {
    EmbeddingCollectionOptions options = SmallTables();
    options.cache.bytes = cache_bytes;
    options.env = &env;
    {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
      EXPECT_THAT(tables->snapshots().Begin(1),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("snapshot_dir")));
    }
    std::get<MemoryStorage>(options.store).snapshot_dir = absl::StrCat("/snapshots", cache_bytes);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    EXPECT_THAT(tables->snapshots().Prepared(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                         HasSubstr("no snapshot was begun")));
    EXPECT_THAT(tables->snapshots().Begin(0),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("0")));
    Trainer trainer(tables.get(), 0, 0, 4, 500);
    HOTROW_ASSERT_OK(trainer.Step());
    HOTROW_ASSERT_OK(tables->snapshots().Begin(7));
    HOTROW_ASSERT_OK(tables->snapshots().Wait());
    HOTROW_ASSERT_OK_AND_ASSIGN(const bool prepared, tables->snapshots().Prepared());
    EXPECT_TRUE(prepared);
    EXPECT_THAT(tables->snapshots().Begin(7),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("snapshot 7")));
    HOTROW_ASSERT_OK(trainer.Step());
    HOTROW_ASSERT_OK(tables->snapshots().Prepare(8));
    EXPECT_THAT(*tables->snapshots().List(), ElementsAre(7, 8));
    const EmbeddingStats stats = tables->Stats();
    EXPECT_EQ(stats.snapshots, 2);
    EXPECT_GT(stats.snapshot_pause_ns, 0);
    EXPECT_GE(stats.snapshot_pause_ns_max, stats.snapshot_pause_ns);
    EXPECT_EQ(stats.snapshot_rows > 0, cache_bytes > 0);
    const Batch batch = BatchOf(1, 500);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto step, tables->Prefetch(batch.view()));
    EXPECT_THAT(tables->Close(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("1")));
    step = EmbeddingStep();
    HOTROW_ASSERT_OK(tables->Close());
  }
}

// What a user sees of all this: spans by these names.
TEST(PipelineTraceTest, EachStageHasASpan) {
  test::MemEnv env;
  TraceRecorder trace(/*keep_events=*/true);
  ExecContext ctx;
  ctx.trace = &trace;
  EmbeddingCollectionOptions options = SmallTables();
  HOTROW_ASSERT_OK_AND_ASSIGN(options.cache.bytes, EmbeddingCollection::MinCacheBytes(options));
  options.prefetch_depth = 2;
  PutStore(StoreKind::kSsd, "/store", &options);
  options.env = &env;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, ctx));
  Trainer trainer(tables.get(), 2, 0, 30, 3000);
  while (trainer.step() < 30) {
    HOTROW_ASSERT_OK(trainer.Step());
    if (trainer.step() == 10) {
      HOTROW_ASSERT_OK(tables->snapshots().Prepare(10));
    }
  }
  std::map<std::string, int64_t> counts;
  for (const TraceRecorder::StageTotal& total : trace.StageTotals()) {
    counts[total.name] = total.count;
  }
  for (const char* name : {"unique", "place", "fill", "probe", "read_rows", "write_back", "gather",
                           "sparse_update", "snapshot_rows", "snapshot"}) {
    EXPECT_GT(counts[name], 0) << name;
  }
  EXPECT_EQ(counts["fill"], 30);
  EXPECT_EQ(counts["wait"], tables->Stats().lookup_waits);
  EXPECT_EQ(counts["snapshot"], 1);
}

// A store without caches that seems to have some: what they hold back goes nowhere until Open.
class StuckRows final : public internal::SnapshotRows {
 public:
  explicit StuckRows(std::unique_ptr<HostStore> store) : store_(std::move(store)) {}

  RowStore* store() const override { return store_.get(); }
  bool has_caches() const override { return true; }
  absl::Status Broken() const override { return absl::OkStatus(); }
  absl::Status BeginSnapshot() override { return absl::OkStatus(); }
  absl::StatusOr<bool> WriteSnapshotPart() override { return false; }
  void EndSnapshot() override {}
  absl::Status WriteHeld() override {
    entered_.count_down();
    open_.wait();
    return absl::UnavailableError("still no room");
  }
  bool HasRoomBesideSnapshot() override { return true; }

  void AwaitWriteHeld() { entered_.wait(); }
  void Open() { open_.count_down(); }

 private:
  const std::unique_ptr<HostStore> store_;
  std::latch entered_{1};
  std::latch open_{1};
};

// Whoever commits a snapshot may make the room that held-back rows wait for.
TEST(SnapshotRulesTest, IsPreparedBeforeHeldBackRowsAreWritten) {
  test::MemEnv env;
  EmbeddingCollectionOptions options = SmallTables();
  std::get<MemoryStorage>(options.store).snapshot_dir = "/snapshots";
  HOTROW_ASSERT_OK_AND_ASSIGN(
      auto store,
      HostStore::Open(
          {.tables = {{0, 16}}, .budget_bytes = kMiB, .snapshot_dir = "/snapshots", .env = &env}));
  StuckRows rows(std::move(store));
  internal::Snapshots snapshots(options, {}, &rows, [] {});
  HOTROW_ASSERT_OK(snapshots.Begin(5));
  rows.AwaitWriteHeld();
  const absl::StatusOr<bool> prepared = snapshots.Prepared();
  HOTROW_EXPECT_OK(prepared);
  EXPECT_TRUE(prepared.ok() && *prepared);
  if (prepared.ok() && *prepared) {
    HOTROW_EXPECT_OK(snapshots.Wait());
    snapshots.Announce();  // returns at once
    HOTROW_EXPECT_OK(snapshots.Commit(5));
  }
  rows.Open();
  snapshots.Join();
  // That those rows found no room does not make the snapshot a failed one.
  HOTROW_EXPECT_OK(snapshots.Wait());
  EmbeddingStats stats;
  snapshots.AddTo(&stats);
  EXPECT_EQ(stats.snapshots_failed, 0);
}

// A collection that goes away in the midst of a snapshot waits for nobody who will not come.
TEST(SnapshotRulesTest, TheCollectionMayEndMeanwhile) {
  for (int i = 0; i < 20; ++i) {
    test::MemEnv env;
    EmbeddingCollectionOptions options = SmallTables();
    options.cache.bytes = kMiB;
    options.prefetch_depth = 2;
    PutStore(i % 2 == 0 ? StoreKind::kMemory : StoreKind::kSsd, "/dir", &options);
    options.env = &env;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    Trainer trainer(tables.get(), 2, 0, 100, 3000);
    for (int step = 0; step < 8; ++step) {
      HOTROW_ASSERT_OK(trainer.Step());
    }
    HOTROW_ASSERT_OK(tables->snapshots().Begin(8));
    for (int step = 0; step < i % 5; ++step) {
      HOTROW_ASSERT_OK(trainer.Step());
    }
    trainer = Trainer(nullptr, 0, 0, 0, 0);  // cancels what was prefetched
  }
}

}  // namespace
}  // namespace hotrow
