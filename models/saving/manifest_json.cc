#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "models/saving/manifest_json_impl.h"
#include "ops/rows/row_init.h"
#include "ops/training/dense_optimizer.h"
#include "ops/update/sparse_optimizer.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

// A row's floats are counted in int32; no store takes rows of this size.
constexpr int64_t kTableDimMax = int64_t{1} << 26;

constexpr std::array<std::pair<InitializerKind, const char*>, 4> kInitializerNames = {{
    {InitializerKind::kZeros, "zeros"},
    {InitializerKind::kConstant, "constant"},
    {InitializerKind::kUniform, "uniform"},
    {InitializerKind::kNormal, "normal"},
}};

Json InitializerToJson(const Initializer& initializer) {
  for (const auto& [kind, name] : kInitializerNames) {
    if (kind == initializer.kind) return {{"kind", name}, {"value", initializer.value}};
  }
  return Json();
}

Initializer ParseInitializer(const Json& json, const std::string& path, std::string* wrong) {
  JsonMembers members(json, path, wrong);
  Initializer out;
  const std::string name = members.String("kind");
  out.value = static_cast<float>(members.Real("value"));
  const auto known = std::find_if(kInitializerNames.begin(), kInitializerNames.end(),
                                  [&](const auto& entry) { return name == entry.second; });
  if (known == kInitializerNames.end()) {
    members.Wrong("kind", name, "zeros, constant, uniform or normal");
    return out;
  }
  out.kind = known->first;
  if (!out.Validate().ok()) members.Wrong("value", out.value, "a finite number that fits");
  return out;
}

}  // namespace

absl::Status CheckManifestVersion(std::string_view place, const ManifestVersions& versions,
                                  int64_t version, const Json& required,
                                  std::span<const std::string_view> known) {
  const auto refused = [&](std::string_view what, std::string_view remedy) {
    return absl::FailedPreconditionError(absl::StrCat(
        std::string(place), " ", std::string(what), ", which this program does not know (it reads ",
        versions.oldest == versions.newest
            ? absl::StrCat("version ", versions.newest)
            : absl::StrCat("versions ", versions.oldest, " to ", versions.newest),
        "); ", std::string(remedy)));
  };
  constexpr std::string_view kNewer = "use a newer hotrow";
  if (version < versions.oldest) {
    return refused(absl::StrCat("has version ", version), "use the hotrow that wrote it");
  }
  if (version > versions.newest) return refused(absl::StrCat("has version ", version), kNewer);
  for (const Json& name : required) {
    if (!name.is_string() ||
        std::find(known.begin(), known.end(), name.get<std::string>()) == known.end()) {
      return refused(absl::StrCat("requires ", DescribeJson(name)), kNewer);
    }
  }
  return absl::OkStatus();
}

std::string CrcText(uint32_t crc) { return absl::StrFormat("%08x", crc); }

void WriteModelHead(const SavedModel& model, Json* manifest) {
  Json& json = *manifest;
  json["model"] = model.model;
  json["shape"] = StringsToJson(model.shape);
  if (model.seed.has_value()) json["seed"] = *model.seed;
  json["step"] = model.step;
  json["num_dense"] = model.num_dense;
  json["features"] = Json::array();
  for (const SavedModel::Feature& feature : model.features) {
    json["features"].push_back({{"name", feature.name}, {"table", feature.table}});
  }
}

void ParseModelHead(JsonMembers& manifest, SavedModel* model) {
  model->model = manifest.String("model");
  model->shape = manifest.Strings("shape");
  model->step = manifest.Count("step", UINT32_MAX);
  model->num_dense = static_cast<int32_t>(manifest.Count("num_dense", INT32_MAX));
}

std::vector<SavedModel::Feature> ParseFeatures(JsonMembers& manifest,
                                               const std::set<std::string>& table_names,
                                               std::string* wrong) {
  std::vector<SavedModel::Feature> out;
  for (const Json& entry : manifest.Array("features")) {
    JsonMembers feature(entry, absl::StrCat("features[", out.size(), "]"), wrong);
    out.push_back({feature.String("name"), feature.String("table")});
    if (!table_names.contains(out.back().table)) {
      feature.Wrong("table", out.back().table, "the name of a table");
    }
  }
  return out;
}

void WriteTableFormat(const SavedModel::Table& table, Json* entry) {
  (*entry)["optimizer"] = table.optimizer;
  if (table.weights_precision != WeightsPrecision::kFp32) {
    (*entry)["weights_precision"] = std::string(WeightsPrecisionName(table.weights_precision));
  }
  if (table.initializer.has_value()) {
    (*entry)["initializer"] = InitializerToJson(*table.initializer);
  }
  if (table.score != ScoreRule::kNone) {
    (*entry)["score"] = std::string(ScoreRuleName(table.score));
  }
}

bool KeepsScores(const SavedModel& model) {
  return std::any_of(model.tables.begin(), model.tables.end(), [](const SavedModel::Table& table) {
    return table.score != ScoreRule::kNone;
  });
}

