#ifndef HOTROW_MODELS_SERVING_SCORER_SOURCE_H_
#define HOTROW_MODELS_SERVING_SCORER_SOURCE_H_

#include <functional>
#include <memory>

#include "models/serving/scorer.h"

namespace hotrow {

// Where a server takes the Scorer of a batch: the one that is current at this moment, never null.
// A batch holds what it got until it is scored, so one that is replaced goes when the last batch
// has let it go. Any thread calls it, for each batch, so it must not wait.
using ScorerSource = std::function<std::shared_ptr<const Scorer>()>;

}  // namespace hotrow

#endif  // HOTROW_MODELS_SERVING_SCORER_SOURCE_H_
