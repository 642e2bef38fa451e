#include "ops/mlp.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/check.h"
#include "base/dispatch.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/dropout.h"
#include "ops/dropout_impl.h"
#include "ops/gemm_impl.h"
#include "ops/no_cuda.h"
#include "ops/validate.h"
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
namespace hotrow {
namespace {

using internal::CheckMatrix;
using internal::ConstMatrix;
using internal::FirstError;
using internal::kFloatsPerLine;
using internal::kGemmChunkRows;
using internal::Linear;
using internal::Matrix;
using internal::ProductScope;

// y[r] = max(y[r] + bias, 0), or without the maximum.
template <bool kRelu>
void AddBias(const Matrix& y, int64_t begin, int64_t end, const float* bias, int64_t columns) {
  for (int64_t r = begin; r < end; ++r) {
    float* const row = y.row(r);
    internal::ForEachVec8(columns, [&](int64_t i, auto lanes) {
      const internal::Vec8 z =
          internal::LoadLanes(row + i, lanes) + internal::LoadLanes(bias + i, lanes);
      internal::StoreLanes(kRelu ? internal::Vec8::Relu(z) : z, row + i, lanes);
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
    internal::ForEachVec8(columns, [&](int64_t i, auto lanes) {
      internal::Vec8 g = internal::LoadLanes(row + i, lanes);
      if constexpr (kRelu) {
        g = internal::Vec8::ReluGrad(internal::LoadLanes(output + i, lanes), g);
        internal::StoreLanes(g, row + i, lanes);
      }
      internal::StoreLanes(internal::LoadLanes(sum + i, lanes) + g, sum + i, lanes);
    });
  }
}

}  // namespace

absl::Status MlpOptions::Validate() const {
  if (sizes.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "MlpOptions: sizes must have at least 2 entries (input, output), got ", sizes.size()));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("MlpOptions: sizes[", i, "] must be > 0, got ", sizes[i]));
    }
  }
  if (!(dropout >= 0 && dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("MlpOptions: dropout must be in [0, 1), got ", dropout));
  }
  if (first_layer_id < 0 ||
      first_layer_id + static_cast<int64_t>(sizes.size()) > int64_t{kMaxDropoutLayers}) {
    return absl::InvalidArgumentError(absl::StrCat(
        "MlpOptions: first_layer_id must be in [0, 2^28 - layers), got ", first_layer_id));
  }
  if (max_batch_size <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("MlpOptions: max_batch_size must be > 0, got ", max_batch_size));
  }
  return absl::OkStatus();
}

// Layer l reads its input x_l [B, in] and writes z_l = x_l W^T + b, then ReLU: y_l [B, out].
struct Mlp::Impl {
  struct Layer {
    Linear linear;
    int64_t weight_offset = 0;
    int64_t bias_offset = 0;
    bool relu = false;
    bool last = false;
    HostBuffer<float> outputs;    // y_l [B, out]; the last layer keeps it only if it has ReLU
    HostBuffer<float> gradients;  // d(loss)/d(y_l), then of z_l; the last layer uses the caller's
    HostBuffer<float> bias_sums;  // column sums of the gradients of z_l, one row for each chunk
  };

  // What Backward needs to know of the last Forward.
  struct LastForward {
    bool training = false;
    ConstMatrix x = {nullptr, 0};
    int64_t batch_size = 0;
    uint32_t step = 0;
    int64_t first_row = 0;
    bool inputs_done = false;  // by BackwardInput; BackwardParameters can follow
  };

  absl::Status Init(const MlpOptions& mlp_options);
  absl::Status Allocate();

  ConstMatrix Input(size_t l) const {
    return l == 0 ? last.x
                  : ConstMatrix(layers[l - 1].outputs.data(), layers[l - 1].linear.out_stride);
  }
  // Where layer l writes its output, or finds its gradient.
  static Matrix OutputOf(Layer& layer, const ForwardArgs& args) {
    return layer.last ? Matrix{args.y, args.y_stride}
                      : Matrix{layer.outputs.data(), layer.linear.out_stride};
  }
  static Matrix GradientOf(Layer& layer, const BackwardArgs& args) {
    return layer.last ? Matrix{args.dy, args.dy_stride}
                      : Matrix{layer.gradients.data(), layer.linear.out_stride};
  }
  DropoutArgs DropoutOf(size_t l, const Matrix& data) const {
    return {.data = data.data,
            .rows = last.batch_size,
            .columns = layers[l].linear.out,
            .stride = data.stride,
            .rate = options.dropout,
            .seed = options.seed,
            .step = last.step,
            .layer = static_cast<uint32_t>(options.first_layer_id) + static_cast<uint32_t>(l),
            .first_row = last.first_row};
  }
  bool DropsOut(const Layer& layer) const { return !layer.last && options.dropout > 0; }

