#ifndef HOTROW_EMBEDDING_SERVING_FROZEN_ROWS_IMPL_H_
#define HOTROW_EMBEDDING_SERVING_FROZEN_ROWS_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/buffer.h"

namespace hotrow::internal {

// FrozenRows is one table that is filled once and then read by any number of threads.
//
// Layout:  a record is [ bytes of a row | key: uint64 | padding to `alignment` ]. Records lie in
//          chunks of up to 4 MiB. The index has buckets of one cache line: tags and numbers of up
//          to 12 records; a key whose bucket is full lies in the next one that is not. Three
//          quarters of the places are taken, so 7 bytes a row.
// Threads: Add and Freeze one at a time; after Freeze everything is const, and Find takes no lock.
// Budget:  *used_bytes counts what is taken, shared with other tables; nothing is taken beyond
//          budget_bytes. Where expected_rows says how many come, nothing more than they need is
//          taken; otherwise the last chunk grows as they come, and is cut in the end.
// Errors:  ResourceExhausted (the budget, memory, or more than 2^32 - 1 rows), InvalidArgument (a
//          key twice); they name the table.
class FrozenRows {
 public:
  struct Options {
    std::string table;          // for errors
    int64_t row_bytes = 0;      // of what is kept of a row
    int64_t alignment = 16;     // of rows; a power of two, at most 64
    int64_t expected_rows = 0;  // 0: not known
    int64_t budget_bytes = 0;
    int64_t* used_bytes = nullptr;
  };
  explicit FrozenRows(const Options& options);

  absl::Status Add(uint64_t key, const std::byte* row);
  absl::Status Freeze();

  // Sets rows[i] to where the row of keys[i] lies, or to null.
  void Find(std::span<const uint64_t> keys, std::span<const std::byte*> rows) const;

  std::vector<uint64_t> Keys() const;  // in the order in which they came

  int64_t rows() const { return rows_; }
  // What so many rows will take, index included.
  static int64_t BytesFor(int64_t rows, int64_t row_bytes, int64_t alignment);

 private:
  static constexpr int kWays = 12;
  struct alignas(64) Bucket {
    uint8_t tags[kWays];  // 0: no record
    uint32_t passed;      // whether a key went on to the next bucket
    uint32_t records[kWays];
  };
  static_assert(sizeof(Bucket) == 64);
  static constexpr int64_t kRowsMax = std::numeric_limits<uint32_t>::max();

  struct Place {
    uint8_t tag;
    uint64_t bucket;
  };
  Place PlaceOf(uint64_t key) const;
  static int64_t BucketsFor(int64_t rows);
  const std::byte* Record(uint32_t number) const {
    return chunks_[number >> chunk_shift_].data() +
           static_cast<int64_t>(number & ((uint32_t{1} << chunk_shift_) - 1)) * stride_;
  }
  bool IsAt(uint32_t number, uint64_t key) const;
  // The next record of the tag in the bucket from way *way on, which it sets; false: there is none.
  static bool NextMatch(const Bucket& bucket, uint8_t tag, int* way);
  const std::byte* FindFrom(const Place& place, uint64_t key) const;
  absl::Status MakeRoom();
  absl::Status ResizeLastChunk(int64_t records);
  absl::Status Take(int64_t bytes, HostBuffer<std::byte>* buffer);
  void Return(HostBuffer<std::byte>* buffer);

  const Options options_;
  const int64_t stride_;
  const uint64_t salt_;  // as of KeptKeys: nothing that can be seen depends on it
  int chunk_shift_;
  int64_t rows_ = 0;
  std::vector<HostBuffer<std::byte>> chunks_;
  int64_t last_capacity_ = 0;  // records that the last chunk has room for
  HostBuffer<Bucket> buckets_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_SERVING_FROZEN_ROWS_IMPL_H_
