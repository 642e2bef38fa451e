#ifndef HOTROW_MODELS_SAVING_VOCABULARY_FILE_H_
#define HOTROW_MODELS_SAVING_VOCABULARY_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/data/vocabulary.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// Writes model->vocabulary_bytes to the file of that name in model->dir, syncs it and describes it
// in model->vocabulary. Without bytes there is no file.
absl::Status WriteSavedVocabulary(Env& env, const std::string& name, SavedModel* model);

// The bytes of the vocabulary that a saved model has. Errors: DataLoss, naming the file.
absl::StatusOr<std::string> ReadSavedVocabularyBytes(Env& env, const SavedModel& saved);

// The vocabulary; empty where the model has none. Errors: those of ReadSavedVocabularyBytes and of
// Vocabulary::Decode.
absl::StatusOr<Vocabulary> ReadSavedVocabulary(Env& env, const SavedModel& saved);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_VOCABULARY_FILE_H_
