#include "models/programs/presets.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace hotrow {
namespace {

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

// What the presets have in common, after BARS and FuxiCTR: Adam for all parameters, rate x 0.1 on a
// plateau, best epoch by validation, patience 2.
const std::vector<std::string>& CommonFlags() {
  static const auto* const kFlags = new std::vector<std::string>{"--batch_size=4096",
                                                                 "--epochs=100",
                                                                 "--optimizer=adam",
                                                                 "--dense_optimizer=adam",
                                                                 "--eps=1e-8",
                                                                 "--initializer=normal:0.1",
                                                                 "--dropout=0.2",
                                                                 "--lr_plateau_patience=1",
                                                                 "--early_stop_patience=2"};
  return *kFlags;
}

FlagPreset Preset(std::string_view name, std::string_view result, std::vector<std::string> flags) {
  flags.insert(flags.end(), CommonFlags().begin(), CommonFlags().end());
  return {std::string(name), std::string(result), std::move(flags)};
}

// BARS uses the rate 0.001 and decays every row at every step. DeepFM and DCN reach the same at
// twice that rate in fewer epochs, and PNN has their settings; the decay here meets only the rows
// of a batch.
std::vector<std::string> FrappeFlags(std::string_view rate, std::string_view table_decay) {
  return {"--embedding_dim=10", "--over_arch_layer_sizes=400-400-400-1",
          absl::StrCat("--learning_rate=", Absl(rate)),
          absl::StrCat("--dense_learning_rate=", Absl(rate)),
          absl::StrCat("--table_weight_decay=", Absl(table_decay))};
}

}  // namespace

std::vector<FlagPreset> PresetsOf(std::string_view program) {
  if (program == "deepfm") {
    return {
        Preset("frappe", "with --data=frappe:DIR: test AUC 0.982 on Frappe_x1",
               FrappeFlags("0.002", "0.01")),
        Preset("ml-1m", "with --data=ml1m:FILE: test AUC 0.900 on MovieLens-1M, genres as a bag",
               {"--embedding_dim=16", "--over_arch_layer_sizes=256-128-1", "--learning_rate=0.002",
                "--dense_learning_rate=0.002", "--table_weight_decay=0.005"})};
  }
  if (program == "dcn" || program == "pnn") {
    return {Preset("frappe", "with --data=frappe:DIR: test AUC 0.982 on Frappe_x1",
                   FrappeFlags("0.002", "0.01"))};
  }
  if (program == "mmoe") {
    return {Preset("census",
                   "with --data=census-tasks:FILE: test AUC 0.945 (income), 0.994 (never married)",
                   {"--embedding_dim=8", "--num_experts=8", "--expert_layer_sizes=64-32",
                    "--over_arch_layer_sizes=16-1", "--learning_rate=0.002",
                    "--dense_learning_rate=0.002", "--table_weight_decay=0.005"}),
            Preset("ml-1m", "with --data=ml1m-tasks:FILE: liked and disliked on MovieLens-1M",
                   {"--embedding_dim=16", "--num_experts=8", "--expert_layer_sizes=128-64",
                    "--over_arch_layer_sizes=32-1", "--learning_rate=0.002",
                    "--dense_learning_rate=0.002", "--table_weight_decay=0.005"})};
  }
  if (program == "dlrm") {
    return {Preset("frappe", "with --data=frappe:DIR: test AUC 0.979 on Frappe_x1",
                   FrappeFlags("0.001", "0.02"))};
  }
  return {};
}

}  // namespace hotrow
