#ifndef HOTROW_OPS_LAYERS_DROPOUT_IMPL_H_
#define HOTROW_OPS_LAYERS_DROPOUT_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"
#include "base/math.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "ops/layers/dropout.h"

namespace hotrow::internal {

// A word of the random block that is lower drops its element. rate < 1 leaves at least 2^-24 of the
// range, so the product fits 32 bits.
inline uint32_t DropoutThreshold(float rate) {
  return static_cast<uint32_t>(static_cast<double>(rate) * 0x1p32);
}

// Elements that share a random block are a group: element e is word e % 4 of block e / 4. The
// groups that have elements of `data` are [DropoutFirstGroup, DropoutEndGroup).
HOTROW_HOST_DEVICE inline int64_t DropoutFirstGroup(const DropoutArgs& args) {
  return args.first_row * args.columns / 4;
}
HOTROW_HOST_DEVICE inline int64_t DropoutEndGroup(const DropoutArgs& args) {
  return CeilDiv((args.first_row + args.rows) * args.columns, 4);
}

// Calls body(row, column, kept) for the elements of one group, as far as they are in `data`: what a
// thread of a GPU does.
template <typename Body>
HOTROW_HOST_DEVICE inline void ForDropoutGroup(const DropoutArgs& args, uint32_t threshold,
                                               int64_t group, Body&& body) {
  const int64_t first = args.first_row * args.columns;
  const int64_t end = first + args.rows * args.columns;
  const uint32_t step = args.device_step == nullptr ? args.step : *args.device_step;
  const PhiloxBlock words = RandomBlock(args.seed, RandomPurpose::kDropout,
                                        static_cast<uint64_t>(group), step, args.layer);
  int64_t e = group * 4 < first ? first : group * 4;
  int64_t row = (e - first) / args.columns;
  int64_t column = (e - first) % args.columns;
  for (; e < group * 4 + 4 && e < end; ++e) {
    body(row, column, words.v[e % 4] >= threshold);
    if (++column == args.columns) {
      column = 0;
      ++row;
    }
  }
}

// Bit i: whether element (row, column + i) is kept, of eight. All rows are whole: those beyond a
// row's end are the next one's.
HOTROW_HOST_DEVICE inline uint32_t DropoutKeepsOfEight(const DropoutArgs& args, uint32_t threshold,
                                                       int64_t row, int64_t column) {
  const int64_t first = (args.first_row + row) * args.columns + column;
  const uint32_t step = args.device_step == nullptr ? args.step : *args.device_step;
  uint32_t kept = 0;
  for (int64_t group = first / 4; group * 4 < first + 8; ++group) {
    const PhiloxBlock words = RandomBlock(args.seed, RandomPurpose::kDropout,
                                          static_cast<uint64_t>(group), step, args.layer);
    uint32_t four = 0;
    for (int w = 0; w < 4; ++w) four |= (words.v[w] >= threshold ? 1u : 0u) << w;
    const auto at = static_cast<int>(group * 4 - first);  // of bit 0 of four
    kept |= at < 0 ? four >> -at : four << at;
  }
  return kept & 0xffu;
}

HOTROW_HOST_DEVICE inline void DropoutGroup(const DropoutArgs& args, uint32_t threshold,
                                            int64_t group) {
  const float kept_share = 1.0f - args.rate;
  ForDropoutGroup(args, threshold, group, [&](int64_t row, int64_t column, bool kept) {
    float* const x = args.data + row * args.stride + column;
    *x = kept ? *x / kept_share : 0.0f;
  });
}

absl::Status DropoutCpu(ThreadPool* pool, const DropoutArgs& args);
// Enqueues a kernel. Does not validate; rows and columns are > 0.
absl::Status DropoutCuda(CudaStream stream, const DropoutArgs& args);

// Rows [begin, end) of args.data, on this thread. Does not validate.
void DropoutRowsCpu(const DropoutArgs& args, int64_t begin, int64_t end);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_LAYERS_DROPOUT_IMPL_H_
