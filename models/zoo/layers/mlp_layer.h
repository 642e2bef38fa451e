#ifndef HOTROW_MODELS_ZOO_LAYERS_MLP_LAYER_H_
#define HOTROW_MODELS_ZOO_LAYERS_MLP_LAYER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/zoo/layers/model_graph.h"

namespace hotrow {

// What the MLP of a model is told; the input size follows from the graph.
struct MlpSpec {
  std::string flag;            // that gives the sizes, for errors: "--over_arch_layer_sizes"
  std::vector<int32_t> sizes;  // outputs of the layers
  bool relu_on_output = false;
  float dropout = 0;        // after each hidden layer, in training
  bool batch_norm = false;  // before each ReLU
};
// The MLP that gives the logit.
MlpSpec OverArchOf(const ModelOptions& options);

// [B, columns of x] -> [B, last size]. With batch norm it is made of one part for the linear map of
// each layer, "name.0" and so on, and one for what follows it, "name.norm0" and so on.
GraphValue AddMlp(ModelGraph& graph, std::string_view name, GraphValue x, const MlpSpec& spec);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_MLP_LAYER_H_
