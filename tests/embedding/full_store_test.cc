// Stores whose disk budget a checkpoint and the rows beside it have used up: steps are refused, and
// all else goes on.

#include <sys/mount.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/out_of_room.h"
#include "base/status_macros.h"
#include "embedding/embedding_collection.h"
#include "embedding/storage_fields.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/embedding/store_kinds.h"
#include "tests/embedding/training.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::Batch;
using ::hotrow::test::kMiB;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 512;

struct FullCase {
  StoreKind kind;
  int64_t memory_bytes;  // an ssd store's chunks, and so its segments, go by it
  int32_t depth;         // of prefetching
  // A checkpoint is taken when so much of the rows is there that the store takes at all.
  int64_t percent;
  bool device = false;  // the cache lies on a device, which host memory stands for
};
std::string NameOf(const testing::TestParamInfo<FullCase>& info) {
  return absl::StrCat(std::string(StoreKindName(info.param.kind)), "_", info.param.percent,
                      "_percent", info.param.device ? "_device" : "");
}

EmbeddingCollectionOptions OptionsOf(const FullCase& c, const std::string& dir) {
  EmbeddingCollectionOptions options = test::Options({test::Table("t", 32, {"f"})});
  options.max_batch_size = kBatch;
  options.prefetch_depth = c.depth;
  (c.device ? options.cache.device_bytes : options.cache.bytes) = 512 << 10;
  options.store = MakeStorage({.kind = c.kind,
                               .dir = dir,
                               .memory_bytes = c.memory_bytes,
                               .disk_bytes = (c.kind == StoreKind::kSsd ? 8 : 12) * kMiB});
  return options;
}

// A collection, and what a caller does with it.
class Job {
 public:
  explicit Job(std::unique_ptr<EmbeddingCollection> tables) : tables_(std::move(tables)) {}
  EmbeddingCollection& tables() { return *tables_; }

  // Trains the rows key(0) to key(n - 1), some steps ahead, until one is refused.
  absl::Status Train(int64_t n, int32_t depth, const std::function<uint64_t(int64_t)>& key) {
    std::vector<EmbeddingStep> steps;
    for (int64_t at = 0; at < n || !steps.empty();) {
      for (; at < n && std::ssize(steps) <= depth; at += kBatch) {
        Batch batch;
        batch.batch_size = std::min(kBatch, n - at);
        for (int64_t i = 0; i < batch.batch_size; ++i) {
          batch.values.push_back(key(at + i));
          batch.offsets.push_back(i + 1);
        }
        HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables_->Prefetch(batch.view()));
        steps.push_back(std::move(step));
      }
      EmbeddingStep step = std::move(steps.front());
      steps.erase(steps.begin());
      std::vector<float> rows(static_cast<size_t>(kBatch * 32));
      const auto pooled = test::RowsOf(*tables_, step.batch_size(), rows);
      HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = pooled}));
      std::fill(rows.begin(), rows.end(), 0.01f);
      const int64_t size = step.batch_size();
      HOTROW_RETURN_IF_ERROR(
          std::move(step).Update({.pooled = test::RowsOf(*tables_, size, rows)}));
      trained_ += size;
    }
    return absl::OkStatus();
  }

  // A checkpoint in the place of the one before.
  absl::Status Save() {
    const SnapshotId before = saved_;
    HOTROW_RETURN_IF_ERROR(tables_->snapshots().Prepare(++saved_));
    HOTROW_RETURN_IF_ERROR(tables_->snapshots().Commit(saved_));
    return before == 0 ? absl::OkStatus() : tables_->snapshots().Drop(before);
  }

  absl::Status Read(uint64_t key) {
    std::vector<float> row(32);
    bool found = false;
    HOTROW_RETURN_IF_ERROR(
        tables_->ReadRows("t", {&key, 1}, MatrixView<float>(row.data(), 1, 32), {&found, 1}));
    return found ? absl::OkStatus() : absl::NotFoundError("no row");
  }

  int64_t trained() const { return trained_; }
  SnapshotId saved() const { return saved_; }

 private:
  const std::unique_ptr<EmbeddingCollection> tables_;
  int64_t trained_ = 0;
  SnapshotId saved_ = 0;
};

absl::StatusOr<std::unique_ptr<Job>> Open(const EmbeddingCollectionOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(auto tables, EmbeddingCollection::Create(options, {}));
  return std::make_unique<Job>(std::move(tables));
}

std::vector<FullCase> Cases() {
  return {
      {StoreKind::kSsd, 8 * kMiB, 2, 60},      {StoreKind::kSsd, 2 * kMiB, 0, 90},
      {StoreKind::kSsd, 8 * kMiB, 0, 100},
#ifdef HOTROW_HAVE_ROCKSDB
      {StoreKind::kRocksDb, 16 * kMiB, 0, 60}, {StoreKind::kRocksDb, 16 * kMiB, 0, 90},
#endif
  };
}

class FullStoreTest : public testing::TestWithParam<FullCase> {};

