#include <algorithm>
#include <cstring>

#include "base/philox.h"
#include "ops/prefetch.h"
#include "ops/row_init.h"
#include "ops/row_init_impl.h"

namespace hotrow::internal {
namespace {

template <typename FromBlock>
void FillRandom(const RowInitArgs& args, uint64_t key, float* weights, FromBlock&& from_block) {
  const int32_t dim = args.layout->dim;
  for (int32_t column = 0; column < dim; column += 4) {
    float values[4];
    from_block(WeightBlock(args.seed, args.table, key, static_cast<uint32_t>(column / 4)), values);
    for (int32_t i = 0; i < std::min(4, dim - column); ++i) weights[column + i] = values[i];
  }
}

void FillWeights(const RowInitArgs& args, uint64_t key, float* weights) {
  const float value = args.initializer.value;
  switch (args.initializer.kind) {
    case InitializerKind::kZeros:
      std::fill_n(weights, args.layout->dim, 0.0f);
      break;
    case InitializerKind::kConstant:
      std::fill_n(weights, args.layout->dim, value);
      break;
    case InitializerKind::kUniform:
      FillRandom(args, key, weights, [value](const PhiloxBlock& block, float* values) {
        for (int i = 0; i < 4; ++i) values[i] = UniformWeight(value, block.v[i]);
      });
      break;
    case InitializerKind::kNormal:
      FillRandom(args, key, weights, [value](const PhiloxBlock& block, float* values) {
        const NormalPair a = NormalFloats(block.v[0], block.v[1]);
        const NormalPair b = NormalFloats(block.v[2], block.v[3]);
        values[0] = value * a.first;
        values[1] = value * a.second;
        values[2] = value * b.first;
        values[3] = value * b.second;
      });
      break;
  }
}

void FillState(const RowInitArgs& args, float* state) {
  const auto range = AccumulatorRange::For(args.optimizer, args.layout->dim);
  std::fill_n(state, args.layout->state_floats, 0.0f);
  std::fill(state + range.begin, state + range.end, args.initial_accumulator);
}

}  // namespace

absl::Status InitRowsCpu(const ExecContext& ctx, const RowInitArgs& args) {
  constexpr int64_t kRowsPerBlock = 64;
  const RowLayout& layout = *args.layout;
  ParallelFor(ctx.pool, args.num_rows, kRowsPerBlock, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      if (u + 1 < end) PrefetchForWrite(args.rows[u + 1], layout.row_bytes);
      auto* const weights = reinterpret_cast<float*>(args.rows[u]);
      FillWeights(args, args.keys[u], weights);
      FillState(args, weights + layout.dim);
      // Last step and padding.
      std::memset(args.rows[u] + layout.step_offset, 0,
                  static_cast<size_t>(layout.row_bytes - layout.step_offset));
    }
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
