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
#include "ops/products/half_pairs_impl.cuh"

// Layers of kMatrix with factors of bf16 or fp16, on matrices as half_pairs_impl.cuh has them: the
// bias is a column of W, or of U. What goes from layer to layer stays fp32, as do x_0 and the
// gradients of both; t, which products write, is rounded.
namespace hotrow::internal {
namespace {

constexpr char kName[] = "CrossNetwork";

// y = x_0 o t + x; y may be x. Rounded, with ones behind it, it is the next layer's input.
// Bytes: 16 W a sample: t, x_0, x read, y, the next input written
__global__ void CrossPairsKernel(Pairs t, int64_t rows, int64_t columns, ConstMatrix x0,
                                 ConstMatrix x, Matrix y, Pairs next) {
  const int64_t words = next.data == nullptr ? CeilDiv(columns, 2) : next.stride;
  ForEachWord(rows, words, [=](int64_t r, int64_t w) {
    const float2 crossing =
        w < t.stride ? t.Unpack(t.row(r)[w]) : make_float2(0, 0);  // next has ones
    const auto at = [=](int64_t i, float z) {
      if (i >= columns) return i == OnesColumn(columns) ? 1.0f : 0.0f;
      const float sum = z * x0.row(r)[i] + x.row(r)[i];
      y.row(r)[i] = sum;
      return sum;
    };
    const float low = at(2 * w, crossing.x);
    const float high = at(2 * w + 1, crossing.y);
    if (next.data != nullptr) next.row(r)[w] = next.Pack(low, high);
  });
}

// With g = d(loss)/d(x_{l+1}): dx = g o t, added to what is there if adds_dx, and + g if ends_dx;
// dt = g o x_0 in the place of t.
// Bytes: 20 W a sample: g, x_0, t, dx read, t, dx written
__global__ void CrossPairsGradKernel(ConstMatrix g, ConstMatrix x0, Pairs t, int64_t rows,
                                     int64_t columns, Matrix dx, bool adds_dx, bool ends_dx) {
  ForEachWord(rows, CeilDiv(columns, 2), [=](int64_t r, int64_t w) {
    const float2 crossing = t.Unpack(t.row(r)[w]);
    const auto at = [=](int64_t i, float z) {
      if (i >= columns) return 0.0f;
      const float gradient = g.row(r)[i];
      if (dx.data != nullptr) {
        float share = gradient * z;
        if (adds_dx) share += dx.row(r)[i];
        dx.row(r)[i] = ends_dx ? share + gradient : share;
      }
      return gradient * x0.row(r)[i];
    };
    const float low = at(2 * w, crossing.x);
    const float high = at(2 * w + 1, crossing.y);
    t.row(r)[w] = t.Pack(low, high);
  });
}

class CrossMatrixHalfCuda : public DenseEngine {
 public:
  CrossMatrixHalfCuda(const CrossShape& shape, HalfFormat format)
      : shape_(shape),
        format_(format),
        in_stride_(PairsStrideWithOnes(shape.width)),
        t_stride_(PairsStride(shape.width)),
        h_stride_(PairsStrideWithOnes(shape.rank)),
        padded_width_(PaddedLine(shape.width)),
        padded_rank_(PaddedLine(shape.rank)) {}
  absl::Status Init(CudaStream stream);

  absl::Status Forward(const ExecContext& ctx, const DenseForward& args) override;
  absl::Status BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                             const DenseBackward& args) override;
  absl::Status BackwardParameters(const ExecContext& ctx, const DenseForward& forward,
                                  const DenseBackward& args) override;
  int64_t bytes() const override;
  NumbersView Output(size_t l) const override {
    if (l == shape_.last_layer()) return {};
    return {.data = layers_[l + 1].inputs.data(),
            .columns = shape_.width,
            .stride = in_stride_,
            .type = TypeOf(format_)};
  }

