#ifndef HOTROW_MODELS_ZOO_LAYERS_GRAPH_MODEL_IMPL_H_
#define HOTROW_MODELS_ZOO_LAYERS_GRAPH_MODEL_IMPL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/zoo/layers/layer.h"
#include "models/zoo/layers/model_graph.h"

namespace hotrow::internal {

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

// The model of a declaration; the last node is the logits. On a GPU its memory is taken and given
// back in the order of ctx.stream, which must outlive it; the call waits until the first
// parameters, which are drawn on the host, are there.
absl::StatusOr<std::unique_ptr<GraphModel>> MakeGraphModel(const ModelGraphOptions& options,
                                                           std::vector<GraphNode> nodes,
                                                           const ExecContext& ctx);

}  // namespace hotrow::internal

#endif  // HOTROW_MODELS_ZOO_LAYERS_GRAPH_MODEL_IMPL_H_
