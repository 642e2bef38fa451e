#ifndef HOTROW_MODELS_ZOO_LAYERS_GRAPH_MODEL_H_
#define HOTROW_MODELS_ZOO_LAYERS_GRAPH_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "models/zoo/ctr_model.h"
#include "models/zoo/layers/graph_node.h"

namespace hotrow {

namespace internal {
struct BackwardStep;
struct ForwardStep;
struct GraphPlan;
struct Location;
struct Move;
}  // namespace internal
struct ModelGraphOptions;

// A model that was declared as a ModelGraph.
//
// Parameters: those of its layers in the order of their declaration, each as the layer lays them
// out, each block from a multiple of 16 floats on.
class GraphModel : public CtrModel {
 public:
  // ModelGraph::Build calls it; the last node is the logits. On a GPU its memory is taken and given
  // back in the order of ctx.stream, which must outlive it; Create waits until the first
  // parameters, which are drawn on the host, are there.
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const ModelGraphOptions& options,
                                                            std::vector<GraphNode> nodes,
                                                            const ExecContext& ctx);
  ~GraphModel() override;

  std::string_view name() const override { return name_; }
  DenseLayers layers() const override;
  Device device() const override { return device_; }
  int32_t num_tasks() const override { return num_tasks_; }
  std::vector<int32_t> unpooled_features() const override { return unpooled_features_; }
  bool reads_rows() const override;
  bool reads_shared_rows() const override;
  absl::Status Forward(const ExecContext& ctx, const Input& input,
                       std::span<float> logits) override;
  using CtrModel::Backward;
  absl::Status Backward(const ExecContext& ctx, std::span<float> logit_gradient,
                        float* embedding_gradient, const BackwardHooks& hooks) override;
  std::span<float> parameters() override { return parameters_.span(); }
  std::span<const float> gradients() const override { return gradients_.span(); }
  std::span<float> mutable_gradients() override { return gradients_.span(); }
  std::vector<ParameterRange> untrained_parameters() const override;
  absl::Status EndStep(const ExecContext& ctx, int64_t samples) override;

  // The values of an ONNX graph in the place of what Forward reads.
  struct OnnxInputs {
    std::string dense;                    // [B, num_dense]; unused where there are none
    std::vector<std::string> features;    // of each pooled feature, [B, table_columns]
    std::vector<OnnxSequence> sequences;  // of unpooled_features()
  };
  // Adds the operations of Forward, not for training, with the parameters that the model has, and
  // gives the value of the logits [B, T]. On the CPU. Errors: Unimplemented (a part has no such
  // form; names it).
  absl::StatusOr<std::string> ToOnnx(const OnnxInputs& inputs, OnnxGraph* graph) const;

  // Where a layer's parameters lie.
  struct Part {
    const Layer* layer = nullptr;
    int64_t offset = 0;
  };
  // The part of the name of its declaration; all null where there is no such layer.
  Part FindPart(std::string_view name) const;
  int64_t arena_bytes() const { return arena_.bytes(); }

 private:
  // The arrays of the caller, those of a pass forward or back.
  struct Arrays {
    float* dense = nullptr;
    float* embeddings = nullptr;
    float* logits = nullptr;
    const float* const* rows = nullptr;  // of embeddings, in their place
  };

  GraphModel(const ModelGraphOptions& options, std::vector<GraphNode> nodes, Device device);
  std::string EmbeddingsToOnnx(const GraphNode& node, const OnnxInputs& inputs,
                               OnnxGraph* graph) const;
  absl::Status Allocate(const ExecContext& ctx);
  absl::Status InitParameters(const ExecContext& ctx, uint64_t seed);
  absl::Status CheckSequences(const Input& input) const;
  TensorView Resolve(const internal::Location& location, const Arrays& arrays);
  absl::Status Run(const ExecContext& ctx, std::span<const internal::Move> moves,
                   const Arrays& arrays);
  absl::Status Run(const ExecContext& ctx, const internal::ForwardStep& step, const Arrays& values);
  absl::Status Run(const ExecContext& ctx, const internal::BackwardStep& step, const Arrays& values,
                   const Arrays& gradients, const BackwardHooks& hooks);

  const std::string name_;
  const Device device_;
  const int32_t num_tasks_;
  const int32_t table_columns_;
  const std::vector<int32_t> unpooled_features_;
  const int64_t max_batch_size_;
  const std::vector<GraphNode> nodes_;
  const std::unique_ptr<const internal::GraphPlan> plan_;
  DeviceMemory<float> parameters_;
  DeviceMemory<float> gradients_;
  DeviceMemory<float> arena_;
  Input input_;                         // of the last Forward
  std::vector<TensorView> inputs_;      // of the layer at work
  std::vector<TensorView> outputs_;     // gradients of its inputs
  std::vector<MoveColumnsArgs> moves_;  // of the step at work
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_GRAPH_MODEL_H_
