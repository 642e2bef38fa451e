#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "base/hash.h"
#include "base/math.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_log_impl.h"
#include "store/ssd/ssd_store.h"
#include "tests/store/ssd_test_util.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"

// What happens at a store's files: who is told of writes that fail, what is synced, who waits.

namespace hotrow {
namespace {

using internal::SsdLog;
using internal::SsdStream;
using test::Dump;
using test::kKiB;
using test::MemEnv;
using test::StatusIs;
using testing::HasSubstr;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

// Asked before each write to a segment; its error is the answer of that write.
using WriteHook = std::function<absl::Status(const std::string& path, int64_t offset)>;

// A MemEnv whose segments answer writes as a hook says, and which can be switched off: then nothing
// can be written, synced or renamed, as from the moment when power fails.
class HookedEnv : public Env {
 public:
  HookedEnv(
      MemEnv* base, WriteHook hook, std::function<void()> read_hook = [] {})
      : base_(base), hook_(std::move(hook)), read_hook_(std::move(read_hook)) {}

  void SwitchOff() { off_ = true; }
  // From now on files in this directory get no further space. Before other threads use it.
  void Fill(const std::string& dir) { full_ = dir + "/"; }
  // Syncs of files and directories.
  int64_t syncs() const { return syncs_; }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    return Wrap(base_->Open(path, mode));
  }
  absl::StatusOr<std::unique_ptr<File>> OpenDirect(const std::string& path,
                                                   OpenMode mode) override {
    return Wrap(base_->OpenDirect(path, mode));
  }
  absl::Status CreateDirs(const std::string& path) override { return base_->CreateDirs(path); }
  absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path) override {
    return base_->ListDir(path);
  }
  absl::StatusOr<bool> Exists(const std::string& path) override { return base_->Exists(path); }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return off_ ? Off() : base_->Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override {
    return off_ ? Off() : base_->Remove(path);
  }
  absl::Status RemoveDir(const std::string& path) override { return base_->RemoveDir(path); }
  absl::Status SyncDir(const std::string& path) override {
    ++syncs_;
    return off_ ? Off() : base_->SyncDir(path);
  }
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    return base_->FreeBytes(path);
  }

 private:
  class HookedFile : public File {
   public:
    HookedFile(HookedEnv* env, std::unique_ptr<File> base) : env_(env), base_(std::move(base)) {}
    absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) override {
      if (absl::StrContains(path(), "segment-")) env_->read_hook_();
      return base_->ReadAt(offset, bytes);
    }
    absl::StatusOr<int64_t> WriteAt(int64_t offset, std::span<const std::byte> bytes) override {
      if (env_->off_) return Off();
      if (absl::StrContains(path(), "segment-")) {
        if (const absl::Status status = env_->hook_(path(), offset); !status.ok()) return status;
      }
      return base_->WriteAt(offset, bytes);
    }
    absl::Status Sync() override {
      ++env_->syncs_;
      return env_->off_ ? Off() : base_->Sync();
    }
    absl::StatusOr<int64_t> Size() override { return base_->Size(); }
    absl::Status Truncate(int64_t bytes) override { return base_->Truncate(bytes); }
    absl::Status Allocate(int64_t bytes) override {
      if (!env_->full_.empty() && absl::StartsWith(path(), env_->full_)) {
        return absl::ResourceExhaustedError(path() + ": no space left on this device");
      }
      return base_->Allocate(bytes);
    }
    absl::Status Close() override { return base_->Close(); }
    const std::string& path() const override { return base_->path(); }
    int64_t block_bytes() const override { return base_->block_bytes(); }

   private:
    HookedEnv* const env_;
    const std::unique_ptr<File> base_;
  };

  static absl::Status Off() { return absl::UnavailableError("the power is off"); }
  absl::StatusOr<std::unique_ptr<File>> Wrap(absl::StatusOr<std::unique_ptr<File>> file) {
    HOTROW_RETURN_IF_ERROR(file.status());
    return std::unique_ptr<File>(std::make_unique<HookedFile>(this, *std::move(file)));
  }

  MemEnv* const base_;
  const WriteHook hook_;
  const std::function<void()> read_hook_;  // called before each read of a segment
  std::string full_;
  std::atomic<bool> off_{false};
  std::atomic<int64_t> syncs_{0};
};

