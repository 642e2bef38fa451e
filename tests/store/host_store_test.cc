#include "store/host/host_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/env.h"
#include "base/thread_pool.h"
#include "store/host/host_rows_impl.h"
#include "store/host/host_snapshot_impl.h"
#include "tests/store/store_test_util.h"
#include "tests/support/colliding_keys.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::Batch;
using test::Dump;
using test::FindAll;
using test::Found;
using test::MakeRow;
using test::MemEnv;
using test::Row;
using test::RowMap;
using test::StatusIs;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(HostStoreOptionsTest, SaysWhatIsWrong) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto validate = [](HostStoreOptions options) { return options.Validate(); };
  HOTROW_EXPECT_OK(validate({.tables = {{1, 8}}, .budget_bytes = 1}));
  EXPECT_THAT(validate({.budget_bytes = 1}), StatusIs(kInvalid, HasSubstr("tables")));
  EXPECT_THAT(validate({.tables = {{1, 0}}, .budget_bytes = 1}),
              StatusIs(kInvalid, HasSubstr("row_bytes of table 1")));
  EXPECT_THAT(validate({.tables = {{1, 8}, {2, 8}, {1, 8}}, .budget_bytes = 1}),
              StatusIs(kInvalid, HasSubstr("tables[2]: table 1")));
  EXPECT_THAT(validate({.tables = {{1, 8}}, .budget_bytes = 0}),
              StatusIs(kInvalid, HasSubstr("budget_bytes")));
  EXPECT_THAT(validate({.tables = {{1, 8}}, .budget_bytes = 1, .rows_max = {1, 2}}),
              StatusIs(kInvalid, HasSubstr("rows_max")));
  EXPECT_THAT(validate({.tables = {{1, 8}}, .budget_bytes = 1, .rows_max = {-1}}),
              StatusIs(kInvalid, HasSubstr("rows_max[0]")));
  EXPECT_THAT(validate({.tables = {{1, 8}}, .budget_bytes = 1, .open_at = 3}),
              StatusIs(kInvalid, HasSubstr("snapshot_dir")));
}

TEST(HostStoreTest, ABudgetThatHoldsNothingIsRefusedAtOpening) {
  EXPECT_THAT(HostStore::Open({.tables = {{1, 8}}, .budget_bytes = 100}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("host store")));
}

// With equal keys, of which the last one wins, and until the store is full.
TEST(HostStoreTest, ThreadsOfAPoolWriteAndReadTheSameRows) {
  constexpr int64_t kRowBytes = 64;
  constexpr uint64_t kKeys = 30'000;
  std::vector<RowKey> keys;
  std::vector<std::array<std::byte, kRowBytes>> values;
  for (uint64_t i = 0; i < 2 * kKeys; ++i) {
    keys.push_back({i * 7 % kKeys, static_cast<uint32_t>(i * 7 % kKeys % 2)});
    values.emplace_back().fill(static_cast<std::byte>(i % 251));
  }
  std::vector<const std::byte*> rows;
  for (const auto& value : values) rows.push_back(value.data());
  const HostStoreOptions options = {.tables = {{0, kRowBytes}, {1, kRowBytes}},
                                    .budget_bytes = 16 * kMiB};
  ThreadPool pool(3);
  std::vector<std::map<uint64_t, std::byte>> seen;
  for (ThreadPool* const threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, HostStore::Open(options));
    HOTROW_ASSERT_OK(store->InsertOrAssign(keys, rows, threads));
    EXPECT_EQ(store->Stats().rows, static_cast<int64_t>(kKeys));
    EXPECT_EQ(store->Stats().rows_written, static_cast<int64_t>(2 * kKeys));
    std::vector<std::map<uint64_t, std::byte>> parts(HostStore::kParts);
    store->IterateParts(
        threads, [&](int64_t part, const RowKey& key, std::span<const std::byte> row) {
          EXPECT_EQ(key.table, key.key % 2);
          EXPECT_TRUE(parts[static_cast<size_t>(part)].emplace(key.key, row[0]).second);
        });
    std::map<uint64_t, std::byte>& all = seen.emplace_back();
    for (auto& part : parts) all.merge(part);
    EXPECT_EQ(all.size(), kKeys);
  }
  EXPECT_EQ(seen[0], seen[1]);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto small,
                              HostStore::Open({.tables = options.tables, .budget_bytes = kMiB}));
  std::vector<std::byte*> at(keys.size());
  std::vector<uint8_t> added(keys.size());
  EXPECT_THAT(small->InsertOrAssign(keys, rows, at, added, &pool),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("host store")));
  const int64_t written = std::count_if(at.begin(), at.end(), [](auto* row) { return row; });
  EXPECT_EQ(small->Stats().rows_written, written);
  EXPECT_EQ(small->Stats().rows, std::count(added.begin(), added.end(), 1));
}

