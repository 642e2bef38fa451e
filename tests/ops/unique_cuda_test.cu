#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/philox.h"
#include "ops/keys/unique.h"
#include "tests/ops/cuda_op_test.cuh"

namespace hotrow {
namespace {

using test::DeviceArray;

constexpr uint64_t kMaxKey = std::numeric_limits<uint64_t>::max();

struct Problem {
  std::vector<uint64_t> values;
  std::vector<LookupSegment> segments;
  int32_t num_tables = 0;
};

struct Result {
  std::vector<uint64_t> unique;
  std::vector<int64_t> table_offsets;
  std::vector<int32_t> inverse;
  std::vector<int32_t> counts;
};

UniqueArgs ArgsOf(const Problem& p) {
  return {.num_values = static_cast<int64_t>(p.values.size()),
          .segments = p.segments,
          .num_tables = p.num_tables};
}

// Only the first U of unique and counts mean something.
Result Cut(Result r) {
  r.unique.resize(static_cast<size_t>(r.table_offsets.back()));
  r.counts.resize(static_cast<size_t>(r.table_offsets.back()));
  return r;
}

Result RunOnCpu(const Problem& p) {
  const size_t n = p.values.size();
  Result r = {std::vector<uint64_t>(n), std::vector<int64_t>(static_cast<size_t>(p.num_tables) + 1),
              std::vector<int32_t>(n), std::vector<int32_t>(n)};
  HostBuffer<std::byte> workspace =
      std::move(HostBuffer<std::byte>::Create(UniqueWorkspaceBytes(static_cast<int64_t>(n))))
          .value();
  UniqueArgs args = ArgsOf(p);
  args.values = p.values.data();
  args.unique = r.unique.data();
  args.table_offsets = r.table_offsets.data();
  args.inverse = r.inverse.data();
  args.counts = r.counts.data();
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.size();
  HOTROW_EXPECT_OK(Unique({}, args));
  return Cut(std::move(r));
}

Result RunOnGpu(const Problem& p, test::Enqueue enqueue) {
  const size_t n = p.values.size();
  const int64_t workspace_bytes = UniqueWorkspaceBytes(static_cast<int64_t>(n), Device::kCuda);
  DeviceArray<uint64_t> values(p.values);
  DeviceArray<uint64_t> unique(n);
  DeviceArray<int64_t> table_offsets(static_cast<size_t>(p.num_tables) + 1);
  DeviceArray<int32_t> inverse(n);
  DeviceArray<int32_t> counts(n);
  // The op may not count on a clean workspace.
  DeviceArray<std::byte> workspace(
      std::vector<std::byte>(static_cast<size_t>(workspace_bytes), std::byte{0xa5}));
  UniqueArgs args = ArgsOf(p);
  args.values = values.data();
  args.unique = unique.data();
  args.table_offsets = table_offsets.data();
  args.inverse = inverse.data();
  args.counts = counts.data();
  args.workspace = workspace.data();
  args.workspace_bytes = workspace_bytes;
  test::RunOnGpu(enqueue, [&](const ExecContext& ctx) { return Unique(ctx, args); });
  return Cut({unique.ToHost(), table_offsets.ToHost(), inverse.ToHost(), counts.ToHost()});
}

void ExpectAsOnTheCpu(const Problem& p) {
  const Result want = RunOnCpu(p);
  for (const test::Enqueue enqueue : test::kBothWays) {
    SCOPED_TRACE(enqueue == test::Enqueue::kAsGraph ? "as a graph" : "directly");
    const Result got = RunOnGpu(p, enqueue);
    EXPECT_TRUE(got.unique == want.unique);
    EXPECT_EQ(got.table_offsets, want.table_offsets);
    EXPECT_TRUE(got.inverse == want.inverse);
    EXPECT_TRUE(got.counts == want.counts);
  }
}

Problem OneTable(std::vector<uint64_t> values) {
  const auto n = static_cast<int64_t>(values.size());
  return {std::move(values), {{0, n, 0}}, 1};
}

TEST(UniqueCudaTest, EdgeCases) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  ExpectAsOnTheCpu({{}, {}, 0});
  ExpectAsOnTheCpu({{}, {{0, 0, 2}, {0, 0, 0}}, 3});
  ExpectAsOnTheCpu(OneTable({0}));
  ExpectAsOnTheCpu(OneTable({kMaxKey}));
  ExpectAsOnTheCpu(OneTable({kMaxKey, 0, kMaxKey, 0}));
  ExpectAsOnTheCpu({{7, 0, 7, kMaxKey, 7, kMaxKey, 0, 5}, {{0, 3, 1}, {3, 6, 0}, {6, 8, 1}}, 3});
  // Equal keys in two tables, and tables without values before, between and behind them.
  ExpectAsOnTheCpu({{9, 9, 9, 9}, {{0, 2, 1}, {2, 2, 0}, {2, 4, 3}}, 5});
}

TEST(UniqueCudaTest, AllEqualAndAllDistinct) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const size_t n : {size_t{31}, size_t{33}, size_t{4095}, size_t{4096},
                         test::ForGpu(size_t{50'000}, size_t{9000})}) {
    SCOPED_TRACE(n);
    ExpectAsOnTheCpu(OneTable(std::vector<uint64_t>(n, kMaxKey)));
    for (const uint64_t stride : {uint64_t{1}, uint64_t{1} << 32, uint64_t{1} << 50}) {
      std::vector<uint64_t> values(n);
      for (size_t i = 0; i < n; ++i) values[i] = (n - i) * stride;
      ExpectAsOnTheCpu(OneTable(values));
    }
  }
}

// More segments than a launch takes, of few tables in any order, a third of them empty.
TEST(UniqueCudaTest, ManySegmentsOfRepeatedTables) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(8)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    Problem p;
    p.num_tables = static_cast<int32_t>(1 + random.Below(random.Below(2) == 0 ? 8 : 3000));
    const uint64_t segment_max = random.Below(2) == 0 ? 5 : 300;
    const uint64_t range = random.Below(2) == 0 ? 3 : 1000;
    for (uint64_t s = 60 + random.Below(150); s > 0; --s) {
      const auto begin = static_cast<int64_t>(p.values.size());
      for (uint64_t n = random.Below(3) == 0 ? 0 : random.Below(segment_max); n > 0; --n) {
        const uint64_t key = random.Below(range);
        p.values.push_back(random.Below(2) == 0 ? key : kMaxKey - key);
      }
      p.segments.push_back(
          {begin, static_cast<int64_t>(p.values.size()),
           static_cast<int32_t>(random.Below(static_cast<uint64_t>(p.num_tables)))});
    }
    ExpectAsOnTheCpu(p);
  }
}

// As lookups are: the r-th hottest key about 1 / r of the hottest, so thousands of threads meet at
// one slot.
TEST(UniqueCudaTest, HotKeys) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  RandomStream random(1, RandomPurpose::kTest);
  Problem p;
  p.num_tables = 10;
  for (int32_t t = 0; t < p.num_tables; ++t) {
    const auto begin = static_cast<int64_t>(p.values.size());
    for (int i = 0; i < test::ForGpu(20'000, 4000); ++i) {
      const double rank = std::exp(random.Uniform() * std::log(1e6));
      p.values.push_back(static_cast<uint64_t>(rank) * 0x9e3779b97f4a7c15ull);
    }
    p.segments.push_back({begin, static_cast<int64_t>(p.values.size()), p.num_tables - 1 - t});
  }
  ExpectAsOnTheCpu(p);
}

}  // namespace
}  // namespace hotrow
