#ifndef HOTROW_MODELS_SAVING_DENSE_FILE_H_
#define HOTROW_MODELS_SAVING_DENSE_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// The files beside a manifest that are read whole: dense parameters with their optimizer state, as
// safetensors, and the residuals of each rank's gradients.

struct DenseVectors {
  std::vector<float> parameters;
  std::vector<float> momentum1;
  std::vector<float> momentum2;
  std::vector<float> average;

  DenseArrays<const float> arrays() const { return {parameters, momentum1, momentum2, average}; }
};

// Fills the parameters, and the other arrays that are not empty. Each has num_parameters floats.
// Errors: DataLoss, naming the file.
absl::Status ReadSavedDense(Env& env, const SavedModel& saved, const DenseArrays<float>& dense);
// Reads all arrays that the file has.
absl::StatusOr<DenseVectors> ReadSavedDense(Env& env, const SavedModel& saved);

// Reads a rank's counters; saved.counters is not empty. Errors: DataLoss, naming the file.
absl::StatusOr<std::string> ReadSavedCounters(Env& env, const SavedModel& saved, int32_t rank);
// Reads a rank's residuals; saved.residuals is not empty. Errors: DataLoss, naming the file.
absl::StatusOr<std::string> ReadSavedResiduals(Env& env, const SavedModel& saved, int32_t rank);

// Writes the dense file `name` into model->dir, syncs it, and fills num_parameters, dense_average,
// dense_file, dense_bytes and dense_crc of the model. Does not sync the directory.
absl::Status WriteSavedDense(Env& env, const std::string& name,
                             const DenseArrays<const float>& dense, SavedModel* model);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_DENSE_FILE_H_
