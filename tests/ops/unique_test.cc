#include "ops/keys/unique.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/philox.h"
#include "ops/keys/unique_cpu_impl.h"
#include "ops/keys/unique_impl.h"
#include "tests/support/colliding_keys.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kMaxKey = std::numeric_limits<uint64_t>::max();

struct Result {
  std::vector<uint64_t> unique;
  std::vector<int64_t> table_offsets;
  std::vector<int32_t> inverse;
  std::vector<int32_t> counts;

  friend bool operator==(const Result& a, const Result& b) = default;
};

Result RunUnique(const std::vector<uint64_t>& values, const std::vector<LookupSegment>& segments,
                 int32_t num_tables, ThreadPool* pool = nullptr) {
  const auto n = static_cast<int64_t>(values.size());
  Result r;
  r.unique.resize(values.size());
  r.table_offsets.assign(static_cast<size_t>(num_tables) + 1, -1);
  r.inverse.resize(values.size());
  r.counts.resize(values.size());
  // The op may not count on a clean workspace.
  HostBuffer<std::byte> workspace =
      std::move(HostBuffer<std::byte>::Create(UniqueWorkspaceBytes(n))).value();
  std::fill(workspace.begin(), workspace.end(), std::byte{0xa5});
  UniqueArgs args{.values = values.data(),
                  .num_values = n,
                  .segments = segments,
                  .num_tables = num_tables,
                  .unique = r.unique.data(),
                  .table_offsets = r.table_offsets.data(),
                  .inverse = r.inverse.data(),
                  .counts = r.counts.data(),
                  .workspace = workspace.data(),
                  .workspace_bytes = workspace.size()};
  HOTROW_EXPECT_OK(Unique({.pool = pool}, args));
  r.unique.resize(static_cast<size_t>(r.table_offsets.back()));
  r.counts.resize(static_cast<size_t>(r.table_offsets.back()));
  return r;
}

Result Reference(const std::vector<uint64_t>& values, const std::vector<LookupSegment>& segments,
                 int32_t num_tables) {
  Result r;
  r.inverse.resize(values.size());
  r.table_offsets.push_back(0);
  for (int32_t t = 0; t < num_tables; ++t) {
    std::map<uint64_t, int32_t> seen;
    for (const LookupSegment& segment : segments) {
      if (segment.table != t) continue;
      for (int64_t i = segment.begin; i < segment.end; ++i) {
        const auto [it, is_new] =
            seen.try_emplace(values[i], static_cast<int32_t>(r.unique.size()));
        if (is_new) {
          r.unique.push_back(values[i]);
          r.counts.push_back(0);
        }
        r.inverse[i] = it->second;
        ++r.counts[it->second];
      }
    }
    r.table_offsets.push_back(static_cast<int64_t>(r.unique.size()));
  }
  return r;
}

TEST(UniqueTest, HandWorked) {
  // Tables 1, 0, 1: the first and the last segment share a table.
  const Result r =
      RunUnique({7, 0, 7, kMaxKey, 7, kMaxKey, 0, 5}, {{0, 3, 1}, {3, 6, 0}, {6, 8, 1}}, 3);
  EXPECT_THAT(r.unique, ElementsAre(kMaxKey, 7, 7, 0, 5));
  EXPECT_THAT(r.table_offsets, ElementsAre(0, 2, 5, 5));
  EXPECT_THAT(r.inverse, ElementsAre(2, 3, 2, 0, 1, 0, 3, 4));
  EXPECT_THAT(r.counts, ElementsAre(2, 1, 2, 2, 1));
}

TEST(UniqueTest, EmptyBatchWritesOffsetsOnly) {
  std::vector<int64_t> offsets(4, -1);
  const std::vector<LookupSegment> segments = {{0, 0, 2}, {0, 0, 0}};
  UniqueArgs args{.segments = segments, .num_tables = 3, .table_offsets = offsets.data()};
  HOTROW_ASSERT_OK(Unique({}, args));
  EXPECT_THAT(offsets, ElementsAre(0, 0, 0, 0));
  args.segments = {};
  args.num_tables = 0;
  HOTROW_ASSERT_OK(Unique({}, args));
}

