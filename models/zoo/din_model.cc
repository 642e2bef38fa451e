#include "models/zoo/din_model.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/zoo/layers/dense_layers.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/layers/sequence_layers.h"
#include "models/zoo/make_model_impl.h"
#include "models/zoo/model_parts.h"

namespace hotrow {

absl::StatusOr<std::unique_ptr<GraphModel>> DinModel::Create(const DinOptions& options,
                                                             const ExecContext& ctx) {
  if (options.num_sparse != std::ssize(options.features)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "DinOptions: ", options.features.size(), " features, num_sparse is ", options.num_sparse));
  }
  HOTROW_RETURN_IF_ERROR(CheckDeepOptions("DinOptions", options));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<Interest> interests,
                          ParseHistory(options.history, options.features));
  ModelGraphOptions graph = GraphOptionsOf("din", options, options.embedding_dim);
  HistoryInputs features(options.features, interests, &graph);
  ModelGraph g(graph, ctx);
  std::vector<GraphValue> inputs;
  for (size_t i = 0; i < interests.size(); ++i) {
    inputs.push_back(AddTargetAttention(g, absl::StrCat("attention", i),
                                        features.sequence(interests[i]),
                                        features.VectorOf(g, interests[i].target),
                                        "--attention_layer_sizes", options.attention_layer_sizes));
  }
  features.AppendOthers(g, &inputs);
  g.AddLogit(AddMlp(g, "mlp", g.Concat(inputs), OverArchOf(options)));
  return features.Build(g);
}

void AddDinFlags(DinOptions* options, FlagSet* set) {
  set->Add("history", StringFlag("HISTORY:TARGET,...", &options->history),
           "features with many values, and the feature that each is looked at for");
  set->Add("attention_layer_sizes", SizesFlag(&options->attention_layer_sizes),
           "hidden layers of the MLP that finds how relevant a value is");
}

absl::StatusOr<std::unique_ptr<GraphModel>> MakeDin(const ModelRecipe& recipe,
                                                    const ExecContext& ctx) {
  return MakeOfRecipe(recipe, ctx, DinModel::Create, AddDinFlags);
}

}  // namespace hotrow
