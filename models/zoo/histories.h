#ifndef HOTROW_MODELS_ZOO_HISTORIES_H_
#define HOTROW_MODELS_ZOO_HISTORIES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/zoo/layers/model_graph.h"

// What models over histories share: features with many values whose rows they read one by one, each
// with a feature that it is looked at for.
namespace hotrow {

// A feature of the data, as DataFeature has it.
struct ModelFeature {
  std::string name;
  std::string table;
  int64_t max_hotness = 0;
};

// Positions in the features of the data.
struct Interest {
  size_t history = 0;
  size_t target = 0;
};
// Those of --history: "HISTORY:TARGET", joined by commas. Errors: InvalidArgument (none, a name
// that the features do not have, a history without a bound or that is its own target).
absl::StatusOr<std::vector<Interest>> ParseHistory(const std::string& history,
                                                   const std::vector<ModelFeature>& features);

// How such a model reads its features.
class HistoryInputs {
 public:
  // Tells `options` which features come pooled, which they are in the order of the data.
  HistoryInputs(const std::vector<ModelFeature>& features, const std::vector<Interest>& interests,
                ModelGraphOptions* options);

  // A history among ModelGraphOptions::unpooled_features.
  int32_t sequence(const Interest& interest) const { return place_[interest.history]; }
  // The vector of a feature: pooled or, where it shares a table with a history, the sum of its
  // rows. Each is declared once.
  GraphValue VectorOf(ModelGraph& graph, size_t feature);
  // What the last MLP reads beside histories: the vectors of all other features and the dense ones.
  void AppendOthers(ModelGraph& graph, std::vector<GraphValue>* inputs);
  // graph.Build(); says what to lower where its memory is not there.
  absl::StatusOr<std::unique_ptr<GraphModel>> Build(ModelGraph& graph) const;

 private:
  const std::vector<ModelFeature>& features_;
  std::vector<bool> is_history_;
  std::vector<bool> is_pooled_;
  std::vector<int32_t> place_;  // among the pooled or the unpooled ones
  std::vector<GraphValue> vectors_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_HISTORIES_H_
