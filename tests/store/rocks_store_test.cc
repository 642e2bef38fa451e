// What only RocksStore does; what it shares with other kinds is in row_store_contract.h.

#include "store/rocks/rocks_store.h"

#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/disk_room.h"
#include "store/rocks/rocks_dir_impl.h"
#include "store/rocks/rocks_options_impl.h"
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
// program again (gtest's "threadsafe" style), since RocksDB's threads do not outlive a fork; it
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

TEST(RocksStoreTest, TheLatestStateIsNotReadWhileTheStoreIsOpen) {
  const std::string path = TempDir() + "/store";
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
    EXPECT_THAT(OpenRocksSnapshot({.path = path}),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(path), HasSubstr("is open"))));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, OpenRocksSnapshot({.path = path}));
  EXPECT_THAT(OpenRocksStore(Options(path)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is open")));
}

TEST(RocksStoreTest, AForkedChildThatExitsDoesNotHang) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(TempDir() + "/store")));
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    std::exit(7);
  }
  int how = 0;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 7) << how;
  HOTROW_ASSERT_OK(MakeBatch(0, 100, 1).InsertInto(*store));
}

// A separate file system, filled by another file.
TEST(RocksStoreTest, AFullFileSystemIsRefusedIntactAndGoesOnAfterRoomIsMade) {
  const std::string dir = TempDir();
  if (::mount("tmpfs", dir.c_str(), "tmpfs", 0, "size=64m") != 0) {
    GTEST_SKIP() << "mounting a small tmpfs is not permitted: " << std::strerror(errno);
  }
  struct Unmount {
    std::string dir;
    ~Unmount() { ::umount2(dir.c_str(), MNT_DETACH); }
  } unmount{dir};
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
    ASSERT_THAT(full, IsOutOfRoomThat(HasSubstr("other")));
  }
  absl::Status status;
  uint64_t end = kKept;
  for (; status.ok() && end < 200'000; end += 100) {
    status = MakeBatch(end, end + 100, 2).InsertInto(*store);
  }
  EXPECT_THAT(status, IsOutOfRoomThat(HasSubstr(path)));
  EXPECT_THAT(store->Flush(), IsOutOfRoomThat(HasSubstr(path)));
  EXPECT_THAT(store->PrepareSnapshot(2), IsOutOfRoomThat(HasSubstr(path)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto ids, store->ListSnapshots());
  EXPECT_THAT(ids, testing::ElementsAre(1));
  EXPECT_FALSE(std::filesystem::exists(path + "/snapshots/0000000000000002.tmp"));
  ExpectHolds(*store, MakeBatch(0, kKept, 1));
  HOTROW_ASSERT_OK(PosixEnv().Remove(other));
  // RocksDB looks for room by itself, every few seconds. Tries are counted, not seconds: a machine
  // may stand still for longer than any patience.
  for (int i = 0; i < 1'000; ++i) {
    status = MakeBatch(0, 100, 3).InsertInto(*store);
    if (status.ok()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
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

// Blind writes, then exact counting again: rows are counted again.
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
  // Also in a snapshot that is taken before the count is written.
  HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SnapshotInfo info, store->DescribeSnapshot(1));
  EXPECT_THAT(info.table_rows, testing::ElementsAre(1500));
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
  EXPECT_THAT(status, IsOutOfRoomThat(AllOf(HasSubstr("RocksDB store"), HasSubstr("33554432"),
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

TEST(RocksStoreTest, AFullStoreTakesTheRowsItHasAndThoseItHasPromisedRoomFor) {
  RocksStoreOptions options = Options(TempDir() + "/store");
  options.disk_budget_bytes = int64_t{16} << 20;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(options));
  auto& room = dynamic_cast<DiskRoom&>(*store);
  constexpr uint64_t kBatch = 1000;
  uint64_t there = 0;
  absl::Status promised = room.CheckRoom({{{kRowBytes, kBatch}}});
  for (; promised.ok(); promised = room.CheckRoom({{{kRowBytes, 2 * kBatch}}})) {
    ASSERT_LT(there, 100'000u);
    HOTROW_ASSERT_OK(MakeBatch(there, there + kBatch, 1).InsertInto(*store));
    there += kBatch;
  }
  EXPECT_THAT(promised, IsOutOfRoomThat(HasSubstr("16777216 bytes is full")));
  EXPECT_GT(there * kRowBytes, static_cast<uint64_t>(options.disk_budget_bytes) / 2);
  HOTROW_ASSERT_OK(room.CheckRoom({{{kRowBytes, 100}}}));
  for (uint64_t version = 2; version < 4; ++version) {
    for (uint64_t begin = 0; begin < there; begin += kBatch) {
      HOTROW_ASSERT_OK(MakeBatch(begin, begin + kBatch, version).InsertInto(*store));
    }
  }
  HOTROW_ASSERT_OK(MakeBatch(there, there + 100, 9).InsertInto(*store));
  EXPECT_THAT(room.CheckRoom({{{kRowBytes, 4 * kBatch}}}), IsOutOfRoomThat(HasSubstr("erase")));
  ExpectHolds(*store, MakeBatch(there - kBatch, there, 3));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  HOTROW_ASSERT_OK(store->Erase(MakeBatch(0, there / 2, 1).keys));
  HOTROW_ASSERT_OK(store->DropSnapshot(1));
  HOTROW_ASSERT_OK(room.CheckRoom({{{kRowBytes, 4 * kBatch}}}));
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
  EXPECT_THAT(status, IsOutOfRoomThat(HasSubstr("67108864")));
  EXPECT_GT(store->Stats().snapshot_bytes, int64_t{10} << 20);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto ids, store->ListSnapshots());
  for (const SnapshotId id : ids) HOTROW_ASSERT_OK(store->DropSnapshot(id));
  EXPECT_EQ(store->Stats().snapshot_bytes, 0);
  const Batch last = MakeBatch(0, 1000, 99);
  HOTROW_ASSERT_OK(last.InsertInto(*store));
  ExpectHolds(*store, last);
}

// --- What damage is found, and where -------------------------------------------------------------

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

std::string SnapshotDir(const std::string& path) { return path + "/snapshots/0000000000000001"; }

// The one file of a directory whose name begins so.
std::string FileLike(const std::string& dir, std::string_view prefix) {
  std::string found;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    EXPECT_EQ(found, "") << "two files " << prefix;
    found = entry.path().string();
  }
  EXPECT_NE(found, "") << "no file " << prefix << " in " << dir;
  return found;
}

std::string TableFileOf(const std::string& dir) {
  const std::vector<std::string> files = TableFiles(dir);
  EXPECT_EQ(files.size(), 1u);
  return files.empty() ? "" : files[0];
}

std::string TextOf(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), path);
  HOTROW_EXPECT_OK(text);
  return text.ok() ? *text : "";
}

// In place, so that hard links stay.
void Overwrite(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// A store with rows 0 to 299 of version 1 in snapshot 1, and version 2 behind it, flushed.
void MakeStoreWithSnapshot(const std::string& path) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
  HOTROW_ASSERT_OK(MakeBatch(0, 300, 1).InsertInto(*store));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  HOTROW_ASSERT_OK(MakeBatch(0, 300, 2).InsertInto(*store));
  HOTROW_ASSERT_OK(store->Flush());
}

absl::Status OpenAtOne(const std::string& path) {
  RocksStoreOptions options = Options(path);
  options.open_at = 1;
  return OpenRocksStore(options).status();
}

// Neither way to open snapshot 1 takes it, and `hotrow verify` would say so; what was written last
// is as it was.
void ExpectSnapshotIsRefused(const std::string& path, const std::string& file) {
  SCOPED_TRACE(file);
  EXPECT_THAT(OpenAtOne(path), StatusIs(kDataLoss, HasSubstr(file)));
  EXPECT_THAT(OpenRocksSnapshot({.path = path, .snapshot = 1}),
              StatusIs(kDataLoss, HasSubstr(file)));
  for (const auto look : {InspectRocksStore, VerifyRocksStore}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const RocksStoreReport report, look(path));
    ASSERT_GE(report.damage.size(), 1u);
    EXPECT_THAT(report.damage[0].file, HasSubstr(file));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
  ExpectHolds(*store, MakeBatch(0, 300, 2));
}

TEST(RocksDamageTest, ASnapshotListsItsFilesWithTheirChecksums) {
  const std::string path = TempDir() + "/store";
  MakeStoreWithSnapshot(path);
  const std::string file = SnapshotDir(path) + "/SNAPSHOT";
  HOTROW_ASSERT_OK_AND_ASSIGN(const internal::RocksSnapshotList list,
                              internal::ParseRocksSnapshotList(file, TextOf(file)));
  EXPECT_EQ(list.id, 1u);
  EXPECT_EQ(list.rows, 300);
  EXPECT_EQ(list.sequence, 301u);  // the count of rows is one write
  std::vector<std::string> kinds;
  for (const internal::RocksFile& listed : list.files) {
    kinds.push_back(listed.name.substr(0, listed.name.find('-')));
    const std::string text = TextOf(SnapshotDir(path) + "/" + listed.name);
    EXPECT_EQ(listed.bytes, std::ssize(text)) << listed.name;
    if (listed.name.ends_with(".sst")) continue;  // see the next test
    EXPECT_EQ(listed.crc32c, Crc32c(std::as_bytes(std::span(text)))) << listed.name;
  }
  EXPECT_THAT(kinds,
              testing::ElementsAre(testing::EndsWith(".sst"), "CURRENT", "MANIFEST", "OPTIONS"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RocksStoreReport report, VerifyRocksStore(path));
  EXPECT_THAT(report.damage, testing::IsEmpty());
  EXPECT_EQ(report.rows, 300);
  ASSERT_EQ(report.snapshots.size(), 1u);
  EXPECT_EQ(report.snapshots[0].info.identity, list.identity);
  EXPECT_EQ(report.snapshots[0].rows, 300);
}

// RocksDB computes a checksum of a file whose blocks are not aligned: any byte counts.
TEST(RocksDamageTest, TableFilesOfWideRowsHaveChecksumsOfTheirOwn) {
  constexpr int64_t kWide = 1500;
  const std::string path = TempDir() + "/store";
  RocksStoreOptions options = Options(path);
  options.tables = {{7, kWide}};
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(options));
    Batch batch;
    for (uint64_t key = 0; key < 100; ++key) batch.Add({key, 7}, MakeRow({key, 7}, 1, kWide));
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  }
  const std::string file = TableFileOf(SnapshotDir(path));
  const std::string text = TextOf(file);
  EXPECT_THAT(TextOf(SnapshotDir(path) + "/SNAPSHOT"),
              HasSubstr(absl::StrCat(".sst bytes ", text.size(), " crc32c ",
                                     Crc32c(std::as_bytes(std::span(text))), "\n")));
  for (size_t at = 1; at < text.size(); at += text.size() / 23) {
    std::string changed = text;
    changed[at] ^= 4;
    Overwrite(file, changed);
    HOTROW_ASSERT_OK_AND_ASSIGN(const RocksStoreReport report, VerifyRocksSnapshot(path, 1));
    ASSERT_EQ(report.damage.size(), 1u) << "byte " << at;
    EXPECT_EQ(report.damage[0].file, file);
  }
  Overwrite(file, text);
  HOTROW_ASSERT_OK_AND_ASSIGN(const RocksStoreReport report, VerifyRocksStore(path));
  EXPECT_THAT(report.damage, testing::IsEmpty());
}

