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
#include "ops/layers/mlp_impl.h"
#include "ops/products/beside_work_impl.cuh"
#include "ops/products/gemm_cuda_impl.h"
#include "ops/products/gemm_probe_impl.h"
#include "ops/products/half_pairs_impl.cuh"

// Layers in bf16 or fp16 with sums in fp32, on matrices as half_pairs_impl.cuh has them. Products
// add biases and do ReLU, dropout and their gradient, which go from one to the other as a mask of
// bits.
namespace hotrow::internal {
namespace {

constexpr char kName[] = "Mlp";

// The gradient behind ReLU, rounded, from that before it. mask: as FinishProductCuda leaves it.
// Bytes: 6 a number and a bit: gradient, mask read, gradient written
__global__ void PackReluGradKernel(ConstMatrix dy, const uint32_t* mask, int64_t rows,
                                   int64_t columns, Pairs gradient) {
  const int64_t mask_stride = ReluMaskStride(columns);
  ForEachWord(rows, gradient.stride, [=](int64_t r, int64_t w) {
    const uint32_t* const bits = mask + r * mask_stride;
    const auto at = [=](int64_t c) {
      return c < columns && (bits[c / 32] >> (c % 32) & 1) != 0 ? dy.row(r)[c] : 0.0f;
    };
    gradient.row(r)[w] = gradient.Pack(at(2 * w), at(2 * w + 1));
  });
}

class MlpHalfCuda : public DenseEngine {
 public:
  MlpHalfCuda(const MlpShape& shape, HalfFormat format) : shape_(shape), format_(format) {}
  absl::Status Init(CudaStream stream);

  absl::Status Forward(const ExecContext& ctx, const DenseForward& args) override;
  absl::Status BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                             const DenseBackward& args) override;
  absl::Status BackwardParameters(const ExecContext& ctx, const DenseForward& forward,
                                  const DenseBackward& args) override;
  int64_t bytes() const override;
  NumbersView Output(size_t l) const override {
    if (layers_[l].last) return {};
    return {.data = layers_[l + 1].inputs.data(),
            .columns = layers_[l].out,
            .stride = layers_[l + 1].in_stride,
            .type = TypeOf(format_)};
  }

 private:
  struct Layer : MlpLayer {
    int64_t in_stride = 0;             // of inputs and weights
    int64_t grad_stride = 0;           // of outputs that are kept, and of gradients
    int64_t padded_out = 0;            // rows of weights, columns that products write
    DeviceBuffer<uint32_t> inputs;     // x_l [B, in_stride]
    DeviceBuffer<uint32_t> weights;    // W and b, then zeros [padded_out, in_stride]
    DeviceBuffer<uint32_t> gradients;  // of z_l [B, grad_stride]
    DeviceBuffer<uint32_t> mask;       // of ReLU: ColumnMajorProduct::mask
  };

  absl::Status WeightGradient(CudaStream beside, Layer& layer, int64_t rows, float* gradients);

  Pairs PairsOf(DeviceBuffer<uint32_t>& buffer, int64_t stride) const {
    return internal::PairsOf(buffer, stride, format_);
  }

