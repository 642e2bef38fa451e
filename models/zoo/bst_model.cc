#include "models/zoo/bst_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/zoo/layers/dense_layers.h"
#include "models/zoo/layers/sequence_blocks.h"
#include "models/zoo/make_model_impl.h"
#include "models/zoo/model_parts.h"

namespace hotrow {

absl::StatusOr<std::unique_ptr<GraphModel>> CreateOfBlocks(std::string_view name,
                                                           const BstOptions& options,
                                                           int32_t maps_of_block,
                                                           MakeSequenceBlock make_block,
                                                           const ExecContext& ctx) {
  if (options.num_sparse != std::ssize(options.features)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "BstOptions: ", options.features.size(), " features, num_sparse is ", options.num_sparse));
  }
  HOTROW_RETURN_IF_ERROR(CheckDeepOptions("BstOptions", options));
  if (options.num_blocks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--num_blocks must be at least 1, is ", options.num_blocks));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::vector<Interest> interests,
                          ParseHistory(options.history, options.features));
  ModelGraphOptions graph = GraphOptionsOf(name, options, options.embedding_dim);
  HistoryInputs features(options.features, interests, &graph);
  ModelGraph g(graph, ctx);
  HistoryEncoderSpec sequence = {.num_blocks = options.num_blocks,
                                 .num_heads = options.num_heads,
                                 .maps_of_block = maps_of_block,
                                 .make_block = std::move(make_block)};
  for (const Interest& interest : interests) {
    sequence.histories.push_back(features.sequence(interest));
    sequence.names.push_back(options.features[interest.history].name);
    sequence.targets.push_back(features.VectorOf(g, interest.target));
  }
  std::vector<GraphValue> inputs = {AddHistoryEncoder(g, "sequence", sequence)};
  features.AppendOthers(g, &inputs);
  g.AddLogit(AddMlp(g, "mlp", g.Concat(inputs), OverArchOf(options)));
  return features.Build(g);
}

absl::StatusOr<std::unique_ptr<GraphModel>> BstModel::Create(const BstOptions& options,
                                                             const ExecContext& ctx) {
  return CreateOfBlocks("bst", options, TransformerBlock::kNumMaps, TransformerBlock::Create, ctx);
}

void AddBstFlags(BstOptions* options, FlagSet* set) {
  set->Add("history", StringFlag("HISTORY:TARGET,...", &options->history),
           "features with many values that say different things of the same events, and what each "
           "is looked at for");
  set->Add("num_blocks", IntFlag(&options->num_blocks, 1, 64), "blocks, one after the other");
  set->Add("num_heads", IntFlag(&options->num_heads, 1, 1024),
           "heads of attention, which share the columns of all histories");
}

absl::StatusOr<std::unique_ptr<GraphModel>> MakeBst(const ModelRecipe& recipe,
                                                    const ExecContext& ctx) {
  return MakeOfRecipe(recipe, ctx, BstModel::Create, AddBstFlags);
}

}  // namespace hotrow
