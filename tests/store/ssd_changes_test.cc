#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "store/open.h"
#include "store/ssd/ssd_store.h"
#include "store/store_kind.h"
#include "tests/store/ssd_test_util.h"
#include "tests/store/store_test_util.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::Dump;
using test::kKiB;
using test::MakeRow;
using test::MemEnv;
using test::Row;
using test::RowMap;
using test::SmallSsd;
using test::SsdTables;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Snapshots = std::map<SnapshotId, RowMap>;

int64_t RowBytes(uint32_t table) {
  for (const StoreTable& t : SsdTables()) {
    if (t.table == table) return t.row_bytes;
  }
  return 0;
}

absl::Status Put(RowStore& store, const RowKey& key, uint64_t version) {
  const Row row = MakeRow(key, version, RowBytes(key.table));
  const std::byte* const pointer = row.data();
  return store.InsertOrAssign({&key, 1}, {&pointer, 1});
}

absl::StatusOr<std::unique_ptr<SnapshotChanges>> Open(Env& env, SnapshotId parent,
                                                      SnapshotId child) {
  return OpenSnapshotChanges(StoreKind::kSsd, {.path = "/store", .snapshot = child, .env = &env},
                             {.snapshot = parent});
}

// The rows of the parent, changed. Fails where a key comes twice.
absl::Status Apply(SnapshotChanges& changes, RowMap* rows, int64_t* entries = nullptr) {
  std::map<RowMap::key_type, int> seen;
  HOTROW_RETURN_IF_ERROR(changes.Iterate(
      [&](const RowKey& key, std::span<const std::byte> row) {
        ++seen[{key.table, key.key}];
        (*rows)[{key.table, key.key}] = Row(row.begin(), row.end());
        return absl::OkStatus();
      },
      [&](const RowKey& key) {
        ++seen[{key.table, key.key}];
        rows->erase({key.table, key.key});
        return absl::OkStatus();
      }));
  if (entries != nullptr) *entries = std::ssize(seen);
  for (const auto& [key, times] : seen) {
    if (times != 1) return absl::InternalError(absl::StrCat("key ", key.second, " comes twice"));
  }
  return absl::OkStatus();
}

// Stores that are being cleaned all the time, with several snapshots: what can be told of two
// of them is right.
TEST(SsdChangesTest, AppliedToTheParentTheyGiveTheSnapshot) {
  int64_t told = 0;
  int64_t asked = 0;
  for (const uint64_t seed : test::Seeds(test::SlowRuns(60, 6))) {
    SCOPED_TRACE(absl::StrCat("HOTROW_TEST_SEED=", seed));
    MemEnv env;
    RandomStream random(seed, RandomPurpose::kTest);
    Snapshots snapshots;
    SsdStoreOptions options = SmallSsd(&env, 60);
    bool expire = false;
    options.expired = [&](const RowKey& key, std::span<const std::byte>) {
      return expire && key.key % 7 == 0;
    };
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    for (int op = 0; op < 1200; ++op) {
      const uint32_t table = SsdTables()[random.Below(4)].table;  // not the widest
      const RowKey key = {random.Below(60), table};
      if (random.Below(5) == 0) {
        HOTROW_ASSERT_OK(store->Erase({&key, 1}));
      } else {
        HOTROW_ASSERT_OK(Put(*store, key, random.Below(1'000'000)));
      }
      expire = op > 500;
      if (op % 150 == 149) {
        const auto id = static_cast<SnapshotId>(op);
        HOTROW_ASSERT_OK(store->PrepareSnapshot(id));
        HOTROW_ASSERT_OK_AND_ASSIGN(snapshots[id], Dump(*store));
        if (snapshots.size() > 3) {  // the disk is small
          HOTROW_ASSERT_OK(store->DropSnapshot(snapshots.begin()->first));
          snapshots.erase(snapshots.begin());
        }
        if (snapshots.size() > 1) {  // it stays open
          HOTROW_ASSERT_OK_AND_ASSIGN(const auto changes,
                                      Open(env, std::prev(snapshots.end(), 2)->first, id));
          ++asked;
          if (changes != nullptr) {
            ++told;
            RowMap applied = std::prev(snapshots.end(), 2)->second;
            HOTROW_ASSERT_OK(Apply(*changes, &applied));
            EXPECT_TRUE(applied == snapshots[id]);
          }
        }
      }
      if (op % 400 == 399) {
        HOTROW_ASSERT_OK(store->CleanAll());
      }
      if (op == 700) {  // a run that goes on in another process
        HOTROW_ASSERT_OK(store->Close());
        store.reset();
        HOTROW_ASSERT_OK_AND_ASSIGN(store, SsdStore::Open(options));
      }
    }
    HOTROW_ASSERT_OK(store->Close());
    store.reset();
    for (const auto& [child, rows] : snapshots) {
      for (const auto& [parent, old_rows] : snapshots) {
        if (parent >= child) continue;
        SCOPED_TRACE(absl::StrCat(parent, " to ", child));
        ++asked;
        HOTROW_ASSERT_OK_AND_ASSIGN(const auto changes, Open(env, parent, child));
        if (changes == nullptr) continue;
        ++told;
        RowMap applied = old_rows;
        HOTROW_ASSERT_OK(Apply(*changes, &applied));
        EXPECT_TRUE(applied == rows);
      }
    }
  }
  EXPECT_GT(told, asked / 4) << "of " << asked;
}

