#include "base/row_lines.h"

#include <algorithm>

namespace hotrow {

uint32_t RowLines::LeastRange(uint32_t last_step) const {
  const auto line = FirstFrom(last_step);
  return line == scores.end() ? 0 : line->range;
}

std::vector<ScoreLine>::const_iterator RowLines::FirstFrom(uint32_t step) const {
  return std::lower_bound(
      scores.begin(), scores.end(), step,
      [](const ScoreLine& line, uint32_t wanted) { return line.step < wanted; });
}

void RowLines::Add(const ScoreLine& line) {
  const auto first = FirstFrom(line.step);
  if (first != scores.end() && first->range >= line.range) return;
  const auto last = first != scores.end() && first->step == line.step ? first + 1 : first;
  const auto begin = std::find_if(scores.cbegin(), last,
                                  [&](const ScoreLine& old) { return old.range <= line.range; });
  scores.insert(scores.erase(begin, last), line);
}

bool RowLines::AreLines(std::span<const ScoreLine> scores, int64_t last_step) {
  ScoreLine before = {.step = 0, .range = kScoreRanges};
  for (const ScoreLine& line : scores) {
    if (line.step <= before.step || line.range >= before.range || line.range == 0) return false;
    before = line;
  }
  return int64_t{before.step} <= last_step;
}

}  // namespace hotrow
