#ifndef HOTROW_MODELS_ZOO_DEEPFM_MODEL_H_
#define HOTROW_MODELS_ZOO_DEEPFM_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/zoo/layers/model_graph.h"

namespace hotrow {

struct DeepFmOptions : ModelOptions {
  absl::Status Validate() const;  // names the flag, what it is and the remedy

  // Columns of each embedding table: a row holds a key's vector and, last, its first-order weight,
  // so that one fetch serves both.
  static int64_t TableColumns(int64_t embedding_dim) { return embedding_dim + 1; }
};

// DeepFM (Guo et al. 2017, "DeepFM: A Factorization-Machine based Neural Network for CTR
// Prediction"): three terms and a bias make up the logit.
//   first order   the first-order weights of the S looked up rows, and w . x for the dense features
//   second order  all pairwise dot products of the S vectors, by ops/interactions/fm_interaction.h
//   deep          an MLP over the S vectors end to end and the dense features
// The second and the third share the vectors. Dense features have no vector: they meet others in
// the MLP alone.
//
// Parts: "linear", the weights of the dense features, if there are any, and "bias" right behind
// them; "mlp". The planner is told of the MLP alone.
class DeepFmModel {
 public:
  // ctx says where it computes, see ModelGraph.
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const DeepFmOptions& options,
                                                            const ExecContext& ctx = {});
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_DEEPFM_MODEL_H_
