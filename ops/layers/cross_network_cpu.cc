#include <algorithm>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/layers/cross_network_impl.h"
#include "ops/products/bf16_gemm_impl.h"
#include "ops/products/gemm_impl.h"
#include "ops/vec8_impl.h"

// The work is cut as in mlp_cpu.cc: a chunk of rows goes through all layers on one thread, and the
// gradients of matrices, which sum over the batch, are blocks in one more loop. What is summed over
// the batch without a product (biases, the vectors of kVector) is summed row after row within a
// chunk, then chunk after chunk.
namespace hotrow::internal {
namespace {

// In eight lanes with fused multiply-adds, which are then added as ((0+2)+(1+3)) + ((4+6)+(5+7)).
float Dot(const float* a, const float* b, int64_t n) {
  Vec8 sum = Vec8::Zero();
  ForEachVec8(n, [&](int64_t i, auto lanes) {
    sum = Vec8::Fma(LoadLanes(a + i, lanes), LoadLanes(b + i, lanes), sum);
  });
  float s[8];
  sum.Store(s);
  return ((s[0] + s[2]) + (s[1] + s[3])) + ((s[4] + s[6]) + (s[5] + s[7]));
}

// y += factor * x
void AddScaled(float factor, const float* x, int64_t n, float* y) {
  const Vec8 f = Vec8::Set(factor);
  ForEachVec8(n, [&](int64_t i, auto lanes) {
    StoreLanes(Vec8::Fma(f, LoadLanes(x + i, lanes), LoadLanes(y + i, lanes)), y + i, lanes);
  });
}

// y += x
void Add(const float* x, int64_t n, float* y) {
  ForEachVec8(n, [&](int64_t i, auto lanes) {
    StoreLanes(LoadLanes(x + i, lanes) + LoadLanes(y + i, lanes), y + i, lanes);
  });
}

class CrossCpu : public DenseEngine {
 public:
  CrossCpu(const CrossShape& shape, DensePrecision precision)
      : shape_(shape), precision_(precision) {}
  absl::Status Init();

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
    // kMatrix: t = W x, or h = V x, then t = U h.
    Linear first;
    Linear second;
    // Instead of them with products of bf16, which need neither h nor d(loss)/dh.
    Bf16Linear bf16_first;
    Bf16Linear bf16_second;
    HostBuffer<float> outputs;  // x_{l+1} [B, stride], which the next layer reads; not of the last
    // kVector: x_l . w_l [B]. kMatrix: t + b [B, stride], and d(loss)/dt after Backward.
    HostBuffer<float> crossings;
    HostBuffer<float> hidden;           // h [B, stride of rank]
    HostBuffer<float> hidden_gradient;  // d(loss)/dh, the same
    HostBuffer<float> bias_sums;        // of the gradient of b, one row for each chunk
    HostBuffer<float> weight_sums;      // kVector: of the gradient of w, the same
  };
  struct Pass {  // the one that is being made
    ConstMatrix x = {nullptr, 0};
    int64_t batch_size = 0;
  };

  absl::Status InitLayer(Layer* layer);

  bool is_vector() const { return shape_.kind == CrossKind::kVector; }
  bool is_bf16() const { return precision_ == DensePrecision::kBf16 && !is_vector(); }
  size_t linears_per_layer() const { return shape_.low_rank() ? 2 : 1; }
  ConstMatrix Input(size_t l) const {
    return l == 0 ? pass_.x : ConstMatrix(layers_[l - 1].outputs.data(), shape_.stride);
  }
  Matrix OutputOf(size_t l, const DenseForward& args) {
    return l == shape_.last_layer() ? Matrix{args.y, args.y_stride}
                                    : Matrix{layers_[l].outputs.data(), shape_.stride};
  }
  Matrix Crossings(Layer& layer) const { return {layer.crossings.data(), shape_.stride}; }

