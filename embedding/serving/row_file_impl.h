#ifndef HOTROW_EMBEDDING_SERVING_ROW_FILE_IMPL_H_
#define HOTROW_EMBEDDING_SERVING_ROW_FILE_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/format_version.h"
#include "base/hash.h"
#include "base/io_queue.h"
#include "embedding/serving/budget_share_impl.h"

// A file with the rows of one table, sorted by Mix64 of the key, docs/formats/serving_rows.md.
namespace hotrow::internal {

inline constexpr FormatVersions kRowFileVersions = {.first = 1, .last = 1};
inline constexpr char kRowFileMagic[8] = {'H', 'O', 'T', 'R', 'O', 'W', 'R', 'F'};
// What a disk reads at once. Blocks of rows that are longer are a multiple of it.
inline constexpr int64_t kRowFileSectorBytes = 4096;
inline constexpr int64_t kRowFileHeaderBytes = 4096;  // the header, then zeros

// Offset 0. Numbers are little-endian.
struct RowFileHeader {
  char magic[8];
  uint32_t version;
  uint32_t table;  // its number
  uint64_t id[2];  // of the rows of all tables, high word first
  uint64_t row_bytes;
  uint64_t rows;
  uint64_t block_bytes;
  uint64_t blocks;
  uint64_t filter_bytes;
  uint32_t fences_crc;
  uint32_t filter_crc;
  uint32_t reserved;  // 0
  uint32_t crc;       // of the bytes before
};
static_assert(sizeof(RowFileHeader) == 88 && offsetof(RowFileHeader, crc) == 84);

// A block: this, then `rows` keys, whose hashes ascend, then their rows, then zeros.
struct RowBlockHeader {
  uint32_t crc;  // of {id, table, number of the block} and the rest of the block
  uint32_t rows;
};
static_assert(sizeof(RowBlockHeader) == 8);

// The size of a table's blocks: the smallest multiple of the sector that holds a row.
int64_t RowBlockBytes(int64_t row_bytes);

// Which rows a file has.
struct RowFileSpec {
  std::string path;
  std::string table_name;  // for errors
  uint32_t table = 0;
  Hash128 id;
  int64_t row_bytes = 0;
};

// Writes the rows of one table to an empty file. One thread.
//
// Budget: fences, filter and a piece of the file, given back by the destructor.
// Errors: those of File, ResourceExhausted (the budget).
class RowFileWriter {
 public:
  // rows_max: as many as may come. piece_bytes: what is written at once, a block at least.
  // filter_bytes: of a row; with 2 some 0.1 % of the keys without a row are taken for others.
  static absl::StatusOr<std::unique_ptr<RowFileWriter>> Create(const RowFileSpec& spec,
                                                               int64_t rows_max,
                                                               int64_t piece_bytes, File* file,
                                                               BudgetShare* share,
                                                               int64_t filter_bytes = 1);
  ~RowFileWriter();

  // Hashes of keys ascend.
  absl::Status Add(uint64_t key, const std::byte* row);
  absl::Status Finish();

 private:
  RowFileWriter(const RowFileSpec& spec, File* file, BudgetShare* share);
  absl::Status EndBlock();
  absl::Status WritePiece();

  const RowFileSpec spec_;
  File* const file_;
  BudgetShare* const share_;
  const int64_t block_bytes_;
  const int64_t rows_per_block_;
  HostBuffer<uint64_t> fences_;
  HostBuffer<uint32_t> filter_;
  HostBuffer<std::byte> piece_;  // whole blocks
  int64_t in_piece_ = 0;         // bytes of ended blocks
  int64_t in_block_ = 0;         // rows
  int64_t blocks_ = 0;           // ended
  int64_t rows_ = 0;
  int64_t offset_ = kRowFileHeaderBytes;  // of the piece in the file
  uint64_t last_hash_ = 0;
};

// A file that is read.
//
// Memory:  the first hash of each block and a filter of a byte a row: a split-block Bloom filter,
//          as Parquet has it, which takes some 3 % of the keys without a row for ones that have.
// Threads: all methods, any number.
class RowFile {
 public:
  // Checks the header, fences, filter and the file's length, not its blocks. Errors: NotFound;
  // DataLoss (damaged, cut short, or other rows), FailedPrecondition (another version),
  // ResourceExhausted (the budget); they name the file and the remedy.
  static absl::StatusOr<std::unique_ptr<RowFile>> Open(Env& env, const RowFileSpec& spec,
                                                       BudgetShare* share);
  ~RowFile();

  int64_t rows() const { return rows_; }
  int64_t blocks() const { return fences_.size(); }
  int64_t block_bytes() const { return block_bytes_; }
  const RowFileSpec& spec() const { return spec_; }
  int64_t index_bytes() const { return fences_.bytes() + filter_.bytes(); }  // in memory
  int64_t bytes() const {                                                    // of the file
    return kRowFileHeaderBytes + blocks() * block_bytes_ + index_bytes();
  }

  // The block in which the row of this key lies if it has one; -1: it has none.
  int64_t BlockOf(uint64_t key) const;
  // Reads a block to `data`, which has room for it and is aligned to a sector.
  IoRequest Request(int64_t block, std::byte* data) const;
  // OK if the request has read the block as it was written; otherwise DataLoss and the errors of
  // IoQueue, naming file and block.
  absl::Status Check(int64_t block, const IoRequest& request) const;
  // The row of a key in a block that was checked; null: it has none.
  const std::byte* Find(const std::byte* block, uint64_t key) const;

  // For who reads the whole file, in its order: reads and checks the blocks from `first` on that
  // data has room for, which is aligned as for Request; returns how many. Errors: as Check.
  absl::StatusOr<int64_t> ReadBlocks(int64_t first, std::span<std::byte> data) const;
  // The rows of a block that was checked, and the i-th of them.
  static int64_t RowsOf(const std::byte* block);
  uint64_t KeyAt(const std::byte* block, int64_t i) const;
  const std::byte* RowAt(const std::byte* block, int64_t i) const;

 private:
  RowFile(const RowFileSpec& spec, BudgetShare* share) : spec_(spec), share_(share) {}
  absl::Status ReadHead(Env& env);
  absl::Status Damaged(const std::string& what) const;

  const RowFileSpec spec_;
  BudgetShare* const share_;
  std::unique_ptr<File> file_;
  int64_t rows_ = 0;
  int64_t block_bytes_ = 0;
  HostBuffer<uint64_t> fences_;
  HostBuffer<uint32_t> filter_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_SERVING_ROW_FILE_IMPL_H_
