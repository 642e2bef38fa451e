#ifndef HOTROW_MODELS_ZOO_PNN_MODEL_H_
#define HOTROW_MODELS_ZOO_PNN_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/zoo/layers/graph_model.h"
#include "ops/dense_precision.h"

namespace hotrow {

enum class PnnProducts { kInner, kOuter, kBoth };

struct PnnOptions {
  int32_t num_dense = 0;      // I >= 0
  int32_t num_sparse = 0;     // S >= 1: pooled features
  int32_t embedding_dim = 0;  // D
  PnnProducts products = PnnProducts::kInner;
  // Output sizes of the MLP's layers, the input size follows from the data; the last one is 1.
  std::vector<int32_t> over_arch_layer_sizes;
  float dropout = 0;        // after each hidden layer, in training, in [0, 1)
  bool batch_norm = false;  // before each ReLU of the MLPs; CPU only
  uint64_t seed = 0;        // of the first parameters and of dropout
  int64_t max_batch_size = 0;
  DensePrecision precision = DensePrecision::kFp32;  // of products, on the CPU

  absl::Status Validate() const;  // names the flag, what it is and the remedy
};

// PNN (Qu et al. 2016, "Product-based Neural Networks for User Response Prediction"): an MLP over
// the S vectors end to end, the dense features, and products of the vectors.
//   inner  IPNN: the dot products of all pairs
//   outer  OPNN: the outer product of the sum of all vectors with itself
//   both   PNN*
//
// Part: "mlp".
class PnnModel {
 public:
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const PnnOptions& options);
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_PNN_MODEL_H_
