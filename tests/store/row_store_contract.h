#ifndef HOTROW_TESTS_STORE_ROW_STORE_CONTRACT_H_
#define HOTROW_TESTS_STORE_ROW_STORE_CONTRACT_H_

// What every kind of RowStore must do. A kind joins by one line in row_store_contract_test.cc:
//
//   INSTANTIATE_TEST_SUITE_P(SsdStore, RowStoreContractTest, testing::Values(SsdStoreKind()), ...);
//
// Include this header from that file only: it defines the tests.

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/row_store.h"
#include "store/snapshot_reader.h"
#include "tests/store/store_test_util.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {

struct RowStoreSetup {
  std::vector<StoreTable> tables;
  int64_t budget_bytes = int64_t{16} << 20;  // of memory
  std::string dir;                           // empty: the test's own
  Env* env = nullptr;                        // never null when a store is opened
  SnapshotId open_at = 0;                    // 0: empty in an empty directory
  UniqueId open_at_identity;                 // known: open_at must have it
};

struct RowStoreKind {
  std::string name;
  std::function<absl::StatusOr<std::unique_ptr<RowStore>>(const RowStoreSetup&)> open;
  // What a ResourceExhausted must name.
  std::string store_name;
  // Opens a snapshot of a store of this kind that is not open.
  absl::StatusOr<std::unique_ptr<SnapshotReader>> (*open_snapshot)(const SnapshotReaderOptions&) =
      nullptr;
  // Whether what was flushed is there without a snapshot, too.
  bool has_present_state = true;
  // Whether all its file access goes through Env. A kind that brings its own works in a directory
  // of the real file system, and tests that inject faults skip it.
  bool uses_env = true;
  // Whether used_bytes can never pass the memory budget, however small.
  bool exact_memory_budget = true;
  // Whether nothing more is written after a sync that failed, until the store is opened again.
  bool failed_sync_is_final = false;
  // Whether it tries a write that failed once more by itself.
  bool tries_writes_again = false;
  // Whether it keeps which snapshots were committed.
  bool keeps_commits = true;
};

class RowStoreContractTest : public testing::TestWithParam<RowStoreKind> {
 protected:
  absl::StatusOr<std::unique_ptr<RowStore>> Open(RowStoreSetup setup) {
    if (setup.env == nullptr) setup.env = &env_;
    if (setup.dir.empty()) setup.dir = dir_;
    return GetParam().open(setup);
  }
  // An empty place for a store; in a MemEnv always the same one.
  static std::string NewDir() { return GetParam().uses_env ? "/store" : TempDir() + "/store"; }
  // Widths that are even, odd, one byte, and more than the widest prefetch.
  static std::vector<StoreTable> ManyTables() {
    return {{.table = 3, .row_bytes = 16},
            {.table = 0, .row_bytes = 1},
            {.table = UINT32_MAX, .row_bytes = 17},
            {.table = 70'000, .row_bytes = 512},
            {.table = 4, .row_bytes = 1500}};
  }

  absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenSnapshot(SnapshotId snapshot,
                                                               int64_t memory_budget_bytes = 0) {
    return GetParam().open_snapshot({.path = dir_,
                                     .snapshot = snapshot,
                                     .memory_budget_bytes = memory_budget_bytes,
                                     .env = GetParam().uses_env ? &env_ : nullptr});
  }
  // Names and bytes of all files below the store's directory.
  absl::StatusOr<std::map<std::string, std::string>> AllFiles() {
    Env& env = GetParam().uses_env ? static_cast<Env&>(env_) : PosixEnv();
    std::map<std::string, std::string> files;
    std::vector<std::string> dirs = {dir_};
    while (!dirs.empty()) {
      const std::string dir = dirs.back();
      dirs.pop_back();
      HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(dir));
      for (const std::string& name : names) {
        const std::string path = dir + "/" + name;
        if (env.ListDir(path).ok()) {
          dirs.push_back(path);
          continue;
        }
        HOTROW_ASSIGN_OR_RETURN(files[path], ReadFileToString(env, path));
      }
    }
    return files;
  }

  MemEnv env_;
  const std::string dir_ = NewDir();
};

// All rows that a reader visits. A key that comes twice is an error.
inline absl::StatusOr<RowMap> Dump(SnapshotReader& reader) {
  RowMap rows;
  HOTROW_RETURN_IF_ERROR(
      reader.Iterate([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
        const bool is_new =
            rows.emplace(std::pair(key.table, key.key), Row(row.begin(), row.end())).second;
        return is_new ? absl::OkStatus() : absl::InternalError("a key came twice");
      }));
  return rows;
}

// First line of a test that injects faults.
#define HOTROW_SKIP_UNLESS_KIND_USES_ENV()                                                      \
  if (!GetParam().uses_env) {                                                                   \
    GTEST_SKIP() << GetParam().name << " brings its own file access: no fault can be injected"; \
  }

TEST_P(RowStoreContractTest, EmptyBatchesAreFine) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{1, 8}}}));
  HOTROW_EXPECT_OK(store->Find({}, {}, {}));
  HOTROW_EXPECT_OK(store->InsertOrAssign({}, {}));
  HOTROW_EXPECT_OK(store->Erase({}));
  HOTROW_EXPECT_OK(store->Flush());
  EXPECT_EQ(store->Stats().rows, 0);
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*store));
  EXPECT_TRUE(rows.empty());
}

TEST_P(RowStoreContractTest, FindsWhatWasInsertedInTablesOfAllWidths) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = ManyTables()}));
  Batch batch;
  for (const StoreTable& table : store->tables()) {
    for (const uint64_t key : {uint64_t{0}, UINT64_MAX, uint64_t{1}, uint64_t{1} << 63}) {
      const RowKey row_key{key, table.table};
      batch.Add(row_key, MakeRow(row_key, 0, table.row_bytes));
    }
  }
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, batch.keys));
  EXPECT_THAT(found.found, testing::Each(1));
  EXPECT_EQ(found.rows, batch.rows);
  EXPECT_EQ(store->Stats().rows, static_cast<int64_t>(batch.keys.size()));
}

TEST_P(RowStoreContractTest, AMissLeavesTheRowAlone) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{1, 24}, {2, 24}}}));
  Batch batch;
  batch.Add({5, 1}, MakeRow({5, 1}, 0, 24));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  const std::vector<RowKey> keys = {{4, 1}, {5, 1}, {5, 2}};
  HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, keys));
  EXPECT_THAT(found.found, testing::ElementsAre(0, 1, 0));
  EXPECT_EQ(found.rows[0], Row(24, std::byte{0xee}));
  EXPECT_EQ(found.rows[1], batch.rows[0]);
  EXPECT_EQ(found.rows[2], Row(24, std::byte{0xee}));
}

