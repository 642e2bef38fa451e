#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/launch_impl.cuh"
#include "ops/layers/mlp_impl.h"
#include "ops/products/beside_work_impl.cuh"
#include "ops/products/column_sums_impl.h"
#include "ops/products/gemm_cuda_impl.h"
#include "ops/products/gemm_probe_impl.h"

// Each layer is a product that adds the bias and does ReLU and dropout, whose mask of bits the
// backward pass reads. Hidden rows are padded with zeros, which products write and read. The
// gradient of the bias is a separate sum: nothing says in which order cublasLt would add.
namespace hotrow::internal {
namespace {

constexpr char kName[] = "Mlp";

// Sums the columns of each chunk of kSumChunkRows rows, row after row: sums [chunks, columns]. A
// block takes kSumChunkColumns columns of a chunk, a thread one of them.
// Bytes: 4 a number
__global__ void SumRowsKernel(ConstMatrix dy, int64_t rows, int64_t columns, Matrix sums) {
  const int64_t tiles = CeilDiv(columns, kSumChunkColumns);
  const int64_t blocks = CeilDiv(rows, kSumChunkRows) * tiles;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t chunk = block / tiles;
    const int64_t i = block % tiles * kSumChunkColumns + threadIdx.x;
    if (i >= columns) continue;
    const int64_t begin = chunk * kSumChunkRows;
    const auto n = static_cast<int>(min(kSumChunkRows, rows - begin));
    float sum = 0;
    ThreadMove(
        n, [=](int r) { return dy.row(begin + r)[i]; }, [&sum](int, float g) { sum += g; });
    sums.row(chunk)[i] = sum;
  }
}

class MlpCuda : public DenseEngine {
 public:
  explicit MlpCuda(const MlpShape& shape) : shape_(shape) {}
  absl::Status Init(DensePrecision precision, CudaStream stream);

  absl::Status Forward(const ExecContext& ctx, const DenseForward& args) override;
  absl::Status BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                             const DenseBackward& args) override;
  absl::Status BackwardParameters(const ExecContext& ctx, const DenseForward& forward,
                                  const DenseBackward& args) override;
  int64_t bytes() const override;
  NumbersView Output(size_t l) const override {
    return {.data = layers_[l].outputs.data(),
            .columns = layers_[l].out,
            .stride = layers_[l].out_stride};
  }

 private:
  struct Layer : MlpLayer {
    DeviceBuffer<float> outputs;    // y_l [B, out] of hidden layers
    DeviceBuffer<uint32_t> mask;    // of ReLU: ColumnMajorProduct::mask
    DeviceBuffer<float> gradients;  // d(loss)/d(y_l), then of z_l; the last layer uses the caller's
    DeviceBuffer<float> bias_sums;  // column sums of the gradients of z_l, one row for each chunk
  };

  Matrix Kept(Layer& layer) const { return {layer.outputs.data(), layer.out_stride}; }
  ConstMatrix Input(size_t l, const DenseForward& args) {
    return l == 0 ? ConstMatrix(args.x, args.x_stride) : Kept(layers_[l - 1]);
  }
  Matrix OutputOf(Layer& layer, const DenseForward& args) const {
    return layer.last ? Matrix{args.y, args.y_stride} : Kept(layer);
  }
  static Matrix GradientOf(Layer& layer, const DenseBackward& args) {
    return layer.last ? Matrix{args.dy, args.dy_stride}
                      : Matrix{layer.gradients.data(), layer.out_stride};
  }
  absl::Status LayerGradient(CudaStream beside, size_t l, const DenseForward& forward,
                             const DenseBackward& args);

  const MlpShape shape_;
  std::vector<Layer> layers_;
  std::shared_ptr<GemmCuda> gemm_;
  BesideWork beside_;  // gradients of weights and biases, a part each layer
};

absl::Status MlpCuda::Init(DensePrecision precision, CudaStream stream) {
  const bool is_tf32 = precision == DensePrecision::kTf32;
  HOTROW_ASSIGN_OR_RETURN(
      gemm_, GemmCuda::OfStream(is_tf32 ? GemmPrecision::kTf32 : GemmPrecision::kFp32, stream));
  HOTROW_RETURN_IF_ERROR(beside_.Init(gemm_, shape_.layers.size(), stream));
  layers_.resize(shape_.layers.size());
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    static_cast<MlpLayer&>(layer) = shape_.layers[l];
    const int64_t activations = shape_.max_batch_size * layer.out_stride;
    if (layer.relu) {
      HOTROW_ASSIGN_OR_RETURN(layer.mask,
                              DeviceBuffer<uint32_t>::Create(
                                  shape_.max_batch_size * ReluMaskStride(layer.out), stream));
    }
    if (!layer.last) {
      HOTROW_ASSIGN_OR_RETURN(layer.outputs, DeviceBuffer<float>::Create(activations, stream));
      HOTROW_ASSIGN_OR_RETURN(layer.gradients, DeviceBuffer<float>::Create(activations, stream));
    }
    HOTROW_ASSIGN_OR_RETURN(layer.bias_sums,
                            DeviceBuffer<float>::Create(
                                ChunkSumsSize(shape_.max_batch_size, layer.out_stride), stream));
  }
  return absl::OkStatus();
}

