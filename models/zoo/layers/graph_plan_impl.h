#ifndef HOTROW_MODELS_ZOO_LAYERS_GRAPH_PLAN_IMPL_H_
#define HOTROW_MODELS_ZOO_LAYERS_GRAPH_PLAN_IMPL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "models/zoo/layers/graph_model_impl.h"
#include "models/zoo/layers/layer.h"

namespace hotrow::internal {

// Where a tensor lies: in the arena, or in an array of the caller, of which there is one for values
// and one for gradients.
struct Location {
  enum class Place : uint8_t { kNowhere, kArena, kDense, kEmbeddings, kLogits };
  Place place = Place::kNowhere;
  int32_t buffer = -1;  // kArena
  int64_t offset = 0;   // of the first column in its row
  int64_t row_stride = 0;
  TensorShape shape;
  int64_t field_stride = 0;
  int64_t room = 0;  // columns of a row that may be written, where that is more than the shape has

  bool there() const { return place != Place::kNowhere; }
};

// What happens between layers, column by column: to = from, to += from, or to = 0.
struct Move {
  enum class Kind : uint8_t { kCopy, kAdd, kZero };
  Kind kind = Kind::kCopy;
  Location from, to;  // as many columns in each
};

struct ForwardStep {
  int32_t node = -1;
  std::vector<Location> inputs;  // of a layer
  Location output;
  std::vector<Move> moves;  // of Concat and Sum
};

struct BackwardStep {
  int32_t node = -1;        // -1: moves alone
  bool inputs = false;      // the layer's BackwardInputs
  bool parameters = false;  // then its BackwardParameters
  std::vector<Location> values;
  Location output_gradient;
  std::vector<Location> input_gradients;
  std::vector<Move> before, after;  // the layer
  // The block of parameters that is final then, unless the layer tells it; equal: none is.
  int64_t ready_begin = 0, ready_end = 0;
};

// All that a model does in a step, in its order.
struct GraphPlan {
  std::vector<ForwardStep> before_embeddings, with_embeddings;
  // Steps until the gradient of the embeddings is final, and after that.
  std::vector<BackwardStep> to_embeddings, to_parameters;
  std::vector<int64_t> parameter_offsets;  // of each node
  int64_t num_parameters = 0;
  // Places of the buffers in the arena, in floats. Buffers that are never in use at the same time
  // share memory.
  std::vector<int64_t> buffer_offsets;
  int64_t arena_floats = 0;
  DenseLayers layers;
};

struct GraphInputs {
  int32_t num_dense = 0;
  int32_t num_sparse = 0;
  int32_t table_columns = 0;
  int64_t max_batch_size = 0;
};

// The last node is the sum that is the logit, or the concatenation of those of several tasks. Every
// other one is an input or is read by one behind.
GraphPlan PlanGraph(std::span<const GraphNode> nodes, const GraphInputs& inputs);

}  // namespace hotrow::internal

#endif  // HOTROW_MODELS_ZOO_LAYERS_GRAPH_PLAN_IMPL_H_
