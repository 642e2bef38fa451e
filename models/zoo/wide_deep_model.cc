#include "models/zoo/wide_deep_model.h"

#include "base/status_macros.h"
#include "models/zoo/layers/dense_layers.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/make_model_impl.h"
#include "models/zoo/model_parts.h"

namespace hotrow {

absl::Status WideDeepOptions::Validate() const {
  return CheckDeepOptions("WideDeepOptions", *this);
}

absl::StatusOr<std::unique_ptr<GraphModel>> WideDeepModel::Create(const WideDeepOptions& options,
                                                                  const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  const auto columns = static_cast<int32_t>(WideDeepOptions::TableColumns(options.embedding_dim));
  ModelGraph g(GraphOptionsOf("wide_deep", options, columns), ctx);
  AddWideLogit(g, /*column=*/options.embedding_dim);
  std::vector<GraphValue> deep = {g.Embeddings(0, options.embedding_dim)};
  if (options.num_dense > 0) deep.push_back(g.Dense());
  g.AddLogit(AddMlp(g, "mlp", g.Concat(deep), OverArchOf(options)));
  return g.Build();
}

absl::StatusOr<std::unique_ptr<GraphModel>> MakeWideDeep(const ModelRecipe& recipe,
                                                         const ExecContext& ctx) {
  return MakeOfRecipe(recipe, ctx, WideDeepModel::Create);
}

}  // namespace hotrow
