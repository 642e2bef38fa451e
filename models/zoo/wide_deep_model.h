#ifndef HOTROW_MODELS_ZOO_WIDE_DEEP_MODEL_H_
#define HOTROW_MODELS_ZOO_WIDE_DEEP_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/zoo/layers/model_graph.h"

namespace hotrow {

struct WideDeepOptions : ModelOptions {
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
  // ctx says where it computes, see ModelGraph.
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const WideDeepOptions& options,
                                                            const ExecContext& ctx = {});
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_WIDE_DEEP_MODEL_H_
