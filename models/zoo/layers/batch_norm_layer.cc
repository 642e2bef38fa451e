#include "models/zoo/layers/batch_norm_layer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/device_stream.h"
#include "base/status_macros.h"
#include "models/onnx/onnx_graph.h"
#include "ops/layers/columns.h"
#include "ops/layers/dropout.h"

namespace hotrow {

absl::StatusOr<std::unique_ptr<BatchNormLayer>> BatchNormLayer::Create(const Options& options,
                                                                       const ExecContext& ctx) {
  std::unique_ptr<BatchNormLayer> out(new BatchNormLayer(options));
  const int64_t width = 2 * int64_t{options.columns};
  const MemoryOfDevice there = {.device = ctx.device, .stream = ctx.stream};
  HOTROW_ASSIGN_OR_RETURN(
      out->workspace_,
      DeviceMemory<std::byte>::Create(
          BatchNormWorkspaceBytes(options.max_batch_size, options.columns), there));
  HOTROW_ASSIGN_OR_RETURN(out->sums_, DeviceMemory<double>::Create(width, there));
  HOTROW_ASSIGN_OR_RETURN(out->moments_, DeviceMemory<double>::Create(width, there));
  HOTROW_ASSIGN_OR_RETURN(out->scale_, DeviceMemory<float>::Create(width, there));
  HOTROW_ASSIGN_OR_RETURN(out->slice_sums_, SharedBuffer<double>::Create(width + 1, {ctx.device}));
  return out;
}

LayerTraits BatchNormLayer::traits() const {
  return {.on_gpu = true,
          .inputs_until = LayerPhase::kBackwardInputs,
          .gradient_until = LayerPhase::kBackwardInputs,
          .overwrites_gradient = true};
}

void BatchNormLayer::InitParameters(uint64_t /*seed*/, std::span<float> parameters) const {
  std::fill_n(parameters.begin() + gamma_offset(), columns(), 1.0f);
  std::fill_n(parameters.begin() + variance_offset(), columns(), 1.0f);
}

// Operation by operation what Forward does, so that it rounds alike: of BatchNormalization, which
// ONNX has, each runtime chooses the order.
absl::StatusOr<std::string> BatchNormLayer::ToOnnx(const LayerOnnx& onnx) const {
  OnnxGraph& graph = *onnx.graph;
  const auto constant = [&](const char* name, const float* data) {
    return graph.Floats(onnx.name + name, {options_.columns}, {data, columns()});
  };
  std::vector<float> means(columns()), inverse(columns());
  HOTROW_RETURN_IF_ERROR(BatchNormRunning({}, {.columns = options_.columns,
                                               .mean = onnx.parameters + mean_offset(),
                                               .variance = onnx.parameters + variance_offset(),
                                               .scale = {means.data(), inverse.data()}}));
  const std::string mean = constant("/mean", means.data());
  const std::string deviation = constant("/inverse_deviation", inverse.data());
  const std::string gamma = constant("/gamma", onnx.parameters + gamma_offset());
  const std::string beta = constant("/beta", onnx.parameters + beta_offset());
  std::string y = graph.Add("Sub", onnx.name + "/centered", {onnx.inputs[0].name, mean});
  y = graph.Add("Mul", onnx.name + "/normalized", {y, deviation});
  y = graph.Add("Mul", onnx.name + "/scaled", {y, gamma});
  y = graph.Add("Add", onnx.name + "/sum", {y, beta});
  return options_.relu ? graph.Add("Relu", onnx.name + "/relu", {y}) : y;
}

void BatchNormLayer::Describe(bool /*reads_embeddings*/, DenseLayers* layers) const {
  layers->Add({.name = "batch_norm",
               .parameters = num_parameters() - num_untrained(),
               .macs = 4 * int64_t{options_.columns},  // two sums, then twice for each number
               .activations = options_.columns});
}

BatchNormArgs BatchNormLayer::ArgsOf(int64_t batch_size, const TensorView& x,
                                     const float* parameters) {
  return {.batch_size = batch_size,
          .columns = options_.columns,
          .relu = options_.relu,
          .x = x.data,
          .x_stride = x.row_stride,
          .scale = scale(),
          .gamma = parameters + gamma_offset(),
          .beta = parameters + beta_offset()};
}

absl::Status BatchNormLayer::SumOverSlices(const ExecContext& ctx, const SliceSums& sum,
                                           int64_t* samples) {
  if (!sum) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx, slice_sums_.data(), sums_.data(), sums_.bytes()));
  HOTROW_RETURN_IF_ERROR(WaitForStream(ctx));
  double& last = slice_sums_.span().back();
  last = static_cast<double>(*samples);
  HOTROW_RETURN_IF_ERROR(sum(slice_sums_.span()));
  *samples = std::llround(last);
  // The next copy out comes behind this one, and the host waits for that before it writes again.
  return EnqueueCopy(ctx, sums_.data(), slice_sums_.data(), sums_.bytes());
}

