// What only RocksStore does; what it shares with other kinds is in row_store_contract.h.

#include "store/rocks_store.h"

#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/snapshot_reader.h"
#include "tests/store/store_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kRowBytes = 512;

RocksStoreOptions Options(const std::string& path) {
  return {.path = path,
          .tables = {{7, kRowBytes}},
          .memory_budget_bytes = int64_t{16} << 20,
          .read_threads = 4};
}

Batch MakeBatch(uint64_t begin, uint64_t end, uint64_t version) {
  Batch batch;
  for (uint64_t key = begin; key < end; ++key) {
    batch.Add({key, 7}, MakeRow({key, 7}, version, kRowBytes));
  }
  return batch;
}

// Each key of the batch is there with its row.
void ExpectHolds(RowStore& store, const Batch& batch) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(store, batch.keys));
  EXPECT_THAT(found.found, testing::Each(1));
  EXPECT_EQ(found.rows, batch.rows);
}

std::vector<std::string> TableFiles(const std::string& path) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.path().extension() == ".sst") files.push_back(entry.path().string());
  }
  return files;
}

// Runs body in a child process that is then killed, so that nothing is closed. The child is this
// program anew (gtest's "threadsafe" style), since RocksDB's threads do not outlive a fork; it
// learns the directory from the environment.
constexpr char kDirVariable[] = "HOTROW_ROCKS_STORE_TEST_DIR";
class KilledRocksStoreTest : public testing::Test {
 protected:
  KilledRocksStoreTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (const char* dir = std::getenv(kDirVariable); dir != nullptr) {
      path_ = dir;
    } else {
      path_ = TempDir() + "/store";
      ::setenv(kDirVariable, path_.c_str(), 1);
    }
  }
  ~KilledRocksStoreTest() override { ::unsetenv(kDirVariable); }

  template <typename Body>
  static void RunAndKill(const Body& body) {
    const auto run = [&] {
      if (body()) ::kill(::getpid(), SIGKILL);
      ::_exit(1);
    };
    ASSERT_EXIT(run(), testing::KilledBySignal(SIGKILL), "");
  }

  std::string path_;
};

TEST_F(KilledRocksStoreTest, WhatWasFlushedIsThere) {
  const std::string& path = path_;
  const Batch flushed = MakeBatch(0, 3000, 1);
  RunAndKill([&] {
    auto store = OpenRocksStore(Options(path));
    if (!store.ok() || !flushed.InsertInto(**store).ok() || !(*store)->Flush().ok()) return false;
    return MakeBatch(3000, 3100, 1).InsertInto(**store).ok();  // promised nothing
  });
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
  ExpectHolds(*store, flushed);
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*store));
  EXPECT_EQ(store->Stats().rows, static_cast<int64_t>(rows.size()));
}

TEST_F(KilledRocksStoreTest, ACommittedSnapshotIsThereAndLaterRowsAreNot) {
  const std::string& path = path_;
  const Batch then = MakeBatch(0, 2000, 1);
  RunAndKill([&] {
    auto store = OpenRocksStore(Options(path));
    if (!store.ok() || !then.InsertInto(**store).ok()) return false;
    if (!(*store)->PrepareSnapshot(12).ok() || !(*store)->CommitSnapshot(12).ok()) return false;
    return MakeBatch(1000, 4000, 2).InsertInto(**store).ok() && (*store)->Flush().ok();
  });
  RocksStoreOptions options = Options(path);
  options.open_at = 12;
  for (int round = 0; round < 2; ++round) {  // a second time from the same snapshot
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(options));
    ExpectHolds(*store, then);
    EXPECT_EQ(store->Stats().rows, 2000);
    HOTROW_ASSERT_OK(MakeBatch(0, 500, 3).InsertInto(*store));
    HOTROW_ASSERT_OK(store->Flush());
  }
}

