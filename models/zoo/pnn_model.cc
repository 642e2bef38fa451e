#include "models/zoo/pnn_model.h"

#include "base/status_macros.h"
#include "models/zoo/layers/dense_layers.h"
#include "models/zoo/layers/interaction_layers.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/make_model_impl.h"
#include "models/zoo/model_parts.h"

namespace hotrow {

absl::Status PnnOptions::Validate() const {
  if (products != PnnProducts::kOuter && num_sparse == 1) {
    return absl::InvalidArgumentError(
        "--pnn_products: the data have one feature, which makes no pair; use --pnn_products=outer");
  }
  return CheckDeepOptions("PnnOptions", *this);
}

absl::StatusOr<std::unique_ptr<GraphModel>> PnnModel::Create(const PnnOptions& options,
                                                             const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  ModelGraph g(GraphOptionsOf("pnn", options, options.embedding_dim), ctx);
  std::vector<GraphValue> deep = {g.Embeddings(0, options.embedding_dim)};
  if (options.num_dense > 0) deep.push_back(g.Dense());
  if (options.products != PnnProducts::kOuter) {
    deep.push_back(AddInnerProducts(g, "inner", deep[0]));
  }
  if (options.products != PnnProducts::kInner) {
    deep.push_back(AddOuterProduct(g, "outer", deep[0]));
  }
  g.AddLogit(AddMlp(g, "mlp", g.Concat(deep), OverArchOf(options)));
  return g.Build();
}

void AddPnnFlags(PnnOptions* options, FlagSet* set) {
  set->Add("pnn_products",
           WordFlag<PnnProducts>("WORD", &options->products,
                                 {{"inner", PnnProducts::kInner},
                                  {"outer", PnnProducts::kOuter},
                                  {"both", PnnProducts::kBoth}}),
           "what the MLP reads beside the vectors: inner (dot products of all pairs), outer (the "
           "outer product of their sum) or both");
}

absl::StatusOr<std::unique_ptr<GraphModel>> MakePnn(const ModelRecipe& recipe,
                                                    const ExecContext& ctx) {
  return MakeOfRecipe(recipe, ctx, PnnModel::Create, AddPnnFlags);
}

}  // namespace hotrow
