#ifndef HOTROW_EMBEDDING_ROWS_ROW_LIFE_IMPL_H_
#define HOTROW_EMBEDDING_ROWS_ROW_LIFE_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "base/row_line_fields.h"
#include "base/row_lines.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/kept_state.h"
#include "embedding/options.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/rows/lookup_counters_impl.h"
#include "embedding/rows/row_ages_impl.h"
#include "embedding/rows/row_scores_impl.h"
#include "embedding/stats.h"
#include "embedding/tiers/initial_rows_impl.h"
#include "store/row_store.h"

namespace hotrow::internal {

// What RowLife has found of the rows of a batch, by one look at the mark of each, and how they are
// read where some have aged: where they lie, or initial rows. Kept from step to step, so that
// its memory is.
struct LivingRows {
  std::vector<std::byte*> rows;  // empty: none has aged
  HostBuffer<std::byte> copies;

  // Positions in the batch, ascending.
  std::vector<size_t> aged;
  std::vector<size_t> candidates;  // keys without a living row, of tables that do not admit all
  // Marks by position, of tables with limits or scores; last step 0: no living row.
  std::vector<RowMark> marks;
  uint64_t state = 0;  // of RowLife, of which that is true; 0: of none

  // The aged ones.
  std::vector<RowKey> keys;
  std::vector<std::byte*> places;
  // Scratch: what one thread has found.
  struct Part {
    std::vector<size_t> aged;
    std::vector<size_t> candidates;
  };
  std::vector<Part> parts;
};

// RowLife is which keys of the tables have rows, and for how long: admission and ageing; and what
// scores the rows have. All are functions of the keys and the batches trained on:
// docs/decisions/row_life.md.
//
// Ageing:    a row that has aged by the lines of its table (base/row_lines.h) reads as its initial
//            row. Tables with a floor or a capacity count their rows, RowAges and RowScores.
// Admission: of a key without a row, or with an aged one.
// Scores:    of the rows that a step trains, from what their lookups brought.
// A step:    Read after its rows are resolved, which looks at the rows; what follows goes by what
//            that found. In its update: Admit, which changes nothing; once nothing can fail any
//            more Renew and NoteUpdate, and WriteScores and EndStep when the rows have moved.
//            Where no table has such a policy these do nothing, and look at no row.
// Threads:   the caller's of the collection. Rows are in host memory, and nothing moves them.
class RowLife final : public EmbeddingCounters {
 public:
  // options and plan outlive it. shuffle: null with one rank; outlives it, too. Errors:
  // ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<RowLife>> Create(const EmbeddingCollectionOptions& options,
                                                         const Plan& plan, RowShuffle* shuffle);

  // Counts the rows of tables with limits, all of which are in the store. Errors: those of the
  // store; FailedPrecondition where a row is younger than the collection.
  absl::Status CountRows(RowStore* store);

  // Whether this row of a table, a position in the plan, has aged as of the next step.
  bool IsAged(size_t table, const std::byte* row) const {
    return fields_[table].HasAged(lines_[table], row);
  }
  // What a row of this table says of itself.
  RowMark MarkOf(size_t table, const std::byte* row) const { return fields_[table].Mark(row); }

  // Where the rows of these keys are to be read: `rows`, or out->rows. training: an update may
  // follow. ResourceExhausted.
  absl::Status Read(const ExecContext& ctx, const TableKeys& keys, std::span<std::byte* const> rows,
                    bool training, LivingRows* out) const;
  // Before Admit, Renew and NoteUpdate: looks at the rows again if anything was erased or written
  // since Read.
  void LookAgain(const ExecContext& ctx, const TableKeys& keys, std::span<std::byte* const> rows,
                 LivingRows* out) const;

  // Takes the keys that get no row in this step out of `trained` (empty: all are; stays empty if
  // all do). lookups[i]: of key i in the step, on all ranks. step: of the update. ResourceExhausted
  // where there is no room for more counters.
  absl::Status Admit(const TableKeys& keys, std::span<const int32_t> lookups,
                     const LivingRows& living, uint32_t step, std::vector<uint8_t>* trained);
  // Writes the initial row over the aged ones that the step trains. rows: where they are updated.
  absl::Status Renew(const ExecContext& ctx, const TableKeys& keys,
                     std::span<std::byte* const> rows, const LivingRows& living,
                     std::span<const uint8_t> trained);
  // Whether the rows of this table are counted.
  bool limits(size_t table) const {
    return ages_of_rows_.counts(table) || scores_of_rows_.counts(table);
  }
  // Notes which rows the update of `step` makes young, and their scores. scores: as
  // RuledRows::scores.
  void NoteUpdate(const TableKeys& keys, std::span<const double> scores, const LivingRows& living,
                  std::span<const uint8_t> trained, uint32_t step);
  // After the rows have moved: writes the scores that were noted. rows: where they were updated.
  void WriteScores(const TableKeys& keys, std::span<std::byte* const> rows,
                   std::span<const uint8_t> trained) const;
  // The update is done: counts what Admit and NoteUpdate found, and moves the lines. step: that of
  // the update. Errors: those of the communicator.
  absl::Status EndStep(uint32_t step);

