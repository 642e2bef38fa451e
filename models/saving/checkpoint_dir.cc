#include <algorithm>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/saving/blob_files.h"
#include "models/saving/checkpoint_dir_impl.h"
#include "models/saving/manifest.h"
#include "models/saving/store_paths_impl.h"
#include "models/saving/vocabulary_file.h"

namespace hotrow {
namespace {

constexpr char kDenseName[] = "dense.safetensors";
constexpr char kVocabularyName[] = "vocabulary";
constexpr char kUnfinishedSuffix[] = ".tmp";
constexpr char kRetiredSuffix[] = ".old";

absl::Status WriteText(Env& env, const std::string& path, std::string_view text) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kTruncate));
  HOTROW_RETURN_IF_ERROR(WriteFull(*file, 0, std::as_bytes(std::span(text))));
  HOTROW_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace

std::optional<StepName> StepOfName(const std::string& name) {
  StepName out;
  std::string_view rest(name);
  const auto take = [&rest](int64_t* number) {
    const size_t n = std::min(rest.find_first_not_of("0123456789"), rest.size());
    const std::string digits(rest.substr(0, n));
    rest.remove_prefix(n);
    return absl::SimpleAtoi(digits, number) ? n : 0;
  };
  if (!absl::StartsWith(name, kStepPrefix)) return std::nullopt;
  rest.remove_prefix(sizeof(kStepPrefix) - 1);
  if (take(&out.step) != kStepDigits) return std::nullopt;
  if (rest.empty()) return out;
  if (rest.front() != '-') return std::nullopt;
  rest.remove_prefix(1);
  // A name has one spelling.
  const bool plain = !rest.empty() && rest.front() != '0' && take(&out.again) > 0 && rest.empty();
  return plain ? std::optional(out) : std::nullopt;
}

bool IsLeftover(const std::string& name) {
  for (const std::string suffix : {kUnfinishedSuffix, kRetiredSuffix}) {
    if (absl::EndsWith(name, suffix) &&
        StepOfName(name.substr(0, name.size() - suffix.size())).has_value()) {
      return true;
    }
  }
  return false;
}

std::string UnfinishedDir(const std::string& dir) { return dir + kUnfinishedSuffix; }
std::string RetiredDir(const std::string& dir) { return dir + kRetiredSuffix; }

absl::Status RemoveFlatDir(Env& env, const std::string& dir) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(dir));
  if (!exists) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(dir));
  for (const std::string& name : names) {
    HOTROW_RETURN_IF_ERROR(env.Remove(absl::StrCat(dir, "/", name)));
  }
  return env.RemoveDir(dir);
}

absl::Status WriteUnfinished(Env& env, const std::string& dir,
                             const DenseArrays<const float>& dense, SavedModel* model) {
  model->dir = UnfinishedDir(dir);
  HOTROW_RETURN_IF_ERROR(RemoveFlatDir(env, model->dir));
  HOTROW_RETURN_IF_ERROR(env.CreateDirs(model->dir));
  HOTROW_RETURN_IF_ERROR(WriteSavedVocabulary(env, kVocabularyName, model));
  HOTROW_RETURN_IF_ERROR(WriteSavedBlobs(env, model));
  return WriteSavedDense(env, kDenseName, dense, model);
}

absl::Status CommitUnfinished(Env& env, const std::string& dir, const std::string& manifest) {
  HOTROW_RETURN_IF_ERROR(CheckManifestBytes(std::ssize(manifest)));
  const std::string unfinished = UnfinishedDir(dir);
  HOTROW_RETURN_IF_ERROR(WriteText(env, ManifestPath(unfinished), manifest));
  HOTROW_RETURN_IF_ERROR(env.SyncDir(unfinished));
  HOTROW_RETURN_IF_ERROR(env.Rename(unfinished, dir));
  return env.SyncDir(ParentDir(dir));
}

absl::Status RetireCheckpoint(Env& env, const std::string& dir) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(dir));
  if (!exists) return absl::OkStatus();  // a try before this one got as far
  HOTROW_RETURN_IF_ERROR(RemoveFlatDir(env, RetiredDir(dir)));
  return env.Rename(dir, RetiredDir(dir));
}

}  // namespace hotrow
