// NcclCommunicator between several ranks, which are threads, each with its own GPU: on the
// emulated GPU (tests/emulated_gpu/emulated_nccl.h), or on a machine with so many.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda_handles.h"
#include "base/device_memory.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "comm/nccl_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/comm/device_ranks.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#if HOTROW_EMULATED_GPU
#include "tests/emulated_gpu/emulated_gpu.h"
#include "tests/emulated_gpu/emulated_nccl.h"
#endif

namespace hotrow::test {
namespace {

absl::Status Cuda(cudaError_t error) {
  return error == cudaSuccess ? absl::OkStatus() : absl::InternalError(cudaGetErrorString(error));
}

absl::Status Wrong(const Communicator& c, const std::string& what) {
  return absl::InternalError(absl::StrCat("rank ", c.rank(), " of ", c.world_size(), ": ", what));
}

bool Mentions(const absl::Status& status, const std::string& text) {
  return status.message().find(text) != absl::string_view::npos;
}

// Waits until the family has failed. Bounded, so that a test ends when it does not.
absl::Status AwaitFailure(Communicator& c) {
  for (int i = 0; i < 6000; ++i) {
    if (const absl::Status status = c.status(); !status.ok()) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return absl::OkStatus();
}

// Byte i of what `from` gives to `to` in call `call`; to = -1: to all.
std::byte ByteOf(uint64_t seed, int64_t call, int64_t from, int64_t to, int64_t i) {
  return static_cast<std::byte>(
      Mix64(seed + Mix64(static_cast<uint64_t>(((call * 64 + from) * 65 + to + 1) * 100'003 + i))));
}
// Zero now and then.
int64_t SizeOf(uint64_t seed, int64_t call, int64_t from, int64_t to, int64_t max) {
  const uint64_t bits =
      Mix64(~seed + Mix64(static_cast<uint64_t>((call * 64 + from) * 65 + to + 1)));
  return bits % 5 == 0 ? 0 : static_cast<int64_t>(bits / 5 % static_cast<uint64_t>(max + 1));
}

enum class Call { kAllToAllV, kAllGather, kAllGatherV, kBroadcast, kSum, kNumCalls };

// A call with its memory on the device, and what must be in it in the end.
struct OneCall {
  Call call = Call::kAllToAllV;
  std::vector<int64_t> send_bytes, send_offsets, recv_bytes, recv_offsets;
  std::vector<std::byte> input;
  std::vector<std::byte> expected;
  DeviceBuffer<std::byte> send;
  DeviceBuffer<std::byte> recv;
  int root = 0;
};

void Lay(const std::vector<int64_t>& bytes, std::vector<int64_t>* offsets) {
  int64_t at = 0;
  for (const int64_t size : bytes) {
    offsets->push_back(at);
    at += size;
  }
}

OneCall Draw(const Communicator& c, uint64_t seed, int64_t number, int64_t max_bytes) {
  const int n = c.world_size();
  OneCall one;
  one.call = static_cast<Call>(Mix64(seed * 77 + static_cast<uint64_t>(number)) %
                               static_cast<uint64_t>(Call::kNumCalls));
  const auto put = [&](std::vector<std::byte>* out, int from, int to, int64_t size) {
    for (int64_t i = 0; i < size; ++i) out->push_back(ByteOf(seed, number, from, to, i));
  };
  switch (one.call) {
    case Call::kAllToAllV:
      for (int p = 0; p < n; ++p) {
        one.send_bytes.push_back(SizeOf(seed, number, c.rank(), p, max_bytes));
        one.recv_bytes.push_back(SizeOf(seed, number, p, c.rank(), max_bytes));
        put(&one.input, c.rank(), p, one.send_bytes.back());
        put(&one.expected, p, c.rank(), one.recv_bytes.back());
      }
      Lay(one.send_bytes, &one.send_offsets);
      Lay(one.recv_bytes, &one.recv_offsets);
      break;
    case Call::kAllGather: {
      const int64_t size = SizeOf(seed, number, 0, -1, max_bytes);
      put(&one.input, c.rank(), -1, size);
      for (int p = 0; p < n; ++p) put(&one.expected, p, -1, size);
      break;
    }
    case Call::kAllGatherV:
      for (int p = 0; p < n; ++p) {
        one.recv_bytes.push_back(SizeOf(seed, number, p, -1, max_bytes));
        put(&one.expected, p, -1, one.recv_bytes.back());
      }
      put(&one.input, c.rank(), -1, one.recv_bytes[static_cast<size_t>(c.rank())]);
      Lay(one.recv_bytes, &one.recv_offsets);
      break;
    case Call::kBroadcast: {
      one.root = static_cast<int>(number) % n;
      const int64_t size = SizeOf(seed, number, 0, -1, max_bytes);
      put(&one.input, c.rank(), -1, size);
      put(&one.expected, one.root, -1, size);
      break;
    }
    case Call::kSum: {
      const int64_t count = SizeOf(seed, number, 0, -1, max_bytes) / 8;
      std::vector<uint64_t> sums(static_cast<size_t>(count));
      for (int p = 0; p < n; ++p) {
        std::vector<std::byte> bytes;
        put(&bytes, p, -1, 8 * count);
        if (p == c.rank()) one.input = bytes;
        for (size_t i = 0; i < sums.size(); ++i) {
          uint64_t x = 0;
          std::memcpy(&x, bytes.data() + 8 * i, 8);
          sums[i] += x;
        }
      }
      one.expected.resize(8 * sums.size());
      if (!sums.empty()) std::memcpy(one.expected.data(), sums.data(), one.expected.size());
      break;
    }
    case Call::kNumCalls:
      break;
  }
  return one;
}

// In place where the call is in place, or may be.
bool InPlace(Call call) { return call == Call::kBroadcast || call == Call::kSum; }

absl::Status Prepare(OneCall* one, CudaStream stream) {
  HOTROW_ASSIGN_OR_RETURN(one->recv,
                          DeviceBuffer<std::byte>::Create(std::ssize(one->expected) + 1, stream));
  std::byte* input = one->recv.data();
  if (!InPlace(one->call)) {
    HOTROW_ASSIGN_OR_RETURN(one->send,
                            DeviceBuffer<std::byte>::Create(std::ssize(one->input) + 1, stream));
    input = one->send.data();
  }
  return Cuda(
      cudaMemcpyAsync(input, one->input.data(), one->input.size(), cudaMemcpyHostToDevice, stream));
}

absl::Status Enqueue(NcclCommunicator& nccl, OneCall& one, CudaStream stream) {
  switch (one.call) {
    case Call::kAllToAllV:
      return nccl.AllToAllV({one.send.data(), one.send_bytes, one.send_offsets, one.recv.data(),
                             one.recv_bytes, one.recv_offsets},
                            stream);
    case Call::kAllGather:
      return nccl.AllGather(one.send.data(), std::ssize(one.input), one.recv.data(), stream);
    case Call::kAllGatherV:
      return nccl.AllGatherV(one.send.data(), one.recv_bytes, one.recv_offsets, one.recv.data(),
                             stream);
    case Call::kBroadcast:
      return nccl.Broadcast(one.recv.data(), std::ssize(one.expected), one.root, stream);
    case Call::kSum:
      return nccl.AllReduceSum(reinterpret_cast<int64_t*>(one.recv.data()),
                               std::ssize(one.expected) / 8, stream);
    case Call::kNumCalls:
      break;
  }
  return absl::InternalError("no such call");
}

class NcclRanksTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string why = WhyNotOnDevices(n());
    if (!why.empty()) GTEST_SKIP() << why;
  }
  static int n() { return GetParam(); }
  using RankMain = std::function<absl::Status(Communicator&, NcclCommunicator&)>;
  static void RunOk(const RankMain& rank_main, const CommunicatorOptions& options = {}) {
    const auto statuses = RunOnDevices(n(), options, [&](Communicator& c) -> absl::Status {
      HOTROW_ASSIGN_OR_RETURN(const auto nccl, NcclCommunicator::Create(c));
      return rank_main(c, *nccl);
    });
    for (const absl::Status& status : statuses) HOTROW_EXPECT_OK(status);
#if HOTROW_EMULATED_GPU
    EXPECT_EQ(emulated::NumNcclCommunicators(), 0);
#endif
  }
};

// All collectives in random order, on two streams in turn, none waited for before all are enqueued.
TEST_P(NcclRanksTest, RandomCallsGiveWhatTheSeedSays) {
  for (const uint64_t seed : Seeds(ForGpu(20, 4))) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RunOk([&](Communicator& c, NcclCommunicator& nccl) -> absl::Status {
      std::vector<StreamHandle> streams(2);
      for (StreamHandle& stream : streams) {
        HOTROW_ASSIGN_OR_RETURN(stream, CreateStream());
      }
      std::vector<OneCall> calls;
      for (int64_t i = 0; i < 30; ++i) {
        calls.push_back(Draw(c, seed, i, i % 3 == 0 ? 100'000 : 40));
        HOTROW_RETURN_IF_ERROR(Prepare(&calls.back(), streams[i % 2].get()));
      }
      for (int64_t i = 0; i < std::ssize(calls); ++i) {
        HOTROW_RETURN_IF_ERROR(Enqueue(nccl, calls[i], streams[i % 2].get()));
      }
      for (const StreamHandle& stream : streams) HOTROW_RETURN_IF_ERROR(nccl.Wait(stream.get()));
      for (int64_t i = 0; i < std::ssize(calls); ++i) {
        std::vector<std::byte> got(calls[i].expected.size());
        const CudaStream stream = streams[i % 2].get();
        HOTROW_RETURN_IF_ERROR(Cuda(cudaMemcpyAsync(got.data(), calls[i].recv.data(), got.size(),
                                                    cudaMemcpyDeviceToHost, stream)));
        HOTROW_RETURN_IF_ERROR(Cuda(cudaStreamSynchronize(stream)));
        if (got != calls[i].expected) {
          return Wrong(c, absl::StrCat("call ", i, ", of kind ", static_cast<int>(calls[i].call),
                                       ", gave other bytes"));
        }
      }
      // Memory of the device goes before its stream does.
      calls.clear();
      return absl::OkStatus();
    });
  }
}

// In any order, the same on every rank.
TEST_P(NcclRanksTest, SumsHaveTheSameBitsOnAllRanks) {
  RunOk([](Communicator& c, NcclCommunicator& nccl) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const StreamHandle stream, CreateStream());
    std::vector<float> data(10'001);
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] =
          static_cast<float>(static_cast<int64_t>(Mix64(i * 64 + c.rank()) >> 40) - 4711) * 1e-3f;
    }
    HOTROW_ASSIGN_OR_RETURN(auto floats,
                            DeviceBuffer<float>::Create(std::ssize(data), stream.get()));
    const auto bytes = data.size() * sizeof(float);
    HOTROW_RETURN_IF_ERROR(Cuda(
        cudaMemcpyAsync(floats.data(), data.data(), bytes, cudaMemcpyHostToDevice, stream.get())));
    HOTROW_RETURN_IF_ERROR(nccl.AllReduceSum(floats.data(), std::ssize(data), stream.get()));
    HOTROW_RETURN_IF_ERROR(nccl.Wait(stream.get()));
    HOTROW_RETURN_IF_ERROR(Cuda(
        cudaMemcpyAsync(data.data(), floats.data(), bytes, cudaMemcpyDeviceToHost, stream.get())));
    HOTROW_RETURN_IF_ERROR(Cuda(cudaStreamSynchronize(stream.get())));
    const auto hash = HashBytes(0, 0, std::as_bytes(std::span(data)));
    HOTROW_ASSIGN_OR_RETURN(const auto hashes, c.AllGatherSizes(static_cast<int64_t>(hash.lo)));
    for (const int64_t other : hashes) {
      if (other != hashes[0]) return Wrong(c, "ranks have other bits");
    }
    return absl::OkStatus();
  });
}

// One rank does not come. The others wait for the device, and name it in time.
TEST_P(NcclRanksTest, ASilentRankIsNamedByAllInTime) {
  if (n() < 2) GTEST_SKIP() << "needs two ranks";
  CommunicatorOptions options;
  options.timeout_seconds = 1;
  for (const Call call :
       {Call::kAllToAllV, Call::kAllGather, Call::kAllGatherV, Call::kBroadcast, Call::kSum}) {
    SCOPED_TRACE(static_cast<int>(call));
    // Each takes two seconds.
    const bool always = call == Call::kAllToAllV || (n() == 2 && call == Call::kSum);
    if (!always && !RunsSlowTests()) continue;
    const int silent = static_cast<int>(call) % n();
    RunOk(
        [&](Communicator& c, NcclCommunicator& nccl) -> absl::Status {
          HOTROW_ASSIGN_OR_RETURN(const StreamHandle stream, CreateStream());
          HOTROW_RETURN_IF_ERROR(c.Barrier());
          const std::string culprit = absl::StrCat("no answer from rank ", silent, " for");
          if (c.rank() == silent) {
            const absl::Status told = AwaitFailure(c);
            return Mentions(told, culprit) ? absl::OkStatus() : Wrong(c, told.ToString());
          }
          // Eight bytes from each to each, and what the silent one is needed for.
          const auto size = static_cast<size_t>(c.world_size());
          OneCall one;
          one.call = call;
          one.root = silent;
          one.send_bytes.assign(size, 8);
          one.recv_bytes.assign(size, 8);
          Lay(one.send_bytes, &one.send_offsets);
          Lay(one.recv_bytes, &one.recv_offsets);
          one.input.resize(call == Call::kAllToAllV ? 8 * size : 8);
          one.expected.resize(InPlace(call) ? 8 : 8 * size);
          HOTROW_RETURN_IF_ERROR(Prepare(&one, stream.get()));
          const auto begin = std::chrono::steady_clock::now();
          const absl::Status enqueued = Enqueue(nccl, one, stream.get());
          const absl::Status status = enqueued.ok() ? nccl.Wait(stream.get()) : enqueued;
          const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
          if (!absl::IsDeadlineExceeded(status) || !Mentions(status, culprit)) {
            return Wrong(c, absl::StrCat("returned ", status.ToString()));
          }
          // 9/4 of the timeout, and time for a busy machine.
          if (took.count() > 2.25 + 10) {
            return Wrong(c, absl::StrCat("took ", took.count(), " s"));
          }
          // The work on the device has ended too.
          HOTROW_RETURN_IF_ERROR(Cuda(cudaStreamSynchronize(stream.get())));
          return nccl.Wait(stream.get()).ok() ? Wrong(c, "goes on") : absl::OkStatus();
        },
        options);
  }
}

// A rank that waits by the driver's means alone, as a training step does for its loss.
TEST_P(NcclRanksTest, ASilentRankEndsEveryWaitForTheDevice) {
  if (n() < 2) GTEST_SKIP() << "needs two ranks";
  CommunicatorOptions options;
  options.timeout_seconds = 1;
  RunOk(
      [](Communicator& c, NcclCommunicator& nccl) -> absl::Status {
        HOTROW_ASSIGN_OR_RETURN(const StreamHandle stream, CreateStream());
        HOTROW_ASSIGN_OR_RETURN(auto data, DeviceBuffer<int64_t>::Create(100, stream.get()));
        HOTROW_RETURN_IF_ERROR(c.Barrier());
        if (c.rank() == n() - 1) {
          return AwaitFailure(c).ok() ? Wrong(c, "was not told") : absl::OkStatus();
        }
        HOTROW_RETURN_IF_ERROR(nccl.AllReduceSum(data.data(), 100, stream.get()));
        const auto begin = std::chrono::steady_clock::now();
        HOTROW_RETURN_IF_ERROR(Cuda(cudaStreamSynchronize(stream.get())));
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        if (took.count() > 2.25 + 10) return Wrong(c, "waited too long");
        const absl::Status status = nccl.status();
        return Mentions(status, absl::StrCat("no answer from rank ", n() - 1))
                   ? absl::OkStatus()
                   : Wrong(c, status.ToString());
      },
      options);
}

// Calls take their turn: those that end in time do not make the next ones late.
TEST_P(NcclRanksTest, SlowRanksAreWaitedForAsLongAsTheyMove) {
  if (n() != 2) GTEST_SKIP() << "two ranks are enough for a test that sleeps";
  CommunicatorOptions options;
  options.timeout_seconds = 1.6;
  RunOk(
      [](Communicator& c, NcclCommunicator& nccl) -> absl::Status {
        HOTROW_ASSIGN_OR_RETURN(const StreamHandle stream, CreateStream());
        HOTROW_ASSIGN_OR_RETURN(auto data, DeviceBuffer<int64_t>::Create(100, stream.get()));
        for (int i = 0; i < 4; ++i) {
          // The others have enqueued all of theirs long before.
          if (c.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
          HOTROW_RETURN_IF_ERROR(nccl.AllReduceSum(data.data(), 100, stream.get()));
        }
        return nccl.Wait(stream.get());
      },
      options);
}

TEST_P(NcclRanksTest, WhatARankSaysOnTheHostEndsTheOthers) {
  if (n() < 2) GTEST_SKIP() << "needs two ranks";
  RunOk([](Communicator& c, NcclCommunicator& nccl) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const StreamHandle stream, CreateStream());
    HOTROW_ASSIGN_OR_RETURN(auto data, DeviceBuffer<int64_t>::Create(100, stream.get()));
    HOTROW_RETURN_IF_ERROR(c.Barrier());
    if (c.rank() == 1) {
      c.Abort("disk full");
    } else if (absl::Status status = nccl.AllReduceSum(data.data(), 100, stream.get());
               !status.ok()) {
      return Mentions(status, "rank 1 ended the job: disk full") ? absl::OkStatus() : status;
    }
    const absl::Status status = nccl.Wait(stream.get());
    // Rank 1 has nothing to wait for.
    if (c.rank() == 1 && status.ok()) return absl::OkStatus();
    return Mentions(status, "rank 1 ended the job: disk full") ? absl::OkStatus()
                                                               : Wrong(c, status.ToString());
  });
}

// The last rank makes a call that cannot be right; the others wait for it on the device.
TEST_P(NcclRanksTest, BadArgumentsEndTheOthers) {
  RunOk([](Communicator& c, NcclCommunicator& nccl) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const StreamHandle stream, CreateStream());
    HOTROW_ASSIGN_OR_RETURN(auto data, DeviceBuffer<int64_t>::Create(8, stream.get()));
    HOTROW_RETURN_IF_ERROR(c.Barrier());
    if (c.rank() == n() - 1) {
      const absl::Status status = nccl.Broadcast(data.data(), 8, n(), stream.get());
      return Mentions(status, "root must lie in") ? absl::OkStatus() : Wrong(c, status.ToString());
    }
    absl::Status status = nccl.Broadcast(data.data(), 8, 0, stream.get());
    if (status.ok()) status = nccl.AllReduceSum(data.data(), 8, stream.get());
    if (status.ok()) status = nccl.Wait(stream.get());
    return Mentions(status, absl::StrCat("rank ", n() - 1, " ended the job")) &&
                   Mentions(status, "root must lie in")
               ? absl::OkStatus()
               : Wrong(c, status.ToString());
  });
}

