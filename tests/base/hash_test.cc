#include "base/hash.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/entropy.h"
#include "base/philox.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

constexpr uint64_t kMaxKey = ~uint64_t{0};

// Pearson's statistic against equal counts, as a distance from its mean in standard deviations:
// with k cells it has mean k - 1 and variance 2 (k - 1). Hashes of consecutive keys are fixed, so a
// test with it either always passes or never does.
double ChiSquareSigmas(const std::vector<int64_t>& counts) {
  double total = 0;
  for (const int64_t c : counts) total += static_cast<double>(c);
  const double expected = total / static_cast<double>(counts.size());
  double sum = 0;
  for (const int64_t c : counts) {
    sum += (static_cast<double>(c) - expected) * (static_cast<double>(c) - expected) / expected;
  }
  const double freedom = static_cast<double>(counts.size()) - 1;
  return (sum - freedom) / std::sqrt(2 * freedom);
}

struct Field {
  const char* name;
  uint32_t cells;
  std::function<uint32_t(const RowHash&, uint32_t cells)> value;
};

std::vector<Field> AllFields() {
  return {
      {"shard", 64, [](const RowHash& h, uint32_t n) { return h.shard() * n / 4096; }},
      {"shard low bits", 64, [](const RowHash& h, uint32_t n) { return h.shard() % n; }},
      {"partition", 61, [](const RowHash& h, uint32_t n) { return h.partition(n); }},
      {"bucket1", 67, [](const RowHash& h, uint32_t n) { return h.bucket1(n); }},
      {"bucket2", 67, [](const RowHash& h, uint32_t n) { return h.bucket2(n); }},
      {"tag", 32, [](const RowHash& h, uint32_t n) { return h.tag() % n; }},
  };
}

TEST(RowHashTest, EveryFieldIsUniform) {
  for (const Field& field : AllFields()) {
    if (std::string_view(field.name) == "tag") continue;  // has its own test: 0 becomes 1
    for (const uint32_t table : {0u, 25u}) {
      std::vector<int64_t> counts(field.cells);
      for (uint64_t key = 0; key < 200000; ++key) {
        ++counts[field.value(HashRowKey(key, table), field.cells)];
      }
      EXPECT_LT(std::abs(ChiSquareSigmas(counts)), 5) << field.name << " of table " << table;
    }
  }
}

// For each pair: among the keys that fall in one cell of the first field, the second is as uniform
// as over all keys. The pairs of cells are one big table of counts. (The two buckets differ by
// construction, so that pair is left out.)
TEST(RowHashTest, FieldsAreIndependentOfEachOther) {
  const std::vector<Field> fields = AllFields();
  for (const Field& a : fields) {
    for (const Field& b : fields) {
      const std::string_view names[] = {a.name, b.name};
      if (names[0] >= names[1] || names[1] == "tag") continue;
      if (names[0].substr(0, 6) == names[1].substr(0, 6)) continue;
      std::vector<int64_t> counts(static_cast<size_t>(a.cells) * b.cells);
      for (uint64_t key = 0; key < 400000; ++key) {
        const RowHash hash = HashRowKey(key, 3);
        ++counts[a.value(hash, a.cells) * b.cells + b.value(hash, b.cells)];
      }
      EXPECT_LT(std::abs(ChiSquareSigmas(counts)), 5) << a.name << " and " << b.name;
    }
  }
}

// The fault this design avoids: a rank that owns 1/16 of the shards still uses all its buckets.
TEST(RowHashTest, OneShardFillsAllBucketsOfOnePartition) {
  constexpr uint32_t kBuckets = 64;
  std::vector<int64_t> counts(kBuckets);
  for (uint64_t key = 0; key < 4000000; ++key) {
    const RowHash hash = HashRowKey(key, 0);
    if (hash.shard() % 16 == 5 && hash.partition(8) == 3) ++counts[hash.bucket1(kBuckets)];
  }
  EXPECT_LT(std::abs(ChiSquareSigmas(counts)), 5);
}

TEST(RowHashTest, TagIsNeverZeroAndOtherwiseUniform) {
  std::vector<int64_t> counts(256);
  for (uint64_t key = 0; key < 500000; ++key) ++counts[HashRowKey(key, 1).tag()];
  EXPECT_EQ(counts[0], 0);
  EXPECT_NEAR(static_cast<double>(counts[1]), 2 * 500000 / 256.0,
              5 * std::sqrt(2 * 500000 / 256.0));
  EXPECT_LT(std::abs(ChiSquareSigmas({counts.begin() + 2, counts.end()})), 5);
  EXPECT_EQ((RowHash{.hi = 0, .lo = 0}).tag(), 1);
  EXPECT_EQ((RowHash{.hi = kMaxKey, .lo = 0}).tag(), 255);
}

