// The tables over every kind of store: same bits, what Create refuses, and starting from snapshots.

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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
using ::hotrow::test::FillGradient;
using ::hotrow::test::kMiB;
using ::hotrow::test::Options;
using ::hotrow::test::RandomBatch;
using ::hotrow::test::RunOptions;
using ::hotrow::test::RunResult;
using ::hotrow::test::StatusIs;
using ::hotrow::test::Table;
using ::hotrow::test::Train;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kDiskBytes = 32 * kMiB;

// The options for a store of this kind that lies in `dir`.
EmbeddingCollectionOptions Over(EmbeddingCollectionOptions options, StoreKind kind,
                                const std::string& dir) {
  StorageFields storage = FieldsOf(options.store);
  storage.kind = kind;
  storage.dir = dir;
  if (kind != StoreKind::kMemory) {
    storage.disk_bytes = kDiskBytes;
    // An ssd store of this size writes in pieces of 32 KiB, so that rows really come from the disk.
    storage.memory_bytes = kind == StoreKind::kSsd ? 2 * kMiB : 8 * kMiB;
    if (options.cache.bytes == 0) options.cache.bytes = kMiB;
  }
  options.store = MakeStorage(storage);
  return options;
}

EmbeddingCollectionOptions SmallTables() {
  EmbeddingCollectionOptions options =
      Options({Table("wide", 64, {"f0"}), Table("odd", 17, {"f1", "f2"}), Table("one", 1, {"f3"})});
  for (TableConfig& table : options.tables) table.max_hotness = 3;
  return options;
}

class StoresTest : public testing::TestWithParam<StoreKind> {};

INSTANTIATE_TEST_SUITE_P(All, StoresTest, testing::ValuesIn(test::StoreKinds()),
                         test::NameOfStoreKind);

TEST_P(StoresTest, SameBitsWhateverTheCacheAndThePrefetch) {
  const EmbeddingCollectionOptions options = SmallTables();
  const RunOptions run = {.steps = 14, .num_features = 4, .rows = 800};
  const RunResult expected = Train(options, run);
  ASSERT_GT(expected.stats.initialised_rows, 300);
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t least, EmbeddingCollection::MinCacheBytes(options));
  for (const int64_t cache_bytes : {least, least + least / 3, 16 * kMiB}) {
    for (const int32_t depth : {0, 1, 2, 4}) {
      for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLfu}) {
        // Each policy with each size and with each depth, not with each pair.
        const bool even = (cache_bytes == least) == (depth % 4 == 0);
        if (even != (policy == CachePolicy::kLru)) continue;
        SCOPED_TRACE(absl::StrCat("cache_bytes=", cache_bytes, " prefetch_depth=", depth));
        const std::string dir = test::TempDir();
        EmbeddingCollectionOptions variant = options;
        variant.cache.bytes = cache_bytes;
        variant.prefetch_depth = depth;
        variant.cache.policy = policy;
        variant = Over(variant, GetParam(), dir);
        RunOptions threads = run;
        threads.threads = depth == 4 ? 4 : 1 + depth % 2;  // 4: the pipeline uses the pool
        threads.evaluate_every = 3;
        const RunResult got = Train(variant, threads);
        EXPECT_EQ(got.digest.hash, expected.digest.hash);
        EXPECT_EQ(got.last_output, expected.last_output);
        EXPECT_EQ(got.stats.initialised_rows, expected.stats.initialised_rows);
        ASSERT_EQ(got.stats.tiers.size(), 2u);
        const TierStats& cache = got.stats.tiers[0];
        const TierStats& store = got.stats.tiers[1];
        EXPECT_LE(cache.used_bytes, cache.budget_bytes);
        EXPECT_EQ(store.name, StoreKindName(GetParam()));
        if (GetParam() == StoreKind::kSsd) {
          EXPECT_LE(store.used_bytes, store.budget_bytes);
          EXPECT_GT(store.index_bytes, 0);
          EXPECT_GT(store.disk_used_bytes, 0);
          EXPECT_EQ(store.disk_budget_bytes, kDiskBytes);
          if (cache_bytes == least) {
            EXPECT_GT(store.rows_read, 0);
          }
        }
      }
    }
  }
}

