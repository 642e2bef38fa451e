// That the emulated GPU does what a GPU does, and that it finds what it is there to find.

#include "tests/emulated_gpu/emulated_gpu.h"

#include <cuda_runtime.h>

#include <chrono>
#include <cuda/atomic>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hotrow::emulated {
namespace {

using ::testing::Each;

// Runs the kernel to its end; blocks of up to `threads` threads.
template <typename Kernel>
void RunKernel(unsigned blocks, unsigned threads, Kernel kernel) {
  Configured(kernel, blocks, threads)();
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(EmulatedGpuTest, EveryThreadOfEveryBlockRunsOnce) {
  constexpr unsigned kBlocks = 37;
  constexpr unsigned kThreads = 96;
  std::vector<int> runs(kBlocks * kThreads);
  RunKernel(kBlocks, kThreads, [&] {
    EXPECT_EQ(gridDim.x, kBlocks);
    ++runs[blockIdx.x * blockDim.x + threadIdx.x];
  });
  EXPECT_THAT(runs, Each(1));
}

TEST(EmulatedGpuTest, LanesMeet) {
  std::vector<unsigned> ballots(64), matches(64), least(64), shuffled(64), halves(64);
  RunKernel(1, 64, [&] {
    const unsigned t = threadIdx.x;
    ballots[t] = __ballot_sync(~0u, t % 3 == 0);
    matches[t] = __match_any_sync(~0u, t % 4);
    least[t] = __reduce_min_sync(~0u, 100 + t);
    shuffled[t] = __shfl_sync(~0u, t, static_cast<int>((t + 5) % 32));
    // Two halves of a warp, each by itself.
    const unsigned mask = t % 32 < 16 ? 0xffffu : 0xffff0000u;
    halves[t] = __shfl_xor_sync(mask, t, 1);
    __syncwarp(mask);
  });
  for (unsigned t = 0; t < 64; ++t) {
    const unsigned first = t / 32 * 32;
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
      ballot |= ((first + lane) % 3 == 0 ? 1u : 0u) << lane;
    EXPECT_EQ(ballots[t], ballot);
    EXPECT_EQ(matches[t], 0x11111111u << (t % 4));
    EXPECT_EQ(least[t], 100 + first);
    EXPECT_EQ(shuffled[t], first + (t + 5) % 32);
    EXPECT_EQ(halves[t], t ^ 1);
  }
}

TEST(EmulatedGpuTest, BarriersOrderAndWithoutThemNothingIs) {
  constexpr unsigned kThreads = 256;
  for (const bool barrier : {true, false}) {
    int wrong = 0;
    for (int round = 0; round < 20; ++round) {
      std::vector<int> written(kThreads), seen(kThreads);
      RunKernel(1, kThreads, [&, barrier] {
        const unsigned t = threadIdx.x;
        __syncwarp();
        written[t] = 1;
        if (barrier) __syncthreads();
        seen[t] = written[(t + 100) % kThreads];
      });
      for (const int value : seen) wrong += value == 0 ? 1 : 0;
    }
    EXPECT_EQ(wrong > 0, !barrier) << wrong;
  }
}

// Read, wait for others to come in between, write: only a lock makes it right.
TEST(EmulatedGpuTest, LocksAreNeededAndWork) {
  for (const bool locked : {true, false}) {
    uint32_t lock = 0;
    int count = 0;
    RunKernel(1, 128, [&, locked] {
      const cuda::atomic_ref<uint32_t, cuda::thread_scope_device> mutex(lock);
      for (uint32_t free = 0; locked && !mutex.compare_exchange_strong(free, 1); free = 0) {
        __nanosleep(32);
      }
      const int read = count;
      Yield();
      count = read + 1;
      if (locked) mutex.store(0);
    });
    EXPECT_EQ(count == 128, locked) << count;
  }
}

TEST(EmulatedGpuTest, StreamsAreInOrderAndEventsBetweenThem) {
  cudaStream_t one = nullptr;
  cudaStream_t two = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  std::vector<int> order;
  EnqueueOnStream(one, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    order.push_back(1);
  });
  EXPECT_EQ(cudaStreamQuery(one), cudaErrorNotReady);
  ASSERT_EQ(cudaEventRecord(event, one), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(two, event), cudaSuccess);
  EnqueueOnStream(two, [&] { order.push_back(2); });
  ASSERT_EQ(cudaStreamSynchronize(two), cudaSuccess);
  EXPECT_THAT(order, testing::ElementsAre(1, 2));
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(one), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(two), cudaSuccess);
}