TEST(BudgetedBufferTest, TakesWholePagesAndGivesThemBack) {
  using Bytes = internal::BudgetedBuffer<std::byte>;
  internal::MemoryBudget budget(int64_t{1} << 60);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(Bytes first, Bytes::Create(5000, budget));
    EXPECT_EQ(budget.used(), 8192);
    Bytes second = std::move(first);
    HOTROW_ASSERT_OK(second.Reserve(9000, budget));
    EXPECT_EQ(budget.used(), 12288);
  }
  EXPECT_EQ(budget.used(), 0);
  // Within the budget, and more than an x86 process can address.
  EXPECT_THAT(Bytes::Create(int64_t{1} << 55, budget),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cannot allocate")));
  EXPECT_EQ(budget.used(), 0);
}

// How many pages of [data, data + bytes) are in memory.
int64_t PagesPresent(std::byte* data, int64_t bytes) {
  constexpr int64_t kPageBytes = 4096;
  std::vector<unsigned char> present(static_cast<size_t>(bytes / kPageBytes));
  EXPECT_EQ(::mincore(data, static_cast<size_t>(bytes), present.data()), 0);
  return std::count_if(present.begin(), present.end(), [](unsigned char p) { return p & 1; });
}

TEST(HostArenaTest, WhatIsProvidedIsPresentAndCarvedBeforeAnythingElse) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    internal::MemoryBudget budget(256 * kMiB);
    internal::HostArena arena(budget, Device::kCpu);
    HOTROW_ASSERT_OK(arena.Provide(70 * kMiB + 1, threads == 1 ? nullptr : &pool));
    EXPECT_EQ(arena.extent_bytes(), 72 * kMiB);
    EXPECT_EQ(arena.num_extents(), 1);
    EXPECT_GE(budget.used(), 72 * kMiB);
    HOTROW_ASSERT_OK_AND_ASSIGN(std::byte* const first, arena.Carve(64));
    EXPECT_EQ(PagesPresent(first, 72 * kMiB), 72 * kMiB / 4096);
    EXPECT_EQ(std::count(first, first + 72 * kMiB, std::byte{0}), 72 * kMiB);
    // Not an extent more until it is used up, with pieces of any sizes.
    int64_t carved = 64;
    for (int64_t bytes = 64; carved + bytes <= 72 * kMiB; bytes = bytes % (4 * kMiB) + 4096) {
      HOTROW_ASSERT_OK(arena.Carve(bytes));
      carved += bytes;
    }
    EXPECT_EQ(arena.num_extents(), 1);
    HOTROW_ASSERT_OK(arena.Carve(8 * kMiB));
    EXPECT_EQ(arena.num_extents(), 2);
  }
}

TEST(HostArenaTest, WhatIsProvidedLaterIsWaitedForAndCountedAtOnce) {
  internal::MemoryBudget budget(int64_t{4} << 30);
  internal::HostArena arena(budget, Device::kCpu);
  // Three extents, two of them by the thread.
  HOTROW_ASSERT_OK(arena.Provide(300 * kMiB, nullptr, /*at_once=*/8 * kMiB));
  EXPECT_EQ(arena.extent_bytes(), 300 * kMiB);
  EXPECT_GE(arena.num_extents(), 1);
  // From several threads, all of it and no more.
  ThreadPool pool(3);
  std::atomic<int64_t> carved{0};
  ParallelFor(&pool, 75, 1, [&](int64_t, int64_t) {
    const auto piece = arena.Carve(4 * kMiB);
    HOTROW_EXPECT_OK(piece);
    if (!piece.ok()) return;
    **piece = std::byte{1};
    carved += 4 * kMiB;
  });
  EXPECT_EQ(carved, arena.extent_bytes());
  EXPECT_EQ(arena.num_extents(), 3);
  HOTROW_EXPECT_OK(arena.Carve(64));
  EXPECT_EQ(arena.num_extents(), 4);
  // Nobody waits for what nobody needs.
  internal::HostArena left(budget, Device::kCpu);
  HOTROW_ASSERT_OK(left.Provide(3000 * kMiB, nullptr, /*at_once=*/8 * kMiB));
}

TEST(HostArenaTest, ProvidingTwiceAddsWhatIsMissing) {
  internal::MemoryBudget budget(256 * kMiB);
  internal::HostArena arena(budget, Device::kCpu);
  HOTROW_ASSERT_OK(arena.Provide(10 * kMiB, nullptr));
  HOTROW_ASSERT_OK(arena.Provide(8 * kMiB, nullptr));
  EXPECT_EQ(arena.extent_bytes(), 10 * kMiB);
  HOTROW_ASSERT_OK(arena.Provide(12 * kMiB, nullptr));
  EXPECT_EQ(arena.extent_bytes(), 12 * kMiB);
  EXPECT_EQ(arena.num_extents(), 2);
}