TEST_P(RowStoreContractTest, EqualKeysInTwoTablesAreTwoRows) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{1, 8}, {2, 8}}}));
  Batch batch;
  batch.Add({7, 1}, MakeRow({7, 1}, 0, 8));
  batch.Add({7, 2}, MakeRow({7, 2}, 0, 8));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  const std::vector<RowKey> first = {batch.keys[0]};
  HOTROW_ASSERT_OK(store->Erase(first));
  HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, batch.keys));
  EXPECT_THAT(found.found, testing::ElementsAre(0, 1));
  EXPECT_EQ(found.rows[1], batch.rows[1]);
}

TEST_P(RowStoreContractTest, LastDuplicateInBatchWins) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{1, 32}}}));
  Batch batch;  // longer than any block that an implementation may cut it into
  for (uint64_t i = 0; i < 20'000; ++i) batch.Add({i % 3, 1}, MakeRow({i % 3, 1}, i, 32));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  EXPECT_EQ(store->Stats().rows, 3);
  const std::vector<RowKey> keys = {{0, 1}, {1, 1}, {2, 1}};
  HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, keys));
  for (size_t i = 0; i < 3; ++i) {
    const size_t last = 19'999 - (19'999 - i) % 3;
    EXPECT_EQ(found.rows[i], batch.rows[last]) << i;
  }
}

TEST_P(RowStoreContractTest, FindAnswersRepeatedKeysEachTime) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{1, 40}}}));
  Batch batch;
  batch.Add({9, 1}, MakeRow({9, 1}, 0, 40));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  const std::vector<RowKey> keys(5000, RowKey{9, 1});
  HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, keys));
  EXPECT_THAT(found.found, testing::Each(1));
  EXPECT_THAT(found.rows, testing::Each(batch.rows[0]));
}

TEST_P(RowStoreContractTest, ErasedKeysAreGoneAndMayComeBack) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{1, 12}}}));
  Batch batch;
  for (uint64_t i = 0; i < 100; ++i) batch.Add({i, 1}, MakeRow({i, 1}, 0, 12));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  const std::vector<RowKey> erased = {{3, 1}, {3, 1}, {99, 1}, {100, 1}};  // twice, and a stranger
  HOTROW_ASSERT_OK(store->Erase(erased));
  EXPECT_EQ(store->Stats().rows, 98);
  EXPECT_EQ(store->Stats().rows_erased, 2);
  HOTROW_ASSERT_OK_AND_ASSIGN(Found found, FindAll(*store, erased));
  EXPECT_THAT(found.found, testing::Each(0));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  HOTROW_ASSERT_OK_AND_ASSIGN(found, FindAll(*store, batch.keys));
  EXPECT_EQ(found.rows, batch.rows);
  EXPECT_EQ(store->Stats().rows, 100);
}

TEST_P(RowStoreContractTest, RefusesSizesThatDisagreeAndUnknownTables) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{1, 8}}}));
  const std::vector<RowKey> keys = {{1, 1}, {2, 1}};
  const std::vector<RowKey> strange = {{1, 1}, {2, 17}};
  Row row(8);
  const std::vector<std::byte*> one = {row.data()};
  const std::vector<const std::byte*> one_const = {row.data()};
  const std::vector<std::byte*> two = {row.data(), row.data()};
  const std::vector<const std::byte*> two_const = {row.data(), row.data()};
  std::vector<uint8_t> flag(1);
  std::vector<uint8_t> flags(2);
  using testing::HasSubstr;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(store->Find(keys, one, flags), StatusIs(kInvalid, HasSubstr("2")));
  EXPECT_THAT(store->Find(keys, two, flag), StatusIs(kInvalid, HasSubstr("2")));
  EXPECT_THAT(store->InsertOrAssign(keys, one_const), StatusIs(kInvalid, HasSubstr("2")));
  EXPECT_THAT(store->Find(strange, two, flags), StatusIs(kInvalid, HasSubstr("17")));
  EXPECT_THAT(store->InsertOrAssign(strange, two_const), StatusIs(kInvalid, HasSubstr("17")));
  EXPECT_THAT(store->Erase(strange), StatusIs(kInvalid, HasSubstr("17")));
  EXPECT_EQ(store->Stats().rows, 0);
}

TEST_P(RowStoreContractTest, NamesItsTables) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = ManyTables()}));
  const std::vector<StoreTable> wanted = ManyTables();
  ASSERT_EQ(store->tables().size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(store->tables()[i].table, wanted[i].table);
    EXPECT_EQ(store->row_bytes(wanted[i].table), wanted[i].row_bytes);
  }
  EXPECT_EQ(store->row_bytes(5), 0);
}

TEST_P(RowStoreContractTest, IterateEndsWithTheErrorOfItsVisitor) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{1, 8}}}));
  Batch batch;
  for (uint64_t i = 0; i < 1000; ++i) batch.Add({i, 1}, MakeRow({i, 1}, 0, 8));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  int visits = 0;
  const absl::Status status =
      store->Iterate([&](const RowKey&, std::span<const std::byte>) -> absl::Status {
        return ++visits == 10 ? absl::AbortedError("enough") : absl::OkStatus();
      });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, testing::HasSubstr("enough")));
  EXPECT_EQ(visits, 10);
}

TEST_P(RowStoreContractTest, StatsCountAndAreNotResetByReading) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{1, 8}}}));
  Batch batch;
  for (uint64_t i = 0; i < 10; ++i) batch.Add({i, 1}, MakeRow({i, 1}, 0, 8));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  const std::vector<RowKey> keys = {{1, 1}, {50, 1}, {2, 1}};
  HOTROW_ASSERT_OK(FindAll(*store, keys).status());
  for (int reading = 0; reading < 2; ++reading) {
    const RowStoreStats stats = store->Stats();
    EXPECT_EQ(stats.rows, 10);
    EXPECT_EQ(stats.rows_written, 10);
    EXPECT_EQ(stats.finds, 3);
    EXPECT_EQ(stats.found, 2);
    EXPECT_EQ(stats.budget_bytes, int64_t{16} << 20);
    EXPECT_GT(stats.used_bytes, 0);
    EXPECT_GE(stats.peak_bytes, stats.used_bytes);
    EXPECT_LE(stats.peak_bytes, stats.budget_bytes);
  }
}

