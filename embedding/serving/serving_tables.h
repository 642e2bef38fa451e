#ifndef HOTROW_EMBEDDING_SERVING_SERVING_TABLES_H_
#define HOTROW_EMBEDDING_SERVING_SERVING_TABLES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/matrix_view.h"
#include "base/row_key.h"
#include "embedding/serving/row_coding.h"
#include "embedding/serving/serving_budget.h"
#include "embedding/serving/serving_rows.h"
#include "ops/jagged.h"
#include "ops/rows/row_init.h"
#include "ops/rows/row_layout.h"
#include "ops/update/sparse_optimizer.h"
#include "ops/update/step_history.h"

namespace hotrow {

// A table as it was trained.
struct ServingTable {
  std::string name;
  ServingRows rows = ServingRows::kAsTrained;
  RowLayout layout;                 // of its rows in training
  SparseOptimizerConfig optimizer;  // of that layout; its other fields count where it is kTable
  Initializer initializer;          // of rows that no step has updated
};

struct ServingTablesOptions {
  std::vector<ServingTable> tables;  // required; in the order of their numbers
  uint64_t seed = 0;                 // of first values
  // Rows and index of all tables, and reader_bytes for each of `readers`; a hard limit. Required,
  // but where `budget` is given.
  int64_t memory_bytes = 0;
  // Shared with other tables, in the place of memory_bytes; null: these have their own.
  std::shared_ptr<ServingBudget> budget;
  // Rows of each table, where they are known: a budget that they do not fit is refused before the
  // first of them comes. Empty: not known.
  std::vector<int64_t> expected_rows;
  // Where a table decays as a whole (WeightDecayMode::kTable): the steps behind first_step, which
  // keys without a row make up for, and with rows_missed_steps rows, too.
  int64_t first_step = 0;
  std::vector<LearningRateRun> learning_rates;
  bool rows_missed_steps = false;
  // Whether rows may age in updates (ServingTables::Update): their last steps are kept, too. On a
  // disk there are no updates without it.
  bool keeps_steps = false;
  // A directory for the rows, of which memory then has a cache; empty: memory has them all.
  std::string rows_dir;
  // What the rows are, for as long as they are that: files of rows with the same are read instead
  // of written. Empty: not known, so they are written again.
  std::string rows_source;
  // What they may be instead, the nearest first, if an update makes of these what was asked for
  // (Builder::rows_found). With keeps_steps.
  std::vector<std::string> older_sources;
  // How fast levels are merged, read and written, on a thread; 0: they are not, but by MergeRows.
  int64_t merge_bytes_per_second = int64_t{64} << 20;
  int32_t readers = 1;  // Scratches that are in use at once, each with its buffers
  // What the caller has for each of them, of the budget as well: ScratchBytes, and its own.
  int64_t reader_bytes = 0;
  Env* env = nullptr;  // of these files; not owned; null: the real file system
  // True ends what adds or changes rows, at the next one, with Cancelled; null: nothing does.
  std::shared_ptr<const std::atomic<bool>> stop;

