#include <cmath>

#include "ops/launch_impl.cuh"
#include "ops/layers/gated_experts_impl.h"

// A warp a sample, so that neighbours read neighbours. Experts go in groups of 32, as many as a
// warp has lanes: lane e holds the share of expert e of the group, and hands it to the others.
// Bound by the memory: each number of x is read once. Beside it a sample reads its gate, once more
// for each of the three passes over the experts, and with a sum its output_gradient once for each
// expert; those come out of the cache of the processor.
namespace hotrow::internal {
namespace {

// Makes the shares of a sample. All lanes call it together.
class Shares {
 public:
  __device__ Shares(const float* gate, int32_t num_experts)
      : gate_(gate), num_experts_(num_experts) {
    const int lane = GroupLane();
    largest_ = -INFINITY;
    for (int32_t e = lane; e < num_experts; e += kWarpThreads) Take(gate[e]);
    for (int half = kWarpThreads / 2; half > 0; half /= 2) {
      Take(__shfl_xor_sync(kAllLanes, largest_, half));
    }
    // A NaN is not larger than anything, but its exponential is a NaN, and so is the sum.
    float sum = 0;
    for (int32_t e = lane; e < num_experts; e += kWarpThreads) sum += expf(gate[e] - largest_);
    sum_ = WarpSum(sum);
    group_ = Of(0);
  }
  // The weight of expert first + lane; 0 where there is none. first is a multiple of 32.
  __device__ float Group(int32_t first) const { return first == 0 ? group_ : Of(first); }

 private:
  __device__ void Take(float x) { largest_ = x > largest_ ? x : largest_; }
  __device__ float Of(int32_t first) const {
    const int32_t e = first + GroupLane();
    return e < num_experts_ ? expf(gate_[e] - largest_) / sum_ : 0.0f;
  }

