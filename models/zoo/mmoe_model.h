#ifndef HOTROW_MODELS_ZOO_MMOE_MODEL_H_
#define HOTROW_MODELS_ZOO_MMOE_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/zoo/layers/model_graph.h"

namespace hotrow {

class FlagSet;

// over_arch_layer_sizes: of the tower of each task.
struct MmoeOptions : ModelOptions {
  int32_t num_tasks = 1;    // T >= 1: labels
  int32_t num_experts = 8;  // E >= 1; 1: a shared bottom, without gates
  // Output sizes of the layers of each expert, all of which have ReLU.
  std::vector<int32_t> expert_layer_sizes;

  absl::Status Validate() const;  // names the flag, what it is and the remedy
};

// The multi-gate mixture of experts (Ma et al. 2018, "Modeling Task Relationships in Multi-task
// Learning with Multi-gate Mixture-of-Experts"): a logit for each task.
//   x        the S vectors end to end and the dense features
//   experts  E MLPs over x, which all tasks share
//   gates    for each task the softmax of a linear map of x: the share of each expert
//   towers   for each task an MLP over its mixture of the experts, which gives the logit
// With one expert there is nothing to choose: the shared bottom that the paper compares with.
//
// Parts: "expert0" ..., "gate0" ..., "tower0" .... The planner is told of the last tower alone.
class MmoeModel {
 public:
  // ctx says where it computes, see ModelGraph.
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const MmoeOptions& options,
                                                            const ExecContext& ctx = {});
};

// The flags of this model alone; `options` outlives `set`.
void AddMmoeFlags(MmoeOptions* options, FlagSet* set);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_MMOE_MODEL_H_
