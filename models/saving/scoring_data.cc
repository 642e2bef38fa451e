#include "models/saving/manifest_json_impl.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "models/json/json_text.h"
#include "models/saving/training_state_impl.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

void WriteScoringData(const SavedModel& model, Json* manifest) {
  if (!model.scoring.has_value()) return;
  const ScoringData& scoring = *model.scoring;
  Json out = {{"labels", scoring.labels}, {"features", Json::array()}};
  for (const ScoringData::Bounds& bounds : scoring.features) {
    out["features"].push_back(
        {{"num_embeddings", bounds.num_embeddings}, {"max_hotness", bounds.max_hotness}});
  }
  if (!scoring.table_schema.empty()) {
    absl::StatusOr<Json> schema = ParseJson<Json>(scoring.table_schema);
    if (schema.ok()) out["schema"] = *std::move(schema);
  }
  out["settings"] = StringsToJson(scoring.settings);
  if (!scoring.learning_rates.empty()) {
    out["first_step"] = scoring.first_step;
    out["learning_rates"] = LearningRatesToJson(scoring.learning_rates);
  }
  (*manifest)["scoring"] = std::move(out);
}

void ParseScoringData(JsonMembers& manifest, SavedModel* model, std::string* wrong) {
  if (!manifest.Has("scoring")) return;
  ScoringData out;
  JsonMembers scoring(manifest.Object("scoring"), "scoring", wrong);
  for (const Json& label : scoring.Array("labels")) {
    if (!label.is_string()) {
      scoring.Wrong("labels", label, "names");
      break;
    }
    out.labels.push_back(label.get<std::string>());
  }
  const Json& features = scoring.Array("features");
  if (features.size() != model->features.size()) {
    scoring.Wrong("features", features.size(),
                  absl::StrCat(model->features.size(), " of them, one for each feature"));
  }
  for (const Json& entry : features) {
    JsonMembers feature(entry, absl::StrCat("scoring.features[", out.features.size(), "]"), wrong);
    out.features.push_back({.num_embeddings = feature.Count("num_embeddings"),
                            .max_hotness = feature.Count("max_hotness")});
  }
  // Whether it is a schema that this build knows is asked where lines are parsed.
  if (scoring.Has("schema")) {
    out.table_schema = scoring.Object("schema").dump(-1, ' ', /*ensure_ascii=*/false,
                                                     Json::error_handler_t::replace);
  }
  out.settings = scoring.Strings("settings");
  if (scoring.Has("learning_rates")) {
    out.first_step = scoring.Count("first_step", UINT32_MAX);
    out.learning_rates = ParseLearningRates(scoring, "learning_rates");
  }
  model->scoring = std::move(out);
}

}  // namespace hotrow
