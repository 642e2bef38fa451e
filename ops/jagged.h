#ifndef HOTROW_OPS_JAGGED_H_
#define HOTROW_OPS_JAGGED_H_

#include <cstdint>

#include "ops/pooling.h"
#include "ops/rows/weights_precision.h"

namespace hotrow {

// Maps one feature's lookups to output. Bag (f, b) of a batch has the lookups
// [offsets[f*B + b], offsets[f*B + b + 1]).
struct JaggedFeature {
  int32_t dim = 0;  // D > 0
  Pooling pooling = Pooling::kSum;
  // The output row of bag b (pooled) or of the feature's i-th lookup (kNone) starts at data + row *
  // stride. In a lookup `data` is written, in a gradient it is read.
  float* data = nullptr;
  int64_t stride = 0;  // in floats, >= dim
  // Storage type of the weights that a lookup reads. Unused in a gradient.
  WeightsPrecision precision = WeightsPrecision::kFp32;
};

}  // namespace hotrow

#endif  // HOTROW_OPS_JAGGED_H_
