#include "ops/rows/row_tiles_impl.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "ops/jagged_impl.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using internal::FeatureChunk;
using internal::FeatureGridBlocks;
using internal::LastAtMost;
using internal::LastAtMostNear;
using internal::RowTiles;

TEST(RowTilesTest, AsFewThreadsAsARowNeeds) {
  const auto expect = [](int32_t dim, int32_t lanes, int32_t blocks) {
    EXPECT_EQ(RowTiles::For(dim).lanes, lanes) << dim;
    EXPECT_EQ(RowTiles::For(dim).blocks, blocks) << dim;
    EXPECT_EQ(RowTiles::For(dim).Tile(3 * lanes - 1), 2) << dim;
    EXPECT_EQ(RowTiles::For(dim).Tile(3 * lanes), 3) << dim;
  };
  expect(1, 1, 1);
  expect(4, 1, 1);
  expect(5, 2, 1);
  expect(16, 4, 1);
  expect(17, 8, 1);
  expect(64, 16, 1);
  expect(100, 32, 1);
  expect(128, 32, 1);
  expect(129, 32, 2);
  expect(1000, 32, 8);
  expect(std::numeric_limits<int32_t>::max(), 32, 1 << 24);
  EXPECT_EQ(RowTiles::For(1, 8).lanes, 8);
  EXPECT_EQ(RowTiles::For(1, 8).blocks, 1);
  EXPECT_EQ(RowTiles::For(64, 8).lanes, 16);
}

TEST(RowTilesTest, EveryColumnHasOneThread) {
  for (const int32_t dim : {1, 2, 3, 4, 7, 16, 31, 64, 100, 127, 128, 129, 130, 513, 1000}) {
    for (const int32_t lanes_min : {1, 8}) {
      const RowTiles tiles = RowTiles::For(dim, lanes_min);
      std::vector<int> threads(static_cast<size_t>(dim));
      for (int64_t block = 0; block < tiles.blocks; ++block) {
        for (int32_t lane = 0; lane < tiles.lanes; ++lane) {
          const int64_t column = tiles.Column(block, lane);
          const int32_t width = RowTiles::Width(dim, column);
          ASSERT_LE(column + width, std::max<int64_t>(dim, column));
          for (int32_t i = 0; i < width; ++i) ++threads[column + i];
        }
      }
      EXPECT_EQ(std::count(threads.begin(), threads.end(), 1), dim) << dim;
    }
  }
}

TEST(RowTilesTest, LastAtMostFindsTheBag) {
  for (const uint64_t seed : test::Seeds(30)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    std::vector<int64_t> offsets = {0};
    const uint64_t bags = 1 + random.Below(40);
    for (uint64_t b = 0; b < bags; ++b) {
      offsets.push_back(offsets.back() + static_cast<int64_t>(random.Below(4)));  // many are empty
    }
    for (size_t b = 0; b < bags; ++b) {
      for (int64_t j = offsets[b]; j < offsets[b + 1]; ++j) {
        const auto n = static_cast<int64_t>(bags);
        EXPECT_EQ(LastAtMost(offsets.data(), 0, n, j), static_cast<int64_t>(b));
        // From any range that holds the bag.
        const auto first = static_cast<int64_t>(random.Below(b + 1));
        EXPECT_EQ(LastAtMost(offsets.data(), first, static_cast<int64_t>(b) + 1, j),
                  static_cast<int64_t>(b));
        const int64_t guess = first + static_cast<int64_t>(random.Below(bags - first));
        EXPECT_EQ(LastAtMostNear(offsets.data(), first, n, guess, j), static_cast<int64_t>(b));
      }
    }
  }
}

TEST(RowTilesTest, GridsHoldTheFeatureThatNeedsMost) {
  FeatureChunk features = {};
  EXPECT_EQ(FeatureGridBlocks(features, 1000, 1, 1), 1u);
  features.size = 2;
  features.v[0] = {.dim = 1};    // a thread for each bag
  features.v[1] = {.dim = 128};  // a warp
  EXPECT_EQ(FeatureGridBlocks(features, 1000, 1, 1), 125u);
  features.v[1].dim = 1000;  // eight warps
  EXPECT_EQ(FeatureGridBlocks(features, 1000, 1, 1), 1000u);
  features.size = 1;
  EXPECT_EQ(FeatureGridBlocks(features, 1000, 1, 1), 4u);
  // A grid never gets more than a device takes, however large the batch is.
  EXPECT_EQ(FeatureGridBlocks(features, int64_t{1} << 50, 1, 1), internal::kGridBlocksMax);
}

}  // namespace
}  // namespace hotrow
