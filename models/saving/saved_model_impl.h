#ifndef HOTROW_MODELS_SAVING_SAVED_MODEL_IMPL_H_
#define HOTROW_MODELS_SAVING_SAVED_MODEL_IMPL_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// Whether the snapshot of a part is a file of tables_dir; others are parts of a store there.
bool HasSnapshotFile(const SavedModel::Part& part);

// DataLoss, with a remedy: a file of a saved model or checkpoint is damaged.
absl::Status SavedModelDamaged(const std::string& path, std::string_view what);

// What a message about all rows of a table names: their one directory, or that of the manifest.
std::string TablesPlace(const SavedModel& model);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SAVED_MODEL_IMPL_H_