// Only whoever has the store open can break the promise to keep them.
TEST(SsdChangesTest, ASnapshotThatIsDroppedMeanwhileIsNamed) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env, 60)));
  for (const SnapshotId id : {1, 2, 3}) {
    HOTROW_ASSERT_OK(Put(*store, {id, 70'000}, id));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(id));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto first, Open(env, 1, 2));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto second, Open(env, 2, 3));
  HOTROW_ASSERT_OK(store->DropSnapshot(1));
  RowMap rows;
  EXPECT_THAT(Apply(*first, &rows),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("/store"), HasSubstr("snapshot 1 was dropped"))));
  HOTROW_EXPECT_OK(Apply(*second, &rows));
}

// A store that was opened at an older snapshot has lost what came after it.
TEST(SsdChangesTest, ASnapshotThatDoesNotFollowIsNotTold) {
  MemEnv env;
  RowMap first;
  SsdStoreOptions options = SmallSsd(&env, 60);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    // Most of a segment, so that it is not cleaned.
    for (uint64_t i = 0; i < 130; ++i) {
      HOTROW_ASSERT_OK(Put(*store, {i, 70'000}, 1));
      first[{70'000, i}] = MakeRow({i, 70'000}, 1, 64);
    }
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
    HOTROW_ASSERT_OK(store->CommitSnapshot(1));
    HOTROW_ASSERT_OK(Put(*store, {5, 70'000}, 2));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(2));
    HOTROW_ASSERT_OK(store->CommitSnapshot(2));
    HOTROW_ASSERT_OK(store->Close());
  }
  RowMap third = first;
  {
    options.open_at = 1;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    HOTROW_ASSERT_OK(Put(*store, {6, 70'000}, 3));
    third[{70'000, 6}] = MakeRow({6, 70'000}, 3, 64);
    HOTROW_ASSERT_OK(store->PrepareSnapshot(3, [] {}));
    HOTROW_ASSERT_OK(store->Close());
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto of_second, Open(env, 2, 3));
  EXPECT_EQ(of_second, nullptr);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto of_first, Open(env, 1, 3));
  ASSERT_NE(of_first, nullptr);
  HOTROW_ASSERT_OK(Apply(*of_first, &first));
  EXPECT_TRUE(first == third);
}

// What is read and given is what was written, not the table.
TEST(SsdChangesTest, TheCostIsThatOfWhatWasWritten) {
  MemEnv env;
  SsdStoreOptions options = SmallSsd(&env, 40, 256 * kKiB);
  RowMap rows;
  RowMap expected;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    for (uint64_t i = 0; i < 6000; ++i) {
      HOTROW_ASSERT_OK(Put(*store, {i, UINT32_MAX}, 1));
      rows[{UINT32_MAX, i}] = MakeRow({i, UINT32_MAX}, 1, 512);
    }
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
    expected = rows;
    for (uint64_t i = 0; i < 60; ++i) {
      const RowKey key = {100 * i, UINT32_MAX};
      if (i % 3 == 0) {
        HOTROW_ASSERT_OK(store->Erase({&key, 1}));
        expected.erase({key.table, key.key});
      } else {
        HOTROW_ASSERT_OK(Put(*store, key, 2));
        expected[{key.table, key.key}] = MakeRow(key, 2, 512);
      }
    }
    HOTROW_ASSERT_OK(store->PrepareSnapshot(2));
    HOTROW_ASSERT_OK(store->Close());
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto changes, Open(env, 1, 2));
  ASSERT_NE(changes, nullptr);
  EXPECT_EQ(changes->info().id, 2u);
  int64_t entries = 0;
  HOTROW_ASSERT_OK(Apply(*changes, &rows, &entries));
  EXPECT_TRUE(rows == expected);
  EXPECT_EQ(entries, 60);
  // 1 % of the rows are 33 KB; chunks of 16 KiB are read whole.
  EXPECT_LE(changes->bytes_read(), 4 * 16 * kKiB);
}

TEST(SsdChangesTest, WhatCannotBeToldIsNoError) {
  MemEnv env;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env, 60)));
    HOTROW_ASSERT_OK(Put(*store, {1, 3}, 1));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
    HOTROW_ASSERT_OK(Put(*store, {2, 3}, 1));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(2));
    HOTROW_ASSERT_OK(store->Close());
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto no_parent, Open(env, 9, 2));
  EXPECT_EQ(no_parent, nullptr);
  EXPECT_THAT(Open(env, 1, 9),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("there is no snapshot 9")));
  EXPECT_THAT(OpenSnapshotChanges(StoreKind::kSsd, {.path = "/store", .snapshot = 2, .env = &env},
                                  {.snapshot = 1, .identity = {.high = 1, .low = 2}})
                  .status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("snapshot 1")));
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto of_memory,
      OpenSnapshotChanges(StoreKind::kMemory, {.path = "/store", .snapshot = 2, .env = &env},
                          {.snapshot = 1}));
  EXPECT_EQ(of_memory, nullptr);
}

