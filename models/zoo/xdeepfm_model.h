#ifndef HOTROW_MODELS_ZOO_XDEEPFM_MODEL_H_
#define HOTROW_MODELS_ZOO_XDEEPFM_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/zoo/layers/model_graph.h"

namespace hotrow {

class FlagSet;

struct XDeepFmOptions : ModelOptions {
  std::vector<int32_t> cin_layer_sizes;  // rows that each layer of the CIN makes; at least one

  absl::Status Validate() const;  // names the flag, what it is and the remedy

  // Columns of each embedding table: a row holds a key's vector and, last, its first-order weight.
  static int64_t TableColumns(int64_t embedding_dim) { return embedding_dim + 1; }
};

// xDeepFM (Lian et al. 2018, "xDeepFM: Combining Explicit and Implicit Feature Interactions for
// Recommender Systems"): three terms make up the logit.
//   linear  as the wide part of Wide & Deep: bias, dense features, first-order weights
//   CIN     products of vectors, column by column, of ever higher order (see CinLayer), and a
//           weight for each row that it makes
//   deep    an MLP over the S vectors end to end and the dense features
// All share the vectors.
//
// Parts: "linear" and "bias", see AddWideLogit; "cin"; "cin_logit", the weights of its output;
// "mlp".
class XDeepFmModel {
 public:
  // ctx says where it computes, see ModelGraph.
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const XDeepFmOptions& options,
                                                            const ExecContext& ctx = {});
};

// The flags of this model alone; `options` outlives `set`.
void AddXDeepFmFlags(XDeepFmOptions* options, FlagSet* set);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_XDEEPFM_MODEL_H_
