#ifndef HOTROW_MODELS_ZOO_LAYERS_GRAPH_NODE_H_
#define HOTROW_MODELS_ZOO_LAYERS_GRAPH_NODE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/zoo/layers/layer.h"

namespace hotrow {

// A part of a declared model and the value that it makes.
struct GraphNode {
  enum class Kind { kDense, kEmbeddings, kConcat, kSum, kLayer };
  Kind kind = Kind::kLayer;
  std::string name;
  std::vector<int32_t> inputs;  // nodes that were declared before
  TensorShape shape;            // of the value
  int32_t first_field = 0;      // kEmbeddings: a feature
  int32_t first_column = 0;     // kEmbeddings: of the tables
  std::unique_ptr<Layer> layer;
  bool joins_previous = false;  // its parameters are of the block of the layer before

  int64_t num_parameters() const { return layer == nullptr ? 0 : layer->num_parameters(); }
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_GRAPH_NODE_H_
