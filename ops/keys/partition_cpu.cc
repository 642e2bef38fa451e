#include <algorithm>

#include "base/check.h"
#include "base/math.h"
#include "ops/keys/partition.h"
#include "ops/keys/partition_impl.h"

namespace hotrow::internal {
namespace {

// How far ahead the cursor of an item's part is asked for; matters once the cursors leave L2.
constexpr int64_t kAhead = 16;

// One thread: two passes of a few cycles per item.
void PartitionAlone(const PartitionArgs& args) {
  int64_t* const cursors = args.offsets;
  std::fill_n(cursors, args.num_parts + 1, 0);
  for (int64_t i = 0; i < args.num_items; ++i) {
    HOTROW_DCHECK(args.part[i] >= 0);
    HOTROW_DCHECK(args.part[i] < args.num_parts);
    __builtin_prefetch(cursors + args.part[std::min(i + kAhead, args.num_items - 1)], 1);
    ++cursors[args.part[i]];
  }
  int64_t sum = 0;
  for (int64_t p = 0; p < args.num_parts; ++p) {
    const int64_t count = cursors[p];
    cursors[p] = sum;
    sum += count;
  }
  for (int64_t i = 0; i < args.num_items; ++i) {
    __builtin_prefetch(cursors + args.part[std::min(i + kAhead, args.num_items - 1)], 1);
    args.order[cursors[args.part[i]]++] = static_cast<int32_t>(i);
  }
  // Each cursor stands at the end of its part now, which is where the next one begins.
  std::copy_backward(cursors, cursors + args.num_parts, cursors + args.num_parts + 1);
  cursors[0] = 0;
}

// Several threads: each has a share of consecutive items, counts those of each part, and is told
// where in the part its own go.
class SharedPartition {
 public:
  SharedPartition(const PartitionArgs& args, int64_t num_shares)
      : args_(args),
        share_items_(CeilDiv(args.num_items, num_shares)),
        num_shares_(CeilDiv(args.num_items, share_items_)),
        cursors_(reinterpret_cast<int32_t*>(args.workspace)) {}

  void Run(ThreadPool* pool) const {
    ParallelFor(pool, num_shares_, 1, [&](int64_t share, int64_t) { Count(share); });
    // A block's first offset is what is before it.
    const int64_t num_blocks = CeilDiv(args_.num_parts, kBlockParts);
    ParallelFor(pool, num_blocks, 1, [&](int64_t block, int64_t) { SumBlock(block); });
    int64_t sum = 0;
    for (int64_t block = 0; block < num_blocks; ++block) {
      const int64_t items = args_.offsets[block * kBlockParts];
      args_.offsets[block * kBlockParts] = sum;
      sum += items;
    }
    args_.offsets[args_.num_parts] = sum;
    ParallelFor(pool, num_blocks, 1, [&](int64_t block, int64_t) { StartBlock(block); });
    ParallelFor(pool, num_shares_, 1, [&](int64_t share, int64_t) { Place(share); });
  }

 private:
  static constexpr int64_t kBlockParts = 8192;

  int32_t* CursorsOf(int64_t share) const { return cursors_ + share * args_.num_parts; }
  int64_t ItemsEnd(int64_t share) const {
    return std::min((share + 1) * share_items_, args_.num_items);
  }
  int64_t PartsEnd(int64_t block) const {
    return std::min((block + 1) * kBlockParts, args_.num_parts);
  }

  void Count(int64_t share) const {
    int32_t* const counts = CursorsOf(share);
    std::fill_n(counts, args_.num_parts, 0);
    const int64_t end = ItemsEnd(share);
    for (int64_t i = share * share_items_; i < end; ++i) {
      HOTROW_DCHECK(args_.part[i] >= 0);
      HOTROW_DCHECK(args_.part[i] < args_.num_parts);
      __builtin_prefetch(counts + args_.part[std::min(i + kAhead, end - 1)], 1);
      ++counts[args_.part[i]];
    }
  }

  void SumBlock(int64_t block) const {
    int64_t sum = 0;
    for (int64_t share = 0; share < num_shares_; ++share) {
      const int32_t* const counts = CursorsOf(share);
      for (int64_t p = block * kBlockParts; p < PartsEnd(block); ++p) sum += counts[p];
    }
    args_.offsets[block * kBlockParts] = sum;
  }

  // Counts become cursors.
  void StartBlock(int64_t block) const {
    int64_t begin = args_.offsets[block * kBlockParts];
    for (int64_t p = block * kBlockParts; p < PartsEnd(block); ++p) {
      args_.offsets[p] = begin;
      for (int64_t share = 0; share < num_shares_; ++share) {
        int32_t& cursor = CursorsOf(share)[p];
        const int32_t count = cursor;
        cursor = static_cast<int32_t>(begin);  // num_items < 2^31
        begin += count;
      }
    }
  }

  void Place(int64_t share) const {
    int32_t* const cursors = CursorsOf(share);
    const int64_t end = ItemsEnd(share);
    for (int64_t i = share * share_items_; i < end; ++i) {
      __builtin_prefetch(cursors + args_.part[std::min(i + kAhead, end - 1)], 1);
      args_.order[cursors[args_.part[i]]++] = static_cast<int32_t>(i);
    }
  }

  const PartitionArgs& args_;
  const int64_t share_items_;
  const int64_t num_shares_;
  int32_t* const cursors_;  // [num_shares, num_parts]
};

}  // namespace

absl::Status PartitionCpu(const ExecContext& ctx, const PartitionArgs& args) {
  // Fewer items than this take less time than waking threads.
  constexpr int64_t kItemsMin = int64_t{1} << 19;
  constexpr int64_t kSharesMax = 8;  // the sums over the shares of a part grow with them
  const int64_t threads = ctx.pool == nullptr ? 1 : ctx.pool->num_threads();
  const int64_t room =
      args.workspace_bytes / std::max<int64_t>(args.num_parts * sizeof(int32_t), 1);
  const int64_t shares = std::min({threads, room, kSharesMax});
  if (shares < 2 || args.num_items < kItemsMin) {
    PartitionAlone(args);
  } else {
    SharedPartition(args, shares).Run(ctx.pool);
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