  absl::Status ForwardRows(const DenseForward& args, bool transposed, int64_t begin, int64_t end);
  // Rows of t = W_l x_l, and of d(loss)/d(x_l) += W_l^T dt if adds_dy. Bf16: the same.
  absl::Status Multiply(const DenseForward& args, size_t l, bool transposed, int64_t begin,
                        int64_t end);
  absl::Status MultiplyBf16(const DenseForward& args, size_t l, int64_t begin, int64_t end);
  absl::Status MultiplyBack(const DenseBackward& args, size_t l, bool adds_dy, int64_t begin,
                            int64_t end);
  absl::Status MultiplyBackBf16(const DenseBackward& args, size_t l, bool adds_dy, int64_t begin,
                                int64_t end);
  void PrepareWeights(const ExecContext& ctx, const DenseForward& args);
  void ForwardVectorRows(const DenseForward& args, int64_t begin, int64_t end);
  absl::Status BackwardRows(const DenseBackward& args, int64_t begin, int64_t end);
  void BackwardVectorRows(const DenseBackward& args, int64_t begin, int64_t end);
  absl::Status WeightGradientBlock(const DenseBackward& args, const WeightBlock& block);
  void SumChunks(const HostBuffer<float>& sums, float* gradient) const;
  void FinishGradients(float* parameter_gradients) const;

  const CrossShape shape_;
  const DensePrecision precision_;
  std::vector<Layer> layers_;
  // The blocks of all layers: those of layer l are 2 l and 2 l + 1 with a rank, else l.
  WeightBlocks blocks_;
  Pass pass_;
  int64_t copied_number_ = 0;  // of the parameters that copies were made of
  PanelProducts products_;
};

absl::Status CrossCpu::Init() {
  layers_.resize(shape_.layers.size());
  for (size_t l = 0; l < layers_.size(); ++l) {
    static_cast<CrossLayerShape&>(layers_[l]) = shape_.layers[l];
    HOTROW_RETURN_IF_ERROR(InitLayer(&layers_[l]));
  }
  if (is_vector()) return absl::OkStatus();
  if (is_bf16()) {
    std::vector<const Bf16Linear*> linears;
    for (const Layer& layer : layers_) {
      linears.push_back(&layer.bf16_first);
      if (shape_.low_rank()) linears.push_back(&layer.bf16_second);
    }
    blocks_ = CutWeights(linears);
    return absl::OkStatus();
  }
  std::vector<const Linear*> linears;
  for (const Layer& layer : layers_) {
    linears.push_back(&layer.first);
    if (shape_.low_rank()) linears.push_back(&layer.second);
  }
  blocks_ = CutWeights(linears);
  return absl::OkStatus();
}

absl::Status CrossCpu::InitLayer(Layer* layer) {
  const int64_t b_max = shape_.max_batch_size;
  const int64_t chunks = CeilDiv(b_max, kGemmChunkRows);
  const int64_t width = shape_.width;
  const int64_t rank = shape_.rank;
  const auto rows = [b_max](int64_t stride, HostBuffer<float>* buffer) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(*buffer, HostBuffer<float>::Create(b_max * stride, HugePages::kTry));
    return absl::OkStatus();
  };
  if (is_vector()) {
    HOTROW_ASSIGN_OR_RETURN(layer->crossings, HostBuffer<float>::Create(b_max));
    HOTROW_ASSIGN_OR_RETURN(layer->weight_sums, HostBuffer<float>::Create(chunks * shape_.stride));
  } else {
    HOTROW_RETURN_IF_ERROR(rows(shape_.stride, &layer->crossings));
    if (is_bf16()) {
      HOTROW_RETURN_IF_ERROR(
          layer->bf16_first.Init(width, shape_.low_rank() ? rank : width, b_max));
      if (shape_.low_rank()) HOTROW_RETURN_IF_ERROR(layer->bf16_second.Init(rank, width, b_max));
    } else if (shape_.low_rank()) {
      HOTROW_RETURN_IF_ERROR(layer->first.Init(width, rank));
      HOTROW_RETURN_IF_ERROR(layer->second.Init(rank, width));
      HOTROW_RETURN_IF_ERROR(rows(shape_.rank_stride, &layer->hidden));
      HOTROW_RETURN_IF_ERROR(rows(shape_.rank_stride, &layer->hidden_gradient));
    } else {
      HOTROW_RETURN_IF_ERROR(layer->first.Init(width, width));
    }
  }
  HOTROW_ASSIGN_OR_RETURN(layer->bias_sums, HostBuffer<float>::Create(chunks * shape_.stride));
  if (layer == &layers_.back()) return absl::OkStatus();
  return rows(shape_.stride, &layer->outputs);
}

