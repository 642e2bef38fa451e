#include <cstdint>
#include <numbers>

#include "ops/half_impl.h"
#include "ops/launch_impl.cuh"
#include "ops/rows/row_init.h"
#include "ops/rows/row_init_impl.h"

namespace hotrow::internal {
namespace {

// Threads that write a row together, each 16 bytes at a time: a warp, or a quarter of one for rows
// that a quarter writes at once.
constexpr int kNarrow = 8;
constexpr int kWide = 32;
constexpr int kWordsPerAccess = 4;

struct Rows {
  const uint64_t* keys;
  std::byte* const* rows;
  int64_t num_rows;
  int64_t row_bytes;
  int64_t weight_words;  // with their padding: the state begins there
  int32_t dim;
  AccumulatorRange accumulators;  // floats of the state
  float initial_accumulator;
  float value;
  uint64_t seed;
  uint32_t table;
};

// As NormalFloats of base/philox.cc, with this device's log, cos and sin.
__device__ NormalPair NormalFloatsCuda(uint32_t bits0, uint32_t bits1) {
  const double u = (static_cast<double>(bits0) + 1.0) * 0x1p-32;
  const double angle = 2.0 * std::numbers::pi * 0x1p-32 * static_cast<double>(bits1);
  const double radius = sqrt(-2.0 * log(u));
  return {static_cast<float>(radius * cos(angle)), static_cast<float>(radius * sin(angle))};
}

// Columns 4 c to 4 c + 3.
template <InitializerKind kKind>
__device__ float4 Weights(const Rows& rows, uint64_t key, uint32_t c) {
  const float value = rows.value;
  if constexpr (kKind == InitializerKind::kConstant) {
    return make_float4(value, value, value, value);
  } else {
    const PhiloxBlock block = WeightBlock(rows.seed, rows.table, key, c);
    if constexpr (kKind == InitializerKind::kUniform) {
      return make_float4(UniformWeight(value, block.v[0]), UniformWeight(value, block.v[1]),
                         UniformWeight(value, block.v[2]), UniformWeight(value, block.v[3]));
    } else {
      static_assert(kKind == InitializerKind::kNormal);
      const NormalPair a = NormalFloatsCuda(block.v[0], block.v[1]);
      const NormalPair b = NormalFloatsCuda(block.v[2], block.v[3]);
      return make_float4(value * a.first, value * a.second, value * b.first, value * b.second);
    }
  }
}

// Weights of 16 bits from column 4 c on as they lie in a row; zeros behind the row's last column.
template <InitializerKind kKind, WeightsPrecision kPrecision>
__device__ uint2 HalfWeights(const Rows& rows, uint64_t key, uint32_t c) {
  const int64_t left = rows.dim - int64_t{4} * c;
  if (left <= 0) return make_uint2(0, 0);
  const float4 x = Weights<kKind>(rows, key, c);
  const auto half = [left](int i, float weight) -> uint32_t {
    return i < left ? ToHalf<kPrecision, /*kStochastic=*/false>(weight, 0) : 0;
  };
  return make_uint2(half(0, x.x) | half(1, x.y) << 16, half(2, x.z) | half(3, x.w) << 16);
}

// The 16 bytes of a row from byte 16 `piece` on, as far as they are weights and their padding.
template <InitializerKind kKind, WeightsPrecision kPrecision>
__device__ uint4 WeightWords(const Rows& rows, uint64_t key, uint32_t piece) {
  if constexpr (kPrecision == WeightsPrecision::kFp32) {
    const float4 x = Weights<kKind>(rows, key, piece);
    return make_uint4(__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z),
                      __float_as_uint(x.w));
  } else {
    const uint2 low = HalfWeights<kKind, kPrecision>(rows, key, 2 * piece);
    const uint2 high = HalfWeights<kKind, kPrecision>(rows, key, 2 * piece + 1);
    return make_uint4(low.x, low.y, high.x, high.y);
  }
}

// A row as words of 32 bits: weights, state, and zeros, which are the last step and the padding
// too.
template <InitializerKind kKind, WeightsPrecision kPrecision, int kLanes>
__global__ void __launch_bounds__(kThreadsPerBlock) InitRowsKernel(Rows rows) {
  const int lane = GroupLane<kLanes>();
  const int64_t num_pieces = rows.row_bytes / static_cast<int64_t>(sizeof(uint4));
  for (int64_t u = GridGroup<kLanes>(); u < rows.num_rows; u += GridGroups<kLanes>()) {
    const uint64_t key = rows.keys[u];
    auto* const row = reinterpret_cast<uint32_t*>(rows.rows[u]);
    const bool is_aligned = reinterpret_cast<uintptr_t>(row) % sizeof(uint4) == 0;
    for (int64_t piece = lane; piece < num_pieces; piece += kLanes) {
      const int64_t first = piece * kWordsPerAccess;
      uint4 words = make_uint4(0, 0, 0, 0);
      if (first < rows.weight_words) {
        words = WeightWords<kKind, kPrecision>(rows, key, static_cast<uint32_t>(piece));
      }
      const auto behind_weights = [&](int i, uint32_t word) {
        const int64_t in_state = first + i - rows.weight_words;
        if (in_state < 0) return word;
        return in_state >= rows.accumulators.begin && in_state < rows.accumulators.end
                   ? __float_as_uint(rows.initial_accumulator)
                   : 0u;
      };
      words = make_uint4(behind_weights(0, words.x), behind_weights(1, words.y),
                         behind_weights(2, words.z), behind_weights(3, words.w));
      uint32_t* const out = row + first;
      if (is_aligned) {
        *reinterpret_cast<uint4*>(out) = words;
      } else {
        out[0] = words.x;
        out[1] = words.y;
        out[2] = words.z;
        out[3] = words.w;
      }
    }
  }
}

template <InitializerKind kKind, WeightsPrecision kPrecision, int kLanes>
absl::Status LaunchInit(const Rows& rows, CudaStream stream) {
  InitRowsKernel<kKind, kPrecision, kLanes>
      <<<GridBlocks(rows.num_rows, kThreadsPerBlock / kLanes), kThreadsPerBlock, 0, stream>>>(rows);
  return LastLaunch("InitRows");
}

template <InitializerKind kKind>
absl::Status LaunchInit(const Rows& rows, WeightsPrecision precision, CudaStream stream) {
  const bool is_narrow = rows.row_bytes <= kNarrow * static_cast<int64_t>(sizeof(uint4));
  return WithPrecision(precision, [&](auto constant) {
    return is_narrow ? LaunchInit<kKind, constant(), kNarrow>(rows, stream)
                     : LaunchInit<kKind, constant(), kWide>(rows, stream);
  });
}

}  // namespace

