// wide_deep: trains Wide & Deep through tiered embedding tables. `wide_deep --help` says how.

#include "models/programs/presets.h"
#include "models/programs/programs.h"
#include "models/programs/train_program.h"
#include "models/zoo/wide_deep_model.h"

namespace hotrow {
namespace {

constexpr char kSummary[] =
    "wide_deep trains a click model (Wide & Deep) through tiered embedding tables: the hot rows "
    "in\n"
    "a cache, all rows in a store below it, and the same bits as if everything were in one place.\n"
    "A row holds the vector of --embedding_dim numbers that an MLP reads, and the key's weight in\n"
    "the wide part.\n";

constexpr char kExamples[] =
    "  wide_deep\n"
    "      learns synthetic data with all defaults\n"
    "  wide_deep --embedding_dim=10 --over_arch_layer_sizes=400-400-400-1 --dropout=0.2\n"
    "      vectors of 10 numbers, three hidden layers, a fifth of their units left out\n";

}  // namespace

int RunWideDeep(int argc, const char* const* argv) {
  const WideDeepOptions options = {{.over_arch_layer_sizes = {512, 256, 1}}};
  return RunModelProgram<WideDeepOptions>(
      {.name = "wide_deep",
       .summary = kSummary,
       .examples = kExamples,
       .options = options,
       .presets = {FrappePreset(
           "frappe", "test AUC 0.984",
           {kNarrowStart, "--batch_norm=true", "--table_weight_decay=0.1", "--dropout=0.6"})},
       .create = WideDeepModel::Create},
      argc, argv);
}

}  // namespace hotrow