TEST(UniqueTest, OneKey) {
  EXPECT_EQ(RunUnique({0}, {{0, 1, 0}}, 1), (Result{{0}, {0, 1}, {0}, {1}}));
  EXPECT_EQ(RunUnique({kMaxKey}, {{0, 1, 0}}, 1), (Result{{kMaxKey}, {0, 1}, {0}, {1}}));
}

TEST(UniqueTest, AllKeysEqual) {
  const std::vector<uint64_t> values(1000, kMaxKey);
  const Result r = RunUnique(values, {{0, 1000, 0}}, 1);
  EXPECT_THAT(r.unique, ElementsAre(kMaxKey));
  EXPECT_THAT(r.counts, ElementsAre(1000));
  EXPECT_EQ(r.inverse, std::vector<int32_t>(1000, 0));
}

TEST(UniqueTest, EqualKeysInTwoTablesAreTwoRows) {
  const Result r = RunUnique({9, 9, 9, 9}, {{0, 2, 0}, {2, 4, 1}}, 2);
  EXPECT_THAT(r.unique, ElementsAre(9, 9));
  EXPECT_THAT(r.inverse, ElementsAre(0, 0, 1, 1));
}

// As many distinct keys as the slots are made for, in patterns that a weak hash would pile up.
TEST(UniqueTest, DistinctKeysInAwkwardPatterns) {
  for (const uint64_t stride :
       {uint64_t{1}, uint64_t{4096}, uint64_t{1} << 32, uint64_t{1} << 50}) {
    SCOPED_TRACE(stride);
    std::vector<uint64_t> values;
    for (uint64_t i = 0; i < 5000; ++i) values.push_back(i * stride);
    const std::vector<LookupSegment> segments = {{0, 5000, 0}};
    EXPECT_EQ(RunUnique(values, segments, 1), Reference(values, segments, 1));
  }
}

TEST(UniqueTest, MatchesAMapOnAnyPool) {
  ThreadPool one(1);
  ThreadPool four(4);
  for (const uint64_t seed : test::Seeds(60)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const auto num_tables = static_cast<int32_t>(1 + random.Below(8));
    const uint64_t segment_max = random.Below(2) == 0 ? 5 : 3000;
    const uint64_t range = random.Below(2) == 0 ? 3 : 1000;
    std::vector<uint64_t> values;
    std::vector<LookupSegment> segments;
    for (uint64_t s = random.Below(12); s > 0; --s) {
      const auto begin = static_cast<int64_t>(values.size());
      // Every third segment is empty; keys lie at both ends of the 64 bits.
      for (uint64_t n = random.Below(3) == 0 ? 0 : random.Below(segment_max); n > 0; --n) {
        const uint64_t key = random.Below(range);
        values.push_back(random.Below(2) == 0 ? key : kMaxKey - key);
      }
      segments.push_back({begin, static_cast<int64_t>(values.size()),
                          static_cast<int32_t>(random.Below(static_cast<uint64_t>(num_tables)))});
    }
    const Result want = Reference(values, segments, num_tables);
    EXPECT_EQ(RunUnique(values, segments, num_tables), want);
    EXPECT_EQ(RunUnique(values, segments, num_tables, &one), want);
    EXPECT_EQ(RunUnique(values, segments, num_tables, &four), want);
  }
}

// Keys whose hashes agree in their lower 32 bits: all want one slot.
std::vector<uint64_t> CollidingKeys(int64_t n) {
  std::vector<uint64_t> keys;
  for (int64_t i = 0; i < n; ++i) {
    keys.push_back(test::Unmix64(static_cast<uint64_t>(i + 1) << 32 | 12345));
  }
  return keys;
}

