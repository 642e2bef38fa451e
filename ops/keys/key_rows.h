#ifndef HOTROW_OPS_KEYS_KEY_ROWS_H_
#define HOTROW_OPS_KEYS_KEY_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "base/row_key.h"

// Ways from the distinct keys of a batch to their rows, an element at a time. On a CUDA device all
// pointers are memory that the device reaches; spans are host memory, read before the call returns.

namespace hotrow {

// Dimensions: T tables, U <= N keys.
struct MakeRowKeysArgs {
  const uint64_t* values = nullptr;        // [U], as Unique writes them
  const int64_t* table_offsets = nullptr;  // [T + 1]: table t has values[offsets[t], offsets[t+1])
  std::span<const uint32_t> tables;        // [T]: RowKey::table of each
  int64_t max_keys = 0;                    // N: no less than U = table_offsets[T]
  RowKey* keys = nullptr;                  // [N] room; the first U are written

  absl::Status Validate() const;
};

// Names the row of each distinct value. U itself is read where the device keeps it, so that nobody
// waits for it.
absl::Status MakeRowKeys(const ExecContext& ctx, const MakeRowKeysArgs& args);

// Rows of floats that lie side by side: row i in [begin, end) at `first` + (i - begin) * stride.
struct FloatRows {
  int64_t begin = 0;
  int64_t end = 0;
  float* first = nullptr;
  int64_t stride = 0;
};

struct AddressRunsArgs {
  std::span<const FloatRows> runs;  // cover [0, N) in order
  float** rows = nullptr;           // [N]

  absl::Status Validate() const;
};

// rows[i] = where row i lies.
absl::Status AddressRuns(const ExecContext& ctx, const AddressRunsArgs& args);

// Rows of any kind that lie side by side: row i in [begin, end) at first + (i - begin) * row_bytes.
struct ByteRows {
  int64_t begin = 0;
  int64_t end = 0;
  const std::byte* first = nullptr;
  int64_t row_bytes = 0;
};

struct AddressByteRowsArgs {
  std::span<const ByteRows> runs;    // in order; there may be gaps between them
  const std::byte** rows = nullptr;  // [N], N >= the end of the last run

  absl::Status Validate() const;
};

// rows[i] = where row i lies; those of no run stay as they are.
absl::Status AddressByteRows(const ExecContext& ctx, const AddressByteRowsArgs& args);

// Dimensions: N rows, of which M were placed later than the others.
struct AddressSlotsArgs {
  std::byte* first = nullptr;               // the row of slot 0
  int64_t row_bytes = 0;                    // slots lie side by side
  const int64_t* slots = nullptr;           // [N]; negative for those that were placed later
  int64_t num_rows = 0;                     // N
  const int32_t* late_positions = nullptr;  // [M], distinct, each in [0, N)
  const int64_t* late_slots = nullptr;      // [M]
  int64_t num_late = 0;                     // M
  std::byte** rows = nullptr;               // [N]

  absl::Status Validate() const;
};

// rows[i] = where the row of slots[i] lies; where that is negative, the row of the late slot whose
// position is i, and if there is none, what it was.
absl::Status AddressSlots(const ExecContext& ctx, const AddressSlotsArgs& args);

// Dimensions: F features, B samples of one lookup of each, U rows.
struct AddressLookupsArgs {
  const std::byte* const* rows = nullptr;  // [U], of floats
  const int32_t* inverse = nullptr;        // [F, B], each in [0, U)
  int64_t num_features = 0;                // F
  int64_t batch_size = 0;                  // B
  const float** lookups = nullptr;         // [B, F]

  absl::Status Validate() const;
};

// lookups[b, f] = rows[inverse[f, b]]: what a sample looks up, side by side.
absl::Status AddressLookups(const ExecContext& ctx, const AddressLookupsArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_KEYS_KEY_ROWS_H_
