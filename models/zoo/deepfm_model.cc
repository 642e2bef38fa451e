#include "models/zoo/deepfm_model.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/zoo/layers/dense_layers.h"
#include "models/zoo/layers/interaction_layers.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/make_model_impl.h"
#include "models/zoo/model_parts.h"

namespace hotrow {

absl::Status DeepFmOptions::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckCommonOptions("DeepFmOptions", *this));
  const int64_t width = int64_t{num_sparse} * TableColumns(embedding_dim) + num_dense;
  if (width > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--embedding_dim=", embedding_dim, " gives ", width,
                     " inputs a sample, which is more than 2^31 - 1; lower it"));
  }
  return CheckLogitLayerSizes("--over_arch_layer_sizes", over_arch_layer_sizes);
}

absl::StatusOr<std::unique_ptr<GraphModel>> DeepFmModel::Create(const DeepFmOptions& options,
                                                                const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  const auto columns = static_cast<int32_t>(DeepFmOptions::TableColumns(options.embedding_dim));
  ModelGraph g(GraphOptionsOf("deepfm", options, columns), ctx);
  const bool has_dense = options.num_dense > 0;
  std::vector<GraphValue> deep = {g.Embeddings(0, options.embedding_dim)};
  GraphValue linear;
  if (has_dense) {
    deep.push_back(g.Dense());
    linear = AddLinear(g, "linear", deep.back());
  }
  const GraphValue bias = AddBias(g, "bias", /*joins_previous=*/has_dense);
  g.AddLogit(AddMlp(g, "mlp", g.Concat(deep), OverArchOf(options)));
  const GraphValue fm = AddFm(g, "fm", g.Embeddings(), /*has_first_order=*/true);
  g.AddLogit(g.Sum({fm, bias}));
  g.AddLogit(linear);
  return g.Build();
}

absl::StatusOr<std::unique_ptr<GraphModel>> MakeDeepFm(const ModelRecipe& recipe,
                                                       const ExecContext& ctx) {
  return MakeOfRecipe(recipe, ctx, DeepFmModel::Create);
}

}  // namespace hotrow