TEST(HostArenaTest, TheBudgetBoundsWhatIsProvided) {
  internal::MemoryBudget budget(64 * kMiB);
  {
    internal::HostArena arena(budget, Device::kCpu);
    HOTROW_ASSERT_OK(arena.Provide(int64_t{1} << 50, nullptr));
    // But for 1/64, in whole huge pages.
    EXPECT_EQ(arena.extent_bytes(), 62 * kMiB);
    EXPECT_LE(budget.used(), budget.budget());
  }
  HOTROW_ASSERT_OK(budget.Reserve(64 * kMiB - budget.used()));
  internal::HostArena none(budget, Device::kCpu);
  HOTROW_EXPECT_OK(none.Provide(kMiB, nullptr));
  EXPECT_EQ(none.num_extents(), 0);
}

// What a GPU's store provides at the start is all that rows_max rows need, and not much more.
TEST(HostRowsTest, WhatIsProvidedHoldsAllRows) {
  struct Case {
    std::vector<int64_t> row_bytes, rows_max;
    int64_t budget_bytes;
  };
  for (const Case& c : {Case{{528}, {20'000}, 64 * kMiB},
                        {{1}, {50'000}, 64 * kMiB},
                        {{16, 272, 40'000}, {10'000, 1, 300}, 512 * kMiB},
                        {{144, 144, 144, 144}, {3, 70'000, 1'000, 40}, int64_t{16} << 30},
                        {{64}, {1}, 64 * kMiB}}) {
    HostStoreOptions options = {.budget_bytes = c.budget_bytes, .rows_max = c.rows_max};
    int64_t payload = 0;
    for (uint32_t t = 0; t < c.row_bytes.size(); ++t) {
      options.tables.push_back({t, c.row_bytes[t]});
      payload += c.row_bytes[t] * c.rows_max[t];
    }
    internal::MemoryBudget budget(options.budget_bytes);
    internal::HostRows rows(options, budget);
    HOTROW_ASSERT_OK(rows.Init());
    for (uint32_t t = 0; t < c.row_bytes.size(); ++t) {
      std::vector<RowKey> keys;
      for (int64_t i = 0; i < c.rows_max[t]; ++i) keys.push_back({static_cast<uint64_t>(i), t});
      int64_t added = 0;
      HOTROW_ASSERT_OK(rows.UpsertBatch(
          keys, [](size_t, int64_t, std::byte*, bool) {}, &added));
      ASSERT_EQ(added, c.rows_max[t]);
    }
    SCOPED_TRACE(testing::Message() << c.row_bytes[0] << " bytes a row, carved "
                                    << rows.arena().carved_bytes() << ", payload " << payload);
    EXPECT_LE(rows.arena().carved_bytes(), rows.BytesToProvide());
    EXPECT_LE(rows.BytesToProvide(), options.budget_bytes);
    EXPECT_LT(rows.BytesToProvide(), 2 * payload + 16 * kMiB);
  }
}

TEST(HostRowsTest, TablesWithoutALimitAreProvidedAQuarterOfTheBudget) {
  HostStoreOptions options = {.tables = {{1, 64}, {2, 64}}, .budget_bytes = 64 * kMiB};
  internal::MemoryBudget budget(options.budget_bytes);
  EXPECT_EQ(internal::HostRows(options, budget).BytesToProvide(), 16 * kMiB);
  options.rows_max = {10, 0};
  EXPECT_EQ(internal::HostRows(options, budget).BytesToProvide(), 16 * kMiB);
  options.rows_max = {int64_t{1} << 62, 0};
  EXPECT_EQ(internal::HostRows(options, budget).BytesToProvide(), 64 * kMiB);
}

TEST(HostRowsTest, RowsThatAreAddedAloneAreThoseOfTheChunks) {
  const HostStoreOptions options = {.tables = {{4, 16}, {1, 8}}, .budget_bytes = kMiB};
  internal::MemoryBudget budget(options.budget_bytes);
  internal::HostRows rows(options, budget);
  HOTROW_ASSERT_OK(rows.Init());
  std::set<std::pair<uint32_t, uint64_t>> expected;
  for (uint64_t i = 0; i < 1000; ++i) {
    const RowKey key = {i, i % 3 == 0 ? 1u : 4u};
    HOTROW_ASSERT_OK_AND_ASSIGN(std::byte* const row, rows.AddAlone(key));
    std::memset(row, static_cast<int>(i % 251), static_cast<size_t>(rows.row_bytes(key.table)));
    expected.emplace(key.table, key.key);
  }
  EXPECT_THAT(rows.AddAlone({999, 1}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("key 999 of table 1")));
  EXPECT_EQ(rows.rows(), 1000);
  const auto gate = rows.HoldWriters();
  EXPECT_THAT(rows.CountByTable(), testing::ElementsAre(666, 334));
  HOTROW_ASSERT_OK(rows.ForEachChunk([&](uint32_t table, std::span<const internal::HostRow> some) {
    for (const internal::HostRow& row : some) {
      EXPECT_EQ(expected.erase({options.tables[table].table, row.key}), 1u);
      EXPECT_EQ(std::to_integer<uint64_t>(row.row[0]), row.key % 251);
    }
    return absl::OkStatus();
  }));
  EXPECT_TRUE(expected.empty());
}

TEST(HostStoreTest, WithoutADirectoryThereAreNoSnapshots) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                              HostStore::Open({.tables = {{1, 8}}, .budget_bytes = kMiB}));
  EXPECT_THAT(store->PrepareSnapshot(1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("snapshot_dir")));
}

TEST(HostStoreTest, FindInPlaceGivesAddressesThatStayWhileTheStoreGrows) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      auto store, HostStore::Open({.tables = {{1, 48}, {2, 7}}, .budget_bytes = 64 * kMiB}));
  Batch batch;
  for (uint64_t i = 0; i < 500; ++i) batch.Add({i, 1}, MakeRow({i, 1}, 0, 48));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  std::vector<std::byte*> before(batch.keys.size());
  HOTROW_ASSERT_OK(store->FindInPlace(batch.keys, before));

  for (uint64_t round = 0; round < 20; ++round) {
    Batch more;
    for (uint64_t i = 0; i < 10'000; ++i) {
      const RowKey key{1'000'000 * (round + 1) + i, i % 3 == 0 ? 2u : 1u};
      more.Add(key, MakeRow(key, 0, store->row_bytes(key.table)));
    }
    HOTROW_ASSERT_OK(more.InsertInto(*store));
  }
  std::vector<std::byte*> after(batch.keys.size());
  HOTROW_ASSERT_OK(store->FindInPlace(batch.keys, after));
  EXPECT_EQ(after, before);
  for (size_t i = 0; i < after.size(); ++i) {
    ASSERT_NE(after[i], nullptr);
    EXPECT_EQ(std::memcmp(after[i], batch.rows[i].data(), 48), 0);
    std::memset(after[i], 0x5a, 48);  // trained in place: Find sees it
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, batch.keys));
  EXPECT_THAT(found.rows, testing::Each(Row(48, std::byte{0x5a})));

  const std::vector<RowKey> missing = {{1'234'567'890, 1}, {3, 1}};
  std::vector<std::byte*> rows(2, reinterpret_cast<std::byte*>(1));
  HOTROW_ASSERT_OK(store->FindInPlace(missing, rows));
  EXPECT_EQ(rows[0], nullptr);
  EXPECT_EQ(rows[1], before[3]);
}

TEST(HostStoreTest, InsertInPlaceAddsZeroedRowsOnce) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                              HostStore::Open({.tables = {{1, 20}}, .budget_bytes = kMiB}));
  const std::vector<RowKey> keys = {{7, 1}, {8, 1}, {7, 1}};
  std::vector<std::byte*> rows(3);
  std::vector<uint8_t> added(3, 0xee);
  HOTROW_ASSERT_OK(store->InsertInPlace(keys, rows, added));
  EXPECT_THAT(added, testing::ElementsAre(1, 1, 0));
  EXPECT_EQ(rows[0], rows[2]);
  EXPECT_NE(rows[0], rows[1]);
  EXPECT_EQ(std::vector<std::byte>(rows[0], rows[0] + 20), Row(20));
  std::memset(rows[0], 0x11, 20);
  // A slot that held a row before is zeroed too.
  const std::vector<RowKey> seven = {{7, 1}};
  HOTROW_ASSERT_OK(store->Erase(seven));
  std::byte* const old = rows[0];
  HOTROW_ASSERT_OK(store->InsertInPlace(std::span(keys).first(1), std::span(rows).first(1),
                                        std::span(added).first(1)));
  EXPECT_EQ(rows[0], old) << "free slots are used again first";
  EXPECT_EQ(added[0], 1);
  EXPECT_EQ(std::vector<std::byte>(rows[0], rows[0] + 20), Row(20));
  EXPECT_THAT(store->InsertInPlace(keys, rows, std::span(added).first(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 keys")));
  EXPECT_EQ(store->Stats().rows, 2);
  EXPECT_EQ(store->Stats().rows_written, 3);
}

TEST(HostStoreTest, InsertOrAssignSaysWhereRowsLieAndWhichAreNew) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                              HostStore::Open({.tables = {{1, 20}}, .budget_bytes = kMiB}));
  const Row one = Row(20, std::byte{1});
  const Row two = Row(20, std::byte{2});
  const std::vector<RowKey> keys = {{7, 1}, {8, 1}, {7, 1}};
  const std::vector<const std::byte*> rows = {one.data(), one.data(), two.data()};
  std::vector<std::byte*> at(3);
  std::vector<uint8_t> added(3, 0xee);
  HOTROW_ASSERT_OK(store->InsertOrAssign(keys, rows, at, added));
  EXPECT_THAT(added, testing::ElementsAre(1, 1, 0));
  std::vector<std::byte*> found(3);
  HOTROW_ASSERT_OK(store->FindInPlace(keys, found));
  EXPECT_EQ(at, found);
  EXPECT_EQ(Row(at[0], at[0] + 20), two) << "the last one wins";
  EXPECT_EQ(Row(at[1], at[1] + 20), one);
  HOTROW_ASSERT_OK(store->InsertOrAssign(keys, rows, at, added));
  EXPECT_THAT(added, testing::ElementsAre(0, 0, 0));
  EXPECT_EQ(at, found);
  EXPECT_EQ(store->Stats().rows, 2);
  EXPECT_EQ(store->Stats().rows_written, 6);

  at.assign(3, found[0]);
  const std::vector<RowKey> unknown = {{7, 2}, {8, 1}, {9, 1}};
  EXPECT_THAT(store->InsertOrAssign(unknown, rows, at, added),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("table 2")));
  EXPECT_THAT(at, testing::Each(nullptr));
  EXPECT_THAT(store->InsertOrAssign(keys, rows, std::span(at).first(2), added),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("numbers must be equal")));
}

