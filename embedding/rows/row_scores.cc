#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/row_line_fields.h"
#include "base/status_macros.h"
#include "embedding/rows/row_scores_impl.h"
#include "embedding/table_policies.h"

namespace hotrow::internal {
namespace {

// See RowScores. Ages are told apart to about a fourth of themselves.
constexpr uint64_t kBlockGap = 4;
// Ranks add their counts up in two steps: of so many ranges together, then of each of those.
constexpr uint32_t kRangesPerSum = 256;
constexpr uint32_t kSums = kScoreRanges / kRangesPerSum;

// Goes down from the last of counts that do not all fit and adds those that do to *above. Returns
// the first that does not.
uint32_t FirstTooMany(std::span<const int64_t> counts, int64_t most, int64_t* above) {
  auto at = static_cast<uint32_t>(counts.size()) - 1;
  while (*above + counts[at] <= most) {
    HOTROW_CHECK(at > 0);
    *above += counts[at--];
  }
  return at;
}

}  // namespace

RowScores::RowScores(const EmbeddingCollectionOptions& options, const Plan& plan)
    : options_(options),
      plan_(plan),
      group_steps_(static_cast<uint32_t>(options.row_limit_steps)),
      group_(static_cast<uint32_t>(options.start.steps) / group_steps_),
      tables_(plan.tables.size()) {
  for (size_t t = 0; t < tables_.size(); ++t) {
    const TableConfig& config = options.tables[static_cast<size_t>(plan.tables[t].config)];
    tables_[t].counted = config.max_rows_by == RowOrder::kScore;
    static_assert(kScoreRanges * sizeof(Range) == kScoreCountBytes);
    if (tables_[t].counted) tables_[t].ranges.resize(kScoreRanges);
    any_ = any_ || tables_[t].counted;
  }
}

void RowScores::Clear() {
  for (Table& table : tables_) std::fill(table.ranges.begin(), table.ranges.end(), Range());
}

uint32_t RowScores::BlockOf(uint32_t group, uint32_t* size) const {
  int level = 0;
  for (;; ++level) {
    // Whether the next larger block has ended long enough ago; then the smaller ones in it have.
    const uint64_t next_size = uint64_t{2} << level;
    const uint64_t end = (group / next_size + 1) * next_size;
    if (end + kBlockGap * next_size > uint64_t{group_} + 1) break;
  }
  *size = uint32_t{1} << level;
  return group >> level << level;
}

void RowScores::Add(size_t table, const RowMark& row, int64_t n) {
  HOTROW_CHECK(row.last_step > 0);
  Range& range = tables_[table].ranges[ScoreRange(row.score)];
  uint32_t size;
  const uint32_t first_group = BlockOf(Group(row.last_step), &size);
  // Most rows are added to the newest block.
  auto at = range.blocks.end();
  if (!range.blocks.empty() && range.blocks.back().first_group >= first_group) {
    at = std::lower_bound(
        range.blocks.begin(), range.blocks.end(), first_group,
        [](const Block& block, uint32_t wanted) { return block.first_group < wanted; });
  }
  if (at == range.blocks.end() || at->first_group != first_group) {
    at = range.blocks.insert(at, {first_group, 0});
  }
  at->rows += n;
  range.rows += n;
}

void RowScores::Note(size_t table, const RowMark& before, const RowMark& after) {
  if (before.last_step != 0 && ScoreRange(before.score) == ScoreRange(after.score) &&
      Group(before.last_step) == Group(after.last_step)) {
    return;
  }
  moves_.push_back({table, before, after});
}

void RowScores::CommitUpdate() {
  for (const Move& move : moves_) {
    if (move.from.last_step != 0) Remove(move.table, move.from);
    Add(move.table, move.to);
  }
  moves_.clear();
}

StepHistogram RowScores::Ages(size_t table, uint32_t step) const {
  StepHistogram out;
  for (const Range& range : tables_[table].ranges) {
    for (const Block& block : range.blocks) {
      if (block.rows == 0) continue;
      const int64_t first_step = int64_t{block.first_group} * group_steps_ + 1;
      out.Add(std::max<int64_t>(int64_t{step} - first_step, 0), block.rows);
    }
  }
  return out;
}

ScoreHistogram RowScores::Scores(size_t table) const {
  ScoreHistogram out;
  const std::vector<Range>& ranges = tables_[table].ranges;
  for (uint32_t range = 0; range < ranges.size(); ++range) {
    if (ranges[range].rows > 0) out.Add(LowestScoreOf(range), ranges[range].rows);
  }
  return out;
}

int64_t RowScores::bytes() const {
  size_t bytes = moves_.capacity() * sizeof(Move);
  for (const Table& table : tables_) {
    bytes += table.ranges.capacity() * sizeof(Range);
    for (const Range& range : table.ranges) bytes += range.blocks.capacity() * sizeof(Block);
  }
  return static_cast<int64_t>(bytes);
}

void RowScores::GoTo(uint32_t group) {
  group_ = group;
  uint32_t size;
  for (Table& table : tables_) {
    for (Range& range : table.ranges) {
      size_t kept = 0;
      for (const Block& block : range.blocks) {
        if (block.rows == 0) continue;
        const uint32_t first_group = BlockOf(block.first_group, &size);
        if (kept > 0 && range.blocks[kept - 1].first_group == first_group) {
          range.blocks[kept - 1].rows += block.rows;
        } else {
          range.blocks[kept++] = {first_group, block.rows};
        }
      }
      range.blocks.resize(kept);
    }
  }
}

int64_t RowScores::Apply(const Cut& cut) {
  std::vector<Range>& ranges = tables_[cut.table].ranges;
  int64_t aged = 0;
  for (uint32_t r = 0; r < cut.range; ++r) {
    aged += ranges[r].rows;
    ranges[r] = Range();
  }
  Range& range = ranges[cut.range];
  const auto end = std::find_if(range.blocks.begin(), range.blocks.end(), [&](const Block& block) {
    return block.first_group >= cut.groups;
  });
  for (auto block = range.blocks.begin(); block != end; ++block) {
    range.rows -= block->rows;
    aged += block->rows;
  }
  range.blocks.erase(range.blocks.begin(), end);
  return aged;
}

absl::Status RowScores::SumUp(RowShuffle* shuffle) {
  return shuffle == nullptr ? absl::OkStatus() : shuffle->AllSum(&sums_);
}

absl::Status RowScores::FindCuts(RowShuffle* shuffle) {
  cuts_.clear();
  sums_.clear();
  for (const Table& table : tables_) {
    if (!table.counted) continue;
    for (uint32_t s = 0; s < kSums; ++s) {
      int64_t rows = 0;
      for (uint32_t r = 0; r < kRangesPerSum; ++r) {
        rows += table.ranges[s * kRangesPerSum + r].rows;
      }
      sums_.push_back(rows);
    }
  }
  HOTROW_RETURN_IF_ERROR(SumUp(shuffle));
  std::span<const int64_t> sums = sums_;
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (!tables_[t].counted) continue;
    Cut cut = {.table = t,
               .most = options_.tables[static_cast<size_t>(plan_.tables[t].config)].max_rows};
    const std::span<const int64_t> counts = sums.first(kSums);
    sums = sums.subspan(kSums);
    if (std::accumulate(counts.begin(), counts.end(), int64_t{0}) <= cut.most) continue;
    cut.range = FirstTooMany(counts, cut.most, &cut.above) * kRangesPerSum;
    cuts_.push_back(cut);
  }
  return absl::OkStatus();
}

