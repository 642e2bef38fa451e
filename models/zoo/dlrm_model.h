#ifndef HOTROW_MODELS_ZOO_DLRM_MODEL_H_
#define HOTROW_MODELS_ZOO_DLRM_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/zoo/layers/model_graph.h"

namespace hotrow {

class FlagSet;

enum class DlrmInteraction { kDot, kCat };

struct DlrmOptions : ModelOptions {
  // Output sizes of the bottom MLP's layers; the last one is D, or with kCat any. Not read without
  // dense features (I = 0): there is no bottom MLP then.
  std::vector<int32_t> dense_arch_layer_sizes;
  DlrmInteraction interaction = DlrmInteraction::kDot;

  absl::Status Validate() const;  // names the flag, what it is and the remedy
};

// DLRM (Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and
// Recommendation Systems"): a bottom MLP makes a vector of D numbers from the dense features, all
// pairwise dot products of it and the S pooled embeddings are taken, and a top MLP turns vector and
// products into a logit. The bottom MLP has ReLU on its output, the top one has not.
//
// Without dense features the first sparse feature takes the place of the dense vector: the products
// are those of the S embeddings, and the top MLP sees the first embedding beside them.
//
// With kCat there are no products: the top MLP reads the vector and the embeddings end to end.
//
// Parts: "bottom" and "top", MLPs.
class DlrmModel {
 public:
  // ctx says where it computes, see ModelGraph.
  static absl::StatusOr<std::unique_ptr<GraphModel>> Create(const DlrmOptions& options,
                                                            const ExecContext& ctx = {});
};

// The flags of this model alone; `options` outlives `set`.
void AddDlrmFlags(DlrmOptions* options, FlagSet* set);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_DLRM_MODEL_H_