TEST(RowHashTest, TheTwoBucketsDifferAndLieInRange) {
  const RowHash corners[] = {{0, 0}, {0, kMaxKey}, {0, 0xffffffffULL}, {0, 0xffffffffULL << 32}};
  for (const uint64_t n : {1ull, 2ull, 3ull, 5ull, 2048ull, 1000003ull, 1ull << 32}) {
    for (uint64_t key = 0; key < 2000; ++key) {
      const RowHash hash = key < 4 ? corners[key] : HashRowKey(key, 0);
      ASSERT_LT(hash.bucket1(n), n);
      ASSERT_LT(hash.bucket2(n), n);
      ASSERT_TRUE(n == 1 || hash.bucket1(n) != hash.bucket2(n)) << n;
      ASSERT_LT(hash.partition(n), n);
      ASSERT_LT(hash.shard(), static_cast<uint32_t>(RowHash::kNumShards));
    }
  }
}

TEST(RowHashTest, SecondBucketReachesEveryOtherBucket) {
  constexpr uint64_t kBuckets = 5;
  std::vector<int64_t> counts(kBuckets * kBuckets);
  for (uint64_t key = 0; key < 100000; ++key) {
    const RowHash hash = HashRowKey(key, 0);
    ++counts[hash.bucket1(kBuckets) * kBuckets + hash.bucket2(kBuckets)];
  }
  std::vector<int64_t> off_diagonal;
  for (uint64_t i = 0; i < counts.size(); ++i) {
    if (i / kBuckets != i % kBuckets) off_diagonal.push_back(counts[i]);
  }
  EXPECT_LT(std::abs(ChiSquareSigmas(off_diagonal)), 5);
}

// The shard of a key is fixed for life: these numbers may never change.
TEST(RowHashTest, GoldenValues) {
  struct Golden {
    uint64_t key;
    uint32_t table;
    uint64_t hi;
    uint64_t lo;
    uint32_t shard;
  };
  const Golden golden[] = {
      {0x0ULL, 0u, 0x79cfc3dbe5bbfcafULL, 0x447d27f4d6d42b58ULL, 3324u},
      {0x1ULL, 0u, 0x076e869957626605ULL, 0x8bbf499e1fb192f4ULL, 1768u},
      {0x0ULL, 1u, 0x9bd1b310027a7a6cULL, 0x480a1d51e6774235ULL, 3355u},
      {0xffffffffffffffffULL, 0u, 0x53319d4ac7ccbb33ULL, 0x09114f2752a57c0dULL, 793u},
      {0xffffffffffffffffULL, 4294967295u, 0x4dff9610dc5300c4ULL, 0x5547e00b242cdb7bULL, 4089u},
      {0x123456789abcdefULL, 25u, 0x866cd87084cec9d6ULL, 0x29a8486da5f2b3cdULL, 1741u},
  };
  for (const Golden& g : golden) {
    const RowHash hash = HashRowKey(g.key, g.table);
    EXPECT_EQ(hash.hi, g.hi) << std::hex << g.key << " of " << g.table;
    EXPECT_EQ(hash.lo, g.lo) << std::hex << g.key << " of " << g.table;
    EXPECT_EQ(hash.shard(), g.shard);
    const RowHash same = HashRowKey(RowKey{.key = g.key, .table = g.table});
    EXPECT_EQ(same.hi, g.hi);
    EXPECT_EQ(same.lo, g.lo);
  }
}

TEST(RowHashTest, EqualKeysOfTwoTablesAreTwoRows) {
  for (const uint64_t key : {uint64_t{0}, uint64_t{1}, kMaxKey}) {
    const RowHash a = HashRowKey(key, 0);
    const RowHash b = HashRowKey(key, 1);
    EXPECT_NE(a.hi, b.hi);
    EXPECT_NE(a.lo, b.lo);
  }
}

std::vector<std::byte> RandomBytes(uint64_t seed, size_t count) {
  RandomStream random(seed, RandomPurpose::kTest);
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Below(256));
  return bytes;
}

// With both keys equal to one 32-bit seed it is MurmurHash3_x64_128, whose reference implementation
// gives these.
TEST(HashBytesTest, KnownAnswersOfMurmurHash3) {
  const auto hash = [](uint64_t seed, std::string_view text) {
    return HashBytes(seed, seed, std::as_bytes(std::span(text))).ToHex();
  };
  EXPECT_EQ(hash(0, ""), "00000000000000000000000000000000");
  EXPECT_EQ(hash(0, "The quick brown fox jumps over the lazy dog"),
            "e34bbc7bbc071b6c7a433ca9c49a9347");
}