  const float* gate_;
  int32_t num_experts_;
  float largest_;
  float sum_;
  float group_;  // the first one, which is mostly all
};

// Bytes: 4 (E D + E + D) a sample
__global__ void __launch_bounds__(kThreadsPerBlock) GatedSumKernel(GatedExpertsArgs args) {
  const int lane = GroupLane();
  const int64_t dim = args.dim;
  for (int64_t b = GridGroup(); b < args.batch_size; b += GridGroups()) {
    const Shares shares(args.gate + b * args.gate_stride, args.num_experts);
    const float* const x = args.x + b * args.x_stride;
    float* const y = args.output + b * args.output_stride;
    for (int64_t first_column = 0; first_column < dim; first_column += kWarpThreads) {
      const int64_t i = first_column + lane;
      float sum = 0;
      for (int32_t first = 0; first < args.num_experts; first += kWarpThreads) {
        const float group = shares.Group(first);
        const int n = min(args.num_experts - first, kWarpThreads);
#pragma unroll 8
        for (int e = 0; e < n; ++e) {
          const float share = __shfl_sync(kAllLanes, group, e);
          if (i < dim) sum += share * x[(first + e) * dim + i];
        }
      }
      if (i < dim) y[i] = sum;
    }
  }
}

// The columns of a group of experts lie together: a lane takes each 32nd of them, whose experts are
// others than those of its neighbours where D is small.
// Bytes: 4 (2 E D + E) a sample
__global__ void __launch_bounds__(kThreadsPerBlock) GatedScaleKernel(GatedExpertsArgs args) {
  const int lane = GroupLane();
  const int32_t dim = args.dim;
  for (int64_t b = GridGroup(); b < args.batch_size; b += GridGroups()) {
    const Shares shares(args.gate + b * args.gate_stride, args.num_experts);
    const float* const x = args.x + b * args.x_stride;
    float* const y = args.output + b * args.output_stride;
    for (int32_t first = 0; first < args.num_experts; first += kWarpThreads) {
      const float group = shares.Group(first);
      const int64_t begin = int64_t{first} * dim;
      const auto n = static_cast<int32_t>(min(args.columns() - begin, int64_t{kWarpThreads} * dim));
      const float* const from = x + begin;
      float* const to = y + begin;
      // Whole rounds of all lanes, for each gives the others its share.
      constexpr int kInFlight = 4;
      for (int32_t round = 0; round < n; round += kInFlight * kWarpThreads) {
        const int32_t left = n - round;
        float value[kInFlight];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          const int32_t c = k * kWarpThreads + lane;
          value[k] = c < left ? from[round + c] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          const int32_t c = k * kWarpThreads + lane;
          const float share = __shfl_sync(kAllLanes, group, c < left ? (round + c) / dim : 0);
          if (c < left) to[round + c] = share * value[k];
        }
      }
    }
  }
}

// kWantsGate, kWantsX: which gradients there are.
// Bytes: 4 (2 E D + D + 2 E) a sample; where each is scaled 4 (3 E D + 2 E)
template <bool kWantsGate, bool kWantsX>
__global__ void __launch_bounds__(kThreadsPerBlock) GatedGradKernel(GatedExpertsGradArgs args) {
  const GatedExpertsArgs& forward = args.forward;
  const int lane = GroupLane();
  const int64_t dim = forward.dim;
  const int64_t next = forward.kind == GatedOutput::kScaled ? dim : 0;  // of an expert's gradient
  for (int64_t b = GridGroup(); b < forward.batch_size; b += GridGroups()) {
    const Shares shares(forward.gate + b * forward.gate_stride, forward.num_experts);
    const float* const x = forward.x + b * forward.x_stride;
    const float* const dy = args.output_gradient + b * args.output_gradient_stride;
    float* const dx = kWantsX ? args.x_gradient + b * args.x_gradient_stride : nullptr;
    float* const dgate = kWantsGate ? args.gate_gradient + b * args.gate_gradient_stride : nullptr;
    float sum = 0;  // of this lane's shares and their gradients
    for (int32_t first = 0; first < forward.num_experts; first += kWarpThreads) {
      const float group = shares.Group(first);
      const int n = min(forward.num_experts - first, kWarpThreads);
      float mine = 0;  // the gradient of this lane's share
      for (int e = 0; e < n; ++e) {
        const float share = __shfl_sync(kAllLanes, group, e);
        const int64_t column = (first + e) * dim;
        const float* const g = dy + (first + e) * next;
        float dot = 0;
#pragma unroll 4
        for (int64_t i = lane; i < dim; i += kWarpThreads) {
          if (kWantsGate) dot += g[i] * x[column + i];
          if (kWantsX) dx[column + i] = share * g[i];
        }
        if (!kWantsGate) continue;
        dot = WarpSum(dot);
        if (lane == e) mine = dot;
      }
      if (!kWantsGate || lane >= n) continue;
      dgate[first + lane] = mine;  // read below by the same lane
      sum += group * mine;
    }
    if (!kWantsGate) continue;
    const float mean = WarpSum(sum);
    for (int32_t first = 0; first < forward.num_experts; first += kWarpThreads) {
      if (first + lane >= forward.num_experts) continue;
      dgate[first + lane] = shares.Group(first) * (dgate[first + lane] - mean);
    }
  }
}

}  // namespace

absl::Status GatedExpertsCuda(CudaStream stream, const GatedExpertsArgs& args) {
  const unsigned blocks = GridBlocks(args.batch_size, kThreadsPerBlock / kWarpThreads);
  const auto kernel = args.kind == GatedOutput::kSum ? GatedSumKernel : GatedScaleKernel;
  kernel<<<blocks, kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("GatedExperts");
}

absl::Status GatedExpertsGradCuda(CudaStream stream, const GatedExpertsGradArgs& args) {
  const unsigned blocks = GridBlocks(args.forward.batch_size, kThreadsPerBlock / kWarpThreads);
  auto kernel = GatedGradKernel<true, true>;
  if (args.x_gradient == nullptr) kernel = GatedGradKernel<true, false>;
  if (args.gate_gradient == nullptr) kernel = GatedGradKernel<false, true>;
  kernel<<<blocks, kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("GatedExpertsGrad");
}

}  // namespace hotrow::internal
