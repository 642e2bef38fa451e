#ifndef HOTROW_MODELS_ZOO_LAYERS_MODEL_GRAPH_H_
#define HOTROW_MODELS_ZOO_LAYERS_MODEL_GRAPH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/zoo/ctr_model.h"
#include "models/zoo/layers/layer.h"
#include "ops/products/dense_precision.h"

namespace hotrow {

namespace internal {
struct GraphNode;
}  // namespace internal

struct ModelGraphOptions {
  std::string name;           // of the model
  int32_t num_dense = 0;      // dense features, >= 0
  int32_t num_sparse = 0;     // pooled features, >= 0
  int32_t table_columns = 0;  // of each of them
  int32_t num_tasks = 1;      // logits of a sample
  // CtrModel::unpooled_features, which num_sparse does not count, and the most rows of a sample.
  std::vector<int32_t> unpooled_features;
  std::vector<int64_t> max_lengths;
  uint64_t seed = 0;  // of the first parameters and of dropout
  int64_t max_batch_size = 0;
  DensePrecision precision = DensePrecision::kFp32;  // of products
};

// What all models of this folder are told, the base of their options:
//   DlrmOptions options = {{.num_dense = 13, .num_sparse = 26, .embedding_dim = 16}};
struct ModelOptions {
  int32_t num_dense = 0;      // I >= 0
  int32_t num_sparse = 0;     // S >= 1: features
  int32_t embedding_dim = 0;  // D
  // Output sizes of the MLP that gives the logit; the last is 1. The input's follows from the data.
  std::vector<int32_t> over_arch_layer_sizes;
  float dropout = 0;        // after each hidden layer of the MLPs, in training, in [0, 1)
  bool batch_norm = false;  // before each ReLU of the MLPs
  uint64_t seed = 0;        // of the first parameters and of dropout
  int64_t max_batch_size = 0;
  DensePrecision precision = DensePrecision::kFp32;  // of products
};

// The graph's options for a model with these options.
ModelGraphOptions GraphOptionsOf(std::string_view name, const ModelOptions& options,
                                 int32_t table_columns, int32_t num_tasks = 1);

// What flows between the parts of a graph, a tensor [B, columns]; -1 where a declaration failed.
struct GraphValue {
  int32_t node = -1;
};

// A model that was declared as a ModelGraph.
//
// Parameters: those of its layers in the order of their declaration, each as the layer lays them
// out, each block from a multiple of 16 floats on.
class GraphModel : public CtrModel {
 public:
  // The values of an ONNX graph in the place of what Forward reads.
  struct OnnxInputs {
    std::string dense;                    // [B, num_dense]; unused where there are none
    std::vector<std::string> features;    // of each pooled feature, [B, table_columns]
    std::vector<OnnxSequence> sequences;  // of unpooled_features()
  };
  // Adds the operations of Forward, not for training, with the parameters that the model has, and
  // gives the value of the logits [B, T]. On the CPU. Errors: Unimplemented (a part has no such
  // form; names it).
  virtual absl::StatusOr<std::string> ToOnnx(const OnnxInputs& inputs, OnnxGraph* graph) const = 0;

  // Where a layer's parameters lie.
  struct Part {
    const Layer* layer = nullptr;
    int64_t offset = 0;
  };
  // The part of the name of its declaration; all null where there is no such layer.
  virtual Part FindPart(std::string_view name) const = 0;
  virtual int64_t arena_bytes() const = 0;  // memory of activations
};

// The declaration of a model: its parts and how they are wired, one call after the other.
//
//   ModelGraph g({.name = "dlrm", ...}, ctx);
//   const GraphValue bottom = AddMlp(g, "bottom", g.Dense(), {.sizes = {512, 16}});
//   const GraphValue z = AddDotInteraction(g, "interaction", {bottom, g.Embeddings()});
//   g.AddLogit(AddMlp(g, "top", z, {.sizes = {512, 1}}));
//   return g.Build();
//
// Everything else follows: the parameter array, one block after the other in the order of the
// declaration; the memory of activations; the order of the passes; when embeddings are awaited and
// gradients are told; what the planner is told. Values may be read by any number of parts.
//
// Errors: the first one is kept, declarations after it do nothing, and Build returns it.
class ModelGraph {
 public:
  // ctx says where the model computes (CtrModel); ctx.stream must outlive it.
  explicit ModelGraph(const ModelGraphOptions& options, const ExecContext& ctx = {});
  ~ModelGraph();
  ModelGraph(const ModelGraph&) = delete;
  ModelGraph& operator=(const ModelGraph&) = delete;

  const ModelGraphOptions& options() const { return options_; }
  const ExecContext& ctx() const { return ctx_; }
  // The shape of a declared value; all zero for one that failed.
  TensorShape shape(GraphValue value) const;

  // --- what a model reads ---

  // [B, num_dense], which is above 0.
  GraphValue Dense();
  // One field for each feature: columns [first_column, first_column + columns) of its table;
  // columns = 0: up to the last.
  GraphValue Embeddings(int32_t first_column = 0, int32_t columns = 0);
  // The same for pooled features [first_feature, first_feature + num_features) of the data.
  GraphValue EmbeddingsOf(int32_t first_feature, int32_t num_features, int32_t first_column = 0,
                          int32_t columns = 0);

  // --- wiring ---

  // The columns of all, one after the other. Parts that nothing else has placed write into it
  // straight away; others are copied. With one packed value: that value.
  GraphValue Concat(const std::vector<GraphValue>& values);
  // Their sum, added up in this order. They have the same number of columns.
  GraphValue Sum(const std::vector<GraphValue>& values);
  // Adds a term [B, 1] to the logit of a task; terms are summed in the order of these calls.
  void AddLogit(GraphValue term, int32_t task = 0);

  // --- parts; the functions of the headers beside this one call these ---

  // `layer` must have been made for the shapes of `inputs`. Names tell parts apart.
  // joins_previous: its parameters follow those of the part declared before without padding, as one
  // block.
  GraphValue AddLayer(std::string_view name, absl::StatusOr<std::unique_ptr<Layer>> layer,
                      const std::vector<GraphValue>& inputs, bool joins_previous = false);
  // For layers that want each of their inputs as a matrix: the value, or a packed copy.
  GraphValue Packed(GraphValue value);
  // Numbers for `count` layers in counters of random numbers, from 0 on, as they are declared.
  int32_t TakeLayerIds(int32_t count) { return std::exchange(layer_ids_, layer_ids_ + count); }
  // Keeps the first error.
  GraphValue Fail(absl::Status error);
  bool ok() const { return error_.ok(); }

  // The model, whose declaration ends here. Errors: the first one of the declaration;
  // InvalidArgument for a part that nothing reads, a task without a logit, or a device that one of
  // its parts does not know; ResourceExhausted.
  absl::StatusOr<std::unique_ptr<GraphModel>> Build();

 private:
  GraphValue AddNode(internal::GraphNode node);
  bool Declared(const std::vector<GraphValue>& values) const;
  absl::Status CheckUsed() const;

  const ModelGraphOptions options_;
  const ExecContext ctx_;
  std::vector<internal::GraphNode> nodes_;
  std::vector<std::vector<GraphValue>> logit_terms_;  // of each task
  int32_t layer_ids_ = 0;
  absl::Status error_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_MODEL_GRAPH_H_