// Without RocksDB in between, so every byte can be tried.
TEST(RocksDamageTest, EveryChangedByteOfASnapshotsListIsFound) {
  const internal::RocksSnapshotList list = {
      .id = 7,
      .identity = {.high = 1, .low = 2},
      .sequence = 44,
      .rows = 12,
      .tables = {{3, 8}, {70'000, 512}},
      .files = {{"000008.sst", 1000, 77}, {"000009.sst", 2000, {}}, {"CURRENT", 16, 5}}};
  const std::string text = internal::RocksSnapshotListToText(list);
  HOTROW_ASSERT_OK_AND_ASSIGN(const internal::RocksSnapshotList read,
                              internal::ParseRocksSnapshotList("p", text));
  EXPECT_EQ(internal::RocksSnapshotListToText(read), text);
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char flip : {1, 16, 32}) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      EXPECT_THAT(internal::ParseRocksSnapshotList("path/S", damaged),
                  StatusIs(kDataLoss, HasSubstr("path/S")))
          << "byte " << i;
    }
    EXPECT_THAT(internal::ParseRocksSnapshotList("path/S", text.substr(0, i)),
                StatusIs(kDataLoss, HasSubstr("path/S")));
  }
}

// With a checksum that fits: somebody wrote it.
TEST(RocksDamageTest, AListWithLinesThatAreNoneIsRefused) {
  const std::string head =
      "hotrow rocksdb snapshot 1\nsnapshot 1\nidentity 00000000000000010000000000000002\n"
      "sequence 4\n";
  const auto parse = [](std::string text) {
    absl::StrAppend(&text, "crc32c ", Crc32c(std::as_bytes(std::span(text))), "\n");
    return internal::ParseRocksSnapshotList("path/S", text).status();
  };
  HOTROW_EXPECT_OK(parse(head + "rows 3\ntable 1 row_bytes 8\nfile CURRENT bytes 1 crc32c 2\n"));
  for (const char* const lines : {"rows -1\n",
                                  "rows 99999999999999999999\n",
                                  "table 1 row_bytes 0\n",
                                  "table x row_bytes 8\n",
                                  "file ../x bytes 1 crc32c 2\n",
                                  "file a/b bytes 1 crc32c 2\n",
                                  "file .. bytes 1 crc32c 2\n",
                                  "file SNAPSHOT bytes 1 crc32c 2\n",
                                  "file CURRENT bytes 1\n",
                                  "file CURRENT bytes -1 crc32c 2\n",
                                  "file CURRENT bytes 1 crc32c 4294967296\n",
                                  "file B bytes 1 crc32c 2\nfile A bytes 1 crc32c 2\n",
                                  "file A bytes 1 crc32c 2\nfile A bytes 1 crc32c 2\n",
                                  "rows 3\nrows 3\n",
                                  "snapshot 1\n",
                                  "\n",
                                  "rows  3\n",
                                  "rows 03\n",
                                  "other 1\n",
                                  "rows 3"}) {
    EXPECT_THAT(parse(head + lines), StatusIs(kDataLoss, HasSubstr("path/S"))) << lines;
  }
  EXPECT_THAT(parse("hotrow rocksdb snapshot 2\n"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("snapshot 2")));
  EXPECT_THAT(parse("hotrow rocksdb snapshot 1\n"), StatusIs(kDataLoss, HasSubstr("path/S")));
}

