#ifndef HOTROW_MODELS_ZOO_LAYERS_MLP_LAYER_IMPL_H_
#define HOTROW_MODELS_ZOO_LAYERS_MLP_LAYER_IMPL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/zoo/layers/layer.h"
#include "models/zoo/layers/network_layer.h"
#include "ops/layers/mlp.h"

namespace hotrow {

// An Mlp as a part of a graph, on the CPU or a GPU. described: the sizes that the planner is told
// of, as MlpOptions::sizes; none: it is not told of this part.
class MlpLayer : public NetworkLayer<Mlp> {
 public:
  static absl::StatusOr<std::unique_ptr<MlpLayer>> Create(const MlpOptions& options,
                                                          const ExecContext& ctx,
                                                          std::vector<int32_t> described);

  TensorShape output() const override { return {1, network().output_size()}; }
  LayerTraits traits() const override;
  // Describes it as bottom or, where it reads embeddings, as top; if there is one already, as
  // parts.
  void Describe(bool reads_embeddings, DenseLayers* layers) const override;
  absl::StatusOr<std::string> ToOnnx(const LayerOnnx& onnx) const override;

 private:
  MlpLayer(std::vector<int32_t> described, std::unique_ptr<Mlp> mlp)
      : NetworkLayer(std::move(mlp)), described_(std::move(described)) {}

  const std::vector<int32_t> described_;
};

// An Mlp in a graph: a Gemm of x [.., inputs] with "name/<l>/weight" [outputs, inputs] and
// "name/<l>/bias" [outputs] for each layer l, then Relu where the layer has one. `parameters` are
// the Mlp's. With more axes than those of a matrix it is a MatMul and an Add.
std::string AddOnnxMlp(OnnxGraph& graph, const std::string& name, const Mlp& mlp,
                       const float* parameters, const std::string& x, bool is_matrix = true);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_MLP_LAYER_IMPL_H_
