// dlrm: trains a DLRM through tiered embedding tables. `dlrm --help` says how.

#include <cstdint>
#include <memory>
#include <vector>

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

struct DlrmFlags {
  std::vector<int32_t> dense_arch_layer_sizes;  // empty: 512-256-64-<embedding_dim>
  std::vector<int32_t> over_arch_layer_sizes = {512, 256, 1};
  double dropout = 0;
};

void AddFlags(DlrmFlags* f, FlagSet* set) {
  set->AddSizes("dense_arch_layer_sizes", &f->dense_arch_layer_sizes,
                "layer outputs of the bottom MLP, which reads the dense features; the last one is "
                "the embedding dim");
  set->DescribeDefault("512-256-64-<embedding_dim>");
  set->AddSizes("over_arch_layer_sizes", &f->over_arch_layer_sizes,
                "layer outputs of the top MLP; the last one is 1, the logit");
  set->AddReal("dropout", 0, 0.99, &f->dropout, "share of hidden units that a step leaves out");
}

DlrmOptions Options(const DlrmFlags& f, const TrainerFlags& flags, const DataSchema& schema) {
  return {.num_dense = schema.num_dense,
          .num_sparse = static_cast<int32_t>(schema.features.size()),
          .embedding_dim = flags.options.embedding_dim,
          .dense_arch_layer_sizes = f.dense_arch_layer_sizes,
          .over_arch_layer_sizes = f.over_arch_layer_sizes,
          .dropout = static_cast<float>(f.dropout),
          .seed = flags.options.seed,
          .max_batch_size = flags.options.batch_size};
}

}  // namespace
}  // namespace hotrow

int main(int argc, char** argv) {
  using namespace hotrow;  // NOLINT(google-build-using-namespace)
  DlrmFlags f;
  return RunTrainProgram(
      {.name = "dlrm",
       .summary = kSummary,
       .examples = kExamples,
       .add_model_flags = [&f](FlagSet* set) { AddFlags(&f, set); },
       .resolve_model_flags =
           [&f](const TrainerFlags& flags) {
             if (!f.dense_arch_layer_sizes.empty()) return;
             f.dense_arch_layer_sizes = {512, 256, 64, flags.options.embedding_dim};
           },
       .make_model = [&f](const TrainerFlags& flags, const DataSchema& schema,
                          const ExecContext& ctx) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
         return DlrmModel::Create(Options(f, flags, schema), ctx);
       }},
      argc, argv);
}