TEST_P(RowStoreContractTest, ASnapshotShowsExactlyItsMoment) {
  RowStoreSetup setup{.tables = ManyTables()};
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open(setup));
  Batch batch;
  for (uint64_t i = 0; i < 500; ++i) {
    for (const StoreTable& table : setup.tables) {
      batch.Add({i, table.table}, MakeRow({i, table.table}, 0, table.row_bytes));
    }
  }
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  HOTROW_ASSERT_OK(store->Erase(std::span(batch.keys).first(100)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap then, Dump(*store));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(77));

  Batch later;
  for (uint64_t i = 0; i < 1000; ++i) later.Add({i, 3}, MakeRow({i, 3}, 1, 16));
  HOTROW_ASSERT_OK(later.InsertInto(*store));
  HOTROW_ASSERT_OK(store->CommitSnapshot(77));
  store.reset();

  setup.open_at = 77;
  HOTROW_ASSERT_OK_AND_ASSIGN(store, Open(setup));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap now, Dump(*store));
  EXPECT_EQ(now, then);
  EXPECT_EQ(store->Stats().rows, static_cast<int64_t>(then.size()));
  // And it goes on from there.
  HOTROW_ASSERT_OK(later.InsertInto(*store));
  HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, later.keys));
  EXPECT_EQ(found.rows, later.rows);
}

TEST_P(RowStoreContractTest, AnEmptyStoreHasSnapshotsToo) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{1, 8}}}));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  store.reset();
  HOTROW_ASSERT_OK_AND_ASSIGN(store, Open({.tables = {{1, 8}}, .open_at = 1}));
  EXPECT_EQ(store->Stats().rows, 0);
}

TEST_P(RowStoreContractTest, SnapshotsAreListedCommittedAndDropped) {
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  const RowStoreSetup setup{.tables = {{1, 8}}};
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open(setup));
  Batch batch;
  batch.Add({1, 1}, MakeRow({1, 1}, 0, 8));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(UINT64_MAX));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(5));
  EXPECT_THAT(store->PrepareSnapshot(5), StatusIs(kPrecondition, testing::HasSubstr("5")));
  EXPECT_THAT(store->PrepareSnapshot(0), StatusIs(kPrecondition, testing::HasSubstr("0")));
  EXPECT_THAT(store->CommitSnapshot(6), StatusIs(kPrecondition, testing::HasSubstr("6")));
  EXPECT_THAT(store->DropSnapshot(6), StatusIs(kPrecondition, testing::HasSubstr("6")));
  HOTROW_ASSERT_OK(store->CommitSnapshot(5));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto ids, store->ListSnapshots());
  EXPECT_THAT(ids, testing::ElementsAre(5, UINT64_MAX));

  HOTROW_ASSERT_OK(store->DropSnapshot(5));
  HOTROW_ASSERT_OK_AND_ASSIGN(ids, store->ListSnapshots());
  EXPECT_THAT(ids, testing::ElementsAre(UINT64_MAX));
  store.reset();
  RowStoreSetup again = setup;
  again.open_at = 5;
  EXPECT_THAT(Open(again), StatusIs(kPrecondition, testing::HasSubstr("5")));
  again.open_at = UINT64_MAX;
  HOTROW_ASSERT_OK_AND_ASSIGN(store, Open(again));
  EXPECT_EQ(store->Stats().rows, 1);
}

TEST_P(RowStoreContractTest, TablesThatDisagreeWithTheSnapshotAreNamed) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{11, 8}, {22, 16}}}));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  store.reset();
  const auto open = [&](std::vector<StoreTable> tables) {
    return Open({.tables = std::move(tables), .open_at = 1});
  };
  EXPECT_THAT(open({{11, 8}, {22, 17}}), StatusIs(kInvalid, testing::HasSubstr("table 22")));
  EXPECT_THAT(open({{11, 8}}), StatusIs(kInvalid, testing::HasSubstr("table 22")));
  EXPECT_THAT(open({{11, 8}, {22, 16}, {33, 8}}),
              StatusIs(kInvalid, testing::HasSubstr("table 33")));
  HOTROW_EXPECT_OK(open({{22, 16}, {11, 8}}));  // the order does not matter
}

TEST_P(RowStoreContractTest, ASnapshotOutlivesThePowerOrWasNeverThere) {
  HOTROW_SKIP_UNLESS_KIND_USES_ENV();
  const RowStoreSetup setup{.tables = {{1, 100}}};
  for (const uint64_t seed : Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    FaultyEnv env;
    RowStoreSetup mine = setup;
    mine.env = &env;
    HOTROW_ASSERT_OK(env.CreateDirs("/store"));
    HOTROW_ASSERT_OK(env.SyncDir("/"));
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open(mine));
    Batch batch;
    for (uint64_t i = 0; i < 300; ++i) batch.Add({i, 1}, MakeRow({i, 1}, seed, 100));
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
    HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap then, Dump(*store));
    // Snapshot 2 is cut off by the power: it fails at some call, and so do all later ones.
    const auto k = static_cast<int64_t>(Mix64(seed) % 12);
    env.FailFrom(env.calls() + k, absl::DataLossError("the power is gone"));
    const bool second = store->PrepareSnapshot(2).ok();
    store.reset();
    env.LosePower(seed);
    env.FailFrom(INT64_MAX, absl::OkStatus());

    mine.open_at = 1;
    HOTROW_ASSERT_OK_AND_ASSIGN(store, Open(mine));
    HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap now, Dump(*store));
    EXPECT_EQ(now, then);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto ids, store->ListSnapshots());
    if (second) {
      EXPECT_THAT(ids, testing::Contains(2));
    }
    if (ids.size() == 2) {  // its name became durable: then all of it did
      store.reset();
      mine.open_at = 2;
      HOTROW_ASSERT_OK_AND_ASSIGN(store, Open(mine));
      HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap other, Dump(*store));
      EXPECT_EQ(other, then);
    }
  }
}

