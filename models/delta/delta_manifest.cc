#include "models/delta/delta_manifest.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "embedding/ranks/shard_map.h"
#include "models/delta/delta_damage_impl.h"
#include "models/json/json_members_impl.h"
#include "models/json/sealed_json.h"
#include "models/saving/manifest_json_impl.h"
#include "models/saving/store_paths_impl.h"
#include "models/saving/training_state.h"
#include "models/saving/training_state_impl.h"

namespace hotrow {
namespace {

// The order of members is that of the format page.
using Json = nlohmann::ordered_json;

constexpr char kChainFormat[] = "hotrow.delta_chain";
constexpr char kDeltaFormat[] = "hotrow.delta";
constexpr ManifestVersions kVersions = {.oldest = 1, .newest = 1};
constexpr std::array<std::string_view, 6> kKnownRequirements = {
    kRequiresWeightsPrecision, kRequiresVocabulary,   kRequiresBlobs,
    kRequiresAgeLines,         kRequiresDenseAverage, kRequiresScores};
constexpr uint64_t kLinkDigestKey = 0x64656c7461;  // "delta"
constexpr std::string_view kDeltaPrefix = "delta-";
constexpr size_t kSequenceDigits = 8;
constexpr int64_t kSequenceMax = 99'999'999;

// Checks the seal, format, version and what is required.
absl::StatusOr<Json> Open(const std::string& path, std::string text, std::string_view format) {
  absl::StatusOr<Json> json = OpenSealedJson(std::move(text));
  if (!json.ok()) return DeltaDamaged(path, std::string(json.status().message()));
  std::string wrong;
  JsonMembers top(*json, "", &wrong);
  const std::string found = top.String("format");
  const int64_t version = top.Count("version");
  const Json& required = top.Array("requires");
  if (!wrong.empty()) return DeltaDamaged(path, wrong);
  if (found != format) {
    return DeltaDamaged(path, absl::StrCat("its format is \"", found, "\", expected \"",
                                           std::string(format), "\""));
  }
  HOTROW_RETURN_IF_ERROR(CheckManifestVersion(absl::StrCat(path, ":"), kVersions, version, required,
                                              kKnownRequirements));
  return json;
}

absl::StatusOr<std::string> ReadText(Env& env, const std::string& path) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return DeltaDamaged(path, "there is no such file");
  return ReadWholeFile(env, path, kManifestBytesMax);
}

UniqueId ParseId(JsonMembers& members, const char* name) {
  const Hash128 id = members.Hash(name);
  return {.high = id.hi, .low = id.lo};
}

void WriteForm(const DeltaForm& form, Json* json) {
  (*json)["precision"] = std::string(ExchangeTypeName(form.precision));
  (*json)["state"] = form.state;
}

DeltaForm ParseForm(JsonMembers& top) {
  DeltaForm out;
  const std::string name = top.String("precision");
  if (const auto type = ParseExchangeType(name); type.ok()) {
    out.precision = *type;
  } else {
    top.Wrong("precision", name, "fp32, fp16, bf16 or int8");
  }
  out.state = top.Bool("state");
  return out;
}

Json SourceJson(const std::vector<UniqueId>& source) {
  Json out = Json::array();
  for (const UniqueId& id : source) out.push_back(id.ToHex());
  return out;
}

std::vector<UniqueId> ParseSource(JsonMembers& members) {
  std::vector<UniqueId> out;
  for (const Json& entry : members.Array("source")) {
    const auto id = UniqueId::FromHex(entry.is_string() ? entry.get<std::string>() : "");
    if (!id.has_value()) {
      members.Wrong("source", entry, "identities of 32 hexadecimal digits");
      return {};
    }
    out.push_back(*id);
  }
  return out;
}

std::vector<int64_t> ParseCounts(JsonMembers& members, const char* name, size_t tables) {
  const Json& counts = members.Array(name);
  std::vector<int64_t> out;
  for (const Json& count : counts) {
    if (!count.is_number_unsigned() || count.get<uint64_t>() > uint64_t{1} << 56) {
      members.Wrong(name, count, "whole numbers");
      return std::vector<int64_t>(tables);
    }
    out.push_back(static_cast<int64_t>(count.get<uint64_t>()));
  }
  if (out.size() != tables) members.Wrong(name, counts, "a number for each table");
  out.resize(tables);
  return out;
}

std::vector<DeltaPart> ParseParts(JsonMembers& top, size_t tables, std::string* wrong) {
  std::vector<DeltaPart> out;
  const Json& parts = top.Array("parts");
  if (parts.empty() || std::ssize(parts) > kMaxRanks) {
    top.Wrong("parts", Json(parts.size()), absl::StrCat("1 to ", kMaxRanks, " parts"));
  }
  for (const Json& entry : parts) {
    JsonMembers members(entry, absl::StrCat("parts[", out.size(), "]"), wrong);
    DeltaPart part;
    part.file = members.FileName("file");
    part.bytes = members.Count("bytes");
    part.crc = members.Crc("crc32c");
    part.rows = ParseCounts(members, "rows", tables);
    part.erased = ParseCounts(members, "erased", tables);
    const std::string expected =
        DeltaPartName(static_cast<int32_t>(out.size()), static_cast<int32_t>(parts.size()));
    if (part.file != expected) members.Wrong("file", part.file, expected);
    out.push_back(std::move(part));
    if (!wrong->empty()) break;
  }
  return out;
}

}  // namespace

