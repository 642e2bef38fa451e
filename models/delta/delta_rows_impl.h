#ifndef HOTROW_MODELS_DELTA_DELTA_ROWS_IMPL_H_
#define HOTROW_MODELS_DELTA_DELTA_ROWS_IMPL_H_

#include <cstddef>
#include <cstdint>

#include "models/delta/delta_rows.h"

// The structs of a file of rows, docs/formats/delta.md. All numbers are little-endian.
namespace hotrow::internal {

inline constexpr char kDeltaRowsMagic[8] = {'H', 'O', 'T', 'R', 'O', 'W', 'D', 'R'};
inline constexpr char kDeltaBlockMagic[4] = {'H', 'D', 'B', 'K'};
inline constexpr char kDeltaFooterMagic[4] = {'H', 'D', 'E', 'N'};
inline constexpr uint32_t kDeltaRowsVersion = 1;
inline constexpr uint32_t kDeltaFormState = 1u << 8;

struct DeltaPrefix {
  char magic[8];
  uint32_t version;
  uint32_t crc;  // of the 12 bytes before
};
static_assert(sizeof(DeltaPrefix) == 16 && offsetof(DeltaPrefix, crc) == 12);

struct DeltaHeader {
  uint64_t base_high;
  uint64_t base_low;
  uint64_t sequence;
  uint32_t part;
  uint32_t num_parts;
  uint32_t num_tables;
  uint32_t form;
  uint32_t tables_crc;
  uint32_t crc;  // of the 44 bytes before
};
static_assert(sizeof(DeltaHeader) == 48 && offsetof(DeltaHeader, crc) == 44);

struct DeltaTableEntry {
  uint32_t dim;
  uint32_t state_floats;
  uint32_t scored;  // 1: rows have a score
  uint32_t reserved;
};
static_assert(sizeof(DeltaTableEntry) == 16);

struct DeltaBlock {
  char magic[4];
  uint32_t table;
  uint64_t block_index;
  uint32_t num_rows;
  uint32_t num_erased;
  uint64_t body_bytes;
  uint32_t body_crc;
  uint32_t crc;  // of the 36 bytes before
};
static_assert(sizeof(DeltaBlock) == 40 && offsetof(DeltaBlock, body_bytes) == 24 &&
              offsetof(DeltaBlock, crc) == 36);

struct DeltaFooter {
  char magic[4];
  uint32_t blocks_crc;
  uint64_t num_rows;
  uint64_t num_erased;
  uint64_t num_blocks;
  uint32_t reserved;
  uint32_t crc;  // of the 36 bytes before
};
static_assert(sizeof(DeltaFooter) == sizeof(DeltaBlock) && offsetof(DeltaFooter, crc) == 36);

constexpr uint32_t DeltaFormBits(const DeltaForm& form) {
  return static_cast<uint32_t>(form.precision) | (form.state ? kDeltaFormState : 0);
}
static_assert(static_cast<int>(ExchangeType::kFp32) == 0 &&
              static_cast<int>(ExchangeType::kFp16) == 1 &&
              static_cast<int>(ExchangeType::kBf16) == 2 &&
              static_cast<int>(ExchangeType::kInt8) == 3);

}  // namespace hotrow::internal

#endif  // HOTROW_MODELS_DELTA_DELTA_ROWS_IMPL_H_