SavedModel::Table ParseTableFormat(JsonMembers& table, std::set<std::string>* table_names,
                                   std::string* wrong) {
  SavedModel::Table out;
  out.name = table.String("name");
  if (!table_names->insert(out.name).second) table.Wrong("name", out.name, "a unique name");
  out.dim = static_cast<int32_t>(table.Count("dim", 1, kTableDimMax));
  out.optimizer = table.String("optimizer");
  if (!ParseSparseOptimizer(out.optimizer).ok()) {
    table.Wrong("optimizer", out.optimizer, "an optimizer of tables");
  }
  if (table.Has("weights_precision")) {
    const std::string name = table.String("weights_precision");
    if (const auto precision = ParseWeightsPrecision(name); precision.ok()) {
      out.weights_precision = *precision;
    } else {
      table.Wrong("weights_precision", name, "fp32, fp16 or bf16");
    }
  }
  if (table.Has("initializer")) {
    out.initializer =
        ParseInitializer(table.Object("initializer"), table.PathOf("initializer"), wrong);
  }
  if (table.Has("score")) {
    const std::string name = table.String("score");
    const auto rule = ParseScoreRule(name);
    if (rule.ok() && *rule != ScoreRule::kNone) {
      out.score = *rule;
    } else {
      table.Wrong("score", name, "max, sum or last");
    }
  }
  return out;
}

void WriteAgeLines(const SavedModel::Table& table, Json* entry) {
  if (table.lines.age > 0) (*entry)["age_line"] = table.lines.age;
  for (const ScoreLine& line : table.lines.scores) {
    (*entry)["score_lines"].push_back({line.step, line.range});
  }
}

bool AnyAgeLine(const SavedModel& model) {
  return std::any_of(model.tables.begin(), model.tables.end(),
                     [](const SavedModel::Table& table) { return table.lines.age > 0; });
}

void ParseAgeLines(JsonMembers& member, int64_t step, SavedModel::Table* table) {
  const int64_t last_step = std::min<int64_t>(step, UINT32_MAX);
  if (member.Has("age_line")) {
    table->lines.age = static_cast<uint32_t>(member.Count("age_line", last_step));
  }
  if (!member.Has("score_lines")) return;
  const Json& lines = member.Array("score_lines");
  constexpr std::string_view kExpected =
      "pairs of a step and a range of scores, steps rising to that of the model, ranges falling";
  std::vector<ScoreLine>& scores = table->lines.scores;
  for (const Json& line : lines) {
    const auto is_number = [](const Json& value) {
      return value.is_number_unsigned() && value.get<uint64_t>() <= UINT32_MAX;
    };
    if (!line.is_array() || line.size() != 2 || !is_number(line[0]) || !is_number(line[1])) {
      return member.Wrong("score_lines", line, kExpected);
    }
    scores.push_back({line[0].get<uint32_t>(), line[1].get<uint32_t>()});
  }
  if (table->score == ScoreRule::kNone) {
    member.Wrong("score_lines", lines, "none, as the table keeps no scores");
  } else if (!RowLines::AreLines(scores, last_step)) {
    member.Wrong("score_lines", lines, kExpected);
  }
}

void WriteVocabularyFile(const SavedModel& model, Json* manifest) {
  if (!model.vocabulary.has_value()) return;
  (*manifest)["vocabulary"] = {{"file", model.vocabulary->file},
                               {"bytes", model.vocabulary->bytes},
                               {"crc32c", CrcText(model.vocabulary->crc)}};
}

SavedModel::VocabularyFile ParseVocabularyFile(JsonMembers& manifest, std::string* wrong) {
  JsonMembers member(manifest.Object("vocabulary"), "vocabulary", wrong);
  SavedModel::VocabularyFile out;
  out.file = member.FileName("file");
  out.bytes = member.Count("bytes");
  out.crc = member.Crc("crc32c");
  return out;
}

void WriteBlobs(const SavedModel& model, Json* manifest) {
  for (const SavedModel::Blob& blob : model.blobs) {
    (*manifest)["blobs"].push_back({{"name", blob.name},
                                    {"file", blob.file},
                                    {"bytes", blob.bytes},
                                    {"crc32c", CrcText(blob.crc)}});
  }
}

std::vector<SavedModel::Blob> ParseBlobs(JsonMembers& manifest, std::string* wrong) {
  std::vector<SavedModel::Blob> out;
  std::set<std::string> names;
  for (const Json& entry : manifest.Array("blobs")) {
    JsonMembers member(entry, absl::StrCat("blobs[", out.size(), "]"), wrong);
    SavedModel::Blob blob;
    blob.name = member.String("name");
    if (!names.insert(blob.name).second) member.Wrong("name", blob.name, "one that no other has");
    blob.file = member.FileName("file");
    blob.bytes = member.Count("bytes");
    blob.crc = member.Crc("crc32c");
    out.push_back(std::move(blob));
  }
  return out;
}

std::string ParseDenseOptimizerName(JsonMembers& dense) {
  const std::string name = dense.String("optimizer");
  if (!ParseDenseOptimizer(name).ok()) dense.Wrong("optimizer", name, "sgd, adagrad or adam");
  return name;
}

}  // namespace hotrow
