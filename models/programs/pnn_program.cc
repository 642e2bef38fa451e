// pnn: trains a PNN through tiered embedding tables. `pnn --help` says how.

#include "models/programs/presets.h"
#include "models/programs/programs.h"
#include "models/programs/train_program.h"
#include "models/zoo/pnn_model.h"

namespace hotrow {
namespace {

constexpr char kSummary[] =
    "pnn trains a click model (product-based neural network) through tiered embedding tables: the\n"
    "hot rows in a cache, all rows in a store below it, and the same bits as if everything were "
    "in\n"
    "one place.\n";

constexpr char kExamples[] =
    "  pnn\n"
    "      learns synthetic data with all defaults: dot products of all pairs of vectors\n"
    "  pnn --pnn_products=both --over_arch_layer_sizes=400-400-1\n"
    "      and the outer product of their sum\n";

}  // namespace

int RunPnn(int argc, const char* const* argv) {
  const PnnOptions options = {{.over_arch_layer_sizes = {512, 256, 1}}};
  return RunModelProgram<PnnOptions>(
      {.name = "pnn",
       .summary = kSummary,
       .examples = kExamples,
       .options = options,
       .add_flags = AddPnnFlags,
       .presets = {FrappePreset(
           "frappe", "test AUC 0.984",
           {kNarrowStart, "--batch_norm=true", "--table_weight_decay=0.05", "--dropout=0.3"})},
       .create = PnnModel::Create},
      argc, argv);
}

}  // namespace hotrow
