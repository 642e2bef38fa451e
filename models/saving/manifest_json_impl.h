#ifndef HOTROW_MODELS_SAVING_MANIFEST_JSON_IMPL_H_
#define HOTROW_MODELS_SAVING_MANIFEST_JSON_IMPL_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "models/json/json_members_impl.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// What the manifests of saved models and of the portable form say alike. Members are written and
// read in the order of the format pages; `wrong` is as in JsonMembers.

// In `requires`: tables have a weights_precision.
inline constexpr char kRequiresWeightsPrecision[] = "weights_precision";
// In `requires`: there is a vocabulary.
inline constexpr char kRequiresVocabulary[] = "vocabulary";
// In `requires`: scores are those of the running average of the dense parameters.
inline constexpr char kRequiresDenseAverage[] = "dense_average";
// In `requires`: there are blobs.
inline constexpr char kRequiresBlobs[] = "blobs";
// In `requires`: tables keep scores: their rows have one, and may have aged by lines of them.
inline constexpr char kRequiresScores[] = "scores";
bool KeepsScores(const SavedModel& model);
// Some rows have aged: tables[].age_line says which.
inline constexpr char kRequiresAgeLines[] = "age_lines";

// The versions of a format that this build reads. It writes the newest.
struct ManifestVersions {
  int64_t oldest = 1;
  int64_t newest = 1;
};
// OK when this build reads a manifest of `version` that requires these names, of which it knows
// `known`. FailedPrecondition otherwise: what it does not know, the versions that it reads, and the
// remedy. place: what the error begins with.
absl::Status CheckManifestVersion(std::string_view place, const ManifestVersions& versions,
                                  int64_t version, const nlohmann::ordered_json& required,
                                  std::span<const std::string_view> known);

std::string CrcText(uint32_t crc);  // as JsonMembers::Crc reads it

// Members `model` to `features` of the manifest.
void WriteModelHead(const SavedModel& model, nlohmann::ordered_json* manifest);
// All of these members but `seed` and `features`.
void ParseModelHead(JsonMembers& manifest, SavedModel* model);
std::vector<SavedModel::Feature> ParseFeatures(JsonMembers& manifest,
                                               const std::set<std::string>& table_names,
                                               std::string* wrong);

// Members `optimizer`, `weights_precision`, `initializer` and `score` of a table.
void WriteTableFormat(const SavedModel::Table& table, nlohmann::ordered_json* entry);
// These, `name` and `dim`. table_names: of the tables before; the name is added.
SavedModel::Table ParseTableFormat(JsonMembers& table, std::set<std::string>* table_names,
                                   std::string* wrong);

// Members `age_line` and `score_lines`, where rows have aged. Any: whether an `age_line` is there.
// step: of the model.
void WriteAgeLines(const SavedModel::Table& table, nlohmann::ordered_json* entry);
bool AnyAgeLine(const SavedModel& model);
void ParseAgeLines(JsonMembers& member, int64_t step, SavedModel::Table* table);

// Member `vocabulary`, where there is one.
void WriteVocabularyFile(const SavedModel& model, nlohmann::ordered_json* manifest);
SavedModel::VocabularyFile ParseVocabularyFile(JsonMembers& manifest, std::string* wrong);

// Member `scoring`, where there is one. Parse: after the features.
void WriteScoringData(const SavedModel& model, nlohmann::ordered_json* manifest);
void ParseScoringData(JsonMembers& manifest, SavedModel* model, std::string* wrong);

// Member `blobs`, where there are some.
void WriteBlobs(const SavedModel& model, nlohmann::ordered_json* manifest);
std::vector<SavedModel::Blob> ParseBlobs(JsonMembers& manifest, std::string* wrong);

// Member `optimizer` of `dense`.
std::string ParseDenseOptimizerName(JsonMembers& dense);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_MANIFEST_JSON_IMPL_H_