INSTANTIATE_TEST_SUITE_P(All, FullStoreTest, testing::ValuesIn(Cases()), NameOf);

TEST_P(FullStoreTest, BesideItsOnlyCheckpointIsReadSavedAndMadeSmaller) {
  const FullCase& c = GetParam();
  const std::string dir = test::TempDir();
  EmbeddingCollectionOptions options = OptionsOf(c, dir + "/most");
  int64_t most = 0;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto job, Open(options));
    const absl::Status full = job->Train(1 << 20, c.depth, [](int64_t i) { return i; });
    ASSERT_TRUE(IsOutOfRoom(full)) << full;
    most = job->trained();
  }
  options = OptionsOf(c, dir + "/store");
  Hash128 saved;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto job, Open(options));
    const int64_t rows = most * c.percent / 100;
    HOTROW_ASSERT_OK(job->Train(rows, c.depth, [](int64_t i) { return i; }));
    HOTROW_ASSERT_OK(job->Save());
    // Rows that are there, here and there, until the store refuses; then new ones.
    absl::Status full = job->Train(4 * rows, c.depth, [&](int64_t i) { return i * 7919 % rows; });
    if (full.ok()) full = job->Train(2 * most, c.depth, [&](int64_t i) { return rows + i; });
    ASSERT_TRUE(IsOutOfRoom(full)) << full;
    EXPECT_THAT(std::string(full.message()),
                HasSubstr("EmbeddingCollectionOptions.store.disk_bytes"));
    RecordProperty("trained_beside", std::to_string(job->trained() - rows));

    HOTROW_ASSERT_OK(job->Read(1));
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest before, job->tables().Digest());
    HOTROW_ASSERT_OK(job->Save());
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest after, job->tables().Digest());
    EXPECT_EQ(after.hash, before.hash);
    // Some rows of all segments; then all, in the order in which they came, part by part, each with
    // a checkpoint that lets go of what the one before holds.
    std::vector<uint64_t> part;
    for (int64_t i = 0; i < rows; i += 64) part.push_back(i);
    HOTROW_ASSERT_OK(job->tables().Erase("t", part));
    HOTROW_ASSERT_OK(job->Save());
    for (int64_t p = 0; p < 16; ++p) {
      part.resize((p + 1) * rows / 16 - p * rows / 16);
      std::iota(part.begin(), part.end(), p * rows / 16);
      HOTROW_ASSERT_OK(job->tables().Erase("t", part)) << "part " << p;
      HOTROW_ASSERT_OK(job->Save()) << "part " << p;
    }
    HOTROW_ASSERT_OK(job->Train(rows / 4, c.depth, [](int64_t i) { return (1 << 24) + i; }));
    HOTROW_ASSERT_OK(job->Save());
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest end, job->tables().Digest());
    saved = end.hash;
    EXPECT_GE(end.tables[0].rows, rows / 4);
    options.start.from = {{.snapshot = job->saved()}};
    options.start.steps = job->tables().steps();
    HOTROW_ASSERT_OK_AND_ASSIGN(const SnapshotInfo info,
                                job->tables().snapshots().Describe(job->saved()));
    options.start.from[0].identity = info.identity;
  }
  StorageFields storage = FieldsOf(options.store);
  storage.disk_bytes *= 2;
  options.store = MakeStorage(storage);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto job, Open(options));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest opened, job->tables().Digest());
  EXPECT_EQ(opened.hash, saved);
  HOTROW_ASSERT_OK(job->Train(most / 2, c.depth, [](int64_t i) { return i; }));
}

// Where the checkpoint stays, nothing but a larger budget helps, and it does.
TEST_P(FullStoreTest, GoesOnFromItsCheckpointWithALargerBudget) {
  const FullCase& c = GetParam();
  const std::string dir = test::TempDir();
  EmbeddingCollectionOptions options = OptionsOf(c, dir + "/store");
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto job, Open(options));
    absl::Status full = job->Train(1 << 20, c.depth, [](int64_t i) { return i; });
    ASSERT_TRUE(IsOutOfRoom(full)) << full;
    HOTROW_ASSERT_OK(job->Save());
    const int64_t rows = job->trained();
    full = job->Train(4 * rows, c.depth, [&](int64_t i) { return i * 7919 % rows; });
    EXPECT_TRUE(IsOutOfRoom(full)) << full;
    HOTROW_ASSERT_OK(job->tables().Digest().status());
    HOTROW_ASSERT_OK(job->Save());
    options.start.from = {{.snapshot = job->saved()}};
    options.start.steps = job->tables().steps();
  }
  StorageFields storage = FieldsOf(options.store);
  storage.disk_bytes *= 2;
  options.store = MakeStorage(storage);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto job, Open(options));
  HOTROW_ASSERT_OK(job->Train(1 << 14, c.depth, [](int64_t i) { return i; }));
}

// --- A full file system --------------------------------------------------------------------------

