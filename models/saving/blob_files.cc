#include "models/saving/blob_files.h"

#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "models/saving/saved_model_impl.h"

namespace hotrow {

absl::Status CheckBlobs(const SavedModel::BlobBytes& blobs) {
  if (std::ssize(blobs) > kBlobsMax) {
    return absl::InvalidArgumentError(absl::StrCat("blobs: there are ", blobs.size(), ", at most ",
                                                   kBlobsMax,
                                                   " may be saved; put several into one"));
  }
  std::set<std::string_view> names;
  for (const auto& [name, bytes] : blobs) {
    if (name.empty() || !IsUtf8(name)) {
      return absl::InvalidArgumentError(absl::StrCat("blobs[", names.size(), "]: its name is ",
                                                     name.empty() ? "empty" : "not UTF-8"));
    }
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("blobs[", names.size(), "]: the name \"", name, "\" is there twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteSavedBlobs(Env& env, SavedModel* model) {
  model->blobs.clear();
  if (model->blob_bytes == nullptr) return absl::OkStatus();
  for (const auto& [name, text] : *model->blob_bytes) {
    const auto bytes = std::as_bytes(std::span(text));
    const std::string file_name = absl::StrFormat("blob-%05d", model->blobs.size());
    HOTROW_ASSIGN_OR_RETURN(
        const std::unique_ptr<File> file,
        env.Open(absl::StrCat(model->dir, "/", file_name), OpenMode::kTruncate));
    HOTROW_RETURN_IF_ERROR(WriteFull(*file, 0, bytes));
    HOTROW_RETURN_IF_ERROR(file->Sync());
    HOTROW_RETURN_IF_ERROR(file->Close());
    model->blobs.push_back(
        {.name = name, .file = file_name, .bytes = std::ssize(bytes), .crc = Crc32c(bytes)});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSavedBlob(Env& env, const SavedModel& saved,
                                          const SavedModel::Blob& blob) {
  const std::string path = absl::StrCat(saved.dir, "/", blob.file);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return SavedModelDamaged(path, "there is no such file");
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size != blob.bytes) {
    return SavedModelDamaged(
        path, absl::StrCat("it has ", size, " bytes, the manifest says ", blob.bytes));
  }
  std::string bytes(static_cast<size_t>(size), 0);
  HOTROW_RETURN_IF_ERROR(ReadFull(*file, 0, std::as_writable_bytes(std::span(bytes))));
  if (Crc32c(std::as_bytes(std::span(bytes))) != blob.crc) {
    return SavedModelDamaged(path, "its checksum differs");
  }
  return bytes;
}

absl::StatusOr<std::shared_ptr<const SavedModel::BlobBytes>> ReadSavedBlobs(
    Env& env, const SavedModel& saved) {
  if (saved.blobs.empty()) return nullptr;
  auto out = std::make_shared<SavedModel::BlobBytes>();
  for (const SavedModel::Blob& blob : saved.blobs) {
    HOTROW_ASSIGN_OR_RETURN(std::string bytes, ReadSavedBlob(env, saved, blob));
    out->emplace_back(blob.name, std::move(bytes));
  }
  return out;
}

}  // namespace hotrow
