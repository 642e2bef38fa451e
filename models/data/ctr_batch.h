#ifndef HOTROW_MODELS_DATA_CTR_BATCH_H_
#define HOTROW_MODELS_DATA_CTR_BATCH_H_

#include <cstdint>
#include <vector>

#include "base/device.h"
#include "base/shared_allocator.h"
#include "embedding/jagged_batch.h"

namespace hotrow {

// One batch of click data. Dimensions: B samples, T labels (tasks), F categorical features, I dense
// features, N lookups. The vectors keep their capacity from batch to batch; resize() writes nothing
// to new elements.
struct CtrBatch {
  int64_t batch_size = 0;         // B
  SharedVector<float> dense;      // [B, I] row-major
  int32_t num_labels = 1;         // T
  SharedVector<float> labels;     // [B, T] row-major
  SharedVector<uint64_t> values;  // [N] feature-major
  SharedVector<int64_t> offsets;  // [F*B + 1]
  SharedVector<float> weights;    // [N] or empty
  std::vector<float>
      true_probability;  // [B], where the data knows it (generators); otherwise empty
  // [B], seconds since 1970, where the data have times; otherwise empty. Packed samples that are
  // shuffled come without.
  std::vector<int64_t> times;

  // An empty one, which copies to that device will read where it lies.
  static CtrBatch For(Device device) {
    const SharedAllocator<float> memory(device);
    return {.dense = SharedVector<float>(memory),
            .labels = SharedVector<float>(memory),
            .values = SharedVector<uint64_t>(memory),
            .offsets = SharedVector<int64_t>(memory),
            .weights = SharedVector<float>(memory)};
  }
  JaggedBatch sparse() const { return {batch_size, values, offsets, weights}; }
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_CTR_BATCH_H_