TEST(RocksDamageTest, ASnapshotWhoseManifestIsCutIsRefused) {
  const std::string path = TempDir() + "/store";
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    for (uint64_t i = 0; i < 3; ++i) {  // three records in the MANIFEST
      HOTROW_ASSERT_OK(MakeBatch(100 * i, 100 * i + 100, 1).InsertInto(*store));
      HOTROW_ASSERT_OK(store->Flush());
    }
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
    HOTROW_ASSERT_OK(MakeBatch(0, 300, 2).InsertInto(*store));
    HOTROW_ASSERT_OK(store->Flush());
  }
  const std::string manifest = FileLike(SnapshotDir(path), "MANIFEST-");
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(manifest));
  for (const int64_t cut : {bytes - 1, bytes - 20, bytes / 2, int64_t{90}, int64_t{0}}) {
    ASSERT_EQ(::truncate(manifest.c_str(), cut), 0);
    EXPECT_THAT(OpenRocksSnapshot({.path = path, .snapshot = 1}),
                StatusIs(kDataLoss, AllOf(HasSubstr(manifest), HasSubstr(std::to_string(cut)))));
    EXPECT_THAT(OpenAtOne(path), StatusIs(kDataLoss, HasSubstr(manifest)));
  }
  ExpectSnapshotIsRefused(path, manifest);
}

