#include "embedding/ranks/device_key_shuffle_impl.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/embedding/device_shuffle_test_util.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

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

class DeviceKeyShuffleTest : public DeviceShuffleTest {
 protected:
  // What the host's shuffle gives for the same keys must be there.
  absl::Status Compare(Communicator& c, RowShuffle& host, Communicator& channel,
                       const DeviceKeys& wanted, const DeviceShuffledKeys& keys,
                       const DeviceStream& stream) const {
    HOTROW_ASSIGN_OR_RETURN(const TableKeys table_keys, KeysOnTheHost(stream, wanted));
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
};

// Batches that grow and shrink, two steps in flight.
TEST_P(DeviceKeyShuffleTest, KeysGoWhereTheHostSendsThem) {
  RowShuffleOptions options;
  for (const PlannedTable& table : plan_.tables) {
    options.tables.push_back({.table = static_cast<uint32_t>(table.config), .dim = 4});
  }
  for (const uint64_t seed : test::Seeds(test::RunsSlowTests() ? 6 : test::ForGpu(2, 1))) {
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
        HOTROW_RETURN_IF_ERROR(Find(lookups.values, lookups.segments, &stream, &wanted[slot]));
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
    const Lookups first = Draw(1, 0, c.rank(), 50);
    HOTROW_RETURN_IF_ERROR(Find(first.values, first.segments, &stream, &wanted));
    HOTROW_RETURN_IF_ERROR(shuffle->Exchange({}, wanted, &keys));
    HOTROW_RETURN_IF_ERROR(c.Barrier());
    if (c.rank() == silent) {
      for (int i = 0; i < 6000 && c.status().ok(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      return c.status();
    }
    const Lookups second = Draw(1, 1, c.rank(), 50);
    HOTROW_RETURN_IF_ERROR(Find(second.values, second.segments, &stream, &wanted));
    return shuffle->Exchange({}, wanted, &keys);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr(absl::StrCat("no answer from rank ", silent)));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceKeyShuffleTest, testing::ValuesIn(ShuffleKinds()),
                         NameOfShuffleKind);

}  // namespace
}  // namespace hotrow::internal