  const MlpShape shape_;
  const HalfFormat format_;
  std::vector<Layer> layers_;
  std::shared_ptr<GemmCuda> gemm_;
  std::vector<PackRowsArgs> packs_;         // of the weights, room for the call
  DeviceBuffer<float> parameter_gradient_;  // of a layer, [padded_out, in_stride]; of beside_
  BesideWork beside_;                       // gradients of weights, a part each layer
};

absl::Status MlpHalfCuda::Init(CudaStream stream) {
  HOTROW_ASSIGN_OR_RETURN(gemm_, GemmCuda::OfStream(GemmPrecisionOf(format_), stream));
  HOTROW_RETURN_IF_ERROR(beside_.Init(gemm_, shape_.layers.size(), stream));
  layers_.resize(shape_.layers.size());
  int64_t largest = 0;
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    static_cast<MlpLayer&>(layer) = shape_.layers[l];
    layer.in_stride = PairsStrideWithOnes(layer.in);
    layer.grad_stride = PairsStride(layer.out);
    layer.padded_out = PaddedLine(layer.out);
    largest = std::max(largest, layer.padded_out * layer.in_stride);
    const auto rows = [&](int64_t count, int64_t columns) {
      return NewPairs(count, columns, stream);
    };
    HOTROW_ASSIGN_OR_RETURN(layer.inputs, rows(shape_.max_batch_size, layer.in_stride));
    HOTROW_ASSIGN_OR_RETURN(layer.weights, rows(layer.padded_out, layer.in_stride));
    HOTROW_ASSIGN_OR_RETURN(layer.gradients, rows(shape_.max_batch_size, layer.grad_stride));
    HOTROW_RETURN_IF_ERROR(OnesPairsCuda(stream, shape_.max_batch_size, OnesColumn(layer.in),
                                         PairsOf(layer.inputs, layer.in_stride)));
    if (!layer.relu) continue;
    HOTROW_ASSIGN_OR_RETURN(
        layer.mask,
        DeviceBuffer<uint32_t>::Create(shape_.max_batch_size * ReluMaskStride(layer.out), stream));
  }
  HOTROW_ASSIGN_OR_RETURN(parameter_gradient_, DeviceBuffer<float>::Create(largest, stream));
  return absl::OkStatus();
}

absl::Status MlpHalfCuda::Forward(const ExecContext& ctx, const DenseForward& args) {
  const int64_t rows = args.batch_size;
  HOTROW_RETURN_IF_ERROR(beside_.AwaitAll());
  if (rows == 0) return absl::OkStatus();
  packs_.clear();
  for (Layer& layer : layers_) {
    packs_.push_back({.from = {args.parameters + layer.weight_offset, layer.in},
                      .rows = layer.out,
                      .columns = layer.in,
                      .zero_rows = layer.padded_out - layer.out,
                      .behind = args.parameters + layer.bias_offset,
                      .to = PairsOf(layer.weights, layer.in_stride)});
  }
  Layer& first = layers_.front();
  packs_.push_back({.from = {args.x, args.x_stride},
                    .rows = rows,
                    .columns = first.in,
                    .to = PairsOf(first.inputs, first.in_stride)});
  HOTROW_RETURN_IF_ERROR(PackRowsCuda(ctx.stream, packs_));
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    ColumnMajorProduct product = {.transpose_a = true,
                                  .m = layer.out,
                                  .n = rows,
                                  .k = layer.in_stride,
                                  .a = layer.weights.data(),
                                  .lda = layer.in_stride,
                                  .b = layer.inputs.data(),
                                  .ldb = layer.in_stride,
                                  .c = args.y,
                                  .ldc = args.y_stride};
    if (layer.last) {
      HOTROW_RETURN_IF_ERROR(gemm_->Run(ctx.stream, product));
      if (!layer.relu) break;
      // By itself: in 16 bits ReLU is no part of a product.
      product.epilogue = GemmEpilogue::kRelu;
      product.mask = args.training ? layer.mask.data() : nullptr;
      HOTROW_RETURN_IF_ERROR(FinishProductCuda(ctx.stream, product, GemmNumbers::kFloat));
      break;
    }
    Layer& next = layers_[l + 1];
    product.m = layer.padded_out;
    product.c = next.inputs.data();
    product.ldc = next.in_stride;
    product.half_result = true;
    product.epilogue = GemmEpilogue::kRelu;
    product.mask = args.training ? layer.mask.data() : nullptr;
    const DropoutArgs dropout = MlpDropout(shape_, layer, args, {});
    if (args.training && layer.dropout > 0) product.dropout = &dropout;
    HOTROW_RETURN_IF_ERROR(gemm_->Run(ctx.stream, product));
  }
  return absl::OkStatus();
}

