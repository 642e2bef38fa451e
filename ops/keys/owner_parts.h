#ifndef HOTROW_OPS_KEYS_OWNER_PARTS_H_
#define HOTROW_OPS_KEYS_OWNER_PARTS_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/exec_context.h"

// What stands between the distinct keys of a batch and those that travel to their owners. On a CUDA
// device all pointers are memory that the device reaches; spans are host memory, read before the
// call returns.

namespace hotrow {

// Dimensions: N ranks, T tables, U keys.
struct OwnerPartsArgs {
  const uint64_t* values = nullptr;        // [U], table by table
  const int64_t* table_offsets = nullptr;  // [T + 1]: table t has values[offsets[t], offsets[t+1])
  std::span<const uint32_t> tables;        // [T]: RowKey::table of each
  int64_t num_keys = 0;                    // U = table_offsets[T]
  int32_t world_size = 0;                  // N, in [1, RowHash::kNumShards]; N * T <= 2^31 - 1
  int32_t* parts = nullptr;                // [U]: owner * T + table

  absl::Status Validate() const;
};

// parts[i] = the rank that keeps values[i] (the shard of its hash, as embedding/ranks/shard_map.h
// has it), then its table. Partition by it puts keys in the order in which they travel.
absl::Status OwnerParts(const ExecContext& ctx, const OwnerPartsArgs& args);

struct PickWordsArgs {
  const uint64_t* from = nullptr;      // keys, or addresses
  const int32_t* positions = nullptr;  // [n], in `from`
  int64_t num_words = 0;               // n
  uint64_t* to = nullptr;              // [n]; must not alias `from`

  absl::Status Validate() const;
};

// to[i] = from[positions[i]].
absl::Status PickWords(const ExecContext& ctx, const PickWordsArgs& args);

struct PutWordsArgs {
  const uint64_t* from = nullptr;      // [n] keys, or addresses
  const int32_t* positions = nullptr;  // [n], in `to`; distinct
  int64_t num_words = 0;               // n
  uint64_t* to = nullptr;              // must not alias `from`

  absl::Status Validate() const;
};

// The reverse: to[positions[i]] = from[i].
absl::Status PutWords(const ExecContext& ctx, const PutWordsArgs& args);

}  // namespace hotrow

#endif  // HOTROW_OPS_KEYS_OWNER_PARTS_H_
