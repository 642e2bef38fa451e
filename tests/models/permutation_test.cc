#include "models/data/permutation.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "models/data/rank_rotation.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

TEST(PermutationTest, IsABijectionForEverySmallSizeAndSomeLargeOnes) {
  std::vector<uint64_t> sizes;
  for (uint64_t size = 1; size <= 300; ++size) sizes.push_back(size);
  for (const uint64_t size : {1023, 1024, 1025, 65536, 65537, 100'000}) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    SCOPED_TRACE(testing::Message() << "size " << size);
    const Permutation permutation(size, 7, 3, 1);
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t image = permutation(i);
      ASSERT_LT(image, size);
      ASSERT_FALSE(seen[image]) << "image " << image << " of " << i;
      seen[image] = true;
    }
  }
}

// The part that is on the host and on a device.
TEST(RankRotationTest, IsABijectionThatKeepsRanksInTheirGroups) {
  std::vector<uint64_t> sizes;
  for (uint64_t size = 1; size <= 300; ++size) sizes.push_back(size);
  for (const uint64_t size : {1023, 1024, 1025, 65536, 65537, 100'000}) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    SCOPED_TRACE(testing::Message() << "size " << size);
    for (const uint64_t key : {0, 1, 77}) {
      const RankRotation rotation(size, key);
      std::vector<bool> seen(size);
      for (uint64_t rank = 0; rank < size; ++rank) {
        const uint64_t image = rotation(rank);
        ASSERT_LT(image, size);
        ASSERT_FALSE(seen[image]) << "image " << image << " of " << rank;
        seen[image] = true;
        ASSERT_EQ(std::bit_width(image + 1), std::bit_width(rank + 1));
      }
    }
  }
}

TEST(RankRotationTest, MovesRanksByKeyAndByDefaultNone) {
  constexpr uint64_t kSize = 1'000'000;
  int64_t moved = 0;
  int64_t differ = 0;
  for (uint64_t rank = 0; rank < kSize; rank += 101) {
    EXPECT_EQ(RankRotation()(rank), rank);
    moved += RankRotation(kSize, 1)(rank) != rank ? 1 : 0;
    differ += RankRotation(kSize, 1)(rank) != RankRotation(kSize, 2)(rank) ? 1 : 0;
  }
  EXPECT_GT(moved, 9000);
  EXPECT_GT(differ, 9000);
  constexpr uint64_t kLargest = uint64_t{1} << 40;
  const RankRotation rotation(kLargest, 3);
  std::vector<uint64_t> images;
  for (uint64_t rank = kLargest - 10'000; rank < kLargest; ++rank) {
    images.push_back(rotation(rank));
    ASSERT_LT(images.back(), kLargest);
  }
  std::sort(images.begin(), images.end());
  EXPECT_EQ(std::adjacent_find(images.begin(), images.end()), images.end());
}

TEST(PermutationTest, LargestSizeStaysInsideAndHasNoCollisionAmongFirstImages) {
  for (const uint64_t size :
       {(uint64_t{1} << 62), (uint64_t{1} << 62) - 1, uint64_t{1} << 61, (uint64_t{1} << 32) + 1}) {
    const Permutation permutation(size, 1, 0, 1);
    std::vector<uint64_t> images;
    for (uint64_t i = 0; i < 10'000; ++i) images.push_back(permutation(i));
    for (const uint64_t image : images) ASSERT_LT(image, size);
    std::sort(images.begin(), images.end());
    EXPECT_EQ(std::adjacent_find(images.begin(), images.end()), images.end());
    EXPECT_LT(permutation(size - 1), size);
  }
}

TEST(PermutationTest, DependsOnSeedAndOnBothCounterWords) {
  constexpr uint64_t kSize = 1000;
  const Permutation base(kSize, 1, 2, 3);
  const Permutation same(kSize, 1, 2, 3);
  const Permutation others[] = {{kSize, 2, 2, 3}, {kSize, 1, 3, 3}, {kSize, 1, 2, 4}};
  for (uint64_t i = 0; i < kSize; ++i) ASSERT_EQ(base(i), same(i));
  for (const Permutation& other : others) {
    int equal = 0;
    for (uint64_t i = 0; i < kSize; ++i) equal += base(i) == other(i) ? 1 : 0;
    EXPECT_LT(equal, 10);  // 1 is expected; Poisson
  }
}

// Where a position goes should say nothing about where its neighbour goes: (image(i), image(i + 1))
// over a grid of 16 x 16 cells is near uniform.
TEST(PermutationTest, NeighboursGoToUnrelatedPlaces) {
  for (const uint64_t seed : test::Seeds(5)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    constexpr uint64_t kSize = 100'003;
    const Permutation permutation(kSize, seed, 0, 1);
    std::vector<int> cells(256);
    for (uint64_t i = 0; i + 1 < kSize; ++i) {
      ++cells[permutation(i) * 16 / kSize * 16 + permutation(i + 1) * 16 / kSize];
    }
    double chi_square = 0;
    for (const int n : cells) chi_square += (n - kSize / 256.0) * (n - kSize / 256.0);
    chi_square /= kSize / 256.0;
    EXPECT_LT(chi_square, 255 + 6 * 22.6);  // six standard deviations of chi-square with 255
    EXPECT_GT(chi_square, 255 - 6 * 22.6);
  }
}

}  // namespace
}  // namespace hotrow
