#ifndef HOTROW_TOOLS_SCORER_FLAGS_H_
#define HOTROW_TOOLS_SCORER_FLAGS_H_

#include <string>

#include "absl/status/status.h"
#include "base/flag_set.h"
#include "models/serving/scorer.h"

namespace hotrow {

// The flags of the commands that open a Scorer: how its rows are kept, and in what memory.
class ScorerFlags {
 public:
  // Adds them to a set; they set fields of `options`, which outlives this.
  ScorerFlags(ScorerOptions* options, FlagSet* flags);

  // Sets the options after parsing. Errors: InvalidArgument.
  absl::Status Finish();

 private:
  ScorerOptions& options_;
  std::string precision_;
};

}  // namespace hotrow

#endif  // HOTROW_TOOLS_SCORER_FLAGS_H_
