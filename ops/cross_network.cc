#include "ops/cross_network.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/check.h"
#include "base/dispatch.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/bf16_gemm_impl.h"
#include "ops/gemm_impl.h"
#include "ops/no_cuda.h"
#include "ops/validate.h"
#include "ops/vec8_impl.h"

// The work is cut as in mlp.cc: a chunk of rows goes through all layers on one thread, and the
// gradients of matrices, which sum over the batch, are blocks in one more loop. What is summed over
// the batch without a product (biases, the vectors of kVector) is summed row after row within a
// chunk, then chunk after chunk.
namespace hotrow {
namespace {

using internal::Bf16;
using internal::Bf16Linear;
using internal::Bf16Products;
using internal::Bf16Scratch;
using internal::ConstMatrix;
using internal::FirstError;
using internal::ForEachVec8;
using internal::kFloatsPerLine;
using internal::kGemmChunkRows;
using internal::Linear;
using internal::LoadLanes;
using internal::Matrix;
using internal::ProductScope;
using internal::StoreLanes;
using internal::Vec8;

constexpr char kOp[] = "CrossNetwork";
constexpr int32_t kMaxLayers = 1 << 20;

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

}  // namespace

absl::Status CrossNetworkOptions::Validate() const {
  constexpr char kName[] = "CrossNetworkOptions";
  if (width <= 0) return internal::InvalidField(kName, "width", "must be > 0", width);
  if (num_layers <= 0 || num_layers > kMaxLayers) {
    return internal::InvalidField(kName, "num_layers", "must be in [1, 2^20]", num_layers);
  }
  if (rank < 0 || rank > width) {
    return internal::InvalidField(kName, "rank",
                                  absl::StrCat("must be in [0, width = ", width, "]"), rank);
  }
  if (rank > 0 && kind == CrossKind::kVector) {
    return internal::InvalidField(kName, "rank", "must be 0 with weight vectors", rank);
  }
  if (first_layer_id < 0) {
    return internal::InvalidField(kName, "first_layer_id", "must be >= 0", first_layer_id);
  }
  if (max_batch_size <= 0) {
    return internal::InvalidField(kName, "max_batch_size", "must be > 0", max_batch_size);
  }
  return absl::OkStatus();
}

struct CrossNetwork::Impl {
  struct Layer {
    int64_t weight_offset = 0;
    int64_t u_offset = 0;
    int64_t bias_offset = 0;
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
    HostBuffer<float> weight_sums;      // kVector: of the gradient of w, likewise
  };
  struct LastForward {
    bool training = false;
    ConstMatrix x = {nullptr, 0};
    int64_t batch_size = 0;
    bool inputs_done = false;  // by BackwardInput; BackwardParameters can follow
  };

  absl::Status Init(const CrossNetworkOptions& cross_options);
  absl::Status InitLayer(bool last_layer, Layer* layer);

  bool is_vector() const { return options.kind == CrossKind::kVector; }
  bool low_rank() const { return options.rank > 0; }
  bool is_bf16() const { return options.precision == DensePrecision::kBf16 && !is_vector(); }
  size_t linears_per_layer() const { return low_rank() ? 2 : 1; }
  ConstMatrix Input(size_t l) const {
    return l == 0 ? last.x : ConstMatrix(layers[l - 1].outputs.data(), stride);
  }
  Matrix OutputOf(size_t l, const ForwardArgs& args) {
    return l + 1 == layers.size() ? Matrix{args.y, args.y_stride}
                                  : Matrix{layers[l].outputs.data(), stride};
  }
  Matrix Crossings(Layer& layer) const { return {layer.crossings.data(), stride}; }