void CrossCpu::PrepareWeights(const ExecContext& ctx, const DenseForward& args) {
  for (Layer& layer : layers_) {
    const float* const weights = args.parameters + layer.weight_offset;
    const float* const u = args.parameters + layer.u_offset;
    if (is_bf16()) {
      layer.bf16_first.Prepare(ctx.pool, weights, nullptr, args.batch_size, args.training);
      if (shape_.low_rank()) {
        layer.bf16_second.Prepare(ctx.pool, u, nullptr, args.batch_size, args.training);
      }
    } else {
      layer.first.Transpose(ctx.pool, weights);
      if (shape_.low_rank()) layer.second.Transpose(ctx.pool, u);
    }
  }
}

void CrossCpu::ForwardVectorRows(const DenseForward& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* const x0 = pass_.x.row(r);
    for (size_t l = 0; l < layers_.size(); ++l) {
      const float* const x = Input(l).row(r);
      float* const y = OutputOf(l, args).row(r);
      const float* const bias = args.parameters + layers_[l].bias_offset;
      const float product = Dot(x, args.parameters + layers_[l].weight_offset, shape_.width);
      layers_[l].crossings[r] = product;
      const Vec8 s = Vec8::Set(product);
      ForEachVec8(shape_.width, [&](int64_t i, auto lanes) {
        const Vec8 sum = LoadLanes(bias + i, lanes) + LoadLanes(x + i, lanes);
        StoreLanes(Vec8::Fma(s, LoadLanes(x0 + i, lanes), sum), y + i, lanes);
      });
    }
  }
}

absl::Status CrossCpu::Multiply(const DenseForward& args, size_t l, bool transposed, int64_t begin,
                                int64_t end) {
  Layer& layer = layers_[l];
  const Matrix t = Crossings(layer);
  const float* const weights = args.parameters + layer.weight_offset;
  if (!shape_.low_rank()) return layer.first.Forward(Input(l), weights, transposed, begin, end, t);
  const Matrix h{layer.hidden.data(), shape_.rank_stride};
  HOTROW_RETURN_IF_ERROR(layer.first.Forward(Input(l), weights, transposed, begin, end, h));
  return layer.second.Forward(h, args.parameters + layer.u_offset, transposed, begin, end, t);
}

absl::Status CrossCpu::MultiplyBf16(const DenseForward& args, size_t l, int64_t begin,
                                    int64_t end) {
  Layer& layer = layers_[l];
  const ConstMatrix x = Input(l);
  const int64_t columns = layer.bf16_first.in_padded();
  const int64_t rows = args.training ? kGemmChunkRows : RoundUp(end - begin, kPanelRows);
  PanelProducts::Lease lease(&products_);
  ProductScratch* const scratch = lease.get();
  HOTROW_ASSIGN_OR_RETURN(Bf16* const x_rows,
                          ProductScratch::Take(kGemmChunkRows * columns, &scratch->rows[0]));
  HOTROW_ASSIGN_OR_RETURN(float* const t_rows,
                          ProductScratch::Take(kGemmChunkRows * columns, &scratch->floats));
  ToBf16(x.row(begin), x.stride, end - begin, shape_.width, rows, columns, x_rows);
  if (args.training) layer.bf16_first.KeepInput(x_rows, begin);
  if (shape_.low_rank()) {
    HOTROW_ASSIGN_OR_RETURN(Bf16* const h,
                            ProductScratch::Take(kGemmChunkRows * columns, &scratch->rows[1]));
    HOTROW_RETURN_IF_ERROR(
        layer.bf16_first.Forward(&products_, x_rows, rows, /*float_result=*/false, h, scratch));
    if (args.training) layer.bf16_second.KeepInput(h, begin);
    HOTROW_RETURN_IF_ERROR(
        layer.bf16_second.Forward(&products_, h, rows, /*float_result=*/true, t_rows, scratch));
  } else {
    HOTROW_RETURN_IF_ERROR(
        layer.bf16_first.Forward(&products_, x_rows, rows, /*float_result=*/true, t_rows, scratch));
  }
  const Matrix t = Crossings(layer);
  for (int64_t r = begin; r < end; ++r)
    std::copy_n(t_rows + (r - begin) * columns, shape_.width, t.row(r));
  return absl::OkStatus();
}

