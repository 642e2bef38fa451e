#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/philox.h"
#include "store/ssd/ssd_index_impl.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

using test::StatusIs;
using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kBucketBytes = 128;

struct KeyHash {
  size_t operator()(const RowKey& key) const { return HashRowKey(key).lo; }
};
using Model = std::unordered_map<RowKey, SsdLocation, KeyHash>;

struct Fixture {
  explicit Fixture(const SsdIndexOptions& options, int64_t budget_bytes = 256 * kMiB)
      : budget(budget_bytes) {
    auto created = SsdIndex::Create(options, budget);
    status = created.status();
    if (created.ok()) index = *std::move(created);
  }
  MemoryBudget budget;
  absl::Status status;
  std::unique_ptr<SsdIndex> index;
};

// What stands in the index by ForEach; a key that comes twice is a failure.
Model Dump(const SsdIndex& index) {
  Model rows;
  for (int64_t p = 0; p < index.num_partitions(); ++p) {
    index.ForEach(p, [&](const RowKey& key, SsdLocation location) {
      EXPECT_TRUE(rows.emplace(key, location).second) << key.key << " of " << key.table;
    });
  }
  return rows;
}

std::vector<SsdLocation> FindAll(const SsdIndex& index, std::span<const RowKey> keys) {
  std::vector<SsdLocation> locations(keys.size(), 12345);
  index.Find(keys, locations);
  return locations;
}

// Find and ForEach say what the model says, of `others` too, which may be there or not.
void ExpectEqual(const SsdIndex& index, const Model& model, std::vector<RowKey> others = {}) {
  ASSERT_EQ(index.rows(), static_cast<int64_t>(model.size()));
  ASSERT_EQ(Dump(index), model);
  for (const auto& row : model) others.push_back(row.first);
  const std::vector<SsdLocation> found = FindAll(index, others);
  for (size_t i = 0; i < others.size(); ++i) {
    const auto it = model.find(others[i]);
    ASSERT_EQ(found[i], it == model.end() ? kNoLocation : it->second)
        << "key " << others[i].key << " of table " << others[i].table;
  }
}

absl::Status Set(SsdIndex& index, std::span<const RowKey> keys,
                 std::span<const SsdLocation> locations) {
  return index.Upsert(keys, [&](size_t i, SsdLocation) { return locations[i]; }).status;
}

using Image = std::vector<std::byte>;

Image Save(const SsdIndex& index, int64_t partition) {
  Image image;
  HOTROW_EXPECT_OK(index.Save(partition, [&](std::span<const std::byte> bytes) {
    image.insert(image.end(), bytes.begin(), bytes.end());
    return absl::OkStatus();
  }));
  return image;
}

absl::Status Load(SsdIndex& index, int64_t partition, std::span<const std::byte> image) {
  return index.Load(partition, [&](std::span<std::byte> bytes) -> absl::Status {
    if (bytes.size() > image.size()) return absl::OutOfRangeError("the image is too short");
    if (!bytes.empty()) std::memcpy(bytes.data(), image.data(), bytes.size());
    image = image.subspan(bytes.size());
    return absl::OkStatus();
  });
}

SsdIndexImageHeader HeaderOf(const Image& image) {
  SsdIndexImageHeader header;
  std::memcpy(&header, image.data(), sizeof(header));
  return header;
}

// The key of a table whose hash is `hash`.
RowKey KeyOfHash(uint64_t hash, uint32_t table, uint64_t seed) {
  return {Unmix64(hash) ^ SsdIndexTableSeed(seed, table), table};
}

TEST(SsdIndexOptionsTest, SaysWhatIsWrong) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto validate = [](SsdIndexOptions options) { return options.Validate(); };
  HOTROW_EXPECT_OK(validate({.num_tables = 1, .location_bits = 1}));
  HOTROW_EXPECT_OK(validate({.num_tables = 65536, .location_bits = 48}));
  EXPECT_THAT(validate({.num_tables = 0, .location_bits = 1}),
              StatusIs(kInvalid, HasSubstr("num_tables")));
  EXPECT_THAT(validate({.num_tables = 65537, .location_bits = 1}),
              StatusIs(kInvalid, HasSubstr("got 65537")));
  EXPECT_THAT(validate({.location_bits = 0}), StatusIs(kInvalid, HasSubstr("location_bits")));
  EXPECT_THAT(validate({.location_bits = 49}), StatusIs(kInvalid, HasSubstr("[1, 48], got 49")));
  EXPECT_THAT(validate({.location_bits = 8, .max_rows_hint = -1}),
              StatusIs(kInvalid, HasSubstr("max_rows_hint")));
  MemoryBudget budget(kMiB);
  EXPECT_THAT(SsdIndex::Create({.location_bits = 49}, budget), StatusIs(kInvalid, HasSubstr("49")));
  EXPECT_EQ(budget.used(), 0);
}

TEST(SsdIndexTest, TheBijectionsAreBijections) {
  RandomStream random(1, RandomPurpose::kTest);
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t x = i < 2 ? i - uint64_t{1} : random.Next64();
    EXPECT_EQ(Unmix64(Mix64(x)), x);
    for (int bits = 32; bits <= 63; ++bits) {
      const SsdIndexScramble scramble(bits);
      const uint64_t q = x >> (64 - bits);
      EXPECT_EQ(scramble.Apply(q) >> bits, 0u);
      ASSERT_EQ(scramble.Invert(scramble.Apply(q)), q) << bits << " bits";
    }
  }
}

