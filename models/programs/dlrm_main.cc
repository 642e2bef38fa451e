// dlrm: trains a DLRM through tiered embedding tables. `dlrm --help` says how.

#include <memory>

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

void AddFlags(DlrmOptions* options, FlagSet* set) {
  set->Add("dense_arch_layer_sizes", SizesFlag(&options->dense_arch_layer_sizes),
           "layer outputs of the bottom MLP, which reads the dense features; the last one is the "
           "embedding dim");
  set->DescribeDefault("512-256-64-<embedding_dim>");
  set->Add("over_arch_layer_sizes", SizesFlag(&options->over_arch_layer_sizes),
           "layer outputs of the top MLP; the last one is 1, the logit");
  set->Add("dropout", RealFlag(&options->dropout, 0, 0.99),
           "share of hidden units that a step leaves out");
}

}  // namespace
}  // namespace hotrow

int main(int argc, char** argv) {
  using namespace hotrow;  // NOLINT(google-build-using-namespace)
  // Without dense_arch_layer_sizes: 512-256-64-<embedding_dim>.
  DlrmOptions options = {.over_arch_layer_sizes = {512, 256, 1}};
  return RunTrainProgram(
      {.name = "dlrm",
       .summary = kSummary,
       .examples = kExamples,
       .add_model_flags = [&options](FlagSet* set) { AddFlags(&options, set); },
       .resolve_model_flags =
           [&options](const TrainerFlags& flags) {
             if (!options.dense_arch_layer_sizes.empty()) return;
             options.dense_arch_layer_sizes = {512, 256, 64, flags.options.embedding_dim};
           },
       .make_model = [&options](
                         const TrainerFlags& flags, const DataSchema& schema,
                         const ExecContext& ctx) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
         return DlrmModel::Create(CompleteModelOptions(options, flags, schema), ctx);
       }},
      argc, argv);
}
