// With one rank, all that one GPU allows: every call, errors.

#include "comm/nccl_communicator.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "base/cuda_handles.h"
#include "base/device_memory.h"
#include "comm/thread_communicator.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using testing::HasSubstr;

template <typename T>
void Write(DeviceBuffer<T>& to, const std::vector<T>& from) {
  ASSERT_EQ(cudaMemcpyAsync(to.data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice,
                            to.memory().stream),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(to.memory().stream), cudaSuccess);
}
template <typename T>
std::vector<T> Read(const DeviceBuffer<T>& from) {
  std::vector<T> result(static_cast<size_t>(from.size()));
  EXPECT_EQ(cudaMemcpyAsync(result.data(), from.data(), result.size() * sizeof(T),
                            cudaMemcpyDeviceToHost, from.memory().stream),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(from.memory().stream), cudaSuccess);
  return result;
}

void AllCallsWithOneRank(NcclCommunicator& nccl) {
  EXPECT_EQ(nccl.rank(), 0);
  EXPECT_EQ(nccl.world_size(), 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  constexpr int64_t kSize = 1000;
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < kSize; ++i) numbers.push_back(i * i - 77);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto from, DeviceBuffer<int64_t>::Create(kSize, stream.get()));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto to, DeviceBuffer<int64_t>::Create(kSize, stream.get()));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto floats, DeviceBuffer<float>::Create(kSize, stream.get()));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto doubles, DeviceBuffer<double>::Create(kSize, stream.get()));
  const std::vector<int64_t> zeros(kSize);
  const std::vector<int64_t> bytes = {kSize * 8 - 16};
  const std::vector<int64_t> no_bytes = {0};
  const std::vector<int64_t> front = {0};
  const std::vector<int64_t> back = {16};

  Write(from, numbers);
  Write(to, zeros);
  HOTROW_ASSERT_OK(
      nccl.AllToAllV({from.data(), bytes, back, to.data(), bytes, front}, stream.get()));
  HOTROW_ASSERT_OK(
      nccl.AllToAllV({nullptr, no_bytes, front, nullptr, no_bytes, front}, stream.get()));
  HOTROW_ASSERT_OK(nccl.Wait(stream.get()));
  std::vector<int64_t> expected(numbers.begin() + 2, numbers.end());
  expected.resize(kSize);
  EXPECT_EQ(Read(to), expected);

  Write(to, zeros);
  HOTROW_ASSERT_OK(nccl.AllGather(from.data(), kSize * 8, to.data(), stream.get()));
  HOTROW_ASSERT_OK(nccl.AllGather(nullptr, 0, nullptr, stream.get()));
  HOTROW_ASSERT_OK(nccl.Wait(stream.get()));
  EXPECT_EQ(Read(to), numbers);

  Write(to, zeros);
  HOTROW_ASSERT_OK(nccl.AllGatherV(from.data() + 2, bytes, front, to.data(), stream.get()));
  HOTROW_ASSERT_OK(nccl.Wait(stream.get()));
  EXPECT_EQ(Read(to), expected);

  HOTROW_ASSERT_OK(nccl.AllReduceSum(from.data(), kSize, stream.get()));
  HOTROW_ASSERT_OK(nccl.Broadcast(from.data(), kSize * 8, 0, stream.get()));
  Write(floats, std::vector<float>(kSize, 1.5f));
  Write(doubles, std::vector<double>(kSize, 2.5));
  HOTROW_ASSERT_OK(nccl.AllReduceSum(floats.data(), kSize, stream.get()));
  HOTROW_ASSERT_OK(nccl.AllReduceSum(doubles.data(), kSize, stream.get()));
  HOTROW_ASSERT_OK(nccl.AllReduceSum(static_cast<float*>(nullptr), 0, stream.get()));
  HOTROW_ASSERT_OK(nccl.Wait(stream.get()));
  EXPECT_EQ(Read(from), numbers);
  EXPECT_THAT(Read(floats), testing::Each(1.5f));
  EXPECT_THAT(Read(doubles), testing::Each(2.5));

  EXPECT_THAT(nccl.Broadcast(from.data(), 8, 1, stream.get()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("root must lie in [0, 1)")));
  // For good.
  EXPECT_FALSE(nccl.AllReduceSum(from.data(), kSize, stream.get()).ok());
  EXPECT_FALSE(nccl.Wait(stream.get()).ok());
}

TEST(NcclCommunicatorTest, EveryCallWithOneRank) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(auto ends, CreateThreadCommunicators(1, {}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto nccl, NcclCommunicator::Create(*ends[0]));
  AllCallsWithOneRank(*nccl);
  // The host's family hears of the error.
  EXPECT_THAT(ends[0]->status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("root must lie in [0, 1)")));
}

TEST(NcclCommunicatorTest, AFailureOnTheHostEndsWhatWaitsForTheDevice) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(auto ends, CreateThreadCommunicators(1, {}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto nccl, NcclCommunicator::Create(*ends[0]));
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  // The stream is busy until this test opens the gate, or for some seconds: what aborts may wait
  // for the device.
  struct Gate {
    std::atomic<bool> open = false;
  } gate;
  ASSERT_EQ(cudaLaunchHostFunc(
                stream.get(),
                [](void* data) {
                  for (int i = 0; i < 300 && !static_cast<Gate*>(data)->open.load(); ++i) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(10));
                  }
                },
                &gate),
            cudaSuccess);
  ends[0]->Abort("disk full");
  EXPECT_THAT(nccl->Wait(stream.get()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("disk full")));
  gate.open = true;
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
}

TEST(NcclCommunicatorTest, WithoutAGpuItSaysSoOnAllRanks) {
  if (UsableGpu().ok()) GTEST_SKIP() << "this machine has a GPU";
  const auto statuses = RunOnThreads(2, {}, [](Communicator& c) {
    // Rank 1 waits in another call until it hears of rank 0's failure.
    return c.rank() == 0 ? NcclCommunicator::Create(c).status() : c.Barrier();
  });
  const absl::StatusCode code =
      HaveNccl() ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kUnimplemented;
  EXPECT_EQ(statuses[0].code(), code) << statuses[0];
  EXPECT_FALSE(statuses[1].ok());
}

}  // namespace
}  // namespace hotrow::test
