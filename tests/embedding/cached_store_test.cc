#include "embedding/tiers/cached_store.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/host/host_store.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

constexpr StoreTable kTables[] = {
    {.table = 0, .row_bytes = 32}, {.table = 1, .row_bytes = 48}, {.table = 5, .row_bytes = 32}};
using Model = std::map<std::pair<uint32_t, uint64_t>, std::string>;

// A store with a CachedStore on top; the store may be looked at by itself.
struct Stack {
  std::unique_ptr<HostStore> store;
  std::unique_ptr<CachedStore> cached;

  explicit Stack(int64_t cache_bytes, int64_t store_bytes = int64_t{16} << 20) {
    auto opened = HostStore::Open(
        {.tables = {std::begin(kTables), std::end(kTables)}, .budget_bytes = store_bytes});
    HOTROW_EXPECT_OK(opened);
    store = *std::move(opened);
    const CachedStoreWidth widths[] = {{32, cache_bytes}, {48, cache_bytes}};
    auto created = CachedStore::Create(store.get(), widths, CachePolicy::kLru);
    HOTROW_EXPECT_OK(created);
    cached = *std::move(created);
  }
};

absl::Status Write(RowStore& store, const std::vector<RowKey>& keys,
                   const std::vector<std::string>& rows) {
  std::vector<const std::byte*> pointers;
  for (const std::string& row : rows)
    pointers.push_back(reinterpret_cast<const std::byte*>(row.data()));
  return store.InsertOrAssign(keys, pointers);
}

// The rows of the keys; empty for one that is not there.
std::vector<std::string> ReadRows(RowStore& store, const std::vector<RowKey>& keys) {
  std::vector<std::string> rows;
  std::vector<std::byte*> pointers;
  for (const RowKey& key : keys) rows.emplace_back(store.row_bytes(key.table), '?');
  for (std::string& row : rows) pointers.push_back(reinterpret_cast<std::byte*>(row.data()));
  std::vector<uint8_t> found(keys.size(), 7);
  HOTROW_EXPECT_OK(store.Find(keys, pointers, found));
  for (size_t i = 0; i < keys.size(); ++i) {
    if (found[i] == 0) {
      EXPECT_EQ(rows[i], std::string(rows[i].size(), '?'));  // left alone
      rows[i].clear();
    }
  }
  return rows;
}

TEST(CachedStoreTest, AnswersAsTheModelDoesWhateverTheBudget) {
  for (const uint64_t seed : test::Seeds(3)) {
    for (const int64_t cache_bytes : {CachedStore::MinCacheBytes(48), int64_t{2} << 20}) {
      SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed << " budget " << cache_bytes);
      RandomStream random(seed, RandomPurpose::kTest);
      Stack stack(cache_bytes);
      Model model;
      constexpr uint64_t kKeys = 3000;
      const auto draw_key = [&] {
        const uint64_t key = random.Below(kKeys);
        return RowKey{key == 0 ? UINT64_MAX : key - 1, kTables[random.Below(3)].table};
      };
      for (int round = 0; round < 60; ++round) {
        std::vector<RowKey> keys;
        for (uint64_t i = random.Below(2500); i > 0; --i) keys.push_back(draw_key());
        if (random.Below(2) == 0) {
          std::vector<std::string> rows;
          for (const RowKey& key : keys) {
            rows.emplace_back(stack.cached->row_bytes(key.table),
                              static_cast<char>('a' + random.Below(26)));
            model[{key.table, key.key}] = rows.back();  // of a key that repeats the last one
          }
          HOTROW_ASSERT_OK(Write(*stack.cached, keys, rows));
        } else {
          const std::vector<std::string> rows = ReadRows(*stack.cached, keys);
          for (size_t i = 0; i < keys.size(); ++i) {
            const auto want = model.find({keys[i].table, keys[i].key});
            ASSERT_EQ(rows[i], want == model.end() ? "" : want->second);
          }
        }
      }
      const CachedStoreStats stats = stack.cached->cache_stats();
      EXPECT_LE(stats.used_bytes, stats.budget_bytes);
      EXPECT_GT(stats.hits, 0);
      EXPECT_LT(stats.hits, stats.finds);
      // All that was written is below, in the caches or not.
      for (const auto& [key, row] : model) {
        ASSERT_EQ(ReadRows(*stack.store, {{key.second, key.first}})[0], row);
      }
    }
  }
}

