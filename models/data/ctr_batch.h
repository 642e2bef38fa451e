#ifndef HOTROW_MODELS_DATA_CTR_BATCH_H_
#define HOTROW_MODELS_DATA_CTR_BATCH_H_

#include <cstdint>
#include <vector>

#include "embedding/jagged_batch.h"

namespace hotrow {

// One batch of click data. Dimensions: B samples, T labels (tasks), F categorical features, I dense
// features, N lookups. The vectors keep their capacity from batch to batch.
struct CtrBatch {
  int64_t batch_size = 0;        // B
  std::vector<float> dense;      // [B, I] row-major
  int32_t num_labels = 1;        // T
  std::vector<float> labels;     // [B, T] row-major
  std::vector<uint64_t> values;  // [N] feature-major
  std::vector<int64_t> offsets;  // [F*B + 1]
  std::vector<float> weights;    // [N] or empty
  std::vector<float>
      true_probability;  // [B], where the data knows it (generators); otherwise empty

  JaggedBatch sparse() const { return {batch_size, values, offsets, weights}; }
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_CTR_BATCH_H_