absl::Status InitRowsCuda(const RowInitArgs& args, CudaStream stream) {
  if (args.num_rows == 0) return absl::OkStatus();
  Rows rows{.keys = args.keys,
            .rows = args.rows,
            .num_rows = args.num_rows,
            .row_bytes = args.layout->row_bytes,
            .weight_words = args.layout->state_offset / static_cast<int64_t>(sizeof(uint32_t)),
            .dim = args.layout->dim,
            .accumulators = AccumulatorRange::For(args.optimizer, args.layout->dim),
            .initial_accumulator = args.initial_accumulator,
            .value = args.initializer.value,
            .seed = args.seed,
            .table = args.table};
  const WeightsPrecision precision = args.layout->precision;
  switch (args.initializer.kind) {
    case InitializerKind::kZeros:
      rows.value = 0;
      [[fallthrough]];
    case InitializerKind::kConstant:
      return LaunchInit<InitializerKind::kConstant>(rows, precision, stream);
    case InitializerKind::kUniform:
      return LaunchInit<InitializerKind::kUniform>(rows, precision, stream);
    case InitializerKind::kNormal:
      return LaunchInit<InitializerKind::kNormal>(rows, precision, stream);
  }
  return absl::InvalidArgumentError("InitRows: initializer.kind is none of those there are");
}

}  // namespace hotrow::internal
