#ifndef HOTROW_MODELS_DATA_SLICE_BATCH_H_
#define HOTROW_MODELS_DATA_SLICE_BATCH_H_

#include <cstdint>

#include "models/data/ctr_batch.h"

namespace hotrow {

// First sample of a rank's slice of a batch of `batch_size` samples: batch_size * rank / world_size
// rounded down, without overflow. Rank r holds [SliceBegin(B, r, N), SliceBegin(B, r + 1, N)),
// which are floor(B / N) or ceil(B / N) samples, so some ranks hold none where B < N.
constexpr int64_t SliceBegin(int64_t batch_size, int64_t rank, int64_t world_size) {
  return batch_size / world_size * rank + batch_size % world_size * rank / world_size;
}

// Copies the samples [begin, end) of a batch of `num_features` categorical features into `out`,
// with all their fields, in the same layout. 0 <= begin <= end <= whole.batch_size. The vectors of
// `out` keep their capacity. out must not be &whole.
void SliceBatch(const CtrBatch& whole, int64_t num_features, int64_t begin, int64_t end,
                CtrBatch* out);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_SLICE_BATCH_H_