TEST(SsdIndexTest, PartitionsFollowTheHint) {
  const auto partitions = [](int64_t hint) {
    Fixture f({.location_bits = 8, .max_rows_hint = hint});
    return f.index->num_partitions();
  };
  EXPECT_EQ(partitions(0), 2);
  EXPECT_EQ(partitions(131'072), 2);
  EXPECT_EQ(partitions(131'073), 4);
  EXPECT_EQ(partitions(4'000'000), 64);
}

TEST(SsdIndexTest, AnEmptyIndexFindsNothing) {
  Fixture f({.num_tables = 2, .location_bits = 8});
  const std::vector<RowKey> keys = {{0, 0}, {~uint64_t{0}, 1}, {0, 1}};
  EXPECT_THAT(FindAll(*f.index, keys), testing::Each(kNoLocation));
  EXPECT_THAT(FindAll(*f.index, {}), testing::IsEmpty());
  EXPECT_EQ(f.index->Erase(keys, [](size_t, SsdLocation) { ADD_FAILURE(); }), 0);
  EXPECT_EQ(f.index->CompareAndSet(keys, std::vector<SsdLocation>(3, kNoLocation),
                                   [](size_t) -> SsdLocation {
                                     ADD_FAILURE();
                                     return 1;
                                   }),
            0);
  EXPECT_EQ(f.index->bytes(), f.budget.used());
  f.index.reset();
  EXPECT_EQ(f.budget.used(), 0);
}

TEST(SsdIndexTest, PlaceIsCalledInTheOrderOfTheBatchAndSeesTheOldLocation) {
  Fixture f({.num_tables = 3, .location_bits = 10});
  const std::vector<RowKey> keys = {{7, 0}, {7, 1}, {7, 0}, {0, 2}, {7, 0}, {7, 1}};
  std::vector<std::pair<size_t, SsdLocation>> calls;
  const auto result = f.index->Upsert(keys, [&](size_t i, SsdLocation old) -> SsdLocation {
    calls.emplace_back(i, old);
    return i == 2 ? kNoLocation : 100 + i;  // the third declines
  });
  HOTROW_EXPECT_OK(result.status);
  EXPECT_EQ(result.done, 6);
  EXPECT_THAT(calls,
              testing::ElementsAre(testing::Pair(0, kNoLocation), testing::Pair(1, kNoLocation),
                                   testing::Pair(2, 100), testing::Pair(3, kNoLocation),
                                   testing::Pair(4, 100), testing::Pair(5, 101)));
  ExpectEqual(*f.index, {{{7, 0}, 104}, {{7, 1}, 105}, {{0, 2}, 103}}, {{7, 2}, {0, 0}, {0, 1}});

  // A new key whose place declines does not come to be.
  const std::vector<RowKey> other = {{9, 0}};
  HOTROW_EXPECT_OK(f.index->Upsert(other, [](size_t, SsdLocation) { return kNoLocation; }).status);
  EXPECT_EQ(f.index->rows(), 3);
}

TEST(SsdIndexTest, CompareAndSetMovesOnlyWhatIsStillThere) {
  Fixture f({.location_bits = 10});
  const std::vector<RowKey> keys = {{1, 0}, {2, 0}, {3, 0}, {1, 0}};
  HOTROW_ASSERT_OK(Set(*f.index, std::span(keys).first(2), std::vector<SsdLocation>{10, 20}));
  std::vector<size_t> calls;
  const std::vector<SsdLocation> expected = {10, 21, kNoLocation, 11};
  EXPECT_EQ(f.index->CompareAndSet(keys, expected,
                                   [&](size_t i) -> SsdLocation {
                                     calls.push_back(i);
                                     return i == 0 ? 11 : kNoLocation;  // the second declines
                                   }),
            1);
  EXPECT_THAT(calls, testing::ElementsAre(0, 3));
  ExpectEqual(*f.index, {{{1, 0}, 11}, {{2, 0}, 20}}, {{3, 0}});
}

struct PropertyCase {
  SsdIndexOptions options;
  int64_t keys;  // that operations draw from
};

class SsdIndexPropertyTest : public testing::TestWithParam<PropertyCase> {};

TEST_P(SsdIndexPropertyTest, BehavesLikeAMap) {
  for (const uint64_t seed : test::Seeds(6)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    SsdIndexOptions options = GetParam().options;
    options.seed = seed;
    Fixture f(options);
    HOTROW_ASSERT_OK(f.status);
    SsdIndex& index = *f.index;
    const uint64_t location_mask = (uint64_t{1} << options.location_bits) - 1;

    // Dense and strided keys, the extremes, and numbers of all sizes; equal keys in several tables.
    std::vector<RowKey> universe;
    const auto num_tables = static_cast<uint64_t>(options.num_tables);
    for (int64_t i = 0; i < GetParam().keys; ++i) {
      const auto n = static_cast<uint64_t>(i);
      const uint64_t key = i % 5 == 0   ? n
                           : i % 5 == 1 ? ~n
                           : i % 5 == 2 ? n << 32
                           : i % 5 == 3 ? random.Next64()
                                        : random.Next64() >> random.Below(64);
      universe.push_back({key, static_cast<uint32_t>(random.Below(num_tables))});
      universe.push_back({key, static_cast<uint32_t>(num_tables - 1)});
    }
    Model model;
    for (int step = 0; step < 120; ++step) {
      std::vector<RowKey> keys(random.Below(3) == 0 ? random.Below(5) : random.Below(3000));
      for (RowKey& key : keys) key = universe[random.Below(universe.size())];
      std::vector<SsdLocation> next(keys.size());
      for (SsdLocation& location : next) {
        location = random.Below(8) == 0 ? kNoLocation : random.Next64() & location_mask;
      }
      const auto find = [&](const RowKey& key) {
        const auto it = model.find(key);
        return it == model.end() ? kNoLocation : it->second;
      };
      switch (random.Below(5)) {
        case 0:
        case 1: {
          const auto result = index.Upsert(keys, [&](size_t i, SsdLocation old) {
            EXPECT_EQ(old, find(keys[i]));
            if (next[i] != kNoLocation) model[keys[i]] = next[i];
            return next[i];
          });
          HOTROW_ASSERT_OK(result.status);
          ASSERT_EQ(result.done, static_cast<int64_t>(keys.size()));
          break;
        }
        case 2: {
          std::vector<SsdLocation> expected(keys.size());
          for (size_t i = 0; i < keys.size(); ++i) {
            expected[i] = find(keys[i]);
            if (random.Below(2) == 0) expected[i] ^= 1;
          }
          int64_t moved = 0;
          ASSERT_EQ(index.CompareAndSet(keys, expected,
                                        [&](size_t i) {
                                          EXPECT_EQ(expected[i], find(keys[i]));
                                          if (next[i] != kNoLocation) {
                                            model[keys[i]] = next[i];
                                            ++moved;
                                          }
                                          return next[i];
                                        }),
                    moved);
          break;
        }
        case 3: {
          int64_t erased = 0;
          ASSERT_EQ(index.Erase(keys,
                                [&](size_t i, SsdLocation old) {
                                  EXPECT_EQ(old, find(keys[i]));
                                  EXPECT_EQ(model.erase(keys[i]), 1u);
                                  ++erased;
                                }),
                    erased);
          break;
        }
        default: {
          const std::vector<SsdLocation> found = FindAll(index, keys);
          for (size_t i = 0; i < keys.size(); ++i) ASSERT_EQ(found[i], find(keys[i]));
        }
      }
      ASSERT_EQ(index.rows(), static_cast<int64_t>(model.size()));
      ASSERT_EQ(index.bytes(), f.budget.used());
    }
    ExpectEqual(index, model, universe);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SsdIndexPropertyTest,
    testing::Values(
        PropertyCase{{.num_tables = 1, .location_bits = 1}, 10'000},  // 16 ways
        PropertyCase{{.num_tables = 1, .location_bits = 24}, 5},
        PropertyCase{{.num_tables = 26, .location_bits = 32}, 10'000},
        PropertyCase{{.num_tables = 3, .location_bits = 24, .max_rows_hint = 4'000'000}, 20'000},
        PropertyCase{{.num_tables = 2, .location_bits = 40, .max_rows_hint = 60'000'000},
                     20'000},  // more partitions than Find sorts by
        PropertyCase{{.num_tables = 65536, .location_bits = 48}, 10'000}));  // 7 ways

TEST(SsdIndexTest, EveryKeyIsFoundAfterEveryGrowth) {
  const std::vector<std::pair<const char*, std::function<uint64_t(uint64_t)>>> kinds = {
      {"dense", [](uint64_t i) { return i; }},
      {"from the top", [](uint64_t i) { return ~i; }},
      {"multiples of 2^20", [](uint64_t i) { return i << 20; }},
      {"multiples of 2^48", [](uint64_t i) { return i << 48 | i >> 16; }},
      {"random", [](uint64_t i) { return Mix64(i + 12345); }},
      {"hashed like the index", [](uint64_t i) { return Unmix64(i); }},
  };
  for (const auto& [name, key_of] : kinds) {
    SCOPED_TRACE(name);
    Fixture f({.num_tables = 5, .location_bits = 30, .seed = 99});
    SsdIndex& index = *f.index;
    constexpr uint64_t kRows = 60'000;
    std::vector<RowKey> keys;
    int64_t growths = 0;
    while (keys.size() < kRows) {
      // Small batches, so that nearly every growth is looked at alone.
      const int64_t before = index.rebuilds();
      const size_t begin = keys.size();
      for (int i = 0; i < 100; ++i) {
        const uint64_t n = keys.size();
        keys.push_back({key_of(n), static_cast<uint32_t>(n % 5)});
      }
      HOTROW_ASSERT_OK(index
                           .Upsert(std::span(keys).subspan(begin),
                                   [&](size_t i, SsdLocation old) {
                                     EXPECT_EQ(old, kNoLocation);
                                     return begin + i;
                                   })
                           .status);
      if (index.rebuilds() == before) continue;
      ++growths;
      const std::vector<SsdLocation> found = FindAll(index, keys);
      for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], i) << "of " << keys.size();
    }
    EXPECT_GE(growths, 35);
    EXPECT_GE(static_cast<double>(index.rows()) / static_cast<double>(index.slots()), 0.91);
    EXPECT_EQ(Dump(index).size(), kRows);
  }
}

TEST(SsdIndexTest, BucketsAreFullBeforeTheIndexGrows) {
  // 64 - log2(4 * 2340) + 24 + 1 bits fit 14 slots in 128 bytes: 9.14 bytes each, at most 10 when a
  // sixteenth of them is new.
  Fixture f({.location_bits = 24, .max_rows_hint = 260'000, .seed = 3});
  double worst = 0;
  std::vector<RowKey> keys;
  for (uint64_t begin = 0; begin < 256'000; begin += 1000) {
    keys.clear();
    for (uint64_t i = begin; i < begin + 1000; ++i) keys.push_back({Mix64(i), 0});
    HOTROW_ASSERT_OK(
        f.index->Upsert(keys, [&](size_t i, SsdLocation) { return begin + i; }).status);
    if (begin < 240'000) continue;
    worst = std::max(worst,
                     static_cast<double>(f.index->slots()) / static_cast<double>(f.index->rows()));
  }
  EXPECT_LE(worst, 1 / 0.91);
}

// Rows whose first bucket is the same, at any number of buckets: 14 of them stand there, the others
// have only their second one.
TEST(SsdIndexTest, ReservedRoomIsEnoughAndLeavesWhatIsThere) {
  Fixture fixture({.num_tables = 3, .location_bits = 32, .max_rows_hint = 100'000});
  HOTROW_ASSERT_OK(fixture.status);
  SsdIndex& index = *fixture.index;
  const auto add = [&](uint64_t begin, uint64_t end) {
    std::vector<RowKey> keys;
    for (uint64_t k = begin; k < end; ++k) keys.push_back({k, static_cast<uint32_t>(k % 3)});
    HOTROW_ASSERT_OK(index.Upsert(keys, [&](size_t i, SsdLocation) { return begin + i; }).status);
  };
  add(0, 1000);
  std::vector<int64_t> coming(static_cast<size_t>(index.num_partitions()));
  for (uint64_t k = 1000; k < 90'000; ++k) {
    ++coming[static_cast<size_t>(index.partition_of({k, static_cast<uint32_t>(k % 3)}))];
  }
  for (int64_t p = 0; p < index.num_partitions(); ++p) {
    HOTROW_ASSERT_OK(index.Reserve(p, coming[static_cast<size_t>(p)]));
  }
  EXPECT_EQ(index.rows(), 1000);
  const int64_t rebuilds = index.rebuilds();
  EXPECT_GT(rebuilds, 0);
  add(1000, 90'000);
  EXPECT_EQ(index.rebuilds(), rebuilds);
  // And not much more than enough.
  EXPECT_LE(index.slots(), 90'000 * 9 / 8);
  const Model rows = Dump(index);
  ASSERT_EQ(rows.size(), 90'000u);
  for (const auto& [key, location] : rows) EXPECT_EQ(location, key.key);
  for (int64_t p = 0; p < index.num_partitions(); ++p) HOTROW_ASSERT_OK(index.Reserve(p, 0));
  EXPECT_EQ(index.rebuilds(), rebuilds);
  // More than the budget: refused, and as before.
  EXPECT_THAT(index.Reserve(0, int64_t{1} << 30),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("budget")));
  EXPECT_EQ(Dump(index).size(), 90'000u);
}

TEST(SsdIndexTest, ManyKeysOfOneBucketAreAllKept) {
  Fixture f({.num_tables = 2, .location_bits = 24, .seed = 5});
  Model model;
  std::vector<RowKey> keys;
  std::vector<SsdLocation> locations;
  for (uint64_t i = 0; i < 3000; ++i) {
    keys.push_back(KeyOfHash(uint64_t{1} << 62 | i, i % 2, 5));
    locations.push_back(i);
    model[keys.back()] = i;
  }
  HOTROW_ASSERT_OK(Set(*f.index, keys, locations));
  ExpectEqual(*f.index, model);
}

// Rows of many tables with one hash have the same two buckets, however many there are, until the
// partition gets a salt.
TEST(SsdIndexTest, KeysOfManyTablesThatShareBothBucketsAreAllKept) {
  constexpr uint32_t kTables = 1000;
  Fixture f({.num_tables = kTables, .location_bits = 24, .seed = 7});
  Model model;
  std::vector<RowKey> keys;
  std::vector<SsdLocation> locations;
  for (uint32_t table = 0; table < kTables; ++table) {
    keys.push_back(KeyOfHash(0x123456789abcdef0ULL, table, 7));
    locations.push_back(table);
    model[keys.back()] = table;
  }
  size_t calls = 0;
  const auto result = f.index->Upsert(keys, [&](size_t i, SsdLocation old) {
    EXPECT_EQ(i, calls++);
    EXPECT_EQ(old, kNoLocation);
    return locations[i];
  });
  HOTROW_ASSERT_OK(result.status);
  EXPECT_LE(f.index->bytes(), kMiB);
  ExpectEqual(*f.index, model, keys);
  EXPECT_EQ(f.index->bytes(), f.budget.used());

  // And works as ever.
  EXPECT_EQ(f.index->Erase(std::span(keys).first(500), [](size_t, SsdLocation) {}), 500);
  for (size_t i = 0; i < 500; ++i) model.erase(keys[i]);
  ExpectEqual(*f.index, model, keys);
  for (uint64_t i = 0; i < 30'000; ++i) {
    const std::vector<RowKey> one = {{i, static_cast<uint32_t>(i % kTables)}};
    HOTROW_ASSERT_OK(Set(*f.index, one, std::vector<SsdLocation>{i}));
    model[one[0]] = i;
  }
  ExpectEqual(*f.index, model, keys);
}

// Keys of one table that someone chose who knows the seed: for both numbers the top bits are the
// same, so that both buckets are, for any number of buckets up to 4096.
std::vector<RowKey> CollidingKeys(size_t count, uint64_t seed, int partition_bits) {
  const int q_bits = 64 - partition_bits;
  const SsdIndexScramble scramble(q_bits);
  constexpr int kCommonBits = 12;
  std::vector<RowKey> keys;
  uint64_t top = 0;
  for (uint64_t i = 0; keys.size() < count; ++i) {
    const uint64_t q =
        (uint64_t{0x555} << (q_bits - kCommonBits)) | (Mix64(i) >> (partition_bits + kCommonBits));
    const uint64_t second = scramble.Apply(q) >> (q_bits - kCommonBits);
    if (keys.empty()) top = second;
    if (second == top) keys.push_back(KeyOfHash(q, 0, seed));
  }
  return keys;
}

TEST(SsdIndexTest, KeysChosenToCollideAreAllKeptInLittleMemory) {
  for (const uint64_t ordinary : {0u, 30'000u}) {
    Fixture f({.num_tables = 1, .location_bits = 24, .seed = 3});
    Fixture g({.num_tables = 1, .location_bits = 24, .seed = 4});  // to whom they mean nothing
    ASSERT_EQ(f.index->num_partitions(), 2);
    std::vector<RowKey> keys = CollidingKeys(1000, 3, 1);
    for (uint64_t i = 0; i < ordinary; ++i) keys.push_back({i, 0});
    Model model;
    std::vector<SsdLocation> locations;
    for (const RowKey& key : keys) {
      locations.push_back(locations.size());
      model[key] = locations.back();
    }
    HOTROW_ASSERT_OK(Set(*f.index, keys, locations));
    HOTROW_ASSERT_OK(Set(*g.index, keys, locations));
    ExpectEqual(*f.index, model);
    EXPECT_LE(f.index->bytes(), 2 * g.index->bytes());

    // The image has the salt, and an index of another seed takes both.
    Fixture h({.num_tables = 1, .location_bits = 24, .seed = 5});
    for (int64_t p = 0; p < 2; ++p) {
      const Image image = Save(*f.index, p);
      EXPECT_EQ(HeaderOf(image).salt != 0, p == 0);
      HOTROW_ASSERT_OK(Load(*h.index, p, image));
      EXPECT_EQ(Save(*h.index, p), image);
    }
    EXPECT_EQ(h.index->seed(), 3u);
    ExpectEqual(*h.index, model);
    const std::vector<RowKey> more = CollidingKeys(3000, 3, 1);
    for (const RowKey& key : more) model[key] = 77;
    HOTROW_ASSERT_OK(Set(*h.index, more, std::vector<SsdLocation>(more.size(), 77)));
    ExpectEqual(*h.index, model);
  }
}

// Budgets from nothing to enough, by pages, so that every reserve fails in its turn.
TEST(SsdIndexTest, ARefusedReserveLeavesEverythingAsItWas) {
  constexpr uint64_t kRows = 6000;
  int64_t refused = 0;
  for (int64_t budget_bytes = 0;; budget_bytes += 4096) {
    SCOPED_TRACE(testing::Message() << "budget " << budget_bytes);
    Fixture f({.location_bits = 24}, budget_bytes);
    if (!f.status.ok()) {
      EXPECT_THAT(f.status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("budget")));
      EXPECT_EQ(f.budget.used(), 0);
      ++refused;
      continue;
    }
    Model model;
    std::vector<RowKey> keys;
    for (uint64_t i = 0; i < kRows; ++i) keys.push_back({i * 1000, 0});
    int64_t calls = 0;
    const auto place = [&](size_t i, SsdLocation) {
      ++calls;
      return i;
    };
    const auto result = f.index->Upsert(keys, place);
    ASSERT_EQ(result.done, calls);
    for (int64_t i = 0; i < calls; ++i) {
      model[keys[static_cast<size_t>(i)]] = static_cast<uint64_t>(i);
    }
    ExpectEqual(*f.index, model, keys);
    ASSERT_EQ(f.index->bytes(), f.budget.used());
    ASSERT_LE(f.budget.peak(), budget_bytes);
    if (result.status.ok()) {
      EXPECT_EQ(calls, static_cast<int64_t>(kRows));
      break;
    }
    ++refused;
    ASSERT_THAT(result.status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("budget")));
    // Keys that are there can be changed and erased; the room that leaves can be used.
    if (calls == 0) continue;
    const auto done = std::span(keys).first(static_cast<size_t>(calls));
    HOTROW_ASSERT_OK(
        f.index->Upsert(done, [&](size_t i, SsdLocation old) { return old + 1; }).status);
    ASSERT_EQ(f.index->Erase(done.first(1), [](size_t, SsdLocation) {}), 1);
    HOTROW_ASSERT_OK(f.index->Upsert(done.first(1), place).status);
  }
  EXPECT_GE(refused, 15);
}

SsdIndexOptions SmallOptions() { return {.num_tables = 3, .location_bits = 20, .seed = 11}; }

// Fills an index of SmallOptions.
Model FillSmall(SsdIndex& index, uint64_t rows, uint64_t salt = 0) {
  Model model;
  std::vector<RowKey> keys;
  std::vector<SsdLocation> locations;
  for (uint64_t i = 0; i < rows; ++i) {
    keys.push_back({Mix64(i + salt), static_cast<uint32_t>(i % 3)});
    locations.push_back(i);
    model[keys.back()] = i;
  }
  HOTROW_EXPECT_OK(Set(index, keys, locations));
  return model;
}

TEST(SsdIndexTest, AnImageGivesTheSameIndex) {
  for (const uint64_t rows : {0u, 1u, 700u, 20'000u}) {
    Fixture f(SmallOptions());
    const Model model = FillSmall(*f.index, rows);
    Fixture g(SmallOptions());
    FillSmall(*g.index, 5000, 777);  // goes when the image comes
    for (int64_t p = 0; p < f.index->num_partitions(); ++p) {
      const Image image = Save(*f.index, p);
      EXPECT_EQ(image.size(), sizeof(SsdIndexImageHeader) +
                                  HeaderOf(image).num_buckets * static_cast<size_t>(kBucketBytes));
      HOTROW_ASSERT_OK(Load(*g.index, p, image));
      EXPECT_EQ(Save(*g.index, p), image);
    }
    ExpectEqual(*g.index, model);
    EXPECT_EQ(g.index->bytes(), g.budget.used());
    EXPECT_EQ(g.index->bytes(), f.index->bytes());
    EXPECT_EQ(g.index->slots(), f.index->slots());
    // And it goes on from there.
    Model more = FillSmall(*g.index, 5000, 999);
    more.insert(model.begin(), model.end());
    ExpectEqual(*g.index, more);
  }
}

TEST(SsdIndexTest, AnImageOfAnotherIndexIsRefused) {
  Fixture f(SmallOptions());
  FillSmall(*f.index, 100);
  const Image image = Save(*f.index, 0);
  const auto load = [&](SsdIndexOptions options) {
    Fixture g(options);
    return Load(*g.index, 0, image);
  };
  constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
  SsdIndexOptions options = SmallOptions();
  HOTROW_EXPECT_OK(load(options));
  options.seed = 12;
  HOTROW_EXPECT_OK(load(options));  // an index without rows takes the seed of the image
  {
    Fixture g(options);
    FillSmall(*g.index, 100);
    EXPECT_THAT(Load(*g.index, 0, image),
                StatusIs(kDataLoss, HasSubstr("seed is 11, expected 12")));
  }
  options = SmallOptions();
  options.num_tables = 4;
  EXPECT_THAT(load(options), StatusIs(kDataLoss, HasSubstr("num_tables is 3, expected 4")));
  options = SmallOptions();
  options.location_bits = 21;
  EXPECT_THAT(load(options), StatusIs(kDataLoss, HasSubstr("location_bits is 20, expected 21")));
  options = SmallOptions();
  options.max_rows_hint = 1'000'000;
  EXPECT_THAT(load(options), StatusIs(kDataLoss, HasSubstr("partition_bits is 1, expected 4")));
  Fixture g(SmallOptions());
  EXPECT_THAT(Load(*g.index, 1, image), StatusIs(kDataLoss, HasSubstr("partition is 0")));
}

TEST(SsdIndexTest, ErrorsOfSinkAndSourceArePassedOnAndChangeNothing) {
  Fixture f(SmallOptions());
  const Model model = FillSmall(*f.index, 1000);
  const Image image = Save(*f.index, 0);
  for (int fail_at = 0; fail_at < 2; ++fail_at) {
    int calls = 0;
    EXPECT_THAT(f.index->Save(0,
                              [&](std::span<const std::byte>) {
                                return calls++ == fail_at ? absl::DataLossError("disk on fire")
                                                          : absl::OkStatus();
                              }),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("on fire")));
    EXPECT_EQ(calls, fail_at + 1);
  }
  for (const size_t bytes : {size_t{0}, size_t{55}, size_t{56}, image.size() - 1}) {
    EXPECT_THAT(Load(*f.index, 0, std::span(image).first(bytes)),
                StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("too short")));
  }
  ExpectEqual(*f.index, model);
  EXPECT_EQ(f.index->bytes(), f.budget.used());

  // No memory for a second copy.
  MemoryBudget& budget = f.budget;
  HOTROW_ASSERT_OK(budget.Reserve(budget.budget() - budget.used()));
  EXPECT_THAT(Load(*f.index, 0, image),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("budget")));
  ExpectEqual(*f.index, model);
}

// Every byte in turn, a bit of it and all of it: the image is refused and nothing changes, or what
// comes of it is a good index.
TEST(SsdIndexTest, AnImageWithAWrongByteIsRefusedOrIsAGoodIndex) {
  Fixture f(SmallOptions(), 2 * kMiB);
  FillSmall(*f.index, 500);
  const Image good = Save(*f.index, 1);
  int64_t refused = 0;
  int64_t taken = 0;
  Fixture g(SmallOptions(), 2 * kMiB);
  const Model before = FillSmall(*g.index, 50, 4321);
  std::vector<Image> images_before = {Save(*g.index, 0), Save(*g.index, 1)};
  for (size_t at = 0; at < good.size(); at += test::ForSanitizer<size_t>(1, 5)) {
    for (const int flip : {1 << (at % 8), 0xff}) {
      Image image = good;
      image[at] ^= static_cast<std::byte>(flip);
      const absl::Status status = Load(*g.index, 1, image);
      if (!status.ok()) {
        ++refused;
        // A number of buckets that the budget or the image does not have is found out so.
        ASSERT_THAT(status.code(),
                    testing::AnyOf(absl::StatusCode::kDataLoss, absl::StatusCode::kOutOfRange,
                                   absl::StatusCode::kResourceExhausted))
            << status;
        ASSERT_EQ(Save(*g.index, 1), images_before[1]) << "byte " << at;
      } else {
        ++taken;
        // Under another salt the rows are others, each in its place: the checksum would tell.
        ASSERT_GE(at, offsetof(SsdIndexImageHeader, salt));
        ExpectEqual(*g.index, Dump(*g.index));
        ASSERT_FALSE(testing::Test::HasFailure()) << "byte " << at;
        HOTROW_ASSERT_OK(Load(*g.index, 1, images_before[1]));
      }
    }
  }
  ExpectEqual(*g.index, before);
  EXPECT_GE(refused, test::ForSanitizer(100, 20));  // the header, occupancies, tables
  EXPECT_GE(taken, test::ForSanitizer(1000, 200));  // locations, remainders, free ways
}

// The layout of a bucket as store/ssd/ssd_index.cc documents it, to make images that are wrong in
// one thing.
struct BucketLayout {
  BucketLayout(const SsdIndexOptions& options, const SsdIndexImageHeader& header) {
    const int q_bits = 64 - static_cast<int>(header.partition_bits);
    d = ((uint64_t{1} << q_bits) - 1) / header.num_buckets + 1;
    low_bits =
        options.location_bits + 1 + std::bit_width(static_cast<uint64_t>(options.num_tables - 1));
    const int slot_bits = std::bit_width(d - 1) + low_bits;
    field_bits = slot_bits - 8;
    ways = std::min(16, 1008 / slot_bits);
  }
  std::byte* Tag(Image& image, size_t bucket, int way) const {
    return &image[sizeof(SsdIndexImageHeader) + bucket * kBucketBytes + 2 +
                  static_cast<size_t>(way)];
  }
  uint16_t Occupancy(const Image& image, size_t bucket) const {
    uint16_t occupancy;
    std::memcpy(&occupancy, &image[sizeof(SsdIndexImageHeader) + bucket * kBucketBytes], 2);
    return occupancy;
  }
  void SetOccupancy(Image& image, size_t bucket, uint16_t occupancy) const {
    std::memcpy(&image[sizeof(SsdIndexImageHeader) + bucket * kBucketBytes], &occupancy, 2);
  }
  bool Bit(const Image& image, size_t bucket, int way, int i) const {
    const auto [at, mask] = Where(bucket, way, i);
    return (image[at] & mask) != std::byte{0};
  }
  void SetBit(Image& image, size_t bucket, int way, int i, bool value) const {
    const auto [at, mask] = Where(bucket, way, i);
    image[at] = value ? image[at] | mask : image[at] & ~mask;
  }
  std::pair<size_t, std::byte> Where(size_t bucket, int way, int i) const {
    const auto bit = static_cast<size_t>(16 + 8 * ways + way * field_bits + i);
    return {sizeof(SsdIndexImageHeader) + bucket * kBucketBytes + bit / 8,
            static_cast<std::byte>(1 << (bit % 8))};
  }
  uint64_t d;
  int low_bits;
  int field_bits;
  int ways;
};

TEST(SsdIndexTest, ImagesWithRowsThatCannotBeAreRefused) {
  Fixture f(SmallOptions());
  FillSmall(*f.index, 500);
  const Image good = Save(*f.index, 0);
  const SsdIndexImageHeader header = HeaderOf(good);
  const BucketLayout layout(SmallOptions(), header);
  ASSERT_EQ(header.num_buckets * static_cast<uint64_t>(layout.ways) * 2,
            static_cast<uint64_t>(f.index->slots()));
  const auto set_rows = [](Image& image, uint64_t rows) {
    SsdIndexImageHeader changed = HeaderOf(image);
    changed.rows = rows;
    std::memcpy(image.data(), &changed, sizeof(changed));
  };
  size_t bucket = 0;  // one with a row in way 0 and the last way free
  while ((layout.Occupancy(good, bucket) & 1) == 0 ||
         (layout.Occupancy(good, bucket) >> (layout.ways - 1)) != 0) {
    ++bucket;
  }
  const uint16_t occupancy = layout.Occupancy(good, bucket);
  const auto with_last_way = static_cast<uint16_t>(occupancy | 1 << (layout.ways - 1));
  constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

  Image image = good;
  set_rows(image, header.rows + 1);
  EXPECT_THAT(Load(*f.index, 0, image), StatusIs(kDataLoss, HasSubstr("rows and holds")));

  image = good;
  layout.SetOccupancy(image, bucket, static_cast<uint16_t>(occupancy | 1 << layout.ways));
  set_rows(image, header.rows + 1);
  EXPECT_THAT(Load(*f.index, 0, image),
              StatusIs(kDataLoss, HasSubstr("more than its " + std::to_string(layout.ways))));

  // A row that is there twice, in the last way too.
  image = good;
  *layout.Tag(image, bucket, layout.ways - 1) = *layout.Tag(image, bucket, 0);
  for (int i = 0; i < layout.field_bits; ++i) {
    layout.SetBit(image, bucket, layout.ways - 1, i, layout.Bit(image, bucket, 0, i));
  }
  layout.SetOccupancy(image, bucket, with_last_way);
  set_rows(image, header.rows + 1);
  EXPECT_THAT(Load(*f.index, 0, image), StatusIs(kDataLoss, HasSubstr("twice")));
  // The same with another remainder is another row.
  layout.SetBit(image, bucket, layout.ways - 1, layout.low_bits,
                !layout.Bit(image, bucket, 0, layout.low_bits));
  HOTROW_EXPECT_OK(Load(*f.index, 0, image));

  // Table 3 of 3.
  image = good;
  for (int i = 21; i < layout.low_bits; ++i) layout.SetBit(image, bucket, 0, i, true);
  EXPECT_THAT(Load(*f.index, 0, image), StatusIs(kDataLoss, HasSubstr("no table")));

  // A remainder that reaches into the next bucket.
  image = good;
  for (int i = layout.low_bits; i < layout.field_bits; ++i) {
    layout.SetBit(image, bucket, 0, i, true);
  }
  EXPECT_THAT(Load(*f.index, 0, image), StatusIs(kDataLoss, HasSubstr("another bucket")));
  HOTROW_EXPECT_OK(Load(*f.index, 0, good));
}

// Readers, two writers of the same keys, a cleaner and a scan, while the index grows.
TEST(SsdIndexConcurrencyTest, FindSeesTheOldOrTheNewLocationWhileTheIndexGrows) {
  constexpr uint64_t kHot = 300;
  constexpr uint64_t kRounds = 150;
  constexpr uint64_t kNewPerRound = 60;
  Fixture f({.num_tables = 4, .location_bits = 40, .seed = 21});
  SsdIndex& index = *f.index;
  // A location is version << 1 | moved by the cleaner. A version is written by one Upsert.
  std::vector<RowKey> hot;
  for (uint64_t i = 0; i < kHot; ++i) hot.push_back({i, static_cast<uint32_t>(i % 4)});
  std::vector<std::atomic<uint64_t>> begun(kHot);
  std::vector<std::atomic<uint64_t>> done(kHot);
  std::atomic<int> writers{2};
  const auto write = [&](uint64_t writer) {
    for (uint64_t round = 0; round < kRounds; ++round) {
      std::vector<RowKey> keys = hot;
      for (uint64_t i = 0; i < kNewPerRound; ++i) {
        keys.push_back({uint64_t{1} << 40 | writer << 32 | (round * kNewPerRound + i), 3});
      }
      const auto result = index.Upsert(keys, [&](size_t i, SsdLocation old) -> SsdLocation {
        if (i >= kHot) {
          EXPECT_EQ(old, kNoLocation);
          return 1;
        }
        const uint64_t version = old == kNoLocation ? 1 : (old >> 1) + 1;
        EXPECT_EQ(begun[i].exchange(version), version - 1) << "two writers at once";
        return version << 1;
      });
      HOTROW_EXPECT_OK(result.status);
      const std::vector<SsdLocation> found = FindAll(index, hot);
      for (size_t i = 0; i < kHot; ++i) {
        uint64_t known = done[i].load();
        while (known < found[i] >> 1 && !done[i].compare_exchange_weak(known, found[i] >> 1)) {
        }
      }
    }
    --writers;
  };
  const auto read = [&] {
    std::vector<uint64_t> at_least(kHot);
    std::vector<SsdLocation> found(kHot);
    while (writers > 0) {
      for (size_t i = 0; i < kHot; ++i) at_least[i] = done[i].load();
      index.Find(hot, found);
      for (size_t i = 0; i < kHot; ++i) {
        if (found[i] == kNoLocation) {
          ASSERT_EQ(at_least[i], 0u) << "a row was lost";
        } else {
          ASSERT_GE(found[i] >> 1, at_least[i]) << "an old location came back";
          ASSERT_LE(found[i] >> 1, begun[i].load()) << "a location that never was";
        }
      }
    }
  };
  const auto clean = [&] {
    std::vector<SsdLocation> expected(kHot);
    while (writers > 0) {
      index.Find(hot, expected);
      index.CompareAndSet(hot, expected, [&](size_t i) { return expected[i] ^ 1; });
    }
  };
  const auto scan = [&] {
    while (writers > 0) {
      for (int64_t p = 0; p < index.num_partitions(); ++p) {
        int64_t rows = 0;
        index.ForEach(p, [&](const RowKey& key, SsdLocation) { rows += key.table < 4; });
        const Image image = Save(index, p);
        // As many as there were, or more by now: nothing is erased here.
        EXPECT_GE(static_cast<int64_t>(HeaderOf(image).rows), rows);
      }
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back(write, 0);
  threads.emplace_back(write, 1);
  threads.emplace_back(read);
  threads.emplace_back(clean);
  threads.emplace_back(scan);
  for (std::thread& thread : threads) thread.join();
  const std::vector<SsdLocation> found = FindAll(index, hot);
  for (const SsdLocation location : found) EXPECT_EQ(location >> 1, 2 * kRounds);
  EXPECT_EQ(index.rows(), static_cast<int64_t>(kHot + 2 * kRounds * kNewPerRound));
  EXPECT_GE(index.rebuilds(), 10);
}

TEST(SsdIndexConcurrencyTest, EraseAndInsertOfOneKeyRaceWithoutLosingCount) {
  Fixture f({.location_bits = 20});
  SsdIndex& index = *f.index;
  std::vector<RowKey> keys;
  for (uint64_t i = 0; i < 500; ++i) keys.push_back({i, 0});
  std::atomic<int64_t> live{0};
  const auto insert = [&] {
    for (int round = 0; round < 100; ++round) {
      HOTROW_EXPECT_OK(index
                           .Upsert(keys,
                                   [&](size_t i, SsdLocation old) {
                                     if (old == kNoLocation) ++live;
                                     return i;
                                   })
                           .status);
    }
  };
  const auto erase = [&] {
    for (int round = 0; round < 100; ++round) {
      index.Erase(keys, [&](size_t i, SsdLocation old) {
        EXPECT_EQ(old, i);
        --live;
      });
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back(insert);
  threads.emplace_back(insert);
  threads.emplace_back(erase);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(index.rows(), live.load());
  EXPECT_EQ(static_cast<int64_t>(Dump(index).size()), live.load());
}

TEST(SsdIndexDeathTest, ALocationThatDoesNotFitIsABug) {
  Fixture f({.location_bits = 4});
  const std::vector<RowKey> keys = {{1, 0}};
  EXPECT_DEATH((void)Set(*f.index, keys, std::vector<SsdLocation>{16}), "location_bits");
}

}  // namespace
}  // namespace hotrow::internal