  absl::Status ForwardRows(const ForwardArgs& args, bool transposed, int64_t begin, int64_t end);
  absl::Status BackwardRows(const BackwardArgs& args, int64_t begin, int64_t end);
  absl::Status WeightGradientBlock(const BackwardArgs& args, const internal::WeightBlock& block);
  void BiasGradients(float* parameter_gradients) const;
  // args.gradients_ready for layer l.
  absl::Status LayerReady(const BackwardArgs& args, size_t l) const;
  absl::Status CheckBackward(const BackwardArgs& args) const;

  MlpOptions options;
  std::vector<Layer> layers;
  internal::WeightBlocks blocks;  // of all layers
  int64_t num_parameters = 0;
  LastForward last;
};

absl::Status Mlp::Impl::Init(const MlpOptions& mlp_options) {
  options = mlp_options;
  layers.resize(options.sizes.size() - 1);
  for (size_t l = 0; l < layers.size(); ++l) {
    Layer& layer = layers[l];
    HOTROW_RETURN_IF_ERROR(layer.linear.Init(options.sizes[l], options.sizes[l + 1]));
    layer.last = l + 1 == layers.size();
    layer.relu = !layer.last || options.relu_on_output;
    layer.weight_offset = num_parameters;
    layer.bias_offset =
        layer.weight_offset + RoundUp(layer.linear.in * layer.linear.out, kFloatsPerLine);
    num_parameters = layer.bias_offset + layer.linear.out_stride;
  }
  std::vector<const Linear*> linears;
  for (const Layer& layer : layers) linears.push_back(&layer.linear);
  blocks = internal::CutWeights(linears);
  return Allocate();
}

absl::Status Mlp::Impl::Allocate() {
  const int64_t chunks = CeilDiv(options.max_batch_size, kGemmChunkRows);
  for (Layer& layer : layers) {
    const int64_t activations = options.max_batch_size * layer.linear.out_stride;
    if (layer.relu) {
      HOTROW_ASSIGN_OR_RETURN(layer.outputs,
                              HostBuffer<float>::Create(activations, HugePages::kTry));
    }
    if (!layer.last) {
      HOTROW_ASSIGN_OR_RETURN(layer.gradients,
                              HostBuffer<float>::Create(activations, HugePages::kTry));
    }
    HOTROW_ASSIGN_OR_RETURN(layer.bias_sums,
                            HostBuffer<float>::Create(chunks * layer.linear.out_stride));
  }
  return absl::OkStatus();
}

