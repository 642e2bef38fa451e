#ifndef HOTROW_OPS_INTERACTIONS_CIN_PRODUCTS_H_
#define HOTROW_OPS_INTERACTIONS_CIN_PRODUCTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/exec_context.h"

// What a compressed interaction network (models/zoo/layers/cin_layer.h) does beside its linear
// maps: F vectors of D columns become D rows of F numbers; rows are multiplied pair by pair; the
// rows of a sample are summed.
//
// All pointers are memory of ctx.device; outputs must not overlap inputs. On a CUDA device work is
// enqueued on ctx.stream; nothing is allocated and nothing waited for. Every number is made by one
// thread in the CPU's order, each product and each sum rounded: so the bits are those of the CPU.
// They depend neither on threads nor on the number of rows, and a NaN stays in its row (CinSum: in
// its sample and column).

namespace hotrow {

// The transpose of a matrix of R rows and C columns, for each of B samples: to[b, c, r] =
// from[b, r, c]. Strides are in floats; those of rows are not read where there is one row.
struct TransposeFieldsArgs {
  int64_t batch_size = 0;       // B
  int32_t rows = 0;             // R >= 1
  int32_t columns = 0;          // C >= 1
  const float* from = nullptr;  // [B, R, C]
  int64_t from_stride = 0;      // between samples, >= (R - 1) from_row_stride + C
  int64_t from_row_stride = 0;  // >= C
  float* to = nullptr;          // [B, C, R]
  int64_t to_stride = 0;        // >= (C - 1) to_row_stride + R
  int64_t to_row_stride = 0;    // >= R

  absl::Status Validate() const;
};
absl::Status TransposeFields(const ExecContext& ctx, const TransposeFieldsArgs& args);

// Dimensions: N rows; H numbers of x and F of x0 in each. All arrays are packed.
struct CinProductsArgs {
  int64_t num_rows = 0;       // N
  int32_t x_columns = 0;      // H >= 1
  int32_t x0_columns = 0;     // F >= 1; H F < 2^31
  const float* x = nullptr;   // [N, H]; may be x0
  const float* x0 = nullptr;  // [N, F]
  float* products = nullptr;  // [N, H F]

  absl::Status Validate() const;
};
// products[n, h F + f] = x[n, h] x0[n, f].
absl::Status CinProducts(const ExecContext& ctx, const CinProductsArgs& args);

struct CinProductsGradArgs {
  CinProductsArgs forward;                   // inputs of the forward pass; products is not read
  const float* products_gradient = nullptr;  // g [N, H F]
  // [N, H], overwritten. Null where x is x0: then the gradient of both factors goes to x0_gradient.
  float* x_gradient = nullptr;
  float* x0_gradient = nullptr;     // [N, F]
  bool add_to_x0_gradient = false;  // to what is there, else to zeros

  absl::Status Validate() const;
};
// x_gradient[n, h] = the sum over f, rising from zero on, of g[n, h, f] x0[n, f]. To x0_gradient[n,
// f] the terms g[n, h, f] x[n, h] are added, h rising. Where x is x0, what x_gradient[n, f] would
// be is added to it as well, behind the term of h = f.
absl::Status CinProductsGrad(const ExecContext& ctx, const CinProductsGradArgs& args);

// Dimensions: B samples of D rows of H numbers.
struct CinSumArgs {
  int64_t batch_size = 0;         // B
  int32_t rows = 0;               // D >= 1
  int32_t columns = 0;            // H >= 1
  const float* values = nullptr;  // [B D, H], packed
  float* output = nullptr;        // [B, H], row stride output_stride
  int64_t output_stride = 0;      // >= H

  absl::Status Validate() const;
};
// output[b, h] = ((0 + values[b, 0, h]) + values[b, 1, h]) + ...
absl::Status CinSum(const ExecContext& ctx, const CinSumArgs& args);

struct CinSumGradArgs {
  int64_t batch_size = 0;
  int32_t rows = 0;
  int32_t columns = 0;
  const float* output_gradient = nullptr;  // [B, H], row stride output_gradient_stride
  int64_t output_gradient_stride = 0;      // >= H
  float* values_gradient = nullptr;        // [B D, H], packed
  bool add = false;                        // to what is there; else it is overwritten

  absl::Status Validate() const;
};
// values_gradient[b, d, h] = output_gradient[b, h], for all d.
absl::Status CinSumGrad(const ExecContext& ctx, const CinSumGradArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_INTERACTIONS_CIN_PRODUCTS_H_
