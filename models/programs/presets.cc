#include "models/programs/presets.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace hotrow {
namespace {

using Flags = std::vector<std::string>;

Flags Join(Flags flags, const Flags& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

}  // namespace

FlagPreset MakePreset(std::string_view name, std::string_view result, Flags flags) {
  return {std::string(name), std::string(result),
          Join(std::move(flags),
               {"--batch_size=4096", "--epochs=100", "--optimizer=adam", "--dense_optimizer=adam",
                "--eps=1e-8", "--lr_plateau_patience=1", "--early_stop_patience=2"})};
}

FlagPreset FrappePreset(std::string_view name, std::string_view result, const Flags& flags) {
  return MakePreset(
      name, absl::StrCat("with --data=frappe:DIR: ", std::string(result), " on Frappe_x1"),
      Join({"--embedding_dim=10", "--over_arch_layer_sizes=400-400-400-1", "--learning_rate=0.001",
            "--dense_learning_rate=0.001", "--table_weight_decay_mode=table"},
           flags));
}

}  // namespace hotrow