absl::Status CrossCpu::ForwardRows(const DenseForward& args, bool transposed, int64_t begin,
                                   int64_t end) {
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    const ConstMatrix x = Input(l);
    const Matrix t = Crossings(layer);
    HOTROW_RETURN_IF_ERROR(is_bf16() ? MultiplyBf16(args, l, begin, end)
                                     : Multiply(args, l, transposed, begin, end));
    const Matrix y = OutputOf(l, args);
    const float* const bias = args.parameters + layer.bias_offset;
    for (int64_t r = begin; r < end; ++r) {
      const float* const x0_row = pass_.x.row(r);
      const float* const x_row = x.row(r);
      float* const t_row = t.row(r);
      float* const y_row = y.row(r);
      ForEachVec8(shape_.width, [&](int64_t i, auto lanes) {
        const Vec8 z = LoadLanes(t_row + i, lanes) + LoadLanes(bias + i, lanes);
        StoreLanes(z, t_row + i, lanes);
        StoreLanes(Vec8::Fma(z, LoadLanes(x0_row + i, lanes), LoadLanes(x_row + i, lanes)),
                   y_row + i, lanes);
      });
    }
  }
  return absl::OkStatus();
}

// With g = d(loss)/d(x_{l+1}) and s = x_l . w: ds = g . x_0, dw += ds x_l, db += g,
// dx_0 += s g, and d(loss)/d(x_l) = g + ds w. g lives in dy.
void CrossCpu::BackwardVectorRows(const DenseBackward& args, int64_t begin, int64_t end) {
  const int64_t chunk = begin / kGemmChunkRows * shape_.stride;
  for (Layer& layer : layers_) {
    std::fill_n(layer.bias_sums.data() + chunk, shape_.width, 0.0f);
    std::fill_n(layer.weight_sums.data() + chunk, shape_.width, 0.0f);
  }
  for (int64_t r = begin; r < end; ++r) {
    const float* const x0 = pass_.x.row(r);
    float* const g = args.dy + r * args.dy_stride;
    float* const dx = args.dx == nullptr ? nullptr : args.dx + r * args.dx_stride;
    if (dx != nullptr) std::fill_n(dx, shape_.width, 0.0f);
    for (size_t l = layers_.size(); l-- > 0;) {
      Layer& layer = layers_[l];
      const float ds = Dot(g, x0, shape_.width);
      AddScaled(ds, Input(l).row(r), shape_.width, layer.weight_sums.data() + chunk);
      Add(g, shape_.width, layer.bias_sums.data() + chunk);
      if (dx != nullptr) AddScaled(layer.crossings[r], g, shape_.width, dx);
      AddScaled(ds, args.parameters + layer.weight_offset, shape_.width, g);
    }
    if (dx != nullptr) Add(g, shape_.width, dx);
  }
}

absl::Status CrossCpu::MultiplyBack(const DenseBackward& args, size_t l, bool adds_dy,
                                    int64_t begin, int64_t end) {
  Layer& layer = layers_[l];
  const Matrix dt = Crossings(layer);
  const Matrix dy{args.dy, args.dy_stride};
  const float* const weights = args.parameters + layer.weight_offset;
  if (!shape_.low_rank()) {
    if (!adds_dy) return absl::OkStatus();
    return layer.first.InputGradient(dt, weights, begin, end, /*add=*/true, dy);
  }
  const Matrix dh{layer.hidden_gradient.data(), shape_.rank_stride};
  HOTROW_RETURN_IF_ERROR(layer.second.InputGradient(dt, args.parameters + layer.u_offset, begin,
                                                    end, /*add=*/false, dh));
  if (!adds_dy) return absl::OkStatus();
  return layer.first.InputGradient(dh, weights, begin, end, /*add=*/true, dy);
}

absl::Status CrossCpu::MultiplyBackBf16(const DenseBackward& args, size_t l, bool adds_dy,
                                        int64_t begin, int64_t end) {
  Layer& layer = layers_[l];
  const Matrix dt = Crossings(layer);
  const int64_t columns = layer.bf16_first.in_padded();
  PanelProducts::Lease lease(&products_);
  ProductScratch* const scratch = lease.get();
  Bf16* gradient = nullptr;
  HOTROW_ASSIGN_OR_RETURN(gradient,
                          ProductScratch::Take(kGemmChunkRows * columns, &scratch->rows[0]));
  ToBf16(dt.row(begin), dt.stride, end - begin, shape_.width, kGemmChunkRows, columns, gradient);
  if (shape_.low_rank()) {
    HOTROW_ASSIGN_OR_RETURN(Bf16* const dh,
                            ProductScratch::Take(kGemmChunkRows * columns, &scratch->rows[1]));
    layer.bf16_second.KeepGradient(gradient, begin);
    HOTROW_RETURN_IF_ERROR(layer.bf16_second.InputGradient(&products_, gradient,
                                                           /*float_result=*/false, dh, scratch));
    gradient = dh;
  }
  layer.bf16_first.KeepGradient(gradient, begin);
  if (!adds_dy) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(float* const dx,
                          ProductScratch::Take(kGemmChunkRows * columns, &scratch->floats));
  HOTROW_RETURN_IF_ERROR(
      layer.bf16_first.InputGradient(&products_, gradient, /*float_result=*/true, dx, scratch));
  for (int64_t r = begin; r < end; ++r) {
    Add(dx + (r - begin) * columns, shape_.width, args.dy + r * args.dy_stride);
  }
  return absl::OkStatus();
}

