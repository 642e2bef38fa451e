#ifndef HOTROW_EMBEDDING_ROWS_ROW_AGES_IMPL_H_
#define HOTROW_EMBEDDING_ROWS_ROW_AGES_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/row_lines.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/options.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/stats.h"

namespace hotrow::internal {

// RowAges counts the living rows of the tables that have a floor or a capacity (min_rows,
// max_rows by age), by the group of steps in which each was updated last, and moves the lines of
// these tables. Group g has the steps g * G + 1 to (g + 1) * G, where G is row_limit_steps.
//
// A row with last step 0 or below the line of its table does not count; whoever calls leaves it
// out. The counts of a rank are those of the rows it keeps; MoveLines adds them up over the ranks.
class RowAges {
 public:
  // Both outlive it. lines: by position in the plan, as of now.
  RowAges(const EmbeddingCollectionOptions& options, const Plan& plan,
          std::span<const RowLines> lines);

  // Whether some table is counted, and whether this one is, a position in the plan.
  bool any() const { return any_; }
  bool counts(size_t table) const { return tables_[table].counted; }

  // Forgets all rows. A count from the beginning follows.
  void Clear();
  // So many rows with this last step are there; one is not there any more.
  void Add(size_t table, uint32_t last_step, int64_t n = 1) { *GroupOf(table, last_step) += n; }
  void Remove(size_t table, uint32_t last_step) { *GroupOf(table, last_step) -= 1; }

  // How old the rows of one table on this rank are, as of behind `step`: each as old as the first
  // step of its group makes it.
  StepHistogram Ages(size_t table, uint32_t step) const;

  int64_t bytes() const;

  // One update, in two parts, because the update may fail between them. Note: a row that `step`
  // trains, with the last step that it had, 0 where it had none. Commit: the update is done.
  void BeginUpdate() { moves_.clear(); }
  void Note(size_t table, uint32_t last_step, uint32_t step);
  void CommitUpdate();

  // Moves the lines, [tables of the plan], at the end of `step`, a multiple of row_limit_steps.
  // aged: how many rows of this rank fell below them. With several ranks all call together; shuffle
  // is null with one. Errors: those of the communicator.
  absl::Status MoveLines(uint32_t step, RowShuffle* shuffle, std::span<RowLines> lines,
                         int64_t* aged);

 private:
  struct Table {
    bool counted = false;
    uint32_t first_group = 0;   // of `rows`: that of the line
    std::vector<int64_t> rows;  // by group
  };
  struct Move {
    size_t table;
    uint32_t from;  // 0: a new row
    uint32_t to;
  };

  uint32_t Group(uint32_t step) const { return (step - 1) / group_steps_; }
  int64_t* GroupOf(size_t table, uint32_t last_step);
  // The first group of a table that lives on. rows: of all ranks, from the group of the line to the
  // one that `step` ends.
  size_t FirstLiving(const TableConfig& config, const Table& table, uint32_t step,
                     std::span<const int64_t> rows) const;

  const EmbeddingCollectionOptions& options_;
  const Plan& plan_;
  const uint32_t group_steps_;
  bool any_ = false;
  std::vector<Table> tables_;  // by position in the plan
  std::vector<Move> moves_;
  std::vector<int64_t> sums_;  // of MoveLines
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROWS_ROW_AGES_IMPL_H_
