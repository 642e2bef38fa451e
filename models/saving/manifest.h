#ifndef HOTROW_MODELS_SAVING_MANIFEST_H_
#define HOTROW_MODELS_SAVING_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// manifest.json of a saved model or checkpoint, written and read: docs/formats/saved_model.md.

// Reads and checks the manifest in `dir`. ReadCheckpoint does so for paths that users give. Errors:
// FailedPrecondition (no saved model there, or one of a version that this build does not read),
// DataLoss (damaged); they name the file and the remedy.
//
// A model that was moved or copied has its rows in the store that lies beside it as the original
// did beside the original, if that store has the snapshots by their identity; otherwise where they
// were written. left_behind gets a line for each store of the second kind.
absl::StatusOr<SavedModel> ReadSavedModel(Env& env, const std::string& dir,
                                          std::vector<std::string>* left_behind = nullptr);

// The text of manifest.json in model.dir. All members of the model must be filled in.
std::string SavedModelManifest(const SavedModel& model);

// OK if ReadSavedModel reads manifests of this length; ResourceExhausted, naming the limit.
absl::Status CheckManifestBytes(int64_t bytes);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_MANIFEST_H_