TEST(CachedStoreTest, WhatWasWrittenIsReadFromMemoryAndWhatWasReadIsNotKept) {
  Stack stack(int64_t{1} << 20);
  HOTROW_ASSERT_OK(Write(*stack.store, {{1, 0}}, {std::string(32, 'x')}));
  for (int i = 0; i < 2; ++i) ReadRows(*stack.cached, {{1, 0}});
  EXPECT_EQ(stack.cached->cache_stats().hits, 0);
  EXPECT_EQ(stack.store->Stats().finds, 2);
  HOTROW_ASSERT_OK(
      Write(*stack.cached, {{1, 0}, {2, 1}}, {std::string(32, 'y'), std::string(48, 'z')}));
  EXPECT_EQ(ReadRows(*stack.cached, {{2, 1}, {1, 0}}),
            (std::vector<std::string>{std::string(48, 'z'), std::string(32, 'y')}));
  EXPECT_EQ(stack.cached->cache_stats().hits, 2);
  EXPECT_EQ(stack.store->Stats().finds, 2);
  EXPECT_EQ(stack.cached->cache_stats().finds, 4);
}

TEST(CachedStoreTest, AStoreThatIsFullLeavesNothingStaleBehind) {
  Stack stack(int64_t{1} << 20, /*store_bytes=*/512 << 10);
  RandomStream random(1, RandomPurpose::kTest);
  absl::Status status;
  uint64_t next = 0;
  for (char fill = 'a'; status.ok(); fill = fill == 'z' ? 'a' : static_cast<char>(fill + 1)) {
    ASSERT_LT(next, 100'000);
    std::vector<RowKey> keys;
    // Old rows change, too: of a batch that fails some may be written.
    for (int i = 0; i < 500; ++i)
      keys.push_back({i < 250 && next > 0 ? random.Below(next) : next++, 0});
    status =
        Write(*stack.cached, keys, std::vector<std::string>(keys.size(), std::string(32, fill)));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  std::vector<RowKey> all;
  for (uint64_t key = 0; key < next; ++key) all.push_back({key, 0});
  EXPECT_EQ(ReadRows(*stack.cached, all), ReadRows(*stack.store, all));
}

TEST(CachedStoreTest, ErasedRowsAreGone) {
  Stack stack(int64_t{1} << 20);
  HOTROW_ASSERT_OK(
      Write(*stack.cached, {{1, 0}, {2, 0}}, {std::string(32, 'a'), std::string(32, 'b')}));
  const RowKey erased[] = {{1, 0}};
  HOTROW_ASSERT_OK(stack.cached->Erase(erased));
  EXPECT_EQ(ReadRows(*stack.cached, {{1, 0}, {2, 0}}),
            (std::vector<std::string>{"", std::string(32, 'b')}));
}

// A HostStore that calls a hook before a write or an erasure returns, which may also refuse it.
class HookedStore : public RowStore {
 public:
  using Hook = std::function<absl::Status()>;
  explicit HookedStore(RowStore* base) : base_(base) {}

  Hook before_write;  // an error refuses the batch behind its first row
  Hook after_write;
  Hook after_erase;

  std::function<void()> before_find;

  absl::Status Find(std::span<const RowKey> keys, std::span<std::byte* const> rows,
                    std::span<uint8_t> found) override {
    ++finds;
    if (before_find) before_find();
    return fail_finds ? absl::DataLossError("unreadable") : base_->Find(keys, rows, found);
  }
  absl::Status InsertOrAssign(std::span<const RowKey> keys,
                              std::span<const std::byte* const> rows) override {
    if (before_write) {
      if (const absl::Status status = before_write(); !status.ok()) {
        HOTROW_RETURN_IF_ERROR(base_->InsertOrAssign(keys.first(1), rows.first(1)));
        return status;
      }
    }
    HOTROW_RETURN_IF_ERROR(base_->InsertOrAssign(keys, rows));
    return after_write ? after_write() : absl::OkStatus();
  }
  absl::Status Erase(std::span<const RowKey> keys) override {
    HOTROW_RETURN_IF_ERROR(base_->Erase(keys));
    return after_erase ? after_erase() : absl::OkStatus();
  }
  absl::Status Iterate(
      absl::FunctionRef<absl::Status(const RowKey&, std::span<const std::byte>)> visit) override {
    return base_->Iterate(visit);
  }
  absl::Status Flush() override { return base_->Flush(); }
  using RowStore::PrepareSnapshot;
  absl::Status PrepareSnapshot(SnapshotId id, absl::FunctionRef<void()> captured) override {
    return base_->PrepareSnapshot(id, captured);
  }
  absl::Status CommitSnapshot(SnapshotId id) override { return base_->CommitSnapshot(id); }
  absl::Status DropSnapshot(SnapshotId id) override { return base_->DropSnapshot(id); }
  absl::StatusOr<std::vector<SnapshotId>> ListSnapshots() override {
    return base_->ListSnapshots();
  }
  absl::StatusOr<SnapshotInfo> DescribeSnapshot(SnapshotId snapshot) override {
    return base_->DescribeSnapshot(snapshot);
  }
  RowStoreStats Stats() const override { return base_->Stats(); }
  std::span<const StoreTable> tables() const override { return base_->tables(); }
  int64_t row_bytes(uint32_t table) const override { return base_->row_bytes(table); }

  int finds = 0;
  bool fail_finds = false;

 private:
  RowStore* const base_;
};

// A CachedStore over a HookedStore.
struct HookedStack {
  std::unique_ptr<HostStore> host;
  std::unique_ptr<HookedStore> store;
  std::unique_ptr<CachedStore> cached;

  explicit HookedStack(CachedStore::CacheFactory make_cache = RowCache::Create) {
    auto opened = HostStore::Open(
        {.tables = {std::begin(kTables), std::end(kTables)}, .budget_bytes = int64_t{16} << 20});
    HOTROW_EXPECT_OK(opened);
    host = *std::move(opened);
    store = std::make_unique<HookedStore>(host.get());
    const CachedStoreWidth widths[] = {{32, int64_t{1} << 20}, {48, int64_t{1} << 20}};
    auto created =
        CachedStore::Create(store.get(), widths, CachePolicy::kLru, std::move(make_cache));
    HOTROW_EXPECT_OK(created);
    cached = *std::move(created);
  }
};

// Runs `second` while the first call stands between the store and the caches. A second writer must
// wait there, so the wait for it ends by the clock.
class Overtaker {
 public:
  explicit Overtaker(std::function<absl::Status()> second) : second_(std::move(second)) {}
  ~Overtaker() {
    if (thread_.joinable()) thread_.join();
  }
  absl::Status Run() {
    if (thread_.joinable()) return absl::OkStatus();  // the second call itself
    std::promise<void> ended;
    std::future<void> end = ended.get_future();
    thread_ = std::thread([this, ended = std::move(ended)]() mutable {
      HOTROW_EXPECT_OK(second_());
      ended.set_value();
    });
    end.wait_for(std::chrono::milliseconds(100));
    return absl::OkStatus();
  }

 private:
  const std::function<absl::Status()> second_;
  std::thread thread_;
};

TEST(CachedStoreTest, OfTwoWritersTheLastOneBelowIsTheLastOneHere) {
  HookedStack stack;
  {
    bool first = true;  // the other thread reads it, too
    Overtaker overtaker([&] { return Write(*stack.cached, {{1, 0}}, {std::string(32, 'n')}); });
    stack.store->after_write = [&]() -> absl::Status {
      return std::exchange(first, false) ? overtaker.Run() : absl::OkStatus();
    };
    HOTROW_ASSERT_OK(Write(*stack.cached, {{1, 0}}, {std::string(32, 'o')}));
  }
  EXPECT_EQ(ReadRows(*stack.host, {{1, 0}})[0], std::string(32, 'n'));
  EXPECT_EQ(ReadRows(*stack.cached, {{1, 0}})[0], std::string(32, 'n'));
}

TEST(CachedStoreTest, AnErasureThatRacesAWriteLeavesNoRowHereThatIsGoneBelow) {
  HookedStack stack;
  {
    Overtaker overtaker([&] {
      const RowKey erased[] = {{1, 0}};
      return stack.cached->Erase(erased);
    });
    stack.store->after_write = [&] { return overtaker.Run(); };
    HOTROW_ASSERT_OK(Write(*stack.cached, {{1, 0}}, {std::string(32, 'o')}));
  }
  EXPECT_EQ(ReadRows(*stack.host, {{1, 0}})[0], "");
  EXPECT_EQ(ReadRows(*stack.cached, {{1, 0}})[0], "");
}

// Behind a refused write the rows that are here are read again, while no other call may see them.
TEST(CachedStoreTest, CountsAreReadWhileTheCachesChange) {
  HookedStack stack;
  HOTROW_ASSERT_OK(Write(*stack.cached, {{1, 0}}, {std::string(32, 'o')}));
  std::future<CachedStoreStats> stats;
  std::future_status ready = std::future_status::timeout;
  stack.store->before_write = [] { return absl::UnavailableError("refused"); };
  stack.store->before_find = [&] {
    stats = std::async(std::launch::async, [&] { return stack.cached->cache_stats(); });
    ready = stats.wait_for(std::chrono::seconds(10));
  };
  EXPECT_EQ(Write(*stack.cached, {{1, 0}}, {std::string(32, 'n')}).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(ready, std::future_status::ready);
  EXPECT_GT(stats.get().used_bytes, 0);
}

// What is not here need not cost what is.
TEST(CachedStoreTest, AnErasureOfOtherRowsLeavesTheCachesAlone) {
  HookedStack stack;
  HOTROW_ASSERT_OK(
      Write(*stack.cached, {{1, 0}, {2, 1}}, {std::string(32, 'a'), std::string(48, 'b')}));
  const RowKey others[] = {{2, 0}, {1, 1}, {7, 0}};
  HOTROW_ASSERT_OK(stack.cached->Erase(others));
  const int finds = stack.store->finds;
  EXPECT_EQ(ReadRows(*stack.cached, {{1, 0}})[0], std::string(32, 'a'));
  EXPECT_EQ(ReadRows(*stack.cached, {{2, 1}})[0], std::string(48, 'b'));
  EXPECT_EQ(stack.store->finds, finds);
}

TEST(CachedStoreTest, ARefusedWriteKeepsTheOtherRowsAndShowsWhatItWrote) {
  HookedStack stack;
  std::vector<RowKey> keys;
  for (uint64_t key = 0; key < 200; ++key) keys.push_back({key, key % 2 == 0 ? 0u : 1u});
  const auto rows = [&](char fill) {
    std::vector<std::string> result;
    for (const RowKey& key : keys) {
      result.emplace_back(stack.cached->row_bytes(key.table), fill);
    }
    return result;
  };
  HOTROW_ASSERT_OK(Write(*stack.cached, keys, rows('a')));
  stack.store->before_write = [] { return absl::UnavailableError("not now"); };
  // The first row of the batch reaches the store, the second does not.
  const std::vector<RowKey> batch = {{0, 0}, {1, 1}};
  EXPECT_EQ(Write(*stack.cached, batch, {std::string(32, 'b'), std::string(48, 'b')}).code(),
            absl::StatusCode::kUnavailable);
  std::vector<std::string> expected = rows('a');
  expected[0] = std::string(32, 'b');
  stack.store->finds = 0;
  EXPECT_EQ(ReadRows(*stack.cached, keys), expected);
  EXPECT_EQ(stack.store->finds, 0);  // all from memory

  // Where the store cannot be read either, nothing here is trusted.
  stack.store->fail_finds = true;
  EXPECT_EQ(Write(*stack.cached, batch, {std::string(32, 'c'), std::string(48, 'c')}).code(),
            absl::StatusCode::kUnavailable);
  stack.store->fail_finds = false;
  expected[0] = std::string(32, 'c');
  EXPECT_EQ(ReadRows(*stack.cached, keys), expected);
  EXPECT_EQ(stack.store->finds, 2);
}

TEST(CachedStoreTest, AnErasureThatFailedLeavesNoRowHereThatIsGoneBelow) {
  HookedStack stack;
  HOTROW_ASSERT_OK(Write(*stack.cached, {{1, 0}}, {std::string(32, 'a')}));
  stack.store->after_erase = [] { return absl::UnavailableError("later"); };
  const RowKey erased[] = {{1, 0}};
  EXPECT_EQ(stack.cached->Erase(erased).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReadRows(*stack.cached, {{1, 0}})[0], "");
}

TEST(CachedStoreTest, ACacheThatCannotBeMadeAgainIsDoneWithout) {
  bool fails = false;
  HookedStack stack(
      [&](const RowCacheOptions& options) -> absl::StatusOr<std::unique_ptr<RowCache>> {
        if (fails) return absl::ResourceExhaustedError("no memory");
        return RowCache::Create(options);
      });
  const std::vector<RowKey> keys = {{1, 0}, {2, 1}};
  const std::vector<std::string> rows = {std::string(32, 'a'), std::string(48, 'b')};
  HOTROW_ASSERT_OK(Write(*stack.cached, keys, rows));
  const RowKey erased[] = {{3, 0}};
  HOTROW_ASSERT_OK(Write(*stack.cached, {erased[0]}, {rows[0]}));
  fails = true;
  HOTROW_ASSERT_OK(stack.cached->Erase(erased));
  EXPECT_EQ(ReadRows(*stack.cached, keys), rows);
  EXPECT_EQ(stack.cached->cache_stats().hits, 0);
  HOTROW_ASSERT_OK(Write(*stack.cached, keys, rows));
  EXPECT_EQ(ReadRows(*stack.cached, keys), rows);
  EXPECT_EQ(stack.cached->cache_stats().hits, 0);
  std::byte row[48];
  std::byte* const one[] = {row};
  uint8_t found[1];
  const RowKey unknown[] = {{1, 3}};
  EXPECT_EQ(stack.cached->Find(unknown, one, found).code(), absl::StatusCode::kInvalidArgument);
  // The next write makes it again.
  fails = false;
  HOTROW_ASSERT_OK(Write(*stack.cached, keys, rows));
  EXPECT_EQ(ReadRows(*stack.cached, keys), rows);
  EXPECT_EQ(stack.cached->cache_stats().hits, 2);
}

TEST(CachedStoreTest, BadCallsSayWhatTheStoreSays) {
  Stack stack(int64_t{1} << 20);
  std::byte row[48];
  std::byte* rows[] = {row};
  uint8_t found[1];
  const RowKey unknown[] = {{1, 3}};
  EXPECT_EQ(stack.cached->Find(unknown, rows, found), stack.store->Find(unknown, rows, found));
  EXPECT_EQ(stack.cached->Find(unknown, rows, found).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stack.cached->Find(unknown, rows, {}).code(), absl::StatusCode::kInvalidArgument);
  const std::byte* const written[] = {row};
  EXPECT_EQ(stack.cached->InsertOrAssign(unknown, written).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stack.cached->InsertOrAssign(unknown, {}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CachedStoreTest, ABudgetThatIsTooSmallIsRefused) {
  const Stack stack(int64_t{1} << 20);
  const CachedStoreWidth widths[] = {{32, CachedStore::MinCacheBytes(32) - 1}, {48, 1 << 20}};
  const auto cached = CachedStore::Create(stack.store.get(), widths, CachePolicy::kLru);
  EXPECT_EQ(cached.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(cached.status().message()),
              testing::HasSubstr("host cache: a budget of " +
                                 std::to_string(CachedStore::MinCacheBytes(32) - 1)));
}

}  // namespace
}  // namespace hotrow