// Part of the checkpoint format: these may never change.
TEST(HashBytesTest, GoldenValues) {
  std::vector<std::byte> bytes(67);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(3 * i + 1);
  const auto hash = [&bytes](size_t length) {
    return HashBytes(0x0123456789abcdefULL, kMaxKey, std::span(bytes).first(length)).ToHex();
  };
  EXPECT_EQ(hash(0), "4423d56e729c58f354c9442b60b230a4");
  EXPECT_EQ(hash(1), "2b681c283300c5e179ef9ae4f378f16d");
  EXPECT_EQ(hash(8), "ca5d78b9698ea8c9c779e0c96f88f381");
  EXPECT_EQ(hash(15), "5b9b5ee1cdfbb94add0628f4d170b620");
  EXPECT_EQ(hash(16), "ff4c721caf5311b55d1407d69f15aaae");
  EXPECT_EQ(hash(17), "f648cf8a30dfde340f7baa52a45d15a8");
  EXPECT_EQ(hash(67), "a6263e6e36a295ff4818aec91abf6aab");
}

TEST(HashBytesTest, EveryBitOfTextAndKeysCounts) {
  for (const size_t length : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100}) {
    std::vector<std::byte> bytes = RandomBytes(length, length);
    const Hash128 hash = HashBytes(5, 6, bytes);
    for (size_t bit = 0; bit < 8 * length; ++bit) {
      const auto mask = static_cast<std::byte>(1 << (bit % 8));
      bytes[bit / 8] ^= mask;
      const Hash128 other = HashBytes(5, 6, bytes);
      ASSERT_NE(other.hi, hash.hi) << length << " " << bit;
      ASSERT_NE(other.lo, hash.lo) << length << " " << bit;
      bytes[bit / 8] ^= mask;
    }
    for (int bit = 0; bit < 64; ++bit) {
      EXPECT_FALSE(HashBytes(5 ^ (uint64_t{1} << bit), 6, bytes) == hash);
      EXPECT_FALSE(HashBytes(5, 6 ^ (uint64_t{1} << bit), bytes) == hash);
    }
    EXPECT_FALSE(HashBytes(6, 5, bytes) == hash);
  }
}

// About half of the 128 output bits follow each input bit: 64 +- 5.7 on each trial, so the mean of
// 800 trials has a standard deviation of 0.2.
TEST(HashBytesTest, OneBitFlipsHalfOfTheOutput) {
  std::vector<std::byte> bytes = RandomBytes(1, 100);
  const Hash128 hash = HashBytes(1, 2, bytes);
  int64_t flipped = 0;
  for (size_t bit = 0; bit < 800; ++bit) {
    const auto mask = static_cast<std::byte>(1 << (bit % 8));
    bytes[bit / 8] ^= mask;
    const Hash128 other = HashBytes(1, 2, bytes);
    flipped += std::popcount(other.hi ^ hash.hi) + std::popcount(other.lo ^ hash.lo);
    bytes[bit / 8] ^= mask;
  }
  EXPECT_NEAR(static_cast<double>(flipped) / 800, 64, 1);
}

TEST(HashBytesTest, ZerosOfEveryLengthDiffer) {
  const std::vector<std::byte> zeros(200);
  std::vector<std::string> hashes;
  for (size_t length = 0; length <= zeros.size(); ++length) {
    hashes.push_back(HashBytes(1, 1, std::span(zeros).first(length)).ToHex());
  }
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

TEST(HashBytesTest, DoesNotDependOnAlignment) {
  const std::vector<std::byte> bytes = RandomBytes(4, 77);
  const Hash128 hash = HashBytes(1, 2, bytes);
  for (size_t shift = 1; shift < 16; ++shift) {
    std::vector<std::byte> moved(shift);
    moved.insert(moved.end(), bytes.begin(), bytes.end());
    EXPECT_TRUE(HashBytes(1, 2, std::span(moved).subspan(shift)) == hash);
  }
}

TEST(EntropyTest, NoSeedComesTwice) {
  std::vector<uint64_t> seeds;
  for (int i = 0; i < 1000; ++i) seeds.push_back(EntropyBits());
  std::sort(seeds.begin(), seeds.end());
  EXPECT_EQ(std::adjacent_find(seeds.begin(), seeds.end()), seeds.end());
}

TEST(Hash128Test, SumsCarryAndDoNotDependOnOrder) {
  Hash128 sum{.hi = 1, .lo = kMaxKey};
  sum += {.hi = 2, .lo = 1};
  EXPECT_TRUE(sum == (Hash128{.hi = 4, .lo = 0}));
  sum = {.hi = kMaxKey, .lo = kMaxKey};
  sum += {.hi = 0, .lo = 1};
  EXPECT_TRUE(sum == (Hash128{}));

  Hash128 forward;
  Hash128 backward;
  for (uint64_t i = 0; i < 100; ++i) {
    forward += HashBytes(0, i, {});
    backward += HashBytes(0, 99 - i, {});
  }
  EXPECT_TRUE(forward == backward);
  EXPECT_FALSE(forward == Hash128{});
}

TEST(Hash128Test, HexHasTheHighWordFirst) {
  EXPECT_EQ((Hash128{.hi = 0x0123456789abcdefULL, .lo = 0xf}).ToHex(),
            "0123456789abcdef000000000000000f");
}

}  // namespace
}  // namespace hotrow