#if HOTROW_EMULATED_GPU
constexpr int kNcclRemoteError = 6;  // ncclRemoteError

// What NCCL alone finds out, it says while a rank waits.
TEST_P(NcclRanksTest, AnErrorOfTheNetworkEndsAllRanks) {
  if (n() < 2) GTEST_SKIP() << "needs two ranks";
  RunOk([](Communicator& c, NcclCommunicator& nccl) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const StreamHandle stream, CreateStream());
    HOTROW_ASSIGN_OR_RETURN(auto data, DeviceBuffer<int64_t>::Create(8, stream.get()));
    HOTROW_RETURN_IF_ERROR(c.Barrier());
    if (c.rank() == n() - 1) {  // who does not take part until the others have given up
      const absl::Status told = AwaitFailure(c);
      return Mentions(told, "network error") ? absl::OkStatus() : Wrong(c, told.ToString());
    }
    absl::Status status = nccl.AllReduceSum(data.data(), 8, stream.get());
    if (c.rank() == 0) emulated::SetNcclError(0, kNcclRemoteError);
    if (status.ok()) status = nccl.Wait(stream.get());
    if (c.rank() == 0) emulated::SetNcclError(0, 0);
    return absl::IsUnavailable(status) && Mentions(status, "network error")
               ? absl::OkStatus()
               : Wrong(c, status.ToString());
  });
}

// Kernels go to the device of the thread; that of another rank refuses them.
TEST_P(NcclRanksTest, AStreamTakesKernelsOfItsOwnDeviceOnly) {
  if (n() < 2) GTEST_SKIP() << "needs two ranks";
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  emulated::Enqueue({1}, {32}, /*shared_bytes=*/0, stream.get(), [] {});
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  emulated::Enqueue({1}, {32}, /*shared_bytes=*/0, stream.get(), [] {});
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(kDeviceRanksMax), cudaErrorInvalidDevice);
  cudaGetLastError();
}
#endif

INSTANTIATE_TEST_SUITE_P(Devices, NcclRanksTest, testing::Values(1, 2, 4, 8),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace hotrow::test
