#ifndef HOTROW_MODELS_ZOO_DEEPFM_MODEL_H_
#define HOTROW_MODELS_ZOO_DEEPFM_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/zoo/layers/graph_model.h"
#include "ops/dense_precision.h"

namespace hotrow {

struct DeepFmOptions {
  int32_t num_dense = 0;      // I >= 0
  int32_t num_sparse = 0;     // S >= 1: pooled features, each TableColumns() wide
  int32_t embedding_dim = 0;  // D: of the vectors that the factorization machine multiplies
  // Output sizes of the MLP's layers, the input size follows from the data; the last one is 1.
  std::vector<int32_t> over_arch_layer_sizes;
  float dropout = 0;        // after each hidden layer, in training, in [0, 1)
  bool batch_norm = false;  // before each ReLU of the MLPs; CPU only
  uint64_t seed = 0;        // of the first parameters and of dropout
  int64_t max_batch_size = 0;
  DensePrecision precision = DensePrecision::kFp32;  // of products, on the CPU

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
// Parts: "linear", the weights of the dense features, if there are any, and "bias" right behind
// them; "mlp". The planner is told of the MLP alone.
class DeepFmModel {
 public:
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const DeepFmOptions& options);
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_DEEPFM_MODEL_H_
