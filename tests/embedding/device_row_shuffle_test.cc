#include "embedding/ranks/device_row_shuffle_impl.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "ops/rows/gather.h"
#include "tests/embedding/device_shuffle_test_util.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

// Number `at` of a row, the same for everybody.
float NumberOf(uint64_t seed, RowKey key, int64_t at) {
  const uint64_t bits = Mix64(seed + Mix64(key.key + Mix64(key.table * 1000 + at)));
  return (static_cast<float>(bits >> 40) - 8388608.0f) * (bits % 3 == 0 ? 0x1p-20f : 0x1p-24f);
}

// Rows of every table, side by side, on the device and on the host. `bytes` of each key.
class Rows {
 public:
  // row_bytes: of each table. fill(key, table, bytes) writes one.
  absl::Status Make(const std::vector<RowKey>& keys, std::span<const int64_t> table_offsets,
                    const std::vector<int64_t>& row_bytes, const DeviceStream& stream,
                    const std::function<void(RowKey, size_t, std::byte*)>& fill) {
    std::vector<int64_t> places;
    int64_t total = 0;
    for (size_t t = 0; t < row_bytes.size(); ++t) {
      for (int64_t i = table_offsets[t]; i < table_offsets[t + 1]; ++i) {
        places.push_back(total);
        total += row_bytes[t];
      }
    }
    bytes.assign(static_cast<size_t>(total) + 1, std::byte{0});
    HOTROW_RETURN_IF_ERROR(device_bytes.Reserve(total + 1, {stream.device(), stream.get()}));
    const auto n = static_cast<int64_t>(places.size());
    HOTROW_RETURN_IF_ERROR(device_rows.Reserve(n + 1, {stream.device(), stream.get()}));
    rows.clear();
    std::vector<std::byte*> addresses;
    for (size_t t = 0; t < row_bytes.size(); ++t) {
      for (int64_t i = table_offsets[t]; i < table_offsets[t + 1]; ++i) {
        rows.push_back(bytes.data() + places[static_cast<size_t>(i)]);
        addresses.push_back(device_bytes.data() + places[static_cast<size_t>(i)]);
        if (fill != nullptr) fill(keys[static_cast<size_t>(i)], t, rows.back());
      }
    }
    HOTROW_RETURN_IF_ERROR(stream.Copy(device_bytes.data(), bytes.data(), total));
    HOTROW_RETURN_IF_ERROR(stream.Copy(device_rows.data(), addresses.data(), 8 * n));
    return stream.Wait();
  }
  std::vector<std::byte> bytes;
  std::vector<std::byte*> rows;
  DeviceMemory<std::byte> device_bytes;
  DeviceMemory<std::byte*> device_rows;
};

class DeviceRowShuffleTest : public DeviceShuffleTest {
 protected:
  void SetUp() override {
    const int32_t dims[] = {4, 33, 1, 160};
    for (uint32_t t = 0; t < 4; ++t) options_.tables.push_back({.table = 3 - t, .dim = dims[t]});
    options_.seed = 11;
    DeviceShuffleTest::SetUp();
  }

  std::vector<int64_t> RowBytes(bool as_floats) const {
    std::vector<int64_t> bytes;
    for (const RowShuffleOptions::Table& table : options_.tables) {
      const bool halves = !as_floats && table.precision != WeightsPrecision::kFp32;
      // As rows in a cache: weights come first, then what else there is; all begin on 16 bytes.
      const int64_t weights = (halves ? 2 : 4) * int64_t{table.dim};
      bytes.push_back(as_floats ? 4 * int64_t{table.dim} : (weights + 4 + 15) / 16 * 16);
    }
    return bytes;
  }