 private:
  struct Layer : CrossLayerShape {
    DeviceBuffer<uint32_t> inputs;           // x_l [B, in_stride_], ones behind W columns
    DeviceBuffer<uint32_t> weights;          // W and b, or V; then zeros [padded_, in_stride_]
    DeviceBuffer<uint32_t> u;                // U and b, then zeros [padded_width_, h_stride_]
    DeviceBuffer<uint32_t> crossings;        // t [B, t_stride_], and d(loss)/dt
    DeviceBuffer<uint32_t> hidden;           // h [B, h_stride_], ones behind rank columns
    DeviceBuffer<uint32_t> hidden_gradient;  // [B, h_stride_]
  };

  void PackWeights(const float* parameters, Layer& layer);
  absl::Status Multiply(CudaStream stream, const ColumnMajorProduct& product) {
    return gemm_->Run(stream, product);
  }
  absl::Status LayerGradient(CudaStream beside, size_t l, int64_t rows, const DenseBackward& args);

  Pairs PairsOf(DeviceBuffer<uint32_t>& buffer, int64_t stride) const {
    return internal::PairsOf(buffer, stride, format_);
  }

  const CrossShape shape_;
  const HalfFormat format_;
  const int64_t in_stride_, t_stride_, h_stride_;
  const int64_t padded_width_, padded_rank_;  // rows of weights, columns that products write
  std::vector<Layer> layers_;
  std::shared_ptr<GemmCuda> gemm_;
  std::vector<PackRowsArgs> packs_;  // of a pass, room for the call
  DeviceBuffer<float> outputs_;      // x_{l+1} [B, W] of the layer that is being made
  DeviceBuffer<float> gradient_;     // of W and b, or of U and b; of beside_
  BesideWork beside_;                // gradients of weights, a part each layer
};

absl::Status CrossMatrixHalfCuda::Init(CudaStream stream) {
  HOTROW_ASSIGN_OR_RETURN(gemm_, GemmCuda::OfStream(GemmPrecisionOf(format_), stream));
  HOTROW_RETURN_IF_ERROR(beside_.Init(gemm_, shape_.layers.size(), stream));
  const int64_t batch = shape_.max_batch_size;
  layers_.resize(shape_.layers.size());
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    static_cast<CrossLayerShape&>(layer) = shape_.layers[l];
    HOTROW_ASSIGN_OR_RETURN(layer.inputs, NewPairs(batch, in_stride_, stream));
    HOTROW_ASSIGN_OR_RETURN(layer.crossings, NewPairs(batch, t_stride_, stream));
    HOTROW_ASSIGN_OR_RETURN(
        layer.weights,
        NewPairs(shape_.low_rank() ? padded_rank_ : padded_width_, in_stride_, stream));
    if (!shape_.low_rank()) continue;
    HOTROW_ASSIGN_OR_RETURN(layer.u, NewPairs(padded_width_, h_stride_, stream));
    HOTROW_ASSIGN_OR_RETURN(layer.hidden, NewPairs(batch, h_stride_, stream));
    HOTROW_ASSIGN_OR_RETURN(layer.hidden_gradient, NewPairs(batch, h_stride_, stream));
    // Products leave what stands behind the columns as it is.
    HOTROW_RETURN_IF_ERROR(
        OnesPairsCuda(stream, batch, padded_rank_, PairsOf(layer.hidden, h_stride_)));
  }
  if (layers_.size() > 1) {
    HOTROW_ASSIGN_OR_RETURN(outputs_, DeviceBuffer<float>::Create(batch * shape_.stride, stream));
  }
  HOTROW_ASSIGN_OR_RETURN(
      gradient_, DeviceBuffer<float>::Create(
                     padded_width_ * (shape_.low_rank() ? h_stride_ : in_stride_), stream));
  return absl::OkStatus();
}

void CrossMatrixHalfCuda::PackWeights(const float* parameters, Layer& layer) {
  const float* const bias = parameters + layer.bias_offset;
  const int64_t width = shape_.width;
  // V has no bias: products read its W columns alone.
  packs_.push_back(
      {.from = {parameters + layer.weight_offset, width},
       .rows = shape_.low_rank() ? shape_.rank : width,
       .columns = width,
       .zero_rows = shape_.low_rank() ? padded_rank_ - shape_.rank : padded_width_ - width,
       .behind = shape_.low_rank() ? nullptr : bias,
       .to = PairsOf(layer.weights, in_stride_)});
  if (!shape_.low_rank()) return;
  packs_.push_back({.from = {parameters + layer.u_offset, shape_.rank},
                    .rows = width,
                    .columns = shape_.rank,
                    .zero_rows = padded_width_ - width,
                    .behind = bias,
                    .to = PairsOf(layer.u, h_stride_)});
}

