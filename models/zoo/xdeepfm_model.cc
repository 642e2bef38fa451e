#include "models/zoo/xdeepfm_model.h"

#include "base/status_macros.h"
#include "models/zoo/layers/cin_layer.h"
#include "models/zoo/layers/dense_layers.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/make_model_impl.h"
#include "models/zoo/model_parts.h"

namespace hotrow {

absl::Status XDeepFmOptions::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckLayerSizes("--cin_layer_sizes", cin_layer_sizes));
  return CheckDeepOptions("XDeepFmOptions", *this);
}

absl::StatusOr<std::unique_ptr<GraphModel>> XDeepFmModel::Create(const XDeepFmOptions& options,
                                                                 const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  const auto columns = static_cast<int32_t>(XDeepFmOptions::TableColumns(options.embedding_dim));
  ModelGraph g(GraphOptionsOf("xdeepfm", options, columns), ctx);
  AddWideLogit(g, /*column=*/options.embedding_dim);
  std::vector<GraphValue> deep = {g.Embeddings(0, options.embedding_dim)};
  if (options.num_dense > 0) deep.push_back(g.Dense());
  const GraphValue cin = AddCin(g, "cin", deep[0], "--cin_layer_sizes", options.cin_layer_sizes);
  g.AddLogit(AddLinear(g, "cin_logit", cin));
  g.AddLogit(AddMlp(g, "mlp", g.Concat(deep), OverArchOf(options)));
  return g.Build();
}

void AddXDeepFmFlags(XDeepFmOptions* options, FlagSet* set) {
  set->Add("cin_layer_sizes", SizesFlag(&options->cin_layer_sizes),
           "rows that each layer of the CIN makes");
}

absl::StatusOr<std::unique_ptr<GraphModel>> MakeXDeepFm(const ModelRecipe& recipe,
                                                        const ExecContext& ctx) {
  return MakeOfRecipe(recipe, ctx, XDeepFmModel::Create, AddXDeepFmFlags);
}

}  // namespace hotrow
