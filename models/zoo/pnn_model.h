#ifndef HOTROW_MODELS_ZOO_PNN_MODEL_H_
#define HOTROW_MODELS_ZOO_PNN_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/zoo/layers/model_graph.h"

namespace hotrow {

class FlagSet;

enum class PnnProducts { kInner, kOuter, kBoth };

struct PnnOptions : ModelOptions {
  PnnProducts products = PnnProducts::kInner;

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
  // ctx says where it computes, see ModelGraph.
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const PnnOptions& options,
                                                            const ExecContext& ctx = {});
};

// The flags of this model alone; `options` outlives `set`.
void AddPnnFlags(PnnOptions* options, FlagSet* set);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_PNN_MODEL_H_
