#ifndef HOTROW_MODELS_ZOO_DCN_MODEL_H_
#define HOTROW_MODELS_ZOO_DCN_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/zoo/layers/model_graph.h"

namespace hotrow {

class FlagSet;

enum class DcnStructure { kStacked, kParallel };

struct DcnOptions : ModelOptions {
  int32_t version = 2;  // 1: cross layers with a vector each; 2: with a matrix each
  int32_t num_cross_layers = 3;
  int32_t low_rank_dim = 0;  // of the matrices, in [0, width of x_0]; 0: full; version 2 only
  int32_t num_experts = 1;   // of each cross layer; above 1: matrices with a rank
  DcnStructure structure = DcnStructure::kStacked;
  // Output sizes of the bottom MLP's layers, which may end in any size; without layers the dense
  // features enter x_0 as they are. Not read without dense features (I = 0): there is no bottom MLP
  // then.
  std::vector<int32_t> dense_arch_layer_sizes;

  absl::Status Validate() const;  // names the flag, what it is and the remedy
  int64_t InputWidth() const;     // W: columns of x_0
};

// Deep & Cross Network, version 1 (Wang et al. 2017, "Deep & Cross Network for Ad Click
// Predictions") and 2 (Wang et al. 2021, "DCN V2"). x_0 is the dense features, or what a bottom MLP
// with ReLU on its output makes of them, and then the S embeddings. Cross layers (see
// ops/layers/cross_network.h) turn x_0 into x_L; a deep part of hidden layers turns its input into
// h:   stacked    the deep part reads x_L, and the logit is linear in h
//   parallel   the deep part reads x_0, and the logit is linear in x_L and h end to end
// The over MLP is the deep part with that last linear layer; in the parallel structure the weights
// of x_L are kept apart from those of h.
//
// Parts: "bottom", an MLP, if there is one; "cross", or with experts those of AddCross; in the
// parallel structure "cross_logit", the weights of x_L [W]; "over", an MLP.
class DcnModel {
 public:
  // ctx says where it computes, see ModelGraph.
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const DcnOptions& options,
                                                            const ExecContext& ctx = {});
};

// The flags of this model alone; `options` outlives `set`.
void AddDcnFlags(DcnOptions* options, FlagSet* set);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_DCN_MODEL_H_