// A record that was written since and is damaged is named.
TEST(SsdChangesTest, ADamagedRowIsNamed) {
  MemEnv env;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env, 60)));
    HOTROW_ASSERT_OK(Put(*store, {1, 70'000}, 1));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
    HOTROW_ASSERT_OK(Put(*store, {2, 70'000}, 2));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(2));
    HOTROW_ASSERT_OK(store->Close());
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, env.ListDir("/store"));
  const Row row = MakeRow({2, 70'000}, 2, 64);
  const std::string text(reinterpret_cast<const char*>(row.data()), row.size());
  int64_t found = 0;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat("/store/", name);
    HOTROW_ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFileToString(env, path));
    const size_t at = bytes.find(text);
    if (at == std::string::npos) continue;
    bytes[at + 3] = static_cast<char>(bytes[at + 3] ^ 1);
    HOTROW_ASSERT_OK(WriteFileAtomically(env, path, bytes));
    ++found;
  }
  ASSERT_EQ(found, 1);
  // A chunk without a footer is walked when it is opened, any other read later.
  absl::StatusOr<std::unique_ptr<SnapshotChanges>> changes = Open(env, 1, 2);
  RowMap rows;
  const absl::Status status =
      changes.ok() && *changes != nullptr ? Apply(**changes, &rows) : changes.status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("segment-")));
}

}  // namespace
}  // namespace hotrow
