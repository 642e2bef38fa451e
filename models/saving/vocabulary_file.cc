#include "models/saving/vocabulary_file.h"

#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "models/saving/saved_model_impl.h"

namespace hotrow {

absl::Status WriteSavedVocabulary(Env& env, const std::string& name, SavedModel* model) {
  model->vocabulary.reset();
  if (model->vocabulary_bytes == nullptr) return absl::OkStatus();
  const auto bytes = std::as_bytes(std::span(*model->vocabulary_bytes));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                          env.Open(absl::StrCat(model->dir, "/", name), OpenMode::kTruncate));
  HOTROW_RETURN_IF_ERROR(WriteFull(*file, 0, bytes));
  HOTROW_RETURN_IF_ERROR(file->Sync());
  HOTROW_RETURN_IF_ERROR(file->Close());
  model->vocabulary = {.file = name, .bytes = std::ssize(bytes), .crc = Crc32c(bytes)};
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSavedVocabularyBytes(Env& env, const SavedModel& saved) {
  if (!saved.vocabulary.has_value()) return std::string();
  const std::string path = absl::StrCat(saved.dir, "/", saved.vocabulary->file);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return SavedModelDamaged(path, "there is no such file");
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size != saved.vocabulary->bytes) {
    return SavedModelDamaged(
        path, absl::StrCat("it has ", size, " bytes, the manifest says ", saved.vocabulary->bytes));
  }
  std::string bytes(static_cast<size_t>(size), 0);
  HOTROW_RETURN_IF_ERROR(ReadFull(*file, 0, std::as_writable_bytes(std::span(bytes))));
  if (Crc32c(std::as_bytes(std::span(bytes))) != saved.vocabulary->crc) {
    return SavedModelDamaged(path, "its checksum differs");
  }
  return bytes;
}

absl::StatusOr<Vocabulary> ReadSavedVocabulary(Env& env, const SavedModel& saved) {
  if (!saved.vocabulary.has_value()) return Vocabulary();
  HOTROW_ASSIGN_OR_RETURN(const std::string bytes, ReadSavedVocabularyBytes(env, saved));
  return Vocabulary::Decode(bytes, absl::StrCat(saved.dir, "/", saved.vocabulary->file));
}

}  // namespace hotrow
