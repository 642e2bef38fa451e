// dcn: trains a Deep & Cross Network through tiered embedding tables. `dcn --help` says how.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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
    "  dcn --dcn_version=1 --cache_bytes=min --report=run.json\n"
    "      version 1 through the smallest cache that works; figures and hashes to run.json\n";

struct DcnFlags {
  int64_t version = 2;
  int64_t num_layers = 3;
  int64_t low_rank_dim = 0;
  std::string structure = "stacked";
  std::vector<int32_t> dense_arch_layer_sizes;
  std::vector<int32_t> over_arch_layer_sizes = {512, 256, 1};
  double dropout = 0;
};

void AddFlags(DcnFlags* f, FlagSet* set) {
  set->AddInt("dcn_version", 1, 2, &f->version,
              "of the cross layers: 1 has a weight vector in each, 2 a matrix");
  set->AddInt("dcn_num_layers", 1, 64, &f->num_layers, "cross layers");
  set->AddInt("dcn_low_rank_dim", 0, 1 << 20, &f->low_rank_dim,
              "rank of the matrices of version 2; 0: full matrices");
  set->AddString("dcn_structure", "WORD", &f->structure,
                 "where the MLP stands: stacked (on the cross layers) or parallel (beside them)");
  set->AddSizes("dense_arch_layer_sizes", &f->dense_arch_layer_sizes,
                "layer outputs of a bottom MLP, which reads the dense features");
  set->DescribeDefault("none: they are crossed as they are");
  set->AddSizes("over_arch_layer_sizes", &f->over_arch_layer_sizes,
                "layer outputs of the MLP; the last one is 1, the logit");
  set->AddReal("dropout", 0, 0.99, &f->dropout, "share of hidden units that a step leaves out");
}

absl::StatusOr<std::unique_ptr<CtrModel>> MakeModel(const DcnFlags& f, const TrainerFlags& flags,
                                                    const DataSchema& schema) {
  if (f.structure != "stacked" && f.structure != "parallel") {
    return absl::InvalidArgumentError(
        absl::StrCat("--dcn_structure=", f.structure, ": takes stacked or parallel"));
  }
  return DcnModel::Create(
      {.num_dense = schema.num_dense,
       .num_sparse = static_cast<int32_t>(schema.features.size()),
       .embedding_dim = flags.options.embedding_dim,
       .version = static_cast<int32_t>(f.version),
       .num_cross_layers = static_cast<int32_t>(f.num_layers),
       .low_rank_dim = static_cast<int32_t>(f.low_rank_dim),
       .structure = f.structure == "stacked" ? DcnStructure::kStacked : DcnStructure::kParallel,
       .dense_arch_layer_sizes = f.dense_arch_layer_sizes,
       .over_arch_layer_sizes = f.over_arch_layer_sizes,
       .dropout = static_cast<float>(f.dropout),
       .seed = flags.options.seed,
       .max_batch_size = flags.options.batch_size});
}

}  // namespace
}  // namespace hotrow

int main(int argc, char** argv) {
  using namespace hotrow;  // NOLINT(google-build-using-namespace)
  DcnFlags f;
  return RunTrainProgram(
      {.name = "dcn",
       .summary = kSummary,
       .examples = kExamples,
       .add_model_flags = [&f](FlagSet* set) { AddFlags(&f, set); },
       .make_model = [&f](const TrainerFlags& flags, const DataSchema& schema,
                          const ExecContext&) { return MakeModel(f, flags, schema); }},
      argc, argv);
}
