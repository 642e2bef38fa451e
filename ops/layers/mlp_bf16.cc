#include <algorithm>
#include <utility>

#include "base/buffer.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/layers/dropout_impl.h"
#include "ops/layers/mlp_impl.h"
#include "ops/products/bf16_gemm_impl.h"

// The work is cut as in mlp_cpu.cc: a chunk of rows goes through all layers on one thread, and
// blocks of weight gradients are one more loop. What differs: what lies between two layers is bf16,
// the product itself adds the bias, and each chunk is laid out for the weight gradients while it is
// in the cache. ReLU is a loop of ours: that of oneDNN 2.6 makes zero of a NaN, and training that
// has diverged would go on.
namespace hotrow::internal {
namespace {

using Lease = PanelProducts::Lease;

class MlpBf16 : public DenseEngine {
 public:
  explicit MlpBf16(const MlpShape& shape) : shape_(shape) {}
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
            .stride = layers_[l].linear.out_padded(),
            .type = NumbersView::Type::kBf16};
  }

 private:
  struct Layer : MlpLayer {
    Bf16Linear linear;
    HostBuffer<Bf16> outputs;     // y_l [B, padded out], dense; of the last layer only with ReLU
    HostBuffer<float> bias_sums;  // column sums of the gradients of z_l, one row for each chunk
  };

  absl::Status ForwardRows(const DenseForward& args, int64_t begin, int64_t end,
                           ProductScratch* scratch);
  absl::Status BackwardRows(const DenseForward& forward, const DenseBackward& args, int64_t begin,
                            int64_t end, ProductScratch* scratch);
  // Dropout of a chunk of a layer's output, or of its gradient, as floats.
  void Drop(const Layer& layer, const DenseForward& args, int64_t begin, int64_t end,
            float* chunk) const;

  const MlpShape shape_;
  std::vector<Layer> layers_;
  WeightBlocks blocks_;
  int64_t widest_ = 0;           // padded columns
  int64_t prepared_number_ = 0;  // of the parameters that were rounded
  PanelProducts products_;
};

absl::Status MlpBf16::Init() {
  const int64_t chunks = CeilDiv(shape_.max_batch_size, kGemmChunkRows);
  std::vector<const Bf16Linear*> linears;
  layers_.resize(shape_.layers.size());
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    static_cast<MlpLayer&>(layer) = shape_.layers[l];
    HOTROW_RETURN_IF_ERROR(layer.linear.Init(layer.in, layer.out, shape_.max_batch_size));
    const int64_t columns = layer.linear.out_padded();
    if (layer.relu) {
      HOTROW_ASSIGN_OR_RETURN(
          layer.outputs,
          HostBuffer<Bf16>::Create(chunks * kGemmChunkRows * columns, HugePages::kTry));
    }
    HOTROW_ASSIGN_OR_RETURN(layer.bias_sums, HostBuffer<float>::Create(chunks * columns));
    widest_ = std::max({widest_, columns, layer.linear.in_padded()});
    linears.push_back(&layer.linear);
  }
  blocks_ = CutWeights(linears);
  return absl::OkStatus();
}

void MlpBf16::Drop(const Layer& layer, const DenseForward& args, int64_t begin, int64_t end,
                   float* chunk) const {
  DropoutArgs dropout = MlpDropout(shape_, layer, args, {chunk, layer.linear.out_padded()});
  dropout.first_row += begin;
  dropout.rows = end - begin;
  DropoutRowsCpu(dropout, 0, dropout.rows);
}

absl::Status MlpBf16::ForwardRows(const DenseForward& args, int64_t begin, int64_t end,
                                  ProductScratch* scratch) {
  // In training the gradients of weights read whole chunks. Rows behind the batch are those of an
  // input of zeros; their gradients are zero.
  const int64_t rows = args.training ? kGemmChunkRows : RoundUp(end - begin, kPanelRows);
  HOTROW_ASSIGN_OR_RETURN(Bf16* const input,
                          ProductScratch::Take(kGemmChunkRows * widest_, &scratch->rows[0]));
  HOTROW_ASSIGN_OR_RETURN(float* const floats,
                          ProductScratch::Take(kGemmChunkRows * widest_, &scratch->floats));
  ToBf16(args.x + begin * args.x_stride, args.x_stride, end - begin, layers_[0].in, rows,
         layers_[0].linear.in_padded(), input);
  const Bf16* x = input;
  for (Layer& layer : layers_) {
    const int64_t columns = layer.linear.out_padded();
    Bf16* const y = layer.relu ? layer.outputs.data() + begin * columns : nullptr;
    const bool drops = args.training && layer.dropout > 0;
    const bool as_float = layer.last || drops;
    if (args.training) layer.linear.KeepInput(x, begin);
    void* const result = as_float ? static_cast<void*>(floats) : static_cast<void*>(y);
    HOTROW_RETURN_IF_ERROR(layer.linear.Forward(&products_, x, rows, as_float, result, scratch));
    if (layer.relu && as_float) {
      for (int64_t i = 0; i < rows * columns; ++i) floats[i] = Relu(floats[i]);
    } else if (layer.relu) {
      Relu(rows * columns, y);
    }
    if (drops) Drop(layer, args, begin, end, floats);
    // For the last layer: Backward needs to know where y was zero.
    if (drops || (args.training && layer.last && layer.relu)) {
      ToBf16(floats, columns, rows, columns, rows, columns, y);
    }
    if (layer.last) {
      for (int64_t r = begin; r < end; ++r) {
        std::copy_n(floats + (r - begin) * columns, layer.out, args.y + r * args.y_stride);
      }
    }
    x = y;
  }
  return absl::OkStatus();
}