  absl::Status Validate() const;  // names the field
};

// What the rows on a disk have cost since the tables are there, a warm start included. Keys are
// counted once for each call of Pool, of a large call once for each of its parts.
struct ServingReadStats {
  int64_t hits = 0;    // keys that the cache had
  int64_t misses = 0;  // keys that the disk was asked for
  int64_t absent = 0;  // keys that were known to have no row, without a read
  int64_t reads = 0;   // blocks
  int64_t read_bytes = 0;
  int64_t cache_rows = 0;  // that the cache has room for
  // What changes have cost: files of changed rows before those of all rows, of the table that has
  // most; bytes that updates and merges have written; merges that have failed.
  int64_t levels = 0;
  int64_t written_bytes = 0;
  int64_t merges_failed = 0;
};

// The lookups of one feature.
struct ServingLookup {
  uint32_t table = 0;
  Pooling pooling = Pooling::kSum;
  int64_t batch_size = 0;            // B
  std::span<const uint64_t> keys;    // [N]
  std::span<const int64_t> offsets;  // [B + 1]: keys of bag b are [offsets[b] - offsets[0], ...)
  std::span<const float> weights;    // [N], or empty: every weight is 1
  // [B, D], or with Pooling::kNone [N, D].
  MatrixView<float> output;
};

namespace internal {
class BudgetShare;
class DiskRows;
class DiskUpdate;
class DiskVersion;
class RowKeeper;
struct DiskReader;
}  // namespace internal

// ServingTables is the rows of a trained model, to be read: weights alone, without the state of an
// optimizer. What Pool gives has the bits of EmbeddingCollection::Evaluate on the collection that
// the rows are from, wherever they lie: all in memory, or on a disk behind a cache (rows_dir).
//
// A key without a row reads its first value, as there: a function of {seed, table, key}. Where
// tables are not kept as they were trained, what is read of a row is what its code stands for.
//
// Versions: readers look rows up in a View, which shows one version of all tables. An Update makes
//           the next version while any number of them read.
// Threads:  Pool any number at once, without a lock, each with its own Scratch; budget() and
//           bytes() any. All others one at a time.
// Memory:   a row takes its weights or codes, 8 bytes of key and, with keeps_steps, 4 of its last
//           step, together a multiple of 16 bytes, of codes of 4, and 7 bytes of index. A call
//           takes a Scratch, ScratchBytes: one that needs more goes part by part, a long bag too,
//           so that no call's size decides what it takes.
// On disk:  no Set or Erase once they are there; an Update writes the rows that it changes. The
//           budget, or half of one that is shared, has a byte a row and 8 a block of 4 KiB, buffers
//           for reading, and with all the rest the cache; with keeps_steps twice that index and an
//           eighth, or 256 KiB, are for changes. Its files: docs/formats/serving_rows.md.
// Errors:   ResourceExhausted (the budget or memory), InvalidArgument (a row of a width or a table
//           that is not there, a key twice, a weight that has no code as it is not finite),
//           Cancelled (ServingTablesOptions::stop).
//           On a disk those of its files, also of Pool: DataLoss (a damaged block; no row of it is
//           read), FailedPrecondition, ResourceExhausted (the disk is full); they name the file.
class ServingTables {
 public:
  // One version of all tables, to be read.
  class View;

  // Takes rows in any order, each once. One thread.
  class Builder {
   public:
    static absl::StatusOr<std::unique_ptr<Builder>> Create(const ServingTablesOptions& options);
    ~Builder();
    // Whether the rows lie in rows_dir already: then there is nothing to add, set or erase.
    bool has_rows() const;
    // What they are: 0 those of rows_source, otherwise 1 and a position in older_sources.
    size_t rows_found() const;
    // A row as the table's layout has it.
    absl::Status Add(const RowKey& key, std::span<const std::byte> row);
    // What was kept of a row: ServingRowBytes of the table's `rows`.
    absl::Status AddKept(const RowKey& key, std::span<const std::byte> kept);
    // When all rows are added: a row, new or in the place of another, and a key that has none any
    // more.
    absl::Status Set(const RowKey& key, std::span<const std::byte> row);
    absl::Status Erase(const RowKey& key);
    // The Builder is of no use afterwards.
    absl::StatusOr<std::unique_ptr<ServingTables>> Finish();

   private:
    Builder() = default;
    absl::Status Freeze();
    std::unique_ptr<ServingTables> tables_;
    bool frozen_ = false;
  };