TEST(RocksDamageTest, MissingForeignAndChangedFilesOfASnapshotAreNamed) {
  const std::string path = TempDir() + "/store";
  MakeStoreWithSnapshot(path);
  const std::string dir = SnapshotDir(path);
  const std::string aside = TempDir() + "/aside";
  std::filesystem::copy(dir, aside, std::filesystem::copy_options::recursive);
  const auto mend = [&] {
    std::filesystem::remove_all(dir);
    std::filesystem::copy(aside, dir, std::filesystem::copy_options::recursive);
  };
  mend();  // its own table file, so that no change reaches the live database
  HOTROW_ASSERT_OK(OpenRocksSnapshot({.path = path, .snapshot = 1}).status());
  const auto expect_refused = [&](const std::string& file) {
    EXPECT_THAT(OpenRocksSnapshot({.path = path, .snapshot = 1}),
                StatusIs(kDataLoss, HasSubstr(file)));
  };
  for (const std::string kind : {"CURRENT", "MANIFEST-", "OPTIONS-", "0"}) {
    const std::string file = FileLike(dir, kind);
    const std::string text = TextOf(file);
    std::filesystem::remove(file);
    ExpectSnapshotIsRefused(path, file);
    Overwrite(file, text + "x");
    expect_refused(file);
    Overwrite(file, text.substr(0, text.size() - 1));
    expect_refused(file);
    if (kind != "0") {
      std::string changed = text;
      changed[text.size() / 2] ^= 1;
      Overwrite(file, changed);
      expect_refused(file);
    }
    // No device or pipe is read.
    std::filesystem::remove(file);
    std::filesystem::create_symlink("/dev/zero", file);
    expect_refused(file);
    std::filesystem::remove(file);
    ASSERT_EQ(::mkfifo(file.c_str(), 0644), 0);
    expect_refused(file);
    std::filesystem::remove(file);
    std::filesystem::create_directory(file);
    expect_refused(file);
    mend();
  }
  Overwrite(dir + "/000099.sst", "x");
  ExpectSnapshotIsRefused(path, dir + "/000099.sst");
  mend();
  std::string list = TextOf(dir + "/SNAPSHOT");
  list[40] ^= 1;
  Overwrite(dir + "/SNAPSHOT", list);
  ExpectSnapshotIsRefused(path, dir + "/SNAPSHOT");
  mend();
  // The list of another snapshot.
  std::filesystem::rename(dir, path + "/snapshots/0000000000000002");
  EXPECT_THAT(OpenRocksSnapshot({.path = path, .snapshot = 2}),
              StatusIs(kDataLoss, AllOf(HasSubstr("0000000000000002/SNAPSHOT"),
                                        HasSubstr("snapshot 1"), HasSubstr("snapshot 2"))));
  std::filesystem::rename(path + "/snapshots/0000000000000002", dir);
  HOTROW_EXPECT_OK(OpenAtOne(path));
}