// Erasures by key are known to who asked for them.
TEST(HostStoreTest, CountsTheRowsThatItDropsByAge) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                              HostStore::Open({.tables = {{1, 16}}, .budget_bytes = kMiB}));
  std::vector<RowKey> keys;
  std::vector<Row> rows;
  std::vector<const std::byte*> pointers;
  for (uint32_t i = 0; i < 50; ++i) {
    keys.push_back({i, 1});
    rows.push_back(Row(16));
    std::memcpy(rows.back().data(), &i, sizeof(i));  // its last step
  }
  for (const Row& row : rows) pointers.push_back(row.data());
  HOTROW_ASSERT_OK(store->InsertOrAssign(keys, pointers));
  HOTROW_ASSERT_OK(store->Erase(std::span(keys).subspan(40, 5)));
  EXPECT_EQ(store->aged_rows(), 0);
  const RowAgeLine line = {.table = 1, .lines = {.age = 11}};
  store->SetAgeLines({&line, 1});
  HOTROW_ASSERT_OK(store->DropAged(1000).status());
  EXPECT_EQ(store->aged_rows(), 10);
  EXPECT_EQ(store->Stats().rows_erased, 15);
}

TEST(HostStoreTest, RowsAreAlignedTo16WhereTheirWidthAllowsIt) {
  const std::vector<StoreTable> tables = {{1, 16}, {2, 48}, {3, 528}, {4, 17}, {5, 4096}};
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                              HostStore::Open({.tables = tables, .budget_bytes = 64 * kMiB}));
  std::vector<RowKey> keys;
  for (uint64_t i = 0; i < 1000; ++i) {
    for (const StoreTable& table : tables) keys.push_back({i, table.table});
  }
  std::vector<std::byte*> rows(keys.size());
  std::vector<uint8_t> added(keys.size());
  HOTROW_ASSERT_OK(store->InsertInPlace(keys, rows, added));
  std::set<std::pair<std::byte*, std::byte*>> ranges;
  for (size_t i = 0; i < keys.size(); ++i) {
    const int64_t row_bytes = store->row_bytes(keys[i].table);
    if (row_bytes % 16 == 0) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(rows[i]) % 16, 0u) << row_bytes;
    }
    ranges.emplace(rows[i], rows[i] + row_bytes);
  }
  // No two rows overlap.
  ASSERT_EQ(ranges.size(), keys.size());
  for (auto at = ranges.begin(); std::next(at) != ranges.end(); ++at) {
    EXPECT_LE(at->second, std::next(at)->first);
  }
}

