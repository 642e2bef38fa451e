#include <algorithm>
#include <cstdint>

#include "base/hopper.cuh"
#include "ops/interactions/fm_interaction_impl.h"
#include "ops/launch_impl.cuh"

// Eight threads a sample, for the eight lanes in which the CPU's loops sum (fm_interaction_cpu.cc),
// in their order: so with their bits. A field of D + 1 columns begins at no multiple of 16 bytes,
// so a warp copies its four samples, which lie end to end, to shared memory and works there.
namespace hotrow::internal {
namespace {

constexpr int kFmLanes = 8;
constexpr int kFmSamples = kWarpThreads / kFmLanes;  // of a warp
constexpr int64_t kFmSharedBytes = 48 << 10;         // of a block: what every launch may take

__host__ __device__ int64_t SampleFloats(const FmInteractionArgs& args) {
  return int64_t{args.num_fields} * args.field_stride;
}

__device__ float* WarpStage(const FmInteractionArgs& args) {
  return reinterpret_cast<float*>(gpu::DynamicShared()) +
         threadIdx.x / kWarpThreads * kFmSamples * SampleFloats(args);
}

// Calls quad(i) for four floats at a time of samples that lie end to end, both in shared memory and
// in `device`, and single(i, j), i there and j in device memory, for those that this leaves. By a
// warp.
template <typename Quad, typename Single>
__device__ void MoveSamples(const float* device, int64_t stride, int64_t samples, int64_t floats,
                            Quad&& quad, Single&& single) {
  int64_t begin = 0;
  if (stride == floats && reinterpret_cast<uintptr_t>(device) % sizeof(float4) == 0) {
    floats *= samples;
    samples = 1;
    begin = floats / 4 * 4;
    for (int64_t i = 4 * GroupLane(); i < begin; i += 4 * kWarpThreads) quad(i);
  }
  for (int64_t s = 0; s < samples; ++s) {
    for (int64_t i = begin + GroupLane(); i < floats; i += kWarpThreads) {
      single(s * floats + i, s * stride + i);
    }
  }
}

// Calls body(b, fields of sample b) for all samples, each by the eight threads that have it, and
// done(first, samples) by the warp behind its up to four. kStaged: fields are in the warp's stage.
template <bool kStaged, typename Body, typename Done>
__device__ void ForEachSample(const FmInteractionArgs& args, Body&& body, Done&& done) {
  const int64_t floats = SampleFloats(args);
  const int mine = GroupLane() / kFmLanes;
  for (int64_t first = GridGroup() * kFmSamples; first < args.batch_size;
       first += GridGroups() * kFmSamples) {
    const int64_t samples = min(args.batch_size - first, int64_t{kFmSamples});
    const float* const from = args.fields + first * args.fields_stride;
    if constexpr (kStaged) {
      float* const stage = WarpStage(args);
      MoveSamples(
          from, args.fields_stride, samples, floats,
          [&](int64_t i) { gpu::CopyAsync16(stage + i, from + i); },
          [&](int64_t i, int64_t j) { stage[i] = from[j]; });
      gpu::CommitCopies();
      gpu::WaitForCopies<0>();
      __syncwarp();
    }
    if (mine < samples) {
      body(first + mine,
           kStaged ? WarpStage(args) + mine * floats : from + mine * args.fields_stride);
    }
    if constexpr (kStaged) {
      __syncwarp();
      done(first, samples);
      __syncwarp();
    }
  }
}

// Reads each vector once: both sums of a column stay in registers.
// Bytes: 4 (F (D + 1) + 1) a sample with first order
template <bool kStaged>
__global__ void FmKernel(FmInteractionArgs args) {
  const int lane = GroupLane<kFmLanes>();
  const unsigned lanes = 0xffu << (threadIdx.x % kWarpThreads / kFmLanes * kFmLanes);
  const int num_fields = args.num_fields;
  const int64_t field_stride = args.field_stride;
  const auto interact = [&](int64_t b, const float* fields) {
    float pairs = 0;
    for (int d = lane; d < args.dim; d += kFmLanes) {
      float sum = 0;
      float squares = 0;
#pragma unroll 8
      for (int s = 0; s < num_fields; ++s) {
        const float v = fields[s * field_stride + d];
        sum += v;
        squares = fmaf(v, v, squares);
      }
      pairs += sum * sum - squares;
    }
    pairs = SumOfEight(lanes, pairs);
    if (lane != 0) return;
    float result = 0.5f * pairs;
    if (args.first_order_column != kNoFirstOrder) {
      float first_order = 0;
#pragma unroll 8
      for (int s = 0; s < num_fields; ++s) {
        first_order += fields[s * field_stride + args.first_order_column];
      }
      result += first_order;
    }
    args.output[b * args.output_stride] = result;
  };
  ForEachSample<kStaged>(args, interact, [](int64_t, int64_t) {});
}

// Where samples are staged, gradients take their place and leave as they came. Elsewhere each
// vector is read twice, the second time out of a cache.
// Bytes: 4 (2 F (D + 1) + 1) a sample with first order
template <bool kStaged>
__global__ void FmGradKernel(FmInteractionGradArgs args) {
  const FmInteractionArgs& forward = args.forward;
  const int lane = GroupLane<kFmLanes>();
  const int num_fields = forward.num_fields;
  const int64_t field_stride = forward.field_stride;
  const auto differentiate = [&](int64_t b, const float* fields) {
    float* const gradient = kStaged ? const_cast<float*>(fields)
                                    : args.fields_gradient + b * args.fields_gradient_stride;
    const float g = args.output_gradient[b * args.output_gradient_stride];
    int d = lane;
    for (; d < forward.dim; d += kFmLanes) {
      float sum = 0;
#pragma unroll 8
      for (int s = 0; s < num_fields; ++s) sum += fields[s * field_stride + d];
#pragma unroll 8
      for (int s = 0; s < num_fields; ++s) {
        gradient[s * field_stride + d] = g * (sum - fields[s * field_stride + d]);
      }
    }
    for (; d < field_stride; d += kFmLanes) {
      const float rest = d == forward.first_order_column ? g : 0.0f;
      for (int s = 0; s < num_fields; ++s) gradient[s * field_stride + d] = rest;
    }
  };
  ForEachSample<kStaged>(forward, differentiate, [&](int64_t first, int64_t samples) {
    const float* const stage = WarpStage(forward);
    float* const to = args.fields_gradient + first * args.fields_gradient_stride;
    MoveSamples(
        to, args.fields_gradient_stride, samples, SampleFloats(forward),
        [&](int64_t i) {
          __stcs(reinterpret_cast<float4*>(to + i), *reinterpret_cast<const float4*>(stage + i));
        },
        [&](int64_t i, int64_t j) { to[j] = stage[i]; });
  });
}

// `staged`, unless a warp's samples are too large for that.
template <typename Args>
absl::Status Launch(const char* op, CudaStream stream, const FmInteractionArgs& shape,
                    void (*staged)(Args), void (*direct)(Args), const Args& args) {
  const int64_t warp_bytes = kFmSamples * SampleFloats(shape) * static_cast<int64_t>(sizeof(float));
  const int64_t fitting = kFmSharedBytes / warp_bytes;
  const int64_t warps = fitting == 0 ? kThreadsPerBlock / kWarpThreads
                                     : std::min<int64_t>(fitting, kThreadsPerBlock / kWarpThreads);
  const auto shared = static_cast<size_t>(fitting == 0 ? 0 : warps * warp_bytes);
  const auto kernel = fitting == 0 ? direct : staged;
  kernel<<<GridBlocks(shape.batch_size, warps * kFmSamples),
           static_cast<unsigned>(warps * kWarpThreads), shared, stream>>>(args);
  return LastLaunch(op);
}

}  // namespace

absl::Status FmInteractionCuda(CudaStream stream, const FmInteractionArgs& args) {
  return Launch("FmInteraction", stream, args, &FmKernel<true>, &FmKernel<false>, args);
}

absl::Status FmInteractionGradCuda(CudaStream stream, const FmInteractionGradArgs& args) {
  return Launch("FmInteractionGrad", stream, args.forward, &FmGradKernel<true>,
                &FmGradKernel<false>, args);
}

}  // namespace hotrow::internal
