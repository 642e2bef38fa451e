// dlrm: trains a DLRM through tiered embedding tables. `dlrm --help` says how.

#include "models/programs/presets.h"
#include "models/programs/programs.h"
#include "models/programs/train_program.h"
#include "models/zoo/dlrm_model.h"

namespace hotrow {
namespace {

constexpr char kSummary[] =
    "dlrm trains a click model (DLRM) through tiered embedding tables: the hot rows in a cache,\n"
    "all rows in a store below it, and the same bits as if everything were in one place.\n";

constexpr char kExamples[] =
    "  dlrm\n"
    "      learns synthetic data with all defaults\n"
    "  dlrm --data=synthetic:tables=8,rows=1000000,samples=2000000 --cache_bytes=32MiB\n"
    "      8 tables of a million rows through a cache of 32 MiB\n"
    "  dlrm --cache_bytes=min --report=run.json --trace=run.trace.json\n"
    "      the smallest cache that works; figures and hashes to run.json, a timeline beside it\n";

// What --dense_arch_layer_sizes leaves to us.
void Resolve(DlrmOptions* options, const ModelSettings& settings) {
  if (!options->dense_arch_layer_sizes.empty()) return;
  options->dense_arch_layer_sizes = {512, 256, 64, settings.embedding_dim};
}

}  // namespace

int RunDlrm(int argc, const char* const* argv) {
  const DlrmOptions options = {{.over_arch_layer_sizes = {512, 256, 1}}};
  return RunModelProgram<DlrmOptions>(
      {.name = "dlrm",
       .summary = kSummary,
       .examples = kExamples,
       .options = options,
       .add_flags = AddDlrmFlags,
       .dense_arch_help = "layer outputs of the bottom MLP, which reads the dense features; the "
                          "last one is the embedding dim",
       .dense_arch_default = "512-256-64-<embedding_dim>",
       .over_arch_help = "layer outputs of the top MLP; the last one is 1, the logit",
       .resolve = Resolve,
       // Products of vectors near zero have gradients near zero, so tables start wider. The decay
       // of the others and batch norm make products learn less (0.964).
       .presets = {FrappePreset(
                       "frappe", "test AUC 0.981",
                       {"--initializer=normal:0.1", "--table_weight_decay=0.03", "--dropout=0.2",
                        "--learning_rate=0.002", "--dense_learning_rate=0.002"}),
                   FrappePreset("frappe-cat", "test AUC 0.984",
                                {kNarrowStart, "--batch_norm=true", "--table_weight_decay=0.1",
                                 "--dropout=0.4", "--interaction=cat"})},
       .create = DlrmModel::Create},
      argc, argv);
}

}  // namespace hotrow
