#ifndef HOTROW_OPS_LAUNCH_IMPL_H_
#define HOTROW_OPS_LAUNCH_IMPL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/macros.h"
#include "base/math.h"

namespace hotrow::internal {

// Threads of a block where a kernel has no reason for another number: eight warps.
constexpr int kThreadsPerBlock = 256;

// More blocks than any GPU runs at a time, and few enough that blocks * threads and everything
// counted from them stays far from what a grid allows (2^31 - 1 blocks).
constexpr int64_t kGridBlocksMax = int64_t{1} << 20;

// How many blocks a kernel over n items gets when a block takes items_per_block of them at a time;
// at least one, so that n = 0 can be launched (kernels walk their items with a stride, in int64_t,
// so they are right for any number of blocks).
constexpr unsigned GridBlocks(int64_t n, int64_t items_per_block) {
  return static_cast<unsigned>(std::clamp(CeilDiv(n, items_per_block), int64_t{1}, kGridBlocksMax));
}

// What a kernel gets as a parameter of a span in host memory: up to kMax elements, by value. 64
// elements of 32 bytes are half of the 4 KiB that parameters may take on every GPU.
template <typename T, int kMax = 64>
struct ParameterChunk {
  static constexpr int kCapacity = kMax;
  T v[kMax];
  int32_t size = 0;
};

// Which range of the chunk item i lies in, where each ends where the next begins: the first that
// ends behind i (so never an empty one). i lies in one of them.
template <typename Chunk>
HOTROW_HOST_DEVICE constexpr int32_t FindRange(const Chunk& chunk, int64_t i) {
  int32_t low = 0;
  int32_t high = chunk.size - 1;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (i < chunk.v[middle].end) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Calls body(chunk, position of its first element) for all of `items`, as often as it takes, and
// stops at the first error.
template <typename Chunk, typename T, typename Body>
auto ForEachChunk(std::span<const T> items, Body&& body) -> decltype(body(Chunk(), int64_t{0})) {
  for (size_t begin = 0; begin < items.size(); begin += Chunk::kCapacity) {
    Chunk chunk = {};
    chunk.size = static_cast<int32_t>(std::min<size_t>(Chunk::kCapacity, items.size() - begin));
    std::copy_n(items.begin() + static_cast<int64_t>(begin), chunk.size, chunk.v);
    auto status = body(chunk, static_cast<int64_t>(begin));
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAUNCH_IMPL_H_
