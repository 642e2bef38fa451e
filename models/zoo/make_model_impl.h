#ifndef HOTROW_MODELS_ZOO_MAKE_MODEL_IMPL_H_
#define HOTROW_MODELS_ZOO_MAKE_MODEL_IMPL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "base/flag_set.h"
#include "base/status_macros.h"
#include "models/zoo/layers/model_graph.h"
#include "models/zoo/model_flags.h"
#include "models/zoo/model_kinds.h"
#include "models/zoo/model_list.h"

namespace hotrow {

// Each model makes itself of a recipe, in its own source: MakeDcn and the like, for
// CreateModelOfKind.
#define HOTROW_DECLARE_MAKE(name, Type, what)                                       \
  absl::StatusOr<std::unique_ptr<GraphModel>> Make##Type(const ModelRecipe& recipe, \
                                                         const ExecContext& ctx);
HOTROW_MODELS(HOTROW_DECLARE_MAKE)
#undef HOTROW_DECLARE_MAKE

// Sets the flags of `set`, a model's, from the recipe's shape. Errors: as CreateModelOfKind.
absl::Status ParseShape(const ModelRecipe& recipe, FlagSet* set);

// A model whose options are filled from the recipe. add_flags: those of this model alone; null:
// there are none.
template <typename Options>
absl::StatusOr<std::unique_ptr<GraphModel>> MakeOfRecipe(
    const ModelRecipe& recipe, const ExecContext& ctx,
    absl::StatusOr<std::unique_ptr<GraphModel>> (*create)(const Options& options,
                                                          const ExecContext& ctx),
    void (*add_flags)(Options* options, FlagSet* set) = nullptr) {
  Options options;
  std::string pooling;  // the tables'
  FlagSet set(recipe.model);
  set.AddString("pooling", "WORD", &pooling, "");
  if (add_flags != nullptr) add_flags(&options, &set);
  AddSharedModelFlags(&options, {}, &set);
  HOTROW_RETURN_IF_ERROR(ParseShape(recipe, &set));
  options.num_dense = recipe.num_dense;
  options.num_sparse = static_cast<int32_t>(recipe.features.size());
  options.embedding_dim = recipe.table_columns;
  if constexpr (requires { Options::TableColumns(int64_t{1}); }) {
    // As many columns more for each number of columns.
    options.embedding_dim -= static_cast<int32_t>(Options::TableColumns(1)) - 1;
  }
  options.seed = recipe.seed;
  options.max_batch_size = recipe.max_batch_size;
  options.precision = recipe.precision;
  if constexpr (requires { options.features; }) options.features = recipe.features;
  if constexpr (requires { options.num_tasks; }) options.num_tasks = recipe.num_tasks;
  return create(options, ctx);
}

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_MAKE_MODEL_IMPL_H_
