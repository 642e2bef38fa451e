#include "models/saving/manifest.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "embedding/ranks/shard_map.h"
#include "models/json/json_members_impl.h"
#include "models/json/sealed_json.h"
#include "models/saving/manifest_json_impl.h"
#include "models/saving/saved_model_impl.h"
#include "models/saving/store_paths_impl.h"
#include "models/saving/training_state.h"
#include "models/saving/training_state_impl.h"
#include "store/open.h"

namespace hotrow {
namespace {

// The order of members is that of the format page.
using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "hotrow.saved_model";
constexpr ManifestVersions kVersions = {.oldest = 1, .newest = 1};

// What a manifest may require and this build understands.
constexpr char kRequiresCheckpoint[] = "checkpoint";  // `training`; rows and hashes not known
constexpr char kRequiresStoreDir[] = "store_dir";     // stores[].dir other than "tables"
constexpr char kRequiresRanks[] = "ranks";            // several stores
// Rows are not as they stand after the last step: training.learning_rates brings them there.
constexpr char kRequiresLearningRates[] = "learning_rates";
constexpr std::array<std::string_view, 10> kKnownRequirements = {
    kRequiresCheckpoint,   kRequiresStoreDir,      kRequiresRanks, kRequiresWeightsPrecision,
    kRequiresVocabulary,   kRequiresLearningRates, kRequiresBlobs, kRequiresAgeLines,
    kRequiresDenseAverage, kRequiresScores};

// Paths in the manifest's directory are written relative, and those in its parent for a checkpoint,
// so that all may move together.
std::string TablesDirText(const SavedModel& model, const SavedModel::Part& part) {
  const std::string dir = AbsolutePath(model.dir);
  const std::string tables = AbsolutePath(part.tables_dir);
  if (absl::StartsWith(tables, dir + "/")) return tables.substr(dir.size() + 1);
  const std::string above = ParentDir(dir);
  if (model.is_checkpoint && absl::StartsWith(tables, above + "/")) {
    return absl::StrCat("../", tables.substr(above.size() + 1));
  }
  return tables;
}

std::filesystem::path CanonicalPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path out = std::filesystem::weakly_canonical(path, error);
  return error ? std::filesystem::path(AbsolutePath(path)) : out;
}

// Where a store lies, seen from the manifest.
std::string DirFromHere(const SavedModel& model, const SavedModel::Part& part) {
  return CanonicalPath(part.tables_dir).lexically_relative(CanonicalPath(model.dir)).string();
}

// Looks for the snapshot of a part whose manifest may have been moved or copied.
void FindMovedStore(Env& env, const std::string& dir, const std::string& from_here,
                    SavedModel::Part* part, std::vector<std::string>* left_behind) {
  if (from_here.empty()) return;
  const std::string beside = JoinPath(CanonicalPath(dir).string(), from_here);
  if (beside == CanonicalPath(part->tables_dir)) return;
  const absl::StatusOr<StoreKind> kind = ParseStoreKind(part->store);
  const auto has_it = [&](const std::string& place) {
    return kind.ok() &&
           CheckSnapshot(
               *kind,
               {.path = place, .snapshot = part->snapshot, .identity = part->identity, .env = &env})
               .ok();
  };
  if (has_it(beside)) {
    part->tables_dir = beside;
  } else if (has_it(part->tables_dir)) {
    if (left_behind == nullptr) return;
    left_behind->push_back(
        absl::StrCat(beside, ": the ", part->store, " store with the rows of ", dir,
                     " is not here, as it was ", "beside the original; they are read from ",
                     part->tables_dir, ", which is no part of this copy: copy that store, too"));
  } else if (!env.Exists(part->tables_dir).value_or(false)) {
    part->tables_dir = beside;  // here it is missed
  }
}

// The stores of the ranks, in their order. from_here: DirFromHere of each.
std::vector<SavedModel::Part> ParseStores(const Json& stores, size_t num_tables, bool elsewhere,
                                          const std::string& dir,
                                          std::vector<std::string>* from_here, std::string* wrong) {
  std::vector<SavedModel::Part> parts;
  std::set<std::tuple<std::string, std::string, SnapshotId>> seen;
  int64_t total_rows = 0;  // a sum that readers may form
  for (const Json& entry : stores) {
    JsonMembers store(entry, absl::StrCat("stores[", parts.size(), "]"), wrong);
    SavedModel::Part part;
    store.Count("rank", std::ssize(parts), std::ssize(parts));
    part.store = store.String("kind");
    if (!ParseStoreKind(part.store).ok()) store.Wrong("kind", part.store, "a kind of store");
    part.snapshot = static_cast<SnapshotId>(store.Count("snapshot", 1, INT64_MAX));
    if (store.Has("identity")) {
      const Hash128 identity = store.Hash("identity");
      part.identity = {.high = identity.hi, .low = identity.lo};
      if (!part.identity.known()) store.Wrong("identity", "0...", "one that is not 0");
    }
    if (store.Has("rows")) {
      const Json& rows = store.Array("rows");
      if (rows.size() != num_tables) {
        store.Wrong("rows", rows.size(), absl::StrCat(num_tables, " of them, one for each table"));
      }
      for (const Json& entry : rows) {
        const int64_t most = std::numeric_limits<int64_t>::max() - total_rows;
        if (!entry.is_number_unsigned() || entry.get<uint64_t>() > static_cast<uint64_t>(most)) {
          store.Wrong("rows", entry, "numbers of rows");
          break;
        }
        part.table_rows.push_back(entry.get<int64_t>());
        total_rows += part.table_rows.back();
      }
    }
    const std::string tables = store.String("dir");
    const bool known = elsewhere ? !tables.empty() : tables == kTablesName;
    if (!known) store.Wrong("dir", tables, elsewhere ? "a directory" : "\"tables\"");
    part.tables_dir = JoinPath(dir, tables);
    if (!seen.emplace(part.store, part.tables_dir, part.snapshot).second) {
      store.Wrong("snapshot", part.snapshot, "one that no other rank has");
    }
    from_here->push_back(store.Has("dir_from_here") ? store.String("dir_from_here") : "");
    parts.push_back(std::move(part));
  }
  return parts;
}

// A file of each rank; none where the member is missing.
std::vector<SavedModel::Residuals> ParseRankFiles(JsonMembers& top, const char* name, int64_t ranks,
                                                  std::string* wrong) {
  std::vector<SavedModel::Residuals> out;
  if (!top.Has(name)) return out;
  const Json& entries = top.Array(name);
  if (std::ssize(entries) != ranks) {
    top.Wrong(name, entries.size(), absl::StrCat(ranks, " of them, one for each rank"));
  }
  for (const Json& entry : entries) {
    const int64_t rank = std::ssize(out);
    JsonMembers member(entry, absl::StrCat(name, "[", rank, "]"), wrong);
    member.Count("rank", rank, rank);
    SavedModel::Residuals file;
    file.file = member.FileName("file");
    file.bytes = member.Count("bytes");
    file.crc = member.Crc("crc32c");
    out.push_back(std::move(file));
  }
  return out;
}

void WriteRankFiles(const char* name, const std::vector<SavedModel::Residuals>& files,
                    Json* manifest) {
  for (const SavedModel::Residuals& file : files) {
    Json& entries = (*manifest)[name];
    entries.push_back({{"rank", entries.size()},
                       {"file", file.file},
                       {"bytes", file.bytes},
                       {"crc32c", CrcText(file.crc)}});
  }
}

SavedModel ParseManifest(const Json& json, const std::vector<std::string>& required,
                         const std::string& dir, std::vector<std::string>* from_here,
                         std::string* wrong) {
  const auto requires_it = [&](const char* what) {
    return std::find(required.begin(), required.end(), what) != required.end();
  };
  SavedModel out;
  out.dir = dir;
  out.is_checkpoint = requires_it(kRequiresCheckpoint);
  JsonMembers top(json, "", wrong);
  ParseModelHead(top, &out);
  if (top.Has("seed")) out.seed = top.Unsigned("seed");
  std::set<std::string> table_names;
  for (const Json& entry : top.Array("tables")) {
    JsonMembers member(entry, absl::StrCat("tables[", out.tables.size(), "]"), wrong);
    SavedModel::Table table = ParseTableFormat(member, &table_names, wrong);
    ParseAgeLines(member, out.step, &table);
    if (!out.is_checkpoint || member.Has("rows")) table.rows = member.Count("rows");
    if (!out.is_checkpoint || member.Has("hash")) table.hash = member.Hash("hash").ToHex();
    out.tables.push_back(std::move(table));
  }
  out.features = ParseFeatures(top, table_names, wrong);
  const Json& stores = top.Array("stores");
  if (stores.empty() || stores.size() > kMaxRanks) {
    top.Wrong("stores", stores.size(), absl::StrCat("1 to ", kMaxRanks, " of them"));
  }
  out.parts =
      ParseStores(stores, out.tables.size(), requires_it(kRequiresStoreDir), dir, from_here, wrong);
  const int64_t ranks = std::ssize(out.parts);
  top.Count("world_size", ranks, ranks);
  if (ranks > 1 && !requires_it(kRequiresRanks)) {
    top.Wrong("requires", required, "ranks among them");
  }
  JsonMembers dense(top.Object("dense"), "dense", wrong);
  out.dense_file = dense.FileName("file");
  out.dense_bytes = dense.Count("bytes");
  out.dense_crc = dense.Crc("crc32c");
  // The file has them all, and a header.
  out.num_parameters =
      dense.Count("parameters", out.dense_bytes / static_cast<int64_t>(sizeof(float)));
  out.dense_optimizer = ParseDenseOptimizerName(dense);
  out.dense_average = requires_it(kRequiresDenseAverage);
  if (requires_it(kRequiresVocabulary)) out.vocabulary = ParseVocabularyFile(top, wrong);
  ParseScoringData(top, &out, wrong);
  if (requires_it(kRequiresBlobs)) out.blobs = ParseBlobs(top, wrong);
  out.residuals = ParseRankFiles(top, "residuals", ranks, wrong);
  out.counters = ParseRankFiles(top, "counters", ranks, wrong);
  if (out.is_checkpoint && top.Has("training")) {
    out.training = std::make_shared<const TrainingState>(
        ParseTraining(top.Object("training"), "training", wrong));
  }
  return out;
}

absl::StatusOr<SavedModel> ReadManifest(Env& env, const std::string& dir,
                                        std::vector<std::string>* left_behind) {
  const std::string path = ManifestPath(dir);
  HOTROW_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(env, path, kManifestBytesMax));
  // Checksum, version and `requires` are where they are in every version, so that a newer one is
  // told from a damaged one.
  const absl::StatusOr<Json> parsed = OpenSealedJson(std::move(text));
  if (!parsed.ok()) return SavedModelDamaged(path, std::string(parsed.status().message()));
  const Json& json = *parsed;
  std::string wrong;
  JsonMembers top(json, "", &wrong);
  if (top.String("format") != kFormat) {
    return SavedModelDamaged(path, "it is no manifest of a saved model");
  }
  const int64_t version = top.Count("version");
  const Json& required = top.Array("requires");
  if (!wrong.empty()) return SavedModelDamaged(path, wrong);
  HOTROW_RETURN_IF_ERROR(CheckManifestVersion(absl::StrCat("saved model: ", path), kVersions,
                                              version, required, kKnownRequirements));
  std::vector<std::string> from_here;
  SavedModel model =
      ParseManifest(json, required.get<std::vector<std::string>>(), dir, &from_here, &wrong);
  if (!wrong.empty()) return SavedModelDamaged(path, wrong);
  for (size_t r = 0; r < model.parts.size(); ++r) {
    FindMovedStore(env, dir, from_here[r], &model.parts[r], left_behind);
  }
  return model;
}

}  // namespace