TEST_P(RowStoreContractTest, AFailedPrepareLeavesTheStoreAsItWas) {
  HOTROW_SKIP_UNLESS_KIND_USES_ENV();
  for (int64_t k = 0;; ++k) {
    SCOPED_TRACE(testing::Message() << "call " << k << " fails");
    FaultyEnv env;
    const RowStoreSetup setup{.tables = {{1, 64}}, .env = &env};
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open(setup));
    Batch batch;
    for (uint64_t i = 0; i < 200; ++i) batch.Add({i, 1}, MakeRow({i, 1}, 0, 64));
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
    env.FailCall(env.calls() + k, absl::ResourceExhaustedError("injected: disk full"));
    const absl::Status status = store->PrepareSnapshot(9);
    if (env.faults() == 0) {
      HOTROW_EXPECT_OK(status);
      break;
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto ids, store->ListSnapshots());
    HOTROW_ASSERT_OK_AND_ASSIGN(Found found, FindAll(*store, batch.keys));
    EXPECT_EQ(found.rows, batch.rows);
    if (status.ok()) {
      // A store may try a failed write again by itself; the snapshot must then be whole.
      EXPECT_TRUE(GetParam().tries_writes_again);
      EXPECT_THAT(ids, testing::ElementsAre(9));
    } else {
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kResourceExhausted, testing::HasSubstr("injected")));
      EXPECT_TRUE(ids.empty());
      // The same id may be tried again.
      const absl::Status second = store->PrepareSnapshot(9);
      if (GetParam().failed_sync_is_final && !second.ok()) {
        EXPECT_THAT(second, StatusIs(absl::StatusCode::kResourceExhausted,
                                     testing::HasSubstr("a sync failed")));
        HOTROW_ASSERT_OK_AND_ASSIGN(found, FindAll(*store, batch.keys));
        EXPECT_EQ(found.rows, batch.rows);
        continue;
      }
      HOTROW_ASSERT_OK(second);
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap then, Dump(*store));
    store.reset();
    RowStoreSetup again = setup;
    again.open_at = 9;
    HOTROW_ASSERT_OK_AND_ASSIGN(store, Open(again));
    HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap now, Dump(*store));
    EXPECT_EQ(now, then);
  }
}

TEST_P(RowStoreContractTest, OpeningReportsEveryFaultAndShortReadsAreNone) {
  HOTROW_SKIP_UNLESS_KIND_USES_ENV();
  FaultyEnv env;
  RowStoreSetup setup{.tables = {{1, 64}}, .env = &env};
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open(setup));
  Batch batch;
  for (uint64_t i = 0; i < 200; ++i) batch.Add({i, 1}, MakeRow({i, 1}, 0, 64));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(9));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap then, Dump(*store));
  store.reset();
  setup.open_at = 9;
  for (int64_t k = 0;; ++k) {
    SCOPED_TRACE(testing::Message() << "call " << k);
    int64_t faults = env.faults();
    env.ShortenCall(env.calls() + k);
    HOTROW_ASSERT_OK_AND_ASSIGN(store, Open(setup));
    HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap now, Dump(*store));
    EXPECT_EQ(now, then);
    store.reset();
    faults = env.faults();
    env.FailCall(env.calls() + k, absl::DataLossError("injected"));
    auto failed = Open(setup);
    if (env.faults() == faults) {
      HOTROW_EXPECT_OK(failed);
      break;
    }
    EXPECT_THAT(failed, StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("injected")));
  }
}

TEST_P(RowStoreContractTest, OverBudgetKeepsEverythingAndSaysSo) {
  if (!GetParam().exact_memory_budget) {
    GTEST_SKIP() << GetParam().name << " keeps rows on disk and its memory only nearly in a budget";
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(
      auto store, Open({.tables = {{1, 256}, {2, 48}}, .budget_bytes = int64_t{1} << 20}));
  RowMap reference;
  absl::Status status;
  for (uint64_t i = 0; status.ok(); ++i) {
    ASSERT_LT(i, 10'000u) << "the budget is no limit";
    Batch batch;
    for (uint64_t j = 0; j < 32; ++j) {
      const RowKey key{Mix64(32 * i + j), j % 2 == 0 ? 1u : 2u};
      batch.Add(key, MakeRow(key, 0, store->row_bytes(key.table)));
    }
    status = batch.InsertInto(*store);
    if (!status.ok()) {
      // Some rows of the last batch may be there, whole.
      HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, batch.keys));
      for (size_t j = 0; j < batch.keys.size(); ++j) {
        if (found.found[j] == 0) continue;
        EXPECT_EQ(found.rows[j], batch.rows[j]);
        reference[{batch.keys[j].table, batch.keys[j].key}] = batch.rows[j];
      }
      break;
    }
    for (size_t j = 0; j < batch.keys.size(); ++j) {
      reference[{batch.keys[j].table, batch.keys[j].key}] = batch.rows[j];
    }
    ASSERT_LE(store->Stats().used_bytes, int64_t{1} << 20);
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                               testing::AllOf(testing::HasSubstr(GetParam().store_name),
                                              testing::HasSubstr("1048576"))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*store));
  EXPECT_EQ(rows, reference);
  EXPECT_LE(store->Stats().peak_bytes, int64_t{1} << 20);
  // A full store still takes snapshots and still assigns rows that it has.
  HOTROW_EXPECT_OK(store->PrepareSnapshot(1));
  Batch again;
  again.Add({reference.begin()->first.second, reference.begin()->first.first},
            MakeRow({1, 1}, 99, store->row_bytes(reference.begin()->first.first)));
  HOTROW_EXPECT_OK(again.InsertInto(*store));
}

