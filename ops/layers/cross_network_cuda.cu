#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/layers/cross_network_impl.h"
#include "ops/products/beside_work_impl.cuh"
#include "ops/products/column_sums_impl.h"
#include "ops/products/gemm_cuda_impl.h"

// Layers of kMatrix in fp32: products by cublasLt, and a kernel each way for all that goes number
// by number.
namespace hotrow::internal {
namespace {

constexpr char kName[] = "CrossNetwork";

// t += bias, if it is kept; y = x_0 o (t + bias) + x. A warp a row.
// Bytes: 20 W a sample: t, x_0, x read, t, y written
__global__ void CrossKernel(Matrix t, int64_t rows, int64_t columns, const float* __restrict__ bias,
                            ConstMatrix x0, ConstMatrix x, Matrix y, bool keeps) {
  for (int64_t r = GridGroup(); r < rows; r += GridGroups()) {
    float* const t_row = t.row(r);
    GroupMove<kWarpThreads>(
        GroupLane(), columns,
        [=](int64_t i) {
          const float z = t_row[i] + bias[i];
          return make_float2(z, z * x0.row(r)[i] + x.row(r)[i]);
        },
        [=](int64_t i, float2 result) {
          if (keeps) t_row[i] = result.x;
          y.row(r)[i] = result.y;
        });
  }
}

// With g = d(loss)/d(x_{l+1}) and t = W x_l + b: dx = g o t, added to what is there if adds_dx, and
// + g if ends_dx; dt = g o x_0 in the place of t. Sums the columns of dt chunk by chunk:
// sums [chunks, columns]. A block takes kSumChunkColumns columns of a chunk, a thread one of them.
// Bytes: 24 W a sample: g, x_0, t, dx read, t, dx written
__global__ void CrossGradKernel(ConstMatrix g, ConstMatrix x0, Matrix t, int64_t rows,
                                int64_t columns, Matrix dx, bool adds_dx, bool ends_dx,
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
      float gradient[kInFlight], factor[kInFlight], crossing[kInFlight], before[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (k >= n) continue;
        gradient[k] = g.row(r + k)[i];
        factor[k] = x0.row(r + k)[i];
        crossing[k] = t.row(r + k)[i];
        before[k] = adds_dx ? dx.row(r + k)[i] : 0.0f;
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (k >= n) continue;
        if (dx.data != nullptr) {
          const float share = before[k] + gradient[k] * crossing[k];
          dx.row(r + k)[i] = ends_dx ? share + gradient[k] : share;
        }
        const float dt = gradient[k] * factor[k];
        t.row(r + k)[i] = dt;
        sum += dt;
      }
    }
    sums.row(chunk)[i] = sum;
  }
}

class CrossMatrixCuda : public DenseEngine {
 public:
  explicit CrossMatrixCuda(const CrossShape& shape) : shape_(shape) {}
  absl::Status Init(DensePrecision precision, CudaStream stream);

  absl::Status Forward(const ExecContext& ctx, const DenseForward& args) override;
  absl::Status BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                             const DenseBackward& args) override;
  absl::Status BackwardParameters(const ExecContext& ctx, const DenseForward& forward,
                                  const DenseBackward& args) override;
  int64_t bytes() const override;
  NumbersView Output(size_t l) const override {
    return {.data = layers_[l].outputs.data(), .columns = shape_.width, .stride = shape_.stride};
  }

 private:
  struct Layer : CrossLayerShape {
    DeviceBuffer<float> outputs;    // x_{l+1} [B, W]; not of the last
    DeviceBuffer<float> crossings;  // t [B, W], and d(loss)/dt after BackwardInput
    DeviceBuffer<float> hidden;     // h = V x_l [B, rank]
    DeviceBuffer<float> hidden_gradient;
    DeviceBuffer<float> bias_sums;  // of the gradient of b, one row for each chunk
  };

  ConstMatrix Input(size_t l, const DenseForward& args) {
    return l == 0 ? ConstMatrix(args.x, args.x_stride)
                  : Matrix{layers_[l - 1].outputs.data(), shape_.stride};
  }
  // Our rows are padded with zeros.
  int64_t RoomOfInput(size_t l) const { return l == 0 ? 0 : shape_.stride; }
  static ColumnMajorProduct WithRooms(ColumnMajorProduct product, int64_t a, int64_t b, int64_t c) {
    product.a_room = a;
    product.b_room = b;
    product.c_room = c;
    return product;
  }
  Matrix Crossings(Layer& layer) const { return {layer.crossings.data(), shape_.stride}; }
  Matrix Hidden(Layer& layer) const { return {layer.hidden.data(), shape_.rank_stride}; }
  Matrix HiddenGradient(Layer& layer) const {
    return {layer.hidden_gradient.data(), shape_.rank_stride};
  }
  absl::Status Multiply(CudaStream stream, const ColumnMajorProduct& product) {
    return gemm_->Run(stream, product);
  }
  absl::Status LayerGradient(CudaStream beside, size_t l, const DenseForward& forward,
                             const DenseBackward& args);

  const CrossShape shape_;
  std::vector<Layer> layers_;
  std::shared_ptr<GemmCuda> gemm_;
  BesideWork beside_;  // gradients of weights and biases, a part each layer
};

