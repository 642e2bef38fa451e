#ifndef HOTROW_MODELS_ZOO_LAYERS_CROSS_LAYER_H_
#define HOTROW_MODELS_ZOO_LAYERS_CROSS_LAYER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "models/zoo/layers/layer.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/layers/network_layer.h"
#include "ops/layers/cross_network.h"

namespace hotrow {

struct CrossSpec {
  CrossKind kind = CrossKind::kMatrix;
  int32_t num_layers = 0;
  int32_t rank = 0;         // of the matrices; 0: full
  int32_t num_experts = 1;  // of each layer; above 1: a mixture, of matrices with a rank
};

// A CrossNetwork as a part of a graph.
class CrossLayer : public NetworkLayer<CrossNetwork> {
 public:
  static absl::StatusOr<std::unique_ptr<CrossLayer>> Create(const CrossNetworkOptions& options,
                                                            const ExecContext& ctx);

  TensorShape output() const override { return {1, network().width()}; }
  LayerTraits traits() const override;
  // A cross layer with a vector works as much as one with matrices of rank 1.
  void Describe(bool reads_embeddings, DenseLayers* layers) const override;
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override;

 private:
  CrossLayer(const CrossNetworkOptions& options, std::unique_ptr<CrossNetwork> cross)
      : NetworkLayer(std::move(cross)), options_(options) {}

  const CrossNetworkOptions options_;
};

// x_0 -> x_L, both [B, columns of x]. A part, "name"; a mixture of experts of rank R has
// parts for each layer instead:
//   x_{l+1} = x_0 o (U sum_e p_e g(C_e g(V_e x_l + a_e) + c_e) + b) + x_l
// with g = ReLU, shares p = softmax(G x_l + d), U one matrix [W, E R] of blocks U_e, side by side
// (Wang et al. 2021, section 3.5, where U_e stands within the sum, which is the same for shares
// that add up to one, and a, c, d are missing). They are the linear maps "name0.down" of V and a,
// "name0.gate" of G and d, "name0.experts" of C and c, "name0.up" of U and b, and "name0", which
// has no parameters.
GraphValue AddCross(ModelGraph& graph, std::string_view name, GraphValue x, const CrossSpec& spec);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_CROSS_LAYER_H_