absl::Status CrossMatrixHalfCuda::Forward(const ExecContext& ctx, const DenseForward& args) {
  const int64_t rows = args.batch_size;
  const int64_t width = shape_.width;
  HOTROW_RETURN_IF_ERROR(beside_.AwaitAll());
  if (rows == 0) return absl::OkStatus();
  const ConstMatrix x0(args.x, args.x_stride);
  packs_.clear();
  packs_.push_back(
      {.from = x0, .rows = rows, .columns = width, .to = PairsOf(layers_[0].inputs, in_stride_)});
  for (Layer& layer : layers_) PackWeights(args.parameters, layer);
  HOTROW_RETURN_IF_ERROR(PackRowsCuda(ctx.stream, packs_));
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    ColumnMajorProduct product = {.transpose_a = true,
                                  .m = padded_width_,
                                  .n = rows,
                                  .k = in_stride_,
                                  .a = layer.weights.data(),
                                  .lda = in_stride_,
                                  .b = layer.inputs.data(),
                                  .ldb = in_stride_,
                                  .c = layer.crossings.data(),
                                  .ldc = t_stride_,
                                  .half_result = true};
    if (shape_.low_rank()) {
      ColumnMajorProduct down = product;
      down.m = padded_rank_;
      down.k = padded_width_;
      down.c = layer.hidden.data();
      down.ldc = h_stride_;
      HOTROW_RETURN_IF_ERROR(Multiply(ctx.stream, down));
      product.k = h_stride_;
      product.a = layer.u.data();
      product.lda = h_stride_;
      product.b = layer.hidden.data();
      product.ldb = h_stride_;
    }
    HOTROW_RETURN_IF_ERROR(Multiply(ctx.stream, product));
    const Matrix between = {outputs_.data(), shape_.stride};
    const bool is_last = l == shape_.last_layer();
    CrossPairsKernel<<<BlocksOfRows(rows), kThreadsPerBlock, 0, ctx.stream>>>(
        PairsOf(layer.crossings, t_stride_), rows, width, x0, l == 0 ? x0 : ConstMatrix(between),
        is_last ? Matrix{args.y, args.y_stride} : between,
        is_last ? Pairs{} : PairsOf(layers_[l + 1].inputs, in_stride_));
    HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
  }
  return absl::OkStatus();
}

// dy is d(loss)/d(x_{l+1}), then of x_l, which is that + W^T dt: products add to it. That of x_0
// goes to dx, which has collected the rest by then.
absl::Status CrossMatrixHalfCuda::BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                                                const DenseBackward& args) {
  const int64_t rows = forward.batch_size;
  const int64_t width = shape_.width;
  HOTROW_RETURN_IF_ERROR(beside_.AwaitAll());
  if (rows == 0) return absl::OkStatus();
  const Matrix dy = {args.dy, args.dy_stride};
  const Matrix dx = {args.dx, args.dx_stride};
  for (size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    CrossPairsGradKernel<<<BlocksOfRows(rows), kThreadsPerBlock, 0, ctx.stream>>>(
        dy, ConstMatrix(forward.x, forward.x_stride), PairsOf(layer.crossings, t_stride_), rows,
        width, dx, /*adds_dx=*/l < shape_.last_layer(), /*ends_dx=*/l == 0);
    HOTROW_RETURN_IF_ERROR(LastLaunch(kName));
    const Matrix to = l == 0 ? dx : dy;
    ColumnMajorProduct product = Added({.m = width,
                                        .n = rows,
                                        .k = padded_width_,
                                        .a = layer.weights.data(),
                                        .lda = in_stride_,
                                        .b = layer.crossings.data(),
                                        .ldb = t_stride_,
                                        .c = to.data,
                                        .ldc = to.stride,
                                        .a_room = in_stride_});
    if (shape_.low_rank()) {
      HOTROW_RETURN_IF_ERROR(Multiply(ctx.stream, {.m = padded_rank_,
                                                   .n = rows,
                                                   .k = padded_width_,
                                                   .a = layer.u.data(),
                                                   .lda = h_stride_,
                                                   .b = layer.crossings.data(),
                                                   .ldb = t_stride_,
                                                   .c = layer.hidden_gradient.data(),
                                                   .ldc = h_stride_,
                                                   .half_result = true}));
      product.k = padded_rank_;
      product.b = layer.hidden_gradient.data();
      product.ldb = h_stride_;
    }
    HOTROW_RETURN_IF_ERROR(beside_.Run(
        ctx.stream, l, [&](CudaStream beside) { return LayerGradient(beside, l, rows, args); }));
    if (to.data == nullptr) break;
    HOTROW_RETURN_IF_ERROR(Multiply(ctx.stream, product));
  }
  return absl::OkStatus();
}

