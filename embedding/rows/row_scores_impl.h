#ifndef HOTROW_EMBEDDING_ROWS_ROW_SCORES_IMPL_H_
#define HOTROW_EMBEDDING_ROWS_ROW_SCORES_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/row_line_fields.h"
#include "base/row_lines.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/options.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "embedding/stats.h"

namespace hotrow::internal {

// RowScores counts the living rows of the tables whose max_rows goes by score, by the range of the
// score and by age, and adds lines of scores to these tables.
//
// Ages: the last step of a row lies in a group of row_limit_steps, as in RowAges. Groups that are
// long past are counted together, in aligned blocks of 1, 2, 4, ... of them: a block of n ended at
// least kBlockGap * n groups ago. Which blocks there are follows from the present group alone, and
// blocks grow together only. So a range has about 6 counts for each doubling of the steps, and a
// collection that starts from a snapshot counts as the one before did.
//
// A row with last step 0, or one that has aged, does not count; whoever calls leaves it out. The
// counts of a rank are those of the rows it keeps; AddLines adds them up over the ranks.
class RowScores {
 public:
  // Both outlive it.
  RowScores(const EmbeddingCollectionOptions& options, const Plan& plan);

  // Whether some table is counted, and whether this one is, a position in the plan.
  bool any() const { return any_; }
  bool counts(size_t table) const { return tables_[table].counted; }

  // The same as in RowAges. Note: `before` of a row that begins has last step 0.
  void Clear();
  void Add(size_t table, const RowMark& row, int64_t n = 1);
  void Remove(size_t table, const RowMark& row) { Add(table, row, -1); }
  void BeginUpdate() { moves_.clear(); }
  void Note(size_t table, const RowMark& before, const RowMark& after);
  void CommitUpdate();

  // How old the rows of this rank are behind `step`, as if each had been updated in the first step
  // of its block.
  StepHistogram Ages(size_t table, uint32_t step) const;

  // The scores of the same rows.
  ScoreHistogram Scores(size_t table) const;
  int64_t bytes() const;

  // Adds lines at the end of `step`, a multiple of row_limit_steps. Rows age range by range, in the
  // last one block by block, the oldest first, until no more than max_rows are left; the last block
  // that has rows stays. lines: [tables of the plan]. aged: how many rows of this rank did. With
  // several ranks all call together; shuffle is null with one. Errors: those of the communicator.
  absl::Status AddLines(uint32_t step, RowShuffle* shuffle, std::span<RowLines> lines,
                        int64_t* aged);

 private:
  struct Block {
    uint32_t first_group = 0;
    int64_t rows = 0;
  };
  struct Range {
    int64_t rows = 0;
    std::vector<Block> blocks;  // ascending
  };
  struct Table {
    bool counted = false;
    std::vector<Range> ranges;  // [kScoreRanges] where it is counted
  };
  struct Move {
    size_t table;
    RowMark from;
    RowMark to;
  };
  // What AddLines is about to do to a table that has too many rows.
  struct Cut {
    size_t table = 0;
    int64_t most = 0;     // max_rows
    int64_t above = 0;    // rows in the ranges above `range`
    uint32_t range = 0;   // all below it age
    uint32_t groups = 0;  // of `range` itself those whose last step lies in a group below this one
    bool whole = false;   // those are all that it has
  };

  uint32_t Group(uint32_t step) const { return (step - 1) / group_steps_; }
  // The block that has this group, among those of the present group: its first one, and how many.
  uint32_t BlockOf(uint32_t group, uint32_t* size) const;
  // Brings the blocks to those of another present group.
  void GoTo(uint32_t group);
  // The three parts of AddLines. Each adds some counts up over the ranks, so that all ranks make
  // the same cuts: which tables have too many rows, and the first of the kRangesPerSum ranges among
  // which the last that fits lies; that range; the ages in it.
  absl::Status FindCuts(RowShuffle* shuffle);
  absl::Status FindRanges(RowShuffle* shuffle);
  absl::Status FindAges(RowShuffle* shuffle);
  absl::Status SumUp(RowShuffle* shuffle);
  // Takes out what `cut` says; returns how many rows that were.
  int64_t Apply(const Cut& cut);

  const EmbeddingCollectionOptions& options_;
  const Plan& plan_;
  const uint32_t group_steps_;
  uint32_t group_;  // of the step to come
  bool any_ = false;
  std::vector<Table> tables_;  // by position in the plan
  std::vector<Move> moves_;
  // What AddLines uses.
  std::vector<int64_t> sums_;
  std::vector<Cut> cuts_;
  std::vector<uint32_t> starts_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_ROWS_ROW_SCORES_IMPL_H_
