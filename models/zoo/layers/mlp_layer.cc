#include "models/zoo/layers/dense_layers.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/onnx/onnx_graph.h"
#include "models/zoo/layers/batch_norm_layer.h"
#include "models/zoo/layers/mlp_layer_impl.h"
#include "models/zoo/model_parts.h"

namespace hotrow {
namespace {

// The layers of `options` one by one, so that what follows each can see the whole batch.
GraphValue AddNormedMlp(ModelGraph& graph, const std::string& name, GraphValue x,
                        const MlpSpec& spec, const MlpOptions& options) {
  for (size_t l = 0; l < spec.sizes.size(); ++l) {
    const bool last = l + 1 == spec.sizes.size();
    MlpOptions linear = options;
    linear.sizes = {options.sizes[l], options.sizes[l + 1]};
    linear.relu_on_output = false;
    linear.dropout = 0;
    linear.first_layer_id = options.first_layer_id + static_cast<int32_t>(l);
    x = graph.AddLayer(
        absl::StrCat(name, ".", l),
        MlpLayer::Create(linear, graph.ctx(), last ? options.sizes : std::vector<int32_t>()), {x});
    if (last && !spec.relu_on_output) break;
    x = graph.AddLayer(absl::StrCat(name, ".norm", l),
                       BatchNormLayer::Create({.columns = spec.sizes[l],
                                               .relu = true,
                                               .dropout = last ? 0 : spec.dropout,
                                               .seed = options.seed,
                                               .layer_id = linear.first_layer_id,
                                               .max_batch_size = options.max_batch_size},
                                              graph.ctx()),
                       {x});
  }
  return x;
}

}  // namespace

MlpSpec OverArchOf(const ModelOptions& options) {
  return {.flag = "--over_arch_layer_sizes",
          .sizes = options.over_arch_layer_sizes,
          .dropout = options.dropout,
          .batch_norm = options.batch_norm};
}

absl::StatusOr<std::unique_ptr<MlpLayer>> MlpLayer::Create(const MlpOptions& options,
                                                           const ExecContext& ctx,
                                                           std::vector<int32_t> described) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<Mlp> mlp, Mlp::Create(options, ctx));
  return std::unique_ptr<MlpLayer>(new MlpLayer(std::move(described), std::move(mlp)));
}

LayerTraits MlpLayer::traits() const {
  return {.on_gpu = true,
          .inputs_until = LayerPhase::kBackwardParameters,
          .gradient_until = LayerPhase::kBackwardParameters,
          .overwrites_gradient = true,
          .reports_gradients = true};
}

void MlpLayer::Describe(bool reads_embeddings, DenseLayers* layers) const {
  if (described_.empty()) return;
  std::vector<int32_t>& sizes = reads_embeddings ? layers->top : layers->bottom;
  if (sizes.empty()) {
    sizes.assign(described_.begin() + 1, described_.end());
    if (reads_embeddings) layers->top_inputs = described_.front();
    return;
  }
  for (size_t l = 1; l < described_.size(); ++l) {
    layers->Add({.name = "mlp", .inputs = described_[l - 1], .outputs = described_[l]});
  }
}

absl::StatusOr<std::string> MlpLayer::ToOnnx(const LayerOnnx& onnx) const {
  return AddOnnxMlp(*onnx.graph, onnx.name, network(), onnx.parameters, onnx.inputs[0].name);
}

std::string AddOnnxMlp(OnnxGraph& graph, const std::string& name, const Mlp& mlp,
                       const float* parameters, const std::string& x, bool is_matrix) {
  const std::vector<int32_t>& sizes = mlp.options().sizes;
  std::string y = x;
  for (int32_t l = 0; l < mlp.num_layers(); ++l) {
    const int64_t in = sizes[static_cast<size_t>(l)];
    const int64_t out = sizes[static_cast<size_t>(l) + 1];
    const std::string layer = absl::StrCat(name, "/", l);
    const std::string weight =
        graph.Floats(layer + "/weight", {out, in},
                     {parameters + mlp.weight_offset(l), static_cast<size_t>(in * out)});
    const std::string bias = graph.Floats(
        layer + "/bias", {out}, {parameters + mlp.bias_offset(l), static_cast<size_t>(out)});
    if (is_matrix) {
      y = graph.Add("Gemm", layer + "/gemm", {y, weight, bias}, {{"transB", int64_t{1}}});
    } else {
      const std::string transposed = graph.Add("Transpose", layer + "/transposed", {weight});
      y = graph.Add("MatMul", layer + "/matmul", {y, transposed});
      y = graph.Add("Add", layer + "/sum", {y, bias});
    }
    const bool is_last = l + 1 == mlp.num_layers();
    if (!is_last || mlp.options().relu_on_output) y = graph.Add("Relu", layer + "/relu", {y});
  }
  return y;
}

GraphValue AddMlp(ModelGraph& graph, std::string_view name, GraphValue x, const MlpSpec& spec) {
  if (absl::Status status = CheckLayerSizes(spec.flag, spec.sizes); !status.ok()) {
    return graph.Fail(std::move(status));
  }
  if (!graph.ok()) return {};
  const int32_t num_layers = static_cast<int32_t>(spec.sizes.size());
  MlpOptions options;
  options.sizes = spec.sizes;
  options.sizes.insert(options.sizes.begin(), static_cast<int32_t>(graph.shape(x).width()));
  options.relu_on_output = spec.relu_on_output;
  options.dropout = spec.dropout;
  options.seed = graph.options().seed;
  options.first_layer_id = graph.TakeLayerIds(num_layers);
  options.max_batch_size = graph.options().max_batch_size;
  options.precision = graph.options().precision;
  if (!spec.batch_norm) {
    return graph.AddLayer(name, MlpLayer::Create(options, graph.ctx(), options.sizes), {x});
  }
  return AddNormedMlp(graph, std::string(name), x, spec, options);
}

}  // namespace hotrow
