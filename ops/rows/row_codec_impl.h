#ifndef HOTROW_OPS_ROWS_ROW_CODEC_IMPL_H_
#define HOTROW_OPS_ROWS_ROW_CODEC_IMPL_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/half_impl.h"
#include "ops/launch_impl.h"
#include "ops/rows/row_codec.h"

namespace hotrow::internal {

// The seed of the words that one EncodeRows rounds with, see half_impl.h.
inline uint64_t ExchangeSeed(const StochasticKey& random) {
  return RoundingSeed(random.seed, RoundingUse::kExchange,
                      (uint64_t{random.rank} << 32) | random.step, random.direction);
}

// How the CPU converts: eight columns in registers, or one after the other. The bits are the same.
enum class RowCodecPath {
  kFastest,  // AVX2 and F16C where the library is compiled for them
  kPlain,    // what other machines run; can be asked for, so that tests compare the two
};

absl::Status EncodeRowsCpu(const ExecContext& ctx, const EncodeRowsArgs& args,
                           RowCodecPath path = RowCodecPath::kFastest);
absl::Status EncodeRowsCuda(const EncodeRowsArgs& args, CudaStream stream);
absl::Status DecodeRowsCpu(const ExecContext& ctx, const DecodeRowsArgs& args,
                           RowCodecPath path = RowCodecPath::kFastest);
absl::Status DecodeRowsCuda(const DecodeRowsArgs& args, CudaStream stream);
absl::Status SumEncodedRowsCpu(const ExecContext& ctx, const SumEncodedRowsArgs& args);
absl::Status SumEncodedRowsCuda(const SumEncodedRowsArgs& args, CudaStream stream);

// As many runs as a kernel takes as a parameter.
using RunChunk = ParameterChunk<RowRun>;

// How many threads of a GPU take a row of the chunk together, each four columns at a time: a warp,
// or a quarter of one when every row is so short that the rest would have nothing to do.
constexpr int kCodecThreadsNarrow = 8;
constexpr int kCodecThreadsWide = 32;
constexpr int CodecThreadsPerRow(const RunChunk& chunk) {
  int32_t dim = 0;
  for (int32_t r = 0; r < chunk.size; ++r) {
    if (chunk.v[r].begin < chunk.v[r].end) dim = std::max(dim, chunk.v[r].dim);
  }
  return dim <= 4 * kCodecThreadsNarrow ? kCodecThreadsNarrow : kCodecThreadsWide;
}

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_ROWS_ROW_CODEC_IMPL_H_
