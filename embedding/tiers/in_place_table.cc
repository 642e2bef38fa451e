#include <cstring>

#include "base/status_macros.h"
#include "embedding/tiers/in_place_table_impl.h"
#include "embedding/tiers/store_reads.h"

namespace hotrow::internal {

absl::StatusOr<TieredTable::Placed> InPlaceTable::Place(const ExecContext& /*ctx*/,
                                                        std::span<const RowKey> keys,
                                                        std::span<const int32_t> counts,
                                                        StepRows* step) {
  HOTROW_CHECK(!step->resident);
  HOTROW_CHECK(keys.size() == counts.size());
  step->keys = keys;
  step->counts = counts;
  return Placed::kAll;
}

absl::Status InPlaceTable::ResolveForRead(const ExecContext& ctx, StepRows* step,
                                          std::span<std::byte*> rows) {
  HOTROW_CHECK(step->resident);
  const std::span<const RowKey> keys = step->keys;
  HOTROW_RETURN_IF_ERROR(FindInPlace(ctx, store_, keys, rows));
  step->missing.clear();
  TableMissRuns missed(&misses_);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (rows[i] == nullptr) step->missing.push_back(static_cast<int64_t>(i));
    if (step->probed != 0) continue;
    stats_.store_counts.Add(rows[i] != nullptr, step->counts[i]);
    if (rows[i] == nullptr) missed.Add(keys[i].table, step->counts[i]);
  }
  step->probed = static_cast<int64_t>(keys.size());
  // Addresses in a vector would be 16-byte aligned as well (operator new), and row_bytes is a
  // multiple of 16.
  step->staging.resize(step->missing.size() * static_cast<size_t>(row_bytes()));
  keys_.clear();
  rows_.clear();
  for (size_t m = 0; m < step->missing.size(); ++m) {
    std::byte* const row = step->staging.data() + m * static_cast<size_t>(row_bytes());
    rows[step->missing[m]] = row;
    keys_.push_back(keys[step->missing[m]]);
    rows_.push_back(row);
  }
  return initial_rows_.Write(ctx, keys_, rows_);
}

absl::Status InPlaceTable::ResolveForUpdate(StepRows* step, std::span<std::byte*> rows) {
  HOTROW_CHECK(step->resident);
  if (step->missing.empty()) return absl::OkStatus();
  // Rows that the step does not change stay in staging.
  if (!step->trained.empty()) {
    std::erase_if(step->missing, [step](int64_t i) { return step->trained[i] == 0; });
  }
  keys_.clear();
  for (const int64_t i : step->missing) keys_.push_back(step->keys[i]);
  rows_.resize(keys_.size());
  added_.resize(keys_.size());
  const absl::Status inserted = store_->InsertInPlace(keys_, rows_, added_);
  if (!inserted.ok()) {
    // Some may have been added before the budget ran out; they are zero and must not stay.
    HOTROW_RETURN_IF_ERROR(Withdraw(*step));
    return inserted;
  }
  for (size_t m = 0; m < step->missing.size(); ++m) {
    std::memcpy(rows_[m], rows[step->missing[m]], static_cast<size_t>(row_bytes()));
    rows[step->missing[m]] = rows_[m];
  }
  stats_.rows_written += static_cast<int64_t>(step->missing.size());
  return absl::OkStatus();
}

absl::Status InPlaceTable::Withdraw(const StepRows& step) {
  keys_.clear();
  for (const int64_t i : step.missing) keys_.push_back(step.keys[i]);
  return store_->Erase(keys_);
}

void InPlaceTable::Release(const ExecContext& /*ctx*/, StepRows* step, bool /*updated*/) {
  step->keys = {};
  step->counts = {};
  step->trained = {};
  step->missing.clear();
  step->probed = 0;
  step->resident = false;
}

absl::Status InPlaceTable::Read(const ExecContext& ctx, std::span<const RowKey> keys,
                                std::byte* staging, std::span<std::byte*> rows) {
  HOTROW_RETURN_IF_ERROR(FindInPlace(ctx, store_, keys, rows));
  keys_.clear();
  rows_.clear();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (rows[i] != nullptr) continue;
    rows[i] = staging;
    staging += row_bytes();
    keys_.push_back(keys[i]);
    rows_.push_back(rows[i]);
  }
  return initial_rows_.Write(ctx, keys_, rows_);
}

}  // namespace hotrow::internal
