#ifndef HOTROW_OPS_KEYS_PARTITION_IMPL_H_
#define HOTROW_OPS_KEYS_PARTITION_IMPL_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "absl/status/status.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "base/math.h"
#include "ops/keys/partition.h"
#include "ops/keys/scan_impl.h"

namespace hotrow::internal {

absl::Status PartitionCpu(const ExecContext& ctx, const PartitionArgs& args);
absl::Status PartitionCuda(const PartitionArgs& args, CudaStream stream);

// The CUDA kernels sort by digits of a part's number, the lowest first, each pass stable: how many
// passes, and how many bits a digit has.
struct PartitionPasses {
  static constexpr int kDigitBitsMax = 10;

  int num_passes = 0;  // 0 when there is one part at most: nothing to sort
  int digit_bits = 0;

  static constexpr PartitionPasses For(int64_t num_parts) {
    if (num_parts <= 1) return {};
    // A part's number is an int32, with any P.
    const int bits =
        std::min(31, static_cast<int>(std::bit_width(static_cast<uint64_t>(num_parts - 1))));
    const auto passes = static_cast<int>(CeilDiv(bits, kDigitBitsMax));
    return {passes, static_cast<int>(CeilDiv(bits, passes))};
  }
  constexpr int64_t num_digits() const { return int64_t{1} << digit_bits; }
};

// Items that one block takes in a pass: each of its warps a run of them, round by round.
constexpr int kPartitionThreads = 256;
constexpr int kPartitionRounds = 16;
constexpr int64_t kPartitionTile = kPartitionThreads * kPartitionRounds;

// Where the CUDA kernels' arrays lie in the workspace, in bytes from its start.
struct PartitionCudaLayout {
  int64_t parts[2] = {0, 0};  // int32 [N] each: parts after a pass, in turns
  int64_t items = 0;          // int32 [N]: items after a pass, in turns with `order`
  int64_t counts = 0;         // int32 [digits][tiles]
  int64_t words = 0;          // uint64 [ScanWords(digits * tiles)]
  int64_t bytes = 0;

  static constexpr int64_t NumTiles(int64_t num_items) {
    return CeilDiv(num_items, kPartitionTile);
  }

  static constexpr PartitionCudaLayout For(int64_t num_items, int64_t num_parts) {
    const PartitionPasses passes = PartitionPasses::For(num_parts);
    if (num_items <= 0 || passes.num_passes == 0) return {};
    PartitionCudaLayout layout;
    const auto take = [&layout](int64_t ints) {
      const int64_t begin = layout.bytes;
      layout.bytes += RoundUp(ints * static_cast<int64_t>(sizeof(int32_t)), kBufferAlignment);
      return begin;
    };
    layout.parts[0] = take(num_items);
    layout.parts[1] = take(passes.num_passes > 1 ? num_items : 0);
    layout.items = take(passes.num_passes > 1 ? num_items : 0);
    const int64_t counts = passes.num_digits() * NumTiles(num_items);
    layout.counts = take(counts);
    layout.words = take(2 * ScanWords(counts));
    return layout;
  }
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_KEYS_PARTITION_IMPL_H_
