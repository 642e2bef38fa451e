// The planner's bytes against those of live stores.

#include "tools/plan/tier_bytes.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/philox.h"
#include "cache/row_cache.h"
#include "store/host/host_store.h"
#include "store/ssd/ssd_store.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

// Inserts rows 0 .. rows - 1 of a table, batch by batch.
void Insert(RowStore& store, uint32_t table, int64_t rows, int64_t row_bytes) {
  const std::vector<std::byte> row(static_cast<size_t>(row_bytes), std::byte{1});
  constexpr int64_t kBatch = 8192;
  for (int64_t begin = 0; begin < rows; begin += kBatch) {
    std::vector<RowKey> keys;
    for (int64_t i = begin; i < std::min(rows, begin + kBatch); ++i) {
      keys.push_back({Mix64(static_cast<uint64_t>(i)), table});
    }
    const std::vector<const std::byte*> pointers(keys.size(), row.data());
    HOTROW_ASSERT_OK(store.InsertOrAssign(keys, pointers));
  }
}

TEST(TierBytesTest, CachesAreWhatRowCacheMakes) {
  for (const int64_t row_bytes : {16, 80, 528, 1552}) {
    for (const int64_t budget : {int64_t{1} << 20, int64_t{10} << 20, int64_t{200} << 20}) {
      const CacheBytes size = SizeOfCache(budget, row_bytes);
      if (size.ways == 0) continue;
      HOTROW_ASSERT_OK_AND_ASSIGN(
          const auto cache,
          RowCache::Create({.row_bytes = row_bytes, .budget_bytes = budget - size.buffer_bytes}));
      EXPECT_EQ(size.ways, cache->Size().ways);
      EXPECT_EQ(size.total() - size.buffer_bytes, cache->Size().used_bytes);
      EXPECT_LE(size.total(), budget);
      EXPECT_GE(size.metadata_bytes, size.ways * 16);
      const int64_t least = CacheBudgetForWays(size.ways, row_bytes);
      EXPECT_LE(least, budget);
      EXPECT_GE(SizeOfCache(least, row_bytes).ways, size.ways);
      EXPECT_LT(SizeOfCache(least - 1, row_bytes).ways, size.ways);
    }
  }
}

TEST(TierBytesTest, HostStoresAreWithinTwoPercentAndAnExtent) {
  struct Case {
    std::vector<TierRows> tables;
    bool rows_are_many = false;
  };
  const std::vector<Case> cases = {{{{200'000, 80}}},
                                   {{{500'000, 32}}},
                                   {{{100'000, 528}}},
                                   {{{400'000, 144}, {50'000, 144}, {1000, 272}}},
                                   {{{3'000'000, 272}, {500'000, 80}}, true}};
  for (const Case& c : cases) {
    if (c.rows_are_many && !test::RunsSlowTests()) continue;
    const double budget = SizeOfHostStore(c.tables, 0).total() * 1.2;
    HostStoreOptions options;
    options.budget_bytes = static_cast<int64_t>(budget);
    for (uint32_t t = 0; t < c.tables.size(); ++t) {
      options.tables.push_back({t, c.tables[t].row_bytes});
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, HostStore::Open(options));
    for (uint32_t t = 0; t < c.tables.size(); ++t) {
      Insert(*store, t, static_cast<int64_t>(c.tables[t].rows), c.tables[t].row_bytes);
    }
    const HostStoreBytes size = SizeOfHostStore(c.tables, budget);
    const auto used = static_cast<double>(store->Stats().used_bytes);
    std::printf("host store of %.0f rows of %ld bytes: used %.0f, planned %.0f (%+.2f %%)\n",
                c.tables[0].rows, static_cast<long>(c.tables[0].row_bytes), used, size.total(),
                100 * (size.total() / used - 1));
    // The last extent is full or nearly empty; which of them hangs on a few bytes.
    const double extent = std::clamp(used / 8, 65'536.0, 33'554'432.0);
    EXPECT_NEAR(size.total(), used, c.rows_are_many ? 0.02 * used : 0.02 * used + extent);
  }
}

TEST(TierBytesTest, SsdStoresAreNearTheirFormulas) {
  for (const int64_t row_bytes : {32, 144, 528}) {
    const int64_t rows = 100'000;
    const std::vector<TierRows> tables = {{static_cast<double>(rows), row_bytes}};
    const SsdStoreBytes size = SizeOfSsdStore(tables, 1e12);
    SsdStoreOptions options;
    options.path = absl::StrCat(test::TempDir(), "/ssd", row_bytes);
    options.tables = {{0, row_bytes}};
    options.memory_budget_bytes = int64_t{512} << 20;
    options.disk_budget_bytes = static_cast<int64_t>(size.disk_bytes);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, SsdStore::Open(options));
    Insert(*store, 0, rows, row_bytes);
    HOTROW_ASSERT_OK(store->Flush());
    const auto live = static_cast<double>(store->SsdStats().live_bytes);
    const auto index = static_cast<double>(store->SsdStats().index_bytes);
    const auto memory = static_cast<double>(store->Stats().used_bytes);
    std::printf("ssd store, rows of %ld bytes: live %+.2f %%, index %+.2f %%, memory %+.2f %%\n",
                static_cast<long>(row_bytes), 100 * (size.live_bytes / live - 1),
                100 * (size.index_bytes / index - 1), 100 * (size.memory() / memory - 1));
    EXPECT_NEAR(size.live_bytes / live, 1, 0.02);
    EXPECT_NEAR(size.index_bytes / index, 1, 0.06);
    EXPECT_NEAR(size.memory() / memory, 1, 0.1);
    HOTROW_ASSERT_OK(store->Close());
  }
}

// Places drawn at random and merged as SsdStore::Find does.
TEST(TierBytesTest, ReadsOfNeighboursAreMerged) {
  RandomStream random(7, RandomPurpose::kTest);
  constexpr double kRecord = 104;
  for (const double log_bytes : {2e7, 2e8, 2e9}) {
    for (const int rows : {100, 2000, 16'000}) {
      std::vector<double> places;
      for (int i = 0; i < rows; ++i) places.push_back(random.Uniform() * log_bytes);
      std::sort(places.begin(), places.end());
      double reads = 0;
      double begin = -1e18;
      for (const double place : places) {
        if (place + kRecord - begin <= 16 << 10) continue;
        begin = place;
        ++reads;
      }
      EXPECT_NEAR(SsdReads(rows, kRecord, log_bytes) / reads, 1, 0.05) << log_bytes << " " << rows;
    }
  }
}

}  // namespace
}  // namespace hotrow
