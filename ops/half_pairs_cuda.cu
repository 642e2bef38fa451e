#include "ops/half_pairs_impl.cuh"

namespace hotrow::internal {
namespace {

__global__ void PackRowsKernel(PackRowsArgs args) {
  ForEachWord(args.rows, args.to.stride, [&args](int64_t r, int64_t w) {
    const auto at = [&args, r](int64_t c) {
      if (c < args.columns) return args.from.row(r)[c];
      if (c > args.columns) return 0.0f;
      return args.behind == nullptr ? 1.0f : args.behind[r];
    };
    args.to.row(r)[w] = args.to.Pack(at(2 * w), at(2 * w + 1));
  });
}

// A warp a row; the first one does the padding.
__global__ void UnpackGradientKernel(UnpackGradientArgs args) {
  for (int64_t r = GridGroup(); r < args.out; r += GridGroups()) {
    const float* const row = args.from.row(r);
    float* const to = args.weights + r * args.in;
    GroupMove<kWarpThreads>(
        GroupLane(), args.in, [=](int64_t i) { return row[i]; },
        [=](int64_t i, float g) { to[i] = g; });
    if (GroupLane() == 0) args.biases[r] = row[args.in];
  }
  if (GridGroup() > 0) return;
  for (int64_t i = args.in * args.out + GroupLane(); i < args.weights_end; i += kWarpThreads) {
    args.weights[i] = 0;
  }
  for (int64_t i = args.out + GroupLane(); i < args.biases_end; i += kWarpThreads) {
    args.biases[i] = 0;
  }
}

}  // namespace

absl::Status PackRowsCuda(CudaStream stream, const PackRowsArgs& args) {
  PackRowsKernel<<<BlocksOfRows(args.rows), kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("PackRows");
}

absl::Status UnpackGradientCuda(CudaStream stream, const UnpackGradientArgs& args) {
  UnpackGradientKernel<<<BlocksOfRows(args.out), kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("UnpackGradient");
}

}  // namespace hotrow::internal
