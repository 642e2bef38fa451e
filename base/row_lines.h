#ifndef HOTROW_BASE_ROW_LINES_H_
#define HOTROW_BASE_ROW_LINES_H_

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

// Which rows of a table have aged, said by their last step and their score alone, so that whoever
// has a row can judge it: a collection, a store that drops it, a reader of a snapshot. What makes
// rows age stands in docs/row_life.md.

namespace hotrow {

// Scores fall into so many ranges, which order as the scores do: a range is the upper half of the
// float's bits, so scores that differ by less than 1/128 of themselves may lie in one.
inline constexpr uint32_t kScoreRanges = uint32_t{1} << 16;
inline uint32_t ScoreRange(float score) {
  constexpr uint32_t kSign = uint32_t{1} << 31;
  const auto bits = std::bit_cast<uint32_t>(score);
  return ((bits & kSign) != 0 ? ~bits : bits | kSign) >> 16;
}

// A line: rows with a last step of at most `step` and a score below `range` have aged.
struct ScoreLine {
  uint32_t step = 0;
  uint32_t range = 0;
  friend bool operator==(const ScoreLine&, const ScoreLine&) = default;
};

// The lines of a table. A row without a last step, 0, has not aged. Lines are added and never taken
// back, so a row that has aged stays aged until it is updated.
struct RowLines {
  uint32_t age = 0;  // rows whose last step lies below it have aged, with any score
  // Lines of a table that keeps scores: steps rise and ranges fall, both strictly.
  std::vector<ScoreLine> scores;

  bool none() const { return age == 0 && scores.empty(); }
  bool HasAged(uint32_t last_step, float score) const {
    return HasAgedByStep(last_step) ||
           (last_step != 0 && !scores.empty() && ScoreRange(score) < LeastRange(last_step));
  }
  bool HasAgedByStep(uint32_t last_step) const { return last_step != 0 && last_step < age; }

  // The range below which rows of this last step have aged; 0: none has by a line of scores.
  uint32_t LeastRange(uint32_t last_step) const;

  // Lines that say no more than others go.
  void Add(const ScoreLine& line);

  // Whether these may be a table's: in order, no step above `last_step`.
  static bool AreLines(std::span<const ScoreLine> scores, int64_t last_step);

  friend bool operator==(const RowLines&, const RowLines&) = default;

 private:
  // The first of the lines from this step on, which has the highest range of them.
  std::vector<ScoreLine>::const_iterator FirstFrom(uint32_t step) const;
};

}  // namespace hotrow

#endif  // HOTROW_BASE_ROW_LINES_H_
