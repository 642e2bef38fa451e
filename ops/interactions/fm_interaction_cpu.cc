#include <algorithm>
#include <cstdint>

#include "ops/interactions/fm_interaction_impl.h"
#include "ops/vec8_impl.h"

namespace hotrow::internal {
namespace {

// A sample is a microsecond or less; this many make starting a loop cheap.
constexpr int64_t kChunkSamples = 64;

// Columns are summed over the fields in their order; then the columns' results in eight lanes,
// added as ((0+2)+(1+3)) + ((4+6)+(5+7)).
float InteractSample(const FmInteractionArgs& args, const float* fields) {
  const int64_t num_fields = args.num_fields;
  const int64_t field_stride = args.field_stride;
  Vec8 pairs = Vec8::Zero();
  ForEachVec8(args.dim, [&](int64_t d, auto lanes) {
    Vec8 sum = Vec8::Zero();
    Vec8 squares = Vec8::Zero();
    for (int64_t s = 0; s < num_fields; ++s) {
      const Vec8 v = LoadLanes(fields + s * field_stride + d, lanes);
      sum = sum + v;
      squares = Vec8::Fma(v, v, squares);
    }
    pairs = pairs + (sum * sum - squares);
  });
  float p[8];
  pairs.Store(p);
  float result = 0.5f * (((p[0] + p[2]) + (p[1] + p[3])) + ((p[4] + p[6]) + (p[5] + p[7])));
  if (args.first_order_column != kNoFirstOrder) {
    float first_order = 0;
    const float* const weights = fields + args.first_order_column;
    for (int64_t s = 0; s < num_fields; ++s) first_order += weights[s * field_stride];
    result += first_order;
  }
  return result;
}

void SampleGradient(const FmInteractionArgs& args, const float* fields, float output_gradient,
                    float* gradient) {
  const int64_t num_fields = args.num_fields;
  const int64_t field_stride = args.field_stride;
  const Vec8 g = Vec8::Set(output_gradient);
  ForEachVec8(args.dim, [&](int64_t d, auto lanes) {
    Vec8 sum = Vec8::Zero();
    for (int64_t s = 0; s < num_fields; ++s) {
      sum = sum + LoadLanes(fields + s * field_stride + d, lanes);
    }
    for (int64_t s = 0; s < num_fields; ++s) {
      const int64_t at = s * field_stride + d;
      StoreLanes(g * (sum - LoadLanes(fields + at, lanes)), gradient + at, lanes);
    }
  });
  for (int64_t s = 0; s < num_fields; ++s) {
    float* const field = gradient + s * field_stride;
    std::fill(field + args.dim, field + field_stride, 0.0f);
    if (args.first_order_column != kNoFirstOrder) field[args.first_order_column] = output_gradient;
  }
}

}  // namespace

absl::Status FmInteractionCpu(ThreadPool* pool, const FmInteractionArgs& args) {
  ParallelFor(pool, args.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      args.output[b * args.output_stride] =
          InteractSample(args, args.fields + b * args.fields_stride);
    }
  });
  return absl::OkStatus();
}

absl::Status FmInteractionGradCpu(ThreadPool* pool, const FmInteractionGradArgs& args) {
  const FmInteractionArgs& forward = args.forward;
  ParallelFor(pool, forward.batch_size, kChunkSamples, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      SampleGradient(forward, forward.fields + b * forward.fields_stride,
                     args.output_gradient[b * args.output_gradient_stride],
                     args.fields_gradient + b * args.fields_gradient_stride);
    }
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
