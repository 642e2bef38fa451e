#ifndef HOTROW_BASE_ROW_KEY_H_
#define HOTROW_BASE_ROW_KEY_H_

#include <cstdint>

namespace hotrow {

// Names one row of one table. Every 64-bit key is legal, 0 and 2^64-1 included; equal keys in two
// tables are two rows.
struct RowKey {
  uint64_t key = 0;
  uint32_t table = 0;

  friend bool operator==(const RowKey& a, const RowKey& b) = default;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_ROW_KEY_H_
