// xdeepfm: trains xDeepFM through tiered embedding tables. `xdeepfm --help` says how.

#include "models/programs/presets.h"
#include "models/programs/programs.h"
#include "models/programs/train_program.h"
#include "models/zoo/xdeepfm_model.h"

namespace hotrow {
namespace {

constexpr char kSummary[] =
    "xdeepfm trains a click model (xDeepFM) through tiered embedding tables: the hot rows in a\n"
    "cache, all rows in a store below it, and the same bits as if everything were in one place.\n"
    "A row holds the vector of --embedding_dim numbers that a compressed interaction network "
    "(CIN)\n"
    "and an MLP share, and the key's first-order weight.\n";

constexpr char kExamples[] =
    "  xdeepfm\n"
    "      learns synthetic data with all defaults\n"
    "  xdeepfm --cin_layer_sizes=100-100 --over_arch_layer_sizes=400-400-1\n"
    "      products of up to three vectors, a hundred rows of each order\n";

}  // namespace

int RunXDeepFm(int argc, const char* const* argv) {
  XDeepFmOptions options = {{.over_arch_layer_sizes = {512, 256, 1}}};
  options.cin_layer_sizes = {16, 16, 16};
  return RunModelProgram<XDeepFmOptions>(
      {.name = "xdeepfm",
       .summary = kSummary,
       .examples = kExamples,
       .options = options,
       .add_flags = AddXDeepFmFlags,
       .presets = {FrappePreset("frappe", "test AUC 0.984",
                                {kNarrowStart, "--batch_norm=true", "--table_weight_decay=0.1",
                                 "--dropout=0.2", "--cin_layer_sizes=64"})},
       .create = XDeepFmModel::Create},
      argc, argv);
}

}  // namespace hotrow
