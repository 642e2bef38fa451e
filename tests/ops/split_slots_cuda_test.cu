#include <vector>

#include "base/philox.h"
#include "ops/keys/split_slots.h"
#include "tests/ops/cuda_op_test.cuh"

namespace hotrow {
namespace {

using test::DeviceArray;

constexpr int64_t kUntouched = -9;
constexpr int64_t kTables = 40;

struct Result {
  explicit Result(size_t n)
      : hit_slots(n, kUntouched),
        miss_keys(n, RowKey{1, 2}),
        miss_counts(n, kUntouched),
        miss_positions(n, kUntouched),
        totals(1, {77, 77}),
        found_keys(n, RowKey{1, 2}),
        found_positions(n, kUntouched),
        found_rows(n),
        found_of_table(kTables, {77, 77}) {}

  std::vector<int64_t> hit_slots;
  std::vector<RowKey> miss_keys;
  std::vector<int32_t> miss_counts;
  std::vector<int32_t> miss_positions;
  std::vector<SplitSlotsTotals> totals;
  std::vector<RowKey> found_keys;
  std::vector<int32_t> found_positions;
  std::vector<std::byte*> found_rows;
  std::vector<FoundOfTable> found_of_table;
};

// What is beyond the hits and the misses is left alone as well. rows: empty, or what was found.
void ExpectAsOnTheCpu(const std::vector<int64_t>& slots, const std::vector<std::byte*>& rows = {}) {
  const size_t n = slots.size();
  std::vector<RowKey> keys;
  std::vector<int32_t> counts;
  for (size_t i = 0; i < n; ++i) {
    // A few tables in turn, then long runs of one.
    keys.push_back({1000 + i, static_cast<uint32_t>(i < n / 2 ? i % 3 : i / 100 % kTables)});
    counts.push_back(static_cast<int32_t>(i * i % 1'000'003));
  }
  Result want(n);
  const bool finds = !rows.empty();
  HOTROW_ASSERT_OK(SplitSlots({}, {.keys = keys.data(),
                                   .counts = counts.data(),
                                   .slots = slots.data(),
                                   .num_keys = std::ssize(slots),
                                   .hit_slots = want.hit_slots.data(),
                                   .miss_keys = want.miss_keys.data(),
                                   .miss_counts = want.miss_counts.data(),
                                   .miss_positions = want.miss_positions.data(),
                                   .totals = want.totals.data(),
                                   .rows = finds ? rows.data() : nullptr,
                                   .found_keys = want.found_keys.data(),
                                   .found_positions = want.found_positions.data(),
                                   .found_rows = want.found_rows.data(),
                                   .found_of_table = want.found_of_table.data(),
                                   .num_tables = kTables}));
  const int64_t workspace_bytes = SplitSlotsWorkspaceBytes(std::ssize(slots), Device::kCuda);
  for (const test::Enqueue enqueue : test::kBothWays) {
    SCOPED_TRACE(enqueue == test::Enqueue::kAsGraph ? "as a graph" : "directly");
    const Result before(n);
    DeviceArray<RowKey> device_keys(keys);
    DeviceArray<int32_t> device_counts(counts);
    DeviceArray<int64_t> device_slots(slots);
    DeviceArray<int64_t> hit_slots(before.hit_slots);
    DeviceArray<RowKey> miss_keys(before.miss_keys);
    DeviceArray<int32_t> miss_counts(before.miss_counts);
    DeviceArray<int32_t> miss_positions(before.miss_positions);
    DeviceArray<SplitSlotsTotals> totals(before.totals);
    DeviceArray<std::byte*> device_rows(rows);
    DeviceArray<RowKey> found_keys(before.found_keys);
    DeviceArray<int32_t> found_positions(before.found_positions);
    DeviceArray<std::byte*> found_rows(before.found_rows);
    DeviceArray<FoundOfTable> found_of_table(before.found_of_table);
    DeviceArray<std::byte> workspace(
        std::vector<std::byte>(static_cast<size_t>(workspace_bytes), std::byte{0xa5}));
    test::RunOnGpu(enqueue, [&](const ExecContext& ctx) {
      return SplitSlots(ctx, {.keys = device_keys.data(),
                              .counts = device_counts.data(),
                              .slots = device_slots.data(),
                              .num_keys = std::ssize(slots),
                              .hit_slots = hit_slots.data(),
                              .miss_keys = miss_keys.data(),
                              .miss_counts = miss_counts.data(),
                              .miss_positions = miss_positions.data(),
                              .totals = totals.data(),
                              .workspace = workspace.data(),
                              .workspace_bytes = workspace_bytes,
                              .rows = finds ? device_rows.data() : nullptr,
                              .found_keys = found_keys.data(),
                              .found_positions = found_positions.data(),
                              .found_rows = found_rows.data(),
                              .found_of_table = found_of_table.data(),
                              .num_tables = kTables});
    });
    EXPECT_TRUE(hit_slots.ToHost() == want.hit_slots);
    EXPECT_TRUE(miss_keys.ToHost() == want.miss_keys);
    EXPECT_TRUE(miss_counts.ToHost() == want.miss_counts);
    EXPECT_TRUE(miss_positions.ToHost() == want.miss_positions);
    EXPECT_EQ(totals.ToHost()[0].misses, want.totals[0].misses);
    EXPECT_EQ(totals.ToHost()[0].hit_lookups, want.totals[0].hit_lookups);
    EXPECT_EQ(totals.ToHost()[0].found, want.totals[0].found);
    EXPECT_TRUE(found_keys.ToHost() == want.found_keys);
    EXPECT_TRUE(found_positions.ToHost() == want.found_positions);
    EXPECT_TRUE(found_rows.ToHost() == want.found_rows);
    const std::vector<FoundOfTable> of_table = found_of_table.ToHost();
    for (size_t t = 0; t < of_table.size(); ++t) {
      EXPECT_EQ(of_table[t].keys, want.found_of_table[t].keys) << t;
      EXPECT_EQ(of_table[t].lookups, want.found_of_table[t].lookups) << t;
    }
  }
}

TEST(SplitSlotsCudaTest, AllOfOneKind) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const size_t n :
       {size_t{0}, size_t{1}, size_t{31}, size_t{33}, size_t{4095}, size_t{4096}, size_t{4097}}) {
    SCOPED_TRACE(n);
    ExpectAsOnTheCpu(std::vector<int64_t>(n, -1));
    ExpectAsOnTheCpu(std::vector<int64_t>(n, 5));
    std::byte* const row = reinterpret_cast<std::byte*>(uintptr_t{16});
    ExpectAsOnTheCpu(std::vector<int64_t>(n, -1), std::vector<std::byte*>(n, row));
  }
}

TEST(SplitSlotsCudaTest, RandomHits) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(test::ForGpu(3, 1))) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    for (const double miss_share : {0.001, 0.2, 0.9}) {
      std::vector<int64_t> slots(3000 + random.Below(20'000));
      for (size_t i = 0; i < slots.size(); ++i) {
        slots[i] = random.Uniform() < miss_share ? -1 : static_cast<int64_t>(i) << 20;
      }
      ExpectAsOnTheCpu(slots);
      // Most of the misses are found; rows of keys that hit mean nothing.
      std::vector<std::byte*> rows(slots.size());
      for (size_t i = 0; i < rows.size(); ++i) {
        rows[i] = random.Below(5) == 0 ? nullptr : reinterpret_cast<std::byte*>(16 * (i + 1));
      }
      ExpectAsOnTheCpu(slots, rows);
    }
  }
}

}  // namespace
}  // namespace hotrow
