#include "ops/fm_interaction_impl.h"
#include "ops/launch_impl.cuh"

// Eight threads a sample, for the eight lanes in which the CPU's loops sum (fm_interaction_cpu.cc),
// in their order: so with their bits. A thread reads each eighth column of all fields; the eight of
// a group read 32 bytes of a field at a time, a whole sector.
namespace hotrow::internal {
namespace {

constexpr int kFmLanes = 8;

// Reads each vector once: both sums of a column stay in registers.
// Bytes: 4 (F (D + 1) + 1) a sample with first order
__global__ void FmKernel(FmInteractionArgs args) {
  const int lane = GroupLane<kFmLanes>();
  const unsigned lanes = 0xffu << (threadIdx.x % kWarpThreads / kFmLanes * kFmLanes);
  const int64_t num_fields = args.num_fields;
  const int64_t field_stride = args.field_stride;
  for (int64_t b = GridGroup<kFmLanes>(); b < args.batch_size; b += GridGroups<kFmLanes>()) {
    const float* const fields = args.fields + b * args.fields_stride;
    float pairs = 0;
    for (int64_t d = lane; d < args.dim; d += kFmLanes) {
      float sum = 0;
      float squares = 0;
#pragma unroll 4
      for (int64_t s = 0; s < num_fields; ++s) {
        const float v = fields[s * field_stride + d];
        sum += v;
        squares = fmaf(v, v, squares);
      }
      pairs += sum * sum - squares;
    }
    pairs = SumOfEight(lanes, pairs);
    if (lane != 0) continue;
    float result = 0.5f * pairs;
    if (args.first_order_column != kNoFirstOrder) {
      float first_order = 0;
#pragma unroll 4
      for (int64_t s = 0; s < num_fields; ++s) {
        first_order += fields[s * field_stride + args.first_order_column];
      }
      result += first_order;
    }
    args.output[b * args.output_stride] = result;
  }
}

// Reads each vector twice, the second time out of the cache of its processor.
// Bytes: 4 (2 F (D + 1) + 1) a sample with first order
__global__ void FmGradKernel(FmInteractionGradArgs args) {
  const FmInteractionArgs& forward = args.forward;
  const int lane = GroupLane<kFmLanes>();
  const int64_t num_fields = forward.num_fields;
  const int64_t field_stride = forward.field_stride;
  for (int64_t b = GridGroup<kFmLanes>(); b < forward.batch_size; b += GridGroups<kFmLanes>()) {
    const float* const fields = forward.fields + b * forward.fields_stride;
    float* const gradient = args.fields_gradient + b * args.fields_gradient_stride;
    const float g = args.output_gradient[b * args.output_gradient_stride];
    int64_t d = lane;
    for (; d < forward.dim; d += kFmLanes) {
      float sum = 0;
#pragma unroll 4
      for (int64_t s = 0; s < num_fields; ++s) sum += fields[s * field_stride + d];
#pragma unroll 4
      for (int64_t s = 0; s < num_fields; ++s) {
        gradient[s * field_stride + d] = g * (sum - fields[s * field_stride + d]);
      }
    }
    for (; d < field_stride; d += kFmLanes) {
      const float rest = d == forward.first_order_column ? g : 0.0f;
      for (int64_t s = 0; s < num_fields; ++s) gradient[s * field_stride + d] = rest;
    }
  }
}

}  // namespace

absl::Status FmInteractionCuda(CudaStream stream, const FmInteractionArgs& args) {
  FmKernel<<<GridBlocks(args.batch_size, kThreadsPerBlock / kFmLanes), kThreadsPerBlock, 0,
             stream>>>(args);
  return LastLaunch("FmInteraction");
}

absl::Status FmInteractionGradCuda(CudaStream stream, const FmInteractionGradArgs& args) {
  const unsigned blocks = GridBlocks(args.forward.batch_size, kThreadsPerBlock / kFmLanes);
  FmGradKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("FmInteractionGrad");
}

}  // namespace hotrow::internal
