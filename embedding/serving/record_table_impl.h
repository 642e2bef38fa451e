#ifndef HOTROW_EMBEDDING_SERVING_RECORD_TABLE_IMPL_H_
#define HOTROW_EMBEDDING_SERVING_RECORD_TABLE_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/buffer.h"
#include "embedding/serving/budget_share_impl.h"

namespace hotrow::internal {

// How a record lies: [ bytes of a row | key: uint64 | last step: uint32, where steps are kept |
// padding to `alignment` ].
struct RecordShape {
  int64_t row_bytes = 0;   // of what is kept of a row
  int64_t alignment = 16;  // of rows; a power of two, at most 64
  bool keeps_steps = false;

  int64_t stride() const;
  uint64_t key(const std::byte* record) const;
  uint32_t last_step(const std::byte* record) const;  // keeps_steps
  void Write(std::byte* record, uint64_t key, uint32_t last_step, const std::byte* row) const;
};

// RecordTable is the rows of one table, which any number of threads read while one changes them.
//
// Layout:  records lie in chunks of up to 4 MiB, each with a number. The index has buckets of one
//          cache line: tags and numbers of up to 12 records; a key whose bucket is full lies in the
//          next one that is not. Some three quarters of the places are taken, so 7 bytes a row.
// Filling: Add all rows, then Freeze.
// Readers: find rows by a View, which is whole for as long as its reader may look at rows: nothing
//          of it is freed, and records get other keys only in Release. What they read of a row that
//          Set replaces is not defined; they must not look at it (RowOverlay stands before it).
// Changes: Reserve, then Set and Erase as announced, SwitchIndex; view() is then another one. When
//          no reader has an older view: Release. Without readers SetNow and EraseNow do all that.
// Threads: Find any number, without a lock; all others one at a time.
// Budget:  chunks, index and numbers of erased records; nothing is taken beyond it. Where
//          expected_rows says how many come, nothing more than they need is taken; otherwise the
//          last chunk grows as they come, and is cut in the end. The list of the chunks, 8 bytes
//          for each, is not counted.
// Errors:  ResourceExhausted (the budget, memory, or more than 2^32 - 1 rows), InvalidArgument (a
//          key twice); they name the table.
class RecordTable {
 public:
  struct Options {
    std::string table;  // for errors
    RecordShape shape;
    int64_t expected_rows = 0;     // 0: not known
    BudgetShare* share = nullptr;  // outlives the table
  };
  static constexpr int kWays = 12;
  struct alignas(64) Bucket {
    static constexpr int kTagsPerWord = 8;
    static constexpr uint64_t kPassed = uint64_t{1} << 32;  // of the second word

    // A byte for each way, 0: no record. The second word has four, and whether a key went on to the
    // next bucket.
    uint64_t tags[2];
    uint32_t records[kWays];
  };
  static_assert(sizeof(Bucket) == 64);
  struct View {
    const Bucket* buckets = nullptr;
    int64_t num_buckets = 0;
    const std::byte* const* chunks = nullptr;
  };

  explicit RecordTable(const Options& options);
  ~RecordTable();

  absl::Status Add(uint64_t key, uint32_t last_step, const std::byte* row);
  absl::Status Freeze();

  // Sets rows[i] to where the row of keys[i] lies, or to null.
  void Find(const View& view, std::span<const uint64_t> keys,
            std::span<const std::byte*> rows) const;
  View view() const;
  int64_t rows() const { return rows_; }
  bool Has(uint64_t key) const;        // of the index that changes go to
  std::vector<uint64_t> Keys() const;  // in no order

  // Room for so many keys that have no row, and so many that lose theirs. An error, or Cancel,
  // leaves everything as it was.
  absl::Status Reserve(int64_t new_rows, int64_t erased);
  void Cancel();
  void Set(uint64_t key, uint32_t last_step, const std::byte* row);
  void Erase(uint64_t key);  // of a key that has a row
  void SwitchIndex();
  void Release();

