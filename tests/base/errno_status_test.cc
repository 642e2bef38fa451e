#include "base/errno_status.h"

#include <cerrno>

#include "base/check.h"
#include "base/dispatch.h"
#include "base/math.h"
#include "base/out_of_room.h"
#include "base/own_status.h"
#include "base/status_macros.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ErrnoStatusTest, MapsWhatTheWorldDoes) {
  EXPECT_EQ(ErrnoToStatus(EIO, "x").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrnoToStatus(ENOSPC, "x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoToStatus(EDQUOT, "x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoToStatus(ENOMEM, "x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoToStatus(EAGAIN, "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrnoToStatus(EINTR, "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrnoToStatus(ENOENT, "x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrnoToStatus(EACCES, "x").code(), absl::StatusCode::kPermissionDenied);
}

TEST(OutOfRoomTest, TheMarkIsThatOfFullDisksAloneAndStaysWhenTheTextChanges) {
  for (const int full : {ENOSPC, EDQUOT}) {
    const absl::Status status = WithText(ErrnoToStatus(full, "x"), "more");
    EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kResourceExhausted, "more"));
    EXPECT_TRUE(IsOutOfRoom(status) && IsOutOfRoom(OwnStatus(status)));
  }
  for (const int other : {ENOMEM, EFBIG, EIO, EAGAIN}) {
    const absl::Status status = ErrnoToStatus(other, "disk budget, no space left");
    EXPECT_FALSE(IsOutOfRoom(status) || IsOutOfRoom(WithText(status, "x")));
    EXPECT_EQ(WithText(status, "x").code(), status.code());
  }
  EXPECT_FALSE(IsOutOfRoom(absl::OkStatus()));
}

TEST(ErrnoStatusTest, NamesCallPathAndReason) {
  EXPECT_THAT(ErrnoToStatus(ENOSPC, "write /data/seg-3"),
              test::StatusIs(absl::StatusCode::kResourceExhausted,
                             "write /data/seg-3: No space left on device; make room on that file "
                             "system"));
  EXPECT_THAT(ErrnoToStatus(99999, "read a"),
              test::StatusIs(absl::StatusCode::kUnknown, StartsWith("read a: ")));
}

absl::StatusOr<int> Half(int n) {
  if (n % 2 != 0) return absl::InvalidArgumentError("odd");
  return n / 2;
}
absl::StatusOr<int> Quarter(int n) {
  HOTROW_ASSIGN_OR_RETURN(const int half, Half(n));
  HOTROW_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(StatusMacrosTest, AssignOrReturnStopsAtTheFirstError) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_THAT(Quarter(7), test::StatusIs(absl::StatusCode::kInvalidArgument, "odd"));
  EXPECT_THAT(Quarter(6), test::StatusIs(absl::StatusCode::kInvalidArgument, "odd"));
}

TEST(StatusMacrosTest, ReturnIfErrorEvaluatesOnceAndPassesOn) {
  int calls = 0;
  const auto run = [&calls](absl::Status status) {
    HOTROW_RETURN_IF_ERROR((++calls, status));
    return absl::CancelledError("went on");
  };
  EXPECT_EQ(run(absl::OkStatus()).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(run(absl::AbortedError("x")).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(calls, 2);
}

TEST(CheckDeathTest, NamesFileAndCondition) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const int rows = 3;
  EXPECT_DEATH(HOTROW_CHECK(rows == 4), "errno_status_test.cc:[0-9]+: check failed: rows == 4");
  HOTROW_CHECK(rows == 3);
}

TEST(DispatchTest, RunsTheCpuAndSaysWhenThereIsNoCuda) {
  int cpu_calls = 0;
  const auto run = [&cpu_calls](Device device) {
    return internal::Dispatch(
        {.device = device}, [&] { return ++cpu_calls, absl::OkStatus(); },
        [](auto stream) {
          return stream == nullptr ? absl::CancelledError("cuda ran") : absl::OkStatus();
        });
  };
  HOTROW_EXPECT_OK(run(Device::kCpu));
  EXPECT_EQ(cpu_calls, 1);
#if HOTROW_HAVE_CUDA
  EXPECT_EQ(run(Device::kCuda).code(), absl::StatusCode::kCancelled);
#else
  EXPECT_THAT(run(Device::kCuda),
              test::StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("HOTROW_CUDA=ON")));
#endif
  EXPECT_EQ(cpu_calls, 1);
}

TEST(MathTest, RoundsUp) {
  EXPECT_EQ(CeilDiv(0, 4), 0);
  EXPECT_EQ(CeilDiv(7, 4), 2);
  EXPECT_EQ(CeilDiv(8, 4), 2);
  EXPECT_EQ(RoundUp(65, 64), 128);
  EXPECT_EQ(RoundUp(int64_t{1} << 40, 4096), int64_t{1} << 40);
}

TEST(MathTest, FastRangeCoversItsRangeUpToTwoToThe32) {
  EXPECT_EQ(FastRange32(0, 10), 0u);
  EXPECT_EQ(FastRange32(~0u, 10), 9u);
  EXPECT_EQ(FastRange32(~0u, 1), 0u);
  EXPECT_EQ(FastRange32(~0u, uint64_t{1} << 32), ~0u);
  EXPECT_EQ(FastRange32(0x80000000u, 6), 3u);
}

}  // namespace
}  // namespace hotrow
