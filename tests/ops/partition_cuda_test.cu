#include <algorithm>
#include <cmath>
#include <vector>

#include "base/philox.h"
#include "ops/keys/partition.h"
#include "tests/ops/cuda_op_test.cuh"

namespace hotrow {
namespace {

using test::DeviceArray;

void ExpectAsOnTheCpu(const std::vector<int32_t>& parts, int64_t num_parts) {
  const auto n = static_cast<int64_t>(parts.size());
  std::vector<int64_t> want_offsets(static_cast<size_t>(num_parts) + 1);
  std::vector<int32_t> want_order(parts.size());
  HOTROW_ASSERT_OK(
      Partition({}, {parts.data(), n, num_parts, want_offsets.data(), want_order.data()}));
  const int64_t workspace_bytes = PartitionWorkspaceBytes(Device::kCuda, n, num_parts);
  for (const test::Enqueue enqueue : test::kBothWays) {
    // A graph has the same launches: for some sizes is enough.
    if (test::kEmulatedGpu && enqueue == test::Enqueue::kAsGraph && parts.size() % 2 == 1) continue;
    SCOPED_TRACE(enqueue == test::Enqueue::kAsGraph ? "as a graph" : "directly");
    DeviceArray<int32_t> part(parts);
    DeviceArray<int64_t> offsets(std::vector<int64_t>(want_offsets.size(), -1));
    DeviceArray<int32_t> order(std::vector<int32_t>(parts.size(), -1));
    DeviceArray<std::byte> workspace(
        std::vector<std::byte>(static_cast<size_t>(workspace_bytes), std::byte{0xa5}));
    test::RunOnGpu(enqueue, [&](const ExecContext& ctx) {
      return Partition(ctx, {.part = part.data(),
                             .num_items = n,
                             .num_parts = num_parts,
                             .offsets = offsets.data(),
                             .order = order.data(),
                             .workspace = workspace.data(),
                             .workspace_bytes = workspace_bytes});
    });
    EXPECT_TRUE(offsets.ToHost() == want_offsets);
    EXPECT_TRUE(order.ToHost() == want_order);
  }
}

TEST(PartitionCudaTest, NoItemsAndOnePart) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  ExpectAsOnTheCpu({}, 0);
  ExpectAsOnTheCpu({}, 3);
  ExpectAsOnTheCpu({}, 1000);
  ExpectAsOnTheCpu({0}, 1);
  ExpectAsOnTheCpu(std::vector<int32_t>(5000, 0), 1);
}

// One to three passes, at and beside the sizes of digits, warps and tiles; more parts than items.
TEST(PartitionCudaTest, RandomParts) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(test::ForGpu(2, 1))) {
    RandomStream random(seed, RandomPurpose::kTest);
    for (const int64_t num_parts : {2, 3, 8, 1023, 1024, 1025, 70'000, (1 << 20) + 3}) {
      if (test::kEmulatedGpu && num_parts > 2 && num_parts < 1024) continue;
      for (const size_t n :
           {size_t{1}, size_t{32}, size_t{33}, size_t{4096}, size_t{4097}, size_t{9000}}) {
        if (test::kEmulatedGpu && (n == 32 || n == 33 || n == 4096)) continue;
        if (test::kEmulatedGpu && num_parts > 70'000 && n < 9000) continue;
        SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed << ", " << n << " items, "
                                        << num_parts << " parts");
        std::vector<int32_t> parts(n);
        for (int32_t& p : parts) {
          p = static_cast<int32_t>(random.Below(static_cast<uint64_t>(num_parts)));
        }
        ExpectAsOnTheCpu(parts, num_parts);
      }
    }
  }
}

TEST(PartitionCudaTest, SortedReversedEqualAndHotParts) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  constexpr int32_t kParts = test::ForGpu(100'000, 10'000);
  std::vector<int32_t> parts(kParts);
  for (int32_t i = 0; i < kParts; ++i) parts[i] = i;
  ExpectAsOnTheCpu(parts, kParts);
  std::reverse(parts.begin(), parts.end());
  ExpectAsOnTheCpu(parts, kParts);
  for (const int32_t part : {0, 1023, 1024, kParts - 1}) {
    if (test::kEmulatedGpu && part != 1024) continue;
    std::fill(parts.begin(), parts.end(), part);
    ExpectAsOnTheCpu(parts, kParts);
  }
  RandomStream random(1, RandomPurpose::kTest);
  for (int32_t& p : parts) {
    p = static_cast<int32_t>(std::exp(random.Uniform() * std::log(kParts)));
  }
  ExpectAsOnTheCpu(parts, kParts);
}

}  // namespace
}  // namespace hotrow