  // These keys have no counters any more.
  void Erase(std::span<const RowKey> keys);
  // The score of a row that is written with this last step: 0, or the lowest one that lives.
  float FirstScore(size_t table, uint32_t last_step) const;
  // A table has got so many such rows.
  void CountWritten(size_t table, const RowMark& row, int64_t n);
  // These living rows of a table with limits are gone.
  void ForgetRows(size_t table, std::span<const RowMark> rows);

  // Lets the store drop some aged rows. Between two steps, while no snapshot is being written. An
  // error of the store is left to its next call.
  void DropSome(uint32_t step, RowStore* store);

  // The lines by number of the table.
  std::vector<RowLines> age_lines() const;
  void AddTo(EmbeddingStats* stats) const;

  // What EmbeddingCounters asks for.
  bool kept() const override { return counters_.slots() > 0; }
  absl::StatusOr<HostBuffer<std::byte>> Save() override;
  absl::Status Load(std::span<const std::byte> bytes) override;

 private:
  // A counter that EndStep sets. The search for its slot begins where Admit's ended.
  struct NewCount {
    RowKey key;
    LookupCounters::Slot from = 0;
    uint32_t count = 0;
  };

  RowLife(const EmbeddingCollectionOptions& options, const Plan& plan, RowShuffle* shuffle);
  bool limits() const { return ages_of_rows_.any() || scores_of_rows_.any(); }
  // Keeps limits at a multiple of row_limit_steps.
  absl::Status KeepLimits(uint32_t step);
  // Looks at the marks of the rows: fills all of *out but the rows themselves.
  void Look(const ExecContext& ctx, const TableKeys& keys, std::span<std::byte* const> rows,
            bool training, LivingRows* out) const;
  // Looks at the rows [begin, end) of one table.
  void LookAt(size_t table, size_t begin, size_t end, std::span<std::byte* const> rows,
              bool training, LivingRows::Part* part, std::span<RowMark> marks) const;
  // Whether an update changes what is counted of the rows of a table, or their scores.
  bool NotesMarks(size_t table) const {
    return limits(table) || plan_.tables[table].layout.scored();
  }
  // Whether there is anything to see in the rows of a table.
  bool LooksAt(size_t table, bool training) const {
    return !lines_[table].none() ||
           (training && (NotesMarks(table) || !ConfigOf(table).admission.always()));
  }
  const TableConfig& ConfigOf(size_t table) const {
    return options_.tables[static_cast<size_t>(plan_.tables[table].config)];
  }
  // Which keys without a row join: those that do not in this step leave `trained`. Both of one
  // table; by count, which also notes what becomes of the counters, and by coin.
  void AdmitByCount(const Admission& admission, const TableKeys& keys,
                    std::span<const size_t> candidates, std::span<const int32_t> lookups,
                    uint32_t step, std::vector<uint8_t>* trained);
  void AdmitByCoin(const Admission& admission, const TableKeys& keys,
                   std::span<const size_t> candidates, std::span<const int32_t> lookups,
                   uint32_t step, std::vector<uint8_t>* trained);
  void Reject(size_t position, const TableKeys& keys, std::vector<uint8_t>* trained);

  const EmbeddingCollectionOptions& options_;
  const Plan& plan_;
  RowShuffle* const shuffle_;
  const InitialRows initial_rows_;
  uint32_t steps_;      // that were made
  uint64_t state_ = 1;  // another one after each change of rows or lines
  // [tables of the plan]
  std::vector<RowLines> lines_;
  std::vector<RowLineFields> fields_;
  RowAges ages_of_rows_;
  RowScores scores_of_rows_;
  LookupCounters counters_;
  int64_t forget_steps_min_ = 0;  // of the tables that forget; 0: none does

  // Notes of the update that Admit was called for.
  std::vector<NewCount> counts_;
  std::vector<RowKey> joined_;  // their counters go
  int64_t new_counters_ = 0;
  int64_t rejected_now_ = 0;

  // What Renew uses.
  std::vector<RowKey> renewed_keys_;
  std::vector<std::byte*> renewed_rows_;

  std::vector<float> new_scores_;  // of NoteUpdate, by key

  // What DropSome goes by.
  int64_t ttl_steps_min_ = 0;  // of the tables without limits; 0: none of them ages
  static constexpr int64_t kLooksPerAgeMax = 4;
  int64_t looks_per_age_ = kLooksPerAgeMax;
  int64_t looked_at_ = 0;     // rows, since that was judged
  int64_t had_aged_ = 0;      // of them
  int64_t store_rows_ = 0;    // as counted last
  uint32_t count_again_ = 0;  // at this step
  int64_t to_see_ = 0;        // rows that the store is to look at, times ttl_steps_min_
  int64_t looks_ = 0;         // rows that it is to look at besides, for tables with limits

  int64_t rejected_keys_ = 0;
  int64_t aged_rows_ = 0;
  int64_t dropped_rows_ = 0;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROWS_ROW_LIFE_IMPL_H_
