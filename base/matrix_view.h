#ifndef HOTROW_BASE_MATRIX_VIEW_H_
#define HOTROW_BASE_MATRIX_VIEW_H_

#include <cstdint>
#include <span>
#include <type_traits>

namespace hotrow {

struct ColumnRange {
  int64_t first = 0;
  int64_t count = 0;
};

// A row-major matrix in memory of someone else's: element (r, c) is data[r * stride + c].
// MatrixView<const T> is for reading; MatrixView<T> converts to it.
template <typename T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one row to the next, at least cols

  constexpr MatrixView() = default;
  // Rows that lie side by side.
  constexpr MatrixView(T* data, int64_t rows, int64_t cols) : MatrixView(data, rows, cols, cols) {}
  constexpr MatrixView(T* data, int64_t rows, int64_t cols, int64_t stride)
      : data(data), rows(rows), cols(cols), stride(stride) {}
  template <typename U, typename = std::enable_if_t<std::is_same_v<const U, T>>>
  constexpr MatrixView(const MatrixView<U>& other)  // NOLINT: implicit
      : MatrixView(other.data, other.rows, other.cols, other.stride) {}

  constexpr T& operator()(int64_t row, int64_t col) const { return data[row * stride + col]; }
  constexpr std::span<T> Row(int64_t row) const {
    return {data + row * stride, static_cast<size_t>(cols)};
  }
  // `n` rows from `first` on.
  constexpr MatrixView Rows(int64_t first, int64_t n) const {
    return {rows == 0 ? data : data + first * stride, n, cols, stride};
  }
  // These columns of all rows.
  constexpr MatrixView Columns(ColumnRange range) const {
    return {rows == 0 ? data : data + range.first, rows, range.count, stride};
  }
};

}  // namespace hotrow

#endif  // HOTROW_BASE_MATRIX_VIEW_H_
