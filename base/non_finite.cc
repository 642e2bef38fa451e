#include "base/non_finite.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/device_stream.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;

// All bits of the exponent are ones.
bool IsNonFinite(const std::byte* number, NumbersView::Type type) {
  if (type == NumbersView::Type::kFp32) {
    uint32_t bits = 0;
    std::memcpy(&bits, number, sizeof(bits));
    return (bits & 0x7f800000) == 0x7f800000;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, number, sizeof(bits));
  const int exponent = type == NumbersView::Type::kBf16 ? 0x7f80 : 0x7c00;
  return (bits & exponent) == exponent;
}

}  // namespace

absl::StatusOr<int64_t> FirstNonFinite(const ExecContext& ctx, const NumbersView& view) {
  NumbersView numbers = view;
  if (view.rows == 1 || view.stride == view.columns) {  // one after the other: pieces of any size
    numbers.rows *= view.columns;
    numbers.columns = numbers.stride = 1;
  }
  if (view.data == nullptr || view.rows * view.columns == 0) return -1;
  const int64_t number_bytes = view.type == NumbersView::Type::kFp32 ? 4 : 2;
  const int64_t row_bytes = numbers.stride * number_bytes;
  const bool here = ctx.device == Device::kCpu;
  const int64_t at_once = here ? numbers.rows : std::max<int64_t>(1, kPieceBytes / row_bytes);
  std::vector<std::byte> piece;
  for (int64_t begin = 0; begin < numbers.rows; begin += at_once) {
    const int64_t rows = std::min(at_once, numbers.rows - begin);
    const std::byte* from = static_cast<const std::byte*>(view.data) + begin * row_bytes;
    if (!here) {
      // Nothing need lie behind the columns of the last row.
      const int64_t bytes = (rows - 1) * row_bytes + numbers.columns * number_bytes;
      piece.resize(static_cast<size_t>(bytes));
      HOTROW_RETURN_IF_ERROR(EnqueueCopy(ctx, piece.data(), from, bytes));
      HOTROW_RETURN_IF_ERROR(WaitForStream(ctx));
      from = piece.data();
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < numbers.columns; ++c) {
        if (IsNonFinite(from + r * row_bytes + c * number_bytes, view.type)) {
          return (begin + r) * numbers.columns + c;
        }
      }
    }
  }
  return -1;
}

}  // namespace hotrow
