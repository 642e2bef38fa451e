#include "models/zoo/mmoe_model.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/zoo/layers/dense_layers.h"
#include "models/zoo/layers/mixture_layer.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/make_model_impl.h"
#include "models/zoo/model_parts.h"

namespace hotrow {

absl::Status MmoeOptions::Validate() const {
  if (num_tasks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("MmoeOptions.num_tasks: must be at least 1, is ", num_tasks));
  }
  if (num_experts < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--num_experts must be at least 1, is ", num_experts));
  }
  HOTROW_RETURN_IF_ERROR(CheckLayerSizes("--expert_layer_sizes", expert_layer_sizes));
  return CheckDeepOptions("MmoeOptions", *this);
}

absl::StatusOr<std::unique_ptr<GraphModel>> MmoeModel::Create(const MmoeOptions& options,
                                                              const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  ModelGraph g(GraphOptionsOf("mmoe", options, options.embedding_dim, options.num_tasks), ctx);
  std::vector<GraphValue> inputs = {g.Embeddings()};
  if (options.num_dense > 0) inputs.push_back(g.Dense());
  const GraphValue x = g.Concat(inputs);
  std::vector<GraphValue> outputs;
  for (int32_t e = 0; e < options.num_experts; ++e) {
    outputs.push_back(AddMlp(g, absl::StrCat("expert", e), x,
                             {.flag = "--expert_layer_sizes",
                              .sizes = options.expert_layer_sizes,
                              .relu_on_output = true,
                              .dropout = options.dropout,
                              .batch_norm = options.batch_norm}));
  }
  const GraphValue experts = g.Concat(outputs);
  for (int32_t task = 0; task < options.num_tasks; ++task) {
    GraphValue mixture = experts;
    if (options.num_experts > 1) {
      const GraphValue gate = AddMlp(g, absl::StrCat("gate", task), x,
                                     {.flag = "--num_experts", .sizes = {options.num_experts}});
      mixture = AddMixture(g, absl::StrCat("mixture", task), gate, experts);
    }
    g.AddLogit(AddMlp(g, absl::StrCat("tower", task), mixture, OverArchOf(options)), task);
  }
  return g.Build();
}

void AddMmoeFlags(MmoeOptions* options, FlagSet* set) {
  set->Add("num_experts", IntFlag(&options->num_experts, 1, 1024),
           "MLPs that all tasks share, mixed for each task by a gate; 1: a shared bottom");
  set->Add("expert_layer_sizes", SizesFlag(&options->expert_layer_sizes),
           "layer outputs of each expert");
}

absl::StatusOr<std::unique_ptr<GraphModel>> MakeMmoe(const ModelRecipe& recipe,
                                                     const ExecContext& ctx) {
  return MakeOfRecipe(recipe, ctx, MmoeModel::Create, AddMmoeFlags);
}

}  // namespace hotrow