  // Floats at rows[i] on the device, side by side in host memory.
  absl::StatusOr<std::vector<std::byte>> Gather(const DeviceStream& stream,
                                                const std::byte* const* rows,
                                                std::span<const int64_t> table_offsets) const {
    const std::vector<int64_t> row_bytes = RowBytes(/*as_floats=*/true);
    int64_t total = 0;
    for (size_t t = 0; t < row_bytes.size(); ++t) {
      total += (table_offsets[t + 1] - table_offsets[t]) * row_bytes[t];
    }
    DeviceMemory<std::byte> all;
    HOTROW_RETURN_IF_ERROR(all.Reserve(total + 1, {stream.device(), stream.get()}));
    std::byte* to = all.data();
    for (size_t t = 0; t < row_bytes.size(); ++t) {
      const int64_t n = table_offsets[t + 1] - table_offsets[t];
      const GatherRowsArgs gather = {.rows = rows + table_offsets[t],
                                     .num_rows = n,
                                     .row_bytes = row_bytes[t],
                                     .output = to,
                                     .output_stride = row_bytes[t]};
      HOTROW_RETURN_IF_ERROR(
          stream.Run({}, [gather](const ExecContext& here) { return GatherRows(here, gather); }));
      to += n * row_bytes[t];
    }
    std::vector<std::byte> out(static_cast<size_t>(total));
    HOTROW_RETURN_IF_ERROR(stream.Copy(out.data(), all.data(), total));
    HOTROW_RETURN_IF_ERROR(stream.Wait());
    return out;
  }

  absl::Status OneStep(Communicator& c, uint64_t seed, uint32_t step, DeviceStream& stream,
                       DeviceKeyShuffle& key_shuffle, DeviceRowShuffle& device, RowShuffle& host,
                       bool evaluation);

  RowShuffleOptions options_;
};

