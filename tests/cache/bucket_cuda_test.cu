#include <cuda_runtime_api.h>

#include <cstring>
#include <vector>

#include "base/philox.h"
#include "base/warp.cuh"
#include "base/warp.h"
#include "cache/bucket.h"
#include "gtest/gtest.h"
#include "tests/cache/bucket_model.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"

// The bucket functions of a GPU's thread against the same functions of the host's: equal answers
// and equal bytes afterwards. Loads that see what other threads do answer alike while nobody does.

namespace hotrow {
namespace {

using cache::Bucket;
using test::DeviceArray;

constexpr int kThreads = 128;
constexpr cache::ScoreRule kRule = {.placed = 4, .touch_add = 4};

struct Answer {
  int found;
  uint32_t free;
  uint32_t unpinned;
  cache::PairWay free_way;
  cache::PairWay victim;
};

// What FindOrInsert does with one key and its two buckets, with all intermediate answers.
#pragma nv_exec_check_disable
template <typename Warp>
HOTROW_HOST_DEVICE Answer ProbePair(Bucket& first, Bucket& second, const test::Needle& needle) {
  Answer answer;
  answer.found = cache::FindWay<Warp>(first, needle.tag, needle.key, needle.table);
  answer.free = cache::FreeMask<Warp>(first);
  answer.unpinned = cache::UnpinnedMask<Warp>(first);
  answer.free_way = cache::PickFree<Warp>(first, second);
  answer.victim = cache::PickVictim<Warp>(first, second);
  if (answer.found >= 0) {
    cache::TouchAndPin<Warp>(first, answer.found, kRule);
  } else if (answer.free_way.way >= 0) {
    cache::Place<Warp>(answer.free_way.bucket == 0 ? first : second, answer.free_way.way,
                       needle.tag, needle.key, needle.table, kRule);
  } else if (answer.victim.way >= 0) {
    cache::Clear<Warp>(answer.victim.bucket == 0 ? first : second, answer.victim.way);
  }
  return answer;
}

template <typename Thread>
__global__ void ProbePairsKernel(Bucket* buckets, const test::Needle* needles, Answer* answers,
                                 int64_t pairs) {
  const int64_t pair = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (pair >= pairs) return;
  answers[pair] = ProbePair<Thread>(buckets[2 * pair], buckets[2 * pair + 1], needles[pair]);
}

class BucketCudaTest : public testing::TestWithParam<bool> {};

TEST_P(BucketCudaTest, ThreadsAnswerLikeTheHost) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const bool racing = GetParam();
  constexpr int64_t kPairs = 10'001;  // the last block is not full
  for (const uint64_t seed : test::Seeds(3)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    std::vector<Bucket> buckets;
    std::vector<test::Needle> needles;
    for (int64_t pair = 0; pair < kPairs; ++pair) {
      buckets.push_back(test::RandomBucket(random));
      buckets.push_back(test::RandomBucket(random));
      needles.push_back(test::RandomNeedle(random, buckets[static_cast<size_t>(2 * pair)]));
    }
    DeviceArray<Bucket> device_buckets(buckets);
    DeviceArray<test::Needle> device_needles(needles);
    DeviceArray<Answer> device_answers(static_cast<size_t>(kPairs));
    constexpr int kBlocks = (kPairs + kThreads - 1) / kThreads;
    if (racing) {
      ProbePairsKernel<RacingCudaThread><<<kBlocks, kThreads>>>(
          device_buckets.data(), device_needles.data(), device_answers.data(), kPairs);
    } else {
      ProbePairsKernel<CudaThread><<<kBlocks, kThreads>>>(
          device_buckets.data(), device_needles.data(), device_answers.data(), kPairs);
    }
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<Answer> answers = device_answers.ToHost();
    int64_t found = 0;
    int64_t victims = 0;
    for (int64_t pair = 0; pair < kPairs; ++pair) {
      const auto p = static_cast<size_t>(pair);
      const Answer want = ProbePair<HostWarp>(buckets[2 * p], buckets[2 * p + 1], needles[p]);
      const Answer& got = answers[p];
      ASSERT_EQ(got.found, want.found) << pair;
      ASSERT_EQ(got.free, want.free) << pair;
      ASSERT_EQ(got.unpinned, want.unpinned) << pair;
      ASSERT_TRUE(test::Same(got.free_way, want.free_way)) << pair;
      ASSERT_TRUE(test::Same(got.victim, want.victim)) << pair;
      found += want.found >= 0 ? 1 : 0;
      victims += want.victim.way >= 0 ? 1 : 0;
    }
    EXPECT_GT(found, kPairs / 10);
    EXPECT_GT(victims, kPairs / 10);
    const std::vector<Bucket> after = device_buckets.ToHost();
    EXPECT_EQ(std::memcmp(after.data(), buckets.data(), buckets.size() * sizeof(Bucket)), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Loads, BucketCudaTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Relaxed" : "Plain"; });

}  // namespace
}  // namespace hotrow
