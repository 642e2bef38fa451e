#ifndef HOTROW_MODELS_ZOO_LAYERS_SEQUENCE_LAYERS_H_
#define HOTROW_MODELS_ZOO_LAYERS_SEQUENCE_LAYERS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "models/zoo/layers/layer.h"
#include "models/zoo/layers/model_graph.h"
#include "ops/layers/inner_layer.h"
#include "ops/layers/mlp.h"

// Parts that read the rows of features which are not pooled. `sequence` is a position in
// ModelGraphOptions::unpooled_features; a row has D = table_columns numbers.
namespace hotrow {

// The sum of a sample's rows: [B, D]; of none zeros.
GraphValue AddSequenceSum(ModelGraph& graph, std::string_view name, int32_t sequence);

// Target attention, as the Deep Interest Network has it (Zhou et al. 2018, "Deep Interest Network
// for Click-Through Rate Prediction"): the sum of a sample's rows h_j, each times its relevance for
// the target t [B, D] of that sample, which an MLP over both finds:
//   a_j = mlp([h_j, t, h_j - t, h_j o t]),   y = sum_j a_j h_j                          [B, D]
// Relevances are not normalized, as in the paper: a history that has more of what matters says so.
// Rows of all samples go through the MLP as one batch, as many as there are, without padding. A
// sample without rows gives zeros.
//
// Parameters: those of the MLP, as ops/layers/mlp.h lays them out.
class TargetAttentionLayer : public Layer {
 public:
  struct Options {
    int32_t sequence = 0;
    int32_t dim = 0;             // D
    int64_t max_rows = 0;        // of a batch
    int64_t max_length = 0;      // of a sample, which the planner is told
    std::vector<int32_t> sizes;  // outputs of the MLP; the last one is 1
    MlpOptions mlp;              // what else it is told
  };
  static absl::StatusOr<std::unique_ptr<TargetAttentionLayer>> Create(const Options& options,
                                                                      const ExecContext& ctx);

  const Mlp& mlp() const { return *mlp_; }

  TensorShape output() const override { return {1, options_.dim}; }
  LayerTraits traits() const override;
  int64_t num_parameters() const override { return mlp_->num_parameters(); }
  std::vector<InnerLayer> inner_layers() const override { return mlp_->inner_layers(); }
  void InitParameters(uint64_t seed, std::span<float> parameters) const override;
  void Describe(bool reads_embeddings, DenseLayers* layers) const override;
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override;
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override;
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override;
  absl::Status BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) override;

 private:
  explicit TargetAttentionLayer(const Options& options) : options_(options) {}
  Mlp::BackwardArgs ArgsOf(const LayerBackward& pass);
  int64_t dim() const { return options_.dim; }

  const Options options_;
  std::unique_ptr<Mlp> mlp_;
  DeviceMemory<float> pairs_;           // [N, 4 D]
  DeviceMemory<float> pair_gradients_;  // [N, 4 D]
  DeviceMemory<float> relevances_;      // [N]
  DeviceMemory<float> relevance_gradients_;
};

// flag: that gives the sizes, for errors. sizes: the hidden layers of its MLP.
GraphValue AddTargetAttention(ModelGraph& graph, std::string_view name, int32_t sequence,
                              GraphValue target, const std::string& flag,
                              std::vector<int32_t> sizes);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_SEQUENCE_LAYERS_H_