absl::Status MlpCuda::Forward(const ExecContext& ctx, const DenseForward& args) {
  HOTROW_RETURN_IF_ERROR(beside_.AwaitAll());
  if (args.batch_size == 0) return absl::OkStatus();
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    const Matrix y = OutputOf(layer, args);
    ColumnMajorProduct product = LinearForward(args.batch_size, layer.in, layer.out, Input(l, args),
                                               args.parameters + layer.weight_offset, y);
    product.bias = args.parameters + layer.bias_offset;
    if (l > 0) product.b_room = layers_[l - 1].out_stride;
    if (!layer.last) product.c_room = layer.out_stride;
    if (layer.relu) {
      product.epilogue = GemmEpilogue::kRelu;
      product.mask = args.training ? layer.mask.data() : nullptr;
    }
    const DropoutArgs dropout = MlpDropout(shape_, layer, args, {});
    if (args.training && layer.dropout > 0) product.dropout = &dropout;
    HOTROW_RETURN_IF_ERROR(gemm_->Run(ctx.stream, product));
  }
  return absl::OkStatus();
}

absl::Status MlpCuda::BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                                    const DenseBackward& args) {
  const int64_t rows = forward.batch_size;
  HOTROW_RETURN_IF_ERROR(beside_.AwaitAll());
  if (rows == 0) return absl::OkStatus();
  if (Layer& last = layers_.back(); last.relu) {
    const ColumnMajorProduct cut = {.m = last.out,
                                    .n = rows,
                                    .c = args.dy,
                                    .ldc = args.dy_stride,
                                    .epilogue = GemmEpilogue::kReluGrad,
                                    .mask = last.mask.data()};
    HOTROW_RETURN_IF_ERROR(FinishProductCuda(ctx.stream, cut, GemmNumbers::kFloat));
  }
  for (size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    HOTROW_RETURN_IF_ERROR(beside_.Run(
        ctx.stream, l, [&](CudaStream beside) { return LayerGradient(beside, l, forward, args); }));
    if (l == 0 && args.dx == nullptr) break;
    const Matrix dx = l == 0 ? Matrix{args.dx, args.dx_stride} : GradientOf(layers_[l - 1], args);
    ColumnMajorProduct product =
        LinearInputGradient(rows, layer.in, layer.out, GradientOf(layer, args),
                            args.parameters + layer.weight_offset, dx);
    if (!layer.last) product.b_room = layer.out_stride;
    if (l == 0) {
      product.c_room = args.dx_columns;
      HOTROW_RETURN_IF_ERROR(gemm_->Run(ctx.stream, product));
      break;
    }
    Layer& below = layers_[l - 1];
    product.c_room = below.out_stride;
    product.epilogue = GemmEpilogue::kReluGrad;
    product.mask = below.mask.data();
    const DropoutArgs dropout = MlpDropout(shape_, below, forward, {});
    if (below.dropout > 0) product.dropout = &dropout;
    HOTROW_RETURN_IF_ERROR(gemm_->Run(ctx.stream, product));
  }
  return absl::OkStatus();
}

absl::Status MlpCuda::LayerGradient(CudaStream beside, size_t l, const DenseForward& forward,
                                    const DenseBackward& args) {
  const int64_t rows = forward.batch_size;
  Layer& layer = layers_[l];
  const Matrix dy = GradientOf(layer, args);
  const Matrix sums = {layer.bias_sums.data(), layer.out_stride};
  float* const weight_gradient = args.parameter_gradients + layer.weight_offset;
  ColumnMajorProduct product =
      LinearWeightGradient(rows, layer.in, layer.out, dy, Input(l, forward), weight_gradient);
  if (l > 0) product.a_room = layers_[l - 1].out_stride;
  if (!layer.last) product.b_room = layer.out_stride;
  HOTROW_RETURN_IF_ERROR(gemm_->RunBeside(product));
  const int64_t blocks = CeilDiv(rows, kSumChunkRows) * CeilDiv(layer.out, kSumChunkColumns);
  SumRowsKernel<<<GridBlocks(blocks, 1), kSumChunkColumns, 0, beside>>>(dy, rows, layer.out, sums);
  HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
  const int64_t weights = layer.in * layer.out;
  return SumChunksCuda(beside, {.sums = sums,
                                .chunks = CeilDiv(rows, kSumChunkRows),
                                .columns = layer.out,
                                .padded_columns = layer.out_stride,
                                .result = args.parameter_gradients + layer.bias_offset,
                                .zeros = weight_gradient + weights,
                                .num_zeros = layer.bias_offset - layer.weight_offset - weights});
}

absl::Status MlpCuda::BackwardParameters(const ExecContext& ctx, const DenseForward& forward,
                                         const DenseBackward& args) {
  for (size_t l = layers_.size(); l-- > 0;) {
    HOTROW_RETURN_IF_ERROR(beside_.Await(ctx.stream, l));
    HOTROW_RETURN_IF_ERROR(LayerReady(layers_[l], args));
  }
  return absl::OkStatus();
}

int64_t MlpCuda::bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    bytes += layer.outputs.bytes() + layer.mask.bytes() + layer.gradients.bytes() +
             layer.bias_sums.bytes();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseEngine>> NewMlpCuda(const MlpShape& shape,
                                                        DensePrecision precision,
                                                        CudaStream stream) {
  auto engine = std::make_unique<MlpCuda>(shape);
  HOTROW_RETURN_IF_ERROR(engine->Init(precision, stream));
  return engine;
}

}  // namespace hotrow::internal
