// bst: trains a Behavior Sequence Transformer through tiered embedding tables. `bst --help` says
// how.

#include "models/programs/programs.h"
#include "models/programs/train_program.h"
#include "models/zoo/bst_model.h"

namespace hotrow {
namespace {

constexpr char kSummary[] =
    "bst trains a click model (BST) through tiered embedding tables: the hot rows in a cache, all\n"
    "rows in a store below it, and the same bits as if everything were in one place. What a user\n"
    "did and what is to be shown go through a transformer as one sequence. On the CPU.\n";

constexpr char kExamples[] =
    "  bst --data=table:watched.json --history=watched:movie_id,watched_genre:genre\n"
    "      the movies that a user has watched and the genre of each, for the movie to be shown\n"
    "  bst --data=synthetic:tables=3,hotness=1-8 --history=cat_0:cat_1\n"
    "      generated data\n";

}  // namespace

int RunBst(int argc, const char* const* argv) {
  const BstOptions options = {{.over_arch_layer_sizes = {256, 128, 1}}};
  return RunModelProgram<BstOptions>({.name = "bst",
                                      .summary = kSummary,
                                      .examples = kExamples,
                                      .options = options,
                                      .add_flags = AddBstFlags,
                                      .create = BstModel::Create},
                                     argc, argv);
}

}  // namespace hotrow
