#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/device_flag.h"
#include "ops/keys/tell_host.h"
#include "tests/ops/cuda_op_test.cuh"

namespace hotrow {
namespace {

using test::DeviceArray;

// Other work follows on the stream, so that it is not the end of the stream that tells.
TEST(TellHostCudaTest, WhoSeesTheFlagSeesTheNumbers) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const DeviceStream stream, DeviceStream::Create(Device::kCuda));
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceFlag flag, DeviceFlag::Create(Device::kCuda));
  constexpr int64_t kNumbers = 3000;
  HOTROW_ASSERT_OK_AND_ASSIGN(PinnedBuffer<int64_t> to, PinnedBuffer<int64_t>::Create(kNumbers));
  std::vector<int64_t> from(kNumbers);
  for (int64_t round = 1; round < test::ForGpu(300, 30); ++round) {
    std::iota(from.begin(), from.end(), 10'000 * round);
    DeviceArray<int64_t> device_from(from);
    DeviceArray<int64_t> other(from.size());
    const int64_t n = round % 3 == 0 ? round % kNumbers : kNumbers;
    HOTROW_ASSERT_OK(TellHost(stream.On({}), {.from = device_from.data(),
                                              .to = to.data(),
                                              .num_numbers = n,
                                              .flag = flag.address(),
                                              .flag_value = flag.Next()}));
    HOTROW_ASSERT_OK(stream.Copy(other.data(), device_from.data(), kNumbers * 8));
    HOTROW_ASSERT_OK(flag.Wait(stream));
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(to[i], from[static_cast<size_t>(i)]) << round;
    HOTROW_ASSERT_OK(stream.Wait());
  }
}

// The flag is one of the numbers: as it was when they were read.
TEST(TellHostCudaTest, TheFlagIsRaisedAfterAllNumbersAreRead) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const DeviceStream stream, DeviceStream::Create(Device::kCuda));
  constexpr int64_t kNumbers = 700;  // more than a block has threads
  HOTROW_ASSERT_OK_AND_ASSIGN(PinnedBuffer<int64_t> from, PinnedBuffer<int64_t>::Create(kNumbers));
  HOTROW_ASSERT_OK_AND_ASSIGN(PinnedBuffer<int64_t> to, PinnedBuffer<int64_t>::Create(kNumbers));
  for (const int64_t place : {0, 1, 31, 32, 255, 256, 699}) {
    SCOPED_TRACE(place);
    std::iota(from.data(), from.data() + kNumbers, 10'000);
    std::fill_n(to.data(), kNumbers, 0);
    HOTROW_ASSERT_OK(TellHost(stream.On({}), {.from = from.data(),
                                              .to = to.data(),
                                              .num_numbers = kNumbers,
                                              .flag = reinterpret_cast<uint64_t*>(&from[place]),
                                              .flag_value = 5}));
    HOTROW_ASSERT_OK(stream.Wait());
    for (int64_t i = 0; i < kNumbers; ++i) ASSERT_EQ(to[i], 10'000 + i);
    EXPECT_EQ(from[place], 5);
  }
}

}  // namespace
}  // namespace hotrow
