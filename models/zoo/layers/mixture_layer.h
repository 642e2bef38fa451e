#ifndef HOTROW_MODELS_ZOO_LAYERS_MIXTURE_LAYER_H_
#define HOTROW_MODELS_ZOO_LAYERS_MIXTURE_LAYER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/exec_context.h"
#include "models/zoo/layers/layer.h"
#include "models/zoo/layers/model_graph.h"
#include "ops/layers/gated_experts.h"
#include "ops/layers/mlp.h"

namespace hotrow {

// A mixture of experts: the sum of the vectors of E experts, each times its share, which is the
// softmax of the gate's numbers:
//   gate [B, E], experts [B, E D], one after the other -> [B, D]
// It has no parameters; the gate's numbers are made by another part, such as a linear map.
GraphValue AddMixture(ModelGraph& graph, std::string_view name, GraphValue gate,
                      GraphValue experts);

// What E experts make of R columns each, end to end:
//   gate [B, E], x [B, E R] -> [B, E R], of expert e: share_e ReLU(C_e x_e + c_e)
// with the shares of AddMixture. A linear map behind it mixes the experts.
//
// Parameters: C_e row-major [R, R] and c_e of each expert, as ops/layers/mlp.h lays them out and
// draws them.
class GatedMapsLayer : public Layer {
 public:
  struct Options {
    int64_t experts = 0;
    int32_t columns = 0;         // R
    int32_t first_layer_id = 0;  // MlpOptions, of expert 0
    int64_t max_batch_size = 0;
    DensePrecision precision = DensePrecision::kFp32;
  };
  static absl::StatusOr<std::unique_ptr<GatedMapsLayer>> Create(const Options& options,
                                                                const ExecContext& ctx);

  // Where C_e lies in its part; c_e is the bias of map(e).
  int64_t offset(int64_t expert) const { return expert * map(0).num_parameters(); }
  const Mlp& map(int64_t expert) const { return *maps_[static_cast<size_t>(expert)]; }

  TensorShape output() const override { return {1, static_cast<int32_t>(columns())}; }
  LayerTraits traits() const override;
  int64_t num_parameters() const override { return offset(options_.experts); }
  void InitParameters(uint64_t seed, std::span<float> parameters) const override;
  void Describe(bool reads_embeddings, DenseLayers* layers) const override;
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override;
  absl::Status Forward(const ExecContext& ctx, const LayerForward& pass) override;
  absl::Status BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) override;
  absl::Status BackwardParameters(const ExecContext& ctx, const LayerBackward& pass) override;

 private:
  explicit GatedMapsLayer(const Options& options) : options_(options) {}
  int64_t columns() const { return options_.experts * options_.columns; }
  GatedExpertsArgs Scaled(int64_t batch_size, const TensorView& gate);  // over values_
  Mlp::BackwardArgs MapArgs(int64_t expert, const LayerBackward& pass);

  const Options options_;
  std::vector<std::unique_ptr<Mlp>> maps_;
  DeviceMemory<float> values_;     // ReLU(C_e x_e + c_e): [B, E R]
  DeviceMemory<float> gradients_;  // of them
};

GraphValue AddGatedMaps(ModelGraph& graph, std::string_view name, GraphValue gate, GraphValue x);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_MIXTURE_LAYER_H_
