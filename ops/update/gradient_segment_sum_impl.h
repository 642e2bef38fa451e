#ifndef HOTROW_OPS_UPDATE_GRADIENT_SEGMENT_SUM_IMPL_H_
#define HOTROW_OPS_UPDATE_GRADIENT_SEGMENT_SUM_IMPL_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"
#include "base/math.h"
#include "ops/jagged.h"
#include "ops/update/gradient_segment_sum.h"

namespace hotrow::internal {

// What one lookup adds to its row: scale * gradient[0..dim).
struct GradientContribution {
  const float* gradient;
  float scale;
  int32_t dim;
};

// The contribution of lookup j, which lies in bag b of `feature`; `bags` are the offsets of the
// feature's bags.
HOTROW_HOST_DEVICE inline GradientContribution DescribeLookup(const JaggedFeature& feature,
                                                              const int64_t* bags, int64_t b,
                                                              int64_t j, const float* weights) {
  const int64_t row = feature.pooling == Pooling::kNone ? j - bags[0] : b;
  const float weight = weights == nullptr ? 1.0f : weights[j];
  const auto length = static_cast<float>(bags[b + 1] - bags[b]);
  return {feature.data + row * feature.stride,
          feature.pooling == Pooling::kMean ? weight / length : weight, feature.dim};
}

// How a GPU cuts the lookups of a hot row: into runs of kLength, of which the last one also takes
// what is left, each summed by its own tile. A row of fewer than two runs goes straight. (For
// 300,000 lookups the sums of runs and the sum of their sums are of about the same length.)
//
// Where the sums of runs lie: row u, whose lookups are [begin, end) of lookup_order, has slots
// begin / kLength, begin / kLength + 1, ... Rows do not share one, since a run has kLength lookups
// at least; N / kLength slots are enough for all; and lookup (slot + 1) * kLength - 1 belongs to
// the row that has the slot, if one has it, so nobody needs a list.
struct HotRowRun {
  static constexpr int64_t kLength = 256;

  int64_t index = -1;  // of the row's runs; -1: this is no slot of the row
  int64_t begin = 0;   // its lookups, in lookup_order
  int64_t end = 0;

  HOTROW_HOST_DEVICE static constexpr int64_t Count(int64_t row_lookups) {
    return row_lookups < 2 * kLength ? 1 : row_lookups / kLength;
  }
  HOTROW_HOST_DEVICE static constexpr int64_t Slots(int64_t num_lookups) {
    return num_lookups < 2 * kLength ? 0 : num_lookups / kLength;
  }
  HOTROW_HOST_DEVICE static constexpr int64_t LookupOf(int64_t slot) {
    return (slot + 1) * kLength - 1;
  }
  // The run of slot `slot` if it belongs to the row of lookups [row_begin, row_end).
  HOTROW_HOST_DEVICE static constexpr HotRowRun Of(int64_t slot, int64_t row_begin,
                                                   int64_t row_end) {
    HotRowRun run;
    const int64_t count = Count(row_end - row_begin);
    const int64_t index = slot - row_begin / kLength;
    if (count == 1 || index < 0 || index >= count) return run;
    run.index = index;
    run.begin = row_begin + index * kLength;
    run.end = index == count - 1 ? row_end : run.begin + kLength;
    return run;
  }
};

// The workspace on a GPU: GradientContribution[N], then the sums of runs.
struct HotRowSums {
  int64_t offset;  // in bytes
  int64_t stride;  // of a slot, in floats: whole quads
  int64_t bytes;   // of the whole workspace

  static constexpr HotRowSums For(int64_t num_lookups, int32_t dim_max) {
    constexpr int64_t kAlignment = 64;
    const int64_t offset =
        RoundUp(num_lookups * static_cast<int64_t>(sizeof(GradientContribution)), kAlignment);
    const int64_t stride = RoundUp(dim_max, 4);
    return {offset, stride,
            offset + HotRowRun::Slots(num_lookups) * stride * static_cast<int64_t>(sizeof(float))};
  }
};

int32_t WidestDim(std::span<const JaggedFeature> features);
// What a CUDA device asks for on top of Validate(). num_rows > 0.
absl::Status ValidateForCuda(const GradientSegmentSumArgs& args);

absl::Status GradientSegmentSumCpu(const ExecContext& ctx, const GradientSegmentSumArgs& args);
absl::Status GradientSegmentSumCuda(const GradientSegmentSumArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_UPDATE_GRADIENT_SEGMENT_SUM_IMPL_H_