absl::Status CrossMatrixCuda::Init(DensePrecision precision, CudaStream stream) {
  const bool is_tf32 = precision == DensePrecision::kTf32;
  HOTROW_ASSIGN_OR_RETURN(
      gemm_, GemmCuda::OfStream(is_tf32 ? GemmPrecision::kTf32 : GemmPrecision::kFp32, stream));
  HOTROW_RETURN_IF_ERROR(beside_.Init(gemm_, shape_.layers.size(), stream));
  layers_.resize(shape_.layers.size());
  const auto rows = [&](int64_t stride, DeviceBuffer<float>* buffer) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(*buffer,
                            DeviceBuffer<float>::Create(shape_.max_batch_size * stride, stream));
    return absl::OkStatus();
  };
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    static_cast<CrossLayerShape&>(layer) = shape_.layers[l];
    HOTROW_RETURN_IF_ERROR(rows(shape_.stride, &layer.crossings));
    if (l < shape_.last_layer()) {
      HOTROW_RETURN_IF_ERROR(rows(shape_.stride, &layer.outputs));
      // Products read what kernels leave as it is behind the columns.
      HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(
          layer.outputs.data(), 0, static_cast<size_t>(layer.outputs.bytes()), stream));
    }
    if (shape_.low_rank()) {
      HOTROW_RETURN_IF_ERROR(rows(shape_.rank_stride, &layer.hidden));
      HOTROW_RETURN_IF_ERROR(rows(shape_.rank_stride, &layer.hidden_gradient));
    }
    HOTROW_ASSIGN_OR_RETURN(
        layer.bias_sums,
        DeviceBuffer<float>::Create(ChunkSumsSize(shape_.max_batch_size, shape_.stride), stream));
  }
  return absl::OkStatus();
}

absl::Status CrossMatrixCuda::Forward(const ExecContext& ctx, const DenseForward& args) {
  const int64_t rows = args.batch_size;
  const int64_t width = shape_.width;
  HOTROW_RETURN_IF_ERROR(beside_.AwaitAll());
  if (rows == 0) return absl::OkStatus();
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    const ConstMatrix x = Input(l, args);
    const Matrix t = Crossings(layer);
    const float* const weights = args.parameters + layer.weight_offset;
    if (shape_.low_rank()) {
      const Matrix h = Hidden(layer);
      HOTROW_RETURN_IF_ERROR(
          Multiply(ctx.stream, WithRooms(LinearForward(rows, width, shape_.rank, x, weights, h), 0,
                                         RoomOfInput(l), shape_.rank_stride)));
      HOTROW_RETURN_IF_ERROR(Multiply(
          ctx.stream,
          WithRooms(LinearForward(rows, shape_.rank, width, h, args.parameters + layer.u_offset, t),
                    0, shape_.rank_stride, shape_.stride)));
    } else {
      HOTROW_RETURN_IF_ERROR(
          Multiply(ctx.stream, WithRooms(LinearForward(rows, width, width, x, weights, t), 0,
                                         RoomOfInput(l), shape_.stride)));
    }
    const Matrix y = l == shape_.last_layer() ? Matrix{args.y, args.y_stride}
                                              : Matrix{layer.outputs.data(), shape_.stride};
    CrossKernel<<<GridBlocks(rows, kThreadsPerBlock / kWarpThreads), kThreadsPerBlock, 0,
                  ctx.stream>>>(t, rows, width, args.parameters + layer.bias_offset,
                                ConstMatrix(args.x, args.x_stride), x, y, args.training);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
  }
  return absl::OkStatus();
}