// A small file system for itself, and a file that fills it.
class SmallDisk {
 public:
  explicit SmallDisk(std::string dir)
      : dir_(std::move(dir)),
        mounted_(::mount("tmpfs", dir_.c_str(), "tmpfs", 0, "size=48m") == 0) {}
  ~SmallDisk() {
    if (mounted_) ::umount2(dir_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }
  void Fill() {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto file, PosixEnv().Open(dir_ + "/other", OpenMode::kCreate));
    const std::vector<std::byte> page(4096);
    absl::Status status;
    for (int64_t at = 0; status.ok(); at += 4096) status = WriteFull(*file, at, page);
    ASSERT_TRUE(IsOutOfRoom(status)) << status;
  }
  void MakeRoom() { HOTROW_ASSERT_OK(PosixEnv().Remove(dir_ + "/other")); }

 private:
  const std::string dir_;
  const bool mounted_;
};

class FullFileSystemTest : public FullStoreTest {};

INSTANTIATE_TEST_SUITE_P(All, FullFileSystemTest, testing::ValuesIn(Cases()), NameOf);
INSTANTIATE_TEST_SUITE_P(Device, FullFileSystemTest,
                         testing::Values(FullCase{StoreKind::kSsd, 8 * kMiB, 2, 60, true}), NameOf);

constexpr int64_t kLookups = 100'000;
uint64_t KeyAt(int64_t i) { return static_cast<uint64_t>(i % 3 == 0 ? i : i * 7919 % 30'000); }

Hash128 HashInMemory(int64_t lookups) {
  EmbeddingCollectionOptions options = OptionsOf({StoreKind::kMemory, 64 * kMiB, 0, 0}, "");
  auto job = Open(options);
  HOTROW_EXPECT_OK(job);
  HOTROW_EXPECT_OK((*job)->Train(lookups, 0, KeyAt));
  auto digest = (*job)->tables().Digest();
  HOTROW_EXPECT_OK(digest);
  return digest->hash;
}

TEST_P(FullFileSystemTest, RefusesStepsByNameReadsAndLosesNothing) {
  const FullCase& c = GetParam();
  const std::string dir = test::TempDir();
  SmallDisk disk(dir);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small tmpfs is not permitted";
  EmbeddingCollectionOptions options = OptionsOf(c, dir + "/store");
  StorageFields storage = FieldsOf(options.store);
  storage.disk_bytes = 256 * kMiB;  // more than there is
  options.store = MakeStorage(storage);
  const Hash128 expected = HashInMemory(kLookups);
  constexpr int64_t kSaved = 10 * kBatch;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto job, Open(options));
    HOTROW_ASSERT_OK(job->Train(kSaved, c.depth, KeyAt));
    HOTROW_ASSERT_OK(job->Save());
    ASSERT_NO_FATAL_FAILURE(disk.Fill());
    const absl::Status full =
        job->Train(kLookups - kSaved, c.depth, [](int64_t i) { return KeyAt(kSaved + i); });
    ASSERT_TRUE(IsOutOfRoom(full)) << full;
    EXPECT_THAT(std::string(full.message()), AllOf(HasSubstr(dir + "/store"), HasSubstr("room")));
    EXPECT_TRUE(IsOutOfRoom(job->Save()));
    // Rows that only the cache has are read there, and stay its own.
    HOTROW_EXPECT_OK(job->Read(0));
    const Hash128 so_far = HashInMemory(job->trained());
    for (int i = 0; i < 2; ++i) {
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, job->tables().Digest());
      EXPECT_EQ(digest.hash, so_far);
      int64_t rows = 0;
      HOTROW_EXPECT_OK(job->tables().ForEachRow("t", [&](uint64_t, std::span<const float>) {
        ++rows;
        return absl::OkStatus();
      }));
      EXPECT_EQ(rows, digest.tables[0].rows);
    }
    // Ended as by a kill, it goes on from its checkpoint.
  }
  ASSERT_NO_FATAL_FAILURE(disk.MakeRoom());
  options.start.from = {{.snapshot = 1}};
  options.start.steps = kSaved / kBatch;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto job, Open(options));
  if (c.kind == StoreKind::kSsd) {  // of RocksDB, which goes on seconds later, see rocks_store_test
    ASSERT_NO_FATAL_FAILURE(disk.Fill());
    const absl::Status full =
        job->Train(kLookups - kSaved, c.depth, [](int64_t i) { return KeyAt(kSaved + i); });
    ASSERT_TRUE(IsOutOfRoom(full)) << full;
    ASSERT_NO_FATAL_FAILURE(disk.MakeRoom());
  }
  const int64_t at = kSaved + job->trained();
  HOTROW_ASSERT_OK(job->Train(kLookups - at, c.depth, [&](int64_t i) { return KeyAt(at + i); }));
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, job->tables().Digest());
  EXPECT_EQ(digest.hash, expected);
  HOTROW_EXPECT_OK(job->tables().snapshots().Prepare(7));
}

}  // namespace
}  // namespace hotrow
