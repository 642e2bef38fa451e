#include "models/saving/saved_model.h"

#include "absl/strings/str_cat.h"
#include "models/saving/saved_model_impl.h"
#include "store/store_facts.h"

namespace hotrow {

absl::Status SavedModelDamaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(absl::StrCat("saved model: ", path, " is damaged (", std::string(what),
                                          "); use a copy of it, or another checkpoint, or start "
                                          "without --init_from"));
}

bool HasSnapshotFile(const SavedModel::Part& part) {
  const StoreFacts* const store = FindStoreFacts(part.store);
  return store != nullptr && !store->on_disk;
}

std::string TablesPlace(const SavedModel& model) {
  return model.parts.size() == 1 ? model.parts[0].tables_dir : model.dir;
}

}  // namespace hotrow
