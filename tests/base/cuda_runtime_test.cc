// What wraps the CUDA runtime: buffers, errors, the device guard. The kernels' tests are in .cu
// files.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "base/cuda_device.h"
#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/page_locked_impl.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

// So that nobody who needs more waits for the device, which may be waiting for another rank.
TEST(CudaBufferTest, PinnedMemoryThatIsGivenBackServesOthers) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const internal::PageLockedMemory& memory = internal::PageLockedMemory::OfProcess();
  const int64_t before = memory.spare_bytes();
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto other, PinnedBuffer<int32_t>::Create(10));
    HOTROW_ASSERT_OK_AND_ASSIGN(auto first, PinnedBuffer<int32_t>::Create(100'000));
    first[99'999] = 7;
    const int32_t* const where = first.data();
    first = {};
    EXPECT_GE(memory.spare_bytes(), before + 400'000);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto next, PinnedBuffer<int32_t>::Create(100'001));
    EXPECT_EQ(next.data(), where);
    EXPECT_EQ(next[99'999], 0);
    EXPECT_EQ(memory.spare_bytes(), before);
  }
  // Nobody has any left.
  EXPECT_EQ(memory.spare_bytes(), 0);
}

TEST(CudaBufferTest, PinnedMemoryGoesThereAndBack) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  HOTROW_ASSERT_OK_AND_ASSIGN(auto there, PinnedBuffer<int32_t>::Create(1000));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto back, PinnedBuffer<int32_t>::Create(1000));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto device, DeviceBuffer<int32_t>::Create(1000, stream.get()));
  for (int32_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(there[i], 0);
    there[i] = i;
  }
  const auto bytes = static_cast<size_t>(device.bytes());
  ASSERT_EQ(cudaMemcpyAsync(device.data(), there.data(), bytes, cudaMemcpyDefault, stream.get()),
            cudaSuccess);
  const DeviceBuffer<int32_t> moved = std::move(device);
  EXPECT_TRUE(device.empty());
  ASSERT_EQ(cudaMemcpyAsync(back.data(), moved.data(), bytes, cudaMemcpyDefault, stream.get()),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  for (int32_t i = 0; i < 1000; ++i) ASSERT_EQ(back[i], i);
}

TEST(CudaBufferTest, TooMuchIsAnErrorThatTheNextLaunchDoesNotSee) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  EXPECT_THAT(DeviceBuffer<std::byte>::Create(int64_t{1} << 50, stream.get()),
              test::StatusIs(absl::StatusCode::kResourceExhausted,
                             testing::HasSubstr("1125899906842624 bytes")));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(CudaBufferTest, EmptyAndImpossibleCounts) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto empty, DeviceBuffer<float>::Create(0, nullptr));
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(PinnedBuffer<float>::Create(-1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DeviceBuffer<float>::Create(INT64_MAX, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CudaStatusTest, MapsErrors) {
  EXPECT_TRUE(CudaToStatus(cudaSuccess, "x").ok());
  EXPECT_THAT(CudaToStatus(cudaErrorMemoryAllocation, "cudaMalloc(p)"),
              test::StatusIs(absl::StatusCode::kResourceExhausted,
                             testing::StartsWith("cudaMalloc(p): cudaErrorMemoryAllocation (")));
  for (const cudaError_t error : {cudaErrorNoDevice, cudaErrorInsufficientDriver}) {
    EXPECT_THAT(CudaToStatus(error, "x"), test::StatusIs(absl::StatusCode::kFailedPrecondition,
                                                         testing::StartsWith("no usable GPU: x")));
  }
  EXPECT_EQ(CudaToStatus(cudaErrorIllegalAddress, "x").code(), absl::StatusCode::kInternal);
}

TEST(CudaDeviceTest, GuardRestoresTheDevice) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  int before = -1;
  ASSERT_EQ(cudaGetDevice(&before), cudaSuccess);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const CudaDeviceGuard guard, CudaDeviceGuard::Set(0));
    int inside = -1;
    ASSERT_EQ(cudaGetDevice(&inside), cudaSuccess);
    EXPECT_EQ(inside, 0);
  }
  int after = -1;
  ASSERT_EQ(cudaGetDevice(&after), cudaSuccess);
  EXPECT_EQ(after, before);
  EXPECT_THAT(CudaDeviceGuard::Set(100000), test::StatusIs(absl::StatusCode::kFailedPrecondition,
                                                           testing::HasSubstr("no usable GPU")));
}

// Without a GPU the answer must say so, and why; with one it must be OK twice.
TEST(CudaDeviceTest, CheckUsableGpuGivesAReason) {
  const absl::Status status = CheckUsableGpu();
  if (status.ok()) {
    HOTROW_EXPECT_OK(CheckUsableGpu());
  } else {
    EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kFailedPrecondition,
                                       testing::StartsWith("no usable GPU: ")));
  }
}

}  // namespace
}  // namespace hotrow
