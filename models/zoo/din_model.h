#ifndef HOTROW_MODELS_ZOO_DIN_MODEL_H_
#define HOTROW_MODELS_ZOO_DIN_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/zoo/histories.h"
#include "models/zoo/layers/model_graph.h"

namespace hotrow {

class FlagSet;

// dropout and batch_norm: of the MLP over all.
struct DinOptions : ModelOptions {
  std::vector<ModelFeature> features;          // in the order of the data
  std::string history;                         // see ParseHistory
  std::vector<int32_t> attention_layer_sizes;  // hidden layers of each attention's MLP
};

// The Deep Interest Network (Zhou et al. 2018, "Deep Interest Network for Click-Through Rate
// Prediction"): an MLP over
//   for each history  the sum of its rows, each times its relevance for the target, see
//                     TargetAttentionLayer
//   features          that share a table with a history: the sum of their rows
//   the others        their pooled vectors
//   the dense features
// Parts: "attention0" ..., one for each history; "mlp". The planner is told of the MLP alone.
class DinModel {
 public:
  // ctx says where it computes, see ModelGraph.
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const DinOptions& options,
                                                            const ExecContext& ctx = {});
};

// The flags of this model alone; `options` outlives `set`.
void AddDinFlags(DinOptions* options, FlagSet* set);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_DIN_MODEL_H_
