#include "models/zoo/layers/cross_layer.h"

#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/onnx/onnx_graph.h"
#include "models/zoo/layers/dense_layers.h"
#include "models/zoo/layers/mixture_layer.h"
#include "ops/layers/crossing.h"

namespace hotrow {
namespace {

// x_0, t, x -> x_0 o t + x, of equal numbers of columns.
class CrossingLayer : public Layer {
 public:
  explicit CrossingLayer(int32_t width) : width_(width) {}
  TensorShape output() const override { return {1, width_}; }
  LayerTraits traits() const override {
    return {.on_gpu = true, .inputs_until = LayerPhase::kBackwardInputs};
  }
  void Describe(bool /*reads_embeddings*/, DenseLayers* layers) const override {
    layers->Add({.name = "crossing", .macs = width_, .activations = width_});
  }
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override {
    const std::string crossed =
        onnx.graph->Add("Mul", onnx.name + "/crossed", {onnx.inputs[0].name, onnx.inputs[1].name});
    return onnx.graph->Add("Add", onnx.name + "/sum", {crossed, onnx.inputs[2].name});
  }

  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override {
    return Crossing(ctx, {.batch_size = pass.batch_size,
                          .width = width_,
                          .x0 = pass.inputs[0].data,
                          .x0_stride = pass.inputs[0].row_stride,
                          .t = pass.inputs[1].data,
                          .t_stride = pass.inputs[1].row_stride,
                          .x = pass.inputs[2].data,
                          .x_stride = pass.inputs[2].row_stride,
                          .output = pass.output.data,
                          .output_stride = pass.output.row_stride});
  }
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override {
    return CrossingGrad(ctx, {.batch_size = pass.batch_size,
                              .width = width_,
                              .x0 = pass.inputs[0].data,
                              .x0_stride = pass.inputs[0].row_stride,
                              .t = pass.inputs[1].data,
                              .t_stride = pass.inputs[1].row_stride,
                              .output_gradient = pass.output_gradient.data,
                              .output_gradient_stride = pass.output_gradient.row_stride,
                              .x0_gradient = pass.input_gradients[0].data,
                              .x0_gradient_stride = pass.input_gradients[0].row_stride,
                              .t_gradient = pass.input_gradients[1].data,
                              .t_gradient_stride = pass.input_gradients[1].row_stride,
                              .x_gradient = pass.input_gradients[2].data,
                              .x_gradient_stride = pass.input_gradients[2].row_stride});
  }

 private:
  const int32_t width_;
};

GraphValue AddCrossMixture(ModelGraph& graph, std::string_view name, GraphValue x0,
                           const CrossSpec& spec) {
  const int32_t width = static_cast<int32_t>(graph.shape(x0).width());
  const int64_t hidden = int64_t{spec.num_experts} * spec.rank;
  if (spec.kind != CrossKind::kMatrix || hidden < 1 ||
      hidden > std::numeric_limits<int32_t>::max()) {
    return graph.Fail(absl::InvalidArgumentError(
        absl::StrCat(std::string(name), ": ", spec.num_experts, " experts of rank ", spec.rank,
                     " need matrices of a rank, and 2^31 - 1 columns at most")));
  }
  GraphValue x = x0;
  for (int32_t l = 0; l < spec.num_layers; ++l) {
    const std::string layer = absl::StrCat(std::string(name), l);
    const GraphValue down =
        AddMlp(graph, layer + ".down", x,
               {.sizes = {static_cast<int32_t>(hidden)}, .relu_on_output = true});
    const GraphValue gate = AddMlp(graph, layer + ".gate", x, {.sizes = {spec.num_experts}});
    const GraphValue experts = AddGatedMaps(graph, layer + ".experts", gate, down);
    const GraphValue up = AddMlp(graph, layer + ".up", experts, {.sizes = {width}});
    x = graph.AddLayer(layer, std::make_unique<CrossingLayer>(width), {x0, up, x});
  }
  return x;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CrossLayer>> CrossLayer::Create(const CrossNetworkOptions& options,
                                                               const ExecContext& ctx) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<CrossNetwork> cross, CrossNetwork::Create(options, ctx));
  return std::unique_ptr<CrossLayer>(new CrossLayer(options, std::move(cross)));
}

LayerTraits CrossLayer::traits() const {
  return {.on_gpu = true,
          .inputs_until = LayerPhase::kBackwardParameters,
          .overwrites_gradient = true,
          .reports_gradients = true};
}

void CrossLayer::Describe(bool reads_embeddings, DenseLayers* layers) const {
  layers->interaction = "cross";
  layers->cross_layers = options_.num_layers;
  layers->cross_rank = options_.kind == CrossKind::kVector ? 1 : options_.rank;
}

absl::StatusOr<std::string> CrossLayer::ToOnnx(const LayerOnnx& onnx) const {
  OnnxGraph& graph = *onnx.graph;
  const int64_t width = options_.width;
  const int64_t rank = options_.rank;
  const auto constant = [&](const std::string& name, std::vector<int64_t> dims, int64_t offset) {
    int64_t size = 1;
    for (const int64_t dim : dims) size *= dim;
    return graph.Floats(name, std::move(dims),
                        {onnx.parameters + offset, static_cast<size_t>(size)});
  };
  const std::string& x0 = onnx.inputs[0].name;
  const OnnxGraph::Attributes transposed = {{"transB", int64_t{1}}};
  std::string x = x0;
  for (int32_t l = 0; l < options_.num_layers; ++l) {
    const std::string name = absl::StrCat(onnx.name, "/", l);
    const int64_t weight = network().weight_offset(l);
    const std::string bias = constant(name + "/bias", {width}, network().bias_offset(l));
    if (options_.kind == CrossKind::kVector) {
      const std::string w = constant(name + "/weight", {width, 1}, weight);
      const std::string product = graph.Add("MatMul", name + "/product", {x, w});
      const std::string crossed = graph.Add("Mul", name + "/crossed", {x0, product});
      const std::string moved = graph.Add("Add", name + "/moved", {crossed, bias});
      x = graph.Add("Add", name + "/sum", {moved, x});
      continue;
    }
    std::string t;
    if (rank > 0) {
      const std::string v = constant(name + "/v", {rank, width}, weight);
      const std::string u = constant(name + "/u", {width, rank}, network().u_offset(l));
      const std::string h = graph.Add("Gemm", name + "/down", {x, v}, transposed);
      t = graph.Add("Gemm", name + "/gemm", {h, u, bias}, transposed);
    } else {
      const std::string w = constant(name + "/weight", {width, width}, weight);
      t = graph.Add("Gemm", name + "/gemm", {x, w, bias}, transposed);
    }
    const std::string crossed = graph.Add("Mul", name + "/crossed", {x0, t});
    x = graph.Add("Add", name + "/sum", {crossed, x});
  }
  return x;
}

GraphValue AddCross(ModelGraph& graph, std::string_view name, GraphValue x, const CrossSpec& spec) {
  if (!graph.ok()) return {};
  if (spec.num_experts > 1) return AddCrossMixture(graph, name, x, spec);
  CrossNetworkOptions options;
  options.kind = spec.kind;
  options.width = static_cast<int32_t>(graph.shape(x).width());
  options.num_layers = spec.num_layers;
  options.rank = spec.rank;
  options.first_layer_id = graph.TakeLayerIds(spec.num_layers);
  options.max_batch_size = graph.options().max_batch_size;
  options.precision = graph.options().precision;
  return graph.AddLayer(name, CrossLayer::Create(options, graph.ctx()), {x});
}

}  // namespace hotrow
