#include <algorithm>
#include <numeric>
#include <vector>

#include "base/philox.h"
#include "base/status_macros.h"
#include "ops/keys/owner_parts.h"
#include "tests/ops/cuda_op_test.cuh"

namespace hotrow {
namespace {

using test::DeviceArray;

// More tables than a launch takes, some of them empty at both ends of a launch's share.
TEST(OwnerPartsCudaTest, PartsAndPicksAreThoseOfTheCpu) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(4)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    for (const size_t num_tables : {size_t{1}, size_t{64}, size_t{65}, size_t{200}}) {
      std::vector<int64_t> offsets = {0};
      std::vector<uint32_t> tables;
      for (size_t t = 0; t < num_tables; ++t) {
        offsets.push_back(offsets.back() +
                          static_cast<int64_t>(random.Below(2) == 0 ? 0 : random.Below(90)));
        tables.push_back(static_cast<uint32_t>(random.Below(1000)));
      }
      const auto n = static_cast<size_t>(offsets.back());
      std::vector<uint64_t> values(n);
      std::vector<int32_t> positions(n);
      for (uint64_t& value : values) value = random.Below(UINT64_MAX);
      for (int32_t& position : positions) position = static_cast<int32_t>(random.Below(n));
      std::vector<int32_t> want(n);
      std::vector<uint64_t> want_words(n);
      OwnerPartsArgs args = {.values = values.data(),
                             .table_offsets = offsets.data(),
                             .tables = tables,
                             .num_keys = std::ssize(values),
                             .world_size = static_cast<int32_t>(1 + random.Below(4096)),
                             .parts = want.data()};
      PickWordsArgs pick = {.from = values.data(),
                            .positions = positions.data(),
                            .num_words = std::ssize(values),
                            .to = want_words.data()};
      HOTROW_ASSERT_OK(OwnerParts({}, args));
      HOTROW_ASSERT_OK(PickWords({}, pick));
      // Back to where they were, in any order of positions that are distinct.
      std::vector<int32_t> places(n);
      std::iota(places.begin(), places.end(), 0);
      for (size_t i = n; i > 1; --i) std::swap(places[i - 1], places[random.Below(i)]);
      std::vector<uint64_t> want_put(n);
      PutWordsArgs put = {.from = values.data(),
                          .positions = places.data(),
                          .num_words = std::ssize(values),
                          .to = want_put.data()};
      HOTROW_ASSERT_OK(PutWords({}, put));
      DeviceArray<uint64_t> device_values(values);
      DeviceArray<int64_t> device_offsets(offsets);
      DeviceArray<int32_t> device_positions(positions);
      DeviceArray<int32_t> device_places(places);
      args.values = pick.from = put.from = device_values.data();
      put.positions = device_places.data();
      args.table_offsets = device_offsets.data();
      pick.positions = device_positions.data();
      for (const test::Enqueue enqueue : test::kBothWays) {
        DeviceArray<int32_t> parts(n);
        DeviceArray<uint64_t> words(n);
        DeviceArray<uint64_t> put_words(n);
        args.parts = parts.data();
        pick.to = words.data();
        put.to = put_words.data();
        test::RunOnGpu(enqueue, [&](const ExecContext& ctx) -> absl::Status {
          HOTROW_RETURN_IF_ERROR(OwnerParts(ctx, args));
          HOTROW_RETURN_IF_ERROR(PickWords(ctx, pick));
          return PutWords(ctx, put);
        });
        EXPECT_TRUE(parts.ToHost() == want);
        EXPECT_TRUE(words.ToHost() == want_words);
        EXPECT_TRUE(put_words.ToHost() == want_put);
      }
    }
  }
}

}  // namespace
}  // namespace hotrow
