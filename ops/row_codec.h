#ifndef HOTROW_OPS_ROW_CODEC_H_
#define HOTROW_OPS_ROW_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/exec_context.h"

namespace hotrow {

// How rows and their gradients travel between ranks: the bytes of a row "on the wire", unpadded and
// unaligned, in the byte order of the machine. All types keep NaN a NaN, so that a diverged row is
// never hidden.
enum class ExchangeType {
  kFp32,  // as it is
  // IEEE binary16, subnormals included. A finite value beyond 65504 becomes +-65504, never
  // infinite.
  kFp16,
  // The upper half of an fp32. A finite value beyond the largest, 0x1.fep127, becomes that.
  kBf16,
  // One fp32 scale = (largest |x| of the row) / 127, then a byte q in [-127, 127] for each column;
  // the value is q * scale. Scale 0: all columns are zero (and -0 comes back as 0). A row with an
  // element that is not finite has scale NaN and comes back as NaN in every column.
  kInt8,
};

enum class ExchangeRounding {
  kNearest,  // to the nearest value, ties to even
  // To one of the two neighbours, the nearer one more often, so that the mean over random numbers
  // is the value itself (to 2^-31 of their distance). A value that fp16 or bf16 has stays as it is.
  kStochastic,
};

// "fp32", "fp16", "bf16", "int8". The error lists them.
absl::StatusOr<ExchangeType> ParseExchangeType(std::string_view name);
std::string_view ExchangeTypeName(ExchangeType type);
// "nearest", "stochastic". The error lists them.
absl::StatusOr<ExchangeRounding> ParseExchangeRounding(std::string_view name);
std::string_view ExchangeRoundingName(ExchangeRounding rounding);

// Bytes of one row of `dim` columns on the wire: 4 D, 2 D, 2 D, 4 + D.
int64_t ExchangeRowBytes(ExchangeType type, int32_t dim);

// Rows [begin, end) of one table; their bytes lie one row after another from byte_offset on. May be
// empty.
struct RowRun {
  int64_t begin = 0;
  int64_t end = 0;
  int32_t dim = 0;          // D, in [1, 2^30]
  uint32_t table = 0;       // for stochastic rounding
  int64_t byte_offset = 0;  // from the start of the buffer; any alignment
};

// What stochastic rounding is a function of, besides table, key and column. So equal rows of two
// ranks, or of two steps, are rounded independently, and neither order nor threads matter.
struct StochasticKey {
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t direction = 0;  // 0 forward (rows), 1 backward (gradients)
  uint32_t rank = 0;       // the one that sends
};

// Dimensions: N rows, the runs' all together; D columns of a row. On a CUDA device all pointers,
// those in rows and residual too, are memory that the device reaches; `runs` is host memory on
// either device, read before the call returns.
struct EncodeRowsArgs {
  ExchangeType type = ExchangeType::kFp32;
  ExchangeRounding rounding = ExchangeRounding::kNearest;
  StochasticKey random;                // for stochastic rounding
  std::span<const RowRun> runs;        // one begins where the one before ends; they cover [0, N)
  const uint64_t* keys = nullptr;      // [N]; may be null where nothing is random: nearest, or fp32
  const float* const* rows = nullptr;  // [N], D floats each
  std::byte* out = nullptr;            // the runs' bytes in it must not overlap
  // Error feedback (Seide et al. 2014, "1-bit stochastic gradient descent"): null, or for each of
  // the N rows null or a row of D floats that overlaps no other. residual[i] is added to rows[i]
  // before that is encoded, and becomes what the encoding lost: 0 where the loss is not finite. So
  // the sum over steps of what is decoded follows the sum of what was encoded, never further off
  // than one residual. A row whose residual is null is encoded as it is.
  float* const* residual = nullptr;

  absl::Status Validate() const;
};

// Writes the rows' bytes, the same ones on every device (of a NaN that an addition made, only that
// it is one is promised). Reads of `rows` run ahead, so they may lie scattered.
absl::Status EncodeRows(const ExecContext& ctx, const EncodeRowsArgs& args);

// Dimensions and memory as above.
struct DecodeRowsArgs {
  ExchangeType type = ExchangeType::kFp32;
  std::span<const RowRun> runs;   // as for encoding; their tables are not looked at
  const std::byte* in = nullptr;  // what EncodeRows wrote, or any bytes: all of them mean something
  float* const* rows = nullptr;   // [N], D floats each; distinct
  bool add = false;               // rows += what is decoded, else rows = it

  absl::Status Validate() const;
};

// Reads rows from their bytes. A sum over ranks is one call for each, in the order of ranks.
absl::Status DecodeRows(const ExecContext& ctx, const DecodeRowsArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_ROW_CODEC_H_
