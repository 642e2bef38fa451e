// hstu: trains a model of Hierarchical Sequential Transduction Units through tiered embedding
// tables. `hstu --help` says how.

#include "models/programs/programs.h"
#include "models/programs/train_program.h"
#include "models/zoo/hstu_model.h"

namespace hotrow {
namespace {

constexpr char kSummary[] =
    "hstu trains a click model (HSTU) through tiered embedding tables: the hot rows in a cache, "
    "all\n"
    "rows in a store below it, and the same bits as if everything were in one place. What a user\n"
    "did and what is to be shown go through blocks of attention as one sequence. On the CPU.\n";

constexpr char kExamples[] =
    "  hstu --data=table:watched.json --history=watched:movie_id,watched_genre:genre\n"
    "      the movies that a user has watched and the genre of each, for the movie to be shown\n"
    "  hstu --data=synthetic:tables=3,hotness=1-8 --history=cat_0:cat_1 --num_blocks=4\n"
    "      generated data\n";

}  // namespace

int RunHstu(int argc, const char* const* argv) {
  BstOptions options = {{.over_arch_layer_sizes = {256, 128, 1}}};
  options.num_blocks = 2;
  return RunModelProgram<BstOptions>({.name = "hstu",
                                      .summary = kSummary,
                                      .examples = kExamples,
                                      .options = options,
                                      .add_flags = AddBstFlags,
                                      .create = HstuModel::Create},
                                     argc, argv);
}

}  // namespace hotrow
