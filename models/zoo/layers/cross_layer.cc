#include "models/zoo/layers/cross_layer.h"

#include <utility>

#include "base/status_macros.h"

namespace hotrow {
namespace {

CrossNetwork::BackwardArgs ArgsOf(const LayerBackward& pass) {
  return {.parameters = pass.parameters,
          .dy = pass.output_gradient.data,
          .dy_stride = pass.output_gradient.row_stride,
          .dx = pass.input_gradients[0].data,
          .dx_stride = pass.input_gradients[0].row_stride,
          .parameter_gradients = pass.gradients,
          .gradients_ready = pass.gradients_ready};
}

}  // namespace

CrossLayer::CrossLayer(const CrossNetworkOptions& options, std::unique_ptr<CrossNetwork> cross)
    : options_(options), cross_(std::move(cross)) {}

absl::StatusOr<std::unique_ptr<CrossLayer>> CrossLayer::Create(const CrossNetworkOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<CrossNetwork> cross, CrossNetwork::Create(options));
  return std::unique_ptr<CrossLayer>(new CrossLayer(options, std::move(cross)));
}

LayerTraits CrossLayer::traits() const {
  return {.inputs_until = LayerPhase::kBackwardParameters,
          .overwrites_gradient = true,
          .reports_gradients = true};
}

void CrossLayer::InitParameters(uint64_t seed, std::span<float> parameters) const {
  cross_->InitParameters(seed, parameters);
}

void CrossLayer::Describe(bool reads_embeddings, DenseLayers* layers) const {
  layers->interaction = "cross";
  layers->cross_layers = options_.num_layers;
  layers->cross_rank = options_.kind == CrossKind::kVector ? 1 : options_.rank;
}

absl::Status CrossLayer::Forward(const ExecContext& ctx, const LayerForward& pass) {
  return cross_->Forward(ctx, {.parameters = pass.parameters,
                               .x = pass.inputs[0].data,
                               .x_stride = pass.inputs[0].row_stride,
                               .batch_size = pass.batch_size,
                               .y = pass.output.data,
                               .y_stride = pass.output.row_stride,
                               .training = pass.training});
}

absl::Status CrossLayer::BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) {
  return cross_->BackwardInput(ctx, ArgsOf(pass));
}

absl::Status CrossLayer::BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) {
  return cross_->BackwardParameters(ctx, ArgsOf(pass));
}

GraphValue AddCross(ModelGraph& graph, std::string_view name, GraphValue x, const CrossSpec& spec) {
  if (!graph.ok()) return {};
  CrossNetworkOptions options;
  options.kind = spec.kind;
  options.width = static_cast<int32_t>(graph.shape(x).width());
  options.num_layers = spec.num_layers;
  options.rank = spec.rank;
  options.first_layer_id = graph.TakeLayerIds(spec.num_layers);
  options.max_batch_size = graph.options().max_batch_size;
  options.precision = graph.options().precision;
  return graph.AddLayer(name, CrossLayer::Create(options), {x});
}

}  // namespace hotrow