// --- Starting from a snapshot
// ------------------------------------------------------------------------------------

// Some steps with the batches of these numbers.
void TrainSteps(EmbeddingCollection& tables, int begin, int end) {
  for (int i = begin; i < end; ++i) {
    const Batch batch = RandomBatch(static_cast<uint64_t>(i) + 100, 4, 48, 3, 800, false);
    std::vector<float> output(static_cast<size_t>(48 * tables.pooled_dim()));
    std::vector<float> gradient;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto step, tables.Prefetch(batch.view()));
    HOTROW_ASSERT_OK(step.Lookup({.pooled = test::RowsOf(tables, step.batch_size(), output)}));
    FillGradient(output, static_cast<uint64_t>(i), &gradient);
    HOTROW_ASSERT_OK(
        std::move(step).Update({.pooled = test::RowsOf(tables, step.batch_size(), gradient)}));
  }
}

Hash128 HashAfter(int steps) {
  auto tables = EmbeddingCollection::Create(SmallTables(), {});
  HOTROW_EXPECT_OK(tables);
  TrainSteps(**tables, 0, steps);
  auto digest = (*tables)->Digest();
  HOTROW_EXPECT_OK(digest);
  return digest->hash;
}

// Every byte under a directory, by path.
std::map<std::string, std::string> Contents(const std::string& dir) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    contents[entry.path()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return contents;
}

// A store in `dir` with the committed snapshots 4 and 6, closed after step 8.
void MakeSnapshots(StoreKind kind, const std::string& dir) {
  EmbeddingCollectionOptions options = SmallTables();
  options.cache.bytes = kMiB;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables,
                              EmbeddingCollection::Create(Over(options, kind, dir), {}));
  for (const int steps : {4, 6, 8}) {
    TrainSteps(*tables, steps == 4 ? 0 : steps - 2, steps);
    if (steps == 8) break;
    HOTROW_ASSERT_OK(tables->snapshots().Prepare(static_cast<SnapshotId>(steps)));
    HOTROW_ASSERT_OK(tables->snapshots().Commit(static_cast<SnapshotId>(steps)));
  }
  HOTROW_ASSERT_OK(tables->Flush());
  HOTROW_ASSERT_OK(tables->Close());
}

TEST_P(StoresTest, StartsFromAnySnapshotOfItsOwn) {
  const std::string dir = test::TempDir();
  ASSERT_NO_FATAL_FAILURE(MakeSnapshots(GetParam(), dir));
  for (const int at : {6, 4}) {  // the older one last: opening in place drops no snapshot
    EmbeddingCollectionOptions options = Over(SmallTables(), GetParam(), dir);
    options.start.from = {{.snapshot = static_cast<SnapshotId>(at)}};
    options.start.steps = at;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    EXPECT_EQ(tables->steps(), at);
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
    EXPECT_EQ(digest.hash, HashAfter(at));
    EXPECT_THAT(*tables->snapshots().List(), ElementsAre(4, 6));
    TrainSteps(*tables, at, 9);
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest after, tables->Digest());
    EXPECT_EQ(after.hash, HashAfter(9));
    const TierStats store = tables->Stats().tiers.back();
    if (GetParam() == StoreKind::kSsd) {
      EXPECT_GT(store.ios, 0);
      EXPECT_GT(store.bytes_read, 0);
      EXPECT_GT(store.bytes_written, 0);
      EXPECT_GT(store.write_amplification, 0.5);
    }
    EXPECT_THAT(tables->snapshots().Begin(6),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("snapshot 6")));
  }
}

