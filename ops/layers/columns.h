#ifndef HOTROW_OPS_LAYERS_COLUMNS_H_
#define HOTROW_OPS_LAYERS_COLUMNS_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/macros.h"

// What flows between the parts of a model: columns of samples, copied, added and summed.
//
// All pointers are memory of ctx.device. On a CUDA device work is enqueued on ctx.stream; nothing
// is allocated and nothing waited for. Every number is made by one thread in one order, which is
// that of the CPU: so the bits are those of the CPU.

namespace hotrow {

// The columns of each sample: vectors of `dim` numbers (fields), field_stride floats from one to
// the next. Column c is column c % dim of field c / dim. Samples are row_stride floats apart; with
// row_stride = 0 all of them have the same.
template <typename T>
struct Columns {
  T* data = nullptr;
  int64_t row_stride = 0;
  int32_t dim = 0;
  int64_t field_stride = 0;  // not read where there is one field

  HOTROW_HOST_DEVICE int64_t Offset(int64_t column) const {
    if (column < dim) return column;
    const auto c = static_cast<int32_t>(column);  // a division of 32 bits takes a GPU much less
    return c / dim * field_stride + c % dim;
  }
};

// Dimensions: B samples of W columns.
struct MoveColumnsArgs {
  enum class Kind : uint8_t {
    kCopy,    // to = from
    kAdd,     // to = to + from
    kSpread,  // all columns of to = column 0 of from
    kZero,    // to = 0; from is not read
  };
  Kind kind = Kind::kCopy;
  int64_t batch_size = 0;     // B
  int32_t width = 0;          // W >= 1
  Columns<const float> from;  // must not overlap `to`
  Columns<float> to;          // no two of its columns at one address

  absl::Status Validate() const;
};
absl::Status MoveColumns(const ExecContext& ctx, const MoveColumnsArgs& args);
// Several, in order, each on what those before it left: one launch on a GPU. All have the same
// batch, and none reads what another one writes for another sample.
absl::Status MoveColumns(const ExecContext& ctx, std::span<const MoveColumnsArgs> moves);

// output[b] = ((column 0 + column 1) + column 2) + ... of sample b, from zero on.
struct SumColumnsArgs {
  int64_t batch_size = 0;  // B
  int32_t width = 0;       // W >= 1
  Columns<const float> x;
  float* output = nullptr;    // [B], output_stride floats apart; must not overlap x
  int64_t output_stride = 1;  // >= 1

  absl::Status Validate() const;
};
absl::Status SumColumns(const ExecContext& ctx, const SumColumnsArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_LAYERS_COLUMNS_H_
