#ifndef HOTROW_OPS_ROWS_EXCHANGE_TYPE_H_
#define HOTROW_OPS_ROWS_EXCHANGE_TYPE_H_

#include <string_view>

#include "absl/status/statusor.h"

namespace hotrow {

// Encodings of rows and gradients that travel between ranks: unpadded, unaligned, in the machine's
// byte order. All types keep NaN, so a diverged row stays visible.
enum class ExchangeType {
  kFp32,  // as it is
  // IEEE binary16, subnormals included. A finite value beyond 65504 becomes +-65504, never
  // infinite.
  kFp16,
  // The upper half of an fp32. Finite values beyond the largest, 0x1.fep127, become that value.
  kBf16,
  // One fp32 scale = (largest |x| of the row) / 127, then a byte q in [-127, 127] for each column;
  // the value is q * scale. Scale 0: all columns are zero (and -0 comes back as 0). A row with an
  // element that is not finite has scale NaN and comes back as NaN in every column.
  kInt8,
};

enum class ExchangeRounding {
  kNearest,  // to the nearest value, ties to even
  // To one of the two neighbours, at random and unbiased: the mean is the value itself (to 2^-31 of
  // their distance). Values that fp16 or bf16 can represent stay.
  kStochastic,
};

// "fp32", "fp16", "bf16", "int8". The error lists them.
absl::StatusOr<ExchangeType> ParseExchangeType(std::string_view name);
std::string_view ExchangeTypeName(ExchangeType type);
// "nearest", "stochastic". The error lists them.
absl::StatusOr<ExchangeRounding> ParseExchangeRounding(std::string_view name);
std::string_view ExchangeRoundingName(ExchangeRounding rounding);

}  // namespace hotrow

#endif  // HOTROW_OPS_ROWS_EXCHANGE_TYPE_H_