  absl::Status ForwardRows(const ForwardArgs& args, bool transposed, int64_t begin, int64_t end);
  // Rows of t = W_l x_l, and of d(loss)/d(x_l) += W_l^T dt if adds_dy. Bf16: the same.
  absl::Status Multiply(const ForwardArgs& args, size_t l, bool transposed, int64_t begin,
                        int64_t end);
  absl::Status MultiplyBf16(const ForwardArgs& args, size_t l, int64_t begin, int64_t end);
  absl::Status MultiplyBack(const BackwardArgs& args, size_t l, bool adds_dy, int64_t begin,
                            int64_t end);
  absl::Status MultiplyBackBf16(const BackwardArgs& args, size_t l, bool adds_dy, int64_t begin,
                                int64_t end);
  void PrepareWeights(const ExecContext& ctx, const ForwardArgs& args, bool transposed);
  void ForwardVectorRows(const ForwardArgs& args, int64_t begin, int64_t end);
  absl::Status BackwardRows(const BackwardArgs& args, int64_t begin, int64_t end);
  void BackwardVectorRows(const BackwardArgs& args, int64_t begin, int64_t end);
  absl::Status WeightGradientBlock(const BackwardArgs& args, const internal::WeightBlock& block);
  void SumChunks(const HostBuffer<float>& sums, float* gradient) const;
  void FinishGradients(float* parameter_gradients) const;
  // args.gradients_ready for layer l.
  absl::Status LayerReady(const BackwardArgs& args, size_t l) const;
  absl::Status CheckArgs(const BackwardArgs& args) const;

