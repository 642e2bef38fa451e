#ifndef HOTROW_MODELS_SAVING_SAVED_MODEL_FIT_H_
#define HOTROW_MODELS_SAVING_SAVED_MODEL_FIT_H_

#include <string>

#include "absl/status/status.h"
#include "embedding/embedding_collection.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// What a caller wants a saved model for; errors say so.
struct SavedModelUse {
  std::string flag;        // that names the model: "--init_from=/models/monday"
  std::string train_anew;  // the remedy without it: "train anew without --init_from"
};

// OK if a model like `wanted`, which has no parts, may be trained on from `saved`. Name, shape,
// dense and sparse features, and the tables with dims, optimizers and precisions must agree. The
// dense optimizer and the number and kinds of stores may differ. Errors: FailedPrecondition, naming
// what differs and the remedy.
absl::Status CheckSavedModelFits(const SavedModel& saved, const SavedModel& wanted,
                                 const SavedModelUse& use);

// Compares the tables that were loaded, all ranks together, with the manifest, where that has rows
// and hashes. Errors: DataLoss, naming the table.
absl::Status CheckSavedTables(const SavedModel& saved, const CollectionDigest& digest);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SAVED_MODEL_FIT_H_
