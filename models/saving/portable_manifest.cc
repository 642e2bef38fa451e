#include "models/saving/portable_manifest.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "models/json/json_members_impl.h"
#include "models/json/json_text.h"
#include "models/json/quote.h"
#include "models/saving/manifest_json_impl.h"
#include "models/saving/store_paths_impl.h"
#include "models/saving/training_state.h"
#include "models/saving/training_state_impl.h"

namespace hotrow {
namespace {

// The order of members is that of the format page.
using Json = nlohmann::ordered_json;

constexpr ManifestVersions kVersions = {.oldest = 1, .newest = 1};
// In `requires`: some tables have codes.
constexpr char kRequiresCodes[] = "codes";
constexpr std::array<std::string_view, 6> kKnownRequirements = {
    kRequiresWeightsPrecision, kRequiresVocabulary, kRequiresBlobs,
    kRequiresDenseAverage,     kRequiresScores,     kRequiresCodes};

PortableTable ParseTable(const Json& json, const std::string& path, bool edited,
                         std::set<std::string>* table_names, SavedModel::Table* saved,
                         std::string* wrong) {
  PortableTable out;
  JsonMembers table(json, path, wrong);
  *saved = ParseTableFormat(table, table_names, wrong);
  out.name = saved->name;
  out.dim = saved->dim;
  out.weights_precision = saved->weights_precision;
  out.scored = saved->score != ScoreRule::kNone;
  if (const auto kind = ParseSparseOptimizer(saved->optimizer); kind.ok()) out.optimizer = *kind;
  if (table.Has("codes")) {
    const std::string word = table.String("codes");
    for (const EnumWord<ServingRows>& known : kServingRowsWords) {
      if (known.name == word) out.codes = known.value;
    }
    if (!out.codes.has_value()) {
      table.Wrong("codes", word, "as_trained, fp16, bf16, int8 or int4");
    }
  }
  const std::string expected = out.codes.has_value() ? "uint8" : "float32";
  if (const std::string dtype = table.String("dtype"); dtype != expected) {
    table.Wrong("dtype", dtype, absl::StrCat("\"", expected, "\""));
  }
  if (table.Has("rows") && !edited) out.rows = table.Count("rows", 0, INT64_MAX);
  if (table.Has("hash") && !edited) out.hash = table.Hash("hash");
  const Json& arrays = table.Array("arrays");
  for (size_t a = 0; a < arrays.size(); ++a) {
    JsonMembers array(arrays[a], absl::StrCat(table.PathOf("arrays"), "[", a, "]"), wrong);
    PortableArray parsed;
    parsed.name = array.String("name");
    const Json& files = array.Array("files");
    for (size_t f = 0; f < files.size(); ++f) {
      JsonMembers file(files[f], absl::StrCat(array.PathOf("files"), "[", f, "]"), wrong);
      PortableFile part;
      part.name = file.String("file");
      if (file.Has("crc32c") && !edited) part.crc = file.Crc("crc32c");
      parsed.files.push_back(std::move(part));
    }
    for (const PortableArray& other : out.arrays) {
      if (other.name == parsed.name) array.Wrong("name", parsed.name, "each array once");
    }
    out.arrays.push_back(std::move(parsed));
  }
  return out;
}

PortableModel ParseManifest(const Json& json, bool edited, std::string* wrong) {
  PortableModel out;
  SavedModel& model = out.model;
  JsonMembers top(json, "", wrong);
  ParseModelHead(top, &model);
  if (top.Has("seed")) {  // as --seed takes it
    model.seed = static_cast<uint64_t>(top.Count("seed", 0, INT64_MAX));
  }
  const Json& tables = top.Array("tables");
  if (tables.empty()) top.Wrong("tables", tables, "one table at least");
  std::set<std::string> names;
  for (size_t i = 0; i < tables.size(); ++i) {
    const std::string path = absl::StrCat("tables[", i, "]");
    SavedModel::Table saved;
    out.tables.push_back(ParseTable(tables[i], path, edited, &names, &saved, wrong));
    model.tables.push_back(std::move(saved));
  }
  model.features = ParseFeatures(top, names, wrong);
  JsonMembers dense(top.Object("dense"), "dense", wrong);
  out.dense_file = dense.String("file");
  model.num_parameters = dense.Count("parameters", 0, INT64_MAX / 16);
  model.dense_optimizer = ParseDenseOptimizerName(dense);
  const Json& required = top.Array("requires");
  model.dense_average =
      std::find(required.begin(), required.end(), kRequiresDenseAverage) != required.end();
  if (dense.Has("crc32c") && !edited) out.dense_crc = dense.Crc("crc32c");
  if (out.dense_file.empty() || absl::StrContains(out.dense_file, "/")) {
    dense.Wrong("file", out.dense_file, "the name of a file in this directory");
  }
  if (top.Has("vocabulary")) model.vocabulary = ParseVocabularyFile(top, wrong);
  ParseScoringData(top, &model, wrong);
  if (top.Has("blobs")) model.blobs = ParseBlobs(top, wrong);
  if (top.Has("training")) {
    absl::StatusOr<TrainingState> training = TrainingStateFromJson(top.Object("training").dump());
    if (training.ok()) {
      model.training = std::make_shared<const TrainingState>(*std::move(training));
    } else if (wrong->empty()) {
      *wrong = absl::StrCat("\"training\": ", std::string(training.status().message()));
    }
  }
  return out;
}

}  // namespace

std::string PortableManifest(const PortableModel& portable) {
  const SavedModel& model = portable.model;
  Json json;
  json["format"] = kPortableFormat;
  json["version"] = kVersions.newest;
  json["requires"] = Json::array();
  if (std::any_of(portable.tables.begin(), portable.tables.end(), [](const PortableTable& table) {
        return table.weights_precision != WeightsPrecision::kFp32;
      })) {
    json["requires"].push_back(kRequiresWeightsPrecision);
  }
  if (model.vocabulary.has_value()) json["requires"].push_back(kRequiresVocabulary);
  if (!model.blobs.empty()) json["requires"].push_back(kRequiresBlobs);
  if (model.dense_average) json["requires"].push_back(kRequiresDenseAverage);
  if (KeepsScores(model)) json["requires"].push_back(kRequiresScores);
  if (std::any_of(portable.tables.begin(), portable.tables.end(),
                  [](const PortableTable& table) { return table.codes.has_value(); })) {
    json["requires"].push_back(kRequiresCodes);
  }
  WriteModelHead(model, &json);
  json["tables"] = Json::array();
  for (size_t i = 0; i < portable.tables.size(); ++i) {
    const PortableTable& table = portable.tables[i];
    Json entry;
    entry["name"] = table.name;
    entry["dim"] = table.dim;
    entry["dtype"] = table.codes.has_value() ? "uint8" : "float32";
    if (table.codes.has_value()) {
      entry["codes"] = std::string(WordOf(kServingRowsWords, *table.codes));
    }
    WriteTableFormat(model.tables[i], &entry);
    if (table.rows.has_value()) entry["rows"] = *table.rows;
    if (table.hash.has_value()) entry["hash"] = table.hash->ToHex();
    entry["arrays"] = Json::array();
    for (const PortableArray& array : table.arrays) {
      Json shape = Json::array({table.rows.value_or(0)});
      if (array.columns > 0) shape.push_back(array.columns);
      Json files = Json::array();
      for (const PortableFile& file : array.files) {
        Json part = {{"file", file.name}};
        if (file.crc.has_value()) part["crc32c"] = CrcText(*file.crc);
        files.push_back(std::move(part));
      }
      entry["arrays"].push_back({{"name", array.name},
                                 {"dtype", array.dtype},
                                 {"shape", std::move(shape)},
                                 {"files", std::move(files)}});
    }
    json["tables"].push_back(std::move(entry));
  }
  json["dense"] = {{"file", portable.dense_file},
                   {"parameters", model.num_parameters},
                   {"optimizer", model.dense_optimizer}};
  if (portable.dense_crc.has_value()) json["dense"]["crc32c"] = CrcText(*portable.dense_crc);
  WriteVocabularyFile(model, &json);
  WriteScoringData(model, &json);
  WriteBlobs(model, &json);
  if (model.training != nullptr) json["training"] = TrainingToJson(*model.training);
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

absl::Status CheckHasWeights(const std::string& dir, const PortableModel& portable) {
  for (const PortableTable& table : portable.tables) {
    if (!table.codes.has_value()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(dir, ": table \"", table.name, "\" has rows in ",
                     std::string(WordOf(kServingRowsWords, *table.codes)),
                     " and no state of an optimizer, as hotrow quantize writes models that are "
                     "scored with; give "
                     "the model that it was made of"));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> IsPortableModel(Env& env, const std::string& dir) {
  const std::string path = ManifestPath(dir);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return false;
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(env, path, kManifestBytesMax));
  return absl::StrContains(text, absl::StrCat("\"", kPortableFormat, "\""));
}

absl::StatusOr<PortableModel> ReadPortableManifest(Env& env, const std::string& dir, bool edited) {
  const std::string path = ManifestPath(dir);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no ", path, ": give a directory that hotrow export has written"));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(env, path, kManifestBytesMax));
  const absl::StatusOr<Json> parsed = ParseJson<Json>(text);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is no JSON: ", std::string(parsed.status().message())));
  }
  const Json& json = *parsed;
  std::string wrong;
  JsonMembers top(json, "", &wrong);
  const std::string format = top.String("format");
  if (wrong.empty() && format != kPortableFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": \"format\" is ", QuoteForMessage(format), ", expected \"",
                     kPortableFormat, "\"; give a directory that hotrow export has written"));
  }
  const int64_t version = top.Count("version", 1, INT64_MAX);
  const Json& required = top.Array("requires");
  if (wrong.empty()) {
    HOTROW_RETURN_IF_ERROR(CheckManifestVersion(absl::StrCat(path, ":"), kVersions, version,
                                                required, kKnownRequirements));
  }
  PortableModel out;
  if (wrong.empty()) out = ParseManifest(json, edited, &wrong);
  if (!wrong.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", wrong));
  return out;
}

}  // namespace hotrow
