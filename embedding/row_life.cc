#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "embedding/ranks/shard_map.h"
#include "embedding/row_life_impl.h"

namespace hotrow::internal {
namespace {

// While a row ages all rows of the store are looked at about so many times, to drop those that
// have.
constexpr int64_t kLooksPerAge = 4;
// For each row that aged because of a limit so many rows are looked at. If one in so many has aged,
// as many are dropped as age: it is the share of rows of which the store is not rid yet.
constexpr int64_t kLooksPerAgedRow = 4;
// Fewer rows at a time are not worth a call, unless the store has fewer.
constexpr int64_t kDropRowsMin = 4096;
// How often the store's rows are counted anew, in steps.
constexpr int64_t kCountEvery = 1024;
// All counters are looked at twice in the time after which they are forgotten.
constexpr int64_t kSweepsPerAge = 2;
// Keys between a prefetch and its use: about the misses that a core has under way.
constexpr size_t kPrefetchAhead = 16;

// Of a coin: what 32 random bits stay below with this probability.
uint64_t CoinThreshold(double probability) {
  return static_cast<uint64_t>(std::llround(probability * 0x1p32));
}

// Whether one of `lookups` coins of the key in this step succeeds.
bool ThrowCoins(uint64_t seed, const RowKey& key, uint32_t step, int32_t lookups,
                double probability) {
  const uint64_t threshold = CoinThreshold(probability);
  const uint64_t table_seed = seed ^ Mix64(uint64_t{key.table} + 1);
  constexpr int32_t kCoins = 4;  // of a block
  for (int32_t first = 0; first < lookups; first += kCoins) {
    const PhiloxBlock block = RandomBlock(table_seed, RandomPurpose::kAdmission, key.key, step,
                                          static_cast<uint32_t>(first / kCoins));
    for (int32_t i = 0; i < std::min(kCoins, lookups - first); ++i) {
      if (block.v[i] < threshold) return true;
    }
  }
  return false;
}

// The first step whose counters are still counted in `step`.
uint32_t OldestOf(const Admission& admission, uint32_t step) {
  if (admission.forget_steps == 0 || step <= admission.forget_steps) return 0;
  return step - static_cast<uint32_t>(admission.forget_steps);
}

std::vector<uint32_t> FirstLines(const EmbeddingCollectionOptions& options, const Plan& plan) {
  std::vector<uint32_t> lines;
  const std::vector<uint32_t>& start = options.start.age_lines;
  for (const PlannedTable& table : plan.tables) {
    lines.push_back(start.empty() ? 0 : start[static_cast<size_t>(table.config)]);
  }
  return lines;
}

// The smaller of two where 0 stands for none.
int64_t SmallestOf(int64_t a, int64_t b) {
  return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b);
}

}  // namespace

RowLife::RowLife(const EmbeddingCollectionOptions& options, const Plan& plan, RowShuffle* shuffle)
    : options_(options),
      plan_(plan),
      shuffle_(shuffle),
      initial_rows_(RowsOf(options, plan)),
      steps_(static_cast<uint32_t>(options.start.steps)),
      lines_(FirstLines(options, plan)),
      ages_of_rows_(options, plan, lines_) {
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const TableConfig& config = ConfigOf(t);
    ages_ = ages_ || config.ttl_steps > 0 || limits(t) || lines_[t] > 0;
    if (!limits(t)) ttl_steps_min_ = SmallestOf(ttl_steps_min_, config.ttl_steps);
    admits_ = admits_ || !config.admission.always();
    if (config.admission.counts()) {
      forget_steps_min_ = SmallestOf(forget_steps_min_, config.admission.forget_steps);
    }
  }
}

absl::StatusOr<std::unique_ptr<RowLife>> RowLife::Create(const EmbeddingCollectionOptions& options,
                                                         const Plan& plan, RowShuffle* shuffle) {
  std::unique_ptr<RowLife> life(new RowLife(options, plan, shuffle));
  const bool counts =
      std::any_of(options.tables.begin(), options.tables.end(),
                  [](const TableConfig& table) { return table.admission.counts(); });
  if (counts) {
    HOTROW_ASSIGN_OR_RETURN(life->counters_, LookupCounters::Create(options.admission_bytes));
  }
  return life;
}