absl::Status DeviceRowShuffleTest::OneStep(Communicator& c, uint64_t seed, uint32_t step,
                                           DeviceStream& stream, DeviceKeyShuffle& key_shuffle,
                                           DeviceRowShuffle& device, RowShuffle& host,
                                           bool evaluation) {
  // Few keys, so that ranks share them; of a table, or in a step, a rank may want none.
  RandomStream random(seed * 1000 + step * 64 + static_cast<uint64_t>(c.rank()),
                      RandomPurpose::kTest);
  std::vector<uint64_t> values;
  std::vector<LookupSegment> segments;
  for (int32_t t = 0; t < 4; ++t) {
    const auto begin = std::ssize(values);
    const uint64_t n = random.Below(5) == 0 ? 0 : random.Below(step % 3 == 1 ? 150 : 20);
    for (uint64_t i = 0; i < n; ++i) values.push_back(random.Below(90));
    segments.push_back({begin, std::ssize(values), t});
  }
  DeviceKeys wanted;
  HOTROW_RETURN_IF_ERROR(Find(values, segments, &stream, &wanted));
  DeviceShuffledKeys shuffled;
  HOTROW_RETURN_IF_ERROR(key_shuffle.Exchange({}, wanted, &shuffled));

  HOTROW_ASSIGN_OR_RETURN(const TableKeys host_wanted, KeysOnTheHost(stream, wanted));
  RowShuffle::Scratch scratch;
  ShuffledKeys host_keys;
  HOTROW_RETURN_IF_ERROR(
      host.ExchangeKeysInTurn({}, host_wanted, evaluation, &scratch, &host_keys));

  // Rows.
  Rows served;
  HOTROW_RETURN_IF_ERROR(served.Make(
      host_keys.served.keys, host_keys.served.table_offsets, RowBytes(/*as_floats=*/false), stream,
      [&](RowKey key, size_t t, std::byte* to) {
        const RowShuffleOptions::Table& table = options_.tables[t];
        for (int32_t d = 0; d < table.dim; ++d) {
          const float x = NumberOf(seed, key, d);
          if (table.precision == WeightsPrecision::kFp32) {
            std::memcpy(to + 4 * d, &x, 4);
          } else {  // any 16 bits of a small magnitude
            const uint16_t half = static_cast<uint16_t>(Mix64(key.key * 7919 + d) & 0xbbff);
            std::memcpy(to + 2 * d, &half, 2);
          }
        }
      }));
  std::vector<const std::byte*> host_rows(host_wanted.keys.size());
  HOTROW_RETURN_IF_ERROR(host.StartRows({}, host_keys, served.rows, step, evaluation));
  HOTROW_RETURN_IF_ERROR(host.FinishRows({}, host_keys, served.rows, host_rows));
  DeviceMemory<const std::byte*> wanted_rows;
  HOTROW_RETURN_IF_ERROR(wanted_rows.Reserve(wanted.size() + 1, {stream.device(), stream.get()}));
  HOTROW_RETURN_IF_ERROR(stream.Wait());
  const ExecContext ctx = stream.On({});
  HOTROW_RETURN_IF_ERROR(device.StartRows(ctx, shuffled.routes(), served.device_rows.data(), step,
                                          evaluation, wanted_rows.data()));
  HOTROW_RETURN_IF_ERROR(device.FinishRows(ctx));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::byte> got_rows,
                          Gather(stream, wanted_rows.data(), wanted.table_offsets()));
  std::vector<std::byte> want_rows;
  const std::vector<int64_t> float_bytes = RowBytes(/*as_floats=*/true);
  for (size_t t = 0; t < float_bytes.size(); ++t) {
    for (int64_t i = host_wanted.table_offsets[t]; i < host_wanted.table_offsets[t + 1]; ++i) {
      want_rows.insert(want_rows.end(), host_rows[static_cast<size_t>(i)],
                       host_rows[static_cast<size_t>(i)] + float_bytes[t]);
    }
  }
  if (got_rows != want_rows) return Differs(c, "rows");
  if (evaluation) return device.status();

  // Gradients.
  Rows gradients;
  HOTROW_RETURN_IF_ERROR(gradients.Make(
      host_wanted.keys, host_wanted.table_offsets, float_bytes, stream,
      [&](RowKey key, size_t t, std::byte* to) {
        for (int32_t d = 0; d < options_.tables[t].dim; ++d) {
          // A -0 that only one rank adds becomes 0.
          const float x = key.key % 17 == 0
                              ? -0.0f
                              : NumberOf(seed + 1 + static_cast<uint64_t>(c.rank()), key, d);
          std::memcpy(to + 4 * d, &x, 4);
        }
      }));
  Rows sums;
  HOTROW_RETURN_IF_ERROR(sums.Make(host_keys.served.keys, host_keys.served.table_offsets,
                                   float_bytes, stream, nullptr));
  std::vector<float*> host_gradients, host_sums;
  for (std::byte* const row : gradients.rows)
    host_gradients.push_back(reinterpret_cast<float*>(row));
  for (std::byte* const row : sums.rows) host_sums.push_back(reinterpret_cast<float*>(row));
  HOTROW_RETURN_IF_ERROR(host.StartGradients({}, host_wanted, host_keys, host_gradients, step));
  HOTROW_RETURN_IF_ERROR(host.FinishGradients({}, host_keys, host_gradients, host_sums));
  HOTROW_RETURN_IF_ERROR(device.StartGradients(
      ctx, wanted, shuffled.routes(), reinterpret_cast<float* const*>(gradients.device_rows.data()),
      step, reinterpret_cast<float* const*>(sums.device_rows.data())));
  HOTROW_RETURN_IF_ERROR(device.FinishGradients(ctx));
  HOTROW_ASSIGN_OR_RETURN(std::vector<std::byte> got_sums,
                          ToHost(stream, static_cast<const std::byte*>(sums.device_bytes.data()),
                                 std::ssize(sums.bytes) - 1));
  got_sums.push_back(std::byte{0});
  if (got_sums != sums.bytes) return Differs(c, "sums");
  const RowShuffleBytes host_bytes = host.bytes();
  const RowShuffleBytes bytes = device.bytes();
  if (bytes.rows != host_bytes.rows || bytes.gradients != host_bytes.gradients) {
    return Differs(c, "bytes");
  }
  return device.status();
}

