// dcn: trains a Deep & Cross Network through tiered embedding tables. `dcn --help` says how.

#include "models/programs/presets.h"
#include "models/programs/programs.h"
#include "models/programs/train_program.h"
#include "models/zoo/dcn_model.h"

namespace hotrow {
namespace {

constexpr char kSummary[] =
    "dcn trains a click model (Deep & Cross Network, version 1 or 2) through tiered embedding\n"
    "tables: the hot rows in a cache, all rows in a store below it, and the same bits as if\n"
    "everything were in one place.\n";

constexpr char kExamples[] =
    "  dcn\n"
    "      learns synthetic data with all defaults: version 2, stacked, full matrices\n"
    "  dcn --dcn_num_layers=2 --dcn_low_rank_dim=64 --dcn_structure=parallel\n"
    "      two cross layers of rank 64 beside the MLP\n"
    "  dcn --dcn_low_rank_dim=32 --dcn_num_experts=4\n"
    "      cross layers that mix four experts of rank 32 each\n"
    "  dcn --dcn_version=1 --cache_bytes=min --report=run.json\n"
    "      version 1 through the smallest cache that works; figures and hashes to run.json\n";

}  // namespace

int RunDcn(int argc, const char* const* argv) {
  const DcnOptions options = {{.over_arch_layer_sizes = {512, 256, 1}}};
  return RunModelProgram<DcnOptions>(
      {.name = "dcn",
       .summary = kSummary,
       .examples = kExamples,
       .options = options,
       .add_flags = AddDcnFlags,
       .dense_arch_help = "layer outputs of a bottom MLP, which reads the dense features",
       .dense_arch_default = "none: they are crossed as they are",
       .over_arch_help = "layer outputs of the MLP; the last one is 1, the logit",
       .presets = {FrappePreset(
           "frappe", "test AUC 0.984",
           {kNarrowStart, "--batch_norm=true", "--table_weight_decay=0.05", "--dropout=0.4",
            "--dcn_structure=parallel", "--dcn_num_layers=4"})},
       .create = DcnModel::Create},
      argc, argv);
}

}  // namespace hotrow