absl::Status RowLife::CountRows(RowStore* store) {
  if (!limits()) return absl::OkStatus();
  std::vector<size_t> position_of(options_.tables.size());
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    position_of[static_cast<size_t>(plan_.tables[t].config)] = t;
  }
  ages_of_rows_.Clear();
  return store->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
    const size_t table = position_of[key.table];
    if (!limits(table) || IsAged(table, row.data())) return absl::OkStatus();
    const uint32_t last_step = LastStep(table, row.data());
    if (last_step > std::max(steps_, 1u)) {  // WriteRows gives 1 before the first step
      return absl::FailedPreconditionError(absl::StrCat(
          "table \"", ConfigOf(table).name, "\": the row of key ", key.key, " was updated in step ",
          last_step, ", but the collection starts behind step ", steps_,
          "; give EmbeddingCollectionOptions.start.steps as it was with the snapshot"));
    }
    if (last_step > 0) ages_of_rows_.Add(table, last_step);
    return absl::OkStatus();
  });
}

void RowLife::PrefetchLastStep(size_t table, const std::byte* row) const {
  __builtin_prefetch(row + plan_.tables[table].layout.step_offset);
}

uint32_t RowLife::LastStep(size_t table, const std::byte* row) const {
  uint32_t last_step;
  std::memcpy(&last_step, row + plan_.tables[table].layout.step_offset, sizeof(last_step));
  return last_step;
}

// --- Reading

absl::Status RowLife::Read(const ExecContext& ctx, const TableKeys& keys,
                           std::span<std::byte* const> rows, LivingRows* out) const {
  out->rows.clear();
  if (!ages_) return absl::OkStatus();
  out->positions.clear();
  out->keys.clear();
  int64_t bytes = 0;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    if (lines_[t] == 0) continue;
    const auto end = static_cast<size_t>(keys.table_offsets[t + 1]);
    for (auto i = static_cast<size_t>(keys.table_offsets[t]); i < end; ++i) {
      if (i + kPrefetchAhead < end) PrefetchLastStep(t, rows[i + kPrefetchAhead]);
      if (!IsAged(t, rows[i])) continue;
      out->positions.push_back(i);
      out->keys.push_back(keys.keys[i]);
      bytes += plan_.tables[t].layout.row_bytes;
    }
  }
  if (out->positions.empty()) return absl::OkStatus();
  if (out->copies.size() < bytes) {
    out->copies = HostBuffer<std::byte>();
    // A quarter more, as batches differ.
    HOTROW_ASSIGN_OR_RETURN(out->copies,
                            HostBuffer<std::byte>::Create(bytes + bytes / 4, HugePages::kTry));
  }
  out->rows.assign(rows.begin(), rows.end());
  out->places.clear();
  std::byte* next = out->copies.data();
  size_t table = 0;
  for (const size_t i : out->positions) {
    while (static_cast<int64_t>(i) >= keys.table_offsets[table + 1]) ++table;
    out->rows[i] = next;
    out->places.push_back(next);
    next += plan_.tables[table].layout.row_bytes;
  }
  return initial_rows_.Write(ctx, out->keys, out->places);
}

// --- An update

bool RowLife::Joins(const Admission& admission, const RowKey& key, int32_t lookups, uint32_t step) {
  if (admission.rule == Admission::Rule::kCoin) {
    return ThrowCoins(options_.seed, key, step, lookups, admission.probability);
  }
  const LookupCounters::Found found = counters_.Find(key, OldestOf(admission, step));
  const int64_t count = int64_t{found.count} + int64_t{lookups};
  const bool joins = count >= admission.lookups;
  if (!joins) {
    changes_.push_back({key, static_cast<uint32_t>(count)});
    if (!found.has_slot) ++new_counters_;
  } else if (found.has_slot) {
    changes_.push_back({key, 0});
  }
  return joins;
}

