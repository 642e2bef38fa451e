#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/check.h"
#include "base/status_macros.h"
#include "embedding/rows/row_ages_impl.h"

namespace hotrow::internal {

RowAges::RowAges(const EmbeddingCollectionOptions& options, const Plan& plan,
                 std::span<const RowLines> lines)
    : options_(options),
      plan_(plan),
      group_steps_(static_cast<uint32_t>(options.row_limit_steps)),
      tables_(plan.tables.size()) {
  for (size_t t = 0; t < tables_.size(); ++t) {
    const TableConfig& config = options.tables[static_cast<size_t>(plan.tables[t].config)];
    tables_[t].counted =
        config.min_rows > 0 || (config.max_rows > 0 && config.max_rows_by == RowOrder::kAge);
    tables_[t].first_group = lines[t].age == 0 ? 0 : Group(lines[t].age);
    any_ = any_ || tables_[t].counted;
  }
}

void RowAges::Clear() {
  for (Table& table : tables_) table.rows.clear();
}

int64_t* RowAges::GroupOf(size_t table, uint32_t last_step) {
  Table& of = tables_[table];
  const uint32_t group = Group(last_step);
  HOTROW_CHECK(last_step > 0 && group >= of.first_group);
  const size_t i = group - of.first_group;
  if (i >= of.rows.size()) of.rows.resize(i + 1);
  return &of.rows[i];
}

int64_t RowAges::bytes() const {
  size_t bytes = moves_.capacity() * sizeof(Move) + sums_.capacity() * sizeof(int64_t);
  for (const Table& table : tables_) bytes += table.rows.capacity() * sizeof(int64_t);
  return static_cast<int64_t>(bytes);
}

StepHistogram RowAges::Ages(size_t table, uint32_t step) const {
  StepHistogram out;
  const Table& of = tables_[table];
  for (size_t i = 0; i < of.rows.size(); ++i) {
    if (of.rows[i] == 0) continue;
    const auto group = static_cast<int64_t>(of.first_group + i);
    const int64_t first_step = group * group_steps_ + 1;
    out.Add(std::max<int64_t>(int64_t{step} - first_step, 0), of.rows[i]);
  }
  return out;
}

void RowAges::Note(size_t table, uint32_t last_step, uint32_t step) {
  // Most rows of a hot table stay in the group of the last steps.
  if (last_step != 0 && Group(last_step) == Group(step)) return;
  moves_.push_back({table, last_step, step});
}

void RowAges::CommitUpdate() {
  for (const Move& move : moves_) {
    if (move.from != 0) Remove(move.table, move.from);
    Add(move.table, move.to);
  }
  moves_.clear();
}

size_t RowAges::FirstLiving(const TableConfig& config, const Table& table, uint32_t step,
                            std::span<const int64_t> rows) const {
  // living: rows of the groups from `first` on.
  const auto ttl = static_cast<uint64_t>(config.ttl_steps);
  size_t first = 0;
  if (ttl > 0 && step >= ttl) {
    const uint64_t group = (step - ttl) / group_steps_;
    first = group > table.first_group ? static_cast<size_t>(group - table.first_group) : 0;
  }
  int64_t living =
      std::accumulate(rows.begin() + static_cast<int64_t>(first), rows.end(), int64_t{0});
  while (first > 0 && living < config.min_rows) living += rows[--first];
  // The newest group stays, however many rows it has.
  while (config.max_rows > 0 && first + 1 < rows.size() && living > config.max_rows) {
    living -= rows[first++];
  }
  return first;
}

absl::Status RowAges::MoveLines(uint32_t step, RowShuffle* shuffle, std::span<RowLines> lines,
                                int64_t* aged) {
  *aged = 0;
  sums_.clear();
  for (size_t t = 0; t < tables_.size(); ++t) {
    Table& table = tables_[t];
    if (!table.counted) continue;
    // As many groups on each rank: those up to the one that this step ends.
    table.rows.resize(Group(step) - table.first_group + 1);
    sums_.insert(sums_.end(), table.rows.begin(), table.rows.end());
  }
  if (shuffle != nullptr) HOTROW_RETURN_IF_ERROR(shuffle->AllSum(&sums_));
  std::span<const int64_t> sums = sums_;
  for (size_t t = 0; t < tables_.size(); ++t) {
    Table& table = tables_[t];
    if (!table.counted) continue;
    const TableConfig& config = options_.tables[static_cast<size_t>(plan_.tables[t].config)];
    const size_t first = FirstLiving(config, table, step, sums.first(table.rows.size()));
    sums = sums.subspan(table.rows.size());
    if (first == 0) continue;
    const auto end = table.rows.begin() + static_cast<int64_t>(first);
    *aged += std::accumulate(table.rows.begin(), end, int64_t{0});
    table.rows.erase(table.rows.begin(), end);
    table.first_group += static_cast<uint32_t>(first);
    lines[t].age = table.first_group * group_steps_ + 1;
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