// With g = d(loss)/d(x_{l+1}) and t = W x_l + b: dx_0 += g o t, dt = g o x_0, db += dt, and
// d(loss)/d(x_l) = g + W^T dt. g lives in dy; dt takes the place of t.
absl::Status CrossCpu::BackwardRows(const DenseBackward& args, int64_t begin, int64_t end) {
  const Matrix dy{args.dy, args.dy_stride};
  const Matrix dx{args.dx, args.dx_stride};
  const bool wants_dx = args.dx != nullptr;
  for (int64_t r = begin; wants_dx && r < end; ++r) std::fill_n(dx.row(r), shape_.width, 0.0f);
  for (size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    const Matrix t = Crossings(layer);
    float* const sum = layer.bias_sums.data() + begin / kGemmChunkRows * shape_.stride;
    std::fill_n(sum, shape_.width, 0.0f);
    for (int64_t r = begin; r < end; ++r) {
      const float* const g_row = dy.row(r);
      const float* const x0_row = pass_.x.row(r);
      float* const t_row = t.row(r);
      float* const dx_row = wants_dx ? dx.row(r) : nullptr;
      ForEachVec8(shape_.width, [&](int64_t i, auto lanes) {
        const Vec8 g = LoadLanes(g_row + i, lanes);
        if (wants_dx) {
          StoreLanes(Vec8::Fma(g, LoadLanes(t_row + i, lanes), LoadLanes(dx_row + i, lanes)),
                     dx_row + i, lanes);
        }
        const Vec8 dt = g * LoadLanes(x0_row + i, lanes);
        StoreLanes(dt, t_row + i, lanes);
        StoreLanes(LoadLanes(sum + i, lanes) + dt, sum + i, lanes);
      });
    }
    const bool adds_dy = l > 0 || wants_dx;
    HOTROW_RETURN_IF_ERROR(is_bf16() ? MultiplyBackBf16(args, l, adds_dy, begin, end)
                                     : MultiplyBack(args, l, adds_dy, begin, end));
  }
  for (int64_t r = begin; wants_dx && r < end; ++r) Add(dy.row(r), shape_.width, dx.row(r));
  return absl::OkStatus();
}

absl::Status CrossCpu::WeightGradientBlock(const DenseBackward& args, const WeightBlock& block) {
  const size_t l = block.linear / linears_per_layer();
  Layer& layer = layers_[l];
  const Matrix dt = Crossings(layer);
  float* const dw = args.parameter_gradients + layer.weight_offset;
  if (is_bf16()) {
    PanelProducts::Lease lease(&products_);
    const bool of_v = !shape_.low_rank() || block.linear % linears_per_layer() == 0;
    return (of_v ? layer.bf16_first : layer.bf16_second)
        .WeightGradient(&products_, block, of_v ? dw : args.parameter_gradients + layer.u_offset,
                        lease.get());
  }
  if (!shape_.low_rank()) {
    return WeightGradient(layer.first, block, dt, Input(l), pass_.batch_size, dw);
  }
  if (block.linear % linears_per_layer() == 0) {
    return WeightGradient(layer.first, block, {layer.hidden_gradient.data(), shape_.rank_stride},
                          Input(l), pass_.batch_size, dw);
  }
  return WeightGradient(layer.second, block, dt, {layer.hidden.data(), shape_.rank_stride},
                        pass_.batch_size, args.parameter_gradients + layer.u_offset);
}

