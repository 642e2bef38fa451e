#include <algorithm>
#include <utility>

#include "base/buffer.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/layers/dropout_impl.h"
#include "ops/layers/mlp_impl.h"
#include "ops/products/gemm_impl.h"
#include "ops/vec8_impl.h"

// How the work is cut. Rows of a batch are independent in both passes, so a chunk of rows goes
// through all layers on one thread: its activations stay in that core's L2 cache from the product
// that makes them to the one that reads them, bias and ReLU cost no trip to memory, and a pass is
// one parallel loop however many layers there are. Weight gradients sum over the batch; there the
// pieces are blocks of the gradient matrices of all layers, in one loop again.
//
// Why dnnl_sgemm and not oneDNN's inner-product primitives (measured on two Zen 4 cores with the
// layers of DLRM, of 112 GFLOP/s that a core reaches on a large product): the backward products run
// at 113-115 either way. Forward, brgemm with blocked weights and fused ReLU reaches 115, sgemm
// with weights transposed once per pass and our own bias and ReLU 112. For that 1 % of a step sgemm
// takes any row stride and any batch size as they come; the primitives need one object for each
// batch size and fall to their reference loops, 500 times slower, when rows are padded.
namespace hotrow::internal {
namespace {

// y[r] = max(y[r] + bias, 0), or without the maximum.
template <bool kRelu>
void AddBias(const Matrix& y, int64_t begin, int64_t end, const float* bias, int64_t columns) {
  for (int64_t r = begin; r < end; ++r) {
    float* const row = y.row(r);
    ForEachVec8(columns, [&](int64_t i, auto lanes) {
      const Vec8 z = LoadLanes(row + i, lanes) + LoadLanes(bias + i, lanes);
      StoreLanes(kRelu ? Vec8::Relu(z) : z, row + i, lanes);
    });
  }
}

// Sets dy to zero where ReLU's output y was zero (if kRelu), and sums the columns of the rows
// [begin, end) into sum[columns], row after row.
template <bool kRelu>
void MaskAndSumColumns(const ConstMatrix& y, const Matrix& dy, int64_t begin, int64_t end,
                       int64_t columns, float* sum) {
  std::fill_n(sum, columns, 0.0f);
  for (int64_t r = begin; r < end; ++r) {
    float* const row = dy.row(r);
    const float* const output = kRelu ? y.row(r) : nullptr;
    ForEachVec8(columns, [&](int64_t i, auto lanes) {
      Vec8 g = LoadLanes(row + i, lanes);
      if constexpr (kRelu) {
        g = Vec8::ReluGrad(LoadLanes(output + i, lanes), g);
        StoreLanes(g, row + i, lanes);
      }
      StoreLanes(LoadLanes(sum + i, lanes) + g, sum + i, lanes);
    });
  }
}

class MlpCpu : public DenseEngine {
 public:
  explicit MlpCpu(const MlpShape& shape) : shape_(shape) {}
  absl::Status Init();

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
    Linear linear;
    HostBuffer<float> outputs;    // y_l [B, out]; the last layer keeps it only if it has ReLU
    HostBuffer<float> gradients;  // d(loss)/d(y_l), then of z_l; the last layer uses the caller's
    HostBuffer<float> bias_sums;  // column sums of the gradients of z_l, one row for each chunk
  };

  ConstMatrix Input(size_t l, const DenseForward& args) const {
    return l == 0 ? ConstMatrix(args.x, args.x_stride)
                  : ConstMatrix(layers_[l - 1].outputs.data(), layers_[l - 1].out_stride);
  }
  // Where layer l writes its output, or finds its gradient.
  static Matrix OutputOf(Layer& layer, const DenseForward& args) {
    return layer.last ? Matrix{args.y, args.y_stride}
                      : Matrix{layer.outputs.data(), layer.out_stride};
  }
  static Matrix GradientOf(Layer& layer, const DenseBackward& args) {
    return layer.last ? Matrix{args.dy, args.dy_stride}
                      : Matrix{layer.gradients.data(), layer.out_stride};
  }

  absl::Status ForwardRows(const DenseForward& args, bool transposed, int64_t begin, int64_t end);
  absl::Status BackwardRows(const DenseForward& forward, const DenseBackward& args, int64_t begin,
                            int64_t end);

  const MlpShape shape_;
  std::vector<Layer> layers_;
  WeightBlocks blocks_;            // of all layers
  int64_t transposed_number_ = 0;  // of the parameters that were transposed
};

absl::Status MlpCpu::Init() {
  const int64_t chunks = CeilDiv(shape_.max_batch_size, kGemmChunkRows);
  std::vector<const Linear*> linears;
  layers_.resize(shape_.layers.size());
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    static_cast<MlpLayer&>(layer) = shape_.layers[l];
    HOTROW_RETURN_IF_ERROR(layer.linear.Init(layer.in, layer.out));
    const int64_t activations = shape_.max_batch_size * layer.out_stride;
    if (layer.relu) {
      HOTROW_ASSIGN_OR_RETURN(layer.outputs,
                              HostBuffer<float>::Create(activations, HugePages::kTry));
    }
    if (!layer.last) {
      HOTROW_ASSIGN_OR_RETURN(layer.gradients,
                              HostBuffer<float>::Create(activations, HugePages::kTry));
    }
    HOTROW_ASSIGN_OR_RETURN(layer.bias_sums, HostBuffer<float>::Create(chunks * layer.out_stride));
    linears.push_back(&layer.linear);
  }
  blocks_ = CutWeights(linears);
  return absl::OkStatus();
}