absl::Status RowLife::Admit(const TableKeys& keys, std::span<const int32_t> lookups,
                            std::span<std::byte* const> rows, uint32_t step,
                            std::vector<uint8_t>* trained) {
  changes_.clear();
  new_counters_ = 0;
  rejected_now_ = 0;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    const Admission& admission = ConfigOf(t).admission;
    if (admission.always()) continue;
    const auto begin = static_cast<size_t>(keys.table_offsets[t]);
    const auto end = static_cast<size_t>(keys.table_offsets[t + 1]);
    // Rows and counters lie anywhere in memory.
    candidates_.clear();
    for (size_t i = begin; i < end; ++i) {
      if (i + kPrefetchAhead < end) PrefetchLastStep(t, rows[i + kPrefetchAhead]);
      if (LastStep(t, rows[i]) == 0 || IsAged(t, rows[i])) candidates_.push_back(i);
    }
    for (size_t c = 0; c < candidates_.size(); ++c) {
      if (c + kPrefetchAhead < candidates_.size()) {
        counters_.Prefetch(keys.keys[candidates_[c + kPrefetchAhead]]);
      }
      const size_t i = candidates_[c];
      if (Joins(admission, keys.keys[i], lookups[i], step)) continue;
      if (trained->empty()) trained->assign(keys.keys.size(), 1);
      (*trained)[i] = 0;
      ++rejected_now_;
    }
  }
  return new_counters_ == 0 ? absl::OkStatus() : counters_.CheckRoom(new_counters_);
}

absl::Status RowLife::Renew(const ExecContext& ctx, const TableKeys& keys,
                            std::span<std::byte* const> rows, std::span<const uint8_t> trained) {
  if (!ages_) return absl::OkStatus();
  renewed_keys_.clear();
  renewed_rows_.clear();
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    if (lines_[t] == 0 || plan_.tables[t].frozen) continue;
    const auto end = static_cast<size_t>(keys.table_offsets[t + 1]);
    for (auto i = static_cast<size_t>(keys.table_offsets[t]); i < end; ++i) {
      if (i + kPrefetchAhead < end) PrefetchLastStep(t, rows[i + kPrefetchAhead]);
      if ((!trained.empty() && trained[i] == 0) || !IsAged(t, rows[i])) continue;
      renewed_keys_.push_back(keys.keys[i]);
      renewed_rows_.push_back(rows[i]);
    }
  }
  if (renewed_keys_.empty()) return absl::OkStatus();
  aged_rows_ += std::ssize(renewed_keys_);
  return initial_rows_.Write(ctx, renewed_keys_, renewed_rows_);
}

void RowLife::CountUpdated(const TableKeys& keys, std::span<std::byte* const> rows,
                           std::span<const uint8_t> trained, uint32_t step) {
  ages_of_rows_.BeginUpdate();
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    if (!limits(t)) continue;
    const auto end = static_cast<size_t>(keys.table_offsets[t + 1]);
    for (auto i = static_cast<size_t>(keys.table_offsets[t]); i < end; ++i) {
      if (i + kPrefetchAhead < end) PrefetchLastStep(t, rows[i + kPrefetchAhead]);
      if (!trained.empty() && trained[i] == 0) continue;
      ages_of_rows_.Note(t, LastStep(t, rows[i]), step);
    }
  }
}

absl::Status RowLife::EndStep(uint32_t step) {
  steps_ = step;
  // What goes goes last: it moves others.
  for (const bool erases : {false, true}) {
    for (size_t i = 0; i < changes_.size(); ++i) {
      if (i + kPrefetchAhead < changes_.size())
        counters_.Prefetch(changes_[i + kPrefetchAhead].key);
      const Change& change = changes_[i];
      if ((change.count == 0) != erases) continue;
      if (erases) {
        counters_.Erase(change.key);
      } else {
        counters_.Set(change.key, change.count, step);
      }
    }
  }
  changes_.clear();
  rejected_keys_ += std::exchange(rejected_now_, 0);
  // Of the step to come.
  const uint64_t next = uint64_t{step} + 1;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    const auto ttl = static_cast<uint64_t>(ConfigOf(t).ttl_steps);
    if (limits(t) || ttl == 0 || next <= ttl) continue;
    lines_[t] = std::max(lines_[t], static_cast<uint32_t>(next - ttl));
  }
  absl::Status moved;
  if (limits()) {
    ages_of_rows_.CommitUpdate();
    if (step % static_cast<uint32_t>(options_.row_limit_steps) == 0) {
      int64_t aged = 0;
      moved = ages_of_rows_.MoveLines(step, shuffle_, lines_, &aged);
      looks_ += kLooksPerAgedRow * aged;
    }
  }
  if (forget_steps_min_ == 0 || counters_.size() == 0) return moved;
  counters_.Sweep(CeilDiv(kSweepsPerAge * counters_.slots(), forget_steps_min_),
                  [&](uint32_t table, uint32_t last_step) {
                    const Admission& admission = options_.tables[table].admission;
                    // What the step to come would not count.
                    return last_step < OldestOf(admission, static_cast<uint32_t>(std::min(
                                                               next, uint64_t{UINT32_MAX})));
                  });
  return moved;
}

