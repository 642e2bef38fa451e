#include "models/zoo/hstu_model.h"

#include "models/zoo/layers/sequence_blocks.h"
#include "models/zoo/make_model_impl.h"

namespace hotrow {

absl::StatusOr<std::unique_ptr<GraphModel>> HstuModel::Create(const BstOptions& options,
                                                              const ExecContext& ctx) {
  return CreateOfBlocks("hstu", options, HstuBlock::kNumMaps, HstuBlock::Create, ctx);
}

absl::StatusOr<std::unique_ptr<GraphModel>> MakeHstu(const ModelRecipe& recipe,
                                                     const ExecContext& ctx) {
  return MakeOfRecipe(recipe, ctx, HstuModel::Create, AddBstFlags);
}

}  // namespace hotrow
