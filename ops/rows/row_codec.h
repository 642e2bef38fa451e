#ifndef HOTROW_OPS_ROWS_ROW_CODEC_H_
#define HOTROW_OPS_ROWS_ROW_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/rows/exchange_type.h"

namespace hotrow {

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

// Inputs of stochastic rounding besides table, key and column. Equal rows of two ranks or of two
// steps are rounded independently; order and threads do not matter.
struct StochasticKey {
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t direction = 0;  // 0 forward (rows), 1 backward (gradients)
  uint32_t rank = 0;       // the sender
};

// Dimensions: N rows in all runs; D columns of a row. On a CUDA device all pointers, also those in
// rows and residual, are memory that the device reaches; `runs` is host memory on either device,
// read before the call returns.
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
  // before encoding, and becomes the loss of the encoding (0 if that is not finite). So over the
  // steps the sum of decoded rows differs from the sum of encoded ones by at most one residual. A
  // row with a null residual is encoded as it is.
  float* const* residual = nullptr;

  absl::Status Validate() const;
};

// Writes the rows' bytes, the same on every device (the payload of a NaN made by an addition may
// differ). Prefetches `rows`, which may be scattered.
absl::Status EncodeRows(const ExecContext& ctx, const EncodeRowsArgs& args);

// Dimensions and memory as above.
struct DecodeRowsArgs {
  ExchangeType type = ExchangeType::kFp32;
  std::span<const RowRun> runs;   // as for encoding; `table` is unused
  const std::byte* in = nullptr;  // from EncodeRows; any other bytes decode to some rows, too
  float* const* rows = nullptr;   // [N], D floats each; distinct
  bool add = false;               // rows += what is decoded, else rows = it

  absl::Status Validate() const;
};

// Decodes rows. To sum over ranks, call it once for each rank, in rank order.
absl::Status DecodeRows(const ExecContext& ctx, const DecodeRowsArgs& args);

// Dimensions: S sums, M rows that are added. Memory as above.
struct SumEncodedRowsArgs {
  ExchangeType type = ExchangeType::kFp32;
  std::span<const RowRun> runs;            // of the sums [0, S); `table` and byte_offset unused
  const int64_t* offsets = nullptr;        // [S + 1] sum s takes order[offsets[s], offsets[s+1])
  const int32_t* order = nullptr;          // [offsets[S]] positions in `rows`
  const std::byte* const* rows = nullptr;  // [M] as EncodeRows wrote each, at any address
  // Those of rows [plain_begin, plain_end) are D floats instead.
  int64_t plain_begin = 0;
  int64_t plain_end = 0;
  float* const* sums = nullptr;  // [S], D floats each, overwritten; distinct

  absl::Status Validate() const;
};

// Decodes rows and adds them, from zero on, in the order that is given. The bits are those of
// DecodeRows with `add`, once for each of them, into zeros; each sum is written once.
absl::Status SumEncodedRows(const ExecContext& ctx, const SumEncodedRowsArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_ROWS_ROW_CODEC_H_
