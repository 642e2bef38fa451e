#ifndef HOTROW_MODELS_DATA_SHUFFLE_IMPL_H_
#define HOTROW_MODELS_DATA_SHUFFLE_IMPL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "models/data/data_source.h"
#include "models/data/permutation.h"

namespace hotrow {

// The orders of an epoch, functions of (seed, epoch), and what readers check of where one begins.

// The order of the samples of window number `window`, which are mixed with each other.
Permutation WindowOrder(int64_t size, uint64_t seed, int64_t epoch, int64_t window);
// The order of blocks, whose samples then are mixed in windows.
Permutation BlockOrder(int64_t blocks, uint64_t seed, int64_t epoch);

absl::Status CheckBatchSize(int64_t max_batch_size);
absl::Status BeyondEnd(const DataSchema& schema, int64_t first_sample, int64_t size);
// size: of the split; -1: not known.
absl::Status CheckStart(const DataSchema& schema, int64_t epoch, int64_t first_sample,
                        int64_t size);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_SHUFFLE_IMPL_H_