absl::Status MlpBf16::Forward(const ExecContext& ctx, const DenseForward& args) {
  if (args.batch_size == 0) return absl::OkStatus();
  if (NewParameters(args, &prepared_number_)) {
    for (Layer& layer : layers_) {
      layer.linear.Prepare(ctx.pool, args.parameters + layer.weight_offset,
                           args.parameters + layer.bias_offset, args.batch_size, args.training);
    }
  }
  FirstError error;
  ParallelFor(ctx.pool, args.batch_size, kGemmChunkRows, [&](int64_t begin, int64_t end) {
    const ProductScope scope;
    Lease scratch(&products_);
    error.Take(ForwardRows(args, begin, end, scratch.get()));
  });
  return error.ToStatus();
}

absl::Status MlpBf16::BackwardRows(const DenseForward& forward, const DenseBackward& args,
                                   int64_t begin, int64_t end, ProductScratch* scratch) {
  Bf16* dy = nullptr;
  Bf16* dx = nullptr;
  HOTROW_ASSIGN_OR_RETURN(dy, ProductScratch::Take(kGemmChunkRows * widest_, &scratch->rows[0]));
  HOTROW_ASSIGN_OR_RETURN(dx, ProductScratch::Take(kGemmChunkRows * widest_, &scratch->rows[1]));
  HOTROW_ASSIGN_OR_RETURN(float* const floats,
                          ProductScratch::Take(kGemmChunkRows * widest_, &scratch->floats));
  ToBf16(args.dy + begin * args.dy_stride, args.dy_stride, end - begin, layers_.back().out,
         kGemmChunkRows, layers_.back().linear.out_padded(), dy);
  for (size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    const int64_t columns = layer.linear.out_padded();
    MaskAndSum(layer.relu ? layer.outputs.data() + begin * columns : nullptr, kGemmChunkRows,
               columns, dy, layer.bias_sums.data() + begin / kGemmChunkRows * columns);
    layer.linear.KeepGradient(dy, begin);
    if (l == 0 && args.dx == nullptr) break;
    const bool drops = l > 0 && layers_[l - 1].dropout > 0;
    const bool as_float = l == 0 || drops;
    void* const result = as_float ? static_cast<void*>(floats) : static_cast<void*>(dx);
    HOTROW_RETURN_IF_ERROR(layer.linear.InputGradient(&products_, dy, as_float, result, scratch));
    const int64_t inputs = layer.linear.in_padded();
    if (drops) {
      Drop(layers_[l - 1], forward, begin, end, floats);
      ToBf16(floats, inputs, kGemmChunkRows, inputs, kGemmChunkRows, inputs, dx);
    }
    if (l == 0) {
      for (int64_t r = begin; r < end; ++r) {
        std::copy_n(floats + (r - begin) * inputs, layer.in, args.dx + r * args.dx_stride);
      }
    }
    std::swap(dy, dx);
  }
  return absl::OkStatus();
}

absl::Status MlpBf16::BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                                    const DenseBackward& args) {
  FirstError error;
  ParallelFor(ctx.pool, forward.batch_size, kGemmChunkRows, [&](int64_t begin, int64_t end) {
    const ProductScope scope;
    Lease scratch(&products_);
    error.Take(BackwardRows(forward, args, begin, end, scratch.get()));
  });
  return error.ToStatus();
}

absl::Status MlpBf16::BackwardParameters(const ExecContext& ctx, const DenseForward& forward,
                                         const DenseBackward& args) {
  std::function<absl::Status(size_t)> ready;
  if (args.gradients_ready != nullptr) {
    ready = [&](size_t l) { return LayerReady(layers_[l], args); };
  }
  std::vector<BiasSums> sums;
  for (const Layer& layer : layers_) {
    sums.push_back({layer.bias_sums.data(), layer.linear.out_padded()});
  }
  FinishBiasGradients(shape_, sums, forward.batch_size, args.parameter_gradients);
  return RunWeightBlocks(
      ctx.pool, blocks_,
      [&](const WeightBlock& block) {
        const Layer& layer = layers_[block.linear];
        Lease scratch(&products_);
        return layer.linear.WeightGradient(
            &products_, block, args.parameter_gradients + layer.weight_offset, scratch.get());
      },
      ready);
}

int64_t MlpBf16::bytes() const {
  int64_t bytes = products_.bytes();
  for (const Layer& layer : layers_) {
    bytes += layer.linear.bytes() + layer.outputs.bytes() + layer.bias_sums.bytes();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseEngine>> NewMlpBf16(const MlpShape& shape) {
  auto engine = std::make_unique<MlpBf16>(shape);
  HOTROW_RETURN_IF_ERROR(engine->Init());
  return engine;
}

}  // namespace hotrow::internal