Hash128 LinkDigest(std::string_view text) {
  return HashBytes(kLinkDigestKey, text.size(), std::as_bytes(std::span(text)));
}

std::string DeltaDirName(int64_t sequence) { return absl::StrFormat("delta-%08d", sequence); }

std::optional<int64_t> ParseDeltaDirName(std::string_view name) {
  if (name.size() != kDeltaPrefix.size() + kSequenceDigits || !name.starts_with(kDeltaPrefix)) {
    return std::nullopt;
  }
  int64_t out = 0;
  for (const char c : name.substr(kDeltaPrefix.size())) {
    if (c < '0' || c > '9') return std::nullopt;
    out = 10 * out + (c - '0');
  }
  if (out == 0) return std::nullopt;
  return out;
}

std::string BaseDirName(int64_t sequence) { return absl::StrFormat("base-%08d", sequence); }

std::string DeltaPartName(int32_t part, int32_t num_parts) {
  return absl::StrFormat("rows-%05d-of-%05d", part, num_parts);
}

absl::StatusOr<std::vector<DeltaTable>> DeltaTablesOf(const SavedModel& model) {
  std::vector<DeltaTable> out;
  for (const SavedModel::Table& table : model.tables) {
    HOTROW_ASSIGN_OR_RETURN(const SparseOptimizerKind kind, ParseSparseOptimizer(table.optimizer));
    out.push_back({.dim = table.dim,
                   .optimizer = kind,
                   .weights_precision = table.weights_precision,
                   .scored = table.score != ScoreRule::kNone});
  }
  return out;
}

std::string ChainManifestText(const ChainManifest& manifest) {
  Json json;
  json["format"] = kChainFormat;
  json["version"] = kVersions.newest;
  json["requires"] = Json::array();
  json["base_id"] = manifest.base_id.ToHex();
  WriteForm(manifest.form, &json);
  json["base"] = {
      {"dir", manifest.base_dir},           {"step", manifest.base_step},
      {"sequence", manifest.base_sequence}, {"digest", manifest.base_digest.ToHex()},
      {"link", manifest.base_link.ToHex()}, {"source", SourceJson(manifest.base_source)}};
  return SealJson(std::move(json));
}

absl::StatusOr<ChainManifest> ReadChainManifest(Env& env, const std::string& chain_dir) {
  const std::string path = absl::StrCat(chain_dir, "/", kChainManifestName);
  HOTROW_ASSIGN_OR_RETURN(std::string text, ReadText(env, path));
  HOTROW_ASSIGN_OR_RETURN(const Json json, Open(path, std::move(text), kChainFormat));
  std::string wrong;
  JsonMembers top(json, "", &wrong);
  ChainManifest out;
  out.base_id = ParseId(top, "base_id");
  out.form = ParseForm(top);
  JsonMembers base(top.Object("base"), "base", &wrong);
  out.base_dir = base.FileName("dir");
  out.base_step = base.Count("step", UINT32_MAX);
  out.base_sequence = base.Count("sequence", kSequenceMax);
  out.base_digest = base.Hash("digest");
  out.base_link = base.Hash("link");
  out.base_source = ParseSource(base);
  if (!wrong.empty()) return DeltaDamaged(path, wrong);
  return out;
}

