#include <cstdint>
#include <numbers>

#include "ops/launch_impl.cuh"
#include "ops/row_init.h"
#include "ops/row_init_impl.h"

namespace hotrow::internal {
namespace {

// Threads that write a row together, each 16 bytes at a time: a warp, or a quarter of one for rows
// that a quarter writes at once.
constexpr int kNarrow = 8;
constexpr int kWide = 32;
constexpr int kFloatsPerAccess = 4;

struct Rows {
  const uint64_t* keys;
  std::byte* const* rows;
  int64_t num_rows;
  int64_t row_bytes;
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

// A row as floats: weights, state, and zeros, which are the last step and the padding too.
template <InitializerKind kKind, int kLanes>
__global__ void __launch_bounds__(kThreadsPerBlock) InitRowsKernel(Rows rows) {
  const int lane = GroupLane<kLanes>();
  const int64_t num_pieces = rows.row_bytes / static_cast<int64_t>(sizeof(float4));
  const int64_t dim = rows.dim;
  for (int64_t u = GridGroup<kLanes>(); u < rows.num_rows; u += GridGroups<kLanes>()) {
    const uint64_t key = rows.keys[u];
    auto* const row = reinterpret_cast<float*>(rows.rows[u]);
    const bool is_aligned = reinterpret_cast<uintptr_t>(row) % sizeof(float4) == 0;
    for (int64_t piece = lane; piece < num_pieces; piece += kLanes) {
      const int64_t first = piece * kFloatsPerAccess;
      float4 floats = make_float4(0, 0, 0, 0);
      if (first < dim) floats = Weights<kKind>(rows, key, static_cast<uint32_t>(piece));
      const auto behind_weights = [&](int i, float weight) {
        const int64_t in_state = first + i - dim;
        if (in_state < 0) return weight;
        return in_state >= rows.accumulators.begin && in_state < rows.accumulators.end
                   ? rows.initial_accumulator
                   : 0.0f;
      };
      floats = make_float4(behind_weights(0, floats.x), behind_weights(1, floats.y),
                           behind_weights(2, floats.z), behind_weights(3, floats.w));
      float* const out = row + first;
      if (is_aligned) {
        *reinterpret_cast<float4*>(out) = floats;
      } else {
        out[0] = floats.x;
        out[1] = floats.y;
        out[2] = floats.z;
        out[3] = floats.w;
      }
    }
  }
}

template <InitializerKind kKind, int kLanes>
absl::Status LaunchInit(const Rows& rows, CudaStream stream) {
  InitRowsKernel<kKind, kLanes>
      <<<GridBlocks(rows.num_rows, kThreadsPerBlock / kLanes), kThreadsPerBlock, 0, stream>>>(rows);
  return LastLaunch("InitRows");
}

template <InitializerKind kKind>
absl::Status LaunchInit(const Rows& rows, CudaStream stream) {
  return rows.row_bytes <= kNarrow * static_cast<int64_t>(sizeof(float4))
             ? LaunchInit<kKind, kNarrow>(rows, stream)
             : LaunchInit<kKind, kWide>(rows, stream);
}

}  // namespace

absl::Status InitRowsCuda(const RowInitArgs& args, CudaStream stream) {
  if (args.num_rows == 0) return absl::OkStatus();
  Rows rows{.keys = args.keys,
            .rows = args.rows,
            .num_rows = args.num_rows,
            .row_bytes = args.layout->row_bytes,
            .dim = args.layout->dim,
            .accumulators = AccumulatorRange::For(args.optimizer, args.layout->dim),
            .initial_accumulator = args.initial_accumulator,
            .value = args.initializer.value,
            .seed = args.seed,
            .table = args.table};
  switch (args.initializer.kind) {
    case InitializerKind::kZeros:
      rows.value = 0;
      [[fallthrough]];
    case InitializerKind::kConstant:
      return LaunchInit<InitializerKind::kConstant>(rows, stream);
    case InitializerKind::kUniform:
      return LaunchInit<InitializerKind::kUniform>(rows, stream);
    case InitializerKind::kNormal:
      return LaunchInit<InitializerKind::kNormal>(rows, stream);
  }
  return absl::InvalidArgumentError("InitRows: initializer.kind is none of those there are");
}

}  // namespace hotrow::internal