absl::Status CrossMatrixHalfCuda::LayerGradient(CudaStream beside, size_t l, int64_t rows,
                                                const DenseBackward& args) {
  Layer& layer = layers_[l];
  const int64_t width = shape_.width;
  // The map with the bias: W, or U.
  const bool low_rank = shape_.low_rank();
  const int64_t in = low_rank ? shape_.rank : width;
  const int64_t stride = low_rank ? h_stride_ : in_stride_;
  const int64_t offset = low_rank ? layer.u_offset : layer.weight_offset;
  HOTROW_RETURN_IF_ERROR(
      gemm_->RunBeside({.transpose_b = true,
                        .m = stride,
                        .n = padded_width_,
                        .k = rows,
                        .a = low_rank ? layer.hidden.data() : layer.inputs.data(),
                        .lda = stride,
                        .b = layer.crossings.data(),
                        .ldb = t_stride_,
                        .c = gradient_.data(),
                        .ldc = stride}));
  HOTROW_RETURN_IF_ERROR(
      UnpackGradientCuda(beside, {.from = {gradient_.data(), stride},
                                  .in = in,
                                  .out = width,
                                  .weights = args.parameter_gradients + offset,
                                  .biases = args.parameter_gradients + layer.bias_offset,
                                  .weights_end = layer.bias_offset - offset,
                                  .biases_end = shape_.stride}));
  if (!low_rank) return absl::OkStatus();
  float* const dv = args.parameter_gradients + layer.weight_offset;
  const int64_t size = shape_.rank * width;
  HOTROW_RETURN_IF_ERROR(gemm_->RunBeside({.transpose_b = true,
                                           .m = width,
                                           .n = shape_.rank,
                                           .k = rows,
                                           .a = layer.inputs.data(),
                                           .lda = in_stride_,
                                           .b = layer.hidden_gradient.data(),
                                           .ldb = h_stride_,
                                           .c = dv,
                                           .ldc = width,
                                           .a_room = in_stride_,
                                           .b_room = h_stride_}));
  return ZeroFloatsCuda(beside, dv + size, layer.u_offset - layer.weight_offset - size);
}

absl::Status CrossMatrixHalfCuda::BackwardParameters(const ExecContext& ctx,
                                                     const DenseForward& forward,
                                                     const DenseBackward& args) {
  for (size_t l = layers_.size(); l-- > 0;) {
    HOTROW_RETURN_IF_ERROR(beside_.Await(ctx.stream, l));
    HOTROW_RETURN_IF_ERROR(LayerReady(layers_[l], args));
  }
  return absl::OkStatus();
}

int64_t CrossMatrixHalfCuda::bytes() const {
  int64_t bytes = outputs_.bytes() + gradient_.bytes();
  for (const Layer& layer : layers_) {
    bytes += layer.inputs.bytes() + layer.weights.bytes() + layer.u.bytes() +
             layer.crossings.bytes() + layer.hidden.bytes() + layer.hidden_gradient.bytes();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseEngine>> NewCrossMatrixHalfCuda(const CrossShape& shape,
                                                                    DensePrecision precision,
                                                                    CudaStream stream) {
  auto engine = std::make_unique<CrossMatrixHalfCuda>(shape, HalfFormatOf(precision));
  HOTROW_RETURN_IF_ERROR(engine->Init(stream));
  return engine;
}

}  // namespace hotrow::internal
