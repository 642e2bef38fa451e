#include <algorithm>
#include <cstring>

#include "ops/prefetch.h"
#include "ops/rows/gather.h"
#include "ops/rows/gather_impl.h"

namespace hotrow::internal {

absl::Status GatherRowsCpu(const ExecContext& ctx, const GatherRowsArgs& args) {
  constexpr int64_t kRowsPerBlock = 256;
  ParallelFor(ctx.pool, args.num_rows, kRowsPerBlock, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < std::min(begin + kPrefetchRowsAhead, end); ++i) {
      PrefetchForRead(args.rows[i], args.row_bytes);
    }
    for (int64_t i = begin; i < end; ++i) {
      if (i + kPrefetchRowsAhead < end) {
        PrefetchForRead(args.rows[i + kPrefetchRowsAhead], args.row_bytes);
      }
      std::byte* const output = args.output + i * args.output_stride;
      if (args.rows[i] == nullptr) {
        std::memset(output, 0, static_cast<size_t>(args.row_bytes));
      } else {
        std::memcpy(output, args.rows[i], static_cast<size_t>(args.row_bytes));
      }
    }
  });
  return absl::OkStatus();
}

absl::Status ScatterRowsCpu(const ExecContext& ctx, const ScatterRowsArgs& args) {
  constexpr int64_t kRowsPerBlock = 256;
  ParallelFor(ctx.pool, args.num_rows, kRowsPerBlock, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < std::min(begin + kPrefetchRowsAhead, end); ++i) {
      PrefetchForWrite(args.rows[i], args.row_bytes);
    }
    for (int64_t i = begin; i < end; ++i) {
      if (i + kPrefetchRowsAhead < end) {
        PrefetchForWrite(args.rows[i + kPrefetchRowsAhead], args.row_bytes);
      }
      if (args.rows[i] == nullptr) continue;
      std::memcpy(args.rows[i], args.input + i * args.input_stride,
                  static_cast<size_t>(args.row_bytes));
    }
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
