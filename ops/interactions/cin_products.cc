#include "ops/interactions/cin_products.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/interactions/cin_products_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

using internal::InvalidField;
using internal::NullField;

constexpr char kTranspose[] = "TransposeFields";
constexpr char kProducts[] = "CinProducts";
constexpr char kProductsGrad[] = "CinProductsGrad";
constexpr char kSum[] = "CinSum";
constexpr char kSumGrad[] = "CinSumGrad";

absl::Status CheckAtLeast(const char* op, const char* field, int64_t min, int64_t got) {
  if (got >= min) return absl::OkStatus();
  return InvalidField(op, field, absl::StrCat("must be >= ", min), got);
}

absl::Status CheckPointer(const char* op, const char* field, const float* data) {
  return data == nullptr ? NullField(op, field) : absl::OkStatus();
}

absl::Status CheckFactors(const char* op, const CinProductsArgs& args) {
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(op, "num_rows", 0, args.num_rows));
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(op, "x_columns", 1, args.x_columns));
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(op, "x0_columns", 1, args.x0_columns));
  const int64_t products = int64_t{args.x_columns} * args.x0_columns;
  if (products > std::numeric_limits<int32_t>::max()) {
    return InvalidField(op, "x_columns * x0_columns", "must be < 2^31", products);
  }
  if (args.num_rows == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckPointer(op, "x", args.x));
  return CheckPointer(op, "x0", args.x0);
}

absl::Status CheckSamples(const char* op, int64_t batch_size, int32_t rows, int32_t columns) {
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(op, "batch_size", 0, batch_size));
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(op, "rows", 1, rows));
  return CheckAtLeast(op, "columns", 1, columns);
}

}  // namespace

absl::Status TransposeFieldsArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSamples(kTranspose, batch_size, rows, columns));
  if (batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckPointer(kTranspose, "from", from));
  HOTROW_RETURN_IF_ERROR(CheckPointer(kTranspose, "to", to));
  if (rows > 1) {
    HOTROW_RETURN_IF_ERROR(CheckAtLeast(kTranspose, "from_row_stride", columns, from_row_stride));
  }
  if (columns > 1) {
    HOTROW_RETURN_IF_ERROR(CheckAtLeast(kTranspose, "to_row_stride", rows, to_row_stride));
  }
  HOTROW_RETURN_IF_ERROR(CheckAtLeast(kTranspose, "from_stride",
                                      int64_t{rows - 1} * from_row_stride + columns, from_stride));
  return CheckAtLeast(kTranspose, "to_stride", int64_t{columns - 1} * to_row_stride + rows,
                      to_stride);
}

absl::Status CinProductsArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckFactors(kProducts, *this));
  return num_rows == 0 ? absl::OkStatus() : CheckPointer(kProducts, "products", products);
}

absl::Status CinProductsGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckFactors(kProductsGrad, forward));
  if (forward.num_rows == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckPointer(kProductsGrad, "products_gradient", products_gradient));
  HOTROW_RETURN_IF_ERROR(CheckPointer(kProductsGrad, "x0_gradient", x0_gradient));
  const bool same = forward.x == forward.x0 && forward.x_columns == forward.x0_columns;
  return same ? absl::OkStatus() : CheckPointer(kProductsGrad, "x_gradient", x_gradient);
}

absl::Status CinSumArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSamples(kSum, batch_size, rows, columns));
  if (batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckPointer(kSum, "values", values));
  HOTROW_RETURN_IF_ERROR(CheckPointer(kSum, "output", output));
  return CheckAtLeast(kSum, "output_stride", columns, output_stride);
}

absl::Status CinSumGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSamples(kSumGrad, batch_size, rows, columns));
  if (batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckPointer(kSumGrad, "output_gradient", output_gradient));
  HOTROW_RETURN_IF_ERROR(CheckPointer(kSumGrad, "values_gradient", values_gradient));
  return CheckAtLeast(kSumGrad, "output_gradient_stride", columns, output_gradient_stride);
}

absl::Status TransposeFields(const ExecContext& ctx, const TransposeFieldsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::TransposeFieldsCpu(ctx.pool, args); },
      [&](auto stream) { return internal::TransposeFieldsCuda(stream, args); });
}

absl::Status CinProducts(const ExecContext& ctx, const CinProductsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.num_rows == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::CinProductsCpu(ctx.pool, args); },
      [&](auto stream) { return internal::CinProductsCuda(stream, args); });
}

absl::Status CinProductsGrad(const ExecContext& ctx, const CinProductsGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.forward.num_rows == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::CinProductsGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::CinProductsGradCuda(stream, args); });
}

absl::Status CinSum(const ExecContext& ctx, const CinSumArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::CinSumCpu(ctx.pool, args); },
      [&](auto stream) { return internal::CinSumCuda(stream, args); });
}

absl::Status CinSumGrad(const ExecContext& ctx, const CinSumGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::CinSumGradCpu(ctx.pool, args); },
      [&](auto stream) { return internal::CinSumGradCuda(stream, args); });
}

}  // namespace hotrow
