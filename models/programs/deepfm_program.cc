// deepfm: trains a DeepFM through tiered embedding tables. `deepfm --help` says how.

#include "models/programs/presets.h"
#include "models/programs/programs.h"
#include "models/programs/train_program.h"
#include "models/zoo/deepfm_model.h"

namespace hotrow {
namespace {

constexpr char kSummary[] =
    "deepfm trains a click model (DeepFM) through tiered embedding tables: the hot rows in a "
    "cache,\n"
    "all rows in a store below it, and the same bits as if everything were in one place. A row "
    "holds\n"
    "the vector of --embedding_dim numbers that a factorization machine and an MLP share, and the\n"
    "key's first-order weight.\n";

constexpr char kExamples[] =
    "  deepfm\n"
    "      learns synthetic data with all defaults\n"
    "  deepfm --embedding_dim=10 --over_arch_layer_sizes=400-400-400-1 --dropout=0.2\n"
    "      vectors of 10 numbers, three hidden layers, a fifth of their units left out\n"
    "  deepfm --cache_bytes=min --report=run.json --trace=run.trace.json\n"
    "      the smallest cache that works; figures and hashes to run.json, a timeline beside it\n";

}  // namespace

int RunDeepFm(int argc, const char* const* argv) {
  const DeepFmOptions options = {{.over_arch_layer_sizes = {512, 256, 1}}};
  return RunModelProgram<DeepFmOptions>(
      {.name = "deepfm",
       .summary = kSummary,
       .examples = kExamples,
       .options = options,
       .presets =
           {FrappePreset(
                "frappe", "test AUC 0.983",
                {kNarrowStart, "--batch_norm=true", "--table_weight_decay=0.05", "--dropout=0.2"}),
            MakePreset(
                "ml-1m", "with --data=ml1m:FILE: test AUC 0.906 on MovieLens-1M, genres as a bag",
                {"--embedding_dim=16", "--over_arch_layer_sizes=256-128-1", "--learning_rate=0.001",
                 "--dense_learning_rate=0.001", "--table_weight_decay_mode=table", kNarrowStart,
                 "--batch_norm=true", "--table_weight_decay=0.01", "--dropout=0.2"})},
       .create = DeepFmModel::Create},
      argc, argv);
}

}  // namespace hotrow