TEST_P(StoresTest, StartsFromASnapshotOfEveryOtherKind) {
  for (const StoreKind from : test::StoreKinds()) {
    SCOPED_TRACE(std::string(StoreKindName(from)));
    const std::string source = test::TempDir();
    ASSERT_NO_FATAL_FAILURE(MakeSnapshots(from, source));
    const auto before = Contents(source);
    const std::string dir = test::TempDir();
    EmbeddingCollectionOptions options = Over(SmallTables(), GetParam(), dir);
    options.start.from = {{.snapshot = 4, .store = from, .dir = source + "/"}};
    options.start.steps = 4;
    {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
      HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
      EXPECT_EQ(digest.hash, HashAfter(4));
      EXPECT_THAT(*tables->snapshots().List(), ElementsAre());
      TrainSteps(*tables, 4, 9);
      HOTROW_ASSERT_OK(tables->snapshots().Prepare(9));
      HOTROW_ASSERT_OK(tables->snapshots().Commit(9));
    }
    if (from != StoreKind::kRocksDb) {
      EXPECT_EQ(Contents(source), before) << "nothing is written to the source";
    }
    // Another collection cannot be made there without saying from what.
    if (GetParam() == StoreKind::kMemory) continue;
    EXPECT_THAT(EmbeddingCollection::Create(options, {}),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(dir), HasSubstr("snapshot"))));
    options.start.start_over = true;
    EXPECT_THAT(EmbeddingCollection::Create(options, {}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(dir)));
  }
}

TEST_P(StoresTest, ARefusedOpenNamesTheReasonAndChangesNothing) {
  const std::string dir = test::TempDir();
  ASSERT_NO_FATAL_FAILURE(MakeSnapshots(GetParam(), dir));
  const auto before = Contents(dir);
  const auto refused = [&](const EmbeddingCollectionOptions& options) {
    const absl::Status status = EmbeddingCollection::Create(options, {}).status();
    // RocksDB writes its own log.
    if (GetParam() != StoreKind::kRocksDb) {
      EXPECT_EQ(Contents(dir), before) << status;
    }
    return status;
  };
  const EmbeddingCollectionOptions good = Over(SmallTables(), GetParam(), dir);

  EmbeddingCollectionOptions options = good;
  options.start.from = {{.snapshot = 5}};
  EXPECT_THAT(refused(options),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("snapshot 5")));
  options = good;
  options.start.from = {{.snapshot = 6}};
  options.tables[1].embedding_dim = 33;
  EXPECT_THAT(refused(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(dir)));
  options = good;
  options.start.from = {{.snapshot = 6}};
  options.tables.pop_back();
  EXPECT_THAT(refused(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(dir)));

  if (GetParam() == StoreKind::kMemory) return;
  EXPECT_THAT(refused(good), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr(dir), HasSubstr("2 snapshots"))));
  {
    options = good;
    options.start.from = {{.snapshot = 6}};
    HOTROW_ASSERT_OK_AND_ASSIGN(auto holder, EmbeddingCollection::Create(options, {}));
    for (const SnapshotId open_at : {SnapshotId{0}, SnapshotId{6}}) {
      options.start.from.clear();
      if (open_at != 0) options.start.from = {{.snapshot = open_at}};
      EXPECT_THAT(EmbeddingCollection::Create(options, {}),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           AllOf(HasSubstr(dir), HasSubstr("open"))));
    }
    // Its snapshots can be copied meanwhile.
    EmbeddingCollectionOptions copy = Over(SmallTables(), StoreKind::kMemory, test::TempDir());
    copy.start.from = {{.snapshot = 6, .store = GetParam(), .dir = dir}};
    HOTROW_ASSERT_OK_AND_ASSIGN(auto copied, EmbeddingCollection::Create(copy, {}));
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto digest, holder->Digest());
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto copied_digest, copied->Digest());
    EXPECT_EQ(copied_digest.hash, digest.hash);
  }
  options = good;
  StorageFields storage = FieldsOf(options.store);
  storage.dir = test::TempDir() + "/file";
  std::ofstream(storage.dir) << "not a directory";
  options.store = MakeStorage(storage);
  EXPECT_THAT(EmbeddingCollection::Create(options, {}).status().message(), HasSubstr(storage.dir));
  options = good;
  storage.dir = test::TempDir();
  storage.disk_bytes = 4096;
  options.store = MakeStorage(storage);
  EXPECT_FALSE(EmbeddingCollection::Create(options, {}).ok() && GetParam() == StoreKind::kSsd);
}

