#ifndef HOTROW_MODELS_ZOO_LAYERS_DENSE_LAYERS_H_
#define HOTROW_MODELS_ZOO_LAYERS_DENSE_LAYERS_H_

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

// Terms of a logit, [B, 1] each, on the CPU or a GPU. Parameters start at zero: they find their
// sign in one step.

// x . w, a sample's products summed in the order of columns. Parameters: w [columns of x].
GraphValue AddLinear(ModelGraph& graph, std::string_view name, GraphValue x);

// One number, the same for all samples. joins_previous: see ModelGraph::AddLayer.
GraphValue AddBias(ModelGraph& graph, std::string_view name, bool joins_previous = false);

// The sum of all columns of all fields: first-order weights that lie in the tables.
GraphValue AddColumnSum(ModelGraph& graph, std::string_view name, GraphValue fields);

// The wide part of a model: a bias, w . x for the dense features, and the first-order weights of
// the looked up rows, which lie in column `column` of the tables. Adds them to the logit of
// `graph`. Parts: "linear", if there are dense features, "bias" right behind it.
void AddWideLogit(ModelGraph& graph, int32_t column);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_DENSE_LAYERS_H_
