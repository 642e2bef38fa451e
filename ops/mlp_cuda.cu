#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/column_sums_impl.h"
#include "ops/dropout_impl.h"
#include "ops/gemm_cuda_impl.h"
#include "ops/launch_impl.cuh"
#include "ops/mlp_impl.h"

// Each layer is a product by cublasLt and a kernel for all that goes number by number. Bias and
// ReLU could ride in cublasLt's epilogues, but nothing there promises that a NaN stays one, by
// which a trainer knows that a model has gone astray.
namespace hotrow::internal {
namespace {

constexpr char kName[] = "Mlp";

// y[r] += bias, then ReLU, then a copy where the caller may change y. A warp a row.
template <bool kRelu>
__global__ void AddBiasKernel(Matrix y, int64_t rows, int64_t columns,
                              const float* __restrict__ bias, Matrix copy) {
  for (int64_t r = GridGroup(); r < rows; r += GridGroups()) {
    float* const row = y.row(r);
    GroupMove<kWarpThreads>(
        GroupLane(), columns,
        [=](int64_t i) { return kRelu ? Relu(row[i] + bias[i]) : row[i] + bias[i]; },
        [=](int64_t i, float z) {
          row[i] = z;
          if (copy.data != nullptr) copy.row(r)[i] = z;
        });
  }
}

// Sets dy to zero where ReLU's output y was zero (if kRelu), and sums the columns of each chunk of
// kSumChunkRows rows, row after row: sums [chunks, columns]. A block takes kSumChunkColumns columns
// of a chunk, a thread one of them.
template <bool kRelu>
__global__ void MaskAndSumKernel(ConstMatrix y, Matrix dy, int64_t rows, int64_t columns,
                                 Matrix sums) {
  const int64_t tiles = CeilDiv(columns, kSumChunkColumns);
  const int64_t blocks = CeilDiv(rows, kSumChunkRows) * tiles;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t chunk = block / tiles;
    const int64_t i = block % tiles * kSumChunkColumns + threadIdx.x;
    if (i >= columns) continue;
    const int64_t begin = chunk * kSumChunkRows;
    const int64_t end = min(begin + kSumChunkRows, rows);
    float sum = 0;
    // Several rows are read before the first is written, for the compiler cannot know that they are
    // others.
    constexpr int kInFlight = 8;
    for (int64_t r = begin; r < end; r += kInFlight) {
      const int n = static_cast<int>(min(end - r, int64_t{kInFlight}));
      float g[kInFlight];
      float output[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (k >= n) continue;
        g[k] = dy.row(r + k)[i];
        if (kRelu) output[k] = y.row(r + k)[i];
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (k >= n) continue;
        if (kRelu) {
          g[k] = ReluGrad(output[k], g[k]);
          dy.row(r + k)[i] = g[k];
        }
        sum += g[k];
      }
    }
    sums.row(chunk)[i] = sum;
  }
}

class MlpCuda : public MlpEngine {
 public:
  explicit MlpCuda(const MlpShape& shape) : shape_(shape) {}
  absl::Status Init(DensePrecision precision, CudaStream stream);

  absl::Status Forward(const ExecContext& ctx, const Mlp::ForwardArgs& args) override;
  absl::Status BackwardInput(const ExecContext& ctx, const Mlp::ForwardArgs& forward,
                             const Mlp::BackwardArgs& args) override;
  absl::Status BackwardParameters(const ExecContext& ctx, const Mlp::ForwardArgs& forward,
                                  const Mlp::BackwardArgs& args) override;
  int64_t bytes() const override;

 private:
  struct Layer : MlpLayer {
    DeviceBuffer<float> outputs;    // y_l [B, out]; the last layer keeps it only if it has ReLU
    DeviceBuffer<float> gradients;  // d(loss)/d(y_l), then of z_l; the last layer uses the caller's
    DeviceBuffer<float> bias_sums;  // column sums of the gradients of z_l, one row for each chunk
  };

  Matrix Kept(Layer& layer) const { return {layer.outputs.data(), layer.out_stride}; }
  ConstMatrix Input(size_t l, const Mlp::ForwardArgs& args) {
    return l == 0 ? ConstMatrix(args.x, args.x_stride) : Kept(layers_[l - 1]);
  }
  Matrix OutputOf(Layer& layer, const Mlp::ForwardArgs& args) const {
    return layer.last ? Matrix{args.y, args.y_stride} : Kept(layer);
  }
  static Matrix GradientOf(Layer& layer, const Mlp::BackwardArgs& args) {
    return layer.last ? Matrix{args.dy, args.dy_stride}
                      : Matrix{layer.gradients.data(), layer.out_stride};
  }
  absl::Status Multiply(CudaStream stream, const ColumnMajorProduct& product) {
    return gemm_->Run(stream, product, workspace_.data());
  }

