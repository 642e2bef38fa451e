#include "ops/keys/partition.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/philox.h"
#include "ops/keys/partition_impl.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using testing::ElementsAre;
using testing::HasSubstr;

struct Result {
  std::vector<int64_t> offsets;
  std::vector<int32_t> order;
};

// workspace_bytes: more than it must have.
Result RunPartition(const std::vector<int32_t>& part, int64_t num_parts, ThreadPool* pool = nullptr,
                    int64_t workspace_bytes = 0) {
  HostBuffer<std::byte> workspace =
      std::move(HostBuffer<std::byte>::Create(workspace_bytes)).value();
  std::fill(workspace.begin(), workspace.end(), std::byte{0xa5});
  Result r{std::vector<int64_t>(static_cast<size_t>(num_parts) + 1, -1),
           std::vector<int32_t>(part.size(), -1)};
  EXPECT_THAT(Partition({.pool = pool}, {.part = part.data(),
                                         .num_items = static_cast<int64_t>(part.size()),
                                         .num_parts = num_parts,
                                         .offsets = r.offsets.data(),
                                         .order = r.order.data(),
                                         .workspace = workspace.data(),
                                         .workspace_bytes = workspace_bytes}),
              test::IsOk());
  return r;
}

TEST(PartitionTest, HandWorked) {
  const Result r = RunPartition({2, 0, 2, 3, 0}, 5);
  EXPECT_THAT(r.offsets, ElementsAre(0, 2, 2, 4, 5, 5));
  EXPECT_THAT(r.order, ElementsAre(1, 4, 0, 2, 3));
}

TEST(PartitionTest, NoItems) {
  EXPECT_THAT(RunPartition({}, 3).offsets, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(RunPartition({}, 0).offsets, ElementsAre(0));
}

TEST(PartitionTest, OnePartKeepsTheOrder) {
  const Result r = RunPartition({0, 0, 0}, 1);
  EXPECT_THAT(r.offsets, ElementsAre(0, 3));
  EXPECT_THAT(r.order, ElementsAre(0, 1, 2));
}

TEST(PartitionTest, MatchesAStableSortOnAnyPool) {
  ThreadPool four(4);
  for (const uint64_t seed : test::Seeds(40)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const auto num_parts = static_cast<int64_t>(1 + random.Below(random.Below(2) == 0 ? 4 : 5000));
    std::vector<int32_t> part(random.Below(3000));
    for (int32_t& p : part) {
      p = static_cast<int32_t>(random.Below(static_cast<uint64_t>(num_parts)));
    }
    std::vector<int32_t> order(part.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return part[a] < part[b]; });
    std::vector<int64_t> offsets;
    for (int64_t p = 0; p <= num_parts; ++p) {
      offsets.push_back(std::count_if(part.begin(), part.end(), [&](int32_t x) { return x < p; }));
    }
    for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &four}) {
      const Result r = RunPartition(part, num_parts, pool);
      EXPECT_EQ(r.offsets, offsets);
      EXPECT_EQ(r.order, order);
    }
  }
}

TEST(PartitionTest, ManyItemsAreTheSameOnAnyNumberOfThreads) {
  constexpr int64_t kItems = (int64_t{1} << 19) + 12'345;
  // Parts of as many items as parts, of all items, of skewed numbers of them; parts without any.
  const auto expect = [&](int64_t num_parts, const auto& draw) {
    RandomStream random(11, RandomPurpose::kTest);
    std::vector<int32_t> part;
    for (int64_t i = 0; i < kItems; ++i) part.push_back(static_cast<int32_t>(draw(random)));
    const Result want = RunPartition(part, num_parts);
    for (const int threads : {1, 2, 8}) {
      SCOPED_TRACE(testing::Message() << num_parts << " parts, " << threads << " threads");
      ThreadPool pool(threads);
      const int64_t one = 4 * num_parts;
      // Room for all threads, and for fewer.
      for (const int64_t bytes : {threads * one, 3 * one}) {
        const Result r = RunPartition(part, num_parts, &pool, bytes);
        ASSERT_EQ(r.offsets, want.offsets);
        ASSERT_EQ(r.order, want.order);
      }
    }
  };
  expect(1, [](RandomStream&) { return 0; });
  expect(20'000, [](RandomStream&) { return 19'999; });
  expect(20'000, [](RandomStream& random) { return random.Below(1 + random.Below(20'000)); });
  expect(kItems, [](RandomStream& random) { return random.Below(kItems); });
}