// Holds every write until the test says how it ends.
class WriteGate {
 public:
  WriteHook hook() {
    return [this](const std::string&, int64_t) {
      std::unique_lock lock(mutex_);
      const int64_t number = arrived_++;
      changed_.notify_all();
      changed_.wait(lock, [&] { return number < std::ssize(answers_); });
      return answers_[static_cast<size_t>(number)];
    };
  }
  // Until so many writes have come in all.
  void AwaitArrivals(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }
  // Ends the first write that has no answer yet, or the next one to come.
  void Answer(const absl::Status& status) {
    {
      std::lock_guard lock(mutex_);
      answers_.push_back(status);
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t arrived_ = 0;
  std::vector<absl::Status> answers_;
};

constexpr int64_t kChunkBytes = 16 * kKiB;

struct LogFixture {
  explicit LogFixture(WriteHook hook, bool background = true, int num_buffers = 6)
      : env(&mem, std::move(hook)) {
    HOTROW_EXPECT_OK(mem.CreateDirs("/log"));
    auto created = SsdLog::Create({.env = &env,
                                   .dirs = internal::SsdDirs({"/log"}),
                                   .segment_bytes = 4 * kChunkBytes,
                                   .chunk_bytes = kChunkBytes,
                                   .segments_max = kSegments,
                                   .longest_log_bytes = 64,
                                   .num_buffers = num_buffers,
                                   .background = background},
                                  budget);
    HOTROW_EXPECT_OK(created);
    log = *std::move(created);
  }

  // Appends a tombstone and hands it over, in its own chunk or one that may go on.
  void Write(bool close) {
    std::lock_guard stream_lock(log->stream_mutex(SsdStream::kFresh));
    const auto room = log->MakeRoom(SsdStream::kFresh, kBytes, sequence);
    HOTROW_ASSERT_OK(room);
    ASSERT_TRUE(*room);
    internal::SsdChunk& chunk = *log->chunk(SsdStream::kFresh);
    {
      std::lock_guard chunk_lock(chunk.mutex);
      const int64_t bytes = internal::EncodeSsdTombstone(log->NextPlace(chunk), 0, sequence,
                                                         sequence, chunk.data + chunk.fill);
      log->Appended(chunk, bytes, sequence, sequence,
                    internal::SsdKindTable(internal::SsdRecordKind::kTombstone, 0));
      ++sequence;
    }
    log->Submit(SsdStream::kFresh, close);
  }

  static constexpr int64_t kSegments = 8;
  static constexpr int64_t kBytes =
      internal::kSsdTombstoneBytes + int64_t{sizeof(internal::SsdFooterEntry)};
  MemEnv mem;
  HookedEnv env;
  internal::MemoryBudget budget{4 << 20, "test"};
  uint64_t sequence = 1;
  std::unique_ptr<SsdLog> log;
};

TEST(SsdLogTest, AWaiterIsToldOfItsOwnWriteThoughAnotherCallRetriesIt) {
  WriteGate gate;
  LogFixture f(gate.hook());
  // Two writes in two batches of the writer.
  ASSERT_NO_FATAL_FAILURE(f.Write(/*close=*/true));
  gate.AwaitArrivals(1);
  ASSERT_NO_FATAL_FAILURE(f.Write(/*close=*/true));
  const SsdLog::WriteMark first = f.log->RetryAndMark();
  gate.Answer(absl::UnavailableError("the cable is loose"));
  gate.AwaitArrivals(2);
  // Hands the write that failed to the writer again, before the first waiter looks.
  const SsdLog::WriteMark second = f.log->RetryAndMark();
  gate.Answer(absl::OkStatus());
  // The other try has not ended yet.
  gate.AwaitArrivals(3);
  EXPECT_THAT(f.log->WaitWritten(first), StatusIs(kUnavailable, HasSubstr("the cable is loose")));
  EXPECT_EQ(f.log->bytes_written(), kChunkBytes);
  gate.Answer(absl::OkStatus());
  HOTROW_EXPECT_OK(f.log->WaitWritten(second));
  HOTROW_EXPECT_OK(f.log->WaitWritten());
  EXPECT_TRUE(f.log->PendingChunks().empty());
}

TEST(SsdLogTest, AWriteThatSucceedsWhenRetriedIsWritten) {
  // Fails the first try of everything.
  std::mutex mutex;
  std::set<int64_t> seen;
  for (const bool background : {false, true}) {
    seen.clear();
    LogFixture f(
        [&](const std::string&, int64_t offset) -> absl::Status {
          std::lock_guard lock(mutex);
          return seen.insert(offset).second ? absl::UnavailableError("first try")
                                            : absl::OkStatus();
        },
        background);
    ASSERT_NO_FATAL_FAILURE(f.Write(/*close=*/false));
    // What is tried again within the call counts: without a writer the first try was before it.
    const absl::Status once = f.log->WaitWritten();
    if (!background) {
      HOTROW_EXPECT_OK(once);
    } else if (!once.ok()) {
      EXPECT_THAT(once, StatusIs(kUnavailable, HasSubstr("first try")));
    }
    HOTROW_EXPECT_OK(f.log->WaitWritten());
    HOTROW_EXPECT_OK(f.log->Sync());
    // Writes that failed are no writes.
    EXPECT_EQ(f.log->ios(), 1);
    EXPECT_EQ(f.log->bytes_written(),
              RoundUp(internal::kSsdSegmentHeaderBytes + internal::kSsdTombstoneBytes,
                      f.log->block_bytes()));
  }
}

TEST(SsdLogTest, OneWriteThatFailsDoesNotFailItsNeighbours) {
  // The first chunk fails, those handed over with it do not.
  WriteGate gate;
  LogFixture f(gate.hook());
  ASSERT_NO_FATAL_FAILURE(f.Write(/*close=*/true));
  gate.AwaitArrivals(1);
  for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(f.Write(/*close=*/true));
  gate.Answer(absl::OkStatus());
  gate.Answer(absl::OkStatus());
  gate.Answer(absl::UnavailableError("once"));
  gate.Answer(absl::OkStatus());
  gate.Answer(absl::OkStatus());
  // OK where the failure came before the call, which then has tried again.
  const absl::Status status = f.log->WaitWritten();
  EXPECT_EQ(f.log->PendingChunks().size(), status.ok() ? 0u : 1u);
  HOTROW_EXPECT_OK(f.log->WaitWritten());
  EXPECT_EQ(f.log->bytes_written(), 4 * kChunkBytes);
  EXPECT_EQ(f.log->ios(), 4);
}

TEST(SsdLogTest, ASegmentThatGotNoRecordsBecauseAWriteFailedIsNotNamed) {
  WriteGate gate;
  // As many buffers as a segment has chunks, and the cleaner's.
  LogFixture f(gate.hook(), /*background=*/true, /*num_buffers=*/5);
  ASSERT_NO_FATAL_FAILURE(f.Write(/*close=*/true));
  gate.AwaitArrivals(1);  // alone in its batch
  for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(f.Write(/*close=*/true));
  absl::Status status;
  std::thread appender([&] {
    std::lock_guard lock(f.log->stream_mutex(SsdStream::kFresh));
    status = f.log->MakeRoom(SsdStream::kFresh, f.kBytes, f.sequence).status();
  });
  while (f.log->files() < 2) std::this_thread::yield();  // then it waits for a buffer
  gate.Answer(absl::UnavailableError("once"));
  appender.join();
  EXPECT_THAT(status, StatusIs(kUnavailable, HasSubstr("once")));
  const std::vector<internal::SsdSegmentRef> refs = f.log->LiveSegments();
  for (int i = 0; i < 4; ++i) gate.Answer(absl::OkStatus());
  HOTROW_EXPECT_OK(f.log->WaitWritten());
  ASSERT_EQ(refs.size(), 1u);
  EXPECT_EQ(refs[0].slot, 0u);
}

// The cleaner could not move a row where fresh ones had taken its segments.
TEST(SsdLogTest, FreshRowsLeaveTheReserveAloneWhetherItsFilesExistOrNot) {
  for (const int64_t reserve_files : {0, 1, 2}) {
    LogFixture f([](const std::string&, int64_t) { return absl::OkStatus(); });
    HOTROW_ASSERT_OK(f.log->EnsureFree(reserve_files));
    // Segments that the stream can open, one after the other.
    const auto open_all = [&](SsdStream stream) {
      std::lock_guard stream_lock(f.log->stream_mutex(stream));
      int64_t opened = 0;
      for (;;) {
        const auto room = f.log->MakeRoom(stream, f.kBytes, f.sequence);
        HOTROW_EXPECT_OK(room);
        if (!room.ok() || !*room) return opened;
        f.log->Seal(stream);
        ++opened;
      }
    };
    EXPECT_EQ(open_all(SsdStream::kFresh), f.kSegments - SsdLog::kReservedSegments);
    EXPECT_EQ(open_all(SsdStream::kSurvivors), SsdLog::kReservedSegments);
  }
}

// A flag that threads wait for.
class Flag {
 public:
  void Set() {
    {
      std::lock_guard lock(mutex_);
      set_ = true;
    }
    changed_.notify_all();
  }
  void Await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

TEST(SsdIoTest, CommittingAndDroppingASnapshotSyncTheManifestAlone) {
  MemEnv mem;
  std::atomic<int64_t> writes{0};
  HookedEnv env(&mem, [&](const std::string&, int64_t) {
    ++writes;
    return absl::OkStatus();
  });
  const SsdStoreOptions options = test::SmallSsd(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  const auto put = [&](uint64_t key) {
    test::Batch batch;
    batch.Add({key, 4}, test::MakeRow({key, 4}, 0, 1500));
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
  };
  // The manifest is a file that is renamed: a sync of that and one of the directory.
  constexpr int64_t kManifestSyncs = 2;
  for (SnapshotId id = 1; id < 4; ++id) {
    put(10 * id);
    int64_t before = env.syncs();
    HOTROW_ASSERT_OK(store->PrepareSnapshot(id, [] {}));
    EXPECT_LE(env.syncs() - before, kManifestSyncs + 2);  // the segments of both streams
    put(10 * id + 1);
    before = env.syncs();
    const int64_t writes_before = writes;
    HOTROW_ASSERT_OK(store->CommitSnapshot(id));
    EXPECT_EQ(env.syncs() - before, kManifestSyncs);
    if (id > 1) {
      HOTROW_ASSERT_OK(store->DropSnapshot(id - 1));
    }
    EXPECT_EQ(env.syncs() - before, id > 1 ? 2 * kManifestSyncs : kManifestSyncs);
    EXPECT_EQ(writes, writes_before);
  }
  // What the snapshots hold survives, what came after the last of them does not.
  store.reset();
  mem.DropUnsyncedData();
  SsdStoreOptions again = test::SmallSsd(&mem);
  HOTROW_ASSERT_OK_AND_ASSIGN(store, SsdStore::Open(again));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto ids, store->ListSnapshots());
  EXPECT_EQ(ids, std::vector<SnapshotId>{3});
  EXPECT_EQ(store->Stats().rows, 5);
  HOTROW_ASSERT_OK(Dump(*store));
}

// Some rows of the widest table, in more segments than one.
absl::Status PutSome(SsdStore& store, uint64_t first, uint64_t count) {
  test::Batch batch;
  for (uint64_t i = first; i < first + count; ++i) {
    batch.Add({i, 4}, test::MakeRow({i, 4}, 0, 1500));
  }
  return batch.InsertInto(store);
}

TEST(SsdIoTest, WhereOneDirectoryIsFullSegmentsGoToTheOther) {
  MemEnv mem;
  HookedEnv env(&mem, [](const std::string&, int64_t) { return absl::OkStatus(); });
  const SsdStoreOptions options = test::Striped(test::SmallSsd(&env, 24));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  HOTROW_ASSERT_OK(PutSome(*store, 0, 40));
  const auto segments_in = [&](const std::string& dir) {
    const std::vector<std::string> names = *mem.ListDir(dir);
    return std::count_if(names.begin(), names.end(), [](const std::string& name) {
      return absl::StartsWith(name, "segment-");
    });
  };
  const int64_t before = segments_in("/store-2");
  EXPECT_GE(before, 2);
  EXPECT_LE(std::abs(segments_in("/store") - before), 2);
  env.Fill("/store-2");
  HOTROW_ASSERT_OK(PutSome(*store, 40, 60));
  EXPECT_EQ(segments_in("/store-2"), before);
  HOTROW_ASSERT_OK(store->Flush());
  // Where both are, the error names a file, and what is stored stays.
  env.Fill("");
  absl::Status full;
  for (uint64_t first = 100; full.ok() && first < 1000; first += 20) {
    full = PutSome(*store, first, 20);
  }
  EXPECT_THAT(full, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("/store")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const test::RowMap rows, Dump(*store));
  EXPECT_GE(rows.size(), 100u);
}

TEST(SsdIoTest, WritesThatFailInOneDirectoryNameItAndLoseNothing) {
  MemEnv mem;
  std::atomic<bool> failing{false};
  HookedEnv env(&mem, [&](const std::string& path, int64_t) -> absl::Status {
    if (!failing || !absl::StartsWith(path, "/store-2/")) return absl::OkStatus();
    return absl::UnavailableError(path + ": the cable is loose");
  });
  const SsdStoreOptions options = test::Striped(test::SmallSsd(&env, 24));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  HOTROW_ASSERT_OK(PutSome(*store, 0, 30));
  HOTROW_ASSERT_OK(store->Flush());
  HOTROW_ASSERT_OK_AND_ASSIGN(const test::RowMap before, Dump(*store));
  failing = true;
  absl::Status failed;
  for (uint64_t first = 30; failed.ok() && first < 60; ++first) {
    failed = PutSome(*store, first, 1);
  }
  if (failed.ok()) failed = store->Flush();
  EXPECT_THAT(failed, StatusIs(kUnavailable, HasSubstr("/store-2/segment-")));
  // Everything can be read meanwhile, and is written when the drive is back.
  std::vector<RowKey> keys;
  for (uint64_t i = 0; i < 30; ++i) keys.push_back({i, 4});
  HOTROW_ASSERT_OK_AND_ASSIGN(const test::Found found, test::FindAll(*store, keys));
  EXPECT_EQ(found.found, std::vector<uint8_t>(30, 1));
  failing = false;
  HOTROW_ASSERT_OK(PutSome(*store, 30, 30));
  HOTROW_ASSERT_OK(store->Flush());
  store.reset();
  mem.DropUnsyncedData();
  HOTROW_ASSERT_OK_AND_ASSIGN(store, SsdStore::Open(test::Striped(test::SmallSsd(&mem, 24))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const test::RowMap after, Dump(*store));
  EXPECT_EQ(after.size(), 60u);
  for (const auto& [key, row] : before) EXPECT_EQ(after.count(key), 1u);
}

TEST(SsdIoTest, ErasingWaitsForTheCleanerAsWritingDoes) {
  MemEnv mem;
  Flag reading;
  Flag go_on;
  HookedEnv env(
      &mem, [](const std::string&, int64_t) { return absl::OkStatus(); },
      [&] {  // the cleaner, with little room left
        reading.Set();
        go_on.Await();
      });
  const SsdStoreOptions options = test::SmallSsd(&env, 24, 16 * kKiB, /*background=*/true);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t i = 0; !stop; ++i) {
      test::Batch batch;
      batch.Add({i % 20, 4}, test::MakeRow({i % 20, 4}, i, 1500));
      HOTROW_EXPECT_OK(batch.InsertInto(*store));
    }
  });
  reading.Await();
  while (store->SsdStats().write_stalls < 1) std::this_thread::yield();
  std::atomic<bool> erased{false};
  std::thread eraser([&] {
    const std::vector<RowKey> keys = {{1, 4}};
    HOTROW_EXPECT_OK(store->Erase(keys));
    erased = true;
  });
  while (!erased && store->SsdStats().write_stalls < 2) std::this_thread::yield();
  EXPECT_EQ(store->SsdStats().write_stalls, 2);
  EXPECT_FALSE(erased);
  stop = true;
  go_on.Set();
  writer.join();
  eraser.join();
}

// Several threads write while `percent` of the writes fail; the power fails as soon as a snapshot
// says that it is durable. Then it must be whole.
void LoseNoSnapshot(uint64_t seed, int percent) {
  constexpr int kThreads = 3;
  constexpr int64_t kRowBytes = 400;
  MemEnv mem;
  std::atomic<uint64_t> writes{0};
  std::atomic<bool> failing{false};
  HookedEnv env(&mem, [&](const std::string&, int64_t) -> absl::Status {
    const uint64_t draw = Mix64(seed << 32 ^ writes.fetch_add(1));
    if (failing && draw % 100 < static_cast<uint64_t>(percent)) {
      return absl::UnavailableError("injected");
    }
    return absl::OkStatus();
  });
  SsdStoreOptions options;
  options.path = "/store";
  if (seed % 2 == 1) options = test::Striped(options);
  options.tables = {{0, kRowBytes}};
  options.memory_budget_bytes = 8 << 20;
  options.disk_budget_bytes = 24 << 20;
  options.env = &env;
  SnapshotId good = 0;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    failing = true;
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::vector<std::byte> row(kRowBytes);
        const std::vector<const std::byte*> rows(64, row.data());
        std::vector<RowKey> keys(64);
        for (uint64_t i = 0; !stop; ++i) {
          for (size_t k = 0; k < keys.size(); ++k) {
            keys[k] = {Mix64(seed * 31 + i * 64 + k) % 3000 + t * 3000, 0};
          }
          std::memcpy(row.data(), &i, sizeof(i));
          store->InsertOrAssign(keys, rows).IgnoreError();
        }
      });
    }
    for (SnapshotId id = 1; id < 40 && good == 0; ++id) {
      if (store->PrepareSnapshot(id, [] {}).ok()) {
        env.SwitchOff();
        good = id;
      }
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
  }
  if (good == 0) return;  // every one was refused
  mem.DropUnsyncedData();
  options.env = &mem;
  options.open_at = good;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  HOTROW_ASSERT_OK(Dump(*store));
}

TEST(SsdFailingWritesTest, ASnapshotThatSaidOkSurvivesThePowerFailure) {
  for (const int percent : {10, 40}) {
    const int trials = test::SlowRuns(3000, test::ForSanitizer(60, 10));
    for (const uint64_t seed : test::Seeds(trials)) {
      SCOPED_TRACE(testing::Message() << percent << " %, HOTROW_TEST_SEED=" << seed);
      ASSERT_NO_FATAL_FAILURE(LoseNoSnapshot(seed, percent));
    }
  }
}

}  // namespace
}  // namespace hotrow