// Batches that grow and shrink, in every type; the last table has rows of 16 bits now and then.
TEST_P(DeviceRowShuffleTest, RowsAndSumsAreThoseOfTheHost) {
  struct Case {
    ExchangeType forward;
    ExchangeType backward;
    ExchangeRounding rounding;
    WeightsPrecision precision;
  };
  const Case cases[] = {{ExchangeType::kFp32, ExchangeType::kInt8, ExchangeRounding::kNearest,
                         WeightsPrecision::kFp32},
                        {ExchangeType::kInt8, ExchangeType::kFp32, ExchangeRounding::kStochastic,
                         WeightsPrecision::kFp16},
                        {ExchangeType::kFp16, ExchangeType::kBf16, ExchangeRounding::kStochastic,
                         WeightsPrecision::kBf16},
                        {ExchangeType::kBf16, ExchangeType::kFp16, ExchangeRounding::kNearest,
                         WeightsPrecision::kFp32}};
  for (const uint64_t seed : test::Seeds(test::RunsSlowTests() ? 3 : 1)) {
    for (const Case& one : cases) {
      // Threads of an emulated GPU take a second for each rank.
      const auto number = static_cast<int>(&one - cases);
      const int skipped = GetParam().world_size / 4;  // 4 ranks: every other, 8: one
      if (test::kEmulatedGpu && GetParam().device == Device::kCuda && !test::RunsSlowTests() &&
          skipped > 0 && (skipped == 1 ? number % 2 == 1 : number != 1)) {
        continue;
      }
      SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed << " "
                                      << std::string(ExchangeTypeName(one.forward)));
      options_.forward = one.forward;
      options_.backward = one.backward;
      options_.rounding = one.rounding;
      options_.tables[1].precision = options_.tables[3].precision = one.precision;
      const auto statuses = Run({}, [&](Communicator& c) -> absl::Status {
        HOTROW_ASSIGN_OR_RETURN(auto channel, c.Duplicate());
        HOTROW_ASSIGN_OR_RETURN(auto host, RowShuffle::Create(options_, std::move(channel)));
        HOTROW_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(GetParam().device));
        HOTROW_ASSIGN_OR_RETURN(auto keys, DeviceKeyShuffle::Create(plan_, c, GetParam().device));
        HOTROW_ASSIGN_OR_RETURN(auto rows,
                                DeviceRowShuffle::Create(options_, c, GetParam().device));
        for (uint32_t step = 0; step < (test::kEmulatedGpu ? 3 : 6); ++step) {
          HOTROW_RETURN_IF_ERROR(
              OneStep(c, seed, step, stream, *keys, *rows, *host, /*evaluation=*/step == 2));
        }
        return stream.Wait();
      });
      for (const absl::Status& status : statuses) HOTROW_EXPECT_OK(status);
    }
  }
}

