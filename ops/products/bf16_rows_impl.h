#ifndef HOTROW_OPS_PRODUCTS_BF16_ROWS_IMPL_H_
#define HOTROW_OPS_PRODUCTS_BF16_ROWS_IMPL_H_

#include <cstdint>

// Loops over rows of bf16 around matrix products: conversion, ReLU's gradient, and the two layouts
// that products read besides rows. They need AVX-512 with BF16, which Bf16RowsSupported() looks
// for, with any -march of the build.
namespace hotrow::internal {

using Bf16 = uint16_t;  // the upper half of a float

// Columns and rows of the blocks that layouts are made of. A matrix [rows, columns] in panels is
// cut into panels of 64 columns, each whole: in a panel, pair after pair of rows, column after
// column the two numbers of the pair. (oneDNN calls it BA16a64b2a.) columns is a multiple of
// kPanelColumns, rows of kPanelRows.
inline constexpr int64_t kPanelColumns = 64;
inline constexpr int64_t kPanelRows = 32;

bool Bf16RowsSupported();

// Rounds x [rows, columns], with row stride x_stride, to the nearest into `out` [out_rows,
// out_columns], dense. What x does not have is zero. out_columns is a multiple of kPanelColumns.
// Denormals become zero.
void ToBf16(const float* x, int64_t x_stride, int64_t rows, int64_t columns, int64_t out_rows,
            int64_t out_columns, Bf16* out);

// Rows [first, first + count) of a matrix in panels that has `total` rows, from x [count, columns],
// dense. first and count are multiples of kPanelRows.
void ToPanels(const Bf16* x, int64_t count, int64_t columns, int64_t first, int64_t total,
              Bf16* panels);

// Columns [first, first + count) of the dense matrix transposed [columns, total], from x [count,
// columns], dense. first and count are multiples of kPanelRows, columns of kPanelColumns.
void ToColumns(const Bf16* x, int64_t count, int64_t columns, int64_t first, int64_t total,
               Bf16* transposed);

// The rows [begin, end) of a weight matrix w [out, in], which is dense, in both directions: W^T
// [padded in, padded out] in panels, and W [padded out, padded in] in panels; the latter may be
// null. Padding is to kPanelColumns and zero. begin and end are multiples of kPanelColumns; end may
// lie behind `out`, at the padded one.
void WeightsToPanels(const float* w, int64_t in, int64_t out, int64_t begin, int64_t end,
                     Bf16* transposed_panels, Bf16* panels);

// Sets what is below zero to zero; a NaN stays one. size is a multiple of kPanelColumns.
void Relu(int64_t size, Bf16* x);

// Sets dy to zero where ReLU's output y was zero (y may be null: nowhere), and sums the columns
// into sum[columns], row after row. y and dy [rows, columns], dense, columns a multiple of
// kPanelColumns.
void MaskAndSum(const Bf16* y, int64_t rows, int64_t columns, Bf16* dy, float* sum);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PRODUCTS_BF16_ROWS_IMPL_H_
