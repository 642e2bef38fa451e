#ifndef HOTROW_MODELS_SAVING_SAVED_MODEL_FIT_H_
#define HOTROW_MODELS_SAVING_SAVED_MODEL_FIT_H_

#include <string>

#include "absl/status/status.h"
#include "embedding/embedding_collection.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// What somebody wants to do with a saved model, for the words of errors.
struct SavedModelUse {
  std::string flag;        // what names the model: "--init_from=/models/monday"
  std::string train_anew;  // how to do without it: "train anew without --init_from"
};

// Whether a model of this form may go on from `saved`; `wanted` has no parts. Name, shape, dense
// and sparse features and the tables with their dims and optimizers must agree; the dense optimizer
// and the stores' kinds and number need not. Errors: FailedPrecondition, naming what differs and
// the remedy.
absl::Status CheckSavedModelFits(const SavedModel& saved, const SavedModel& wanted,
                                 const SavedModelUse& use);

// Compares the tables that were loaded, those of all ranks together, with what the manifest knows
// of them. Errors: DataLoss, naming the table.
absl::Status CheckSavedTables(const SavedModel& saved, const CollectionDigest& digest);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_SAVED_MODEL_FIT_H_