  // The next version of the tables, made while others read the one before:
  //
  //   Begin; Set and Erase, in any order, each key once; Stage.
  //   Readers get Stage's view. When none has the view before any more: Fold.
  //   Readers get Fold's view. When none has Stage's view any more: the destructor.
  //
  // Stage checks all and takes all memory that the rest needs; after an error, or without Fold, the
  // tables are as they were, and no reader may have got a view.
  //
  // A reader never sees a row that is being written: Stage's view shows changed rows where the
  // update keeps them, and Fold writes only to rows that it does not show.
  //
  // Memory: until it is destroyed, changed rows twice, some 16 bytes an entry of index, 12 a key
  //         that loses its row, and a larger index where new keys need one. All of the budget.
  // On disk: Stage writes a file of each table's changed rows, which is what the next open finds;
  //         memory is bounded for any size. Where Stage was not followed by Fold, the same
  //         update may be made again. ResourceExhausted (the disk is full), FailedPrecondition
  //         (another process changes rows there), Unavailable (too many files wait for being
  //         merged).
  class Update {
   public:
    struct Size {
      int64_t rows = 0;       // calls of Set, at most
      int64_t erased = 0;     // calls of Erase, at most
      uint32_t age_line = 0;  // rows whose last step is not 0 and lies below it lose their key
      // Rows of the table afterwards, where known; on a disk nobody counts them.
      int64_t rows_after = -1;
    };
    // sizes: by table. An age line needs keeps_steps. rows_source: what the rows are afterwards, as
    // in ServingTablesOptions. The tables outlive it; one at a time.
    static absl::StatusOr<std::unique_ptr<Update>> Begin(ServingTables* tables,
                                                         std::span<const Size> sizes,
                                                         std::string rows_source = "");
    ~Update();

    absl::Status Set(const RowKey& key, std::span<const std::byte> row);
    absl::Status Erase(const RowKey& key);  // of a key that may have none
    absl::StatusOr<const View*> Stage();
    const View* Fold();

    // Rows of a table with the update, after Stage, and keys that have lost their row to it. On a
    // disk: rows_after, or so many at most, and keys of Erase and aged rows of Set.
    int64_t rows(uint32_t table) const;
    int64_t rows_erased() const;

   private:
    struct Table;
    Update(ServingTables* tables, std::string rows_source);
    absl::StatusOr<std::shared_ptr<const internal::DiskVersion>> StageOnDisk();
    absl::Status TooMany(const RowKey& key, const char* what, int64_t size) const;
    ServingTables* const tables_;
    const std::string rows_source_;
    std::vector<Table> changes_;                  // by table
    std::unique_ptr<internal::DiskUpdate> disk_;  // null: rows are in memory
    std::unique_ptr<View> staged_;
    std::unique_ptr<View> folded_;  // from Stage on
    bool is_folded_ = false;
  };

  // What a call of Pool needs; reused, so that its memory is. One that has read rows on a disk must
  // not outlive the tables.
  class Scratch {
   public:
    Scratch();
    ~Scratch();

   private:
    friend class ServingTables;
    // What is pooled at once of a lookup: whole bags, or some keys of one.
    struct Part {
      ServingLookup lookup;
      int64_t cut_offsets[2] = {};  // of keys of one bag, in the place of lookup.offsets
      bool is_cut = false;
      bool adds = false;      // to what the output has of the bag
      int64_t mean_over = 0;  // it ends a bag of so many keys, whose mean is wanted
    };
    std::vector<Part> parts;
    std::unique_ptr<internal::DiskReader> disk;
    std::vector<uint32_t> numbers;       // of the lookups of a call, among its distinct keys
    std::vector<const std::byte*> rows;  // [N]
    std::vector<int32_t> inverse;        // 0, 1, ...
    std::vector<int64_t> offsets;        // from 0
    std::vector<uint64_t> missing;
    std::vector<std::byte*> missing_rows;
    HostBuffer<std::byte> first_values;
    HostBuffer<float> decoded;       // [N, D], of codes
    HostBuffer<std::byte> narrowed;  // first values in another precision
    HostBuffer<float> floats;        // [D]
  };

