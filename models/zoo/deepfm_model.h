#ifndef HOTROW_MODELS_ZOO_DEEPFM_MODEL_H_
#define HOTROW_MODELS_ZOO_DEEPFM_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "models/zoo/ctr_model.h"
#include "ops/fm_interaction.h"
#include "ops/mlp.h"

namespace hotrow {

struct DeepFmOptions {
  int32_t num_dense = 0;      // I >= 0
  int32_t num_sparse = 0;     // S >= 1: pooled features, each TableColumns() wide
  int32_t embedding_dim = 0;  // D: of the vectors that the factorization machine multiplies
  // Output sizes of the MLP's layers, the input size follows from the data; the last one is 1.
  std::vector<int32_t> over_arch_layer_sizes;
  float dropout = 0;  // after each hidden layer, in training, in [0, 1)
  uint64_t seed = 0;  // of the first parameters and of dropout
  int64_t max_batch_size = 0;

  absl::Status Validate() const;  // names the flag, what it is and the remedy

  // Columns of each embedding table: a row holds a key's vector and, last, its first-order weight,
  // so that one fetch serves both.
  static int64_t TableColumns(int64_t embedding_dim) { return embedding_dim + 1; }
};

// DeepFM (Guo et al. 2017, "DeepFM: A Factorization-Machine based Neural Network for CTR
// Prediction"): three terms and a bias make up the logit.
//   first order   the first-order weights of the S looked up rows, and w . x for the dense features
//   second order  all pairwise dot products of the S vectors, by ops/fm_interaction.h
//   deep          an MLP over the S vectors end to end and the dense features
// The second and the third share the vectors. Dense features have no vector: they meet others in
// the MLP alone.
//
// Parameters: the weights of the dense features [I] and the bias, all zero at first, padded to 16
// floats; then those of the MLP as ops/mlp.h lays them out.
class DeepFmModel : public CtrModel {
 public:
  static absl::StatusOr<std::unique_ptr<DeepFmModel>> Create(const DeepFmOptions& options);

  std::string_view name() const override { return "deepfm"; }
  // The MLP: what the factorization machine and the linear terms take beside it is left out.
  DenseLayers layers() const override;
  absl::Status Forward(const ExecContext& ctx, const Input& input,
                       std::span<float> logits) override;
  using CtrModel::Backward;
  absl::Status Backward(const ExecContext& ctx, std::span<float> logit_gradient,
                        float* embedding_gradient, const BackwardHooks& hooks) override;
  std::span<float> parameters() override { return parameters_.span(); }
  std::span<const float> gradients() const override { return gradients_.span(); }

  // Where parameters lie.
  const Mlp& mlp() const { return *mlp_; }
  int64_t mlp_parameters_offset() const { return mlp_offset_; }
  int64_t bias_offset() const { return options_.num_dense; }  // behind the dense weights, at 0

 private:
  explicit DeepFmModel(const DeepFmOptions& options) : options_(options) {}
  absl::Status Allocate();
  FmInteractionArgs InteractionArgs();

  DeepFmOptions options_;
  std::unique_ptr<Mlp> mlp_;
  int64_t mlp_offset_ = 0;
  HostBuffer<float> parameters_;
  HostBuffer<float> gradients_;

  // For max_batch_size samples.
  int64_t deep_stride_ = 0;              // floats; whole cache lines, so that rows are aligned
  HostBuffer<float> deep_input_;         // [B, S * D + I]: vectors, then dense features
  HostBuffer<float> deep_gradient_;      // the same
  HostBuffer<float> interaction_terms_;  // [B]
  Input input_;                          // of the last Forward
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_DEEPFM_MODEL_H_
