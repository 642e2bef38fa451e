#include <algorithm>
#include <cstdint>
#include <numeric>

#include "ops/layers/columns_impl.h"

namespace hotrow::internal {
namespace {

using Kind = MoveColumnsArgs::Kind;

// A row is a microsecond or less of work.
constexpr int64_t kChunkRows = 64;

// function(to, from, columns) for every run of `run` columns of every row; they lie together in
// both.
template <typename Function>
void ForRuns(ThreadPool* pool, const MoveColumnsArgs& args, int32_t run, const Function& function) {
  ParallelFor(pool, args.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const from = args.from.data + r * args.from.row_stride;
      float* const to = args.to.data + r * args.to.row_stride;
      for (int64_t c = 0; c < args.width; c += run) {
        function(to + args.to.Offset(c), from + args.from.Offset(c), run);
      }
    }
  });
}

// For what reads no more of a row of `from` than its first column.
template <typename Value>
void Fill(ThreadPool* pool, const MoveColumnsArgs& args, const Value& value_of_row) {
  const int32_t run = std::min(args.to.dim, args.width);
  ParallelFor(pool, args.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const to = args.to.data + r * args.to.row_stride;
      const float value = value_of_row(r);
      for (int64_t c = 0; c < args.width; c += run) {
        std::fill_n(to + args.to.Offset(c), std::min<int64_t>(run, args.width - c), value);
      }
    }
  });
}

}  // namespace

absl::Status MoveColumnsCpu(ThreadPool* pool, const MoveColumnsArgs& args) {
  // As long as no run crosses the end of a field, on either side.
  const int32_t run = std::gcd(args.width, std::gcd(args.from.dim, args.to.dim));
  switch (args.kind) {
    case Kind::kCopy:
      ForRuns(pool, args, run,
              [](float* to, const float* from, int32_t n) { std::copy_n(from, n, to); });
      break;
    case Kind::kAdd:
      ForRuns(pool, args, run, [](float* to, const float* from, int32_t n) {
        for (int32_t i = 0; i < n; ++i) to[i] += from[i];
      });
      break;
    case Kind::kSpread:
      Fill(pool, args, [&](int64_t r) { return args.from.data[r * args.from.row_stride]; });
      break;
    case Kind::kZero:
      Fill(pool, args, [](int64_t) { return 0.0f; });
      break;
  }
  return absl::OkStatus();
}

absl::Status SumColumnsCpu(ThreadPool* pool, const SumColumnsArgs& args) {
  ParallelFor(pool, args.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const row = args.x.data + r * args.x.row_stride;
      float sum = 0;
      for (int64_t c = 0; c < args.width; c += args.x.dim) {
        const float* const field = row + args.x.Offset(c);
        const int64_t n = std::min<int64_t>(args.x.dim, args.width - c);
        for (int64_t i = 0; i < n; ++i) sum += field[i];
      }
      args.output[r * args.output_stride] = sum;
    }
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