  ~ServingTables();
  // What a Scratch of such tables takes at most: 1 MiB, and where rows lie on a disk 8 MiB or a
  // share of the budget, if rows are short.
  static int64_t ScratchBytes(const ServingTablesOptions& options);

  const std::vector<ServingTable>& tables() const { return options_.tables; }
  int64_t rows(uint32_t table) const;
  // The keys of the rows that there are, ascending. A copy. For rows in memory.
  std::vector<uint64_t> KeysOf(uint32_t table) const;
  int64_t bytes() const;          // taken of the budget, all in all
  int64_t readers_bytes() const;  // of these what is for readers
  const ServingBudget& budget() const;

  // The version as it is now.
  const View& view() const { return *view_; }
  // Looks the keys up and pools them as ops/rows/pooled_lookup.h does. Offsets ascend and end at N.
  absl::Status Pool(const View& view, const ServingLookup& lookup, Scratch* scratch) const;
  absl::Status Pool(const ServingLookup& lookup, Scratch* scratch) const {
    return Pool(*view_, lookup, scratch);
  }
  // The same for all features of a call, whose misses a disk is asked for together.
  absl::Status Pool(const View& view, std::span<const ServingLookup> lookups,
                    Scratch* scratch) const;

  // Whether there is a rows_dir. A Scratch takes its buffers at its first use; Prepare does so
  // before, and after `readers` of them it is ResourceExhausted.
  bool on_disk() const { return disk_ != nullptr; }
  absl::Status Prepare(Scratch* scratch) const;
  // What an Update on a disk does first: takes the lock of rows_dir, which is kept. OK where rows
  // are in memory. FailedPrecondition: another process has it, or has written other rows there.
  absl::Status LockRows();
  // Ends merges and gives the lock back, so that others may write there. No update may be going on.
  void UnlockRows();
  absl::Status MergeRows();             // merges what is to be merged, where no thread does
  ServingReadStats read_stats() const;  // zeros where rows are in memory
  // Writes which rows the cache has to rows_dir, whose next tables read these first. Any thread.
  absl::Status SaveHotKeys() const;
  std::vector<std::string> notes() const;  // why they did not

  // While nobody reads: a row, new or in the place of another, and a key that has none any more.
  absl::Status Set(const RowKey& key, std::span<const std::byte> row);
  absl::Status Erase(const RowKey& key);

 private:
  struct Table;
  friend class internal::RowKeeper;

  explicit ServingTables(const ServingTablesOptions& options);
  absl::Status Init();
  void MakeView();
  // Whether a row may come: its table is there, and nobody has asked to stop.
  absl::Status CheckTable(const RowKey& key) const;
  absl::Status FirstValues(uint32_t table, std::span<const uint64_t> keys,
                           std::span<std::byte* const> rows) const;
  absl::Status ReadFirstValues(uint32_t table, Scratch* scratch) const;
  absl::Status CatchUpRows(uint32_t table, std::span<const uint64_t> keys,
                           std::span<std::byte* const> rows) const;
  absl::Status OpenDisk();
  Hash128 RowsId(const std::string& rows_source) const;
  // Takes a part of at most `most` keys off a lookup, which goes on at *bag and *key.
  static Scratch::Part TakePart(const ServingLookup& lookup, int64_t most, int64_t* bag,
                                int64_t* key);
  absl::Status PoolParts(const View& view, Scratch* scratch) const;
  absl::Status PoolRows(const Scratch::Part& part, Scratch* scratch) const;

  const ServingTablesOptions options_;
  std::unique_ptr<internal::BudgetShare> share_;
  std::unique_ptr<internal::DiskRows> disk_;  // null: rows are in memory
  std::vector<std::unique_ptr<Table>> rows_;  // by table
  std::unique_ptr<internal::RowKeeper> keeper_;
  std::unique_ptr<View> view_;
  int64_t lookups_max_ = 0;  // that a Scratch has room for
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_SERVING_SERVING_TABLES_H_
