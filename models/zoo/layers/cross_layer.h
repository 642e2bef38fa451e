#ifndef HOTROW_MODELS_ZOO_LAYERS_CROSS_LAYER_H_
#define HOTROW_MODELS_ZOO_LAYERS_CROSS_LAYER_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "models/zoo/layers/layer.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/layers/network_layer.h"
#include "ops/cross_network.h"

namespace hotrow {

struct CrossSpec {
  CrossKind kind = CrossKind::kMatrix;
  int32_t num_layers = 0;
  int32_t rank = 0;  // of the matrices; 0: full
};

// A CrossNetwork as a part of a graph. CPU only.
class CrossLayer : public NetworkLayer<CrossNetwork> {
 public:
  static absl::StatusOr<std::unique_ptr<CrossLayer>> Create(const CrossNetworkOptions& options);

  TensorShape output() const override { return {1, network().width()}; }
  LayerTraits traits() const override;
  // A cross layer with a vector works as much as one with matrices of rank 1.
  void Describe(bool reads_embeddings, DenseLayers* layers) const override;

 private:
  CrossLayer(const CrossNetworkOptions& options, std::unique_ptr<CrossNetwork> cross)
      : NetworkLayer(std::move(cross)), options_(options) {}

  const CrossNetworkOptions options_;
};

// x_0 -> x_L, both [B, columns of x].
GraphValue AddCross(ModelGraph& graph, std::string_view name, GraphValue x, const CrossSpec& spec);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_CROSS_LAYER_H_
