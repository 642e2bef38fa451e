#ifndef HOTROW_EMBEDDING_SERVING_ROW_SORTER_IMPL_H_
#define HOTROW_EMBEDDING_SERVING_ROW_SORTER_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/row_key.h"
#include "embedding/serving/budget_share_impl.h"

namespace hotrow::internal {

// RowSorter takes rows in any order and gives them in that of {table, Mix64(key)}.
//
// What fills its memory is sorted and written to a file as a run, in pieces with a checksum each;
// in the end runs are merged. Rows that fit into memory see no file. The file goes with the sorter.
//
// Threads: one.
// Budget:  memory_bytes, taken in Create; after Finish what runs need.
// Errors:  those of File; DataLoss (a piece that is read is not what was written);
//          ResourceExhausted (the budget, or more runs than memory_bytes can merge);
//          InvalidArgument (a key twice).
class RowSorter {
 public:
  enum class Kind : uint32_t {
    kAdd = 0,    // a row of a key that has none
    kSet = 1,    // a row of a key that may have one, which goes
    kErase = 2,  // no row
  };
  struct Options {
    Env* env = nullptr;
    std::string path;                 // of the file
    std::vector<std::string> tables;  // names, for errors
    std::vector<int64_t> row_bytes;   // by table
    int64_t memory_bytes = 0;
    BudgetShare* share = nullptr;  // outlives the sorter
  };
  static absl::StatusOr<std::unique_ptr<RowSorter>> Create(const Options& options);
  ~RowSorter();

  // row: of the table's width; not read with kErase. For one key the last call counts.
  absl::Status Put(Kind kind, const RowKey& key, const std::byte* row);
  // Goes to the first row.
  absl::Status Finish();

  // Calls of Put with kAdd or kSet for a table, so many rows at most.
  int64_t rows_max(uint32_t table) const { return rows_max_[table]; }

  bool done() const { return done_; }
  const RowKey& key() const { return key_; }
  const std::byte* row() const { return row_.data(); }  // until Next
  absl::Status Next();

 private:
  // A record in memory. Ordered by table, hash and arrival.
  struct Entry {
    uint64_t hash;
    uint32_t table_kind;  // table << 2 | kind
    uint32_t place;       // of the record, in words of 8 bytes: they arrive in ascending order
  };
  // What stands before a row in memory and in the file.
  struct RecordHeader {
    uint64_t key;
    uint32_t table_kind;
    uint32_t reserved;  // 0
  };
  // What lies before the records of a piece.
  struct PieceHeader {
    uint32_t crc;    // of the rest, up to bytes
    uint32_t bytes;  // header and records
  };
  // A run, or the records in memory.
  struct Run {
    int64_t begin = 0;  // of the next piece, in the file
    int64_t end = 0;
    std::byte* piece = nullptr;
    int64_t at = 0;     // of the record at hand, in the piece
    int64_t bytes = 0;  // of the piece
  };
  // Where the merge stands in a run.
  struct Head {
    uint64_t hash;
    uint32_t table;
    uint32_t run;
  };

  explicit RowSorter(const Options& options);
  int64_t RecordBytes(uint32_t table_kind) const;
  Entry* entries() {
    return reinterpret_cast<Entry*>(arena_.data() + arena_.size()) - num_entries_;
  }
  void Sort();
  absl::Status Spill();
  absl::Status ReadPiece(Run* run);
  // The next record of all, in order; null: there is none.
  absl::StatusOr<const RecordHeader*> Take();
  absl::Status PushHead(uint32_t run);

  const Options options_;
  int64_t longest_ = 0;          // record
  int64_t piece_bytes_ = 0;      // at most
  HostBuffer<std::byte> arena_;  // records from its front, entries from its end
  int64_t used_ = 0;             // bytes of records
  int64_t num_entries_ = 0;
  std::vector<int64_t> rows_max_;
  std::unique_ptr<File> file_;
  int64_t file_bytes_ = 0;
  std::vector<Run> runs_;
  std::vector<Head> heads_;  // a heap
  int64_t next_entry_ = 0;   // where nothing was written

  bool done_ = false;
  const RecordHeader* ahead_ = nullptr;  // the first record of the next key
  RowKey key_;
  HostBuffer<std::byte> row_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_SERVING_ROW_SORTER_IMPL_H_
