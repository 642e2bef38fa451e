#include <vector>

#include "base/philox.h"
#include "ops/keys/key_rows.h"
#include "tests/ops/cuda_op_test.cuh"

namespace hotrow {
namespace {

using test::DeviceArray;

// More tables than a launch takes, some of them empty at both ends of a launch's share.
TEST(KeyRowsCudaTest, RowKeysAreThoseOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(4)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    for (const size_t num_tables : {size_t{0}, size_t{1}, size_t{64}, size_t{65}, size_t{200}}) {
      std::vector<int64_t> offsets = {0};
      std::vector<uint32_t> tables;
      for (size_t t = 0; t < num_tables; ++t) {
        offsets.push_back(offsets.back() +
                          static_cast<int64_t>(random.Below(2) == 0 ? 0 : random.Below(90)));
        tables.push_back(static_cast<uint32_t>(random.Below(1000)));
      }
      // Beyond the keys there is room that stays as it is.
      const auto n = static_cast<size_t>(offsets.back()) + 100;
      std::vector<uint64_t> values(n);
      for (uint64_t& value : values) value = random.Below(UINT64_MAX);
      const std::vector<RowKey> before(n, RowKey{7, 7});
      std::vector<RowKey> want = before;
      HOTROW_ASSERT_OK(MakeRowKeys({}, {.values = values.data(),
                                        .table_offsets = offsets.data(),
                                        .tables = tables,
                                        .max_keys = std::ssize(values),
                                        .keys = want.data()}));
      DeviceArray<uint64_t> device_values(values);
      DeviceArray<int64_t> device_offsets(offsets);
      for (const test::Enqueue enqueue : test::kBothWays) {
        DeviceArray<RowKey> keys(before);
        test::RunOnGpu(enqueue, [&](const ExecContext& ctx) {
          return MakeRowKeys(ctx, {.values = device_values.data(),
                                   .table_offsets = device_offsets.data(),
                                   .tables = tables,
                                   .max_keys = std::ssize(values),
                                   .keys = keys.data()});
        });
        EXPECT_TRUE(keys.ToHost() == want);
      }
    }
  }
}

TEST(KeyRowsCudaTest, AddressesAreThoseOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(4)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    std::vector<float> memory(1);  // only addresses are made of it
    std::vector<FloatRows> runs;
    int64_t n = 0;
    for (int i = 0; i < 150; ++i) {
      const auto size = static_cast<int64_t>(random.Below(3) == 0 ? 0 : random.Below(70));
      runs.push_back({n, n + size, memory.data(), static_cast<int64_t>(random.Below(200))});
      n += size;
    }
    std::vector<float*> want(static_cast<size_t>(n));
    HOTROW_ASSERT_OK(AddressRuns({}, {.runs = runs, .rows = want.data()}));
    DeviceArray<float*> rows(want.size());
    test::RunOnGpu(test::Enqueue::kDirectly, [&](const ExecContext& ctx) {
      return AddressRuns(ctx, {.runs = runs, .rows = rows.data()});
    });
    EXPECT_TRUE(rows.ToHost() == want);

    // With gaps, also between what two launches take.
    std::vector<ByteRows> byte_runs;
    n = 0;
    const std::byte bytes[2] = {};  // what is read, and what stays where nothing is written
    for (int i = 0; i < 150; ++i) {
      if (random.Below(3) == 0) n += 1 + static_cast<int64_t>(random.Below(40));
      const auto size = static_cast<int64_t>(random.Below(3) == 0 ? 0 : random.Below(70));
      byte_runs.push_back({n, n + size, &bytes[0], static_cast<int64_t>(random.Below(200))});
      n += size;
    }
    std::vector<const std::byte*> want_bytes(static_cast<size_t>(n), &bytes[1]);
    DeviceArray<const std::byte*> byte_rows(want_bytes);
    HOTROW_ASSERT_OK(AddressByteRows({}, {.runs = byte_runs, .rows = want_bytes.data()}));
    test::RunOnGpu(test::Enqueue::kDirectly, [&](const ExecContext& ctx) {
      return AddressByteRows(ctx, {.runs = byte_runs, .rows = byte_rows.data()});
    });
    EXPECT_TRUE(byte_rows.ToHost() == want_bytes);

    std::vector<int64_t> slots;
    std::vector<int32_t> late_positions;
    std::vector<int64_t> late_slots;
    for (int32_t i = 0; i < 2000; ++i) {
      const auto slot = static_cast<int64_t>(random.Below(1 << 30));
      slots.push_back(random.Below(4) == 0 ? -1 : slot);
      // Some have no late slot either, so nobody may write their addresses.
      if (slots.back() >= 0 || random.Below(5) == 0) continue;
      late_positions.push_back(i);
      late_slots.push_back(slot);
    }
    std::byte first;
    AddressSlotsArgs args = {.first = &first,
                             .row_bytes = 528,
                             .slots = slots.data(),
                             .num_rows = std::ssize(slots),
                             .late_positions = late_positions.data(),
                             .late_slots = late_slots.data(),
                             .num_late = std::ssize(late_slots)};
    const std::vector<std::byte*> before(slots.size(), &first + 1);
    std::vector<std::byte*> want_rows = before;
    args.rows = want_rows.data();
    HOTROW_ASSERT_OK(AddressSlots({}, args));
    DeviceArray<int64_t> device_slots(slots);
    DeviceArray<int32_t> device_positions(late_positions);
    DeviceArray<int64_t> device_late(late_slots);
    DeviceArray<std::byte*> device_rows(before);
    args.slots = device_slots.data();
    args.late_positions = device_positions.data();
    args.late_slots = device_late.data();
    args.rows = device_rows.data();
    test::RunOnGpu(test::Enqueue::kAsGraph,
                   [&](const ExecContext& ctx) { return AddressSlots(ctx, args); });
    EXPECT_TRUE(device_rows.ToHost() == want_rows);
  }
}

TEST(KeyRowsCudaTest, LookupsAreThoseOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  RandomStream random(5, RandomPurpose::kTest);
  const std::vector<float> memory(300);
  std::vector<const std::byte*> rows;
  for (const float& row : memory) rows.push_back(reinterpret_cast<const std::byte*>(&row));
  DeviceArray<const std::byte*> device_rows(rows);
  for (const int64_t num_features : {1, 26, 32, 33, 100}) {
    for (const int64_t batch_size : {1, 31, 32, 33, 200}) {
      SCOPED_TRACE(testing::Message() << num_features << " features, " << batch_size);
      std::vector<int32_t> inverse(static_cast<size_t>(num_features * batch_size));
      for (int32_t& u : inverse) u = static_cast<int32_t>(random.Below(rows.size()));
      std::vector<const float*> want(inverse.size());
      AddressLookupsArgs args = {.rows = rows.data(),
                                 .inverse = inverse.data(),
                                 .num_features = num_features,
                                 .batch_size = batch_size,
                                 .lookups = want.data()};
      HOTROW_ASSERT_OK(AddressLookups({}, args));
      DeviceArray<int32_t> device_inverse(inverse);
      DeviceArray<const float*> lookups(want.size());
      args.rows = device_rows.data();
      args.inverse = device_inverse.data();
      args.lookups = lookups.data();
      test::RunOnGpu(test::Enqueue::kAsGraph,
                     [&](const ExecContext& ctx) { return AddressLookups(ctx, args); });
      ASSERT_TRUE(lookups.ToHost() == want);
    }
  }
}

}  // namespace
}  // namespace hotrow
