#include "models/zoo/model_flags.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/zoo/make_model_impl.h"

namespace hotrow {

absl::Status ParseShape(const ModelRecipe& recipe, FlagSet* set) {
  std::vector<std::string> flags = {recipe.model};
  for (const auto& [name, value] : recipe.shape) {
    // Sizes of no layers, which is what the options begin with; no command line says so.
    if (value.empty()) continue;
    flags.push_back(absl::StrCat("--", name, "=", value));
  }
  std::vector<const char*> arguments;
  for (const std::string& flag : flags) arguments.push_back(flag.c_str());
  const absl::Status parsed = set->Parse(static_cast<int>(arguments.size()), arguments.data());
  if (parsed.ok()) return parsed;
  return absl::FailedPreconditionError(absl::StrCat(
      "the model's shape is not one that this program knows: ", std::string(parsed.message()),
      "; use a newer hotrow"));
}

}  // namespace hotrow