TEST(HostStoreTest, MetadataStaysWithin16BytesARowFromAMillionRowsUp) {
  constexpr int64_t kBatchRows = 20'000;
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(
      auto store,
      HostStore::Open(
          {.tables = {{1, 16}}, .budget_bytes = 64 * kMiB, .snapshot_dir = "/s", .env = &env}));
  std::vector<RowKey> keys(kBatchRows);
  std::vector<std::byte*> rows(kBatchRows);
  std::vector<uint8_t> added(kBatchRows);
  double worst = 0;
  for (int64_t n = 0; n < 1'400'000; n += kBatchRows) {
    for (int64_t i = 0; i < kBatchRows; ++i) {
      keys[static_cast<size_t>(i)] = {static_cast<uint64_t>(n + i), 1};
    }
    HOTROW_ASSERT_OK(store->InsertInPlace(keys, rows, added));
    const RowStoreStats stats = store->Stats();
    if (stats.rows < 1'000'000) continue;
    worst = std::max(worst,
                     static_cast<double>(stats.metadata_bytes) / static_cast<double>(stats.rows));
  }
  EXPECT_LE(worst, 16.0);
  EXPECT_GT(worst, 12.0) << "8 of the key and 4 of the ordinal at least: is all counted?";
  RecordProperty("metadata_bytes_per_row", std::to_string(worst));
}

TEST(HostStoreTest, ManySmallTablesTakeLittleMoreThanTheirRows) {
  std::vector<StoreTable> tables;
  int64_t payload = 0;
  for (uint32_t t = 0; t < 26; ++t) {
    tables.push_back({.table = t, .row_bytes = 512});
    payload += (2000 + 100 * t) * 512;
  }
  const int64_t budget = payload * 13 / 10;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                              HostStore::Open({.tables = tables, .budget_bytes = budget}));
  for (uint32_t t = 0; t < 26; ++t) {
    std::vector<RowKey> keys;
    for (uint64_t i = 0; i < 2000 + 100 * t; ++i) keys.push_back({i, t});
    std::vector<std::byte*> rows(keys.size());
    std::vector<uint8_t> added(keys.size());
    HOTROW_ASSERT_OK(store->InsertInPlace(keys, rows, added)) << "table " << t;
  }
  EXPECT_LE(store->Stats().peak_bytes, budget);
}