TEST(EmulatedGpuTest, ShapesThatNoGpuTakesAreErrors) {
  for (const unsigned threads : {0u, 1025u}) {
    Configured([] {}, 1, threads)();
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  }
  Configured([] {}, 0, 32)();
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

void EmptyKernel() {}

TEST(EmulatedGpuTest, ABlockHasSoMuchSharedMemoryAndMoreIfItAsks) {
  constexpr size_t kPlain = 48 << 10;
  constexpr int kMost = 227 << 10;
  Configured([] {}, 1, 32, kPlain)();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  Configured([] {}, 1, 32, kPlain + 1)();
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(
      cudaFuncSetAttribute(&EmptyKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMost + 1),
      cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  ASSERT_EQ(cudaFuncSetAttribute(&EmptyKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMost),
            cudaSuccess);
  Configured([] {}, 1, 32, kMost)();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  SetComputeCapability(80);
  Configured([] {}, 1, 32, kMost)();
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  SetComputeCapability(90);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

// Blocks see their own bytes, which are NaNs at first.
TEST(EmulatedGpuTest, SharedMemoryIsOfTheBlock) {
  std::vector<int> right(6 * 64);
  Configured(
      [&] {
        auto* const shared = reinterpret_cast<uint32_t*>(DynamicShared());
        const unsigned t = threadIdx.x;
        const bool fresh = shared[t] == 0xffffffffu;
        shared[t] = 100 * blockIdx.x + t;
        __syncthreads();
        const unsigned other = (t + 37) % 64;
        right[blockIdx.x * 64 + t] = fresh && shared[other] == 100 * blockIdx.x + other ? 1 : 0;
      },
      6, 64, 64 * sizeof(uint32_t))();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_THAT(right, Each(1));
}

TEST(EmulatedGpuTest, CopiesThatWouldGoWrongAreNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  alignas(16) static unsigned char from[64] = {};
  const auto run = [](auto body) {
    Configured([body] { body(DynamicShared()); }, 1, 1, 64)();
    cudaDeviceSynchronize();
  };
  EXPECT_DEATH(run([](std::byte* to) {
                 for (int i = 0; i < 64; ++i) BeginCopy(to, from, 16);  // some begin at once
                 CommitCopies();
               }),
               "a thread ends with copies under way");
  EXPECT_DEATH(run([](std::byte* to) { BeginCopy(to + 8, from, 16); }), "aligned sixteen bytes");
  EXPECT_DEATH(run([](std::byte* to) { BeginCopy(to + 64, from, 16); }),
               "outside of dynamic shared memory");
  const auto barrier = [](std::byte* shared) { return reinterpret_cast<uint64_t*>(shared); };
  EXPECT_DEATH(run([&](std::byte* to) { WaitForPhase(barrier(to), 0); }), "no mbarrier was made");
  EXPECT_DEATH(run([&](std::byte* to) {
                 InitCopyBarrier(barrier(to), 1);
                 ArriveAndExpect(barrier(to), 32);
                 BeginBulkCopy(to + 16, from, 16, barrier(to));
                 WaitForPhase(barrier(to), 0);  // for another sixteen bytes
               }),
               "a phase that does not end");
  EXPECT_DEATH(run([&](std::byte* to) {
                 InitCopyBarrier(barrier(to), 1);
                 ArriveAndExpect(barrier(to), 64 * 16);
                 for (int i = 0; i < 64; ++i) BeginBulkCopy(to + 16, from, 16, barrier(to));
               }),
               "a block ends with bulk copies under way");
  EXPECT_DEATH(
      {
        SetComputeCapability(80);
        run([&](std::byte* to) { InitCopyBarrier(barrier(to), 1); });
      },
      "on a GPU that has none");
}

TEST(EmulatedGpuTest, ADeviceHasSoMuchMemory) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, size_t{1} << 50), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
}

TEST(EmulatedGpuTest, WaitsInVainAreNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(RunKernel(1, 32,
                         [] {
                           if (threadIdx.x != 3) __syncwarp();
                         }),
               "__syncwarp and lanes that differ: names a lane that has ended");
  EXPECT_DEATH(RunKernel(1, 32,
                         [] {
                           if (threadIdx.x % 2 == 0) {
                             __syncwarp();
                           } else {
                             __any_sync(~0u, 1);
                           }
                         }),
               "lanes that differ");
  EXPECT_DEATH(RunKernel(1, 32,
                         [] {
                           if (threadIdx.x < 10) {
                             __syncthreads();
                           } else {
                             __syncwarp();
                           }
                         }),
               "a block is stuck: 10 threads wait in __syncthreads, 22 threads wait in __syncwarp");
  EXPECT_DEATH(RunKernel(1, 32, [] { __syncwarp(1); }), "calls for lanes of which it is none");
  EXPECT_DEATH(RunKernel(1, 16, [] { __syncwarp(); }), "a lane that the block does not have");
  EXPECT_DEATH(RunKernel(1, 32,
                         [] {
                           if (threadIdx.x < 16) __shfl_sync(0xffffu, threadIdx.x, 20);
                         }),
               "a shuffle from a lane that is not in its mask");
}

}  // namespace
}  // namespace hotrow::emulated
