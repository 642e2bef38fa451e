#ifndef HOTROW_MODELS_ZOO_LAYERS_LINEAR_LAYERS_H_
#define HOTROW_MODELS_ZOO_LAYERS_LINEAR_LAYERS_H_

#include <string_view>

#include "models/zoo/layers/model_graph.h"

// Terms of a logit, [B, 1] each, on the CPU or a GPU. Parameters start at zero: they find their
// sign in one step.
namespace hotrow {

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

#endif  // HOTROW_MODELS_ZOO_LAYERS_LINEAR_LAYERS_H_