TEST(RocksStoreTest, TheLatestStateOpensAfterACleanCloseWithTheSameTablesOnly) {
  const std::string path = TempDir() + "/store";
  const Batch batch = MakeBatch(0, 100, 1);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
    HOTROW_ASSERT_OK(store->Flush());
  }
  RocksStoreOptions other = Options(path);
  other.tables[0].row_bytes = 500;
  EXPECT_THAT(OpenRocksStore(other), StatusIs(absl::StatusCode::kInvalidArgument,
                                              AllOf(HasSubstr("table 7"), HasSubstr("512"))));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
  ExpectHolds(*store, batch);
  EXPECT_EQ(store->Stats().rows, 100);
}

TEST(RocksStoreTest, ADamagedTableListIsNamed) {
  const std::string path = TempDir() + "/store";
  HOTROW_ASSERT_OK(OpenRocksStore(Options(path)).status());
  HOTROW_ASSERT_OK_AND_ASSIGN(std::string text, ReadFileToString(PosixEnv(), path + "/TABLES"));
  for (size_t i = 0; i < text.size() - 1; ++i) {  // the last line break says nothing
    std::string damaged = text;
    damaged[i] ^= 1;
    HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), path + "/TABLES", damaged));
    EXPECT_THAT(OpenRocksStore(Options(path)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path + "/TABLES")))
        << "byte " << i;
  }
}

TEST(RocksStoreTest, ASecondStoreInOneDirectoryIsRefused) {
  const std::string path = TempDir() + "/store";
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
  EXPECT_THAT(OpenRocksStore(Options(path)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(path)));
}

TEST(RocksStoreTest, ASnapshotIsNotReadWhileTheStoreIsOpen) {
  const std::string path = TempDir() + "/store";
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
    EXPECT_THAT(OpenRocksSnapshot({.path = path, .snapshot = 1}),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(path), HasSubstr("is open"))));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, OpenRocksSnapshot({.path = path, .snapshot = 1}));
  EXPECT_THAT(OpenRocksStore(Options(path)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is open")));
}

// A file system of its own, filled by another file.
TEST(RocksStoreTest, AFullFileSystemIsRefusedIntactAndGoesOnAfterRoomIsMade) {
  const std::string dir = TempDir();
  if (::mount("tmpfs", dir.c_str(), "tmpfs", 0, "size=64m") != 0) {
    GTEST_SKIP() << "mounting a small tmpfs is not permitted: " << std::strerror(errno);
  }
  struct Unmount {
    std::string dir;
    ~Unmount() { ::umount2(dir.c_str(), MNT_DETACH); }
  } unmount{dir};
  constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
  const std::string path = dir + "/store";
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
  constexpr uint64_t kKept = 4000;
  HOTROW_ASSERT_OK(MakeBatch(0, kKept, 1).InsertInto(*store));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  const std::string other = dir + "/other";
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto file, PosixEnv().Open(other, OpenMode::kCreate));
    const std::vector<std::byte> page(4096);
    absl::Status full;
    for (int64_t at = 0; full.ok(); at += 4096) full = WriteFull(*file, at, page);
    ASSERT_THAT(full, StatusIs(kExhausted, HasSubstr("other")));
  }
  absl::Status status;
  uint64_t end = kKept;
  for (; status.ok() && end < 200'000; end += 100) {
    status = MakeBatch(end, end + 100, 2).InsertInto(*store);
  }
  EXPECT_THAT(status, StatusIs(kExhausted, HasSubstr(path)));
  EXPECT_THAT(store->Flush(), StatusIs(kExhausted, HasSubstr(path)));
  EXPECT_THAT(store->PrepareSnapshot(2), StatusIs(kExhausted, HasSubstr(path)));
  ExpectHolds(*store, MakeBatch(0, kKept, 1));
  HOTROW_ASSERT_OK(PosixEnv().Remove(other));
  // RocksDB looks for room by itself, every few seconds.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  do {
    status = MakeBatch(0, 100, 3).InsertInto(*store);
    if (!status.ok()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (!status.ok() && std::chrono::steady_clock::now() < until);
  HOTROW_ASSERT_OK(status);
  HOTROW_ASSERT_OK(store->PrepareSnapshot(2));
  store.reset();
  HOTROW_ASSERT_OK_AND_ASSIGN(store, OpenRocksStore(Options(path)));
  ExpectHolds(*store, MakeBatch(0, 100, 3));
  ExpectHolds(*store, MakeBatch(100, kKept, 1));
  store.reset();
  RocksStoreOptions options = Options(path);
  options.open_at = 1;
  HOTROW_ASSERT_OK_AND_ASSIGN(store, OpenRocksStore(options));
  ExpectHolds(*store, MakeBatch(0, kKept, 1));
}