TEST(RocksDamageTest, ATableFileOfAnotherRunIsFound) {
  const std::string path = TempDir() + "/store";
  const std::string other = TempDir() + "/store";
  MakeStoreWithSnapshot(path);
  MakeStoreWithSnapshot(other);
  const std::string file = TableFileOf(SnapshotDir(path));
  const std::string foreign = TextOf(TableFileOf(SnapshotDir(other)));
  ASSERT_EQ(static_cast<int64_t>(std::filesystem::file_size(file)), std::ssize(foreign));
  ASSERT_NE(TextOf(file), foreign);  // the same rows, other properties
  std::filesystem::remove(file);
  Overwrite(file, foreign);
  HOTROW_ASSERT_OK_AND_ASSIGN(const RocksStoreReport report, VerifyRocksStore(path));
  ASSERT_EQ(report.damage.size(), 1u);
  EXPECT_EQ(report.damage[0].file, SnapshotDir(path));
  EXPECT_THAT(report.damage[0].what, HasSubstr("unique ID"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RocksStoreReport one, VerifyRocksSnapshot(path, 1));
  EXPECT_EQ(one.damage.size(), 1u);
  // By the id that RocksDB gave the file, although its size is right.
  EXPECT_THAT(OpenAtOne(path), StatusIs(kDataLoss, HasSubstr("RocksDB store")));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
  ExpectHolds(*store, MakeBatch(0, 300, 2));
}

// Narrow rows lie in aligned blocks, whose files have no checksum as a whole.
TEST(RocksDamageTest, VerifySaysGoodOnlyWhenAllRowsCanBeRead) {
  const std::string path = TempDir() + "/store";
  MakeStoreWithSnapshot(path);
  const std::string file = TableFileOf(SnapshotDir(path));
  const std::string text = TextOf(file);
  int good = 0;
  int damaged = 0;
  for (size_t at = 1; at < text.size(); at += text.size() / 41) {
    SCOPED_TRACE(at);
    std::string changed = text;
    changed[at] ^= 4;
    Overwrite(file, changed);
    HOTROW_ASSERT_OK_AND_ASSIGN(const RocksStoreReport report, VerifyRocksSnapshot(path, 1));
    if (!report.damage.empty()) {
      EXPECT_THAT(report.damage[0].file, testing::StartsWith(SnapshotDir(path)));
      ++damaged;
      continue;
    }
    ++good;  // padding
    HOTROW_EXPECT_OK(OpenAtOne(path));
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader,
                                OpenRocksSnapshot({.path = path, .snapshot = 1}));
    std::vector<RowKey> keys;
    HOTROW_ASSERT_OK(reader->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
      EXPECT_TRUE(std::ranges::equal(row, MakeRow(key, 1, kRowBytes)));
      keys.push_back(key);
      return absl::OkStatus();
    }));
    EXPECT_EQ(keys.size(), 300u);
  }
  EXPECT_GT(damaged, 20);
  EXPECT_LT(good, 12);
  Overwrite(file, text);
  HOTROW_ASSERT_OK_AND_ASSIGN(const RocksStoreReport report, VerifyRocksStore(path));
  EXPECT_THAT(report.damage, testing::IsEmpty());
}

