#ifndef HOTROW_EMBEDDING_TIERS_HELD_ROWS_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_HELD_ROWS_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/row_key.h"

namespace hotrow::internal {

// A fixed number of rows of one width, found by key: rows that were evicted from a cache and may
// not reach the store yet. All memory is taken in Create. Not thread-safe.
class HeldRows {
 public:
  HeldRows() = default;
  static absl::StatusOr<HeldRows> Create(int64_t capacity, int64_t row_bytes);
  // Upper bound of Create's memory per row of capacity: row, key and index.
  static int64_t BytesPerRow(int64_t row_bytes) { return row_bytes + 32; }

  int64_t size() const { return size_; }
  int64_t capacity() const { return keys_.size(); }

  // The key is not there yet, and size() < capacity().
  void Add(const RowKey& key, const std::byte* row);
  // Null when the key is not there. Good until the next Add, Remove or Clear.
  const std::byte* Find(const RowKey& key) const;
  void Remove(const RowKey& key);  // the key is there
  void Clear();

  // Entry i of size().
  const RowKey& key(int64_t i) const { return keys_[i]; }
  const std::byte* row(int64_t i) const { return rows_.data() + i * row_bytes_; }

 private:
  int64_t HomeOf(const RowKey& key) const;
  // The place of the key in the index, or the empty place where it belongs.
  int64_t PlaceOf(const RowKey& key) const;

  int64_t row_bytes_ = 0;
  int64_t size_ = 0;
  uint64_t salt_ = 0;            // of the hash, so that nobody can choose keys that collide
  HostBuffer<RowKey> keys_;      // [capacity], the first size_ in use
  HostBuffer<std::byte> rows_;   // [capacity, row_bytes]
  HostBuffer<uint32_t> places_;  // open addressing, a power of two; 1 + position in keys_; 0: empty
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_HELD_ROWS_IMPL_H_
