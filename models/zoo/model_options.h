#ifndef HOTROW_MODELS_ZOO_MODEL_OPTIONS_H_
#define HOTROW_MODELS_ZOO_MODEL_OPTIONS_H_

#include <cstdint>
#include <vector>

#include "ops/products/dense_precision.h"

namespace hotrow {

// What all models of this folder are told, the base of their options:
//   DlrmOptions options = {{.num_dense = 13, .num_sparse = 26, .embedding_dim = 16}};
struct ModelOptions {
  int32_t num_dense = 0;      // I >= 0
  int32_t num_sparse = 0;     // S >= 1: features
  int32_t embedding_dim = 0;  // D
  // Output sizes of the layers of the MLP that gives the logit; the last one is 1. The input size
  // follows from the data.
  std::vector<int32_t> over_arch_layer_sizes;
  float dropout = 0;        // after each hidden layer of the MLPs, in training, in [0, 1)
  bool batch_norm = false;  // before each ReLU of the MLPs
  uint64_t seed = 0;        // of the first parameters and of dropout
  int64_t max_batch_size = 0;
  DensePrecision precision = DensePrecision::kFp32;  // of products
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_MODEL_OPTIONS_H_