// As the version before wrote it: no list of files, one line in LIVE.
TEST(RocksDamageTest, AStoreOfTheVersionBeforeOpens) {
  const std::string path = TempDir() + "/store";
  MakeStoreWithSnapshot(path);
  ASSERT_TRUE(std::filesystem::remove(SnapshotDir(path) + "/SNAPSHOT"));
  Overwrite(path + "/LIVE", TextOf(path + "/LIVE").substr(0, 22));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RocksStoreReport report, VerifyRocksStore(path));
  EXPECT_THAT(report.damage, testing::IsEmpty());
  ASSERT_EQ(report.snapshots.size(), 1u);
  EXPECT_FALSE(report.snapshots[0].info.identity.known());
  EXPECT_EQ(report.snapshots[0].rows, 300);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    ExpectHolds(*store, MakeBatch(0, 300, 2));
    HOTROW_ASSERT_OK_AND_ASSIGN(const SnapshotInfo info, store->DescribeSnapshot(1));
    EXPECT_FALSE(info.identity.known());
  }
  RocksStoreOptions options = Options(path);
  options.open_at = 1;
  options.open_at_identity = {.high = 1, .low = 1};
  EXPECT_THAT(OpenRocksStore(options),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("it has no identity")));
  options.open_at_identity = {};
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(options));
    ExpectHolds(*store, MakeBatch(0, 300, 1));
  }
  // A MANIFEST that is a device is not read even so.
  const std::string manifest = FileLike(SnapshotDir(path), "MANIFEST-");
  std::filesystem::remove(manifest);
  std::filesystem::create_symlink("/dev/zero", manifest);
  EXPECT_THAT(OpenAtOne(path), StatusIs(kDataLoss, HasSubstr(manifest)));
}

// `text` with another number behind `kind` in its first line, and a checksum that fits.
std::string OfVersion(std::string text, std::string_view kind, int version) {
  text.replace(kind.size(), 1, absl::StrCat(version));
  text.resize(text.rfind("crc32c "));
  absl::StrAppend(&text, "crc32c ", Crc32c(std::as_bytes(std::span(text))), "\n");
  return text;
}

TEST(RocksVersionTest, AnotherVersionIsRefusedByItsNumberAndIsNoDamage) {
  const std::string path = TempDir() + "/store";
  MakeStoreWithSnapshot(path);
  const auto refuses = [](int version, std::string_view remedy) {
    return StatusIs(absl::StatusCode::kFailedPrecondition,
                    AllOf(HasSubstr(absl::StrCat(version, "; this build reads version 1")),
                          HasSubstr(std::string(remedy))));
  };
  const std::string list_path = SnapshotDir(path) + "/SNAPSHOT";
  const std::string list = TextOf(list_path);
  Overwrite(list_path, OfVersion(list, "hotrow rocksdb snapshot ", 2));
  EXPECT_THAT(OpenAtOne(path), refuses(2, "open it with a newer hotrow"));
  EXPECT_THAT(OpenRocksSnapshot({.path = path, .snapshot = 1}),
              refuses(2, "open it with a newer hotrow"));
  Overwrite(list_path, list);
  // The store's version covers LIVE, which may be written in another way then.
  const std::string tables = TextOf(path + "/TABLES");
  const std::string live = TextOf(path + "/LIVE");
  Overwrite(path + "/LIVE", "as version 3 writes it\n");
  Overwrite(path + "/TABLES", OfVersion(tables, "hotrow rocksdb store ", 3));
  EXPECT_THAT(OpenRocksStore(Options(path)), refuses(3, "open it with a newer hotrow"));
  EXPECT_THAT(OpenAtOne(path), refuses(3, "open it with a newer hotrow"));
  EXPECT_THAT(OpenRocksSnapshot({.path = path}), refuses(3, "open it with a newer hotrow"));
  EXPECT_THAT(InspectRocksStore(path), refuses(3, "open it with a newer hotrow"));
  Overwrite(path + "/TABLES", OfVersion(tables, "hotrow rocksdb store ", 0));
  EXPECT_THAT(OpenRocksStore(Options(path)), refuses(0, "open it with the hotrow that wrote it"));
  Overwrite(path + "/TABLES", tables);
  Overwrite(path + "/LIVE", live);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
  ExpectHolds(*store, MakeBatch(0, 300, 2));
}

