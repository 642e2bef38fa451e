#include <vector>

#include "base/philox.h"
#include "ops/split_slots.h"
#include "tests/ops/cuda_op_test.cuh"

namespace hotrow {
namespace {

using test::DeviceArray;

constexpr int64_t kUntouched = -9;

struct Result {
  explicit Result(size_t n)
      : hit_slots(n, kUntouched),
        miss_keys(n, RowKey{1, 2}),
        miss_counts(n, kUntouched),
        miss_positions(n, kUntouched),
        totals(1, {77, 77}) {}

  std::vector<int64_t> hit_slots;
  std::vector<RowKey> miss_keys;
  std::vector<int32_t> miss_counts;
  std::vector<int32_t> miss_positions;
  std::vector<SplitSlotsTotals> totals;
};

// What is beyond the hits and the misses is left alone as well.
void ExpectAsOnTheCpu(const std::vector<int64_t>& slots) {
  const size_t n = slots.size();
  std::vector<RowKey> keys;
  std::vector<int32_t> counts;
  for (size_t i = 0; i < n; ++i) {
    keys.push_back({1000 + i, static_cast<uint32_t>(i % 3)});
    counts.push_back(static_cast<int32_t>(i * i % 1'000'003));
  }
  Result want(n);
  HOTROW_ASSERT_OK(SplitSlots({}, {.keys = keys.data(),
                                   .counts = counts.data(),
                                   .slots = slots.data(),
                                   .num_keys = std::ssize(slots),
                                   .hit_slots = want.hit_slots.data(),
                                   .miss_keys = want.miss_keys.data(),
                                   .miss_counts = want.miss_counts.data(),
                                   .miss_positions = want.miss_positions.data(),
                                   .totals = want.totals.data()}));
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
                              .workspace_bytes = workspace_bytes});
    });
    EXPECT_TRUE(hit_slots.ToHost() == want.hit_slots);
    EXPECT_TRUE(miss_keys.ToHost() == want.miss_keys);
    EXPECT_TRUE(miss_counts.ToHost() == want.miss_counts);
    EXPECT_TRUE(miss_positions.ToHost() == want.miss_positions);
    EXPECT_EQ(totals.ToHost()[0].misses, want.totals[0].misses);
    EXPECT_EQ(totals.ToHost()[0].hit_lookups, want.totals[0].hit_lookups);
  }
}

TEST(SplitSlotsCudaTest, AllOfOneKind) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const size_t n :
       {size_t{0}, size_t{1}, size_t{31}, size_t{33}, size_t{4095}, size_t{4096}, size_t{4097}}) {
    SCOPED_TRACE(n);
    ExpectAsOnTheCpu(std::vector<int64_t>(n, -1));
    ExpectAsOnTheCpu(std::vector<int64_t>(n, 5));
  }
}

TEST(SplitSlotsCudaTest, RandomHits) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(3)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    for (const double miss_share : {0.001, 0.2, 0.9}) {
      std::vector<int64_t> slots(3000 + random.Below(20'000));
      for (size_t i = 0; i < slots.size(); ++i) {
        slots[i] = random.Uniform() < miss_share ? -1 : static_cast<int64_t>(i) << 20;
      }
      ExpectAsOnTheCpu(slots);
    }
  }
}

}  // namespace
}  // namespace hotrow
