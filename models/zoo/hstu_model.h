#ifndef HOTROW_MODELS_ZOO_HSTU_MODEL_H_
#define HOTROW_MODELS_ZOO_HSTU_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/zoo/bst_model.h"
#include "models/zoo/layers/model_graph.h"

namespace hotrow {

// A ranking model of Hierarchical Sequential Transduction Units (Zhai et al. 2024, arXiv
// 2402.17152): BST with the blocks of HSTU, see HstuBlock. One target a sample, whose row is the
// last one, so that it sees all others. Parts: as BST's.
class HstuModel {
 public:
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const BstOptions& options,
                                                            const ExecContext& ctx = {});
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_HSTU_MODEL_H_