TEST(RocksSizesTest, ThePartsStayWithinTheBudget) {
  for (const int64_t budget : {kRocksMemoryMin, int64_t{64} << 20, int64_t{8} << 30}) {
    for (const int64_t row_bytes : {int64_t{8}, int64_t{512}, int64_t{1} << 20}) {
      const internal::RocksSizes sizes({.path = "x",
                                        .tables = {{1, 8}, {2, row_bytes}},
                                        .memory_budget_bytes = budget,
                                        .read_threads = 8});
      SCOPED_TRACE(absl::StrCat(budget, " bytes, rows of ", row_bytes));
      EXPECT_EQ(sizes.uncounted + sizes.cache, budget);
      EXPECT_LE(sizes.memtables, budget / 4);
      EXPECT_EQ(sizes.row_bytes_max, row_bytes);
      EXPECT_GE(sizes.find_chunk, 1);
      EXPECT_LE(sizes.find_chunk, internal::kRocksFindChunkMax);
    }
  }
}

TEST(RocksDamageTest, ALiveDatabaseThatLacksFlushedRowsIsRefusedAndKept) {
  const std::string path = TempDir() + "/store";
  const std::string live = path + "/live-0000000000000001";
  int64_t bytes = 0;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    HOTROW_ASSERT_OK(MakeBatch(0, 300, 1).InsertInto(*store));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
    bytes = static_cast<int64_t>(std::filesystem::file_size(FileLike(live, "MANIFEST-")));
    HOTROW_ASSERT_OK(MakeBatch(0, 300, 2).InsertInto(*store));
    HOTROW_ASSERT_OK(store->Flush());
  }
  const std::string manifest = FileLike(live, "MANIFEST-");
  const std::string text = TextOf(manifest);
  ASSERT_GT(std::ssize(text), bytes);
  ASSERT_EQ(::truncate(manifest.c_str(), bytes), 0);
  const auto says = StatusIs(
      kDataLoss, AllOf(HasSubstr(live), HasSubstr("MANIFEST"), HasSubstr("its snapshot 1 can be")));
  EXPECT_THAT(OpenRocksStore(Options(path)), says);
  EXPECT_THAT(OpenRocksSnapshot({.path = path}), StatusIs(kDataLoss, HasSubstr(live)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RocksStoreReport report, VerifyRocksStore(path));
  ASSERT_EQ(report.damage.size(), 1u);
  EXPECT_EQ(report.damage[0].file, live);
  // A device is not read.
  std::filesystem::remove(manifest);
  std::filesystem::create_symlink("/dev/zero", manifest);
  EXPECT_THAT(OpenRocksStore(Options(path)), StatusIs(kDataLoss, HasSubstr(manifest)));
  std::filesystem::remove(manifest);
  Overwrite(manifest, text);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    ExpectHolds(*store, MakeBatch(0, 300, 2));
  }
}