absl::Status MlpCpu::ForwardRows(const DenseForward& args, bool transposed, int64_t begin,
                                 int64_t end) {
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    const Matrix y = OutputOf(layer, args);
    HOTROW_RETURN_IF_ERROR(layer.linear.Forward(
        Input(l, args), args.parameters + layer.weight_offset, transposed, begin, end, y));
    const float* const bias = args.parameters + layer.bias_offset;
    if (layer.relu) {
      AddBias<true>(y, begin, end, bias, layer.out);
    } else {
      AddBias<false>(y, begin, end, bias, layer.out);
    }
    if (args.training && layer.dropout > 0) {
      DropoutRowsCpu(MlpDropout(shape_, layer, args, y), begin, end);
    }
    if (args.training && layer.last && layer.relu) {
      // The caller may change y before Backward, which needs to know where it was zero.
      for (int64_t r = begin; r < end; ++r) {
        std::copy_n(y.row(r), layer.out, layer.outputs.data() + r * layer.out_stride);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status MlpCpu::Forward(const ExecContext& ctx, const DenseForward& args) {
  const bool transposed = args.batch_size >= kTransposeMinRows;
  if (transposed && NewParameters(args, &transposed_number_)) {
    for (Layer& layer : layers_) {
      layer.linear.Transpose(ctx.pool, args.parameters + layer.weight_offset);
    }
  }
  FirstError error;
  ParallelFor(ctx.pool, args.batch_size, kGemmChunkRows, [&](int64_t begin, int64_t end) {
    const ProductScope scope;
    error.Take(ForwardRows(args, transposed, begin, end));
  });
  return error.ToStatus();
}

absl::Status MlpCpu::BackwardRows(const DenseForward& forward, const DenseBackward& args,
                                  int64_t begin, int64_t end) {
  for (size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    const Matrix dy = GradientOf(layer, args);
    if (layer.dropout > 0) DropoutRowsCpu(MlpDropout(shape_, layer, forward, dy), begin, end);
    float* const sum = layer.bias_sums.data() + begin / kGemmChunkRows * layer.out_stride;
    const ConstMatrix y(layer.outputs.data(), layer.out_stride);
    if (layer.relu) {
      MaskAndSumColumns<true>(y, dy, begin, end, layer.out, sum);
    } else {
      MaskAndSumColumns<false>(y, dy, begin, end, layer.out, sum);
    }
    if (l == 0 && args.dx == nullptr) break;
    const Matrix dx = l == 0 ? Matrix{args.dx, args.dx_stride} : GradientOf(layers_[l - 1], args);
    HOTROW_RETURN_IF_ERROR(layer.linear.InputGradient(dy, args.parameters + layer.weight_offset,
                                                      begin, end, /*add=*/false, dx));
  }
  return absl::OkStatus();
}

absl::Status MlpCpu::BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                                   const DenseBackward& args) {
  FirstError error;
  ParallelFor(ctx.pool, forward.batch_size, kGemmChunkRows, [&](int64_t begin, int64_t end) {
    const ProductScope scope;
    error.Take(BackwardRows(forward, args, begin, end));
  });
  return error.ToStatus();
}

absl::Status MlpCpu::BackwardParameters(const ExecContext& ctx, const DenseForward& forward,
                                        const DenseBackward& args) {
  std::function<absl::Status(size_t)> ready;
  if (args.gradients_ready != nullptr) {
    ready = [&](size_t l) { return LayerReady(layers_[l], args); };
  }
  std::vector<BiasSums> sums;
  for (const Layer& layer : layers_) sums.push_back({layer.bias_sums.data(), layer.out_stride});
  FinishBiasGradients(shape_, sums, forward.batch_size, args.parameter_gradients);
  return RunWeightBlocks(
      ctx.pool, blocks_,
      [&](const WeightBlock& block) {
        Layer& layer = layers_[block.linear];
        return WeightGradient(layer.linear, block, GradientOf(layer, args),
                              Input(block.linear, forward), forward.batch_size,
                              args.parameter_gradients + layer.weight_offset);
      },
      ready);
}

int64_t MlpCpu::bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    bytes += layer.outputs.bytes() + layer.gradients.bytes() + layer.linear.transposed.bytes() +
             layer.bias_sums.bytes();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseEngine>> NewMlpCpu(const MlpShape& shape) {
  auto engine = std::make_unique<MlpCpu>(shape);
  HOTROW_RETURN_IF_ERROR(engine->Init());
  return engine;
}

}  // namespace hotrow::internal