TEST(RocksStoreTest, ADatabaseThatHasGoneIsNoEmptyOne) {
  const std::string path = TempDir() + "/store";
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    HOTROW_ASSERT_OK(MakeBatch(0, 100, 1).InsertInto(*store));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  }
  std::filesystem::remove(path + "/live-0000000000000001/CURRENT");
  EXPECT_THAT(OpenRocksStore(Options(path)), testing::Not(IsOk()));
  RocksStoreOptions options = Options(path);
  options.open_at = 1;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(options));
  ExpectHolds(*store, MakeBatch(0, 100, 1));
}

TEST(RocksStoreTest, ASnapshotThatDoesNotOpenLeavesTheStoreAsItWas) {
  const std::string path = TempDir() + "/store";
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    HOTROW_ASSERT_OK(MakeBatch(0, 100, 1).InsertInto(*store));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
    HOTROW_ASSERT_OK(MakeBatch(0, 100, 2).InsertInto(*store));
    HOTROW_ASSERT_OK(store->Flush());
  }
  std::filesystem::remove(path + "/snapshots/0000000000000001/CURRENT");
  RocksStoreOptions options = Options(path);
  options.open_at = 1;
  EXPECT_THAT(OpenRocksStore(options), testing::Not(IsOk()));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
  ExpectHolds(*store, MakeBatch(0, 100, 2));
}

// Blind writes, then exact counting again: rows are counted anew.
TEST(RocksStoreTest, ExactCountsComeBackAfterBlindWrites) {
  const std::string path = TempDir() + "/store";
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    HOTROW_ASSERT_OK(MakeBatch(0, 1000, 1).InsertInto(*store));
  }
  {
    RocksStoreOptions options = Options(path);
    options.exact_counts = false;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(options));
    HOTROW_ASSERT_OK(MakeBatch(500, 1500, 2).InsertInto(*store));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
  EXPECT_EQ(store->Stats().rows, 1500);
  ExpectHolds(*store, MakeBatch(0, 500, 1));
  ExpectHolds(*store, MakeBatch(500, 1500, 2));
}

TEST(RocksStoreTest, AFlippedBitInATableFileIsNamed) {
  const std::string path = TempDir() + "/store";
  const Batch batch = MakeBatch(0, 2000, 1);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
    HOTROW_ASSERT_OK(store->Flush());
  }
  const std::vector<std::string> files = TableFiles(path);
  ASSERT_EQ(files.size(), 1u);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto file, PosixEnv().Open(files[0], OpenMode::kReadWrite));
    std::byte byte;
    constexpr int64_t kOffset = 200'000;  // among the rows
    HOTROW_ASSERT_OK(ReadFull(*file, kOffset, {&byte, 1}));
    byte ^= std::byte{4};
    HOTROW_ASSERT_OK(WriteFull(*file, kOffset, {&byte, 1}));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
  int64_t lost = 0;
  for (size_t i = 0; i < batch.keys.size(); ++i) {
    const auto found = FindAll(*store, std::span(batch.keys).subspan(i, 1));
    if (found.ok()) {
      ASSERT_EQ(found->found[0], 1);
      ASSERT_EQ(found->rows[0], batch.rows[i]);
      continue;
    }
    ++lost;
    EXPECT_THAT(found, StatusIs(absl::StatusCode::kDataLoss,
                                AllOf(HasSubstr(files[0]), HasSubstr("offset"))));
  }
  EXPECT_GE(lost, 1);
  EXPECT_LE(lost, 8);  // the rows of one block
  EXPECT_THAT(Dump(*store), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(files[0])));
}

