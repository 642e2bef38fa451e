#ifndef HOTROW_MODELS_ZOO_MODEL_KINDS_H_
#define HOTROW_MODELS_ZOO_MODEL_KINDS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/zoo/histories.h"
#include "models/zoo/layers/model_graph.h"
#include "ops/products/dense_precision.h"

namespace hotrow {

// What a model of this folder is made of, in the words of a saved model.
struct ModelRecipe {
  std::string model;  // CtrModel::name
  // The flags that give each dense parameter its meaning, with their values (SavedModel::shape).
  std::vector<std::pair<std::string, std::string>> shape;
  int32_t num_dense = 0;
  std::vector<ModelFeature> features;  // of the data, in batch order
  int32_t num_tasks = 1;
  int32_t table_columns = 0;  // of all tables
  uint64_t seed = 0;          // of the first parameters and of dropout
  int64_t max_batch_size = 0;
  DensePrecision precision = DensePrecision::kFp32;
};

// The model of a recipe, with its first parameters. Errors: FailedPrecondition (no model of this
// folder, or a flag of the shape that this build does not know; lists those that there are), those
// of the model's Create.
absl::StatusOr<std::unique_ptr<GraphModel>> CreateModelOfKind(const ModelRecipe& recipe,
                                                              const ExecContext& ctx = {});

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_MODEL_KINDS_H_
