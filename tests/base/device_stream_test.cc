#include "base/device_stream.h"

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/device_memory.h"
#include "gtest/gtest.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

// Both kinds of memory and two streams: host to shared, shared to device, device to shared.
void CopiesGoRound(Device device) {
  constexpr int64_t kSize = 100'000;
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceStream one, DeviceStream::Create(device));
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceStream two, DeviceStream::Create(device));
  EXPECT_EQ(one.device(), device);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto memory, DeviceMemory<int32_t>::Create(device, kSize, one.get()));
  SharedBuffer<int32_t> shared;
  HOTROW_ASSERT_OK(shared.Reserve(device, kSize));
  std::vector<int32_t> host(kSize);
  std::iota(host.begin(), host.end(), 7);
  HOTROW_ASSERT_OK(one.Copy(memory.data(), host.data(), memory.bytes()));
  HOTROW_ASSERT_OK(two.RunAfter(one.get()));
  HOTROW_ASSERT_OK(two.Copy(shared.data(), memory.data(), memory.bytes()));
  HOTROW_ASSERT_OK(two.Wait());
  for (int64_t i = 0; i < kSize; ++i) ASSERT_EQ(shared[i], i + 7);

  DeviceMemory<int32_t> moved = std::move(memory);
  EXPECT_EQ(moved.size(), kSize);
  EXPECT_EQ(memory.size(), 0);  // NOLINT(bugprone-use-after-move)
  HOTROW_ASSERT_OK(moved.Reserve(device, kSize / 2, one.get()));
  EXPECT_EQ(moved.size(), kSize);
  HOTROW_ASSERT_OK(moved.Reserve(device, 2 * kSize, one.get()));
  EXPECT_EQ(moved.size(), 2 * kSize);
}

TEST(DeviceStreamTest, OnTheCpu) { CopiesGoRound(Device::kCpu); }

TEST(DeviceStreamTest, OnAGpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  CopiesGoRound(Device::kCuda);
}

TEST(DeviceStreamTest, AnImpossibleSizeIsRefused) {
  EXPECT_FALSE(DeviceMemory<int64_t>::Create(Device::kCpu, -1, nullptr).ok());
  EXPECT_FALSE(DeviceMemory<int64_t>::Create(Device::kCuda, INT64_MAX / 4, nullptr).ok());
  EXPECT_FALSE(SharedBuffer<int64_t>::Create(Device::kCpu, INT64_MAX / 4).ok());
}

TEST(DeviceStreamTest, WithoutAGpuOneLineSaysSo) {
  if (test::UsableGpu().ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(DeviceStream::Create(Device::kCuda).status().message(), test::UsableGpu().message());
  EXPECT_EQ((DeviceMemory<int32_t>::Create(Device::kCuda, 1, nullptr).status().message()),
            test::UsableGpu().message());
}

}  // namespace
}  // namespace hotrow
