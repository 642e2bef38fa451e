#include "base/host_registration.h"

#include <cstddef>
#include <utility>

#include "base/buffer.h"
#include "base/device_memory.h"
#include "gtest/gtest.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

TEST(HostRegistrationTest, OnTheCpuThereIsNothingToDo) {
  std::byte memory[64];
  HOTROW_ASSERT_OK_AND_ASSIGN(HostRegistration one,
                              HostRegistration::Create(Device::kCpu, memory, sizeof(memory)));
  HostRegistration other = std::move(one);
  one = std::move(other);
}

TEST(HostRegistrationTest, WithoutAGpuOneLineSaysSo) {
  if (test::UsableGpu().ok()) GTEST_SKIP() << "there is a GPU";
  std::byte memory[64];
  const auto registration = HostRegistration::Create(Device::kCuda, memory, sizeof(memory));
  ASSERT_FALSE(registration.ok());
  EXPECT_EQ(registration.status().message(), test::UsableGpu().message());
  // No memory needs no GPU.
  EXPECT_TRUE(HostRegistration::Create(Device::kCuda, nullptr, 0).ok());
}

TEST(HostRegistrationTest, MemoryThatIsPageLockedIsKnown) {
  std::byte heap[64] = {};
  EXPECT_TRUE(IsPageLocked(Device::kCpu, heap, sizeof(heap)));
  EXPECT_FALSE(IsPageLocked(Device::kCuda, heap, sizeof(heap)));
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto shared, SharedBuffer<float>::Create(100, {Device::kCuda}));
  EXPECT_TRUE(IsPageLocked(Device::kCuda, shared.data() + 1, 396));
  HOTROW_ASSERT_OK_AND_ASSIGN(HostBuffer<std::byte> memory,
                              HostBuffer<std::byte>::Create(int64_t{4} << 20, HugePages::kTry));
  EXPECT_FALSE(IsPageLocked(Device::kCuda, memory.data(), memory.size()));
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const HostRegistration registration,
      HostRegistration::Create(Device::kCuda, memory.data(), memory.size() / 2));
  EXPECT_TRUE(IsPageLocked(Device::kCuda, memory.data(), memory.size() / 2));
  EXPECT_FALSE(IsPageLocked(Device::kCuda, memory.data(), memory.size()));
}

TEST(HostRegistrationTest, MemoryCanBeLockedAgainOnceReleased) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(HostBuffer<std::byte> memory,
                              HostBuffer<std::byte>::Create(int64_t{4} << 20, HugePages::kTry));
  for (int i = 0; i < 2; ++i) {
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const HostRegistration registration,
        HostRegistration::Create(Device::kCuda, memory.data(), memory.size()));
    EXPECT_FALSE(HostRegistration::Create(Device::kCuda, memory.data(), memory.size()).ok());
  }
}

}  // namespace
}  // namespace hotrow