TEST(UniqueTest, CollidingKeysGiveWhatOthersGive) {
  ThreadPool four(4);
  for (const uint64_t seed : test::Seeds(10)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    // Three tables: one whose keys collide, one whose keys do so in part, one of ordinary keys;
    // each in several segments between those of the others, and with keys that come again.
    const std::vector<uint64_t> colliding = CollidingKeys(1 + static_cast<int64_t>(seed) * 300);
    std::vector<uint64_t> values;
    std::vector<LookupSegment> segments;
    for (int s = 0; s < 12; ++s) {
      const auto begin = static_cast<int64_t>(values.size());
      const auto table = static_cast<int32_t>(random.Below(3));
      for (uint64_t n = random.Below(2000); n > 0; --n) {
        const bool collides = table == 0 || (table == 1 && random.Below(2) == 0);
        values.push_back(collides ? colliding[random.Below(colliding.size())] : random.Below(1000));
      }
      segments.push_back({begin, static_cast<int64_t>(values.size()), table});
    }
    const Result want = Reference(values, segments, 3);
    EXPECT_EQ(RunUnique(values, segments, 3), want);
    EXPECT_EQ(RunUnique(values, segments, 3, &four), want);
  }
}

// Three tables, the second one large and in several segments between those of the others; `draw`
// gives its keys.
template <typename Draw>
void ExpectTheSameOnAnyNumberOfThreads(const Draw& draw,
                                       std::initializer_list<int> numbers_of_threads = {2, 5, 8}) {
  for (const int threads : numbers_of_threads) {
    SCOPED_TRACE(testing::Message() << threads << " threads");
    RandomStream random(7, RandomPurpose::kTest);
    const int64_t large = std::max(internal::SplitTable::kGain / std::max(threads - 1, 1),
                                   internal::SplitTable::kValuesMin);
    std::vector<uint64_t> values;
    std::vector<LookupSegment> segments;
    for (int64_t drawn = 0; drawn < large;) {
      const auto begin = static_cast<int64_t>(values.size());
      const auto table = static_cast<int32_t>(random.Below(3));
      const uint64_t size = 1 + random.Below(table == 1 ? 40'000 : 300);
      for (uint64_t i = 0; i < size; ++i) {
        values.push_back(table == 1 ? draw(random, drawn + static_cast<int64_t>(i))
                                    : random.Below(100));
      }
      if (table == 1) drawn += static_cast<int64_t>(size);
      segments.push_back({begin, static_cast<int64_t>(values.size()), table});
    }
    ThreadPool pool(threads);
    ASSERT_EQ(RunUnique(values, segments, 3, &pool), RunUnique(values, segments, 3));
  }
}

TEST(UniqueTest, ALargeTableOfDrawnKeysIsTheSameOnAnyNumberOfThreads) {
  ExpectTheSameOnAnyNumberOfThreads(
      [](RandomStream& random, int64_t) { return random.Below(100'000); },
      {1, 2, 3, 4, 5, 6, 7, 8});
}

TEST(UniqueTest, ALargeTableOfOneKeyIsTheSameOnAnyNumberOfThreads) {
  ExpectTheSameOnAnyNumberOfThreads([](RandomStream&, int64_t) { return kMaxKey; });
}

TEST(UniqueTest, ALargeTableOfDistinctKeysIsTheSameOnAnyNumberOfThreads) {
  ExpectTheSameOnAnyNumberOfThreads(
      [](RandomStream&, int64_t i) { return static_cast<uint64_t>(i); });
}

TEST(UniqueTest, ALargeSkewedTableIsTheSameOnAnyNumberOfThreads) {
  ExpectTheSameOnAnyNumberOfThreads([](RandomStream& random, int64_t) {
    return random.Below(1 + random.Below(1 + random.Below(1'000'000)));
  });
}

// Here and there many keys of a piece collide, so that it is given up.
TEST(UniqueTest, ALargeTableOfCollidingKeysIsTheSameOnAnyNumberOfThreads) {
  const std::vector<uint64_t> colliding = CollidingKeys(20'000);
  ExpectTheSameOnAnyNumberOfThreads(
      [&](RandomStream& random, int64_t i) {
        return (i >> 15) % 3 == 2 ? colliding[random.Below(colliding.size())] : random.Below(1000);
      },
      {2, 8});
}

// No piece has many keys that collide among themselves, but those of the second one all begin where
// the first one has 500 keys of one slot, and its filter lets them pass.
TEST(UniqueTest, PiecesWhoseKeysCollideGiveWhatOthersGive) {
  const auto draw = [](RandomStream&, int64_t i) -> uint64_t {
    if (i < 500) return test::Unmix64(static_cast<uint64_t>(1 + i) << 32);
    if (i < 310'000) return 1;
    if (i < 350'000) return static_cast<uint64_t>(i);  // so that the second piece has more slots
    if (i >= 354'000) return 2;
    const auto j = static_cast<uint64_t>(i - 350'000);
    return test::Unmix64((1 + j % 500) << 32 | (j / 500) << 16 | j % 500);
  };
  ExpectTheSameOnAnyNumberOfThreads(draw, {2});
}

TEST(UniqueTest, CollidingKeysCostLittleMoreThanOthers) {
  constexpr int64_t kKeys = 1 << 17;
  const auto seconds = [](const std::vector<uint64_t>& values) {
    const std::clock_t begin = std::clock();
    const Result result = RunUnique(values, {{0, kKeys, 0}}, 1);
    EXPECT_EQ(result.unique, values);
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  std::vector<uint64_t> ordinary;
  for (uint64_t i = 0; i < kKeys; ++i) ordinary.push_back(i);
  // Probing alone takes thousands of times as long, sorting some ten times.
  EXPECT_LT(seconds(CollidingKeys(kKeys)), 200 * std::max(seconds(ordinary), 1e-3));
}

TEST(UniqueTest, ValidateNamesTheField) {
  uint64_t values[2] = {1, 2};
  uint64_t unique[2];
  int64_t table_offsets[2];
  int32_t inverse[2];
  int32_t counts[2];
  alignas(64) std::byte workspace[256];
  ASSERT_LE(UniqueWorkspaceBytes(2), 256);
  std::vector<LookupSegment> segments = {{0, 1, 0}, {1, 2, 0}};
  const UniqueArgs good{values,        2,       segments, 1,         unique,
                        table_offsets, inverse, counts,   workspace, 256};
  HOTROW_ASSERT_OK(good.Validate());
  const auto expect = [](const UniqueArgs& args, const char* message) {
    EXPECT_THAT(Unique({}, args), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  const auto with = [&](auto change) {
    UniqueArgs args = good;
    change(args);
    return args;
  };
  expect(with([](UniqueArgs& a) { a.num_values = -1; }),
         "num_values must lie in [0, 2^31 - 1], got -1");
  expect(with([](UniqueArgs& a) { a.num_values = int64_t{1} << 31; }), "got 2147483648");
  expect(with([](UniqueArgs& a) { a.num_values = 3; }), "segments must cover [0, num_values = 3)");
  expect(with([](UniqueArgs& a) { a.num_tables = -1; }), "num_tables");
  expect(with([](UniqueArgs& a) { a.num_tables = 0; }),
         "segments[0].table must lie in [0, 0), got 0");
  expect(with([](UniqueArgs& a) { a.values = nullptr; }), "values must not be null");
  expect(with([](UniqueArgs& a) { a.unique = nullptr; }), "unique must not be null");
  expect(with([](UniqueArgs& a) { a.table_offsets = nullptr; }), "table_offsets must not be null");
  expect(with([](UniqueArgs& a) { a.inverse = nullptr; }), "inverse must not be null");
  expect(with([](UniqueArgs& a) { a.counts = nullptr; }), "counts must not be null");
  expect(with([](UniqueArgs& a) { a.workspace = nullptr; }), "workspace must not be null");
  expect(with([](UniqueArgs& a) { a.workspace += 8; }), "workspace must be aligned");
  expect(with([](UniqueArgs& a) { a.workspace_bytes = 95; }),
         "workspace_bytes must be at least 96, got 95");
  segments[1].begin = 0;
  expect(good, "segments[1].begin must be 1");
  segments[1] = {1, 0, 0};
  expect(good, "segments[1].end must be >= 1, got 0");
  segments[1] = {1, 2, 1};
  expect(good, "segments[1].table must lie in [0, 1), got 1");
}

TEST(UniqueTest, TheWorkspaceIsThatOfTheDevice) {
  using internal::UniqueCudaLayout;
  for (const int64_t n : {int64_t{1}, int64_t{1000}, (int64_t{1} << 31) - 1}) {
    SCOPED_TRACE(n);
    const auto layout = UniqueCudaLayout::For(n);
    EXPECT_EQ(UniqueWorkspaceBytes(n, Device::kCuda), layout.bytes);
    // Each array begins where the one before has ended.
    EXPECT_EQ(layout.slots, 0);
    EXPECT_GE(layout.words, layout.slots + 4 * 2 * n);
    EXPECT_GE(layout.order, layout.words + 8 * internal::ScanWords(n));
    EXPECT_GE(layout.ranks, layout.order + 4 * n);
    EXPECT_GE(layout.bytes, layout.ranks + 4 * (n + 1));
    for (const int64_t begin : {layout.words, layout.order, layout.ranks}) {
      EXPECT_EQ(begin % kBufferAlignment, 0);
    }
    EXPECT_LE(layout.bytes, 17 * n + 1024);
  }
  EXPECT_EQ(UniqueWorkspaceBytes(0, Device::kCuda), 0);

  uint64_t numbers[1] = {};
  int64_t table_offsets[2];
  int32_t inverse[1];
  alignas(64) std::byte workspace[64];
  const std::vector<LookupSegment> segments = {{0, 1, 0}};
  UniqueArgs args{numbers,       1,       segments, 1,         numbers,
                  table_offsets, inverse, inverse,  workspace, UniqueWorkspaceBytes(1)};
  HOTROW_EXPECT_OK(args.Validate());
  EXPECT_THAT(args.Validate(Device::kCuda),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("workspace_bytes")));
  args.workspace_bytes = UniqueWorkspaceBytes(1, Device::kCuda);
  HOTROW_EXPECT_OK(args.Validate(Device::kCuda));
}

TEST(UniqueTest, FindSegmentNeverFindsAnEmptyOne) {
  internal::SegmentChunk chunk;
  const internal::PlacedSegment segments[] = {{5, 5}, {5, 8}, {8, 8}, {8, 8}, {8, 9}, {9, 9}};
  chunk.size = 6;
  std::copy(std::begin(segments), std::end(segments), chunk.v);
  for (int64_t i = 5; i < 9; ++i) EXPECT_EQ(internal::FindRange(chunk, i), i < 8 ? 1 : 4) << i;
  chunk.size = internal::SegmentChunk::kCapacity;
  for (int32_t s = 0; s < chunk.size; ++s) chunk.v[s] = {s, s + 1};
  for (int32_t s = 0; s < chunk.size; ++s) EXPECT_EQ(internal::FindRange(chunk, s), s);
}

TEST(UniqueTest, FirstSlotsLieInTheTable) {
  constexpr int64_t kLargest = 2 * ((int64_t{1} << 31) - 1);
  for (const int64_t num_slots : {int64_t{2}, int64_t{6}, int64_t{1000}, kLargest}) {
    int64_t largest = 0;
    for (uint64_t key = 0; key < 10'000; ++key) {
      largest = std::max<int64_t>(largest, internal::FirstSlot(key, /*salt=*/77, num_slots));
    }
    EXPECT_LT(largest, num_slots);
    EXPECT_GE(largest, num_slots - 1 - num_slots / 100);
  }
}

// For the hash tables on a GPU.
TEST(UniqueTest, KeysThatStartInOneSlotDoNotWithAnotherSalt) {
  constexpr uint64_t kKnownSalt = 1;
  constexpr int64_t kSlots = 1 << 16;
  std::set<uint32_t> known;
  std::set<uint32_t> other;
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t hash = uint64_t{12345} << 32 | i;
    const uint64_t key = test::Unmix64(test::Unmix64(hash) ^ kKnownSalt) ^ kKnownSalt;
    known.insert(internal::FirstSlot(key, kKnownSalt, kSlots));
    other.insert(internal::FirstSlot(key, kKnownSalt + 1, kSlots));
  }
  EXPECT_EQ(known.size(), 1u);
  EXPECT_GT(other.size(), 900u);
}

#if !HOTROW_HAVE_CUDA
TEST(UniqueTest, CudaIsUnimplemented) {
  int64_t table_offsets[1];
  EXPECT_THAT(Unique({.device = Device::kCuda}, {.table_offsets = table_offsets}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("CUDA")));
}
#endif

}  // namespace
}  // namespace hotrow