// dy is d(loss)/d(x_{l+1}), then of x_l, which is that + W^T dt: products add to it. That of x_0
// goes to dx, which has collected the rest by then.
absl::Status CrossMatrixCuda::BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                                            const DenseBackward& args) {
  const int64_t rows = forward.batch_size;
  const int64_t width = shape_.width;
  HOTROW_RETURN_IF_ERROR(beside_.AwaitAll());
  if (rows == 0) return absl::OkStatus();
  const Matrix dy = {args.dy, args.dy_stride};
  const Matrix dx = {args.dx, args.dx_stride};
  for (size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    const Matrix dt = Crossings(layer);
    const int64_t blocks = CeilDiv(rows, kSumChunkRows) * CeilDiv(width, kSumChunkColumns);
    CrossGradKernel<<<GridBlocks(blocks, 1), kSumChunkColumns, 0, ctx.stream>>>(
        dy, ConstMatrix(forward.x, forward.x_stride), dt, rows, width, dx,
        /*adds_dx=*/dx.data != nullptr && l < shape_.last_layer(), /*ends_dx=*/l == 0,
        Matrix{layer.bias_sums.data(), shape_.stride});
    HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
    const Matrix to = l == 0 ? dx : dy;
    const float* const weights = args.parameters + layer.weight_offset;
    ConstMatrix gradient = dt;
    if (shape_.low_rank()) {
      HOTROW_RETURN_IF_ERROR(Multiply(
          ctx.stream,
          WithRooms(LinearInputGradient(rows, shape_.rank, width, dt,
                                        args.parameters + layer.u_offset, HiddenGradient(layer)),
                    0, shape_.stride, shape_.rank_stride)));
      gradient = HiddenGradient(layer);
    }
    HOTROW_RETURN_IF_ERROR(beside_.Run(
        ctx.stream, l, [&](CudaStream beside) { return LayerGradient(beside, l, forward, args); }));
    if (to.data == nullptr) break;
    HOTROW_RETURN_IF_ERROR(Multiply(
        ctx.stream,
        WithRooms(Added(LinearInputGradient(rows, width, shape_.low_rank() ? shape_.rank : width,
                                            gradient, weights, to)),
                  0, gradient.stride, 0)));
  }
  return absl::OkStatus();
}

absl::Status CrossMatrixCuda::LayerGradient(CudaStream beside, size_t l,
                                            const DenseForward& forward,
                                            const DenseBackward& args) {
  const int64_t rows = forward.batch_size;
  const int64_t width = shape_.width;
  const int64_t rank = shape_.rank;
  Layer& layer = layers_[l];
  const Matrix dt = Crossings(layer);
  float* const dw = args.parameter_gradients + layer.weight_offset;
  float* weights_end = dw + width * width;
  if (shape_.low_rank()) {
    float* const du = args.parameter_gradients + layer.u_offset;
    HOTROW_RETURN_IF_ERROR(
        gemm_->RunBeside(WithRooms(LinearWeightGradient(rows, rank, width, dt, Hidden(layer), du),
                                   shape_.rank_stride, shape_.stride, 0)));
    HOTROW_RETURN_IF_ERROR(gemm_->RunBeside(WithRooms(
        LinearWeightGradient(rows, width, rank, HiddenGradient(layer), Input(l, forward), dw),
        RoomOfInput(l), shape_.rank_stride, 0)));
    HOTROW_RETURN_IF_ERROR(ZeroFloatsCuda(beside, dw + width * rank, du - (dw + width * rank)));
    weights_end = du + width * rank;
  } else {
    HOTROW_RETURN_IF_ERROR(gemm_->RunBeside(
        WithRooms(LinearWeightGradient(rows, width, width, dt, Input(l, forward), dw),
                  RoomOfInput(l), shape_.stride, 0)));
  }
  float* const bias_gradient = args.parameter_gradients + layer.bias_offset;
  return SumChunksCuda(beside, {.sums = Matrix{layer.bias_sums.data(), shape_.stride},
                                .chunks = CeilDiv(rows, kSumChunkRows),
                                .columns = width,
                                .padded_columns = shape_.stride,
                                .result = bias_gradient,
                                .zeros = weights_end,
                                .num_zeros = bias_gradient - weights_end});
}

absl::Status CrossMatrixCuda::BackwardParameters(const ExecContext& ctx,
                                                 const DenseForward& forward,
                                                 const DenseBackward& args) {
  for (size_t l = layers_.size(); l-- > 0;) {
    HOTROW_RETURN_IF_ERROR(beside_.Await(ctx.stream, l));
    HOTROW_RETURN_IF_ERROR(LayerReady(layers_[l], args));
  }
  return absl::OkStatus();
}

int64_t CrossMatrixCuda::bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    bytes += layer.outputs.bytes() + layer.crossings.bytes() + layer.hidden.bytes() +
             layer.hidden_gradient.bytes() + layer.bias_sums.bytes();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseEngine>> NewCrossMatrixCuda(const CrossShape& shape,
                                                                DensePrecision precision,
                                                                CudaStream stream) {
  auto engine = std::make_unique<CrossMatrixCuda>(shape);
  HOTROW_RETURN_IF_ERROR(engine->Init(precision, stream));
  return engine;
}

}  // namespace hotrow::internal
