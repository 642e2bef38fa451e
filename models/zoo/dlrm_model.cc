#include "models/zoo/dlrm_model.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/zoo/layers/dense_layers.h"
#include "models/zoo/layers/interaction_layers.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/make_model_impl.h"
#include "models/zoo/model_parts.h"

namespace hotrow {
namespace {

// `sizes` with the last one replaced: what the user meant to type.
std::string WithLast(std::vector<int32_t> sizes, int32_t last) {
  sizes.back() = last;
  return absl::StrJoin(sizes, "-");
}

}  // namespace

absl::Status DlrmOptions::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckCommonOptions("DlrmOptions", *this));
  if (num_dense > 0) {
    HOTROW_RETURN_IF_ERROR(CheckLayerSizes("--dense_arch_layer_sizes", dense_arch_layer_sizes));
    if (interaction == DlrmInteraction::kDot && dense_arch_layer_sizes.back() != embedding_dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("--dense_arch_layer_sizes ends in ", dense_arch_layer_sizes.back(),
                       " but --embedding_dim is ", embedding_dim,
                       ": the two vectors meet in dot products and must be equally long; use "
                       "--dense_arch_layer_sizes=",
                       WithLast(dense_arch_layer_sizes, embedding_dim),
                       " or --embedding_dim=", dense_arch_layer_sizes.back()));
    }
  }
  return CheckLogitLayerSizes("--over_arch_layer_sizes", over_arch_layer_sizes);
}

absl::StatusOr<std::unique_ptr<GraphModel>> DlrmModel::Create(const DlrmOptions& options,
                                                              const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  ModelGraphOptions graph = GraphOptionsOf("dlrm", options, options.embedding_dim);
  ModelGraph g(graph, ctx);
  std::vector<GraphValue> vectors;
  if (options.num_dense > 0) {
    vectors.push_back(AddMlp(g, "bottom", g.Dense(),
                             {.flag = "--dense_arch_layer_sizes",
                              .sizes = options.dense_arch_layer_sizes,
                              .relu_on_output = true,
                              .dropout = options.dropout,
                              .batch_norm = options.batch_norm}));
  }
  vectors.push_back(g.Embeddings());
  const GraphValue z = options.interaction == DlrmInteraction::kCat
                           ? g.Concat(vectors)
                           : AddDotInteraction(g, "interaction", vectors);
  g.AddLogit(AddMlp(g, "top", z, OverArchOf(options)));
  return g.Build();
}

void AddDlrmFlags(DlrmOptions* options, FlagSet* set) {
  set->Add(
      "interaction",
      WordFlag<DlrmInteraction>("WORD", &options->interaction,
                                {{"dot", DlrmInteraction::kDot}, {"cat", DlrmInteraction::kCat}}),
      "what the top MLP reads: dot (products of all pairs of vectors) or cat (the vectors end "
      "to end)");
}

absl::StatusOr<std::unique_ptr<GraphModel>> MakeDlrm(const ModelRecipe& recipe,
                                                     const ExecContext& ctx) {
  return MakeOfRecipe(recipe, ctx, DlrmModel::Create, AddDlrmFlags);
}

}  // namespace hotrow