TEST_P(StoresTest, ASourceThatIsMissingOrOtherIsNamed) {
  const std::string source = test::TempDir();
  ASSERT_NO_FATAL_FAILURE(MakeSnapshots(GetParam(), source));
  const std::string dir = test::TempDir() + "/store";
  EmbeddingCollectionOptions options = Over(SmallTables(), StoreKind::kSsd, dir);
  if (GetParam() == StoreKind::kSsd) {
    options = Over(SmallTables(), StoreKind::kMemory, dir);
  }
  options.start.from = {{.snapshot = 7, .store = GetParam(), .dir = source}};
  EXPECT_THAT(EmbeddingCollection::Create(options, {}).status().message(), HasSubstr("snapshot 7"));
  options.start.from[0].snapshot = 4;
  options.tables[2].embedding_dim = 40;
  EXPECT_THAT(
      EmbeddingCollection::Create(options, {}),
      StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(source), HasSubstr("table 2"))));
  options.start.from[0].dir = source + "/nowhere";
  EXPECT_THAT(EmbeddingCollection::Create(options, {}).status().message(),
              HasSubstr(source + "/nowhere"));
  EXPECT_FALSE(std::filesystem::exists(dir)) << "a refused open made a directory";
}

TEST_P(StoresTest, StartOverEmptiesWhatWasNeverCommitted) {
  if (GetParam() == StoreKind::kMemory) GTEST_SKIP() << "nothing is left of a memory store";
  const std::string dir = test::TempDir();
  EmbeddingCollectionOptions options = Over(SmallTables(), GetParam(), dir);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    TrainSteps(*tables, 0, 5);
    HOTROW_ASSERT_OK(tables->snapshots().Prepare(5));  // killed before it was committed
    TrainSteps(*tables, 5, 7);
    HOTROW_ASSERT_OK(tables->Flush());
  }
  EXPECT_THAT(EmbeddingCollection::Create(options, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(dir), HasSubstr("rows and 1 snapshot;"))));
  options.start.start_over = true;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  EXPECT_THAT(*tables->snapshots().List(), ElementsAre());
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest empty, tables->Digest());
  EXPECT_EQ(empty.hash, Hash128());
  TrainSteps(*tables, 0, 6);
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
  EXPECT_EQ(digest.hash, HashAfter(6));
}

TEST_P(StoresTest, OptionsThatDoNotFitTheKindAreNamed) {
  EmbeddingCollectionOptions good = Over(SmallTables(), GetParam(), "dir");
  HOTROW_EXPECT_OK(good.Validate());
  const auto bad = [&](auto change, const char* what) {
    EmbeddingCollectionOptions options = good;
    change(&options);
    EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  bad([](auto* o) { o->start.from = {{.dir = "elsewhere"}}; }, "must not be 0");
  bad(
      [](auto* o) {
        o->start.from = {{.snapshot = 1}, {.snapshot = 2, .dir = "b"}};
      },
      "each of the 2 snapshots");
  bad([](auto* o) { o->start.steps = 3; }, "start.steps");
  if (GetParam() == StoreKind::kMemory) {
    bad([](auto* o) { o->start.from = {{.snapshot = 1, .store = StoreKind::kSsd}}; },
        "in which directory");
    bad(
        [](auto* o) {
          o->start.from = {{.snapshot = 1}};
          std::get<MemoryStorage>(o->store).snapshot_dir = "";
        },
        "snapshot_dir");
  } else {
    const auto storage = [](auto change) {
      return [change](auto* o) {
        StorageFields fields = FieldsOf(o->store);
        change(&fields);
        o->store = MakeStorage(fields);
      };
    };
    bad(storage([](StorageFields* s) { s->dir = ""; }), "path is empty");
    bad(storage([](StorageFields* s) { s->disk_bytes = 0; }), "disk_bytes");
    bad([](auto* o) { o->cache.bytes = 0; }, "cache.bytes");
    bad([](auto* o) { o->start.from = {{.snapshot = 1, .store = StoreKind::kMemory}}; },
        "in which directory");
  }
}

}  // namespace
}  // namespace hotrow
