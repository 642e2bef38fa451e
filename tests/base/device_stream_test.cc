#include "base/device_stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/device_graph.h"
#include "base/device_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gpu_test.h"
#include "tests/support/lagging_streams.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#if HOTROW_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace hotrow {
namespace {

// Both kinds of memory and two streams: host to shared, shared to device, device to shared.
void CopiesGoRound(Device device) {
  constexpr int64_t kSize = 100'000;
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceStream one, DeviceStream::Create(device));
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceStream two, DeviceStream::Create(device));
  EXPECT_EQ(one.device(), device);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto memory,
                              DeviceMemory<int32_t>::Create(kSize, {device, one.get()}));
  SharedBuffer<int32_t> shared;
  HOTROW_ASSERT_OK(shared.Reserve(kSize, {device}));
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
  HOTROW_ASSERT_OK(moved.Reserve(kSize / 2, {device, one.get()}));
  EXPECT_EQ(moved.size(), kSize);
  HOTROW_ASSERT_OK(moved.Reserve(2 * kSize, {device, one.get()}));
  EXPECT_EQ(moved.size(), 2 * kSize);
}

TEST(DeviceStreamTest, OnTheCpu) { CopiesGoRound(Device::kCpu); }

TEST(DeviceStreamTest, OnAGpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  CopiesGoRound(Device::kCuda);
}

// The first piece of work ends well before the second, which nobody waits for.
void AnEventStandsForWhatWasEnqueuedBefore(Device device) {
  constexpr int64_t kSize = 1 << 22;
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceStream stream, DeviceStream::Create(device));
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceEvent event, DeviceEvent::Create(device));
  HOTROW_ASSERT_OK(event.Wait());  // nothing was recorded
  HOTROW_ASSERT_OK_AND_ASSIGN(auto from, SharedBuffer<int32_t>::Create(kSize, {device}));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto to, SharedBuffer<int32_t>::Create(kSize, {device}));
  for (int round = 1; round <= 3; ++round) {
    std::fill_n(from.data(), kSize, round);
    HOTROW_ASSERT_OK(stream.Copy(to.data(), from.data(), from.bytes()));
    HOTROW_ASSERT_OK(event.Record(stream));
    HOTROW_ASSERT_OK(event.Wait());
    ASSERT_EQ(to[0], round);
    ASSERT_EQ(to[kSize - 1], round);
  }
  DeviceEvent moved = std::move(event);
  HOTROW_EXPECT_OK(moved.Wait());
}

TEST(DeviceEventTest, OnTheCpu) { AnEventStandsForWhatWasEnqueuedBefore(Device::kCpu); }

TEST(DeviceEventTest, OnTheCpuLate) {
  const test::LaggingStreams lagging(std::chrono::milliseconds(5));
  AnEventStandsForWhatWasEnqueuedBefore(Device::kCpu);
}

TEST(DeviceEventTest, OnAGpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  AnEventStandsForWhatWasEnqueuedBefore(Device::kCuda);
}

TEST(LaggingStreamsTest, WorkIsDoneLateAndInOrder) {
  std::vector<int> done;
  absl::StatusOr<DeviceStream> stream;
  {
    // Longer than the test takes to look, and waited for once.
    const test::LaggingStreams lagging(std::chrono::milliseconds(500));
    stream = DeviceStream::Create(Device::kCpu);
  }
  HOTROW_ASSERT_OK(stream);
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceEvent event, DeviceEvent::Create(Device::kCpu));
  std::atomic<int> value = 1;
  std::atomic<int> copy = 0;
  HOTROW_ASSERT_OK(stream->Run(ExecContext(), [&](const ExecContext&) {
    copy = value.load();
    return absl::OkStatus();
  }));
  HOTROW_ASSERT_OK(event.Record(*stream));
  value = 2;  // too early
  EXPECT_EQ(copy, 0);
  for (const int i : {1, 2}) {
    HOTROW_ASSERT_OK(stream->Run(ExecContext(), [i, &done](const ExecContext&) {
      done.push_back(i);
      return absl::OkStatus();
    }));
  }
  HOTROW_ASSERT_OK(event.Wait());
  EXPECT_EQ(copy, 2);
  HOTROW_ASSERT_OK(stream->Wait());
  EXPECT_THAT(done, testing::ElementsAre(1, 2));
  // Streams that are made when none lives do not lag.
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceStream prompt, DeviceStream::Create(Device::kCpu));
  int first = 0;
  HOTROW_ASSERT_OK(prompt.Copy(&first, done.data(), sizeof(first)));
  EXPECT_EQ(first, 1);
}

TEST(LaggingStreamsTest, AnErrorStaysAndWhatIsWaitedForAtOnceReturnsItsOwn) {
  const test::LaggingStreams lagging(std::chrono::microseconds(100));
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceStream stream, DeviceStream::Create(Device::kCpu));
  const auto fail = [](const ExecContext&) { return absl::InternalError("injected"); };
  EXPECT_THAT(stream.RunAndWait(ExecContext(), fail),
              test::StatusIs(absl::StatusCode::kInternal, testing::HasSubstr("injected")));
  HOTROW_EXPECT_OK(stream.Wait());
  HOTROW_EXPECT_OK(stream.Run(ExecContext(), fail));
  EXPECT_FALSE(stream.Wait().ok());
  EXPECT_FALSE(stream.Run(ExecContext(), fail).ok());
  EXPECT_FALSE(stream.RunAndWait(ExecContext(), fail).ok());
}