  CrossNetworkOptions options;
  int64_t width = 0;
  int64_t stride = 0;       // width, rounded up to whole cache lines
  int64_t rank_stride = 0;  // rank, likewise
  std::vector<Layer> layers;
  // Of all layers: those of layer l are 2 l and 2 l + 1 with a rank, else l.
  internal::WeightBlocks blocks;
  int64_t num_parameters = 0;
  LastForward last;
  Bf16Products products;
};

absl::Status CrossNetwork::Impl::Init(const CrossNetworkOptions& cross_options) {
  options = cross_options;
  width = options.width;
  stride = RoundUp(width, kFloatsPerLine);
  rank_stride = RoundUp(options.rank, kFloatsPerLine);
  layers.resize(static_cast<size_t>(options.num_layers));
  for (Layer& layer : layers) HOTROW_RETURN_IF_ERROR(InitLayer(&layer == &layers.back(), &layer));
  if (is_vector()) return absl::OkStatus();
  if (is_bf16()) {
    std::vector<const Bf16Linear*> linears;
    for (const Layer& layer : layers) {
      linears.push_back(&layer.bf16_first);
      if (low_rank()) linears.push_back(&layer.bf16_second);
    }
    blocks = internal::CutWeights(linears);
    return absl::OkStatus();
  }
  std::vector<const Linear*> linears;
  for (const Layer& layer : layers) {
    linears.push_back(&layer.first);
    if (low_rank()) linears.push_back(&layer.second);
  }
  blocks = internal::CutWeights(linears);
  return absl::OkStatus();
}

absl::Status CrossNetwork::Impl::InitLayer(bool last_layer, Layer* layer) {
  const int64_t b_max = options.max_batch_size;
  const int64_t chunks = CeilDiv(b_max, kGemmChunkRows);
  const auto take = [this](int64_t floats) {
    const int64_t offset = num_parameters;
    num_parameters += RoundUp(floats, kFloatsPerLine);
    return offset;
  };
  if (is_vector()) {
    layer->weight_offset = take(width);
    HOTROW_ASSIGN_OR_RETURN(layer->crossings, HostBuffer<float>::Create(b_max));
    HOTROW_ASSIGN_OR_RETURN(layer->weight_sums, HostBuffer<float>::Create(chunks * stride));
  } else {
    HOTROW_ASSIGN_OR_RETURN(layer->crossings,
                            HostBuffer<float>::Create(b_max * stride, HugePages::kTry));
    if (low_rank()) {
      layer->weight_offset = take(options.rank * width);
      layer->u_offset = take(width * options.rank);
    } else {
      layer->weight_offset = take(width * width);
    }
    if (is_bf16()) {
      HOTROW_RETURN_IF_ERROR(
          layer->bf16_first.Init(width, low_rank() ? options.rank : width, b_max));
      if (low_rank()) HOTROW_RETURN_IF_ERROR(layer->bf16_second.Init(options.rank, width, b_max));
    } else if (low_rank()) {
      HOTROW_RETURN_IF_ERROR(layer->first.Init(width, options.rank));
      HOTROW_RETURN_IF_ERROR(layer->second.Init(options.rank, width));
      HOTROW_ASSIGN_OR_RETURN(layer->hidden,
                              HostBuffer<float>::Create(b_max * rank_stride, HugePages::kTry));
      HOTROW_ASSIGN_OR_RETURN(layer->hidden_gradient,
                              HostBuffer<float>::Create(b_max * rank_stride, HugePages::kTry));
    } else {
      HOTROW_RETURN_IF_ERROR(layer->first.Init(width, width));
    }
  }
  layer->bias_offset = take(width);
  HOTROW_ASSIGN_OR_RETURN(layer->bias_sums, HostBuffer<float>::Create(chunks * stride));
  if (!last_layer) {
    HOTROW_ASSIGN_OR_RETURN(layer->outputs,
                            HostBuffer<float>::Create(b_max * stride, HugePages::kTry));
  }
  return absl::OkStatus();
}

void CrossNetwork::Impl::PrepareWeights(const ExecContext& ctx, const ForwardArgs& args,
                                        bool transposed) {
  for (Layer& layer : layers) {
    const float* const weights = args.parameters + layer.weight_offset;
    const float* const u = args.parameters + layer.u_offset;
    if (is_bf16()) {
      layer.bf16_first.Prepare(ctx.pool, weights, nullptr, args.batch_size, args.training);
      if (low_rank()) {
        layer.bf16_second.Prepare(ctx.pool, u, nullptr, args.batch_size, args.training);
      }
    } else if (transposed) {
      layer.first.Transpose(ctx.pool, weights);
      if (low_rank()) layer.second.Transpose(ctx.pool, u);
    }
  }
}

void CrossNetwork::Impl::ForwardVectorRows(const ForwardArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* const x0 = last.x.row(r);
    for (size_t l = 0; l < layers.size(); ++l) {
      const float* const x = Input(l).row(r);
      float* const y = OutputOf(l, args).row(r);
      const float* const bias = args.parameters + layers[l].bias_offset;
      const float product = Dot(x, args.parameters + layers[l].weight_offset, width);
      layers[l].crossings[r] = product;
      const Vec8 s = Vec8::Set(product);
      ForEachVec8(width, [&](int64_t i, auto lanes) {
        const Vec8 sum = LoadLanes(bias + i, lanes) + LoadLanes(x + i, lanes);
        StoreLanes(Vec8::Fma(s, LoadLanes(x0 + i, lanes), sum), y + i, lanes);
      });
    }
  }
}

absl::Status CrossNetwork::Impl::Multiply(const ForwardArgs& args, size_t l, bool transposed,
                                          int64_t begin, int64_t end) {
  Layer& layer = layers[l];
  const Matrix t = Crossings(layer);
  const float* const weights = args.parameters + layer.weight_offset;
  if (!low_rank()) return layer.first.Forward(Input(l), weights, transposed, begin, end, t);
  const Matrix h{layer.hidden.data(), rank_stride};
  HOTROW_RETURN_IF_ERROR(layer.first.Forward(Input(l), weights, transposed, begin, end, h));
  return layer.second.Forward(h, args.parameters + layer.u_offset, transposed, begin, end, t);
}

