#ifndef HOTROW_OPS_PRODUCTS_INT8_ROWS_IMPL_H_
#define HOTROW_OPS_PRODUCTS_INT8_ROWS_IMPL_H_

#include <cstdint>

// Loops over a row around products in whole numbers of 8 bits. They need AVX-512 with VNNI, which
// Int8RowsSupported() looks for, with any -march of the build. What they give depends on the row
// alone.
namespace hotrow::internal {

bool Int8RowsSupported();

// What a row x in codes q stands for: x[k] ~ scale * (q[k] - zero), within half a scale. A zero
// keeps its value.
struct Int8Row {
  float scale = 0;
  int32_t zero = 0;
};

// The least scale: 1 / scale is a number, and what is lost is less than any float that is none of
// the denormals.
inline constexpr float kInt8ScaleMin = 0x1p-126f;

// Codes of x[columns] in q[padded], a multiple of 64; those behind `columns` are any. Scales are of
// the range from the least to the largest number and 0. Of a row without one, or whose scale were
// below kInt8ScaleMin, scale and codes are 0. Of a row with a number that is not finite the scale
// is a NaN.
Int8Row EncodeInt8Row(const float* x, int64_t columns, int64_t padded, uint8_t* q);

// y[j] = (sums[j] - row.zero * weight_sums[j]) * (row.scale * scales[j]) + bias[j], rounded after
// each operation; then ReLU, which leaves a NaN. bias may be null.
void DecodeInt8Sums(const int32_t* sums, const Int8Row& row, const float* scales,
                    const int32_t* weight_sums, const float* bias, int64_t columns, bool relu,
                    float* y);

// A row of y = x W^T + b in fp32, for maps too narrow for codes: sums have one order, unlike those
// of a product of many rows. bias may be null; y may be x.
// W [outputs, inputs], for few outputs, at most kFewOutputs: 16 lanes with fused multiply-adds.
inline constexpr int64_t kFewOutputs = 15;
void MultiplyFewOutputs(const float* x, const float* w, const float* bias, int64_t inputs,
                        int64_t outputs, bool relu, float* y);
// W^T [inputs, outputs] with row stride `stride`, for few inputs, at most kFewInputs: input after
// input, with fused multiply-adds.
inline constexpr int64_t kFewInputs = 63;
void MultiplyFewInputs(const float* x, const float* transposed, int64_t stride, const float* bias,
                       int64_t inputs, int64_t outputs, bool relu, float* y);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_PRODUCTS_INT8_ROWS_IMPL_H_