TEST_P(RowStoreContractTest, RandomOperationsMatchAMap) {
  for (const uint64_t seed : Seeds(ForSanitizer(12, 5))) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    MemEnv env;
    RowStoreSetup setup{.tables = ManyTables(), .dir = NewDir(), .env = &env};
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open(setup));
    RandomStream random(seed, RandomPurpose::kTest);
    RowMap reference;
    std::map<SnapshotId, RowMap> snapshots;
    // Few keys make collisions, many make growth.
    const uint64_t key_range = random.Below(2) == 0 ? 50 : 4000;
    const auto random_key = [&]() -> RowKey {
      return {random.Below(key_range) - key_range / 2,  // both ends of the 64 bits
              setup.tables[random.Below(setup.tables.size())].table};
    };
    for (int step = 0; step < 60; ++step) {
      const uint64_t n = random.Below(3) == 0 ? random.Below(3) : random.Below(800);
      switch (random.Below(8)) {
        case 0:
        case 1:
        case 2: {
          Batch batch;
          for (uint64_t i = 0; i < n; ++i) {
            const RowKey key = random_key();
            batch.Add(key, MakeRow(key, random.Next64(), store->row_bytes(key.table)));
            reference[{key.table, key.key}] = batch.rows.back();
          }
          HOTROW_ASSERT_OK(batch.InsertInto(*store));
          break;
        }
        case 3: {
          std::vector<RowKey> keys;
          for (uint64_t i = 0; i < n; ++i) {
            keys.push_back(random_key());
            reference.erase({keys.back().table, keys.back().key});
          }
          HOTROW_ASSERT_OK(store->Erase(keys));
          break;
        }
        case 4: {
          HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*store));
          ASSERT_EQ(rows, reference);
          break;
        }
        case 5: {
          const auto id = static_cast<SnapshotId>(step + 1);
          HOTROW_ASSERT_OK(store->PrepareSnapshot(id));
          snapshots[id] = reference;
          break;
        }
        case 6: {
          if (snapshots.empty() || random.Below(2) == 0) break;
          auto at = snapshots.begin();
          std::advance(at, random.Below(snapshots.size()));
          store.reset();
          setup.open_at = at->first;
          HOTROW_ASSERT_OK_AND_ASSIGN(store, Open(setup));
          reference = at->second;
          // Later snapshots are of a future that did not happen.
          while (snapshots.rbegin()->first != at->first) {
            HOTROW_ASSERT_OK(store->DropSnapshot(snapshots.rbegin()->first));
            snapshots.erase(std::prev(snapshots.end()));
          }
          break;
        }
        default: {
          std::vector<RowKey> keys;
          for (uint64_t i = 0; i < n; ++i) keys.push_back(random_key());
          HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, keys));
          for (size_t i = 0; i < keys.size(); ++i) {
            const auto wanted = reference.find({keys[i].table, keys[i].key});
            ASSERT_EQ(found.found[i], wanted == reference.end() ? 0 : 1);
            if (wanted != reference.end()) {
              ASSERT_EQ(found.rows[i], wanted->second);
            }
          }
        }
      }
      ASSERT_EQ(store->Stats().rows, static_cast<int64_t>(reference.size()));
    }
  }
}

// Eight threads insert, find, erase, iterate and take snapshots of the same few keys. What is
// read must be a whole row of its key, of a version that was written.
TEST_P(RowStoreContractTest, NoTornRowsUnderConcurrency) {
  constexpr uint64_t kKeys = 300;
  constexpr uint64_t kVersions = 4;
  constexpr int64_t kRowBytes = 200;
  const RowStoreSetup setup{.tables = {{1, kRowBytes}, {2, kRowBytes}}};
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open(setup));
  std::map<std::pair<uint32_t, uint64_t>, std::vector<Row>> legal;
  for (uint32_t table = 1; table <= 2; ++table) {
    for (uint64_t key = 0; key < kKeys; ++key) {
      for (uint64_t version = 0; version < kVersions; ++version) {
        legal[{table, key}].push_back(MakeRow({key, table}, version, kRowBytes));
      }
    }
  }
  const auto is_legal = [&](const RowKey& key, std::span<const std::byte> row) {
    const std::vector<Row>& rows = legal.at({key.table, key.key});
    return std::any_of(rows.begin(), rows.end(),
                       [&](const Row& wanted) { return std::ranges::equal(wanted, row); });
  };
  std::atomic<int64_t> bad{0};
  const auto work = [&](uint64_t thread) {
    RandomStream random(thread + 1, RandomPurpose::kTest);
    for (int step = 0; step < 60; ++step) {
      Batch batch;
      for (uint64_t i = 0; i < 100; ++i) {
        const RowKey key{random.Below(kKeys), static_cast<uint32_t>(1 + random.Below(2))};
        batch.Add(key, legal.at({key.table, key.key})[random.Below(kVersions)]);
      }
      switch (thread % 4) {
        case 0:
          if (!batch.InsertInto(*store).ok()) ++bad;
          if (step % 8 == 0 && !store->Erase(std::span(batch.keys).first(40)).ok()) ++bad;
          break;
        case 1:
        case 2: {
          const auto found = FindAll(*store, batch.keys);
          if (!found.ok()) {
            ++bad;
            break;
          }
          for (size_t i = 0; i < batch.keys.size(); ++i) {
            if (found->found[i] == 1 && !is_legal(batch.keys[i], found->rows[i])) ++bad;
          }
          break;
        }
        default: {
          if (step % 10 == 0 && !store->PrepareSnapshot(1000 * thread + step + 1).ok()) ++bad;
          const auto rows = Dump(*store);
          if (!rows.ok()) ++bad;
          for (const auto& [key, row] : rows.ok() ? *rows : RowMap()) {
            if (!is_legal({key.second, key.first}, row)) ++bad;
          }
        }
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 8; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad.load(), 0);
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*store));
  EXPECT_EQ(store->Stats().rows, static_cast<int64_t>(rows.size()));
}

// --- Reading a snapshot without opening the store ------------------------------------------------

TEST_P(RowStoreContractTest, ASnapshotReaderVisitsEveryRowOnceAndChangesNothing) {
  RowMap at_seven;
  RowMap at_nine;
  RowMap at_the_end;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = ManyTables()}));
    const auto write = [&](uint64_t begin, uint64_t end, uint64_t version) {
      Batch batch;
      for (uint64_t i = begin; i < end; ++i) {
        for (const StoreTable& table : store->tables()) {
          const RowKey key = {Mix64(i), table.table};
          batch.Add(key, MakeRow(key, version, table.row_bytes));
        }
      }
      HOTROW_ASSERT_OK(batch.InsertInto(*store));
    };
    const auto erase = [&](uint64_t begin, uint64_t end) {
      std::vector<RowKey> keys;
      for (uint64_t i = begin; i < end; ++i) keys.push_back({Mix64(i), 70'000});
      HOTROW_ASSERT_OK(store->Erase(keys));
    };
    write(0, 500, 1);
    write(100, 300, 2);  // old versions, which must not come
    erase(0, 150);
    HOTROW_ASSERT_OK_AND_ASSIGN(at_seven, Dump(*store));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(7));
    HOTROW_ASSERT_OK(store->CommitSnapshot(7));
    erase(300, 400);
    write(250, 600, 3);
    HOTROW_ASSERT_OK_AND_ASSIGN(at_nine, Dump(*store));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(9));  // and no commit
    write(10, 20, 4);
    HOTROW_ASSERT_OK(store->Flush());
    HOTROW_ASSERT_OK_AND_ASSIGN(at_the_end, Dump(*store));
    HOTROW_ASSERT_OK(store->Flush());
  }
  ASSERT_EQ(at_seven.size(), 5 * 500u - 150);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto files, AllFiles());
  const auto expect = [&](SnapshotId snapshot, const RowMap& rows) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, OpenSnapshot(snapshot));
    const std::vector<StoreTable> wanted = ManyTables();
    ASSERT_EQ(reader->tables().size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(reader->tables()[i].table, wanted[i].table);
      EXPECT_EQ(reader->tables()[i].row_bytes, wanted[i].row_bytes);
    }
    EXPECT_EQ(reader->rows(), static_cast<int64_t>(rows.size()));
    for (int time = 0; time < 2; ++time) {
      HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap read, Dump(*reader));
      EXPECT_TRUE(read == rows) << "snapshot " << snapshot << ", time " << time;
    }
    int visits = 0;
    EXPECT_THAT(reader->Iterate([&](const RowKey&, std::span<const std::byte>) -> absl::Status {
      return ++visits == 10 ? absl::AbortedError("enough") : absl::OkStatus();
    }),
                StatusIs(absl::StatusCode::kAborted, testing::HasSubstr("enough")));
    EXPECT_EQ(visits, 10);
  };
  expect(7, at_seven);
  expect(9, at_nine);
  if (GetParam().has_present_state) expect(0, at_the_end);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto files_after, AllFiles());
  EXPECT_TRUE(files == files_after);
}

