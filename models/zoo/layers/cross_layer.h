#ifndef HOTROW_MODELS_ZOO_LAYERS_CROSS_LAYER_H_
#define HOTROW_MODELS_ZOO_LAYERS_CROSS_LAYER_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "models/zoo/layers/layer.h"
#include "models/zoo/layers/model_graph.h"
#include "ops/cross_network.h"

namespace hotrow {

struct CrossSpec {
  CrossKind kind = CrossKind::kMatrix;
  int32_t num_layers = 0;
  int32_t rank = 0;  // of the matrices; 0: full
};

// A CrossNetwork as a part of a graph. CPU only.
class CrossLayer : public Layer {
 public:
  static absl::StatusOr<std::unique_ptr<CrossLayer>> Create(const CrossNetworkOptions& options);

  // Where its parameters lie in its part.
  const CrossNetwork& cross() const { return *cross_; }

  TensorShape output() const override { return {1, cross_->width()}; }
  LayerTraits traits() const override;
  int64_t num_parameters() const override { return cross_->num_parameters(); }
  void InitParameters(uint64_t seed, std::span<float> parameters) const override;
  // A cross layer with a vector works as much as one with matrices of rank 1.
  void Describe(bool reads_embeddings, DenseLayers* layers) const override;
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override;
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override;
  absl::Status BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) override;

 private:
  CrossLayer(const CrossNetworkOptions& options, std::unique_ptr<CrossNetwork> cross);

  const CrossNetworkOptions options_;
  const std::unique_ptr<CrossNetwork> cross_;
};

// x_0 -> x_L, both [B, columns of x].
GraphValue AddCross(ModelGraph& graph, std::string_view name, GraphValue x, const CrossSpec& spec);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_CROSS_LAYER_H_
