#ifndef HOTROW_TESTS_STORE_STORE_TEST_UTIL_H_
#define HOTROW_TESTS_STORE_STORE_TEST_UTIL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/out_of_room.h"
#include "base/row_key.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "store/row_store.h"
#include "tests/support/status_matchers.h"

namespace hotrow::test {

// An error that callers answer by making room on the disk.
MATCHER_P(IsOutOfRoomThat, message_matcher, "") {
  return ::testing::ExplainMatchResult(
             StatusIs(absl::StatusCode::kResourceExhausted, message_matcher), arg,
             result_listener) &&
         IsOutOfRoom(GetStatus(arg));
}

using Row = std::vector<std::byte>;
using RowMap = std::map<std::pair<uint32_t, uint64_t>, Row>;  // (table, key): the reference store

// A row whose every byte depends on all arguments, so that a mixture of two rows, or a row of
// another key, is told from a right one.
inline Row MakeRow(const RowKey& key, uint64_t version, int64_t row_bytes) {
  Row row(static_cast<size_t>(row_bytes));
  const uint64_t seed = Mix64(key.key ^ Mix64(key.table + 1) ^ Mix64(version + 0x1234567));
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<std::byte>(Mix64(seed + i / 8) >> (8 * (i % 8)));
  }
  return row;
}

// Keys with the rows that go with them, and the pointers that a RowStore wants.
struct Batch {
  std::vector<RowKey> keys;
  std::vector<Row> rows;

  void Add(const RowKey& key, Row row) {
    keys.push_back(key);
    rows.push_back(std::move(row));
  }
  std::vector<const std::byte*> pointers() const {
    std::vector<const std::byte*> result;
    for (const Row& row : rows) result.push_back(row.data());
    return result;
  }
  absl::Status InsertInto(RowStore& store) const { return store.InsertOrAssign(keys, pointers()); }
};

// What Find says. Rows are filled with 0xee before, to see which it leaves alone.
struct Found {
  std::vector<Row> rows;
  std::vector<uint8_t> found;
};
inline absl::StatusOr<Found> FindAll(RowStore& store, std::span<const RowKey> keys) {
  Found result;
  std::vector<std::byte*> pointers;
  for (const RowKey& key : keys) {
    result.rows.emplace_back(static_cast<size_t>(store.row_bytes(key.table)), std::byte{0xee});
  }
  for (Row& row : result.rows) pointers.push_back(row.data());
  result.found.assign(keys.size(), 0xee);
  HOTROW_RETURN_IF_ERROR(store.Find(keys, pointers, result.found));
  return result;
}

// Everything that is in the store. A key that Iterate gives twice is an error.
inline absl::StatusOr<RowMap> Dump(RowStore& store) {
  RowMap rows;
  HOTROW_RETURN_IF_ERROR(
      store.Iterate([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
        const bool is_new =
            rows.emplace(std::pair(key.table, key.key), Row(row.begin(), row.end())).second;
        return is_new ? absl::OkStatus() : absl::InternalError("a key came twice");
      }));
  return rows;
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_STORE_STORE_TEST_UTIL_H_