TEST(RocksDamageTest, AStoreThatHasLostAPartIsNotTakenForAnEmptyOne) {
  for (const std::string lost : {"LIVE", "live-0000000000000001", "TABLES", "snapshots"}) {
    SCOPED_TRACE(lost);
    const std::string path = TempDir() + "/store";
    MakeStoreWithSnapshot(path);
    std::filesystem::rename(path + "/" + lost, path + "-part");
    const auto names_it = StatusIs(kDataLoss, HasSubstr(path + "/" + lost + " is missing"));
    EXPECT_THAT(OpenRocksStore(Options(path)), names_it);
    EXPECT_THAT(OpenRocksSnapshot({.path = path}), names_it);
    const bool snapshot_opens = lost == "LIVE" || lost == "live-0000000000000001";
    if (snapshot_opens) {
      EXPECT_THAT(OpenRocksStore(Options(path)),
                  StatusIs(kDataLoss, HasSubstr("its snapshot 1 can be opened")));
      HOTROW_ASSERT_OK_AND_ASSIGN(const RocksStoreReport report, VerifyRocksStore(path));
      ASSERT_EQ(report.damage.size(), 1u);
      EXPECT_THAT(report.damage[0].what, HasSubstr(lost));
    } else {
      EXPECT_THAT(OpenAtOne(path), names_it);
      EXPECT_THAT(VerifyRocksStore(path), names_it);
    }
    // Nothing has changed: with the part back it is the store that it was.
    std::filesystem::rename(path + "-part", path + "/" + lost);
    {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
      ExpectHolds(*store, MakeBatch(0, 300, 2));
    }
    if (!snapshot_opens) continue;
    std::filesystem::remove_all(path + "/" + lost);
    HOTROW_ASSERT_OK(OpenAtOne(path));
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    ExpectHolds(*store, MakeBatch(0, 300, 1));
  }
}

TEST(RocksDamageTest, OurFilesAreNotReadWhenTheyAreDevicesOrHuge) {
  for (const std::string name : {"LIVE", "TABLES"}) {
    SCOPED_TRACE(name);
    const std::string path = TempDir() + "/store";
    MakeStoreWithSnapshot(path);
    const std::string file = path + "/" + name;
    const auto names_it = StatusIs(kDataLoss, HasSubstr(file));
    ASSERT_EQ(::truncate(file.c_str(), int64_t{200} << 30), 0);
    EXPECT_THAT(OpenRocksStore(Options(path)), names_it);
    EXPECT_THAT(OpenRocksSnapshot({.path = path}), names_it);
    std::filesystem::remove(file);
    std::filesystem::create_symlink("/dev/zero", file);
    EXPECT_THAT(OpenRocksStore(Options(path)), names_it);
    std::filesystem::remove(file);
    ASSERT_EQ(::mkfifo(file.c_str(), 0644), 0);
    EXPECT_THAT(OpenRocksStore(Options(path)), names_it);
    std::filesystem::remove(file);
    std::filesystem::create_directory(file);
    EXPECT_THAT(OpenRocksStore(Options(path)), names_it);
    if (name == "LIVE") {
      HOTROW_EXPECT_OK(OpenAtOne(path));
    }
  }
}

TEST(RocksDamageTest, ADirectoryInPlaceOfTheLockIsNamed) {
  const std::string path = TempDir() + "/store";
  MakeStoreWithSnapshot(path);
  std::filesystem::remove(path + "/LOCK");
  std::filesystem::create_directory(path + "/LOCK");
  const auto names_it = StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path + "/LOCK"));
  EXPECT_THAT(OpenRocksStore(Options(path)), names_it);
  EXPECT_THAT(OpenRocksSnapshot({.path = path}), names_it);
  EXPECT_THAT(VerifyRocksStore(path), names_it);
  HOTROW_EXPECT_OK(OpenRocksSnapshot({.path = path, .snapshot = 1}).status());  // takes no lock
}

// A process that died in the first opening promised nothing.
TEST(RocksDamageTest, AStoreWhoseMakingWasCutOffIsMadeAnew) {
  const std::string path = TempDir() + "/store";
  std::filesystem::create_directories(path + "/live-0000000000000001");
  Overwrite(path + "/live-0000000000000001/CURRENT", "half");
  Overwrite(path + "/TABLES", "half");
  Overwrite(path + "/MAKING", "");
  EXPECT_THAT(OpenRocksSnapshot({.path = path}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    HOTROW_ASSERT_OK(MakeBatch(0, 100, 1).InsertInto(*store));
    HOTROW_ASSERT_OK(store->Flush());
  }
  EXPECT_FALSE(std::filesystem::exists(path + "/MAKING"));
  // The mark excuses nothing once there is LIVE.
  Overwrite(path + "/MAKING", "");
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, OpenRocksStore(Options(path)));
    ExpectHolds(*store, MakeBatch(0, 100, 1));
  }
  EXPECT_FALSE(std::filesystem::exists(path + "/MAKING"));
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
