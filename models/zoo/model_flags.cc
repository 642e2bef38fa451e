#include "models/zoo/model_flags.h"
#include "models/zoo/dcn_model.h"
#include "models/zoo/din_model.h"
#include "models/zoo/dlrm_model.h"
#include "models/zoo/mmoe_model.h"
#include "models/zoo/pnn_model.h"
#include "models/zoo/xdeepfm_model.h"

namespace hotrow {

void AddDcnFlags(DcnOptions* options, FlagSet* set) {
  set->Add("dcn_version", IntFlag(&options->version, 1, 2),
           "of the cross layers: 1 has a weight vector in each, 2 a matrix");
  set->Add("dcn_num_layers", IntFlag(&options->num_cross_layers, 1, 64), "cross layers");
  set->Add("dcn_low_rank_dim", IntFlag(&options->low_rank_dim, 0, 1 << 20),
           "rank of the matrices of version 2; 0: full matrices");
  set->Add(
      "dcn_num_experts", IntFlag(&options->num_experts, 1, 1024),
      "experts of each cross layer, which a gate mixes, each of rank --dcn_low_rank_dim; 1: no "
      "gate");
  set->Add("dcn_structure",
           WordFlag<DcnStructure>(
               "WORD", &options->structure,
               {{"stacked", DcnStructure::kStacked}, {"parallel", DcnStructure::kParallel}}),
           "where the MLP stands: stacked (on the cross layers) or parallel (beside them)");
}

void AddDinFlags(DinOptions* options, FlagSet* set) {
  set->Add("history", StringFlag("HISTORY:TARGET,...", &options->history),
           "features with many values, and the feature that each is looked at for");
  set->Add("attention_layer_sizes", SizesFlag(&options->attention_layer_sizes),
           "hidden layers of the MLP that finds how relevant a value is");
}

void AddDlrmFlags(DlrmOptions* options, FlagSet* set) {
  set->Add(
      "interaction",
      WordFlag<DlrmInteraction>("WORD", &options->interaction,
                                {{"dot", DlrmInteraction::kDot}, {"cat", DlrmInteraction::kCat}}),
      "what the top MLP reads: dot (products of all pairs of vectors) or cat (the vectors end "
      "to end)");
}

void AddMmoeFlags(MmoeOptions* options, FlagSet* set) {
  set->Add("num_experts", IntFlag(&options->num_experts, 1, 1024),
           "MLPs that all tasks share, mixed for each task by a gate; 1: a shared bottom");
  set->Add("expert_layer_sizes", SizesFlag(&options->expert_layer_sizes),
           "layer outputs of each expert");
}

void AddPnnFlags(PnnOptions* options, FlagSet* set) {
  set->Add("pnn_products",
           WordFlag<PnnProducts>("WORD", &options->products,
                                 {{"inner", PnnProducts::kInner},
                                  {"outer", PnnProducts::kOuter},
                                  {"both", PnnProducts::kBoth}}),
           "what the MLP reads beside the vectors: inner (dot products of all pairs), outer (the "
           "outer product of their sum) or both");
}

void AddXDeepFmFlags(XDeepFmOptions* options, FlagSet* set) {
  set->Add("cin_layer_sizes", SizesFlag(&options->cin_layer_sizes),
           "rows that each layer of the CIN makes");
}

}  // namespace hotrow