absl::Status CrossNetwork::Impl::MultiplyBf16(const ForwardArgs& args, size_t l, int64_t begin,
                                              int64_t end) {
  Layer& layer = layers[l];
  const ConstMatrix x = Input(l);
  const int64_t columns = layer.bf16_first.in_padded();
  const int64_t rows = args.training ? kGemmChunkRows : RoundUp(end - begin, internal::kPanelRows);
  Bf16Products::Lease lease(&products);
  Bf16Scratch* const scratch = lease.get();
  HOTROW_ASSIGN_OR_RETURN(Bf16* const x_rows,
                          Bf16Scratch::Take(kGemmChunkRows * columns, &scratch->rows[0]));
  HOTROW_ASSIGN_OR_RETURN(float* const t_rows,
                          Bf16Scratch::Take(kGemmChunkRows * columns, &scratch->floats));
  internal::ToBf16(x.row(begin), x.stride, end - begin, width, rows, columns, x_rows);
  if (args.training) layer.bf16_first.KeepInput(x_rows, begin);
  if (low_rank()) {
    HOTROW_ASSIGN_OR_RETURN(Bf16* const h,
                            Bf16Scratch::Take(kGemmChunkRows * columns, &scratch->rows[1]));
    HOTROW_RETURN_IF_ERROR(
        layer.bf16_first.Forward(&products, x_rows, rows, /*float_result=*/false, h, scratch));
    if (args.training) layer.bf16_second.KeepInput(h, begin);
    HOTROW_RETURN_IF_ERROR(
        layer.bf16_second.Forward(&products, h, rows, /*float_result=*/true, t_rows, scratch));
  } else {
    HOTROW_RETURN_IF_ERROR(
        layer.bf16_first.Forward(&products, x_rows, rows, /*float_result=*/true, t_rows, scratch));
  }
  const Matrix t = Crossings(layer);
  for (int64_t r = begin; r < end; ++r)
    std::copy_n(t_rows + (r - begin) * columns, width, t.row(r));
  return absl::OkStatus();
}

