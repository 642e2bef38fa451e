#ifndef HOTROW_MODELS_ZOO_DLRM_MODEL_H_
#define HOTROW_MODELS_ZOO_DLRM_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "models/zoo/ctr_model.h"
#include "ops/dot_interaction.h"
#include "ops/mlp.h"

namespace hotrow {

struct DlrmOptions {
  int32_t num_dense = 0;      // I >= 0
  int32_t num_sparse = 0;     // S >= 1: pooled features, each embedding_dim wide
  int32_t embedding_dim = 0;  // D
  // Output sizes of the layers, the input size follows from the data. The bottom MLP ends in D, the
  // top MLP in 1. Without dense features (I = 0) there is no bottom MLP and its sizes are not read.
  std::vector<int32_t> dense_arch_layer_sizes;
  std::vector<int32_t> over_arch_layer_sizes;
  float dropout = 0;  // after each hidden layer, in training, in [0, 1)
  uint64_t seed = 0;  // of the first parameters and of dropout
  int64_t max_batch_size = 0;
  bool tf32 = false;  // MlpOptions::tf32

  absl::Status Validate() const;  // names the flag, what it is and the remedy
};

// DLRM (Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and
// Recommendation Systems"): a bottom MLP makes a vector of D numbers from the dense features, all
// pairwise dot products of it and the S pooled embeddings are taken, and a top MLP turns vector and
// products into a logit. The bottom MLP has ReLU on its output, the top one has not.
//
// Without dense features the first sparse feature takes the place of the dense vector: the products
// are those of the S embeddings, and the top MLP sees the first embedding beside them.
//
// Parameters: those of the bottom MLP, then those of the top MLP, each as ops/mlp.h lays them out,
// each part starting at a multiple of 16 floats.
class DlrmModel : public CtrModel {
 public:
  // ctx says where it computes, see CtrModel. The first parameters are drawn on the host, the same
  // on every device; Create waits until they are there. On a GPU its memory is taken and given back
  // in the order of ctx.stream, which must outlive it.
  static absl::StatusOr<std::unique_ptr<DlrmModel>> Create(const DlrmOptions& options,
                                                           const ExecContext& ctx = {});

  std::string_view name() const override { return "dlrm"; }
  DenseLayers layers() const override;
  Device device() const override { return device_; }
  absl::Status Forward(const ExecContext& ctx, const Input& input,
                       std::span<float> logits) override;
  using CtrModel::Backward;
  absl::Status Backward(const ExecContext& ctx, std::span<float> logit_gradient,
                        float* embedding_gradient, const BackwardHooks& hooks) override;
  std::span<float> parameters() override {
    return {parameters_.data(), static_cast<size_t>(parameters_.size())};
  }
  std::span<const float> gradients() const override {
    return {gradients_.data(), static_cast<size_t>(gradients_.size())};
  }

  // The MLPs' own words for where their parameters lie; null without dense features.
  const Mlp* bottom() const { return bottom_.get(); }
  const Mlp& top() const { return *top_; }
  int64_t top_parameters_offset() const { return top_offset_; }

 private:
  DlrmModel(const DlrmOptions& options, Device device) : options_(options), device_(device) {}
  absl::Status Allocate(const ExecContext& ctx);
  absl::Status InitParameters(const ExecContext& ctx);
  DotInteractionArgs InteractionArgs();

  const DlrmOptions options_;
  const Device device_;
  std::unique_ptr<Mlp> bottom_;
  std::unique_ptr<Mlp> top_;
  int64_t top_offset_ = 0;
  DeviceMemory<float> parameters_;
  DeviceMemory<float> gradients_;

  // Activations between the parts and their gradients, for max_batch_size samples.
  int64_t interaction_stride_ = 0;      // floats; whole cache lines, so that rows are aligned
  DeviceMemory<float> dense_vectors_;   // [B, D]
  DeviceMemory<float> dense_gradient_;  // [B, D]
  DeviceMemory<float> interactions_;    // [B, interaction_stride_]
  DeviceMemory<float> interactions_gradient_;  // the same
  Input input_;                                // of the last Forward
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_DLRM_MODEL_H_
