#ifndef HOTROW_EMBEDDING_SERVING_ROW_LEVELS_IMPL_H_
#define HOTROW_EMBEDDING_SERVING_ROW_LEVELS_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/hash.h"
#include "embedding/serving/budget_share_impl.h"
#include "embedding/serving/row_file_impl.h"

// Rows on a disk that change: a file with all rows of a table, and before it levels, files with the
// rows that deltas have changed since, docs/formats/serving_rows.md.
namespace hotrow::internal {

// Behind a row of a table that may change: its last step, or that the key has no row any more.
inline constexpr int64_t kRowStepBytes = sizeof(uint32_t);
inline constexpr uint32_t kRowGone = std::numeric_limits<uint32_t>::max();

// The files of each table, the newest first; the last has all rows. Does not change.
struct RowLevels {
  using Files = std::vector<std::shared_ptr<const RowFile>>;
  std::vector<Files> of;
};

// How many of a table's files, from the newest on, are to become one; 0: they are well as they are.
// rows: of each file. Levels are merged where four or more are of a size, so that there are some
// log2(n / 3) + 3 of n equal ones; all files, where levels have a quarter of the rows of the last.
size_t LevelsToMerge(std::span<const int64_t> rows);
// With so many levels a table takes no more, until they are merged.
inline constexpr size_t kLevelsMax = 24;

// The file that says which files rows are in; one rename makes it another.
struct LevelsManifest {
  struct Table {
    int64_t rows = 0;            // after the last delta
    uint32_t age_line = 0;       // rows whose last step is not 0 and lies below it are gone
    std::vector<Hash128> files;  // their ids, the newest first
  };
  Hash128 id;  // of what all of it makes, as DiskRows::Options::ids
  std::vector<Table> tables;
};
inline constexpr char kLevelsName[] = "levels";
absl::Status WriteLevelsManifest(Env& env, const std::string& dir, const LevelsManifest& levels);
// nullopt: there is none. Errors: DataLoss (damaged), FailedPrecondition (another version).
absl::StatusOr<std::optional<LevelsManifest>> ReadLevelsManifest(Env& env, const std::string& dir);

// Reads the rows of a file in its order. One thread.
class RowFileScanner {
 public:
  // Stands at the first row. piece_bytes: what is read at once, a block at least, of the budget.
  static absl::StatusOr<std::unique_ptr<RowFileScanner>> Create(std::shared_ptr<const RowFile> file,
                                                                int64_t piece_bytes,
                                                                BudgetShare* share);
  ~RowFileScanner();

  bool done() const { return block_ == nullptr; }
  // What the present row has, until Next; there is one unless done().
  uint64_t key() const { return file_->KeyAt(block_, row_); }
  const std::byte* row() const { return file_->RowAt(block_, row_); }
  absl::Status Next();

 private:
  RowFileScanner(std::shared_ptr<const RowFile> file, BudgetShare* share)
      : file_(std::move(file)), share_(share) {}
  absl::Status NextBlock();

  const std::shared_ptr<const RowFile> file_;
  BudgetShare* const share_;
  HostBuffer<std::byte> piece_;
  std::byte* begin_ = nullptr;        // of the piece, aligned
  int64_t next_ = 0;                  // block of the file to be read
  int64_t blocks_ = 0;                // in the piece behind the present one
  const std::byte* block_ = nullptr;  // the present one; null: there is none any more
  int64_t row_ = 0;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_SERVING_ROW_LEVELS_IMPL_H_