// gradient [W] = the rows of `sums`, chunk after chunk, with the padding behind it zero.
void CrossCpu::SumChunks(const HostBuffer<float>& sums, float* gradient) const {
  std::fill_n(gradient, shape_.stride, 0.0f);
  const int64_t chunks = CeilDiv(pass_.batch_size, kGemmChunkRows);
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    Add(sums.data() + chunk * shape_.stride, shape_.width, gradient);
}

// All but the matrices: vectors, biases and padding.
void CrossCpu::FinishGradients(float* parameter_gradients) const {
  const auto zero_padding = [&](int64_t offset, int64_t floats) {
    std::fill(parameter_gradients + offset + floats,
              parameter_gradients + offset + RoundUp(floats, kFloatsPerLine), 0.0f);
  };
  for (const Layer& layer : layers_) {
    SumChunks(layer.bias_sums, parameter_gradients + layer.bias_offset);
    if (is_vector()) {
      SumChunks(layer.weight_sums, parameter_gradients + layer.weight_offset);
    } else if (shape_.low_rank()) {
      zero_padding(layer.weight_offset, shape_.rank * shape_.width);
      zero_padding(layer.u_offset, shape_.rank * shape_.width);
    } else {
      zero_padding(layer.weight_offset, shape_.width * shape_.width);
    }
  }
}

absl::Status CrossCpu::Forward(const ExecContext& ctx, const DenseForward& args) {
  pass_ = {.x = {args.x, args.x_stride}, .batch_size = args.batch_size};
  const bool transposed = args.batch_size >= kTransposeMinRows;
  const bool copies = !is_vector() && (is_bf16() ? args.batch_size > 0 : transposed);
  if (copies && NewParameters(args, &copied_number_)) PrepareWeights(ctx, args);
  FirstError error;
  ParallelFor(ctx.pool, args.batch_size, kGemmChunkRows, [&](int64_t begin, int64_t end) {
    if (is_vector()) return ForwardVectorRows(args, begin, end);
    const ProductScope scope;
    error.Take(ForwardRows(args, transposed, begin, end));
  });
  return error.ToStatus();
}

absl::Status CrossCpu::BackwardInput(const ExecContext& ctx, const DenseForward& forward,
                                     const DenseBackward& args) {
  pass_ = {.x = {forward.x, forward.x_stride}, .batch_size = forward.batch_size};
  FirstError error;
  ParallelFor(ctx.pool, pass_.batch_size, kGemmChunkRows, [&](int64_t begin, int64_t end) {
    if (is_vector()) return BackwardVectorRows(args, begin, end);
    const ProductScope scope;
    error.Take(BackwardRows(args, begin, end));
  });
  return error.ToStatus();
}

absl::Status CrossCpu::BackwardParameters(const ExecContext& ctx, const DenseForward& forward,
                                          const DenseBackward& args) {
  pass_ = {.x = {forward.x, forward.x_stride}, .batch_size = forward.batch_size};
  FinishGradients(args.parameter_gradients);
  if (is_vector()) {
    for (size_t l = layers_.size(); l-- > 0;) {
      HOTROW_RETURN_IF_ERROR(LayerReady(layers_[l], args));
    }
    return absl::OkStatus();
  }
  std::function<absl::Status(size_t)> ready;
  if (args.gradients_ready != nullptr) {
    ready = [&](size_t linear) {
      // The last map comes first, so a layer is done with the first of its maps.
      if (linear % linears_per_layer() != 0) return absl::OkStatus();
      return LayerReady(layers_[linear / linears_per_layer()], args);
    };
  }
  return RunWeightBlocks(
      ctx.pool, blocks_, [&](const WeightBlock& block) { return WeightGradientBlock(args, block); },
      ready);
}

int64_t CrossCpu::bytes() const {
  int64_t bytes = products_.bytes();
  for (const Layer& layer : layers_) {
    for (const HostBuffer<float>* buffer :
         {&layer.first.transposed, &layer.second.transposed, &layer.outputs, &layer.crossings,
          &layer.hidden, &layer.hidden_gradient, &layer.bias_sums, &layer.weight_sums}) {
      bytes += buffer->bytes();
    }
    bytes += layer.bf16_first.bytes() + layer.bf16_second.bytes();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DenseEngine>> NewCrossCpu(const CrossShape& shape,
                                                         DensePrecision precision) {
  auto engine = std::make_unique<CrossCpu>(shape, precision);
  HOTROW_RETURN_IF_ERROR(engine->Init());
  return engine;
}

}  // namespace hotrow::internal
