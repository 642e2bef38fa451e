#include "embedding/ranks/device_key_shuffle_impl.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "comm/thread_communicator.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#if HOTROW_HAVE_CUDA
#include "tests/comm/device_ranks.h"
#endif

namespace hotrow::internal {
namespace {

struct Kind {
  Device device = Device::kCpu;
  int world_size = 1;
};

std::string NameOf(const testing::TestParamInfo<Kind>& info) {
  return absl::StrCat(info.param.device == Device::kCpu ? "Host" : "Gpu", info.param.world_size);
}

absl::Status Differs(const Communicator& c, const std::string& what) {
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

// What a rank looks up in a step: of two tables more than one rank wants the same keys, of one
// nobody wants any, and a rank may look up nothing at all.
struct Lookups {
  std::vector<uint64_t> values;
  std::vector<LookupSegment> segments;
};
Lookups Draw(uint64_t seed, int step, int rank, int64_t max) {
  RandomStream random(seed * 1000 + static_cast<uint64_t>(step * 64 + rank), RandomPurpose::kTest);
  Lookups out;
  for (const int32_t table : {0, 2, 3, 0}) {  // a table may have two features
    const auto begin = std::ssize(out.values);
    const auto n = random.Below(4) == 0 ? 0 : random.Below(static_cast<uint32_t>(max));
    for (uint64_t i = 0; i < n; ++i) {
      // Few keys, so that ranks share them; now and then any.
      out.values.push_back(random.Below(8) == 0 ? random.Below(UINT64_MAX) : random.Below(60));
    }
    out.segments.push_back({begin, std::ssize(out.values), table});
  }
  return out;
}

class DeviceKeyShuffleTest : public testing::TestWithParam<Kind> {
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

  // The distinct keys of what a rank looks up.
  absl::Status Find(const Lookups& lookups, DeviceStream* stream, DeviceKeys* keys) const {
    DeviceMemory<uint64_t> values;
    const int64_t n = std::ssize(lookups.values);
    HOTROW_RETURN_IF_ERROR(values.Reserve(n + 1, {stream->device(), stream->get()}));
    HOTROW_RETURN_IF_ERROR(stream->Copy(values.data(), lookups.values.data(), 8 * n));
    HOTROW_RETURN_IF_ERROR(keys->Find({}, plan_, values.data(), n, lookups.segments, stream));
    return stream->Wait();
  }

  // What the host's shuffle gives for the same keys must be there.
  absl::Status Compare(Communicator& c, RowShuffle& host, Communicator& channel,
                       const DeviceKeys& wanted, const DeviceShuffledKeys& keys,
                       const DeviceStream& stream) const {
    TableKeys table_keys;
    HOTROW_ASSIGN_OR_RETURN(table_keys.keys, ToHost(stream, wanted.keys(), wanted.size()));
    HOTROW_ASSIGN_OR_RETURN(table_keys.counts, ToHost(stream, wanted.counts(), wanted.size()));
    table_keys.table_offsets.assign(wanted.table_offsets().begin(), wanted.table_offsets().end());
    RowShuffle::Scratch scratch;
    ShuffledKeys want;
    HOTROW_RETURN_IF_ERROR(
        host.ExchangeKeys({}, channel, table_keys, /*evaluation=*/false, &scratch, &want));
    if (keys.ask_offsets() != want.ask_offsets) return Differs(c, "ask_offsets");
    if (keys.asked_offsets() != want.asked_offsets) return Differs(c, "asked_offsets");
    HOTROW_ASSIGN_OR_RETURN(const auto ask_order, ToHost(stream, keys.ask_order(), wanted.size()));
    if (ask_order != want.ask_order) return Differs(c, "ask_order");
    HOTROW_ASSIGN_OR_RETURN(const auto asked_rows,
                            ToHost(stream, keys.asked_rows(), want.asked_offsets.back()));
    if (asked_rows != want.asked_rows) return Differs(c, "asked_rows");
    const std::vector<int64_t> table_offsets(keys.served.table_offsets().begin(),
                                             keys.served.table_offsets().end());
    if (table_offsets != want.served.table_offsets) return Differs(c, "served tables");
    HOTROW_ASSIGN_OR_RETURN(const auto served,
                            ToHost(stream, keys.served.keys(), keys.served.size()));
    if (served != want.served.keys) return Differs(c, "served keys");
    HOTROW_ASSIGN_OR_RETURN(const auto counts,
                            ToHost(stream, keys.served.counts(), keys.served.size()));
    return counts == want.served.counts ? absl::OkStatus() : Differs(c, "counts");
  }

  Plan plan_;
  std::optional<LaggingStreams> lagging_;
};

// Batches that grow and shrink, two steps in flight.
TEST_P(DeviceKeyShuffleTest, KeysGoWhereTheHostSendsThem) {
  RowShuffleOptions options;
  for (const PlannedTable& table : plan_.tables) {
    options.tables.push_back({.table = static_cast<uint32_t>(table.config), .dim = 4});
  }
  for (const uint64_t seed : test::Seeds(test::ForGpu(6, 1))) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    const auto statuses = Run({}, [&](Communicator& c) -> absl::Status {
      HOTROW_ASSIGN_OR_RETURN(auto rows_channel, c.Duplicate());
      HOTROW_ASSIGN_OR_RETURN(auto keys_channel, c.Duplicate());
      HOTROW_ASSIGN_OR_RETURN(auto host, RowShuffle::Create(options, std::move(rows_channel)));
      HOTROW_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(GetParam().device));
      HOTROW_ASSIGN_OR_RETURN(auto shuffle, DeviceKeyShuffle::Create(plan_, c, GetParam().device));
      std::vector<DeviceKeys> wanted(2);
      std::vector<DeviceShuffledKeys> keys(2);
      int64_t sent = 0;
      for (int step = 0; step < 6; ++step) {
        const Lookups lookups = Draw(seed, step, c.rank(), step % 3 == 1 ? 900 : 30);
        const size_t slot = static_cast<size_t>(step) % 2;
        HOTROW_RETURN_IF_ERROR(Find(lookups, &stream, &wanted[slot]));
        HOTROW_RETURN_IF_ERROR(shuffle->Exchange({}, wanted[slot], &keys[slot]));
        HOTROW_RETURN_IF_ERROR(Compare(c, *host, *keys_channel, wanted[slot], keys[slot], stream));
        // 8 bytes a key that another rank owns, and the counts of all parts.
        const auto& offsets = keys[slot].ask_offsets();
        const int64_t own = offsets[static_cast<size_t>(4 * c.rank() + 4)] -
                            offsets[static_cast<size_t>(4 * c.rank())];
        sent +=
            8 * (wanted[slot].size() - own) + 8 * (4 * c.world_size() + 1) * (c.world_size() - 1);
        if (shuffle->bytes_sent() != sent) return Differs(c, "bytes");
      }
      // The step before is as it was.
      HOTROW_RETURN_IF_ERROR(Compare(c, *host, *keys_channel, wanted[0], keys[0], stream));
      return stream.Wait();
    });
    for (const absl::Status& status : statuses) HOTROW_EXPECT_OK(status);
  }
}

// A rank dies between two steps; the others name it, and do not take what is not there for counts.
TEST_P(DeviceKeyShuffleTest, ARankThatDoesNotComeIsNamed) {
  if (GetParam().world_size < 2) GTEST_SKIP() << "needs two ranks";
  CommunicatorOptions options;
  options.timeout_seconds = 0.5;
  if (test::kEmulatedGpu && GetParam().device == Device::kCuda) {
    // On a busy machine eight of them compute for longer than that.
    if (GetParam().world_size > 2 && !test::RunsSlowTests()) {
      GTEST_SKIP() << "HOTROW_SLOW_TESTS is not set";
    }
    options.timeout_seconds = GetParam().world_size;
  }
  const int silent = GetParam().world_size - 1;
  const auto statuses = Run(options, [&](Communicator& c) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(GetParam().device));
    HOTROW_ASSIGN_OR_RETURN(auto shuffle, DeviceKeyShuffle::Create(plan_, c, GetParam().device));
    DeviceKeys wanted;
    DeviceShuffledKeys keys;
    HOTROW_RETURN_IF_ERROR(Find(Draw(1, 0, c.rank(), 50), &stream, &wanted));
    HOTROW_RETURN_IF_ERROR(shuffle->Exchange({}, wanted, &keys));
    HOTROW_RETURN_IF_ERROR(c.Barrier());
    if (c.rank() == silent) {
      for (int i = 0; i < 6000 && c.status().ok(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      return c.status();
    }
    HOTROW_RETURN_IF_ERROR(Find(Draw(1, 1, c.rank(), 50), &stream, &wanted));
    return shuffle->Exchange({}, wanted, &keys);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr(absl::StrCat("no answer from rank ", silent)));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceKeyShuffleTest,
                         testing::Values(Kind{Device::kCpu, 1}, Kind{Device::kCpu, 2},
                                         Kind{Device::kCpu, 4}, Kind{Device::kCpu, 8},
                                         Kind{Device::kCuda, 1}, Kind{Device::kCuda, 2},
                                         Kind{Device::kCuda, 4}, Kind{Device::kCuda, 8}),
                         NameOf);

}  // namespace
}  // namespace hotrow::internal
