#include "models/zoo/din_model.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "models/zoo/layers/dense_layers.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/layers/sequence_layers.h"
#include "models/zoo/make_model_impl.h"
#include "models/zoo/model_parts.h"

namespace hotrow {
namespace {

// Positions in DinOptions::features.
struct Interest {
  size_t history = 0;
  size_t target = 0;
};

absl::StatusOr<size_t> FindFeature(const DinOptions& options, const std::string& name) {
  const auto at = std::ranges::find(options.features, name, &DinFeature::name);
  if (at != options.features.end()) return static_cast<size_t>(at - options.features.begin());
  return absl::InvalidArgumentError(absl::StrCat(
      "--history=", options.history, ": the data have no feature \"", name, "\", only ",
      absl::StrJoin(options.features, ", ", [](std::string* text, const DinFeature& feature) {
        absl::StrAppend(text, feature.name);
      })));
}

absl::StatusOr<std::vector<Interest>> ParseHistory(const DinOptions& options) {
  std::vector<Interest> out;
  for (const absl::string_view item : absl::StrSplit(options.history, ',', absl::SkipEmpty())) {
    const std::vector<std::string> names = absl::StrSplit(item, ':');
    if (names.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--history=", options.history, ": give HISTORY:TARGET, two features of the data"));
    }
    Interest interest;
    HOTROW_ASSIGN_OR_RETURN(interest.history, FindFeature(options, names[0]));
    HOTROW_ASSIGN_OR_RETURN(interest.target, FindFeature(options, names[1]));
    if (interest.history == interest.target) {
      return absl::InvalidArgumentError(
          absl::StrCat("--history=", options.history, ": a history cannot be its own target"));
    }
    if (options.features[interest.history].max_hotness < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--history=", options.history, ": ", names[0],
                       " may have any number of values; give it \"max_hotness\" in the schema"));
    }
    out.push_back(interest);
  }
  if (out.empty()) {
    return absl::InvalidArgumentError(
        "--history is empty: give HISTORY:TARGET, a feature with many values and the one that it "
        "is looked at for, as in --history=watched:movie_id");
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GraphModel>> DinModel::Create(const DinOptions& options,
                                                             const ExecContext& ctx) {
  if (options.num_sparse != std::ssize(options.features)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "DinOptions: ", options.features.size(), " features, num_sparse is ", options.num_sparse));
  }
  HOTROW_RETURN_IF_ERROR(CheckDeepOptions("DinOptions", options));
  HOTROW_ASSIGN_OR_RETURN(const std::vector<Interest> interests, ParseHistory(options));
  // Rows come pooled or not table by table.
  std::set<std::string> unpooled_tables;
  for (const Interest& interest : interests) {
    unpooled_tables.insert(options.features[interest.history].table);
  }
  ModelGraphOptions graph = GraphOptionsOf("din", options, options.embedding_dim);
  // Below it counts those that are pooled.
  graph.num_sparse = 0;
  std::vector<int32_t> place(options.features.size());  // among the pooled or the unpooled ones
  std::vector<bool> is_pooled(options.features.size());
  for (size_t f = 0; f < options.features.size(); ++f) {
    is_pooled[f] = !unpooled_tables.contains(options.features[f].table);
    if (is_pooled[f]) {
      place[f] = graph.num_sparse++;
      continue;
    }
    place[f] = static_cast<int32_t>(graph.unpooled_features.size());
    graph.unpooled_features.push_back(static_cast<int32_t>(f));
    graph.max_lengths.push_back(options.features[f].max_hotness);
  }
  ModelGraph g(graph, ctx);
  // The vector of each feature, once.
  std::vector<GraphValue> vectors(options.features.size());
  const auto vector_of = [&](size_t f) {
    if (vectors[f].node < 0) {
      vectors[f] = is_pooled[f] ? g.EmbeddingsOf(place[f], 1)
                                : AddSequenceSum(g, options.features[f].name, place[f]);
    }
    return vectors[f];
  };
  std::vector<GraphValue> inputs;
  std::vector<bool> is_history(options.features.size());
  for (size_t i = 0; i < interests.size(); ++i) {
    is_history[interests[i].history] = true;
    inputs.push_back(AddTargetAttention(g, absl::StrCat("attention", i),
                                        place[interests[i].history], vector_of(interests[i].target),
                                        "--attention_layer_sizes", options.attention_layer_sizes));
  }
  for (size_t f = 0; f < options.features.size(); ++f) {
    if (!is_history[f]) inputs.push_back(vector_of(f));
  }
  if (options.num_dense > 0) inputs.push_back(g.Dense());
  g.AddLogit(AddMlp(g, "mlp", g.Concat(inputs), OverArchOf(options)));
  absl::StatusOr<std::unique_ptr<GraphModel>> model = g.Build();
  if (!absl::IsResourceExhausted(model.status())) return model;
  const DinFeature& longest =
      *std::ranges::max_element(options.features, {}, &DinFeature::max_hotness);
  return absl::ResourceExhaustedError(
      absl::StrCat(model.status().message(), "; attention takes memory for --batch_size=",
                   options.max_batch_size, " samples with \"max_hotness\": ", longest.max_hotness,
                   " values of ", longest.name, ", as the schema says: lower one of them"));
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
