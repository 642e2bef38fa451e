#include "ops/launch_impl.h"

#include <vector>

#include "ops/keys/scan_impl.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

TEST(LaunchTest, GridsCoverTheirItemsAndStayInBounds) {
  EXPECT_EQ(GridBlocks(0, 256), 1);
  EXPECT_EQ(GridBlocks(1, 256), 1);
  EXPECT_EQ(GridBlocks(256, 256), 1);
  EXPECT_EQ(GridBlocks(257, 256), 2);
  EXPECT_EQ(GridBlocks(kGridBlocksMax * 8, 8), kGridBlocksMax);
  EXPECT_EQ(GridBlocks(kGridBlocksMax * 8 + 1, 8), kGridBlocksMax);
  EXPECT_EQ(GridBlocks(int64_t{1} << 50, 1), kGridBlocksMax);
}

using Chunk = ParameterChunk<int, 4>;

std::vector<std::vector<int>> Chunks(const std::vector<int>& items) {
  std::vector<std::vector<int>> chunks;
  const std::span<const int> span = items;
  HOTROW_EXPECT_OK(ForEachChunk<Chunk>(span, [&](const Chunk& chunk, int64_t begin) {
    size_t seen = 0;
    for (const std::vector<int>& c : chunks) seen += c.size();
    EXPECT_EQ(begin, seen);
    chunks.emplace_back(chunk.v, chunk.v + chunk.size);
    return absl::OkStatus();
  }));
  return chunks;
}

TEST(LaunchTest, ChunksHoldEveryItemInOrder) {
  using testing::ElementsAre;
  EXPECT_THAT(Chunks({}), ElementsAre());
  EXPECT_THAT(Chunks({1, 2, 3, 4}), ElementsAre(ElementsAre(1, 2, 3, 4)));
  EXPECT_THAT(Chunks({1, 2, 3, 4, 5}), ElementsAre(ElementsAre(1, 2, 3, 4), ElementsAre(5)));
}

TEST(LaunchTest, ChunksEndAtTheFirstError) {
  const std::vector<int> items(9);
  int calls = 0;
  const absl::Status status =
      ForEachChunk<Chunk>(std::span<const int>(items), [&](const Chunk&, int64_t begin) {
        ++calls;
        return begin == 4 ? absl::InternalError("second") : absl::OkStatus();
      });
  EXPECT_THAT(status, test::StatusIs(absl::StatusCode::kInternal, "second"));
  EXPECT_EQ(calls, 2);
}

TEST(LaunchTest, ScansHaveAWordForEachTileAndOneMore) {
  EXPECT_EQ(ScanWords(1), 2);
  EXPECT_EQ(ScanWords(kScanTile), 2);
  EXPECT_EQ(ScanWords(kScanTile + 1), 3);
  EXPECT_EQ(ScanWords((int64_t{1} << 31) + 1), (int64_t{1} << 31) / kScanTile + 2);
}

}  // namespace
}  // namespace hotrow::internal
