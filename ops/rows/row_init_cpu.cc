#include <algorithm>
#include <cstring>

#include "base/philox.h"
#include "ops/half_impl.h"
#include "ops/half_vec8_impl.h"
#include "ops/prefetch.h"
#include "ops/rows/row_init.h"
#include "ops/rows/row_init_impl.h"
#include "ops/vec8_impl.h"

namespace hotrow::internal {
namespace {

// Weights come eight at a time, as two Philox blocks give them.
constexpr int32_t kGroupColumns = 8;

// fill(c, out) writes weights 4 c to 4 c + 3 of the row to `out`, also those behind its last
// column.
template <WeightsPrecision kPrecision, typename Fill>
void FillGroups(int32_t dim, std::byte* row, Fill&& fill) {
  ForEachVec8(dim, [&](int64_t d, auto lanes) {
    float weights[kGroupColumns] = {};
    const auto c = static_cast<uint32_t>(d / 4);
    fill(c, weights);
    if (lanes > 4) fill(c + 1, weights + 4);
    if constexpr (kPrecision == WeightsPrecision::kFp32) {
      StoreLanes(Vec8::Load(weights), reinterpret_cast<float*>(row) + d, lanes);
    } else {
      const FastestHalves::Words no_words = {};
      FastestHalves::Narrow<kPrecision, /*kStochastic=*/false>(Vec8::Load(weights), no_words,
                                                               row + 2 * d, lanes);
    }
  });
}

template <WeightsPrecision kPrecision>
void FillWeights(const RowInitArgs& args, uint64_t key, std::byte* row) {
  const int32_t dim = args.layout->dim;
  const float value =
      args.initializer.kind == InitializerKind::kZeros ? 0.0f : args.initializer.value;
  const auto block = [&args, key](uint32_t c) {
    return WeightBlock(args.seed, args.table, key, c);
  };
  switch (args.initializer.kind) {
    case InitializerKind::kZeros:
    case InitializerKind::kConstant:
      FillGroups<kPrecision>(dim, row,
                             [value](uint32_t, float* out) { std::fill_n(out, 4, value); });
      break;
    case InitializerKind::kUniform:
      FillGroups<kPrecision>(dim, row, [&](uint32_t c, float* out) {
        const PhiloxBlock words = block(c);
        for (int i = 0; i < 4; ++i) out[i] = UniformWeight(value, words.v[i]);
      });
      break;
    case InitializerKind::kNormal:
      FillGroups<kPrecision>(dim, row, [&](uint32_t c, float* out) {
        const PhiloxBlock words = block(c);
        for (int i = 0; i < 4; i += 2) {
          const NormalPair pair = NormalFloats(words.v[i], words.v[i + 1]);
          out[i] = value * pair.first;
          out[i + 1] = value * pair.second;
        }
      });
      break;
  }
}

void FillState(const RowInitArgs& args, float* state) {
  const auto range = AccumulatorRange::For(args.optimizer, args.layout->dim);
  std::fill_n(state, args.layout->state_floats, 0.0f);
  std::fill(state + range.begin, state + range.end, args.initial_accumulator);
}

void SetZero(std::byte* row, int64_t begin, int64_t end) {
  std::memset(row + begin, 0, static_cast<size_t>(end - begin));
}

template <WeightsPrecision kPrecision>
void InitAll(const ExecContext& ctx, const RowInitArgs& args) {
  constexpr int64_t kRowsPerBlock = 64;
  const RowLayout& layout = *args.layout;
  ParallelFor(ctx.pool, args.num_rows, kRowsPerBlock, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      if (u + 1 < end) PrefetchForWrite(args.rows[u + 1], layout.row_bytes);
      std::byte* const row = args.rows[u];
      FillWeights<kPrecision>(args, args.keys[u], row);
      const int64_t weight_bytes = layout.dim * WeightBytes(kPrecision);
      SetZero(row, weight_bytes, layout.state_offset);  // padding
      FillState(args, reinterpret_cast<float*>(row + layout.state_offset));
      SetZero(row, layout.step_offset, layout.row_bytes);  // last step and padding
    }
  });
}

}  // namespace

absl::Status InitRowsCpu(const ExecContext& ctx, const RowInitArgs& args) {
  WithPrecision(args.layout->precision, [&](auto precision) { InitAll<precision()>(ctx, args); });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
