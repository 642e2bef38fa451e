#include "models/programs/presets.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace hotrow {
namespace {

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

using Flags = std::vector<std::string>;

Flags Join(Flags flags, const Flags& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

// What the presets have in common, after BARS and FuxiCTR: Adam for all parameters, rate x 0.1 on a
// plateau, best epoch by validation, patience 2.
FlagPreset Preset(std::string_view name, std::string_view result, Flags flags) {
  return {std::string(name), std::string(result),
          Join(std::move(flags),
               {"--batch_size=4096", "--epochs=100", "--optimizer=adam", "--dense_optimizer=adam",
                "--eps=1e-8", "--lr_plateau_patience=1", "--early_stop_patience=2"})};
}

// The settings that BARS publishes for Frappe_x1; `flags` are those that differ between models.
FlagPreset Frappe(std::string_view name, std::string_view result, Flags flags) {
  return Preset(
      name, absl::StrCat("with --data=frappe:DIR: ", Absl(result), " on Frappe_x1"),
      Join({"--embedding_dim=10", "--over_arch_layer_sizes=400-400-400-1", "--learning_rate=0.001",
            "--dense_learning_rate=0.001", "--table_weight_decay_mode=table"},
           flags));
}

// For smaller models; the decay meets the rows of a batch only.
Flags Small(Flags flags) {
  return Join(std::move(flags),
              {"--learning_rate=0.002", "--dense_learning_rate=0.002", "--table_weight_decay=0.005",
               "--initializer=normal:0.1", "--dropout=0.2"});
}

constexpr char kNarrowStart[] = "--initializer=normal:0.0001";

}  // namespace

std::vector<FlagPreset> PresetsOf(std::string_view program) {
  if (program == "deepfm") {
    return {
        Frappe("frappe", "test AUC 0.983",
               {kNarrowStart, "--batch_norm=true", "--table_weight_decay=0.05", "--dropout=0.2"}),
        Preset("ml-1m", "with --data=ml1m:FILE: test AUC 0.906 on MovieLens-1M, genres as a bag",
               {"--embedding_dim=16", "--over_arch_layer_sizes=256-128-1", "--learning_rate=0.001",
                "--dense_learning_rate=0.001", "--table_weight_decay_mode=table", kNarrowStart,
                "--batch_norm=true", "--table_weight_decay=0.01", "--dropout=0.2"})};
  }
  if (program == "dcn") {
    return {Frappe("frappe", "test AUC 0.984",
                   {kNarrowStart, "--batch_norm=true", "--table_weight_decay=0.05", "--dropout=0.4",
                    "--dcn_structure=parallel", "--dcn_num_layers=4"})};
  }
  if (program == "xdeepfm") {
    return {Frappe("frappe", "test AUC 0.984",
                   {kNarrowStart, "--batch_norm=true", "--table_weight_decay=0.1", "--dropout=0.2",
                    "--cin_layer_sizes=64"})};
  }
  if (program == "pnn") {
    return {
        Frappe("frappe", "test AUC 0.984",
               {kNarrowStart, "--batch_norm=true", "--table_weight_decay=0.05", "--dropout=0.3"})};
  }
  if (program == "wide_deep") {
    return {
        Frappe("frappe", "test AUC 0.984",
               {kNarrowStart, "--batch_norm=true", "--table_weight_decay=0.1", "--dropout=0.6"})};
  }
  if (program == "mmoe") {
    return {Preset("census",
                   "with --data=census-tasks:FILE: test AUC 0.945 (income), 0.994 (never married)",
                   Small({"--embedding_dim=8", "--num_experts=8", "--expert_layer_sizes=64-32",
                          "--over_arch_layer_sizes=16-1"})),
            Preset("ml-1m", "with --data=ml1m-tasks:FILE: liked and disliked on MovieLens-1M",
                   Small({"--embedding_dim=16", "--num_experts=8", "--expert_layer_sizes=128-64",
                          "--over_arch_layer_sizes=32-1"}))};
  }
  if (program == "dlrm") {
    // Products of vectors near zero have gradients near zero, so tables start wider. The decay of
    // the others and batch norm make products learn less (0.964).
    return {Frappe("frappe", "test AUC 0.981",
                   {"--initializer=normal:0.1", "--table_weight_decay=0.03", "--dropout=0.2",
                    "--learning_rate=0.002", "--dense_learning_rate=0.002"}),
            Frappe("frappe-cat", "test AUC 0.984",
                   {kNarrowStart, "--batch_norm=true", "--table_weight_decay=0.1", "--dropout=0.4",
                    "--interaction=cat"})};
  }
  return {};
}

}  // namespace hotrow
