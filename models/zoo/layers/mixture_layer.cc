#include "models/zoo/layers/mixture_layer.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/onnx/onnx_graph.h"
#include "models/zoo/layers/mlp_layer_impl.h"

namespace hotrow {
namespace {

// Forward of `kind` over inputs gate and vectors.
GatedExpertsArgs ArgsOf(GatedOutput kind, int64_t batch_size, int64_t experts, int64_t dim,
                        const TensorView& gate, const TensorView& x) {
  return {.kind = kind,
          .batch_size = batch_size,
          .num_experts = static_cast<int32_t>(experts),
          .dim = static_cast<int32_t>(dim),
          .gate = gate.data,
          .gate_stride = gate.row_stride,
          .x = x.data,
          .x_stride = x.row_stride};
}

// The experts' vectors [B, E D], each times its share: [B, E, D].
std::string AddOnnxShares(OnnxGraph& graph, const std::string& name, const std::string& gate,
                          const std::string& experts, int64_t num_experts, int64_t columns) {
  std::string shares = graph.Add("Softmax", name + "/shares", {gate}, {{"axis", int64_t{1}}});
  shares = graph.Unsqueeze(name + "/of_columns", shares, 2);
  const std::string vectors = graph.Reshape(name + "/vectors", experts, {0, num_experts, columns});
  return graph.Add("Mul", name + "/shared", {vectors, shares});
}

class MixtureLayer : public Layer {
 public:
  MixtureLayer(int64_t experts, int64_t dim) : experts_(experts), dim_(dim) {}
  TensorShape output() const override { return {1, static_cast<int32_t>(dim_)}; }
  LayerTraits traits() const override {
    return {.on_gpu = true, .inputs_until = LayerPhase::kBackwardInputs};
  }

  void Describe(bool reads_embeddings, DenseLayers* layers) const override {
    layers->Add({.name = "mixture", .macs = experts_ * dim_, .activations = dim_});
  }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    const std::string shared = AddOnnxShares(*onnx.graph, onnx.name, onnx.inputs[0].name,
                                             onnx.inputs[1].name, experts_, dim_);
    return onnx.graph->ReduceSum(onnx.name + "/sum", shared, 1);
  }

  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    GatedExpertsArgs args =
        ArgsOf(GatedOutput::kSum, pass.batch_size, experts_, dim_, pass.inputs[0], pass.inputs[1]);
    args.output = pass.output.data;
    args.output_stride = pass.output.row_stride;
    return GatedExperts(ctx, args);
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    const TensorView& dgate = pass.input_gradients[0];
    const TensorView& dx = pass.input_gradients[1];
    return GatedExpertsGrad(ctx, {.forward = ArgsOf(GatedOutput::kSum, pass.batch_size, experts_,
                                                    dim_, pass.inputs[0], pass.inputs[1]),
                                  .output_gradient = pass.output_gradient.data,
                                  .output_gradient_stride = pass.output_gradient.row_stride,
                                  .gate_gradient = dgate.data,
                                  .gate_gradient_stride = dgate.row_stride,
                                  .x_gradient = dx.data,
                                  .x_gradient_stride = dx.row_stride});
  }

 private:
  const int64_t experts_;
  const int64_t dim_;
};

// Whether there are as many columns for each number of the gate; otherwise the graph fails.
bool CheckGate(ModelGraph& graph, std::string_view name, GraphValue gate, GraphValue experts) {
  if (!graph.ok()) return false;
  const int64_t count = graph.shape(gate).width();
  const int64_t width = graph.shape(experts).width();
  if (count >= 1 && width % count == 0) return true;
  graph.Fail(absl::InvalidArgumentError(absl::StrCat(std::string(name), ": a gate of ", count,
                                                     " experts, which have ", width,
                                                     " columns in all; each needs as many")));
  return false;
}

}  // namespace

GraphValue AddMixture(ModelGraph& graph, std::string_view name, GraphValue gate,
                      GraphValue experts) {
  if (!CheckGate(graph, name, gate, experts)) return {};
  const int64_t count = graph.shape(gate).width();
  return graph.AddLayer(name,
                        std::make_unique<MixtureLayer>(count, graph.shape(experts).width() / count),
                        {gate, experts});
}

absl::StatusOr<std::unique_ptr<GatedMapsLayer>> GatedMapsLayer::Create(const Options& options,
                                                                       const ExecContext& ctx) {
  std::unique_ptr<GatedMapsLayer> layer(new GatedMapsLayer(options));
  for (int64_t e = 0; e < options.experts; ++e) {
    MlpOptions map;
    map.sizes = {options.columns, options.columns};
    map.relu_on_output = true;
    map.first_layer_id = options.first_layer_id + static_cast<int32_t>(e);
    map.max_batch_size = options.max_batch_size;
    map.precision = options.precision;
    HOTROW_ASSIGN_OR_RETURN(layer->maps_.emplace_back(), Mlp::Create(map, ctx));
  }
  for (DeviceMemory<float>* buffer : {&layer->values_, &layer->gradients_}) {
    HOTROW_ASSIGN_OR_RETURN(*buffer,
                            DeviceMemory<float>::Create(options.max_batch_size * layer->columns(),
                                                        {ctx.device, ctx.stream, HugePages::kTry}));
  }
  return layer;
}

LayerTraits GatedMapsLayer::traits() const {
  return {
      .on_gpu = true, .inputs_until = LayerPhase::kBackwardParameters, .reports_gradients = true};
}