absl::Status CheckManifestBytes(int64_t bytes) {
  if (bytes <= kManifestBytesMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "saved model: its manifest has ", bytes, " bytes, at most ", kManifestBytesMax,
      " are read back; train on fewer ranks, with fewer tables, or in longer windows"));
}

absl::StatusOr<SavedModel> ReadSavedModel(Env& env, const std::string& dir,
                                          std::vector<std::string>* left_behind) {
  const std::string path = ManifestPath(dir);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) {
    return absl::FailedPreconditionError(absl::StrCat(
        "saved model: there is no ", path, ": give a directory that --save_dir has written"));
  }
  return ReadManifest(env, dir, left_behind);
}

std::string SavedModelManifest(const SavedModel& model) {
  Json tables = Json::array();
  Json table_names = Json::array();
  bool narrow = false;
  for (const SavedModel::Table& table : model.tables) {
    Json entry = {{"name", table.name}, {"dim", table.dim}};
    WriteTableFormat(table, &entry);
    narrow = narrow || table.weights_precision != WeightsPrecision::kFp32;
    WriteAgeLines(table, &entry);
    if (table.rows >= 0) entry["rows"] = table.rows;
    if (!table.hash.empty()) entry["hash"] = table.hash;
    tables.push_back(std::move(entry));
    table_names.push_back(table.name);
  }
  Json stores = Json::array();
  bool elsewhere = false;
  for (const SavedModel::Part& part : model.parts) {
    const std::string tables_dir = TablesDirText(model, part);
    elsewhere = elsewhere || tables_dir != kTablesName;
    Json entry = {{"rank", stores.size()},
                  {"kind", part.store},
                  {"dir", tables_dir},
                  {"snapshot", part.snapshot},
                  {"tables", table_names}};
    // Older versions have `dir` alone.
    if (absl::StartsWith(tables_dir, "/")) entry["dir_from_here"] = DirFromHere(model, part);
    if (part.identity.known()) entry["identity"] = part.identity.ToHex();
    if (!part.table_rows.empty()) entry["rows"] = part.table_rows;
    stores.push_back(std::move(entry));
  }
  Json required = Json::array();
  if (model.is_checkpoint) required.push_back(kRequiresCheckpoint);
  if (elsewhere) required.push_back(kRequiresStoreDir);
  if (model.parts.size() > 1) required.push_back(kRequiresRanks);
  if (narrow) required.push_back(kRequiresWeightsPrecision);
  if (model.vocabulary.has_value()) required.push_back(kRequiresVocabulary);
  if (model.training != nullptr && model.training->rows_missed_steps()) {
    required.push_back(kRequiresLearningRates);
  }
  if (!model.blobs.empty()) required.push_back(kRequiresBlobs);
  if (AnyAgeLine(model)) required.push_back(kRequiresAgeLines);
  if (model.dense_average) required.push_back(kRequiresDenseAverage);
  if (KeepsScores(model)) required.push_back(kRequiresScores);
  Json json;
  json["format"] = kFormat;
  json["version"] = kVersions.newest;
  json["requires"] = std::move(required);
  WriteModelHead(model, &json);
  json["tables"] = std::move(tables);
  json["world_size"] = model.parts.size();
  json["stores"] = std::move(stores);
  json["dense"] = {{"file", model.dense_file},
                   {"bytes", model.dense_bytes},
                   {"crc32c", CrcText(model.dense_crc)},
                   {"parameters", model.num_parameters},
                   {"optimizer", model.dense_optimizer}};
  WriteVocabularyFile(model, &json);
  WriteScoringData(model, &json);
  WriteBlobs(model, &json);
  WriteRankFiles("residuals", model.residuals, &json);
  WriteRankFiles("counters", model.counters, &json);
  if (model.training != nullptr) json["training"] = TrainingToJson(*model.training);
  return SealJson(std::move(json));
}

}  // namespace hotrow