// Whoever has the store open goes on meanwhile: writes, erases, flushes, takes and drops other
// snapshots, has segments cleaned.
TEST_P(RowStoreContractTest, ASnapshotIsReadWhileItsStoreIsOpenAndWrittenTo) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = ManyTables()}));
  const auto write = [&](uint64_t begin, uint64_t end, uint64_t version) {
    Batch batch;
    for (uint64_t i = begin; i < end; ++i) {
      for (const StoreTable& table : store->tables()) {
        const RowKey key = {Mix64(i), table.table};
        batch.Add(key, MakeRow(key, version, table.row_bytes));
      }
    }
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
  };
  write(0, 300, 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap expected, Dump(*store));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(7));
  HOTROW_ASSERT_OK(store->CommitSnapshot(7));
  SnapshotReaderOptions options = {
      .path = dir_, .snapshot = 7, .env = GetParam().uses_env ? &env_ : nullptr};
  std::atomic<bool> done = false;
  std::thread reads([&] {
    for (int time = 0; time < ForSanitizer(12, 4); ++time) {
      const auto reader = GetParam().open_snapshot(options);
      HOTROW_EXPECT_OK(reader);
      if (!reader.ok()) break;
      const auto rows = Dump(**reader);
      HOTROW_EXPECT_OK(rows);
      EXPECT_TRUE(rows.ok() && *rows == expected) << "time " << time;
    }
    done = true;
  });
  RandomStream random(1, RandomPurpose::kTest);
  for (SnapshotId round = 100; !done && !HasFailure(); ++round) {
    for (int part = 0; part < 4; ++part) {
      const uint64_t begin = random.Below(280);
      write(begin, begin + 20, round);
      const RowKey key = {Mix64(random.Below(300)), 70'000};
      HOTROW_EXPECT_OK(store->Erase({&key, 1}));
    }
    HOTROW_EXPECT_OK(store->Flush());
    HOTROW_EXPECT_OK(store->PrepareSnapshot(round));
    HOTROW_EXPECT_OK(store->DropSnapshot(round));
  }
  reads.join();
  // The latest state changes, so a lock keeps readers out; MemEnv has none.
  if (!GetParam().has_present_state || GetParam().uses_env) return;
  options.snapshot = 0;
  EXPECT_THAT(GetParam().open_snapshot(options),
              StatusIs(absl::StatusCode::kFailedPrecondition, testing::HasSubstr("is open")));
}

TEST_P(RowStoreContractTest, ASnapshotReaderSaysWhatIsNotThere) {
  using testing::HasSubstr;
  EXPECT_THAT(GetParam().open_snapshot({}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("path")));
  EXPECT_THAT(GetParam().open_snapshot({.path = dir_, .memory_budget_bytes = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("memory_budget_bytes")));
  EXPECT_THAT(OpenSnapshot(1), StatusIs(absl::StatusCode::kNotFound, HasSubstr(dir_)));
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{1, 8}}}));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  }
  EXPECT_THAT(OpenSnapshot(2),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       testing::AllOf(HasSubstr(dir_), HasSubstr("no snapshot 2"))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, OpenSnapshot(1));
  EXPECT_THAT(reader->rows(), testing::AnyOf(0, -1));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*reader));
  EXPECT_TRUE(rows.empty());
  if (GetParam().has_present_state) return;
  EXPECT_THAT(OpenSnapshot(0), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not 0")));
}

TEST_P(RowStoreContractTest, ASnapshotReaderKeepsToItsMemory) {
  if (!GetParam().exact_memory_budget) {
    GTEST_SKIP() << GetParam().name << " has no exact budget";
  }
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{1, 64}}}));
    Batch batch;
    for (uint64_t i = 0; i < 20'000; ++i) batch.Add({i, 1}, MakeRow({i, 1}, 0, 64));
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  }
  int refused = 0;
  int read = 0;
  for (int64_t budget = 4096; budget <= int64_t{16} << 20; budget *= 2) {
    const auto reader = OpenSnapshot(1, budget);
    const absl::StatusOr<RowMap> rows =
        reader.ok() ? Dump(**reader) : absl::StatusOr<RowMap>(reader.status());
    if (rows.ok()) {
      ++read;
      EXPECT_EQ(rows->size(), 20'000u);
      continue;
    }
    ++refused;
    EXPECT_EQ(read, 0) << "more memory must do as well";
    EXPECT_THAT(rows.status(), StatusIs(absl::StatusCode::kResourceExhausted,
                                        testing::HasSubstr(std::to_string(budget))));
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(read, 0);
}

// --- What a snapshot captures --------------------------------------------------------------------

// The callback comes once, before the call returns; what is written after it is not in the
// snapshot, what was written before the call is.
TEST_P(RowStoreContractTest, ASnapshotHasWhatWasWrittenBeforeAndNothingThatCameAfterItsCapture) {
  constexpr int kBatches = 40;
  constexpr uint64_t kKeys = 200;
  const std::vector<StoreTable> tables = {{.table = 1, .row_bytes = 96}};
  std::map<SnapshotId, int> captured_at;  // the last batch that is in
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = tables}));
    const auto write = [&](int version) {
      Batch batch;
      for (uint64_t k = 0; k < kKeys; ++k) {
        batch.Add({k, 1}, MakeRow({k, 1}, static_cast<uint64_t>(version), 96));
      }
      return batch.InsertInto(*store);
    };
    int version = 0;
    for (SnapshotId id = 1; id <= 4; ++id) {
      for (int i = 0; i < kBatches / 4; ++i) HOTROW_ASSERT_OK(write(++version));
      captured_at[id] = version;
      store->TidyForSnapshot();
      std::mutex mutex;
      std::condition_variable changed;
      int captures = 0;
      bool returned = false;
      absl::Status prepared;
      std::thread preparing([&] {
        absl::Status status = store->PrepareSnapshot(id, [&] {
          const std::lock_guard lock(mutex);
          ++captures;
          changed.notify_all();
        });
        const std::lock_guard lock(mutex);
        prepared = std::move(status);
        returned = true;
        changed.notify_all();
      });
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return captures > 0 || returned; });
        EXPECT_EQ(captures, 1);
      }
      // Now at once.
      HOTROW_EXPECT_OK(write(++version));
      preparing.join();
      HOTROW_ASSERT_OK(prepared);
      EXPECT_EQ(captures, 1);
    }
  }
  for (const auto& [id, version] : captured_at) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, OpenSnapshot(id));
    HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*reader));
    ASSERT_EQ(rows.size(), kKeys);
    for (const auto& [key, row] : rows) {
      ASSERT_EQ(row, MakeRow({key.second, 1}, static_cast<uint64_t>(version), 96))
          << "snapshot " << id << ", key " << key.second;
    }
  }
}