TEST(LaggingStreamsTest, DestroyingAStreamLetsItsWorkRunOn) {
  int value = 7;
  int copy = 0;
  {
    const test::LaggingStreams lagging(std::chrono::milliseconds(2));
    HOTROW_ASSERT_OK_AND_ASSIGN(DeviceStream stream, DeviceStream::Create(Device::kCpu));
    HOTROW_ASSERT_OK(stream.Copy(&copy, &value, sizeof(value)));
  }
  EXPECT_EQ(copy, 7);
}

TEST(DeviceStreamTest, AnImpossibleSizeIsRefused) {
  EXPECT_FALSE(DeviceMemory<int64_t>::Create(-1, {Device::kCpu, nullptr}).ok());
  EXPECT_FALSE(DeviceMemory<int64_t>::Create(INT64_MAX / 4, {Device::kCuda, nullptr}).ok());
  EXPECT_FALSE(SharedBuffer<int64_t>::Create(INT64_MAX / 4, {Device::kCpu}).ok());
}

TEST(DeviceStreamTest, WithoutAGpuOneLineSaysSo) {
  if (test::UsableGpu().ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(DeviceStream::Create(Device::kCuda).status().message(), test::UsableGpu().message());
  EXPECT_EQ(DeviceEvent::Create(Device::kCuda).status().message(), test::UsableGpu().message());
  EXPECT_EQ((DeviceMemory<int32_t>::Create(1, {Device::kCuda, nullptr}).status().message()),
            test::UsableGpu().message());
}

#if HOTROW_HAVE_CUDA
TEST(DeviceStreamTest, UrgentOnesComeFirstAndEventsTellWhetherTheyHavePassed) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceStream calm, DeviceStream::Create(Device::kCuda));
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceStream urgent,
                              DeviceStream::Create(Device::kCuda, /*is_urgent=*/true));
  int of_calm = 0, of_urgent = 0;
  ASSERT_EQ(cudaStreamGetPriority(calm.get(), &of_calm), cudaSuccess);
  ASSERT_EQ(cudaStreamGetPriority(urgent.get(), &of_urgent), cudaSuccess);
  EXPECT_LT(of_urgent, of_calm);
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceEvent event, DeviceEvent::Create(Device::kCuda));
  EXPECT_TRUE(event.IsDone());
  std::atomic<bool> open = false;
  const auto wait = [](void* data) { static_cast<std::atomic<bool>*>(data)->wait(false); };
  ASSERT_EQ(cudaLaunchHostFunc(calm.get(), wait, &open), cudaSuccess);
  HOTROW_ASSERT_OK(event.Record(calm.On({})));
  HOTROW_ASSERT_OK(urgent.RunAfter(event));
  EXPECT_FALSE(event.IsDone());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  open = true;
  open.notify_all();
  HOTROW_ASSERT_OK(urgent.Wait());
  EXPECT_TRUE(event.IsDone());
}
#endif

TEST(DeviceGraphTest, WorkIsRecordedOnceAndDoneAtEachLaunch) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  constexpr int64_t kSize = 1000;
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceStream stream, DeviceStream::Create(Device::kCuda));
  const ExecContext ctx = stream.On({});
  HOTROW_ASSERT_OK_AND_ASSIGN(auto there,
                              DeviceMemory<int32_t>::Create(kSize, {ctx.device, ctx.stream}));
  SharedBuffer<int32_t> from, to;
  HOTROW_ASSERT_OK(from.Reserve(kSize, {Device::kCuda}));
  HOTROW_ASSERT_OK(to.Reserve(kSize, {Device::kCuda}));
  std::fill(to.begin(), to.end(), -1);
  int calls = 0;
  HOTROW_ASSERT_OK_AND_ASSIGN(
      DeviceGraph graph, DeviceGraph::Capture(ctx, [&](const ExecContext& on) -> absl::Status {
        ++calls;
        const absl::Status up = EnqueueCopy(on, there.data(), from.data(), there.bytes());
        if (!up.ok()) return up;
        return EnqueueCopy(on, to.data(), there.data(), there.bytes());
      }));
  HOTROW_ASSERT_OK(stream.Wait());
  EXPECT_EQ(to[17], -1);
  DeviceGraph moved = std::move(graph);
  for (int32_t launch = 0; launch < 3; ++launch) {
    std::fill(from.begin(), from.end(), launch);
    HOTROW_ASSERT_OK(moved.Launch(ctx));
    HOTROW_ASSERT_OK(stream.Wait());
    EXPECT_EQ(to[kSize - 1], launch);
  }
  EXPECT_EQ(calls, 1);
}

TEST(DeviceGraphTest, AnErrorOfTheWorkIsItsErrorAndAnotherIsRecorded) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceStream stream, DeviceStream::Create(Device::kCuda));
  const ExecContext ctx = stream.On({});
  EXPECT_THAT(DeviceGraph::Capture(
                  ctx, [](const ExecContext&) { return absl::InternalError("no such kernel"); })
                  .status(),
              test::StatusIs(absl::StatusCode::kInternal, ::testing::HasSubstr("no such kernel")));
  HOTROW_ASSERT_OK_AND_ASSIGN(DeviceGraph graph, DeviceGraph::Capture(ctx, [](const ExecContext&) {
                                return absl::OkStatus();
                              }));
  HOTROW_ASSERT_OK(graph.Launch(ctx));
  HOTROW_ASSERT_OK(stream.Wait());
}

TEST(DeviceGraphTest, TheCpuHasNone) {
  EXPECT_THAT(
      DeviceGraph::Capture({}, [](const ExecContext&) { return absl::OkStatus(); }).status(),
      test::StatusIs(absl::StatusCode::kUnimplemented, ::testing::_));
}

}  // namespace
}  // namespace hotrow