absl::Status MlpHalfCuda::BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                                        const DenseBackward& args) {
  const int64_t rows = forward.batch_size;
  HOTROW_RETURN_IF_ERROR(beside_.AwaitAll());
  if (rows == 0) return absl::OkStatus();
  Layer& last = layers_.back();
  const Pairs last_gradient = PairsOf(last.gradients, last.grad_stride);
  if (last.relu) {
    PackReluGradKernel<<<BlocksOfRows(rows), kThreadsPerBlock, 0, ctx.stream>>>(
        ConstMatrix(args.dy, args.dy_stride), last.mask.data(), rows, last.out, last_gradient);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
  } else {
    const PackRowsArgs pack = {
        .from = {args.dy, args.dy_stride}, .rows = rows, .columns = last.out, .to = last_gradient};
    HOTROW_RETURN_IF_ERROR(PackRowsCuda(ctx.stream, pack));
  }
  for (size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    HOTROW_RETURN_IF_ERROR(beside_.Run(ctx.stream, l, [&](CudaStream beside) {
      return WeightGradient(beside, layer, rows, args.parameter_gradients);
    }));
    if (l == 0 && args.dx == nullptr) break;
    ColumnMajorProduct product = {.m = layer.in,
                                  .n = rows,
                                  .k = layer.padded_out,
                                  .a = layer.weights.data(),
                                  .lda = layer.in_stride,
                                  .b = layer.gradients.data(),
                                  .ldb = layer.grad_stride,
                                  .c = args.dx,
                                  .ldc = args.dx_stride,
                                  .a_room = layer.in_stride};
    if (l == 0) {
      product.c_room = args.dx_columns;
      HOTROW_RETURN_IF_ERROR(gemm_->Run(ctx.stream, product));
      break;
    }
    Layer& below = layers_[l - 1];
    product.m = below.padded_out;
    product.c = below.gradients.data();
    product.ldc = below.grad_stride;
    product.half_result = true;
    product.epilogue = GemmEpilogue::kReluGrad;
    product.mask = below.mask.data();
    const DropoutArgs dropout = MlpDropout(shape_, below, forward, {});
    if (below.dropout > 0) product.dropout = &dropout;
    HOTROW_RETURN_IF_ERROR(gemm_->Run(ctx.stream, product));
  }
  return absl::OkStatus();
}

absl::Status MlpHalfCuda::WeightGradient(CudaStream beside, Layer& layer, int64_t rows,
                                         float* gradients) {
  HOTROW_RETURN_IF_ERROR(gemm_->RunBeside({.transpose_b = true,
                                           .m = layer.in_stride,
                                           .n = layer.padded_out,
                                           .k = rows,
                                           .a = layer.inputs.data(),
                                           .lda = layer.in_stride,
                                           .b = layer.gradients.data(),
                                           .ldb = layer.grad_stride,
                                           .c = parameter_gradient_.data(),
                                           .ldc = layer.in_stride}));
  return UnpackGradientCuda(beside, {.from = {parameter_gradient_.data(), layer.in_stride},
                                     .in = layer.in,
                                     .out = layer.out,
                                     .weights = gradients + layer.weight_offset,
                                     .biases = gradients + layer.bias_offset,
                                     .weights_end = layer.bias_offset - layer.weight_offset,
                                     .biases_end = layer.out_stride});
}

absl::Status MlpHalfCuda::BackwardParameters(const ExecContext& ctx, const DenseForward& forward,
                                             const DenseBackward& args) {
  for (size_t l = layers_.size(); l-- > 0;) {
    HOTROW_RETURN_IF_ERROR(beside_.Await(ctx.stream, l));
    HOTROW_RETURN_IF_ERROR(LayerReady(layers_[l], args));
  }
  return absl::OkStatus();
}

int64_t MlpHalfCuda::bytes() const {
  int64_t bytes = parameter_gradient_.bytes();
  for (const Layer& layer : layers_) {
    bytes +=
        layer.inputs.bytes() + layer.weights.bytes() + layer.gradients.bytes() + layer.mask.bytes();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseEngine>> NewMlpHalfCuda(const MlpShape& shape,
                                                            DensePrecision precision,
                                                            CudaStream stream) {
  auto engine = std::make_unique<MlpHalfCuda>(shape, HalfFormatOf(precision));
  HOTROW_RETURN_IF_ERROR(engine->Init(stream));
  return engine;
}

}  // namespace hotrow::internal