absl::Status BatchNormLayer::Drop(const ExecContext& ctx, int64_t rows,
                                  const TensorView& data) const {
  if (options_.dropout == 0 || rows == 0) return absl::OkStatus();
  return Dropout(ctx, {.data = data.data,
                       .rows = rows,
                       .columns = options_.columns,
                       .stride = data.row_stride,
                       .rate = options_.dropout,
                       .seed = options_.seed,
                       .step = step_,
                       .device_step = device_step_,
                       .layer = static_cast<uint32_t>(options_.layer_id),
                       .first_row = first_sample_});
}

absl::Status BatchNormLayer::Forward(const ExecContext& ctx, const LayerForward& pass) {
  const TensorView& x = pass.inputs[0];
  if (pass.training) {
    HOTROW_RETURN_IF_ERROR(BatchNormSums(ctx, {.batch_size = pass.batch_size,
                                               .columns = options_.columns,
                                               .x = x.data,
                                               .x_stride = x.row_stride,
                                               .sums = sums_.data(),
                                               .workspace = workspace_.data(),
                                               .workspace_bytes = workspace_.bytes()}));
    samples_ = pass.batch_size;
    step_ = pass.step;
    device_step_ = pass.device_step;
    first_sample_ = pass.first_sample;
    HOTROW_RETURN_IF_ERROR(SumOverSlices(ctx, pass.sum_over_slices, &samples_));
    HOTROW_RETURN_IF_ERROR(BatchNormMoments(ctx, {.columns = options_.columns,
                                                  .sums = sums_.data(),
                                                  .samples = samples_,
                                                  .moments = moments_.data(),
                                                  .scale = scale()}));
  } else {
    HOTROW_RETURN_IF_ERROR(BatchNormRunning(ctx, {.columns = options_.columns,
                                                  .mean = pass.parameters + mean_offset(),
                                                  .variance = pass.parameters + variance_offset(),
                                                  .scale = scale()}));
  }
  BatchNormArgs args = ArgsOf(pass.batch_size, x, pass.parameters);
  args.output = pass.output.data;
  args.output_stride = pass.output.row_stride;
  HOTROW_RETURN_IF_ERROR(BatchNorm(ctx, args));
  return pass.training ? Drop(ctx, pass.batch_size, pass.output) : absl::OkStatus();
}

// The gradients of gamma and beta are there early: they are the sums that those of the inputs need.
absl::Status BatchNormLayer::BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) {
  const TensorView& dy = pass.output_gradient;
  const TensorView& dx = pass.input_gradients[0];
  HOTROW_RETURN_IF_ERROR(Drop(ctx, pass.batch_size, dy));
  const BatchNormArgs forward = ArgsOf(pass.batch_size, pass.inputs[0], pass.parameters);
  HOTROW_RETURN_IF_ERROR(BatchNormGradSums(ctx, {.forward = forward,
                                                 .output_gradient = dy.data,
                                                 .output_gradient_stride = dy.row_stride,
                                                 .sums = sums_.data(),
                                                 .gradients = pass.gradients + gamma_offset(),
                                                 .workspace = workspace_.data(),
                                                 .workspace_bytes = workspace_.bytes()}));
  int64_t samples = pass.batch_size;
  HOTROW_RETURN_IF_ERROR(SumOverSlices(ctx, pass.sum_over_slices, &samples));
  if (dx.data == nullptr) return absl::OkStatus();
  return BatchNormInputGrad(ctx, {.forward = forward,
                                  .output_gradient = dy.data,
                                  .output_gradient_stride = dy.row_stride,
                                  .sums = sums_.data(),
                                  .samples = samples_,
                                  .x_gradient = dx.data,
                                  .x_gradient_stride = dx.row_stride});
}

absl::Status BatchNormLayer::BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) {
  return MoveColumns(ctx, {.kind = MoveColumnsArgs::Kind::kZero,
                           .batch_size = 1,
                           .width = static_cast<int32_t>(num_untrained()),
                           .to = {pass.gradients + mean_offset(), num_untrained(),
                                  static_cast<int32_t>(num_untrained())}});
}

absl::Status BatchNormLayer::EndStep(const ExecContext& ctx, int64_t samples, float* parameters) {
  return BatchNormEndStep(ctx, {.columns = options_.columns,
                                .samples = samples,
                                .moments = moments_.data(),
                                .momentum = kMomentum,
                                .mean = parameters + mean_offset(),
                                .variance = parameters + variance_offset()});
}

}  // namespace hotrow
