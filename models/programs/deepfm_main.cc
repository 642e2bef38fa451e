// deepfm: trains a DeepFM through tiered embedding tables. `deepfm --help` says how.

#include <cstdint>
#include <memory>
#include <vector>

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

struct DeepFmFlags {
  std::vector<int32_t> over_arch_layer_sizes = {512, 256, 1};
  double dropout = 0;
};

void AddFlags(DeepFmFlags* f, FlagSet* set) {
  set->AddSizes("over_arch_layer_sizes", &f->over_arch_layer_sizes,
                "layer outputs of the MLP over embeddings and dense features; the last one is 1");
  set->AddReal("dropout", 0, 0.99, &f->dropout, "share of hidden units that a step leaves out");
}

DeepFmOptions Options(const DeepFmFlags& f, const TrainerFlags& flags, const DataSchema& schema) {
  return {.num_dense = schema.num_dense,
          .num_sparse = static_cast<int32_t>(schema.features.size()),
          .embedding_dim = flags.options.embedding_dim,
          .over_arch_layer_sizes = f.over_arch_layer_sizes,
          .dropout = static_cast<float>(f.dropout),
          .seed = flags.options.seed,
          .max_batch_size = flags.options.batch_size};
}

}  // namespace
}  // namespace hotrow

int main(int argc, char** argv) {
  using namespace hotrow;  // NOLINT(google-build-using-namespace)
  DeepFmFlags f;
  return RunTrainProgram(
      {.name = "deepfm",
       .summary = kSummary,
       .examples = kExamples,
       .add_model_flags = [&f](FlagSet* set) { AddFlags(&f, set); },
       .table_columns =
           [](const TrainerFlags& flags) {
             return DeepFmOptions::TableColumns(flags.options.embedding_dim);
           },
       .make_model = [&f](const TrainerFlags& flags, const DataSchema& schema,
                          const ExecContext&) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
         return DeepFmModel::Create(Options(f, flags, schema));
       }},
      argc, argv);
}
