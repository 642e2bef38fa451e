#include "ops/layers/columns.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/layers/columns_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

using internal::InvalidField;
using internal::NullField;

constexpr char kMove[] = "MoveColumns";
constexpr char kSum[] = "SumColumns";

absl::Status CheckSizes(const char* op, int64_t batch_size, int32_t width) {
  if (batch_size < 0) return InvalidField(op, "batch_size", "must be >= 0", batch_size);
  if (width < 1) return InvalidField(op, "width", "must be >= 1", width);
  return absl::OkStatus();
}

// Checks `width` columns that are read (or written, where rows must be apart).
template <typename T>
absl::Status CheckColumns(const char* op, const char* name, const Columns<T>& columns,
                          int32_t width, int64_t row_stride_min) {
  if (columns.data == nullptr) return NullField(op, name);
  const auto invalid = [&](const char* field, int64_t min, int64_t got) {
    return InvalidField(op, absl::StrCat(name, ".", field), absl::StrCat("must be >= ", min), got);
  };
  if (columns.dim < 1) return invalid("dim", 1, columns.dim);
  if (width > columns.dim && columns.field_stride < columns.dim) {
    return invalid("field_stride", columns.dim, columns.field_stride);
  }
  if (columns.row_stride < row_stride_min) {
    return invalid("row_stride", row_stride_min, columns.row_stride);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MoveColumnsArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kMove, batch_size, width));
  if (batch_size == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(CheckColumns(kMove, "to", to, width, 1));
  if (to.row_stride <= to.Offset(width - 1)) {
    return InvalidField(kMove, "to.row_stride", absl::StrCat("must be > ", to.Offset(width - 1)),
                        to.row_stride);
  }
  if (kind == Kind::kZero) return absl::OkStatus();
  return CheckColumns(kMove, "from", from, kind == Kind::kSpread ? 1 : width, 0);
}

absl::Status SumColumnsArgs::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckSizes(kSum, batch_size, width));
  if (output_stride < 1) return InvalidField(kSum, "output_stride", "must be >= 1", output_stride);
  if (batch_size == 0) return absl::OkStatus();
  if (output == nullptr) return NullField(kSum, "output");
  return CheckColumns(kSum, "x", x, width, 0);
}

absl::Status MoveColumns(const ExecContext& ctx, const MoveColumnsArgs& args) {
  return MoveColumns(ctx, std::span<const MoveColumnsArgs>(&args, 1));
}

absl::Status MoveColumns(const ExecContext& ctx, std::span<const MoveColumnsArgs> moves) {
  for (const MoveColumnsArgs& args : moves) {
    HOTROW_RETURN_IF_ERROR(args.Validate());
    if (args.batch_size != moves[0].batch_size) {
      return InvalidField(kMove, "batch_size", "must be that of all moves", args.batch_size);
    }
  }
  if (moves.empty() || moves[0].batch_size == 0) return absl::OkStatus();
  const auto on_cpu = [&]() -> absl::Status {
    for (const MoveColumnsArgs& args : moves) {
      HOTROW_RETURN_IF_ERROR(internal::MoveColumnsCpu(ctx.pool, args));
    }
    return absl::OkStatus();
  };
  return internal::Dispatch(ctx, on_cpu,
                            [&](auto stream) { return internal::MoveColumnsCuda(stream, moves); });
}

absl::Status SumColumns(const ExecContext& ctx, const SumColumnsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::SumColumnsCpu(ctx.pool, args); },
      [&](auto stream) { return internal::SumColumnsCuda(stream, args); });
}

}  // namespace hotrow
