// deepfm: trains a DeepFM through tiered embedding tables. `deepfm --help` says how.

#include "models/programs/model_program.h"
#include "models/programs/programs.h"
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
  return RunModelProgram<DeepFmOptions>({.name = "deepfm",
                                         .summary = kSummary,
                                         .examples = kExamples,
                                         .options = options,
                                         .create = DeepFmModel::Create},
                                        argc, argv);
}

}  // namespace hotrow