absl::Status RowScores::FindRanges(RowShuffle* shuffle) {
  sums_.clear();
  for (const Cut& cut : cuts_) {
    for (uint32_t r = 0; r < kRangesPerSum; ++r) {
      sums_.push_back(tables_[cut.table].ranges[cut.range + r].rows);
    }
  }
  HOTROW_RETURN_IF_ERROR(SumUp(shuffle));
  std::span<const int64_t> sums = sums_;
  for (Cut& cut : cuts_) {
    cut.range += FirstTooMany(sums.first(kRangesPerSum), cut.most, &cut.above);
    sums = sums.subspan(kRangesPerSum);
  }
  return absl::OkStatus();
}

absl::Status RowScores::FindAges(RowShuffle* shuffle) {
  starts_.clear();
  for (uint64_t group = 0; group <= group_;) {
    uint32_t size;
    starts_.push_back(BlockOf(static_cast<uint32_t>(group), &size));
    group += size;
  }
  sums_.assign(starts_.size() * cuts_.size(), 0);
  for (size_t c = 0; c < cuts_.size(); ++c) {
    for (const Block& block : tables_[cuts_[c].table].ranges[cuts_[c].range].blocks) {
      const auto at = std::lower_bound(starts_.begin(), starts_.end(), block.first_group);
      sums_[c * starts_.size() + static_cast<size_t>(at - starts_.begin())] += block.rows;
    }
  }
  HOTROW_RETURN_IF_ERROR(SumUp(shuffle));
  std::span<const int64_t> sums = sums_;
  for (Cut& cut : cuts_) {
    const std::span<const int64_t> blocks = sums.first(starts_.size());
    sums = sums.subspan(starts_.size());
    int64_t left = std::accumulate(blocks.begin(), blocks.end(), cut.above);
    size_t first = 0;
    // The last block that has rows stays where nothing else would.
    while (left > cut.most && left > blocks[first]) left -= blocks[first++];
    cut.groups = first < starts_.size() ? starts_[first] : group_ + 1;
    cut.whole = left == cut.above;
  }
  return absl::OkStatus();
}

absl::Status RowScores::AddLines(uint32_t step, RowShuffle* shuffle, std::span<RowLines> lines,
                                 int64_t* aged) {
  *aged = 0;
  HOTROW_RETURN_IF_ERROR(FindCuts(shuffle));
  if (!cuts_.empty()) {
    HOTROW_RETURN_IF_ERROR(FindRanges(shuffle));
    HOTROW_RETURN_IF_ERROR(FindAges(shuffle));
  }
  for (const Cut& cut : cuts_) {
    *aged += Apply(cut);
    RowLines& own = lines[cut.table];
    own.Add({.step = step, .range = cut.whole ? cut.range + 1 : cut.range});
    if (!cut.whole && cut.groups > 0) {
      own.Add({.step = cut.groups * group_steps_, .range = cut.range + 1});
    }
  }
  GoTo(step / group_steps_);
  return absl::OkStatus();
}

}  // namespace hotrow::internal