std::string SealDeltaManifest(DeltaManifest* manifest) {
  const SavedModel& model = manifest->model;
  Json json;
  json["format"] = kDeltaFormat;
  json["version"] = kVersions.newest;
  json["requires"] = Json::array();
  if (std::any_of(model.tables.begin(), model.tables.end(), [](const SavedModel::Table& table) {
        return table.weights_precision != WeightsPrecision::kFp32;
      })) {
    json["requires"].push_back(kRequiresWeightsPrecision);
  }
  if (manifest->vocabulary_crc.has_value()) json["requires"].push_back(kRequiresVocabulary);
  if (!model.blobs.empty()) json["requires"].push_back(kRequiresBlobs);
  if (AnyAgeLine(model)) json["requires"].push_back(kRequiresAgeLines);
  if (model.dense_average) json["requires"].push_back(kRequiresDenseAverage);
  if (KeepsScores(model)) json["requires"].push_back(kRequiresScores);
  json["base_id"] = manifest->base_id.ToHex();
  WriteForm(manifest->form, &json);
  json["sequence"] = manifest->sequence;
  json["parent"] = manifest->parent.ToHex();
  json["parent_step"] = manifest->parent_step;
  json["source"] = SourceJson(manifest->source);
  WriteModelHead(model, &json);
  json["tables"] = Json::array();
  for (const SavedModel::Table& table : model.tables) {
    Json entry;
    entry["name"] = table.name;
    entry["dim"] = table.dim;
    WriteTableFormat(table, &entry);
    WriteAgeLines(table, &entry);
    if (table.rows >= 0) entry["rows"] = table.rows;
    if (!table.hash.empty()) entry["hash"] = table.hash;
    json["tables"].push_back(std::move(entry));
  }
  json["parts"] = Json::array();
  for (const DeltaPart& part : manifest->parts) {
    json["parts"].push_back({{"file", part.file},
                             {"bytes", part.bytes},
                             {"crc32c", CrcText(part.crc)},
                             {"rows", part.rows},
                             {"erased", part.erased}});
  }
  json["dense"] = {{"file", model.dense_file},
                   {"bytes", model.dense_bytes},
                   {"crc32c", CrcText(model.dense_crc)},
                   {"parameters", model.num_parameters},
                   {"optimizer", model.dense_optimizer}};
  if (manifest->vocabulary_crc.has_value()) {
    json["vocabulary"] = {{"crc32c", CrcText(*manifest->vocabulary_crc)}};
  }
  WriteScoringData(model, &json);
  WriteBlobs(model, &json);
  if (model.training != nullptr) json["training"] = TrainingToJson(*model.training);
  std::string text = SealJson(std::move(json));
  manifest->digest = LinkDigest(text);
  return text;
}

absl::StatusOr<DeltaManifest> ReadDeltaManifest(Env& env, const std::string& delta_dir) {
  const std::string path = ManifestPath(delta_dir);
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadText(env, path));
  HOTROW_ASSIGN_OR_RETURN(const Json json, Open(path, text, kDeltaFormat));
  std::string wrong;
  JsonMembers top(json, "", &wrong);
  DeltaManifest out;
  out.digest = LinkDigest(text);
  out.base_id = ParseId(top, "base_id");
  out.form = ParseForm(top);
  out.sequence = top.Count("sequence", 1, kSequenceMax);
  out.parent = top.Hash("parent");
  out.parent_step = top.Count("parent_step", UINT32_MAX);
  out.source = ParseSource(top);
  SavedModel& model = out.model;
  model.dir = delta_dir;
  ParseModelHead(top, &model);
  if (top.Has("seed")) model.seed = static_cast<uint64_t>(top.Count("seed", 0, INT64_MAX));
  std::set<std::string> names;
  const Json& tables = top.Array("tables");
  for (size_t i = 0; i < tables.size(); ++i) {
    JsonMembers table(tables[i], absl::StrCat("tables[", i, "]"), &wrong);
    model.tables.push_back(ParseTableFormat(table, &names, &wrong));
    ParseAgeLines(table, model.step, &model.tables.back());
    if (table.Has("rows")) model.tables.back().rows = table.Count("rows");
    if (table.Has("hash")) model.tables.back().hash = table.Hash("hash").ToHex();
  }
  model.features = ParseFeatures(top, names, &wrong);
  ParseScoringData(top, &model, &wrong);
  out.parts = ParseParts(top, model.tables.size(), &wrong);
  JsonMembers dense(top.Object("dense"), "dense", &wrong);
  model.dense_file = dense.FileName("file");
  model.dense_bytes = dense.Count("bytes");
  model.dense_crc = dense.Crc("crc32c");
  model.num_parameters = dense.Count("parameters", 0, INT64_MAX / 16);
  model.dense_optimizer = ParseDenseOptimizerName(dense);
  const Json& required = top.Array("requires");
  model.dense_average =
      std::find(required.begin(), required.end(), kRequiresDenseAverage) != required.end();
  if (top.Has("vocabulary")) {
    JsonMembers vocabulary(top.Object("vocabulary"), "vocabulary", &wrong);
    out.vocabulary_crc = vocabulary.Crc("crc32c");
  }
  if (top.Has("blobs")) model.blobs = ParseBlobs(top, &wrong);
  if (top.Has("training")) {
    model.training = std::make_shared<const TrainingState>(
        ParseTraining(top.Object("training"), "training", &wrong));
  }
  if (!wrong.empty()) return DeltaDamaged(path, wrong);
  return out;
}

}  // namespace hotrow
