#include "base/non_finite.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/device_memory.h"
#include "base/device_stream.h"
#include "gtest/gtest.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using Type = NumbersView::Type;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class NonFiniteTest : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam() == Device::kCuda) HOTROW_REQUIRE_GPU_OR_SKIP();
    HOTROW_ASSERT_OK_AND_ASSIGN(stream_, DeviceStream::Create(GetParam()));
    ctx_ = stream_.On(ExecContext());
  }

  // FirstNonFinite of such a view of these numbers, in memory of the device; -2: an error.
  template <typename T>
  int64_t At(const std::vector<T>& numbers, NumbersView view) {
    auto memory = DeviceMemory<T>::Create(std::ssize(numbers),
                                          {.device = ctx_.device, .stream = ctx_.stream});
    HOTROW_EXPECT_OK(memory);
    HOTROW_EXPECT_OK(EnqueueCopy(ctx_, memory->data(), numbers.data(), memory->bytes()));
    view.data = memory->data();
    return FirstNonFinite(ctx_, view).value_or(-2);
  }

  DeviceStream stream_;
  ExecContext ctx_;
};

TEST_P(NonFiniteTest, TheFirstOneInTheColumnsIsFound) {
  const NumbersView view = {.rows = 7, .columns = 3, .stride = 5};
  std::vector<float> numbers(6 * 5 + 3,
                             std::numeric_limits<float>::max());  // the last row is short
  numbers[2 * 5 + 3] = kNaN;
  EXPECT_EQ(At(numbers, view), -1);
  numbers[6 * 5 + 2] = kNaN;
  EXPECT_EQ(At(numbers, view), 6 * 3 + 2);
  numbers[4 * 5] = -kInfinity;
  EXPECT_EQ(At(numbers, view), 4 * 3);
  EXPECT_EQ(FirstNonFinite(ctx_, {}).value_or(-2), -1);
}

TEST_P(NonFiniteTest, NumbersOf16BitsAreOfTheirType) {
  const auto at = [&](const std::vector<uint16_t>& bits, Type type) {
    const auto size = static_cast<int64_t>(bits.size());
    return At(bits, {.rows = 1, .columns = size, .stride = size, .type = type});
  };
  const std::vector<uint16_t> largest_bf16 = {0x3f80, 0xff7f, 0x7f80};  // then infinity
  EXPECT_EQ(at(largest_bf16, Type::kBf16), 2);
  EXPECT_EQ(at(largest_bf16, Type::kFp16), 1);
  const std::vector<uint16_t> largest_fp16 = {0x3c00, 0x7bff, 0xfc01};  // then a NaN
  EXPECT_EQ(at(largest_fp16, Type::kFp16), 2);
  EXPECT_EQ(at(largest_fp16, Type::kBf16), -1);
}

// More than is copied at once.
TEST_P(NonFiniteTest, LongArraysAreReadToTheirEnd) {
  std::vector<float> numbers((int64_t{1} << 20) + 9);
  const int64_t size = std::ssize(numbers);
  EXPECT_EQ(At(numbers, {.rows = 1, .columns = size, .stride = size}), -1);
  numbers.back() = kInfinity;
  EXPECT_EQ(At(numbers, {.rows = 1, .columns = size, .stride = size}), size - 1);
}

INSTANTIATE_TEST_SUITE_P(Devices, NonFiniteTest, testing::Values(Device::kCpu, Device::kCuda),
                         [](const auto& info) {
                           return info.param == Device::kCpu ? "Cpu" : "Cuda";
                         });

}  // namespace
}  // namespace hotrow