void RowLife::Erase(std::span<const RowKey> keys) {
  for (const RowKey& key : keys) counters_.Erase(key);
}

void RowLife::CountWritten(size_t table, uint32_t last_step, int64_t n) {
  if (limits(table)) ages_of_rows_.Add(table, last_step, n);
}

void RowLife::ForgetRows(size_t table, std::span<const uint32_t> last_steps) {
  for (const uint32_t last_step : last_steps) ages_of_rows_.Remove(table, last_step);
}

// --- Dropping

void RowLife::DropSome(uint32_t step, RowStore* store) {
  int64_t rows = 0;
  if (ttl_steps_min_ > 0) {
    if (step >= count_again_) {
      store_rows_ = store->Stats().rows;
      count_again_ = static_cast<uint32_t>(
          std::min<int64_t>(int64_t{step} + std::min(kCountEvery, ttl_steps_min_), UINT32_MAX));
    }
    // In whole numbers, so that slow rates add up.
    to_see_ += kLooksPerAge * store_rows_;
    const int64_t due = to_see_ / ttl_steps_min_;
    if (due >= std::min(kDropRowsMin, store_rows_)) {
      rows = due;
      to_see_ -= due * ttl_steps_min_;
    }
  }
  // Spread over the steps until the lines move again.
  const int64_t besides =
      std::min(looks_, std::max(kDropRowsMin, CeilDiv(looks_, options_.row_limit_steps)));
  looks_ -= besides;
  rows += besides;
  if (rows == 0) return;
  std::vector<RowAgeLine> lines;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    lines.push_back({.table = static_cast<uint32_t>(plan_.tables[t].config),
                     .line = lines_[t],
                     .step_offset = plan_.tables[t].layout.step_offset});
  }
  store->SetAgeLines(lines);
  const absl::StatusOr<int64_t> dropped = store->DropAged(rows);
  if (dropped.ok()) dropped_rows_ += *dropped;
}

// --- What is kept

std::vector<uint32_t> RowLife::age_lines() const {
  std::vector<uint32_t> out(options_.tables.size());
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    out[static_cast<size_t>(plan_.tables[t].config)] = lines_[t];
  }
  return out;
}

void RowLife::AddTo(EmbeddingStats* stats) const {
  stats->admission_rejected_keys = rejected_keys_;
  stats->admission_counters = counters_.size();
  stats->admission_counter_bytes = counters_.bytes();
  stats->aged_rows = aged_rows_;
  stats->dropped_rows = dropped_rows_;
}

absl::StatusOr<HostBuffer<std::byte>> RowLife::Save() {
  if (!kept()) {
    return absl::FailedPreconditionError("EmbeddingCounters::Save: no table counts lookups");
  }
  return counters_.Save(steps_);
}

absl::Status RowLife::Load(std::span<const std::byte> bytes) {
  if (!kept() || steps_ != options_.start.steps) {
    return absl::FailedPreconditionError(
        !kept() ? "EmbeddingCounters::Load: no table counts lookups"
                : "EmbeddingCounters::Load: comes before the first step");
  }
  return counters_.Load(bytes, steps_, [&](const RowKey& key) {
    if (key.table >= options_.tables.size() || !options_.tables[key.table].admission.counts()) {
      return false;
    }
    return shuffle_ == nullptr || OwnerRank(key, shuffle_->world_size()) == shuffle_->rank();
  });
}

}  // namespace hotrow::internal
