#ifndef HOTROW_MODELS_SAVING_BLOB_FILES_H_
#define HOTROW_MODELS_SAVING_BLOB_FILES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// Bytes that belong to a saved model and mean something to its writer alone, one file each: what a
// trainer of other makers keeps beside the tables.

// OK if these may be saved: distinct names that are not empty and UTF-8, at most kBlobsMax of them.
// InvalidArgument otherwise, naming the blob.
absl::Status CheckBlobs(const SavedModel::BlobBytes& blobs);

// Writes model->blob_bytes to the files blob-00000, ... in model->dir, syncs them and describes
// them in model->blobs.
absl::Status WriteSavedBlobs(Env& env, SavedModel* model);

// Reads one of saved.blobs. Errors: DataLoss, naming the file.
absl::StatusOr<std::string> ReadSavedBlob(Env& env, const SavedModel& saved,
                                          const SavedModel::Blob& blob);

// All of saved.blobs; null where there are none.
absl::StatusOr<std::shared_ptr<const SavedModel::BlobBytes>> ReadSavedBlobs(
    Env& env, const SavedModel& saved);

inline constexpr int64_t kBlobsMax = 10'000;

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_BLOB_FILES_H_