TEST(HostStoreTest, AStoreOfAFewRowsIsSmallWhateverItsBudget) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                              HostStore::Open({.tables = {{1, 64}}, .budget_bytes = 300 << 10}));
  std::vector<RowKey> keys = {{1, 1}, {2, 1}};
  std::vector<std::byte*> rows(2);
  std::vector<uint8_t> added(2);
  HOTROW_ASSERT_OK(store->InsertInPlace(keys, rows, added));
  EXPECT_LT(store->Stats().used_bytes, 100 << 10);
  // Nearly all of even a small budget can be rows.
  int64_t n = 2;
  for (absl::Status status; status.ok(); ++n) {
    keys = {{static_cast<uint64_t>(n + 1), 1}};
    status = store->InsertInPlace(keys, std::span(rows).first(1), std::span(added).first(1));
  }
  EXPECT_GT(store->Stats().rows * 64, (300 << 10) / 2);
}

TEST(HostStoreTest, FindsEveryKeyWhileManyPartitionsGrow) {
  // 512 MiB of budget give 32 partitions; the rows fill a small part, from one segment upwards.
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                              HostStore::Open({.tables = {{9, 8}}, .budget_bytes = 512 * kMiB}));
  constexpr uint64_t kRows = 200'000;
  std::vector<RowKey> keys;
  std::vector<std::byte*> rows(kRows);
  std::vector<uint8_t> added(kRows);
  for (uint64_t i = 0; i < kRows; ++i) keys.push_back({i << 40, 9});  // only high bits differ
  HOTROW_ASSERT_OK(store->InsertInPlace(keys, rows, added));
  EXPECT_EQ(std::count(added.begin(), added.end(), 1), static_cast<int64_t>(kRows));
  for (uint64_t i = 0; i < kRows; ++i) std::memcpy(rows[i], &i, 8);
  // Every third goes, its slot is used by another key.
  std::vector<RowKey> erased;
  for (uint64_t i = 0; i < kRows; i += 3) erased.push_back(keys[i]);
  HOTROW_ASSERT_OK(store->Erase(erased));
  const int64_t used = store->Stats().used_bytes;
  std::vector<RowKey> others;
  for (uint64_t i = 0; i < erased.size(); ++i) others.push_back({i, 9});
  HOTROW_ASSERT_OK(store->InsertInPlace(others, std::span(rows).first(others.size()),
                                        std::span(added).first(others.size())));
  EXPECT_LE(store->Stats().used_bytes, used + used / 50) << "free slots are used again";
  std::vector<std::byte*> now(kRows);
  HOTROW_ASSERT_OK(store->FindInPlace(keys, now));
  for (uint64_t i = 0; i < kRows; ++i) {
    if (i % 3 == 0 && i != 0) {  // key 0 is among the others
      ASSERT_EQ(now[i], nullptr) << i;
    } else if (i != 0) {
      uint64_t value = 0;
      ASSERT_NE(now[i], nullptr) << i;
      std::memcpy(&value, now[i], 8);
      ASSERT_EQ(value, i);
    }
  }
}

TEST(HostStoreTest, AFailedGrowthLeavesTheIndexWhole) {
  // Rows of one byte: the index is most of the memory, so that it is what runs out.
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                              HostStore::Open({.tables = {{1, 1}}, .budget_bytes = 400 << 10}));
  std::vector<std::byte*> row(1);
  std::vector<uint8_t> added(1);
  uint64_t n = 0;
  for (;; ++n) {
    const std::vector<RowKey> key = {{Mix64(n), 1}};
    const absl::Status status = store->InsertInPlace(key, row, added);
    if (!status.ok()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("409600")));
      break;
    }
    *row[0] = static_cast<std::byte>(n);
  }
  EXPECT_EQ(store->Stats().rows, static_cast<int64_t>(n));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap all, Dump(*store));
  EXPECT_EQ(all.size(), n) << "the row that found no place is still there";
  for (uint64_t i = 0; i < n; ++i) {
    const std::vector<RowKey> key = {{Mix64(i), 1}};
    HOTROW_ASSERT_OK(store->FindInPlace(key, row));
    ASSERT_NE(row[0], nullptr);
    ASSERT_EQ(*row[0], static_cast<std::byte>(i));
  }
  // What is erased makes room again.
  const std::vector<RowKey> first = {{Mix64(0), 1}};
  HOTROW_ASSERT_OK(store->Erase(first));
  HOTROW_EXPECT_OK(store->InsertInPlace(first, row, added));
}