// A step is dropped while it is under way. It ends before what its caller does next, and a larger
// one, which begins at once, takes no memory from under it.
TEST_P(DeviceRowShuffleTest, AStepThatIsDroppedEndsBeforeWhatComesNext) {
  const Device device = GetParam().device;
  if (test::kEmulatedGpu && device == Device::kCuda && GetParam().world_size > 2) {
    GTEST_SKIP() << "two ranks are enough for an emulated GPU";
  }
  const auto statuses = Run({}, [&](Communicator& c) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(device));
    HOTROW_ASSIGN_OR_RETURN(auto key_shuffle, DeviceKeyShuffle::Create(plan_, c, device));
    struct Step {
      DeviceKeys wanted;
      DeviceShuffledKeys shuffled;
      Rows served;
      DeviceMemory<const std::byte*> rows;
    };
    // All of 30 keys of each table, or every tenth.
    const auto prepare = [&](uint64_t stride, Step* step) -> absl::Status {
      std::vector<uint64_t> values;
      std::vector<LookupSegment> segments;
      for (int32_t t = 0; t < 4; ++t) {
        const auto begin = std::ssize(values);
        for (uint64_t key = 0; key < 30; key += stride) values.push_back(key);
        segments.push_back({begin, std::ssize(values), t});
      }
      HOTROW_RETURN_IF_ERROR(Find(values, segments, &stream, &step->wanted));
      HOTROW_RETURN_IF_ERROR(key_shuffle->Exchange({}, step->wanted, &step->shuffled));
      const DeviceKeys& served = step->shuffled.served;
      HOTROW_ASSIGN_OR_RETURN(const std::vector<RowKey> keys,
                              ToHost(stream, served.keys(), served.size()));
      HOTROW_RETURN_IF_ERROR(
          step->served.Make(keys, served.table_offsets(), RowBytes(/*as_floats=*/false), stream,
                            [&](RowKey key, size_t t, std::byte* to) {
                              for (int32_t d = 0; d < options_.tables[t].dim; ++d) {
                                const float x = NumberOf(1, key, d);
                                std::memcpy(to + 4 * d, &x, 4);
                              }
                            }));
      HOTROW_RETURN_IF_ERROR(
          step->rows.Reserve(step->wanted.size(), {stream.device(), stream.get()}));
      return stream.Wait();
    };
    Step few;
    HOTROW_RETURN_IF_ERROR(prepare(10, &few));
    Step all;
    HOTROW_RETURN_IF_ERROR(prepare(1, &all));
    const std::vector<uint64_t> mine(static_cast<size_t>(few.wanted.size()), 0x5a5a);
    const ExecContext ctx = stream.On({});
    for (int round = 0; round < 3; ++round) {
      HOTROW_ASSIGN_OR_RETURN(auto rows, DeviceRowShuffle::Create(options_, c, device));
      HOTROW_RETURN_IF_ERROR(rows->StartRows(
          ctx, few.shuffled.routes(), few.served.device_rows.data(), 0, false, few.rows.data()));
      rows->Drop(ctx);
      HOTROW_RETURN_IF_ERROR(stream.Copy(few.rows.data(), mine.data(), 8 * std::ssize(mine)));
      HOTROW_RETURN_IF_ERROR(rows->StartRows(
          ctx, all.shuffled.routes(), all.served.device_rows.data(), 1, false, all.rows.data()));
      HOTROW_RETURN_IF_ERROR(rows->FinishRows(ctx));
      HOTROW_ASSIGN_OR_RETURN(const std::vector<std::byte> got,
                              Gather(stream, all.rows.data(), all.wanted.table_offsets()));
      HOTROW_ASSIGN_OR_RETURN(const std::vector<RowKey> keys,
                              ToHost(stream, all.wanted.keys(), all.wanted.size()));
      std::vector<float> want;
      for (size_t t = 0; t < options_.tables.size(); ++t) {
        for (int64_t i = all.wanted.table_offsets()[t]; i < all.wanted.table_offsets()[t + 1];
             ++i) {
          for (int32_t d = 0; d < options_.tables[t].dim; ++d) {
            want.push_back(NumberOf(1, keys[static_cast<size_t>(i)], d));
          }
        }
      }
      if (got.size() != 4 * want.size() || std::memcmp(got.data(), want.data(), got.size()) != 0) {
        return Differs(c, "rows");
      }
      HOTROW_ASSIGN_OR_RETURN(
          const std::vector<const std::byte*> kept,
          ToHost(stream, static_cast<const std::byte* const*>(few.rows.data()), std::ssize(mine)));
      if (std::memcmp(kept.data(), mine.data(), 8 * mine.size()) != 0) {
        return absl::InternalError("a step that was dropped wrote behind its caller");
      }
    }
    return stream.Wait();
  });
  for (const absl::Status& status : statuses) HOTROW_EXPECT_OK(status);
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceRowShuffleTest, testing::ValuesIn(ShuffleKinds()),
                         NameOfShuffleKind);

}  // namespace
}  // namespace hotrow::internal
