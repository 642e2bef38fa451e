#include "models/zoo/model_kinds.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/flag_set.h"
#include "base/status_macros.h"
#include "models/zoo/dcn_model.h"
#include "models/zoo/deepfm_model.h"
#include "models/zoo/dlrm_model.h"
#include "models/zoo/mmoe_model.h"
#include "models/zoo/model_flags.h"
#include "models/zoo/pnn_model.h"
#include "models/zoo/wide_deep_model.h"
#include "models/zoo/xdeepfm_model.h"

namespace hotrow {
namespace {

// Fills the options of a model from the recipe's flags. add_flags: those of this model alone; null:
// there are none.
template <typename Options>
absl::StatusOr<Options> OptionsOf(const ModelRecipe& recipe,
                                  void (*add_flags)(Options* options, FlagSet* set)) {
  Options options;
  std::string pooling;  // the tables'
  FlagSet set(recipe.model);
  set.AddString("pooling", "WORD", &pooling, "");
  if (add_flags != nullptr) add_flags(&options, &set);
  AddSharedModelFlags(&options, {}, &set);
  std::vector<std::string> flags = {recipe.model};
  for (const auto& [name, value] : recipe.shape) {
    // Sizes of no layers, which is what the options begin with; no command line says so.
    if (value.empty()) continue;
    flags.push_back(absl::StrCat("--", name, "=", value));
  }
  std::vector<const char*> arguments;
  for (const std::string& flag : flags) arguments.push_back(flag.c_str());
  const absl::Status parsed = set.Parse(static_cast<int>(arguments.size()), arguments.data());
  if (!parsed.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the model's shape is not one that this program knows: ", std::string(parsed.message()),
        "; use a newer hotrow"));
  }
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
  return options;
}

using MakeModel = absl::StatusOr<std::unique_ptr<GraphModel>> (*)(const ModelRecipe& recipe,
                                                                  const ExecContext& ctx);

template <typename Model, typename Options, void (*kAddFlags)(Options*, FlagSet*)>
absl::StatusOr<std::unique_ptr<GraphModel>> Make(const ModelRecipe& recipe,
                                                 const ExecContext& ctx) {
  HOTROW_ASSIGN_OR_RETURN(const Options options, OptionsOf<Options>(recipe, kAddFlags));
  return Model::Create(options, ctx);
}

struct Kind {
  std::string_view name;
  MakeModel make;
};
constexpr Kind kKinds[] = {
    {"dcn", Make<DcnModel, DcnOptions, AddDcnFlags>},
    {"deepfm", Make<DeepFmModel, DeepFmOptions, nullptr>},
    {"din", Make<DinModel, DinOptions, AddDinFlags>},
    {"dlrm", Make<DlrmModel, DlrmOptions, AddDlrmFlags>},
    {"mmoe", Make<MmoeModel, MmoeOptions, AddMmoeFlags>},
    {"pnn", Make<PnnModel, PnnOptions, AddPnnFlags>},
    {"wide_deep", Make<WideDeepModel, WideDeepOptions, nullptr>},
    {"xdeepfm", Make<XDeepFmModel, XDeepFmOptions, AddXDeepFmFlags>},
};

}  // namespace

std::vector<std::string_view> ModelKinds() {
  std::vector<std::string_view> out;
  for (const Kind& kind : kKinds) out.push_back(kind.name);
  return out;
}

absl::StatusOr<std::unique_ptr<GraphModel>> CreateModelOfKind(const ModelRecipe& recipe,
                                                              const ExecContext& ctx) {
  const auto* const kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                        [&](const Kind& k) { return k.name == recipe.model; });
  if (kind != std::end(kKinds)) return kind->make(recipe, ctx);
  std::string known;
  for (const Kind& k : kKinds) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(k.name));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("there is no model \"", recipe.model, "\" here, only ", known));
}

}  // namespace hotrow
