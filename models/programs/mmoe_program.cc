// mmoe: trains a multi-gate mixture of experts through tiered embedding tables. `mmoe --help` says
// how.

#include <string>
#include <vector>

#include "models/programs/presets.h"
#include "models/programs/programs.h"
#include "models/programs/train_program.h"
#include "models/zoo/mmoe_model.h"

namespace hotrow {
namespace {

constexpr char kSummary[] =
    "mmoe trains a click model of several tasks (MMoE) through tiered embedding tables: the hot\n"
    "rows in a cache, all rows in a store below it, and the same bits as if everything were in "
    "one\n"
    "place. Each label of the data is a task, with a tower of its own over experts that all "
    "share.\n";

constexpr char kExamples[] =
    "  mmoe --data=table:two_labels.json\n"
    "      one logit for each column that the schema gives the role \"label\"\n"
    "  mmoe --data=census-tasks:census-income.gz --preset=census\n"
    "      income and marital status, the two tasks of the paper\n"
    "  mmoe --data=census-tasks:census-income.gz --preset=census --num_experts=1\n"
    "      the same with a shared bottom, for comparison\n";

// Presets of models smaller than the others'; the decay meets the rows of a batch only.
std::vector<std::string> SmallFlags(std::vector<std::string> flags) {
  flags.insert(flags.end(),
               {"--learning_rate=0.002", "--dense_learning_rate=0.002",
                "--table_weight_decay=0.005", "--initializer=normal:0.1", "--dropout=0.2"});
  return flags;
}

}  // namespace

int RunMmoe(int argc, const char* const* argv) {
  MmoeOptions options = {{.over_arch_layer_sizes = {64, 1}}};
  options.expert_layer_sizes = {256, 128};
  return RunModelProgram<MmoeOptions>(
      {.name = "mmoe",
       .summary = kSummary,
       .examples = kExamples,
       .options = options,
       .add_flags = AddMmoeFlags,
       .over_arch_help = "layer outputs of each task's tower; the last one is 1, the logit",
       .presets =
           {MakePreset(
                "census",
                "with --data=census-tasks:FILE: test AUC 0.945 (income), 0.994 (never married)",
                SmallFlags({"--embedding_dim=8", "--num_experts=8", "--expert_layer_sizes=64-32",
                            "--over_arch_layer_sizes=16-1"})),
            MakePreset(
                "ml-1m", "with --data=ml1m-tasks:FILE: liked and disliked on MovieLens-1M",
                SmallFlags({"--embedding_dim=16", "--num_experts=8", "--expert_layer_sizes=128-64",
                            "--over_arch_layer_sizes=32-1"}))},
       .create = MmoeModel::Create},
      argc, argv);
}

}  // namespace hotrow