  const MlpShape shape_;
  std::vector<Layer> layers_;
  std::unique_ptr<GemmCuda> gemm_;
  DeviceBuffer<std::byte> workspace_;  // of gemm_
};

absl::Status MlpCuda::Init(DensePrecision precision, CudaStream stream) {
  HOTROW_ASSIGN_OR_RETURN(
      gemm_, GemmCuda::Create(precision == DensePrecision::kTf32 ? GemmPrecision::kTf32
                                                                 : GemmPrecision::kFp32));
  HOTROW_ASSIGN_OR_RETURN(workspace_, DeviceBuffer<std::byte>::Create(kGemmWorkspaceBytes, stream));
  layers_.resize(shape_.layers.size());
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    static_cast<MlpLayer&>(layer) = shape_.layers[l];
    const int64_t activations = shape_.max_batch_size * layer.out_stride;
    if (layer.relu) {
      HOTROW_ASSIGN_OR_RETURN(layer.outputs, DeviceBuffer<float>::Create(activations, stream));
    }
    if (!layer.last) {
      HOTROW_ASSIGN_OR_RETURN(layer.gradients, DeviceBuffer<float>::Create(activations, stream));
    }
    HOTROW_ASSIGN_OR_RETURN(layer.bias_sums,
                            DeviceBuffer<float>::Create(
                                ChunkSumsSize(shape_.max_batch_size, layer.out_stride), stream));
  }
  return absl::OkStatus();
}

absl::Status MlpCuda::Forward(const ExecContext& ctx, const Mlp::ForwardArgs& args) {
  if (args.batch_size == 0) return absl::OkStatus();
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    const Matrix y = OutputOf(layer, args);
    HOTROW_RETURN_IF_ERROR(
        Multiply(ctx.stream, LinearForward(args.batch_size, layer.in, layer.out, Input(l, args),
                                           args.parameters + layer.weight_offset, y)));
    // The caller may change y before Backward, which needs to know where it was zero.
    const bool copies = args.training && layer.last && layer.relu;
    const Matrix copy = copies ? Kept(layer) : Matrix{};
    const auto kernel = layer.relu ? AddBiasKernel<true> : AddBiasKernel<false>;
    kernel<<<GridBlocks(args.batch_size, kThreadsPerBlock / kWarpThreads), kThreadsPerBlock, 0,
             ctx.stream>>>(y, args.batch_size, layer.out, args.parameters + layer.bias_offset,
                           copy);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
    if (args.training && layer.dropout > 0) {
      HOTROW_RETURN_IF_ERROR(DropoutCuda(ctx.stream, MlpDropout(shape_, layer, args, y)));
    }
  }
  return absl::OkStatus();
}

absl::Status MlpCuda::BackwardInput(const ExecContext& ctx, const Mlp::ForwardArgs& forward,
                                    const Mlp::BackwardArgs& args) {
  const int64_t rows = forward.batch_size;
  if (rows == 0) return absl::OkStatus();
  for (size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    const Matrix dy = GradientOf(layer, args);
    if (layer.dropout > 0) {
      HOTROW_RETURN_IF_ERROR(DropoutCuda(ctx.stream, MlpDropout(shape_, layer, forward, dy)));
    }
    const int64_t blocks = CeilDiv(rows, kSumChunkRows) * CeilDiv(layer.out, kSumChunkColumns);
    const auto kernel = layer.relu ? MaskAndSumKernel<true> : MaskAndSumKernel<false>;
    kernel<<<GridBlocks(blocks, 1), kSumChunkColumns, 0, ctx.stream>>>(
        Kept(layer), dy, rows, layer.out, Matrix{layer.bias_sums.data(), layer.out_stride});
    HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
    if (l == 0 && args.dx == nullptr) break;
    const Matrix dx = l == 0 ? Matrix{args.dx, args.dx_stride} : GradientOf(layers_[l - 1], args);
    HOTROW_RETURN_IF_ERROR(
        Multiply(ctx.stream, LinearInputGradient(rows, layer.in, layer.out, dy,
                                                 args.parameters + layer.weight_offset, dx)));
  }
  return absl::OkStatus();
}

absl::Status MlpCuda::BackwardParameters(const ExecContext& ctx, const Mlp::ForwardArgs& forward,
                                         const Mlp::BackwardArgs& args) {
  const int64_t rows = forward.batch_size;
  if (rows == 0) {
    HOTROW_CUDA_RETURN_IF_ERROR(
        cudaMemsetAsync(args.parameter_gradients, 0,
                        static_cast<size_t>(shape_.num_parameters) * sizeof(float), ctx.stream));
  }
  for (size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    if (rows > 0) {
      float* const weight_gradient = args.parameter_gradients + layer.weight_offset;
      HOTROW_RETURN_IF_ERROR(Multiply(
          ctx.stream, LinearWeightGradient(rows, layer.in, layer.out, GradientOf(layer, args),
                                           Input(l, forward), weight_gradient)));
      const int64_t weights = layer.in * layer.out;
      HOTROW_RETURN_IF_ERROR(SumChunksCuda(
          ctx.stream, {.sums = Matrix{layer.bias_sums.data(), layer.out_stride},
                       .chunks = CeilDiv(rows, kSumChunkRows),
                       .columns = layer.out,
                       .padded_columns = layer.out_stride,
                       .result = args.parameter_gradients + layer.bias_offset,
                       .zeros = weight_gradient + weights,
                       .num_zeros = layer.bias_offset - layer.weight_offset - weights}));
    }
    if (args.gradients_ready != nullptr) HOTROW_RETURN_IF_ERROR(LayerReady(layer, args));
  }
  return absl::OkStatus();
}

int64_t MlpCuda::bytes() const {
  int64_t bytes = workspace_.bytes();
  for (const Layer& layer : layers_) {
    bytes += layer.outputs.bytes() + layer.gradients.bytes() + layer.bias_sums.bytes();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MlpEngine>> NewMlpCuda(const MlpShape& shape,
                                                      DensePrecision precision, CudaStream stream) {
  auto engine = std::make_unique<MlpCuda>(shape);
  HOTROW_RETURN_IF_ERROR(engine->Init(precision, stream));
  return engine;
}

}  // namespace hotrow::internal