// --- Identities of snapshots ---------------------------------------------------------------------

TEST_P(RowStoreContractTest, SnapshotsHaveIdentitiesThatSurviveOpeningAgain) {
  const RowStoreSetup setup{.tables = {{11, 8}, {22, 16}}};
  SnapshotInfo empty;
  SnapshotInfo five;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open(setup));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(3));
    Batch batch;
    for (uint64_t i = 0; i < 30; ++i) batch.Add({i, 11}, MakeRow({i, 11}, 0, 8));
    for (uint64_t i = 0; i < 7; ++i) batch.Add({i, 22}, MakeRow({i, 22}, 0, 16));
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
    HOTROW_ASSERT_OK(store->Erase(std::span(batch.keys).first(10)));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(5));
    HOTROW_ASSERT_OK_AND_ASSIGN(empty, store->DescribeSnapshot(3));
    HOTROW_ASSERT_OK_AND_ASSIGN(five, store->DescribeSnapshot(5));
    EXPECT_EQ(empty.id, 3u);
    EXPECT_EQ(five.id, 5u);
    EXPECT_FALSE(five.committed);
    EXPECT_TRUE(empty.identity.known());
    EXPECT_TRUE(five.identity.known());
    EXPECT_NE(empty.identity, five.identity);
    // Rows of each table, where the kind knows them.
    EXPECT_THAT(empty.table_rows, testing::AnyOf(testing::IsEmpty(), testing::ElementsAre(0, 0)));
    EXPECT_THAT(five.table_rows, testing::AnyOf(testing::IsEmpty(), testing::ElementsAre(20, 7)));
    HOTROW_ASSERT_OK(store->CommitSnapshot(5));
    HOTROW_ASSERT_OK_AND_ASSIGN(const SnapshotInfo committed, store->DescribeSnapshot(5));
    EXPECT_EQ(committed.committed, GetParam().keeps_commits);
    EXPECT_EQ(committed.identity, five.identity);
    EXPECT_THAT(store->DescribeSnapshot(4),
                StatusIs(absl::StatusCode::kFailedPrecondition, testing::HasSubstr("snapshot 4")));
  }
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, OpenSnapshot(5));
    EXPECT_EQ(reader->info().id, 5u);
    EXPECT_EQ(reader->info().identity, five.identity);
    EXPECT_EQ(reader->info().table_rows, five.table_rows);
  }
  RowStoreSetup again = setup;
  again.open_at = 5;
  again.open_at_identity = five.identity;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open(again));
  EXPECT_EQ(store->Stats().rows, 27);
  HOTROW_ASSERT_OK_AND_ASSIGN(const SnapshotInfo later, store->DescribeSnapshot(5));
  EXPECT_EQ(later.identity, five.identity);
  EXPECT_EQ(later.committed, GetParam().keeps_commits);
  EXPECT_EQ(later.table_rows, five.table_rows);
  // The same rows under another name are another snapshot.
  HOTROW_ASSERT_OK(store->PrepareSnapshot(6));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SnapshotInfo six, store->DescribeSnapshot(6));
  EXPECT_NE(six.identity, five.identity);
}

TEST_P(RowStoreContractTest, ANameThatIsUsedAgainGetsAnotherIdentity) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open({.tables = {{1, 8}}}));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(5));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SnapshotInfo first, store->DescribeSnapshot(5));
  HOTROW_ASSERT_OK(store->DropSnapshot(5));
  EXPECT_THAT(store->DescribeSnapshot(5),
              StatusIs(absl::StatusCode::kFailedPrecondition, testing::HasSubstr("snapshot 5")));
  const absl::Status prepared = store->PrepareSnapshot(5);
  if (absl::IsFailedPrecondition(prepared)) return;  // a kind may remember its names
  HOTROW_ASSERT_OK(prepared);
  HOTROW_ASSERT_OK_AND_ASSIGN(const SnapshotInfo second, store->DescribeSnapshot(5));
  EXPECT_NE(first.identity, second.identity);
}

