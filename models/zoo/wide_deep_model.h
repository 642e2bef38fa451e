#ifndef HOTROW_MODELS_ZOO_WIDE_DEEP_MODEL_H_
#define HOTROW_MODELS_ZOO_WIDE_DEEP_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/zoo/layers/graph_model.h"
#include "ops/dense_precision.h"

namespace hotrow {

struct WideDeepOptions {
  int32_t num_dense = 0;      // I >= 0
  int32_t num_sparse = 0;     // S >= 1: pooled features
  int32_t embedding_dim = 0;  // D
  // Output sizes of the MLP's layers, the input size follows from the data; the last one is 1.
  std::vector<int32_t> over_arch_layer_sizes;
  float dropout = 0;        // after each hidden layer, in training, in [0, 1)
  bool batch_norm = false;  // before each ReLU of the MLPs; CPU only
  uint64_t seed = 0;        // of the first parameters and of dropout
  int64_t max_batch_size = 0;
  DensePrecision precision = DensePrecision::kFp32;  // of products, on the CPU

  absl::Status Validate() const;  // names the flag, what it is and the remedy

  // Columns of each embedding table: a row holds a key's vector and, last, its first-order weight.
  static int64_t TableColumns(int64_t embedding_dim) { return embedding_dim + 1; }
};

// Wide & Deep (Cheng et al. 2016, "Wide & Deep Learning for Recommender Systems"): the logit is the
// sum of a linear model and an MLP.
//   wide  a bias, w . x for the dense features, and the first-order weights of the looked up rows
//   deep  an MLP over the S vectors end to end and the dense features
// The paper's wide part also has products of features that an engineer chose: give those as
// features of the data.
//
// Parts: "linear" and "bias", see AddWideLogit; "mlp".
class WideDeepModel {
 public:
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const WideDeepOptions& options);
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_WIDE_DEEP_MODEL_H_