TEST(RocksStoreTest, AFullDiskBudgetRefusesKeepsAllAndGoesOnOnceThereIsRoom) {
  const std::string path = TempDir() + "/store";
  RocksStoreOptions options = Options(path);
  options.disk_budget_bytes = int64_t{32} << 20;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(options));
  absl::Status status;
  uint64_t accepted = 0;  // keys of whole batches
  constexpr uint64_t kBatch = 1000;
  while (true) {
    ASSERT_LT(accepted, 200'000u) << "the budget is no limit";
    status = MakeBatch(accepted, accepted + kBatch, 1).InsertInto(*store);
    if (!status.ok()) break;
    accepted += kBatch;
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               AllOf(HasSubstr("RocksDB store"), HasSubstr("33554432"),
                                     HasSubstr("needed"))));
  EXPECT_GT(accepted * kRowBytes, static_cast<uint64_t>(options.disk_budget_bytes) / 2);
  for (uint64_t begin = 0; begin < accepted; begin += kBatch) {
    ExpectHolds(*store, MakeBatch(begin, begin + kBatch, 1));
  }
  // Compactions have an end.
  for (int poll = 0; poll < 100 && store->Stats().disk_used_bytes > options.disk_budget_bytes;
       ++poll) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_LE(store->Stats().disk_used_bytes, options.disk_budget_bytes);

  const Batch erased = MakeBatch(0, accepted / 2 / kBatch * kBatch, 1);
  HOTROW_ASSERT_OK(store->Erase(erased.keys));
  HOTROW_ASSERT_OK(MakeBatch(accepted, accepted + 5 * kBatch, 1).InsertInto(*store));
  ExpectHolds(*store, MakeBatch(accepted, accepted + 5 * kBatch, 1));
  ExpectHolds(*store, MakeBatch(accepted - kBatch, accepted, 1));
}

TEST(RocksStoreTest, SnapshotsCountInTheDiskBudgetUntilTheyAreDropped) {
  const std::string path = TempDir() + "/store";
  RocksStoreOptions options = Options(path);
  options.disk_budget_bytes = int64_t{64} << 20;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(options));
  constexpr uint64_t kKeys = 40'000;  // 20 MB
  HOTROW_ASSERT_OK(MakeBatch(0, kKeys, 1).InsertInto(*store));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  // The same rows again and again: what the snapshot holds cannot be reclaimed.
  absl::Status status;
  for (uint64_t version = 2; version < 12 && status.ok(); ++version) {
    status = MakeBatch(0, kKeys, version).InsertInto(*store);
    if (status.ok()) status = store->PrepareSnapshot(version);
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("67108864")));
  EXPECT_GT(store->Stats().snapshot_bytes, int64_t{10} << 20);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto ids, store->ListSnapshots());
  for (const SnapshotId id : ids) HOTROW_ASSERT_OK(store->DropSnapshot(id));
  EXPECT_EQ(store->Stats().snapshot_bytes, 0);
  const Batch last = MakeBatch(0, 1000, 99);
  HOTROW_ASSERT_OK(last.InsertInto(*store));
  ExpectHolds(*store, last);
}

TEST(RocksStoreTest, BadOptionsAreNamed) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  RocksStoreOptions options = Options("");
  EXPECT_THAT(OpenRocksStore(options), StatusIs(kInvalid, HasSubstr("path")));
  options = Options(TempDir());
  options.tables.push_back({7, 8});
  EXPECT_THAT(OpenRocksStore(options), StatusIs(kInvalid, HasSubstr("table 7")));
  options = Options(TempDir());
  options.memory_budget_bytes = 1000;
  EXPECT_THAT(OpenRocksStore(options),
              StatusIs(kInvalid, AllOf(HasSubstr("memory_budget_bytes"), HasSubstr("1000"))));
  options = Options(TempDir());
  options.read_threads = 0;
  EXPECT_THAT(OpenRocksStore(options), StatusIs(kInvalid, HasSubstr("read_threads")));
}

}  // namespace
}  // namespace hotrow::test