  absl::Status SetNow(uint64_t key, uint32_t last_step, const std::byte* row);
  absl::Status EraseNow(uint64_t key);  // of any key

  // Calls for the keys of all rows whose last step is not 0 and lies below the line.
  void ForEachOlder(uint32_t line, absl::FunctionRef<void(uint64_t key)> call) const;

  // What so many rows will take, index included.
  static int64_t BytesFor(int64_t rows, const RecordShape& shape);

 private:
  static constexpr int64_t kRowsMax = std::numeric_limits<uint32_t>::max();
  struct Place {
    uint8_t tag;
    int64_t bucket;
  };
  struct Found {
    int64_t bucket = -1;  // -1: there is none
    int way = 0;
    uint32_t record = 0;
  };

  Place PlaceOf(uint64_t key, int64_t num_buckets) const;
  static int64_t BucketsFor(int64_t rows);
  const std::byte* Record(const std::byte* const* chunks, uint32_t number) const {
    return chunks[number >> chunk_shift_] +
           static_cast<int64_t>(number & ((uint32_t{1} << chunk_shift_) - 1)) * stride_;
  }
  std::byte* MutableRecord(uint32_t number) {
    return chunks_[number >> chunk_shift_].data() +
           static_cast<int64_t>(number & ((uint32_t{1} << chunk_shift_) - 1)) * stride_;
  }
  // Where the key is, from its place on.
  Found FindFrom(const View& view, const Place& place, uint64_t key) const;
  // The index that Set and Erase change, with all chunks.
  HostBuffer<Bucket>& Target() { return next_.empty() ? buckets_ : next_; }
  const HostBuffer<Bucket>& Target() const { return next_.empty() ? buckets_ : next_; }
  Found FindInTarget(uint64_t key) const {
    return FindFrom(TargetView(), PlaceOf(key, Target().size()), key);
  }
  View TargetView() const;
  // Puts a record that is not there into an index that has room for it.
  void Put(HostBuffer<Bucket>* buckets, uint64_t key, uint32_t number);
  void ForEachRecord(absl::FunctionRef<void(uint32_t number)> call) const;
  int64_t Places() const { return kWays * buckets_.size(); }
  absl::Status ReserveIndex(int64_t rows);
  absl::Status AddChunk(int64_t records);
  absl::Status ResizeLastChunk(int64_t records);
  absl::Status MakeRoom();
  void ListChunks();
  int64_t FreeRecords() const;
  uint32_t TakeRecord();
  std::string What(const char* what, int64_t rows) const;

  const Options options_;
  const RecordShape shape_;
  const int64_t stride_;
  const uint64_t salt_;  // as of KeptKeys: nothing that can be seen depends on it
  int chunk_shift_;
  int64_t rows_ = 0;

  std::vector<HostBuffer<std::byte>> chunks_;
  std::vector<int64_t> capacities_;               // of chunks, in records
  std::unique_ptr<const std::byte*[]> list_;      // of chunks, as views have it
  std::unique_ptr<const std::byte*[]> old_list_;  // until Release
  // Records that have never been used: those of chunk `chunk_` from `used_` on, and of all behind.
  int64_t chunk_ = 0;
  int64_t used_ = 0;
  // Records that were erased; each has the number of the next in the place of its key.
  uint64_t first_free_ = 0;  // a number and 1; 0: none
  int64_t num_free_ = 0;

  HostBuffer<Bucket> buckets_;
  HostBuffer<Bucket> next_;         // larger, from Reserve to SwitchIndex
  HostBuffer<Bucket> old_buckets_;  // until Release
  int64_t passed_ = 0;              // buckets of Target() that keys went on from

  // What Cancel goes back to, from Reserve to Release or Cancel.
  int64_t chunks_before_ = -1;
  int64_t passed_before_ = 0;
  HostBuffer<uint32_t> erased_;
  int64_t num_erased_ = 0;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_SERVING_RECORD_TABLE_IMPL_H_
