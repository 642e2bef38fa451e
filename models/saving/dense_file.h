#ifndef HOTROW_MODELS_SAVING_DENSE_FILE_H_
#define HOTROW_MODELS_SAVING_DENSE_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// The files beside a manifest that are read whole: dense parameters with the state of their
// optimizer, as safetensors, and what the gradients of ranks had lost.

// Dense parameters and the state of their optimizer; arrays that it does not keep are empty.
template <typename Float>
struct DenseArrays {
  std::span<Float> parameters;
  std::span<Float> momentum1;
  std::span<Float> momentum2;
};

struct DenseVectors {
  std::vector<float> parameters;
  std::vector<float> momentum1;
  std::vector<float> momentum2;

  DenseArrays<const float> arrays() const { return {parameters, momentum1, momentum2}; }
};

// Fills the parameters, and those arrays of state that are not empty. Lengths are those of the
// manifest. Errors: DataLoss, naming the file.
absl::Status ReadSavedDense(Env& env, const SavedModel& saved, const DenseArrays<float>& dense);
// All arrays that the file has.
absl::StatusOr<DenseVectors> ReadSavedDense(Env& env, const SavedModel& saved);

// The bytes of a rank's residuals, of which there are some. Errors: DataLoss, naming the file.
absl::StatusOr<std::string> ReadSavedResiduals(Env& env, const SavedModel& saved, int32_t rank);

// Writes the dense file `name` into model->dir, syncs it, and fills the members dense_* of the
// model. The directory is not synced.
absl::Status WriteSavedDense(Env& env, const std::string& name,
                             const DenseArrays<const float>& dense, SavedModel* model);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_DENSE_FILE_H_