// Without a salt they share both buckets until a partition has 2^20 of them: 64 MiB.
TEST(HostStoreTest, KeysChosenToShareBothBucketsAreAllKept) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                              HostStore::Open({.tables = {{1, 16}}, .budget_bytes = 8 * kMiB}));
  Batch batch;
  for (uint64_t i = 0; batch.keys.size() < 500; ++i) {
    const uint64_t lo =
        uint64_t{0x55555} << 44 | (i >> 12 & 0xfff) << 32 | uint64_t{0x12345} << 12 | (i & 0xfff);
    const RowKey key = test::KeyWithHashLo(lo, 1);
    // Keys of one partition of up to 64.
    if (HashRowKey(key).partition(64) == 5) batch.Add(key, MakeRow(key, 0, 16));
  }
  for (uint64_t i = 0; i < 20'000; ++i) batch.Add({i, 1}, MakeRow({i, 1}, 0, 16));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, batch.keys));
  EXPECT_EQ(found.rows, batch.rows);
  HOTROW_ASSERT_OK(store->Erase(std::span(batch.keys).first(300)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap left, Dump(*store));
  EXPECT_EQ(left.size(), batch.keys.size() - 300);
}

TEST(HostStoreTest, FindsGoOnBesideInsertsThatGrowTheIndex) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                              HostStore::Open({.tables = {{1, 16}}, .budget_bytes = 256 * kMiB}));
  constexpr uint64_t kThreads = 8;
  constexpr uint64_t kRowsEach = 8000;
  std::vector<std::thread> threads;
  std::atomic<int64_t> bad{0};
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t begin = 0; begin < kRowsEach; begin += 500) {
        Batch batch;
        for (uint64_t i = begin; i < begin + 500; ++i) {
          const RowKey key{t * kRowsEach + i, 1};
          batch.Add(key, MakeRow(key, 0, 16));
        }
        if (!batch.InsertInto(*store).ok()) ++bad;
        const auto found = FindAll(*store, batch.keys);
        if (!found.ok() || found->rows != batch.rows) ++bad;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad.load(), 0);
  EXPECT_EQ(store->Stats().rows, static_cast<int64_t>(kThreads * kRowsEach));
}

class HostSnapshotTest : public testing::Test {
 protected:
  HostStoreOptions Options(SnapshotId open_at = 0) {
    return {.tables = {{1, 24}, {9, 5}},
            .budget_bytes = kMiB,
            .snapshot_dir = "/s",
            .open_at = open_at,
            .env = &env_};
  }
  // Snapshot 0x4d2 of a few rows.
  void Prepare() {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, HostStore::Open(Options()));
    Batch batch;
    for (uint64_t i = 0; i < 12; ++i) {
      const RowKey key{i, i % 2 == 0 ? 1u : 9u};
      batch.Add(key, MakeRow(key, 0, store->row_bytes(key.table)));
    }
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
    HOTROW_ASSERT_OK_AND_ASSIGN(rows_, Dump(*store));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(kId));
    HOTROW_ASSERT_OK_AND_ASSIGN(text_, ReadFileToString(env_, kPath));
    EXPECT_EQ(store->Stats().snapshot_bytes, static_cast<int64_t>(text_.size()));
  }
  void Overwrite(const std::string& text) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto file, env_.Open(kPath, OpenMode::kTruncate));
    HOTROW_ASSERT_OK(WriteFull(*file, 0, std::as_bytes(std::span(text))));
  }

  static constexpr SnapshotId kId = 0x4d2;
  static inline const std::string kPath = "/s/00000000000004d2.snapshot";
  MemEnv env_;
  RowMap rows_;
  std::string text_;
};

TEST_F(HostSnapshotTest, EveryFlippedByteIsDetectedAndNamed) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  for (size_t i = 0; i < text_.size(); ++i) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = text_;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      ASSERT_NO_FATAL_FAILURE(Overwrite(damaged));
      EXPECT_THAT(HostStore::Open(Options(kId)),
                  StatusIs(absl::StatusCode::kDataLoss,
                           testing::AllOf(HasSubstr(kPath), HasSubstr("offset"))))
          << "byte " << i << " flip " << flip;
    }
  }
  ASSERT_NO_FATAL_FAILURE(Overwrite(text_));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, HostStore::Open(Options(kId)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*store));
  EXPECT_EQ(rows, rows_);
}

TEST_F(HostSnapshotTest, EveryTruncationAndEveryAppendedByteIsDetected) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  for (size_t size = 0; size < text_.size(); ++size) {
    ASSERT_NO_FATAL_FAILURE(Overwrite(text_.substr(0, size)));
    EXPECT_THAT(HostStore::Open(Options(kId)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(kPath)))
        << size;
  }
  ASSERT_NO_FATAL_FAILURE(Overwrite(text_ + '\0'));
  EXPECT_THAT(HostStore::Open(Options(kId)),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr(absl::StrCat("offset ", text_.size(), ": bytes after"))));
}