TEST(PartitionTest, ValidateNamesTheField) {
  const int32_t part[1] = {0};
  int64_t offsets[2];
  int32_t order[1];
  const auto expect = [](const PartitionArgs& args, const char* message) {
    EXPECT_THAT(Partition({}, args),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  HOTROW_EXPECT_OK(Partition({}, {part, 1, 1, offsets, order}));
  expect({part, -1, 1, offsets, order}, "num_items must lie in [0, 2^31 - 1], got -1");
  expect({part, 1, 0, offsets, order}, "num_parts");
  expect({part, 0, -1, offsets, order}, "num_parts");
  expect({nullptr, 1, 1, offsets, order}, "part must not be null");
  expect({part, 1, 1, nullptr, order}, "offsets must not be null");
  expect({part, 1, 1, offsets, nullptr}, "order must not be null");
}

TEST(PartitionTest, PassesCoverEveryBitOfAPart) {
  using internal::PartitionPasses;
  EXPECT_EQ(PartitionPasses::For(0).num_passes, 0);
  EXPECT_EQ(PartitionPasses::For(1).num_passes, 0);
  for (int64_t parts : {int64_t{2}, int64_t{3}, int64_t{256}, int64_t{257}, int64_t{1} << 16,
                        (int64_t{1} << 16) + 1, int64_t{1} << 31}) {
    SCOPED_TRACE(parts);
    const auto passes = PartitionPasses::For(parts);
    const int bits = passes.num_passes * passes.digit_bits;
    EXPECT_GE(int64_t{1} << bits, parts);
    EXPECT_LE(passes.digit_bits, PartitionPasses::kDigitBitsMax);
    EXPECT_LE((passes.num_passes - 1) * passes.digit_bits, 31);  // a shift of the last digit
    // No pass too many.
    EXPECT_LT(int64_t{1} << (8 * (passes.num_passes - 1)), parts);
  }
  // More parts than there are numbers for them.
  EXPECT_EQ(PartitionPasses::For(int64_t{1} << 40).num_passes, 4);
}

TEST(PartitionTest, TheWorkspaceIsThatOfTheDevice) {
  using internal::PartitionCudaLayout;
  EXPECT_EQ(PartitionWorkspaceBytes(Device::kCpu, 1000, 1000), 0);
  EXPECT_EQ(PartitionWorkspaceBytes(Device::kCuda, 0, 1000), 0);
  EXPECT_EQ(PartitionWorkspaceBytes(Device::kCuda, 1000, 1), 0);
  for (const int64_t n : {int64_t{1}, int64_t{4097}, (int64_t{1} << 31) - 1}) {
    for (const int64_t parts : {int64_t{2}, int64_t{1024}, int64_t{1025}, n}) {
      if (parts < 2) continue;
      SCOPED_TRACE(testing::Message() << n << " items, " << parts << " parts");
      const auto layout = PartitionCudaLayout::For(n, parts);
      EXPECT_EQ(PartitionWorkspaceBytes(Device::kCuda, n, parts), layout.bytes);
      const auto passes = internal::PartitionPasses::For(parts);
      const int64_t again = passes.num_passes > 1 ? n : 0;
      const int64_t counts = passes.num_digits() * ((n + 4095) / 4096);
      EXPECT_EQ(layout.parts[0], 0);
      EXPECT_GE(layout.parts[1], 4 * n);
      EXPECT_GE(layout.items, layout.parts[1] + 4 * again);
      EXPECT_GE(layout.counts, layout.items + 4 * again);
      EXPECT_GE(layout.words, layout.counts + 4 * counts);
      EXPECT_GE(layout.bytes, layout.words + 8 * internal::ScanWords(counts));
      for (const int64_t begin : {layout.parts[1], layout.items, layout.counts, layout.words}) {
        EXPECT_EQ(begin % kBufferAlignment, 0);
      }
    }
  }
  const int32_t part[1] = {0};
  int64_t offsets[3];
  int32_t order[1];
  PartitionArgs args{part, 1, 2, offsets, order};
  HOTROW_EXPECT_OK(args.Validate());
  EXPECT_THAT(args.Validate(Device::kCuda),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("workspace_bytes")));
  args.workspace_bytes = PartitionWorkspaceBytes(Device::kCuda, 1, 2);
  EXPECT_THAT(args.Validate(Device::kCuda), StatusIs(absl::StatusCode::kInvalidArgument,
                                                     HasSubstr("workspace must not be null")));
}

}  // namespace
}  // namespace hotrow
