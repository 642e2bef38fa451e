#include "models/zoo/dcn_model.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/zoo/layers/cross_layer.h"
#include "models/zoo/layers/dense_layers.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/make_model_impl.h"
#include "models/zoo/model_parts.h"

namespace hotrow {

int64_t DcnOptions::InputWidth() const {
  const bool has_bottom = num_dense > 0 && !dense_arch_layer_sizes.empty();
  const int64_t dense_width = has_bottom ? dense_arch_layer_sizes.back() : num_dense;
  return dense_width + int64_t{num_sparse} * embedding_dim;
}

absl::Status DcnOptions::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckCommonOptions("DcnOptions", *this));
  if (version != 1 && version != 2) {
    return absl::InvalidArgumentError(absl::StrCat("--dcn_version must be 1 or 2, is ", version));
  }
  if (num_cross_layers < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dcn_num_layers must be at least 1, is ", num_cross_layers));
  }
  if (num_dense > 0 && !dense_arch_layer_sizes.empty()) {
    HOTROW_RETURN_IF_ERROR(CheckLayerSizes("--dense_arch_layer_sizes", dense_arch_layer_sizes));
  }
  const int64_t width = InputWidth();
  if (width > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--embedding_dim=", embedding_dim, " gives ", width,
                     " inputs a sample, which is more than 2^31 - 1; lower it"));
  }
  if (low_rank_dim > 0 && version == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dcn_low_rank_dim=", low_rank_dim,
                     ": the cross layers of version 1 have no matrix to factor; use "
                     "--dcn_version=2 or --dcn_low_rank_dim=0"));
  }
  if (low_rank_dim < 0 || low_rank_dim > width) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dcn_low_rank_dim=", low_rank_dim, " must be at least 0 and at most ", width,
                     ", the number of features that are crossed; 0 takes full matrices"));
  }
  if (num_experts < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dcn_num_experts must be at least 1, is ", num_experts));
  }
  if (num_experts > 1 && low_rank_dim == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dcn_num_experts=", num_experts,
                     ": experts are matrices of low rank; set --dcn_low_rank_dim"));
  }
  if (int64_t{num_experts} * low_rank_dim > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("--dcn_num_experts=", num_experts,
                                                   " times --dcn_low_rank_dim=", low_rank_dim,
                                                   " is more than 2^31 - 1; lower one of them"));
  }
  return CheckLogitLayerSizes("--over_arch_layer_sizes", over_arch_layer_sizes);
}

absl::StatusOr<std::unique_ptr<GraphModel>> DcnModel::Create(const DcnOptions& options,
                                                             const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  ModelGraph g(GraphOptionsOf("dcn", options, options.embedding_dim), ctx);
  std::vector<GraphValue> inputs;
  if (options.num_dense > 0) {
    inputs.push_back(g.Dense());
    if (!options.dense_arch_layer_sizes.empty()) {
      inputs.back() = AddMlp(g, "bottom", inputs.back(),
                             {.flag = "--dense_arch_layer_sizes",
                              .sizes = options.dense_arch_layer_sizes,
                              .relu_on_output = true,
                              .dropout = options.dropout,
                              .batch_norm = options.batch_norm});
    }
  }
  inputs.push_back(g.Embeddings());
  const GraphValue x0 = g.Concat(inputs);
  const GraphValue crossed =
      AddCross(g, "cross", x0,
               {.kind = options.version == 1 ? CrossKind::kVector : CrossKind::kMatrix,
                .num_layers = options.num_cross_layers,
                .rank = options.low_rank_dim,
                .num_experts = options.num_experts});
  const bool parallel = options.structure == DcnStructure::kParallel;
  if (parallel) g.AddLogit(AddLinear(g, "cross_logit", crossed));
  g.AddLogit(AddMlp(g, "over", parallel ? x0 : crossed, OverArchOf(options)));
  return g.Build();
}

void AddDcnFlags(DcnOptions* options, FlagSet* set) {
  set->Add("dcn_version", IntFlag(&options->version, 1, 2),
           "of the cross layers: 1 has a weight vector in each, 2 a matrix");
  set->Add("dcn_num_layers", IntFlag(&options->num_cross_layers, 1, 64), "cross layers");
  set->Add("dcn_low_rank_dim", IntFlag(&options->low_rank_dim, 0, 1 << 20),
           "rank of the matrices of version 2; 0: full matrices");
  set->Add(
      "dcn_num_experts", IntFlag(&options->num_experts, 1, 1024),
      "experts of each cross layer, which a gate mixes, each of rank --dcn_low_rank_dim; 1: no "
      "gate");
  set->Add("dcn_structure",
           WordFlag<DcnStructure>(
               "WORD", &options->structure,
               {{"stacked", DcnStructure::kStacked}, {"parallel", DcnStructure::kParallel}}),
           "where the MLP stands: stacked (on the cross layers) or parallel (beside them)");
}

absl::StatusOr<std::unique_ptr<GraphModel>> MakeDcn(const ModelRecipe& recipe,
                                                    const ExecContext& ctx) {
  return MakeOfRecipe(recipe, ctx, DcnModel::Create, AddDcnFlags);
}

}  // namespace hotrow
