#ifndef HOTROW_OPS_LAYERS_DROPOUT_H_
#define HOTROW_OPS_LAYERS_DROPOUT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

namespace hotrow {

inline constexpr uint32_t kMaxDropoutLayers = uint32_t{1} << 28;  // the layer shares a counter word

// On a CUDA device `data` is device memory.
struct DropoutArgs {
  float* data = nullptr;  // [rows, columns] row-major with row stride `stride`, changed in place
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  float rate = 0;  // share that becomes 0, in [0, 1); the rest is divided by 1 - rate
  uint64_t seed = 0;
  uint32_t step = 0;
  // On a CUDA device: null, or where `step` lies in device memory instead, so that a CUDA graph can
  // be launched again for another one.
  const uint32_t* device_step = nullptr;
  uint32_t layer = 0;     // < kMaxDropoutLayers
  int64_t first_row = 0;  // >= 0: number of row 0 in the batch of which `data` is a slice

  absl::Status Validate() const;
};

// Element e = (first_row + row) * columns + column is kept when word e % 4 of RandomBlock(seed,
// kDropout, e / 4, step, layer) is at least rate * 2^32 (rounded down): the mask is a pure function
// of (seed, step, layer, element). So nothing is stored: the backward pass repeats the call on the
// gradient. Slices of a batch drop what the whole batch would. CUDA gives the CPU's bits.
absl::Status Dropout(const ExecContext& ctx, const DropoutArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_DROPOUT_H_
