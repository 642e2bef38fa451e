#ifndef HOTROW_MODELS_ZOO_BST_MODEL_H_
#define HOTROW_MODELS_ZOO_BST_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/zoo/histories.h"
#include "models/zoo/layers/history_encoder.h"
#include "models/zoo/layers/model_graph.h"

namespace hotrow {

class FlagSet;

// dropout and batch_norm: of the MLP over all.
struct BstOptions : ModelOptions {
  std::vector<ModelFeature> features;  // in the order of the data
  std::string history;                 // see ParseHistory; all of the same events
  int32_t num_blocks = 1;              // >= 1
  int32_t num_heads = 1;               // divides the columns of all histories
};

// The Behavior Sequence Transformer (Chen et al. 2019, arXiv 1905.06874): an MLP over
//   the histories   and their targets as one sequence, which goes through transformer blocks: what
//                   they make of the target, see HistoryEncoder and TransformerBlock
//   the others      as DIN reads them
// Here the target's row stands for the sequence; the paper has all rows side by side, padded. On
// the CPU.
// Parts: "sequence", "mlp".
class BstModel {
 public:
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const BstOptions& options,
                                                            const ExecContext& ctx = {});
};

// The flags of this model alone; `options` outlives `set`.
void AddBstFlags(BstOptions* options, FlagSet* set);

// The same model of other blocks; maps_of_block: layer ids that each takes.
absl::StatusOr<std::unique_ptr<GraphModel>> CreateOfBlocks(std::string_view name,
                                                           const BstOptions& options,
                                                           int32_t maps_of_block,
                                                           MakeSequenceBlock make_block,
                                                           const ExecContext& ctx);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_BST_MODEL_H_
