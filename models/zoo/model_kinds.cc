#include "models/zoo/model_kinds.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/zoo/make_model_impl.h"

namespace hotrow {
namespace {

struct Kind {
  std::string_view name;
  absl::StatusOr<std::unique_ptr<GraphModel>> (*make)(const ModelRecipe& recipe,
                                                      const ExecContext& ctx);
};
#define HOTROW_KIND(name, Type, what) {#name, Make##Type},
constexpr Kind kKinds[] = {HOTROW_MODELS(HOTROW_KIND)};
#undef HOTROW_KIND

}  // namespace

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
