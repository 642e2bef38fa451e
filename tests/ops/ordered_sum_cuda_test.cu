#include "ops/training/ordered_sum.h"

#include <vector>

#include "base/philox.h"
#include "tests/ops/cuda_op_test.cuh"

namespace hotrow {
namespace {

using test::DeviceArray;

TEST(OrderedSumCudaTest, SumsAreThoseOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  RandomStream random(7, RandomPurpose::kTest);
  for (const int64_t size : {int64_t{1}, int64_t{255}, int64_t{4099}}) {
    for (const int64_t num_parts : {int64_t{1}, int64_t{2}, int64_t{7}}) {
      const int64_t stride = size + num_parts % 2;
      std::vector<float> parts(static_cast<size_t>(num_parts * stride));
      for (float& part : parts) {
        part = static_cast<float>(random.Uniform() - 0.5) * (random.Below(2) == 0 ? 1e6f : 1e-3f);
      }
      std::vector<float> want(static_cast<size_t>(size));
      OrderedSumArgs args = {.parts = parts.data(),
                             .num_parts = num_parts,
                             .stride = stride,
                             .size = size,
                             .sum = want.data()};
      HOTROW_ASSERT_OK(OrderedSum({}, args));
      DeviceArray<float> device_parts(parts);
      args.parts = device_parts.data();
      for (const test::Enqueue enqueue : test::kBothWays) {
        DeviceArray<float> sum(want.size());
        args.sum = sum.data();
        test::RunOnGpu(enqueue, [&](const ExecContext& ctx) { return OrderedSum(ctx, args); });
        EXPECT_TRUE(sum.ToHost() == want) << size << " " << num_parts;
      }
    }
  }
}

}  // namespace
}  // namespace hotrow