absl::Status CrossNetwork::Impl::ForwardRows(const ForwardArgs& args, bool transposed,
                                             int64_t begin, int64_t end) {
  for (size_t l = 0; l < layers.size(); ++l) {
    Layer& layer = layers[l];
    const ConstMatrix x = Input(l);
    const Matrix t = Crossings(layer);
    HOTROW_RETURN_IF_ERROR(is_bf16() ? MultiplyBf16(args, l, begin, end)
                                     : Multiply(args, l, transposed, begin, end));
    const Matrix y = OutputOf(l, args);
    const float* const bias = args.parameters + layer.bias_offset;
    for (int64_t r = begin; r < end; ++r) {
      const float* const x0_row = last.x.row(r);
      const float* const x_row = x.row(r);
      float* const t_row = t.row(r);
      float* const y_row = y.row(r);
      ForEachVec8(width, [&](int64_t i, auto lanes) {
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
void CrossNetwork::Impl::BackwardVectorRows(const BackwardArgs& args, int64_t begin, int64_t end) {
  const int64_t chunk = begin / kGemmChunkRows * stride;
  for (Layer& layer : layers) {
    std::fill_n(layer.bias_sums.data() + chunk, width, 0.0f);
    std::fill_n(layer.weight_sums.data() + chunk, width, 0.0f);
  }
  for (int64_t r = begin; r < end; ++r) {
    const float* const x0 = last.x.row(r);
    float* const g = args.dy + r * args.dy_stride;
    float* const dx = args.dx == nullptr ? nullptr : args.dx + r * args.dx_stride;
    if (dx != nullptr) std::fill_n(dx, width, 0.0f);
    for (size_t l = layers.size(); l-- > 0;) {
      Layer& layer = layers[l];
      const float ds = Dot(g, x0, width);
      AddScaled(ds, Input(l).row(r), width, layer.weight_sums.data() + chunk);
      Add(g, width, layer.bias_sums.data() + chunk);
      if (dx != nullptr) AddScaled(layer.crossings[r], g, width, dx);
      AddScaled(ds, args.parameters + layer.weight_offset, width, g);
    }
    if (dx != nullptr) Add(g, width, dx);
  }
}

absl::Status CrossNetwork::Impl::MultiplyBack(const BackwardArgs& args, size_t l, bool adds_dy,
                                              int64_t begin, int64_t end) {
  Layer& layer = layers[l];
  const Matrix dt = Crossings(layer);
  const Matrix dy{args.dy, args.dy_stride};
  const float* const weights = args.parameters + layer.weight_offset;
  if (!low_rank()) {
    if (!adds_dy) return absl::OkStatus();
    return layer.first.InputGradient(dt, weights, begin, end, /*add=*/true, dy);
  }
  const Matrix dh{layer.hidden_gradient.data(), rank_stride};
  HOTROW_RETURN_IF_ERROR(layer.second.InputGradient(dt, args.parameters + layer.u_offset, begin,
                                                    end, /*add=*/false, dh));
  if (!adds_dy) return absl::OkStatus();
  return layer.first.InputGradient(dh, weights, begin, end, /*add=*/true, dy);
}

absl::Status CrossNetwork::Impl::MultiplyBackBf16(const BackwardArgs& args, size_t l, bool adds_dy,
                                                  int64_t begin, int64_t end) {
  Layer& layer = layers[l];
  const Matrix dt = Crossings(layer);
  const int64_t columns = layer.bf16_first.in_padded();
  Bf16Products::Lease lease(&products);
  Bf16Scratch* const scratch = lease.get();
  Bf16* gradient = nullptr;
  HOTROW_ASSIGN_OR_RETURN(gradient, Bf16Scratch::Take(kGemmChunkRows * columns, &scratch->rows[0]));
  internal::ToBf16(dt.row(begin), dt.stride, end - begin, width, kGemmChunkRows, columns, gradient);
  if (low_rank()) {
    HOTROW_ASSIGN_OR_RETURN(Bf16* const dh,
                            Bf16Scratch::Take(kGemmChunkRows * columns, &scratch->rows[1]));
    layer.bf16_second.KeepGradient(gradient, begin);
    HOTROW_RETURN_IF_ERROR(layer.bf16_second.InputGradient(&products, gradient,
                                                           /*float_result=*/false, dh, scratch));
    gradient = dh;
  }
  layer.bf16_first.KeepGradient(gradient, begin);
  if (!adds_dy) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(float* const dx,
                          Bf16Scratch::Take(kGemmChunkRows * columns, &scratch->floats));
  HOTROW_RETURN_IF_ERROR(
      layer.bf16_first.InputGradient(&products, gradient, /*float_result=*/true, dx, scratch));
  for (int64_t r = begin; r < end; ++r) {
    Add(dx + (r - begin) * columns, width, args.dy + r * args.dy_stride);
  }
  return absl::OkStatus();
}

// With g = d(loss)/d(x_{l+1}) and t = W x_l + b: dx_0 += g o t, dt = g o x_0, db += dt, and
// d(loss)/d(x_l) = g + W^T dt. g lives in dy; dt takes the place of t.
absl::Status CrossNetwork::Impl::BackwardRows(const BackwardArgs& args, int64_t begin,
                                              int64_t end) {
  const Matrix dy{args.dy, args.dy_stride};
  const Matrix dx{args.dx, args.dx_stride};
  const bool wants_dx = args.dx != nullptr;
  for (int64_t r = begin; wants_dx && r < end; ++r) std::fill_n(dx.row(r), width, 0.0f);
  for (size_t l = layers.size(); l-- > 0;) {
    Layer& layer = layers[l];
    const Matrix t = Crossings(layer);
    float* const sum = layer.bias_sums.data() + begin / kGemmChunkRows * stride;
    std::fill_n(sum, width, 0.0f);
    for (int64_t r = begin; r < end; ++r) {
      const float* const g_row = dy.row(r);
      const float* const x0_row = last.x.row(r);
      float* const t_row = t.row(r);
      float* const dx_row = wants_dx ? dx.row(r) : nullptr;
      ForEachVec8(width, [&](int64_t i, auto lanes) {
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
  for (int64_t r = begin; wants_dx && r < end; ++r) Add(dy.row(r), width, dx.row(r));
  return absl::OkStatus();
}

absl::Status CrossNetwork::Impl::WeightGradientBlock(const BackwardArgs& args,
                                                     const internal::WeightBlock& block) {
  const size_t l = block.linear / linears_per_layer();
  Layer& layer = layers[l];
  const Matrix dt = Crossings(layer);
  float* const dw = args.parameter_gradients + layer.weight_offset;
  if (is_bf16()) {
    Bf16Products::Lease lease(&products);
    const bool of_v = !low_rank() || block.linear % linears_per_layer() == 0;
    return (of_v ? layer.bf16_first : layer.bf16_second)
        .WeightGradient(&products, block, of_v ? dw : args.parameter_gradients + layer.u_offset,
                        lease.get());
  }
  if (!low_rank()) {
    return internal::WeightGradient(layer.first, block, dt, Input(l), last.batch_size, dw);
  }
  if (block.linear % linears_per_layer() == 0) {
    return internal::WeightGradient(layer.first, block, {layer.hidden_gradient.data(), rank_stride},
                                    Input(l), last.batch_size, dw);
  }
  return internal::WeightGradient(layer.second, block, dt, {layer.hidden.data(), rank_stride},
                                  last.batch_size, args.parameter_gradients + layer.u_offset);
}

// gradient [W] = the rows of `sums`, chunk after chunk, with the padding behind it zero.
void CrossNetwork::Impl::SumChunks(const HostBuffer<float>& sums, float* gradient) const {
  std::fill_n(gradient, stride, 0.0f);
  const int64_t chunks = CeilDiv(last.batch_size, kGemmChunkRows);
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    Add(sums.data() + chunk * stride, width, gradient);
}

// All but the matrices: vectors, biases and padding.
void CrossNetwork::Impl::FinishGradients(float* parameter_gradients) const {
  const auto zero_padding = [&](int64_t offset, int64_t floats) {
    std::fill(parameter_gradients + offset + floats,
              parameter_gradients + offset + RoundUp(floats, kFloatsPerLine), 0.0f);
  };
  for (const Layer& layer : layers) {
    SumChunks(layer.bias_sums, parameter_gradients + layer.bias_offset);
    if (is_vector()) {
      SumChunks(layer.weight_sums, parameter_gradients + layer.weight_offset);
    } else if (low_rank()) {
      zero_padding(layer.weight_offset, options.rank * width);
      zero_padding(layer.u_offset, options.rank * width);
    } else {
      zero_padding(layer.weight_offset, width * width);
    }
  }
}

absl::Status CrossNetwork::Impl::LayerReady(const BackwardArgs& args, size_t l) const {
  const int64_t end = l + 1 < layers.size() ? layers[l + 1].weight_offset : num_parameters;
  return args.gradients_ready(layers[l].weight_offset, end);
}

absl::Status CrossNetwork::Impl::CheckArgs(const BackwardArgs& args) const {
  if (args.parameter_gradients == nullptr) return internal::NullField(kOp, "parameter_gradients");
  if (last.batch_size == 0) return absl::OkStatus();
  if (args.parameters == nullptr) return internal::NullField(kOp, "parameters");
  HOTROW_RETURN_IF_ERROR(internal::CheckMatrix(kOp, "dy", args.dy, args.dy_stride, width));
  if (args.dx == nullptr) return absl::OkStatus();
  return internal::CheckMatrix(kOp, "dx", args.dx, args.dx_stride, width);
}

CrossNetwork::CrossNetwork(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CrossNetwork::~CrossNetwork() = default;

absl::StatusOr<std::unique_ptr<CrossNetwork>> CrossNetwork::Create(
    const CrossNetworkOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  HOTROW_RETURN_IF_ERROR(CheckDensePrecision(options.precision));
  auto impl = std::make_unique<Impl>();
  HOTROW_RETURN_IF_ERROR(impl->Init(options));
  return std::unique_ptr<CrossNetwork>(new CrossNetwork(std::move(impl)));
}

int32_t CrossNetwork::width() const { return impl_->options.width; }
int32_t CrossNetwork::num_layers() const { return impl_->options.num_layers; }
int64_t CrossNetwork::num_parameters() const { return impl_->num_parameters; }
int64_t CrossNetwork::weight_offset(int32_t layer) const {
  return impl_->layers.at(static_cast<size_t>(layer)).weight_offset;
}
int64_t CrossNetwork::u_offset(int32_t layer) const {
  HOTROW_CHECK(impl_->low_rank());
  return impl_->layers.at(static_cast<size_t>(layer)).u_offset;
}
int64_t CrossNetwork::bias_offset(int32_t layer) const {
  return impl_->layers.at(static_cast<size_t>(layer)).bias_offset;
}

void CrossNetwork::InitParameters(uint64_t seed, std::span<float> parameters) const {
  HOTROW_CHECK(static_cast<int64_t>(parameters.size()) == impl_->num_parameters);
  std::fill(parameters.begin(), parameters.end(), 0.0f);
  const int64_t width = impl_->width;
  const int64_t rank = impl_->options.rank;
  for (size_t l = 0; l < impl_->layers.size(); ++l) {
    const Impl::Layer& layer = impl_->layers[l];
    const auto draw = [&](int64_t first_element, int64_t in, int64_t out, int64_t offset) {
      const double scale = std::sqrt(2 / static_cast<double>(in + out));
      internal::DrawNormals(
          seed, static_cast<uint32_t>(impl_->options.first_layer_id) + static_cast<uint32_t>(l),
          first_element, static_cast<float>(scale),
          parameters.subspan(static_cast<size_t>(offset), static_cast<size_t>(in * out)));
    };
    if (impl_->is_vector()) {
      draw(0, width, 1, layer.weight_offset);
    } else if (impl_->low_rank()) {
      draw(0, width, rank, layer.weight_offset);
      draw(width * rank, rank, width, layer.u_offset);
    } else {
      draw(0, width, width, layer.weight_offset);
    }
  }
}

absl::Status CrossNetwork::Forward(const ExecContext& ctx, const ForwardArgs& args) {
  Impl& impl = *impl_;
  impl.last = {};  // an error below leaves nothing for Backward
  if (args.batch_size < 0 || args.batch_size > impl.options.max_batch_size) {
    return internal::InvalidField(
        kOp, "batch_size",
        absl::StrCat("must be in [0, max_batch_size = ", impl.options.max_batch_size, "]"),
        args.batch_size);
  }
  if (args.batch_size > 0) {
    if (args.parameters == nullptr) return internal::NullField(kOp, "parameters");
    HOTROW_RETURN_IF_ERROR(internal::CheckMatrix(kOp, "x", args.x, args.x_stride, impl.width));
    HOTROW_RETURN_IF_ERROR(internal::CheckMatrix(kOp, "y", args.y, args.y_stride, impl.width));
  }
  const auto run = [&]() -> absl::Status {
    impl.last = {.x = {args.x, args.x_stride}, .batch_size = args.batch_size};
    const bool transposed = args.batch_size >= internal::kTransposeMinRows;
    if (args.batch_size > 0 && !impl.is_vector()) impl.PrepareWeights(ctx, args, transposed);
    FirstError error;
    ParallelFor(ctx.pool, args.batch_size, kGemmChunkRows, [&](int64_t begin, int64_t end) {
      if (impl.is_vector()) return impl.ForwardVectorRows(args, begin, end);
      const ProductScope scope;
      error.Take(impl.ForwardRows(args, transposed, begin, end));
    });
    HOTROW_RETURN_IF_ERROR(error.ToStatus());
    impl.last.training = args.training;
    return absl::OkStatus();
  };
  return internal::Dispatch(ctx, run,
                            [&](auto stream) { return internal::NoCudaKernel("cross_network"); });
}

absl::Status CrossNetwork::Backward(const ExecContext& ctx, const BackwardArgs& args) {
  HOTROW_RETURN_IF_ERROR(BackwardInput(ctx, args));
  return BackwardParameters(ctx, args);
}

absl::Status CrossNetwork::BackwardInput(const ExecContext& ctx, const BackwardArgs& args) {
  Impl& impl = *impl_;
  if (!impl.last.training) {
    return absl::FailedPreconditionError(
        "CrossNetwork: Backward needs a Forward with training = true right before");
  }
  HOTROW_RETURN_IF_ERROR(impl.CheckArgs(args));
  const auto run = [&]() -> absl::Status {
    impl.last.training = false;  // t is used up
    FirstError error;
    ParallelFor(ctx.pool, impl.last.batch_size, kGemmChunkRows, [&](int64_t begin, int64_t end) {
      if (impl.is_vector()) return impl.BackwardVectorRows(args, begin, end);
      const ProductScope scope;
      error.Take(impl.BackwardRows(args, begin, end));
    });
    HOTROW_RETURN_IF_ERROR(error.ToStatus());
    impl.last.inputs_done = true;
    return absl::OkStatus();
  };
  return internal::Dispatch(ctx, run,
                            [&](auto stream) { return internal::NoCudaKernel("cross_network"); });
}

absl::Status CrossNetwork::BackwardParameters(const ExecContext& ctx, const BackwardArgs& args) {
  Impl& impl = *impl_;
  if (!impl.last.inputs_done) {
    return absl::FailedPreconditionError(
        "CrossNetwork: BackwardParameters needs a BackwardInput right before");
  }
  HOTROW_RETURN_IF_ERROR(impl.CheckArgs(args));
  const auto run = [&]() -> absl::Status {
    impl.last.inputs_done = false;
    const bool empty = impl.last.batch_size == 0;
    if (empty) {
      std::fill_n(args.parameter_gradients, impl.num_parameters, 0.0f);
    } else {
      impl.FinishGradients(args.parameter_gradients);
    }
    if (empty || impl.is_vector()) {
      for (size_t l = impl.layers.size(); args.gradients_ready != nullptr && l-- > 0;) {
        HOTROW_RETURN_IF_ERROR(impl.LayerReady(args, l));
      }
      return absl::OkStatus();
    }
    std::function<absl::Status(size_t)> ready;
    if (args.gradients_ready != nullptr) {
      ready = [&](size_t linear) {
        // The last map comes first, so a layer is done with the first of its maps.
        const size_t per_layer = impl.linears_per_layer();
        if (linear % per_layer != 0) return absl::OkStatus();
        return impl.LayerReady(args, linear / per_layer);
      };
    }
    return internal::RunWeightBlocks(
        ctx.pool, impl.blocks,
        [&](const internal::WeightBlock& block) { return impl.WeightGradientBlock(args, block); },
        ready);
  };
  return internal::Dispatch(ctx, run,
                            [&](auto stream) { return internal::NoCudaKernel("cross_network"); });
}

int64_t CrossNetwork::activation_bytes() const {
  int64_t bytes = impl_->products.bytes();
  for (const Impl::Layer& layer : impl_->layers) {
    for (const HostBuffer<float>* buffer :
         {&layer.first.transposed, &layer.second.transposed, &layer.outputs, &layer.crossings,
          &layer.hidden, &layer.hidden_gradient, &layer.bias_sums, &layer.weight_sums}) {
      bytes += buffer->bytes();
    }
    bytes += layer.bf16_first.bytes() + layer.bf16_second.bytes();
  }
  return bytes;
}

}  // namespace hotrow
