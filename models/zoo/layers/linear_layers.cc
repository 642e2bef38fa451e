#include "models/zoo/layers/dense_layers.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "base/device_memory.h"
#include "base/status_macros.h"
#include "models/onnx/onnx_graph.h"
#include "models/zoo/model_parts.h"
#include "ops/layers/columns.h"
#include "ops/layers/linear_term.h"

namespace hotrow {
namespace {

// What sums over the samples of a batch take on the device of `graph`.
absl::StatusOr<DeviceMemory<std::byte>> NewWorkspace(const ModelGraph& graph, int64_t columns) {
  const ExecContext& ctx = graph.ctx();
  return DeviceMemory<std::byte>::Create(
      LinearTermWorkspaceBytes(ctx.device, graph.options().max_batch_size, columns),
      {ctx.device, ctx.stream});
}

class LinearLayer : public Layer {
 public:
  static absl::StatusOr<std::unique_ptr<Layer>> Create(const ModelGraph& graph, int64_t columns) {
    HOTROW_ASSIGN_OR_RETURN(DeviceMemory<std::byte> workspace, NewWorkspace(graph, columns));
    return std::make_unique<LinearLayer>(columns, std::move(workspace));
  }
  LinearLayer(int64_t columns, DeviceMemory<std::byte> workspace)
      : columns_(columns), workspace_(std::move(workspace)) {}
  TensorShape output() const override { return {1, 1}; }
  LayerTraits traits() const override {
    return {.on_gpu = true,
            .inputs_until = LayerPhase::kBackwardParameters,
            .gradient_until = LayerPhase::kBackwardParameters};
  }
  int64_t num_parameters() const override { return columns_; }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    const std::string weight = onnx.graph->Floats(onnx.name + "/weight", {columns_, 1},
                                                  {onnx.parameters, static_cast<size_t>(columns_)});
    return onnx.graph->Add("MatMul", onnx.name + "/matmul", {onnx.inputs[0].name, weight});
  }
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    return LinearTerm(ctx, {.batch_size = pass.batch_size,
                            .columns = columns_,
                            .x = pass.inputs[0].data,
                            .x_stride = pass.inputs[0].row_stride,
                            .weights = pass.parameters,
                            .output = pass.output.data,
                            .output_stride = pass.output.row_stride});
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    const TensorView& dx = pass.input_gradients[0];
    if (dx.data == nullptr) return absl::OkStatus();
    return LinearTermInputGrad(ctx, {.batch_size = pass.batch_size,
                                     .columns = columns_,
                                     .weights = pass.parameters,
                                     .output_gradient = pass.output_gradient.data,
                                     .output_gradient_stride = pass.output_gradient.row_stride,
                                     .x_gradient = dx.data,
                                     .x_gradient_stride = dx.row_stride});
  }
  absl::Status BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) override {
    return LinearTermWeightGrad(ctx, {.batch_size = pass.batch_size,
                                      .columns = columns_,
                                      .x = pass.inputs[0].data,
                                      .x_stride = pass.inputs[0].row_stride,
                                      .output_gradient = pass.output_gradient.data,
                                      .output_gradient_stride = pass.output_gradient.row_stride,
                                      .weight_gradient = pass.gradients,
                                      .workspace = workspace_.data(),
                                      .workspace_bytes = workspace_.bytes()});
  }

 private:
  const int64_t columns_;
  DeviceMemory<std::byte> workspace_;
};

class BiasLayer : public Layer {
 public:
  static absl::StatusOr<std::unique_ptr<Layer>> Create(const ModelGraph& graph) {
    HOTROW_ASSIGN_OR_RETURN(DeviceMemory<std::byte> workspace, NewWorkspace(graph, 1));
    return std::make_unique<BiasLayer>(std::move(workspace));
  }
  explicit BiasLayer(DeviceMemory<std::byte> workspace) : workspace_(std::move(workspace)) {}
  TensorShape output() const override { return {1, 1}; }
  LayerTraits traits() const override {
    return {.on_gpu = true, .gradient_until = LayerPhase::kBackwardParameters};
  }
  int64_t num_parameters() const override { return 1; }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    OnnxGraph& graph = *onnx.graph;
    const std::string bias = graph.Floats(onnx.name + "/bias", {1, 1}, {onnx.parameters, 1});
    const int64_t one = 1;
    const std::string columns = graph.Ints(onnx.name + "/columns", {1}, {&one, 1});
    const std::string shape = graph.Concat(onnx.name + "/shape", {graph.BatchSize(), columns}, 0);
    return graph.Add("Expand", onnx.name + "/samples", {bias, shape});
  }
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    // All samples have the same column.
    return MoveColumns(ctx, {.kind = MoveColumnsArgs::Kind::kSpread,
                             .batch_size = pass.batch_size,
                             .width = 1,
                             .from = {.data = pass.parameters, .row_stride = 0, .dim = 1},
                             .to = ColumnsOf<float>(pass.output)});
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    return absl::OkStatus();
  }
  absl::Status BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) override {
    return BiasGrad(ctx, {.batch_size = pass.batch_size,
                          .output_gradient = pass.output_gradient.data,
                          .output_gradient_stride = pass.output_gradient.row_stride,
                          .bias_gradient = pass.gradients,
                          .workspace = workspace_.data(),
                          .workspace_bytes = workspace_.bytes()});
  }

 private:
  DeviceMemory<std::byte> workspace_;
};

class ColumnSumLayer : public Layer {
 public:
  TensorShape output() const override { return {1, 1}; }
  LayerTraits traits() const override { return {.on_gpu = true, .strided_fields = true}; }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    return onnx.graph->ReduceSum(onnx.name + "/sum", onnx.inputs[0].name, 1, /*keep_axis=*/true);
  }
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    const TensorView& x = pass.inputs[0];
    return SumColumns(ctx, {.batch_size = pass.batch_size,
                            .width = static_cast<int32_t>(x.shape.width()),
                            .x = ColumnsOf<const float>(x),
                            .output = pass.output.data,
                            .output_stride = pass.output.row_stride});
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    const TensorView& dx = pass.input_gradients[0];
    if (dx.data == nullptr) return absl::OkStatus();
    return MoveColumns(ctx, {.kind = MoveColumnsArgs::Kind::kSpread,
                             .batch_size = pass.batch_size,
                             .width = static_cast<int32_t>(dx.shape.width()),
                             .from = ColumnsOf<const float>(pass.output_gradient),
                             .to = ColumnsOf<float>(dx)});
  }
};

}  // namespace

GraphValue AddLinear(ModelGraph& graph, std::string_view name, GraphValue x) {
  return graph.AddLayer(name, LinearLayer::Create(graph, graph.shape(x).width()), {x});
}

GraphValue AddBias(ModelGraph& graph, std::string_view name, bool joins_previous) {
  return graph.AddLayer(name, BiasLayer::Create(graph), {}, joins_previous);
}

GraphValue AddColumnSum(ModelGraph& graph, std::string_view name, GraphValue fields) {
  return graph.AddLayer(name, std::make_unique<ColumnSumLayer>(), {fields});
}

void AddWideLogit(ModelGraph& graph, int32_t column) {
  const bool has_dense = graph.options().num_dense > 0;
  if (has_dense) graph.AddLogit(AddLinear(graph, "linear", graph.Dense()));
  graph.AddLogit(AddBias(graph, "bias", /*joins_previous=*/has_dense));
  graph.AddLogit(AddColumnSum(graph, "first_order", graph.Embeddings(column, 1)));
}

}  // namespace hotrow
