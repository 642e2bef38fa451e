#include "models/zoo/histories.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "models/zoo/layers/sequence_layers.h"

namespace hotrow {

absl::StatusOr<std::vector<Interest>> ParseHistory(const std::string& history,
                                                   const std::vector<ModelFeature>& features) {
  const auto error = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("--history=", history, ": ", what...));
  };
  const auto find = [&](const std::string& name) -> absl::StatusOr<size_t> {
    const auto at = std::ranges::find(features, name, &ModelFeature::name);
    if (at != features.end()) return static_cast<size_t>(at - features.begin());
    return error("the data have no feature \"", name, "\", only ",
                 absl::StrJoin(features, ", ", [](std::string* text, const ModelFeature& feature) {
                   absl::StrAppend(text, feature.name);
                 }));
  };
  std::vector<Interest> out;
  for (const absl::string_view item : absl::StrSplit(history, ',', absl::SkipEmpty())) {
    const std::vector<std::string> names = absl::StrSplit(item, ':');
    if (names.size() != 2) return error("give HISTORY:TARGET, two features of the data");
    Interest interest;
    HOTROW_ASSIGN_OR_RETURN(interest.history, find(names[0]));
    HOTROW_ASSIGN_OR_RETURN(interest.target, find(names[1]));
    if (interest.history == interest.target) return error("a history cannot be its own target");
    if (features[interest.history].max_hotness < 1) {
      return error(names[0],
                   " may have any number of values; give it \"max_hotness\" in the schema");
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

HistoryInputs::HistoryInputs(const std::vector<ModelFeature>& features,
                             const std::vector<Interest>& interests, ModelGraphOptions* options)
    : features_(features),
      is_history_(features.size()),
      is_pooled_(features.size()),
      place_(features.size()),
      vectors_(features.size()) {
  // Rows come pooled or not table by table.
  std::set<std::string> unpooled_tables;
  for (const Interest& interest : interests) {
    is_history_[interest.history] = true;
    unpooled_tables.insert(features[interest.history].table);
  }
  options->num_sparse = 0;  // counts those that are pooled
  for (size_t f = 0; f < features.size(); ++f) {
    is_pooled_[f] = !unpooled_tables.contains(features[f].table);
    if (is_pooled_[f]) {
      place_[f] = options->num_sparse++;
      continue;
    }
    place_[f] = static_cast<int32_t>(options->unpooled_features.size());
    options->unpooled_features.push_back(static_cast<int32_t>(f));
    options->max_lengths.push_back(features[f].max_hotness);
  }
}

GraphValue HistoryInputs::VectorOf(ModelGraph& graph, size_t feature) {
  if (vectors_[feature].node < 0) {
    vectors_[feature] = is_pooled_[feature]
                            ? graph.EmbeddingsOf(place_[feature], 1)
                            : AddSequenceSum(graph, features_[feature].name, place_[feature]);
  }
  return vectors_[feature];
}

void HistoryInputs::AppendOthers(ModelGraph& graph, std::vector<GraphValue>* inputs) {
  for (size_t f = 0; f < features_.size(); ++f) {
    if (!is_history_[f]) inputs->push_back(VectorOf(graph, f));
  }
  if (graph.options().num_dense > 0) inputs->push_back(graph.Dense());
}

absl::StatusOr<std::unique_ptr<GraphModel>> HistoryInputs::Build(ModelGraph& graph) const {
  absl::StatusOr<std::unique_ptr<GraphModel>> model = graph.Build();
  if (!absl::IsResourceExhausted(model.status())) return model;
  const ModelFeature& longest =
      *std::ranges::max_element(features_, {}, &ModelFeature::max_hotness);
  return absl::ResourceExhaustedError(absl::StrCat(
      model.status().message(), "; attention takes memory for --batch_size=",
      graph.options().max_batch_size, " samples with \"max_hotness\": ", longest.max_hotness,
      " values of ", longest.name, ", as the schema says: lower one of them"));
}

}  // namespace hotrow
