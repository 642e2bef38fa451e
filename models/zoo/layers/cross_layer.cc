#include "models/zoo/layers/cross_layer.h"

#include <utility>

#include "base/status_macros.h"

namespace hotrow {

absl::StatusOr<std::unique_ptr<CrossLayer>> CrossLayer::Create(const CrossNetworkOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<CrossNetwork> cross, CrossNetwork::Create(options));
  return std::unique_ptr<CrossLayer>(new CrossLayer(options, std::move(cross)));
}

LayerTraits CrossLayer::traits() const {
  return {.inputs_until = LayerPhase::kBackwardParameters,
          .overwrites_gradient = true,
          .reports_gradients = true};
}

void CrossLayer::Describe(bool reads_embeddings, DenseLayers* layers) const {
  layers->interaction = "cross";
  layers->cross_layers = options_.num_layers;
  layers->cross_rank = options_.kind == CrossKind::kVector ? 1 : options_.rank;
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
