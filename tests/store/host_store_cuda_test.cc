// A memory store whose rows a GPU reads where they lie.

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "store/host/host_rows_impl.h"
#include "store/host/host_store.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Adds `count` rows of table 1, a few at a time, as steps do.
void AddRows(internal::HostRows& rows, uint64_t count) {
  constexpr uint64_t kBatch = 500;
  for (uint64_t first = 0; first < count; first += kBatch) {
    std::vector<RowKey> keys;
    for (uint64_t i = first; i < first + kBatch && i < count; ++i) keys.push_back({i, 1});
    int64_t added = 0;
    HOTROW_ASSERT_OK(rows.UpsertBatch(
        keys, [](size_t, int64_t, std::byte*, bool) {}, &added));
  }
}

TEST(HostStoreCudaTest, TablesOfKnownSizeLockNothingAfterTheStart) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  constexpr int64_t kRows = 30'000;
  ThreadPool pool(2);
  const HostStoreOptions options = {.tables = {{1, 272}},
                                    .budget_bytes = 64 * kMiB,
                                    .device = Device::kCuda,
                                    .rows_max = {kRows},
                                    .pool = &pool};
  internal::MemoryBudget budget(options.budget_bytes);
  internal::HostRows rows(options, budget);
  HOTROW_ASSERT_OK(rows.Init());
  const int64_t locked = rows.arena().num_extents();
  EXPECT_LE(locked, 2) << "large extents";
  AddRows(rows, kRows);
  EXPECT_EQ(rows.arena().num_extents(), locked);
}

TEST(HostStoreCudaTest, TablesWithoutALimitLockWhatGoesBeyondTheStart) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const HostStoreOptions options = {
      .tables = {{1, 272}}, .budget_bytes = 64 * kMiB, .device = Device::kCuda};
  internal::MemoryBudget budget(options.budget_bytes);
  internal::HostRows rows(options, budget);
  HOTROW_ASSERT_OK(rows.Init());
  EXPECT_GE(rows.arena().extent_bytes(), 16 * kMiB);
  const int64_t locked = rows.arena().num_extents();
  AddRows(rows, 100'000);
  EXPECT_GT(rows.arena().num_extents(), locked);
  EXPECT_LE(budget.used(), budget.budget());
}

}  // namespace
}  // namespace hotrow
