// din: trains a Deep Interest Network through tiered embedding tables. `din --help` says how.

#include "models/programs/programs.h"
#include "models/programs/train_program.h"
#include "models/zoo/din_model.h"

namespace hotrow {
namespace {

constexpr char kSummary[] =
    "din trains a click model (DIN) through tiered embedding tables: the hot rows in a cache, all\n"
    "rows in a store below it, and the same bits as if everything were in one place. Of a feature\n"
    "with many values, such as what a user watched, those count that matter for the target.\n";

constexpr char kExamples[] =
    "  din --data=table:watched.json --history=watched:movie_id\n"
    "      a column of movies that a user has watched, looked at for the movie to be shown\n"
    "  din --data=synthetic:tables=3,hotness=1-8 --history=cat_0:cat_1\n"
    "      generated data\n";

}  // namespace

int RunDin(int argc, const char* const* argv) {
  DinOptions options = {{.over_arch_layer_sizes = {256, 128, 1}}};
  options.attention_layer_sizes = {64, 16};
  return RunModelProgram<DinOptions>({.name = "din",
                                      .summary = kSummary,
                                      .examples = kExamples,
                                      .options = options,
                                      .add_flags = AddDinFlags,
                                      .create = DinModel::Create},
                                     argc, argv);
}

}  // namespace hotrow
