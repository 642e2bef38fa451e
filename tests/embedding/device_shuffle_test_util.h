#ifndef HOTROW_TESTS_EMBEDDING_DEVICE_SHUFFLE_TEST_UTIL_H_
#define HOTROW_TESTS_EMBEDDING_DEVICE_SHUFFLE_TEST_UTIL_H_

// What the tests of both shuffles between devices share: 1 to 8 ranks, on the host with streams
// that lag and on GPUs, and four tables.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "comm/thread_communicator.h"
#include "embedding/ranks/device_key_shuffle_impl.h"
#include "gtest/gtest.h"
#include "tests/support/gpu_test.h"
#include "tests/support/lagging_streams.h"
#include "tests/support/test_util.h"
#if HOTROW_HAVE_CUDA
#include "tests/comm/device_ranks.h"
#endif

namespace hotrow::internal {

struct ShuffleKind {
  Device device = Device::kCpu;
  int world_size = 1;
};

inline std::string NameOfShuffleKind(const testing::TestParamInfo<ShuffleKind>& info) {
  return absl::StrCat(info.param.device == Device::kCpu ? "Host" : "Gpu", info.param.world_size);
}

inline std::vector<ShuffleKind> ShuffleKinds() {
  std::vector<ShuffleKind> kinds;
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    for (const int world_size : {1, 2, 4, 8}) kinds.push_back({device, world_size});
  }
  return kinds;
}

// `what` of a device is not as the shuffle of the host has it.
inline absl::Status Differs(const Communicator& c, const std::string& what) {
  return absl::InternalError(absl::StrCat("rank ", c.rank(), " of ", c.world_size(), ": ", what,
                                          " are not those of the host's shuffle"));
}

template <typename T>
absl::StatusOr<std::vector<T>> ToHost(const DeviceStream& stream, const T* from, int64_t size) {
  std::vector<T> to(static_cast<size_t>(size));
  HOTROW_RETURN_IF_ERROR(stream.Copy(to.data(), from, size * static_cast<int64_t>(sizeof(T))));
  HOTROW_RETURN_IF_ERROR(stream.Wait());
  return to;
}

class DeviceShuffleTest : public testing::TestWithParam<ShuffleKind> {
 protected:
  void SetUp() override {
    plan_.tables.resize(4);
    for (size_t t = 0; t < plan_.tables.size(); ++t) {
      plan_.tables[t].config = static_cast<int32_t>(3 - t);
    }
    if (GetParam().device == Device::kCpu) {
      lagging_.emplace(std::chrono::milliseconds(1));  // as late as those of a GPU
      return;
    }
#if HOTROW_HAVE_CUDA
    const std::string why = test::WhyNotOnDevices(GetParam().world_size);
    if (!why.empty()) GTEST_SKIP() << why;
#else
    GTEST_SKIP() << "this build has no CUDA";
#endif
  }

  static std::vector<absl::Status> Run(
      const CommunicatorOptions& options,
      const std::function<absl::Status(Communicator&)>& rank_main) {
#if HOTROW_HAVE_CUDA
    if (GetParam().device == Device::kCuda) {
      return test::RunOnDevices(GetParam().world_size, options, rank_main);
    }
#endif
    return RunOnThreads(GetParam().world_size, options, rank_main);
  }

  // The distinct keys of `values`, which go to a device.
  absl::Status Find(const std::vector<uint64_t>& values, const std::vector<LookupSegment>& segments,
                    DeviceStream* stream, DeviceKeys* keys) const {
    DeviceMemory<uint64_t> there;
    const int64_t n = std::ssize(values);
    HOTROW_RETURN_IF_ERROR(there.Reserve(n + 1, {stream->device(), stream->get()}));
    HOTROW_RETURN_IF_ERROR(stream->Copy(there.data(), values.data(), 8 * n));
    HOTROW_RETURN_IF_ERROR(keys->Find({}, plan_, there.data(), n, segments, stream));
    return stream->Wait();
  }

  // The same keys for a shuffle of the host.
  static absl::StatusOr<TableKeys> KeysOnTheHost(const DeviceStream& stream,
                                                 const DeviceKeys& wanted) {
    TableKeys keys;
    HOTROW_ASSIGN_OR_RETURN(keys.keys, ToHost(stream, wanted.keys(), wanted.size()));
    HOTROW_ASSIGN_OR_RETURN(keys.counts, ToHost(stream, wanted.counts(), wanted.size()));
    keys.table_offsets.assign(wanted.table_offsets().begin(), wanted.table_offsets().end());
    return keys;
  }

  Plan plan_;
  std::optional<test::LaggingStreams> lagging_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_TESTS_EMBEDDING_DEVICE_SHUFFLE_TEST_UTIL_H_
