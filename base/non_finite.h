#ifndef HOTROW_BASE_NON_FINITE_H_
#define HOTROW_BASE_NON_FINITE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/exec_context.h"

namespace hotrow {

// Rows of numbers in memory of someone else's, on any device.
struct NumbersView {
  enum class Type : uint8_t { kFp32, kBf16, kFp16 };
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  // numbers from one row to the next, at least columns
  Type type = Type::kFp32;
};

// Where the first number stands, row by row, that is infinite or NaN: row * columns + column; -1:
// all are finite. Memory of a GPU is copied in pieces behind what is enqueued on ctx.stream, for
// which it waits: for who has an error to explain.
absl::StatusOr<int64_t> FirstNonFinite(const ExecContext& ctx, const NumbersView& view);

}  // namespace hotrow

#endif  // HOTROW_BASE_NON_FINITE_H_