TEST_F(HostSnapshotTest, ADroppedOrDoubledBlockIsDetected) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  // Blocks follow prefix, header and two tables; this store's first one has 4 rows of table 1.
  const size_t begin = sizeof(internal::SnapshotPrefix) + sizeof(internal::SnapshotHeader) +
                       2 * sizeof(internal::SnapshotTable);
  internal::SnapshotBlock block;
  std::memcpy(&block, text_.data() + begin, sizeof(block));
  ASSERT_EQ(block.magic, internal::kSnapshotBlockMagic);
  const size_t bytes =
      sizeof(block) + block.num_rows * (8 + (block.table == 1 ? size_t{24} : size_t{5}));
  std::string dropped = text_;
  dropped.erase(begin, bytes);
  ASSERT_NO_FATAL_FAILURE(Overwrite(dropped));
  EXPECT_THAT(HostStore::Open(Options(kId)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")));
  std::string doubled = text_;
  doubled.insert(begin, text_.substr(begin, bytes));
  ASSERT_NO_FATAL_FAILURE(Overwrite(doubled));
  EXPECT_THAT(HostStore::Open(Options(kId)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")));
}

TEST_F(HostSnapshotTest, ANewerVersionIsRefusedByItsNumber) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  internal::SnapshotPrefix prefix;
  std::memcpy(&prefix, text_.data(), sizeof(prefix));
  EXPECT_EQ(prefix.version, internal::kSnapshotVersion);
  prefix.version = 7;
  prefix.crc = Crc32c(std::as_bytes(std::span(&prefix, 1)).first(12));
  std::memcpy(text_.data(), &prefix, sizeof(prefix));
  ASSERT_NO_FATAL_FAILURE(Overwrite(text_));
  EXPECT_THAT(HostStore::Open(Options(kId)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("version 7"), HasSubstr("versions 1 to 2"),
                             HasSubstr("newer hotrow"))));
}

TEST_F(HostSnapshotTest, AFileUnderAnotherNameIsNotTakenForThatSnapshot) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  HOTROW_ASSERT_OK(env_.Rename(kPath, "/s/0000000000000001.snapshot"));
  EXPECT_THAT(HostStore::Open(Options(1)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("snapshot 1234")));
}

TEST_F(HostSnapshotTest, LeftoversOfACrashAreRemovedAndOtherFilesAreNot) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  for (const char* name : {"0000000000000007.snapshot.tmp", "notes.tmp", "7.snapshot"}) {
    HOTROW_ASSERT_OK(env_.Open(absl::StrCat("/s/", name), OpenMode::kCreate).status());
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, HostStore::Open(Options()));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, env_.ListDir("/s"));
  EXPECT_THAT(names, testing::ElementsAre("00000000000004d2.snapshot", "7.snapshot", "notes.tmp"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto ids, store->ListSnapshots());
  EXPECT_THAT(ids, testing::ElementsAre(kId));
}

TEST_F(HostSnapshotTest, ASnapshotThatDoesNotFitTheBudgetIsRefused) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, HostStore::Open(Options()));
  Batch batch;
  for (uint64_t i = 0; i < 10'000; ++i) batch.Add({i, 1}, MakeRow({i, 1}, 0, 24));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(kId));
  store.reset();
  HostStoreOptions options = Options(kId);
  options.budget_bytes = 200 << 10;
  EXPECT_THAT(HostStore::Open(options),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("204800")));
}

TEST(HostSnapshotNameTest, NamesComeBack) {
  for (const SnapshotId id : {SnapshotId{1}, SnapshotId{0xabcdef}, UINT64_MAX}) {
    EXPECT_EQ(internal::ParseSnapshotFileName(internal::SnapshotFileName(id)), id);
  }
  for (const char* name : {"", "1.snapshot", "0000000000000000.snapshot",
                           "000000000000000G.snapshot", "000000000000000A.snapshot",
                           "0000000000000001.snapshot.tmp", "0000000000000001snapshots"}) {
    EXPECT_EQ(internal::ParseSnapshotFileName(name), 0u) << name;
  }
}

// On the real file system, and through more than one staging buffer.
TEST(HostSnapshotFileTest, ALargerSnapshotComesBackFromDisk) {
  const HostStoreOptions options{.tables = {{1, 333}, {2, 40'000}},
                                 .budget_bytes = 32 * kMiB,
                                 .snapshot_dir = test::TempDir() + "/sub/dir"};
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, HostStore::Open(options));
  Batch batch;
  for (uint64_t i = 0; i < 20'000; ++i) batch.Add({Mix64(i), 1}, MakeRow({Mix64(i), 1}, 0, 333));
  for (uint64_t i = 0; i < 50; ++i) batch.Add({i, 2}, MakeRow({i, 2}, 0, 40'000));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(3));
  EXPECT_GT(store->Stats().ios, 10);
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap then, Dump(*store));
  store.reset();
  HostStoreOptions again = options;
  again.open_at = 3;
  HOTROW_ASSERT_OK_AND_ASSIGN(store, HostStore::Open(again));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap now, Dump(*store));
  EXPECT_TRUE(now == then);
}

}  // namespace
}  // namespace hotrow
