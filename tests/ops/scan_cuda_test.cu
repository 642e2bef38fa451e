#include <vector>

#include "ops/keys/scan_impl.cuh"
#include "tests/ops/cuda_op_test.cuh"

namespace hotrow {
namespace {

using internal::ScanBlock;
using test::DeviceArray;

// before[w] = the sum before warp w of all; the sum of a warp is its number and one.
__global__ void SumWarpsKernel(uint64_t* words, uint64_t* before) {
  __shared__ ScanBlock::Shared shared;
  ScanBlock scan(words, shared);
  const int64_t warp = scan.first_item() / (internal::kWarpThreads * internal::kScanRounds);
  const uint64_t sum = scan.Before(static_cast<uint64_t>(warp) + 1);
  if (internal::GroupLane() == 0) before[warp] = sum;
}

// So many blocks are under way that a tile looks back at more than a warp does at a time, and at
// some that know only their own sum.
TEST(ScanCudaTest, ATileAddsUpWhatTheTilesBeforeItTold) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const int64_t told : {0, 1, 31, 32, 33, 64, 100}) {
    for (const int64_t known : {0, 1, 40, 99}) {
      if (known > 0 && known >= told) continue;
      SCOPED_TRACE(testing::Message() << told << " tiles told, number " << known << " all");
      constexpr int64_t kBlocks = 3;
      std::vector<uint64_t> words(static_cast<size_t>(told + kBlocks) + 1, ~uint64_t{0});
      words[0] = static_cast<uint64_t>(told) - 1;
      uint64_t sum = 0;
      for (int64_t tile = 0; tile < told; ++tile) {
        const auto own = static_cast<uint64_t>(1000 + tile);
        sum += own;
        const bool all = tile == 0 || tile == known;
        words[static_cast<size_t>(tile) + 1] =
            (all ? ScanBlock::kUpToEnd : ScanBlock::kOwn) << ScanBlock::kWhat | (all ? sum : own);
      }
      const auto warps = static_cast<size_t>((told + kBlocks) * ScanBlock::kWarps);
      DeviceArray<uint64_t> device_words(words);
      DeviceArray<uint64_t> before(std::vector<uint64_t>(warps, 0));
      test::RunOnGpu(test::Enqueue::kDirectly, [&](const ExecContext& ctx) {
        SumWarpsKernel<<<kBlocks, internal::kThreadsPerBlock, 0, ctx.stream>>>(device_words.data(),
                                                                               before.data());
        return internal::LastLaunch("SumWarps");
      });
      const std::vector<uint64_t> got = before.ToHost();
      for (auto warp = static_cast<size_t>(told * ScanBlock::kWarps); warp < warps; ++warp) {
        ASSERT_EQ(got[warp], sum) << "before warp " << warp;
        sum += warp + 1;
      }
      const std::vector<uint64_t> ends = device_words.ToHost();
      EXPECT_EQ(ends.back(), ScanBlock::kUpToEnd << ScanBlock::kWhat | sum);
    }
  }
}

}  // namespace
}  // namespace hotrow
