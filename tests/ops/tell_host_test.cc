#include "ops/keys/tell_host.h"

#include <chrono>
#include <numeric>
#include <optional>
#include <vector>

#include "base/device_flag.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/lagging_streams.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using testing::HasSubstr;

// By streams that do it at once, soon, and when the host polls no more.
TEST(TellHostTest, WhoSeesTheFlagSeesTheNumbers) {
  for (const int lag_us : {-1, 0, 100, 1000}) {
    std::optional<test::LaggingStreams> lagging;
    if (lag_us >= 0) lagging.emplace(std::chrono::microseconds(lag_us));
    HOTROW_ASSERT_OK_AND_ASSIGN(const DeviceStream stream, DeviceStream::Create(Device::kCpu));
    HOTROW_ASSERT_OK_AND_ASSIGN(DeviceFlag flag, DeviceFlag::Create(Device::kCpu));
    std::vector<int64_t> from(5000);
    std::vector<int64_t> to(from.size());
    for (int64_t round = 1; round < 8; ++round) {
      std::iota(from.begin(), from.end(), 10'000 * round);
      const TellHostArgs args = {.from = from.data(),
                                 .to = to.data(),
                                 .num_numbers = std::ssize(from),
                                 .flag = flag.address(),
                                 .flag_value = flag.Next()};
      HOTROW_ASSERT_OK(stream.Run(
          ExecContext(), [args](const ExecContext& here) { return TellHost(here, args); }));
      HOTROW_ASSERT_OK(flag.Wait(stream));
      ASSERT_EQ(to, from) << round;
    }
  }
}

TEST(TellHostTest, AStreamThatDoesNotTellIsAnError) {
  std::optional<test::LaggingStreams> lagging;
  for (const bool late : {false, true}) {
    if (late) lagging.emplace(std::chrono::microseconds(100));
    HOTROW_ASSERT_OK_AND_ASSIGN(const DeviceStream stream, DeviceStream::Create(Device::kCpu));
    HOTROW_ASSERT_OK_AND_ASSIGN(DeviceFlag flag, DeviceFlag::Create(Device::kCpu));
    flag.Next();
    EXPECT_THAT(flag.Wait(stream),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("nothing has raised the flag")));
    if (!late) continue;
    HOTROW_ASSERT_OK(stream.Run(ExecContext(), [](const ExecContext&) {
      return absl::DataLossError("the device is gone");
    }));
    EXPECT_THAT(flag.Wait(stream), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("gone")));
  }
  EXPECT_THAT(TellHost({}, {.num_numbers = 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("flag")));
}

}  // namespace
}  // namespace hotrow
