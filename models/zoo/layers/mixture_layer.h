#ifndef HOTROW_MODELS_ZOO_LAYERS_MIXTURE_LAYER_H_
#define HOTROW_MODELS_ZOO_LAYERS_MIXTURE_LAYER_H_

#include <string_view>

#include "models/zoo/layers/model_graph.h"

namespace hotrow {

// A mixture of experts, on the CPU: the sum of the vectors of E experts, each times its share,
// which is the softmax of the gate's numbers:
//   gate [B, E], experts [B, E D], one after the other -> [B, D]
// It has no parameters; the gate's numbers are made by another part, such as a linear map.
GraphValue AddMixture(ModelGraph& graph, std::string_view name, GraphValue gate,
                      GraphValue experts);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_MIXTURE_LAYER_H_