TEST_P(RowStoreContractTest, ASnapshotOfAnotherIdentityIsRefusedAndNothingChanges) {
  using testing::HasSubstr;
  const RowStoreSetup setup{.tables = {{1, 32}}};
  Batch batch;
  Batch later;
  for (uint64_t i = 0; i < 100; ++i) batch.Add({i, 1}, MakeRow({i, 1}, 1, 32));
  for (uint64_t i = 50; i < 200; ++i) later.Add({i, 1}, MakeRow({i, 1}, 2, 32));
  UniqueId identity;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open(setup));
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(9));
    HOTROW_ASSERT_OK(later.InsertInto(*store));
    HOTROW_ASSERT_OK(store->Flush());
    HOTROW_ASSERT_OK_AND_ASSIGN(const SnapshotInfo info, store->DescribeSnapshot(9));
    identity = info.identity;
    EXPECT_THAT(info.table_rows, testing::AnyOf(testing::IsEmpty(), testing::ElementsAre(100)));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto files, AllFiles());
  RowStoreSetup wrong = setup;
  wrong.open_at = 9;
  wrong.open_at_identity = {.high = identity.high, .low = identity.low ^ 1};
  const auto says_both =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               testing::AllOf(HasSubstr("snapshot 9"), HasSubstr(identity.ToHex()),
                              HasSubstr(wrong.open_at_identity.ToHex())));
  EXPECT_THAT(Open(wrong), says_both);
  EXPECT_THAT(GetParam().open_snapshot({.path = dir_,
                                        .snapshot = 9,
                                        .identity = wrong.open_at_identity,
                                        .env = GetParam().uses_env ? &env_ : nullptr}),
              says_both);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto files_after, AllFiles());
  EXPECT_TRUE(files == files_after);
  if (GetParam().has_present_state) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, Open(setup));
    HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, later.keys));
    EXPECT_EQ(found.rows, later.rows);
  }
  RowStoreSetup right = setup;
  right.open_at = 9;
  right.open_at_identity = identity;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, Open(right));
  HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, batch.keys));
  EXPECT_EQ(found.rows, batch.rows);
  EXPECT_EQ(store->Stats().rows, 100);
}

// Rows that have aged by the lines of their table may go at any time; no other row does. Those of
// table 3 age by their scores.
TEST_P(RowStoreContractTest, AgedRowsAreDroppedAndNoOthers) {
  constexpr int64_t kStepOffset = 200;
  constexpr int64_t kScoreOffset = 208;
  constexpr uint64_t kKeys = 4000;
  constexpr uint32_t kSteps = 16;
  constexpr uint32_t kTtl = 5;
  RowStoreSetup setup = {.tables = {{1, 512}, {2, 512}, {3, 512}}};
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open(setup));
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> last_steps;
  const auto score_of = [](uint64_t key, uint32_t step) {
    return static_cast<float>((key * 7 + step * 3) % 16) - 8;
  };
  const auto row_of = [&](const RowKey& key) {
    const uint32_t step = last_steps.at({key.table, key.key});
    Row row = MakeRow(key, step, 512);
    std::memcpy(row.data() + kStepOffset, &step, sizeof(step));
    const float score = score_of(key.key, step);
    std::memcpy(row.data() + kScoreOffset, &score, sizeof(score));
    return row;
  };
  uint32_t line = 0;
  RowLines scores;
  const auto check = [&](const RowMap& rows) {
    int64_t aged = 0;
    int64_t left = 0;
    for (const auto& [name, step] : last_steps) {
      const auto row = rows.find(name);
      const bool may_go =
          step != 0 &&
          (name.first == 1 ? step < line
                           : name.first == 3 && scores.HasAged(step, score_of(name.second, step)));
      aged += may_go ? 1 : 0;
      left += may_go && row != rows.end() ? 1 : 0;
      if (may_go && row == rows.end()) continue;
      ASSERT_TRUE(row != rows.end()) << "table " << name.first << " key " << name.second;
      EXPECT_EQ(row->second, row_of({name.second, name.first}));
    }
    EXPECT_GT(aged, 0);
    EXPECT_LE(2 * left, aged);  // those in a segment that is being written
  };
  RandomStream random(1, RandomPurpose::kTest);
  int64_t dropped = 0;
  for (uint32_t step = 0; step < kSteps; ++step) {
    Batch batch;
    for (uint64_t i = 0; i < kKeys / 4; ++i) {
      const RowKey key = {random.Below(kKeys), 1 + static_cast<uint32_t>(random.Below(3))};
      last_steps[{key.table, key.key}] = step;
      batch.Add(key, row_of(key));
    }
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
    line = step < kTtl ? 0 : step - kTtl;
    if (step % 3 == 2) {
      scores.Add({step - 1, ScoreRange(static_cast<float>(random.Below(4)))});
      scores.Add({step / 2, ScoreRange(6)});
    }
    store->SetAgeLines(std::vector<RowAgeLine>{
        {.table = 1, .lines = {.age = line}, .fields = {.step_offset = kStepOffset}},
        {.table = 2},
        {.table = 3,
         .lines = scores,
         .fields = {.step_offset = kStepOffset, .score_offset = kScoreOffset}}});
    HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t some, store->DropAged(1 + random.Below(2 * kKeys)));
    dropped += some;
  }
  // The last segment of an SSD store is looked at when it is full: all others are by now.
  for (int i = 0; i < 8; ++i) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t some, store->DropAged(2 * kKeys));
    dropped += some;
  }
  EXPECT_GT(dropped, 0);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*store));
    ASSERT_NO_FATAL_FAILURE(check(rows));
  }
  if (!GetParam().has_present_state) return;
  HOTROW_ASSERT_OK(store->Flush());
  store.reset();
  HOTROW_ASSERT_OK_AND_ASSIGN(store, Open(setup));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*store));
  ASSERT_NO_FATAL_FAILURE(check(rows));
}

// What a snapshot holds stays, also where it ages later.
TEST_P(RowStoreContractTest, RowsThatAgeLaterStayInTheSnapshot) {
  constexpr uint64_t kKeys = 3000;
  RowStoreSetup setup = {.tables = {{1, 512}}};
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, Open(setup));
  Batch batch;
  for (uint64_t key = 0; key < kKeys; ++key) {
    Row row = MakeRow({key, 1}, 0, 512);
    const uint32_t step = 7;
    std::memcpy(row.data(), &step, sizeof(step));
    batch.Add({key, 1}, std::move(row));
  }
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(9));
  HOTROW_ASSERT_OK(store->CommitSnapshot(9));
  store->SetAgeLines(std::vector<RowAgeLine>{{.table = 1, .lines = {.age = 8}}});
  for (int i = 0; i < 4; ++i) HOTROW_ASSERT_OK(store->DropAged(kKeys).status());
  EXPECT_LT(store->Stats().rows, static_cast<int64_t>(kKeys));
  HOTROW_ASSERT_OK(store->Flush());
  store.reset();
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, OpenSnapshot(9));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*reader));
  EXPECT_EQ(rows.size(), kKeys);
  for (size_t i = 0; i < batch.keys.size(); ++i) {
    EXPECT_EQ(rows.at({1, batch.keys[i].key}), batch.rows[i]);
  }
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_STORE_ROW_STORE_CONTRACT_H_