absl::Status Mlp::Impl::ForwardRows(const ForwardArgs& args, bool transposed, int64_t begin,
                                    int64_t end) {
  for (size_t l = 0; l < layers.size(); ++l) {
    Layer& layer = layers[l];
    const Matrix y = OutputOf(layer, args);
    HOTROW_RETURN_IF_ERROR(layer.linear.Forward(Input(l), args.parameters + layer.weight_offset,
                                                transposed, begin, end, y));
    const float* const bias = args.parameters + layer.bias_offset;
    if (layer.relu) {
      AddBias<true>(y, begin, end, bias, layer.linear.out);
    } else {
      AddBias<false>(y, begin, end, bias, layer.linear.out);
    }
    if (args.training && DropsOut(layer)) internal::DropoutRowsCpu(DropoutOf(l, y), begin, end);
    if (args.training && layer.last && layer.relu) {
      // The caller may change y before Backward, which needs to know where it was zero.
      for (int64_t r = begin; r < end; ++r) {
        std::copy_n(y.row(r), layer.linear.out, layer.outputs.data() + r * layer.linear.out_stride);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Mlp::Impl::BackwardRows(const BackwardArgs& args, int64_t begin, int64_t end) {
  for (size_t l = layers.size(); l-- > 0;) {
    Layer& layer = layers[l];
    const Matrix dy = GradientOf(layer, args);
    if (DropsOut(layer)) internal::DropoutRowsCpu(DropoutOf(l, dy), begin, end);
    float* const sum = layer.bias_sums.data() + begin / kGemmChunkRows * layer.linear.out_stride;
    const ConstMatrix y(layer.outputs.data(), layer.linear.out_stride);
    if (layer.relu) {
      MaskAndSumColumns<true>(y, dy, begin, end, layer.linear.out, sum);
    } else {
      MaskAndSumColumns<false>(y, dy, begin, end, layer.linear.out, sum);
    }
    if (l == 0 && args.dx == nullptr) break;
    const Matrix dx = l == 0 ? Matrix{args.dx, args.dx_stride} : GradientOf(layers[l - 1], args);
    HOTROW_RETURN_IF_ERROR(layer.linear.InputGradient(dy, args.parameters + layer.weight_offset,
                                                      begin, end, /*add=*/false, dx));
  }
  return absl::OkStatus();
}

absl::Status Mlp::Impl::WeightGradientBlock(const BackwardArgs& args,
                                            const internal::WeightBlock& block) {
  Layer& layer = layers[block.linear];
  return internal::WeightGradient(layer.linear, block, GradientOf(layer, args), Input(block.linear),
                                  last.batch_size, args.parameter_gradients + layer.weight_offset);
}

void Mlp::Impl::BiasGradients(float* parameter_gradients) const {
  const int64_t chunks = CeilDiv(last.batch_size, kGemmChunkRows);
  for (const Layer& layer : layers) {
    float* const gradient = parameter_gradients + layer.bias_offset;
    std::fill_n(gradient, layer.linear.out, 0.0f);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float* const sum = layer.bias_sums.data() + chunk * layer.linear.out_stride;
      for (int64_t i = 0; i < layer.linear.out; ++i) gradient[i] += sum[i];
    }
    // The padding after W and after b.
    const int64_t weights_end = layer.weight_offset + layer.linear.in * layer.linear.out;
    std::fill_n(parameter_gradients + weights_end, layer.bias_offset - weights_end, 0.0f);
    std::fill_n(gradient + layer.linear.out, layer.linear.out_stride - layer.linear.out, 0.0f);
  }
}

absl::Status Mlp::Impl::LayerReady(const BackwardArgs& args, size_t l) const {
  const int64_t end = l + 1 < layers.size() ? layers[l + 1].weight_offset : num_parameters;
  return args.gradients_ready(layers[l].weight_offset, end);
}

absl::Status Mlp::Impl::CheckBackward(const BackwardArgs& args) const {
  if (!last.training) {
    return absl::FailedPreconditionError(
        "Mlp: Backward needs a Forward with training = true right before");
  }
  if (args.parameter_gradients == nullptr) {
    return internal::NullField("Mlp", "parameter_gradients");
  }
  if (last.batch_size == 0) return absl::OkStatus();
  if (args.parameters == nullptr) {
    return internal::NullField("Mlp", "parameters");
  }
  HOTROW_RETURN_IF_ERROR(
      CheckMatrix("Mlp", "dy", args.dy, args.dy_stride, layers.back().linear.out));
  if (args.dx == nullptr) return absl::OkStatus();
  return CheckMatrix("Mlp", "dx", args.dx, args.dx_stride, layers.front().linear.in);
}

Mlp::Mlp(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Mlp::~Mlp() = default;

absl::StatusOr<std::unique_ptr<Mlp>> Mlp::Create(const MlpOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto impl = std::make_unique<Impl>();
  HOTROW_RETURN_IF_ERROR(impl->Init(options));
  return std::unique_ptr<Mlp>(new Mlp(std::move(impl)));
}

int32_t Mlp::num_layers() const { return static_cast<int32_t>(impl_->layers.size()); }
int64_t Mlp::num_parameters() const { return impl_->num_parameters; }
int64_t Mlp::weight_offset(int32_t layer) const {
  return impl_->layers.at(static_cast<size_t>(layer)).weight_offset;
}
int64_t Mlp::bias_offset(int32_t layer) const {
  return impl_->layers.at(static_cast<size_t>(layer)).bias_offset;
}
int32_t Mlp::input_size() const { return impl_->options.sizes.front(); }
int32_t Mlp::output_size() const { return impl_->options.sizes.back(); }

void Mlp::InitParameters(uint64_t seed, std::span<float> parameters) const {
  HOTROW_CHECK(static_cast<int64_t>(parameters.size()) == impl_->num_parameters);
  std::fill(parameters.begin(), parameters.end(), 0.0f);
  for (size_t l = 0; l < impl_->layers.size(); ++l) {
    const Impl::Layer& layer = impl_->layers[l];
    const int64_t weights = layer.linear.in * layer.linear.out;
    const auto in = static_cast<double>(layer.linear.in);
    const auto out = static_cast<double>(layer.linear.out);
    const auto id = static_cast<uint32_t>(impl_->options.first_layer_id) + static_cast<uint32_t>(l);
    const auto block = [&](int64_t offset, int64_t count) {
      return parameters.subspan(static_cast<size_t>(offset), static_cast<size_t>(count));
    };
    internal::DrawNormals(seed, id, 0, static_cast<float>(std::sqrt(2 / (in + out))),
                          block(layer.weight_offset, weights));
    internal::DrawNormals(seed, id, weights, static_cast<float>(std::sqrt(1 / out)),
                          block(layer.bias_offset, layer.linear.out));
  }
}

absl::Status Mlp::Forward(const ExecContext& ctx, const ForwardArgs& args) {
  Impl& impl = *impl_;
  impl.last = {};  // an error below leaves nothing for Backward
  if (args.batch_size < 0 || args.batch_size > impl.options.max_batch_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Mlp: batch_size must be in [0, max_batch_size = ", impl.options.max_batch_size, "], got ",
        args.batch_size));
  }
  if (args.first_row < 0) {
    return internal::InvalidField("Mlp", "first_row", "must be >= 0", args.first_row);
  }
  if (args.batch_size > 0) {
    if (args.parameters == nullptr) {
      return internal::NullField("Mlp", "parameters");
    }
    HOTROW_RETURN_IF_ERROR(CheckMatrix("Mlp", "x", args.x, args.x_stride, input_size()));
    HOTROW_RETURN_IF_ERROR(CheckMatrix("Mlp", "y", args.y, args.y_stride, output_size()));
  }
  const auto run = [&]() -> absl::Status {
    impl.last = {.x = {args.x, args.x_stride},
                 .batch_size = args.batch_size,
                 .step = args.step,
                 .first_row = args.first_row};
    const bool transposed = args.batch_size >= internal::kTransposeMinRows;
    if (transposed) {
      for (Impl::Layer& layer : impl.layers) {
        layer.linear.Transpose(ctx.pool, args.parameters + layer.weight_offset);
      }
    }
    FirstError error;
    ParallelFor(ctx.pool, args.batch_size, kGemmChunkRows, [&](int64_t begin, int64_t end) {
      const ProductScope scope;
      error.Take(impl.ForwardRows(args, transposed, begin, end));
    });
    HOTROW_RETURN_IF_ERROR(error.ToStatus());
    impl.last.training = args.training;
    return absl::OkStatus();
  };
  return internal::Dispatch(ctx, run, [&](auto stream) { return internal::NoCudaKernel("mlp"); });
}

absl::Status Mlp::Backward(const ExecContext& ctx, const BackwardArgs& args) {
  HOTROW_RETURN_IF_ERROR(BackwardInput(ctx, args));
  return BackwardParameters(ctx, args);
}

absl::Status Mlp::BackwardInput(const ExecContext& ctx, const BackwardArgs& args) {
  Impl& impl = *impl_;
  HOTROW_RETURN_IF_ERROR(impl.CheckBackward(args));
  const auto run = [&]() -> absl::Status {
    impl.last.inputs_done = false;
    FirstError error;
    ParallelFor(ctx.pool, impl.last.batch_size, kGemmChunkRows, [&](int64_t begin, int64_t end) {
      const ProductScope scope;
      error.Take(impl.BackwardRows(args, begin, end));
    });
    HOTROW_RETURN_IF_ERROR(error.ToStatus());
    impl.last.inputs_done = true;
    return absl::OkStatus();
  };
  return internal::Dispatch(ctx, run, [&](auto stream) { return internal::NoCudaKernel("mlp"); });
}

absl::Status Mlp::BackwardParameters(const ExecContext& ctx, const BackwardArgs& args) {
  Impl& impl = *impl_;
  HOTROW_RETURN_IF_ERROR(impl.CheckBackward(args));
  if (!impl.last.inputs_done) {
    return absl::FailedPreconditionError(
        "Mlp: BackwardParameters needs a BackwardInput right before");
  }
  const auto run = [&]() -> absl::Status {
    impl.last.inputs_done = false;
    std::function<absl::Status(size_t)> ready;
    if (args.gradients_ready != nullptr) {
      ready = [&](size_t l) { return impl.LayerReady(args, l); };
    }
    if (impl.last.batch_size == 0) {
      std::fill_n(args.parameter_gradients, impl.num_parameters, 0.0f);
      for (size_t l = impl.layers.size(); ready != nullptr && l-- > 0;) {
        HOTROW_RETURN_IF_ERROR(ready(l));
      }
      return absl::OkStatus();
    }
    impl.BiasGradients(args.parameter_gradients);
    return internal::RunWeightBlocks(
        ctx.pool, impl.blocks,
        [&](const internal::WeightBlock& block) { return impl.WeightGradientBlock(args, block); },
        ready);
  };
  return internal::Dispatch(ctx, run, [&](auto stream) { return internal::NoCudaKernel("mlp"); });
}

int64_t Mlp::activation_bytes() const {
  int64_t bytes = 0;
  for (const Impl::Layer& layer : impl_->layers) {
    bytes += layer.outputs.bytes() + layer.gradients.bytes() + layer.linear.transposed.bytes() +
             layer.bias_sums.bytes();
  }
  return bytes;
}

}  // namespace hotrow
