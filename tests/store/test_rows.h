#ifndef HOTROW_TESTS_STORE_TEST_ROWS_H_
#define HOTROW_TESTS_STORE_TEST_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/philox.h"
#include "base/row_key.h"

namespace hotrow::test {

// A row whose every byte follows from (table, key, version): any mixture of two rows shows.
inline std::vector<std::byte> MakeRow(const RowKey& key, uint64_t version, int64_t row_bytes) {
  std::vector<std::byte> row(static_cast<size_t>(row_bytes));
  for (int64_t i = 0; i < row_bytes; i += 16) {
    const PhiloxBlock block = RandomBlock(version, RandomPurpose::kTest, key.key, key.table,
                                          static_cast<uint32_t>(i / 16));
    for (int64_t j = i; j < std::min(i + 16, row_bytes); ++j) {
      row[static_cast<size_t>(j)] =
          static_cast<std::byte>(block.v[(j - i) / 4] >> (8 * ((j - i) % 4)));
    }
  }
  return row;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_STORE_TEST_ROWS_H_
