#include "ops/layers/silu.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ops/layers/silu_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

using internal::InvalidField;
using internal::NullField;

constexpr char kSilu[] = "Silu";
constexpr char kSiluGrad[] = "SiluGrad";
constexpr char kProducts[] = "RowProducts";

absl::Status CheckSizes(const char* op, int64_t num_rows, int32_t columns) {
  if (num_rows < 0) return InvalidField(op, "num_rows", "must be >= 0", num_rows);
  if (columns < 1) return InvalidField(op, "columns", "must be >= 1", columns);
  return absl::OkStatus();
}

absl::Status CheckRows(const char* op, const char* name, const float* data, int64_t num_rows,
                       int32_t columns, int64_t stride) {
  if (num_rows == 0) return absl::OkStatus();
  if (data == nullptr) return NullField(op, name);
  if (stride >= columns) return absl::OkStatus();
  return InvalidField(op, absl::StrCat(name, "_stride"),
                      absl::StrCat("must be >= columns = ", columns), stride);
}

absl::Status CheckOnCpu(const char* op, const ExecContext& ctx) {
  if (ctx.device == Device::kCpu) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(op, ": works on the CPU only"));
}

}  // namespace

absl::Status SiluArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kSilu, num_rows, columns));
  HOTROW_RETURN_IF_ERROR(CheckRows(kSilu, "x", x, num_rows, columns, x_stride));
  return CheckRows(kSilu, "output", output, num_rows, columns, output_stride);
}

absl::Status SiluGradArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kSiluGrad, num_rows, columns));
  HOTROW_RETURN_IF_ERROR(CheckRows(kSiluGrad, "x", x, num_rows, columns, x_stride));
  return CheckRows(kSiluGrad, "gradient", gradient, num_rows, columns, gradient_stride);
}

absl::Status RowProductsArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kProducts, num_rows, columns));
  HOTROW_RETURN_IF_ERROR(CheckRows(kProducts, "a", a, num_rows, columns, a_stride));
  HOTROW_RETURN_IF_ERROR(CheckRows(kProducts, "b", b, num_rows, columns, b_stride));
  return CheckRows(kProducts, "output", output, num_rows, columns, output_stride);
}

absl::Status Silu(const ExecContext& ctx, const SiluArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(CheckOnCpu(kSilu, ctx));
  return internal::SiluCpu(ctx.pool, args);
}

absl::Status SiluGrad(const ExecContext& ctx, const SiluGradArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(CheckOnCpu(kSiluGrad, ctx));
  return internal::SiluGradCpu(ctx.pool, args);
}

absl::Status RowProducts(const ExecContext& ctx, const RowProductsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  HOTROW_RETURN_IF_ERROR(CheckOnCpu(kProducts, ctx));
  return internal::RowProductsCpu(ctx.pool, args);
}

}  // namespace hotrow
