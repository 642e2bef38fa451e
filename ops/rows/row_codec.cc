#include "ops/rows/row_codec.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/dispatch.h"
#include "base/parse_word.h"
#include "base/status_macros.h"
#include "ops/rows/row_codec_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

constexpr EnumWord<ExchangeType> kTypes[] = {{"fp32", ExchangeType::kFp32},
                                             {"fp16", ExchangeType::kFp16},
                                             {"bf16", ExchangeType::kBf16},
                                             {"int8", ExchangeType::kInt8}};
constexpr EnumWord<ExchangeRounding> kRoundings[] = {{"nearest", ExchangeRounding::kNearest},
                                                     {"stochastic", ExchangeRounding::kStochastic}};

int64_t NumRows(std::span<const RowRun> runs) { return runs.empty() ? 0 : runs.back().end; }

absl::Status ValidateRuns(std::string_view op, std::span<const RowRun> runs) {
  constexpr int32_t kDimMax = 1 << 30;  // the Philox counter has 28 bits for column / 4
  int64_t expected_begin = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    const RowRun& run = runs[r];
    const auto invalid = [&](const char* field, const std::string& limit, int64_t got) {
      return internal::InvalidField(op, absl::StrCat("runs[", r, "].", field), limit, got);
    };
    if (run.begin != expected_begin) {
      return invalid("begin",
                     r == 0
                         ? "must be 0"
                         : absl::StrCat("must be ", expected_begin, ", the end of the run before"),
                     run.begin);
    }
    if (run.end < run.begin) {
      return invalid("end", absl::StrCat("must be >= begin = ", run.begin), run.end);
    }
    if (run.dim <= 0 || run.dim > kDimMax) return invalid("dim", "must lie in [1, 2^30]", run.dim);
    if (run.byte_offset < 0) return invalid("byte_offset", "must be >= 0", run.byte_offset);
    expected_begin = run.end;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExchangeType> ParseExchangeType(std::string_view name) {
  return ParseWord(kTypes, "exchange type", name);
}
std::string_view ExchangeTypeName(ExchangeType type) { return WordOf(kTypes, type); }

absl::StatusOr<ExchangeRounding> ParseExchangeRounding(std::string_view name) {
  return ParseWord(kRoundings, "exchange rounding", name);
}
std::string_view ExchangeRoundingName(ExchangeRounding rounding) {
  return WordOf(kRoundings, rounding);
}

int64_t ExchangeRowBytes(ExchangeType type, int32_t dim) {
  switch (type) {
    case ExchangeType::kFp32:
      return int64_t{4} * dim;
    case ExchangeType::kFp16:
    case ExchangeType::kBf16:
      return int64_t{2} * dim;
    case ExchangeType::kInt8:
      return int64_t{4} + dim;
  }
  HOTROW_CHECK(false);
}

absl::Status EncodeRowsArgs::Validate() const {
  constexpr char kOp[] = "EncodeRows";
  HOTROW_RETURN_IF_ERROR(ValidateRuns(kOp, runs));
  const bool is_random = rounding == ExchangeRounding::kStochastic && type != ExchangeType::kFp32;
  if (is_random && random.direction > 1) {
    return internal::InvalidField(kOp, "random.direction", "must be 0 (forward) or 1 (backward)",
                                  random.direction);
  }
  if (NumRows(runs) == 0) return absl::OkStatus();
  if (is_random && keys == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": keys must not be null with stochastic rounding"));
  }
  if (rows == nullptr) return internal::NullField(kOp, "rows");
  if (out == nullptr) return internal::NullField(kOp, "out");
  return absl::OkStatus();
}

absl::Status DecodeRowsArgs::Validate() const {
  constexpr char kOp[] = "DecodeRows";
  HOTROW_RETURN_IF_ERROR(ValidateRuns(kOp, runs));
  if (NumRows(runs) == 0) return absl::OkStatus();
  if (in == nullptr) return internal::NullField(kOp, "in");
  if (rows == nullptr) return internal::NullField(kOp, "rows");
  return absl::OkStatus();
}

absl::Status SumEncodedRowsArgs::Validate() const {
  constexpr char kOp[] = "SumEncodedRows";
  HOTROW_RETURN_IF_ERROR(ValidateRuns(kOp, runs));
  if (plain_begin < 0 || plain_end < plain_begin) {
    return internal::InvalidField(
        kOp, "plain_end", absl::StrCat("must be >= plain_begin = ", plain_begin, ", which is >= 0"),
        plain_end);
  }
  if (NumRows(runs) == 0) return absl::OkStatus();
  if (offsets == nullptr) return internal::NullField(kOp, "offsets");
  if (order == nullptr) return internal::NullField(kOp, "order");
  if (rows == nullptr) return internal::NullField(kOp, "rows");
  if (sums == nullptr) return internal::NullField(kOp, "sums");
  return absl::OkStatus();
}

absl::Status EncodeRows(const ExecContext& ctx, const EncodeRowsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::EncodeRowsCpu(ctx, args); },
      [&](auto stream) { return internal::EncodeRowsCuda(args, stream); });
}

absl::Status DecodeRows(const ExecContext& ctx, const DecodeRowsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::DecodeRowsCpu(ctx, args); },
      [&](auto stream) { return internal::DecodeRowsCuda(args, stream); });
}

absl::Status SumEncodedRows(const ExecContext& ctx, const SumEncodedRowsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::SumEncodedRowsCpu(ctx, args); },
      [&](auto stream) { return internal::SumEncodedRowsCuda(args, stream); });
}

}  // namespace hotrow