void GatedMapsLayer::InitParameters(uint64_t seed, std::span<float> parameters) const {
  for (int64_t e = 0; e < options_.experts; ++e) {
    map(e).InitParameters(seed, parameters.subspan(static_cast<size_t>(offset(e)),
                                                   static_cast<size_t>(map(e).num_parameters())));
  }
}

void GatedMapsLayer::Describe(bool /*reads_embeddings*/, DenseLayers* layers) const {
  for (int64_t e = 0; e < options_.experts; ++e) {
    layers->Add({.name = "gated_map",
                 .inputs = options_.columns,
                 .outputs = options_.columns,
                 .macs = options_.columns,
                 .activations = options_.columns});
  }
}

absl::StatusOr<std::string> GatedMapsLayer::ToOnnx(const LayerOnnx& onnx) const {
  OnnxGraph& graph = *onnx.graph;
  const int64_t width = options_.columns;
  OnnxGraph::Inputs values;
  for (int64_t e = 0; e < options_.experts; ++e) {
    const std::string name = absl::StrCat(onnx.name, "/expert", e);
    const std::string x =
        graph.Slice(name + "/x", onnx.inputs[1].name, 1, e * width, (e + 1) * width);
    values.push_back(AddOnnxMlp(graph, name, map(e), onnx.parameters + offset(e), x));
  }
  const std::string shared =
      AddOnnxShares(graph, onnx.name, onnx.inputs[0].name,
                    graph.Concat(onnx.name + "/values", values, 1), options_.experts, width);
  return graph.Reshape(onnx.name + "/output", shared, {0, columns()});
}

absl::Status GatedMapsLayer::Forward(const ExecContext& ctx, const LayerForward& pass) {
  const int64_t width = options_.columns;
  for (int64_t e = 0; e < options_.experts; ++e) {
    HOTROW_RETURN_IF_ERROR(
        maps_[static_cast<size_t>(e)]->Forward(ctx, {.parameters = pass.parameters + offset(e),
                                                     .x = pass.inputs[1].data + e * width,
                                                     .x_stride = pass.inputs[1].row_stride,
                                                     .batch_size = pass.batch_size,
                                                     .y = values_.data() + e * width,
                                                     .y_stride = columns(),
                                                     .training = pass.training,
                                                     .step = pass.step,
                                                     .parameters_number = pass.parameters_number}));
  }
  GatedExpertsArgs args = Scaled(pass.batch_size, pass.inputs[0]);
  args.output = pass.output.data;
  args.output_stride = pass.output.row_stride;
  return GatedExperts(ctx, args);
}

GatedExpertsArgs GatedMapsLayer::Scaled(int64_t batch_size, const TensorView& gate) {
  const TensorView values = {.data = values_.data(), .row_stride = columns()};
  return ArgsOf(GatedOutput::kScaled, batch_size, options_.experts, options_.columns, gate, values);
}

Mlp::BackwardArgs GatedMapsLayer::MapArgs(int64_t expert, const LayerBackward& pass) {
  const int64_t column = expert * options_.columns;
  const TensorView& dx = pass.input_gradients[1];
  Mlp::BackwardArgs args = {.parameters = pass.parameters + offset(expert),
                            .dy = gradients_.data() + column,
                            .dy_stride = columns(),
                            .dx = dx.data == nullptr ? nullptr : dx.data + column,
                            .dx_stride = dx.row_stride,
                            .parameter_gradients = pass.gradients + offset(expert)};
  if (pass.gradients_ready != nullptr) {
    args.gradients_ready = [&pass, first = offset(expert)](int64_t begin, int64_t end) {
      return pass.gradients_ready(first + begin, first + end);
    };
  }
  return args;
}

absl::Status GatedMapsLayer::BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) {
  const TensorView& dgate = pass.input_gradients[0];
  HOTROW_RETURN_IF_ERROR(
      GatedExpertsGrad(ctx, {.forward = Scaled(pass.batch_size, pass.inputs[0]),
                             .output_gradient = pass.output_gradient.data,
                             .output_gradient_stride = pass.output_gradient.row_stride,
                             .gate_gradient = dgate.data,
                             .gate_gradient_stride = dgate.row_stride,
                             .x_gradient = gradients_.data(),
                             .x_gradient_stride = columns()}));
  for (int64_t e = 0; e < options_.experts; ++e) {
    HOTROW_RETURN_IF_ERROR(maps_[static_cast<size_t>(e)]->BackwardInput(ctx, MapArgs(e, pass)));
  }
  return absl::OkStatus();
}

absl::Status GatedMapsLayer::BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) {
  for (int64_t e = options_.experts; e-- > 0;) {
    HOTROW_RETURN_IF_ERROR(
        maps_[static_cast<size_t>(e)]->BackwardParameters(ctx, MapArgs(e, pass)));
  }
  return absl::OkStatus();
}

GraphValue AddGatedMaps(ModelGraph& graph, std::string_view name, GraphValue gate, GraphValue x) {
  if (!CheckGate(graph, name, gate, x)) return {};
  const int64_t experts = graph.shape(gate).width();
  return graph.AddLayer(
      name,
      GatedMapsLayer::Create({.experts = experts,
                              .columns = static_cast<int32_t>(graph.shape(x).width() / experts),
                              .first_layer_id = graph.TakeLayerIds(static_cast<int32_t>(experts)),
                              .max_batch_size = graph.options().max_batch_size,
                              .precision = graph.options().precision},
                             graph.ctx()),
      {gate, x});
}

}  // namespace hotrow
