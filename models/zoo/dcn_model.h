#ifndef HOTROW_MODELS_ZOO_DCN_MODEL_H_
#define HOTROW_MODELS_ZOO_DCN_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "models/zoo/ctr_model.h"
#include "ops/cross_network.h"
#include "ops/mlp.h"

namespace hotrow {

enum class DcnStructure { kStacked, kParallel };

struct DcnOptions {
  int32_t num_dense = 0;      // I >= 0
  int32_t num_sparse = 0;     // S >= 1: pooled features, each embedding_dim wide
  int32_t embedding_dim = 0;  // D
  int32_t version = 2;        // 1: cross layers with a vector each; 2: with a matrix each
  int32_t num_cross_layers = 3;
  int32_t low_rank_dim = 0;  // of the matrices, in [0, width of x_0]; 0: full; version 2 only
  DcnStructure structure = DcnStructure::kStacked;
  // Output sizes of the layers, the input size follows from the data. The bottom MLP may end in any
  // size; without layers the dense features enter x_0 as they are. Without dense features (I = 0)
  // there is no bottom MLP and its sizes are not read. The over MLP ends in 1.
  std::vector<int32_t> dense_arch_layer_sizes;
  std::vector<int32_t> over_arch_layer_sizes;
  float dropout = 0;  // after each hidden layer of the MLPs, in training, in [0, 1)
  uint64_t seed = 0;  // of the first parameters and of dropout
  int64_t max_batch_size = 0;

  absl::Status Validate() const;  // names the flag, what it is and the remedy
  int64_t InputWidth() const;     // W: columns of x_0
};

// Deep & Cross Network, version 1 (Wang et al. 2017, "Deep & Cross Network for Ad Click
// Predictions") and 2 (Wang et al. 2021, "DCN V2"). x_0 is the dense features, or what a bottom MLP
// with ReLU on its output makes of them, and then the S embeddings. Cross layers (see
// ops/cross_network.h) turn x_0 into x_L; a deep part of hidden layers turns its input into h:
//   stacked    the deep part reads x_L, and the logit is linear in h
//   parallel   the deep part reads x_0, and the logit is linear in x_L and h end to end
// The over MLP is the deep part with that last linear layer; in the parallel structure the weights
// of x_L are kept apart from those of h.
//
// Parameters: bottom MLP, cross layers, in the parallel structure the weights of x_L [W], over MLP;
// each as ops/ lays it out and starting at a multiple of 16 floats.
class DcnModel : public CtrModel {
 public:
  static absl::StatusOr<std::unique_ptr<DcnModel>> Create(const DcnOptions& options);

  std::string_view name() const override { return "dcn"; }
  // A cross layer of version 1 works as much as one of version 2 with matrices of rank 1.
  DenseLayers layers() const override;
  absl::Status Forward(const ExecContext& ctx, const Input& input,
                       std::span<float> logits) override;
  using CtrModel::Backward;
  absl::Status Backward(const ExecContext& ctx, std::span<float> logit_gradient,
                        float* embedding_gradient, const BackwardHooks& hooks) override;
  std::span<float> parameters() override { return parameters_.span(); }
  std::span<const float> gradients() const override { return gradients_.span(); }

  // Where parameters lie. bottom() is null without dense features or layers for them.
  const Mlp* bottom() const { return bottom_.get(); }
  const CrossNetwork& cross() const { return *cross_; }
  const Mlp& over() const { return *over_; }
  int64_t cross_parameters_offset() const { return cross_offset_; }
  int64_t cross_logit_offset() const { return cross_logit_offset_; }  // [W], if parallel
  int64_t over_parameters_offset() const { return over_offset_; }

 private:
  explicit DcnModel(const DcnOptions& options) : options_(options) {}
  absl::Status CreateParts();
  absl::Status Allocate();
  bool parallel() const { return options_.structure == DcnStructure::kParallel; }

  DcnOptions options_;
  std::unique_ptr<Mlp> bottom_;
  std::unique_ptr<CrossNetwork> cross_;
  std::unique_ptr<Mlp> over_;
  int64_t width_ = 0;        // W
  int64_t dense_width_ = 0;  // columns of x_0 before the embeddings
  int64_t embedding_width_ = 0;
  int64_t cross_offset_ = 0;
  int64_t cross_logit_offset_ = 0;
  int64_t over_offset_ = 0;
  HostBuffer<float> parameters_;
  HostBuffer<float> gradients_;

  // [B, stride_] each, for max_batch_size samples.
  int64_t stride_ = 0;                  // W, rounded up to whole cache lines
  HostBuffer<float> inputs_;            // x_0
  HostBuffer<float> crossed_;           // x_L
  HostBuffer<float> inputs_gradient_;   // by way of the cross layers; in the end all of it
  HostBuffer<float> crossed_gradient_;  // of x_L; in parallel then of x_0 by way of the over MLP
  Input input_;                         // of the last Forward
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_DCN_MODEL_H_
