#ifndef HOTROW_BASE_ROW_LINE_FIELDS_H_
#define HOTROW_BASE_ROW_LINE_FIELDS_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/row_lines.h"

namespace hotrow {

// The lowest score of a range.
inline float LowestScoreOf(uint32_t range) {
  constexpr uint32_t kSign = uint32_t{1} << 31;
  const uint32_t image = range << 16;
  return std::bit_cast<float>((image & kSign) != 0 ? image & ~kSign : ~image);
}

// What a row says of itself; the lines judge by nothing else.
struct RowMark {
  uint32_t last_step = 0;
  float score = 0;  // 0 where its table keeps none
};

// Where a row has it.
struct RowLineFields {
  int64_t step_offset = 0;    // of the last step, uint32
  int64_t score_offset = -1;  // of the score, float; -1: it has none

  uint32_t LastStep(const std::byte* row) const {
    uint32_t last_step;
    std::memcpy(&last_step, row + step_offset, sizeof(last_step));
    return last_step;
  }
  float Score(const std::byte* row) const {
    float score = 0;
    if (score_offset >= 0) std::memcpy(&score, row + score_offset, sizeof(score));
    return score;
  }
  RowMark Mark(const std::byte* row) const { return {LastStep(row), Score(row)}; }
  bool HasAged(const RowLines& lines, const std::byte* row) const {
    const uint32_t last_step = LastStep(row);
    return lines.HasAgedByStep(last_step) ||
           (!lines.scores.empty() && lines.HasAged(last_step, Score(row)));
  }
};

}  // namespace hotrow

#endif  // HOTROW_BASE_ROW_LINE_FIELDS_H_
