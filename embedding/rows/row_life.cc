#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/philox.h"
#include "base/row_line_fields.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "embedding/ranks/shard_map.h"
#include "embedding/rows/row_life_impl.h"
#include "embedding/score_sums_impl.h"

namespace hotrow::internal {
namespace {

// While a row ages all rows of the store are looked at about looks_per_age_ times, to drop those
// that have: twice as often where more than one in kManyAged had, down to once where fewer than one
// in kFewAged had. If all rows age, kLooksPerAgeMax keeps it at one in four.
constexpr int64_t kManyAged = 4;
constexpr int64_t kFewAged = 8;
// For each row that aged because of a limit so many rows are looked at. If one in so many has aged,
// as many are dropped as age: it is the share of rows of which the store is not rid yet.
constexpr int64_t kLooksPerAgedRow = 4;
// Fewer rows at a time are not worth a call, unless the store has fewer.
constexpr int64_t kDropRowsMin = 4096;
// How often the store's rows are counted again, in steps.
constexpr int64_t kCountEvery = 1024;
// All counters are looked at twice in the time after which they are forgotten.
constexpr int64_t kSweepsPerAge = 2;
// Rows that one thread looks at in one go.
constexpr int64_t kLookGrain = 2048;
// Keys between a prefetch and its use: about the misses that a core has under way.
constexpr size_t kPrefetchAhead = 16;

// What 32 random bits stay below with this probability: a coin.
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

std::vector<RowLines> FirstLines(const EmbeddingCollectionOptions& options, const Plan& plan) {
  std::vector<RowLines> lines;
  const std::vector<RowLines>& start = options.start.age_lines;
  for (const PlannedTable& table : plan.tables) {
    lines.push_back(start.empty() ? RowLines() : start[static_cast<size_t>(table.config)]);
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
      ages_of_rows_(options, plan, lines_),
      scores_of_rows_(options, plan) {
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const TableConfig& config = ConfigOf(t);
    fields_.push_back(plan.tables[t].layout.line_fields());
    if (!limits(t)) ttl_steps_min_ = SmallestOf(ttl_steps_min_, config.ttl_steps);
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
    HOTROW_ASSIGN_OR_RETURN(
        life->counters_,
        LookupCounters::Create(options.admission_bytes, options.NameOf("admission_bytes")));
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
  scores_of_rows_.Clear();
  return store->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
    const size_t table = position_of[key.table];
    if (!limits(table) || IsAged(table, row.data())) return absl::OkStatus();
    const RowMark mark = MarkOf(table, row.data());
    if (mark.last_step > std::max(steps_, 1u)) {  // WriteRows gives 1 before the first step
      return absl::FailedPreconditionError(absl::StrCat(
          "table \"", ConfigOf(table).name, "\": the row of key ", key.key, " was updated in step ",
          mark.last_step, ", but the collection starts behind step ", steps_, "; give ",
          options_.NameOf("start.steps"), " as it was with the snapshot"));
    }
    if (mark.last_step > 0) CountWritten(table, mark, 1);
    return absl::OkStatus();
  });
}

// --- Reading

void RowLife::LookAt(size_t table, size_t begin, size_t end, std::span<std::byte* const> rows,
                     bool training, LivingRows::Part* part, std::span<RowMark> marks) const {
  const RowLineFields fields = fields_[table];
  const RowLines& lines = lines_[table];
  const bool notes_marks = training && NotesMarks(table);
  const bool notes_candidates = training && !ConfigOf(table).admission.always();
  for (size_t i = begin; i < end; ++i) {
    if (i + kPrefetchAhead < end) __builtin_prefetch(rows[i + kPrefetchAhead] + fields.step_offset);
    RowMark mark = fields.Mark(rows[i]);
    if (lines.HasAged(mark.last_step, mark.score)) {
      part->aged.push_back(i);
      mark = RowMark();
    }
    if (notes_candidates && mark.last_step == 0) part->candidates.push_back(i);
    if (notes_marks) marks[i] = mark;
  }
}

void RowLife::Look(const ExecContext& ctx, const TableKeys& keys, std::span<std::byte* const> rows,
                   bool training, LivingRows* out) const {
  out->aged.clear();
  out->candidates.clear();
  out->state = training ? state_ : 0;
  bool looks = false;
  for (size_t t = 0; t < plan_.tables.size(); ++t) looks = looks || LooksAt(t, training);
  if (!looks) return;
  if (training && (limits() || plan_.scores)) out->marks.resize(rows.size());
  const auto n = std::ssize(rows);
  out->parts.resize(static_cast<size_t>(CeilDiv(n, kLookGrain)));
  ParallelFor(ctx.pool, n, kLookGrain, [&](int64_t first, int64_t last) {
    LivingRows::Part& part = out->parts[static_cast<size_t>(first / kLookGrain)];
    part.aged.clear();
    part.candidates.clear();
    const std::vector<int64_t>& offsets = keys.table_offsets;
    auto t = static_cast<size_t>(std::upper_bound(offsets.begin(), offsets.end(), first) -
                                 offsets.begin() - 1);
    for (; t < plan_.tables.size() && offsets[t] < last; ++t) {
      if (!LooksAt(t, training)) continue;
      LookAt(t, static_cast<size_t>(std::max(first, offsets[t])),
             static_cast<size_t>(std::min(last, offsets[t + 1])), rows, training, &part,
             out->marks);
    }
  });
  for (const LivingRows::Part& part : out->parts) {
    out->aged.insert(out->aged.end(), part.aged.begin(), part.aged.end());
    out->candidates.insert(out->candidates.end(), part.candidates.begin(), part.candidates.end());
  }
}

absl::Status RowLife::Read(const ExecContext& ctx, const TableKeys& keys,
                           std::span<std::byte* const> rows, bool training, LivingRows* out) const {
  out->rows.clear();
  Look(ctx, keys, rows, training, out);
  if (out->aged.empty()) return absl::OkStatus();
  out->keys.clear();
  int64_t bytes = 0;
  size_t table = 0;
  for (const size_t i : out->aged) {
    while (static_cast<int64_t>(i) >= keys.table_offsets[table + 1]) ++table;
    out->keys.push_back(keys.keys[i]);
    bytes += plan_.tables[table].layout.row_bytes;
  }
  if (out->copies.size() < bytes) {
    out->copies = HostBuffer<std::byte>();
    // A quarter more, as batches differ.
    HOTROW_ASSIGN_OR_RETURN(out->copies,
                            HostBuffer<std::byte>::Create(bytes + bytes / 4, HugePages::kTry));
  }
  out->rows.assign(rows.begin(), rows.end());
  out->places.clear();
  std::byte* next = out->copies.data();
  table = 0;
  for (const size_t i : out->aged) {
    while (static_cast<int64_t>(i) >= keys.table_offsets[table + 1]) ++table;
    out->rows[i] = next;
    out->places.push_back(next);
    next += plan_.tables[table].layout.row_bytes;
  }
  return initial_rows_.Write(ctx, out->keys, out->places);
}

// --- An update

void RowLife::LookAgain(const ExecContext& ctx, const TableKeys& keys,
                        std::span<std::byte* const> rows, LivingRows* out) const {
  if (out->state != state_) Look(ctx, keys, rows, /*training=*/true, out);
}

void RowLife::Reject(size_t position, const TableKeys& keys, std::vector<uint8_t>* trained) {
  if (trained->empty()) trained->assign(keys.keys.size(), 1);
  (*trained)[position] = 0;
  ++rejected_now_;
}

void RowLife::AdmitByCoin(const Admission& admission, const TableKeys& keys,
                          std::span<const size_t> candidates, std::span<const int32_t> lookups,
                          uint32_t step, std::vector<uint8_t>* trained) {
  for (const size_t i : candidates) {
    if (ThrowCoins(options_.seed, keys.keys[i], step, lookups[i], admission.probability)) continue;
    Reject(i, keys, trained);
  }
}

void RowLife::AdmitByCount(const Admission& admission, const TableKeys& keys,
                           std::span<const size_t> candidates, std::span<const int32_t> lookups,
                           uint32_t step, std::vector<uint8_t>* trained) {
  const uint32_t oldest = OldestOf(admission, step);
  // The homes of the next candidates, a ring.
  std::array<LookupCounters::Slot, kPrefetchAhead> homes;
  const auto prefetch = [&](size_t c) {
    homes[c % kPrefetchAhead] = counters_.PrefetchHome(keys.keys[candidates[c]]);
  };
  for (size_t c = 0; c < std::min(kPrefetchAhead, candidates.size()); ++c) prefetch(c);
  for (size_t c = 0; c < candidates.size(); ++c) {
    const size_t i = candidates[c];
    const RowKey& key = keys.keys[i];
    const LookupCounters::Found found = counters_.Find(key, homes[c % kPrefetchAhead], oldest);
    if (c + kPrefetchAhead < candidates.size()) prefetch(c + kPrefetchAhead);
    const int64_t count = int64_t{found.count} + int64_t{lookups[i]};
    if (count >= admission.lookups) {
      if (found.has_slot) joined_.push_back(key);
      continue;
    }
    counts_.push_back({key, found.slot, static_cast<uint32_t>(count)});
    new_counters_ += !found.has_slot;
    Reject(i, keys, trained);
  }
}

absl::Status RowLife::Admit(const TableKeys& keys, std::span<const int32_t> lookups,
                            const LivingRows& living, uint32_t step,
                            std::vector<uint8_t>* trained) {
  counts_.clear();
  joined_.clear();
  new_counters_ = 0;
  rejected_now_ = 0;
  if (kept()) counters_.MakeRoom(std::ssize(living.candidates));
  std::span<const size_t> left = living.candidates;
  for (size_t t = 0; t < plan_.tables.size() && !left.empty(); ++t) {
    const auto end =
        std::lower_bound(left.begin(), left.end(), static_cast<size_t>(keys.table_offsets[t + 1]));
    const auto of_table = left.first(static_cast<size_t>(end - left.begin()));
    left = left.subspan(of_table.size());
    const Admission& admission = ConfigOf(t).admission;
    if (admission.counts()) {
      AdmitByCount(admission, keys, of_table, lookups, step, trained);
    } else {
      AdmitByCoin(admission, keys, of_table, lookups, step, trained);
    }
  }
  return new_counters_ == 0 ? absl::OkStatus() : counters_.CheckRoom(new_counters_);
}

absl::Status RowLife::Renew(const ExecContext& ctx, const TableKeys& keys,
                            std::span<std::byte* const> rows, const LivingRows& living,
                            std::span<const uint8_t> trained) {
  renewed_keys_.clear();
  renewed_rows_.clear();
  size_t table = 0;
  for (const size_t i : living.aged) {
    while (static_cast<int64_t>(i) >= keys.table_offsets[table + 1]) ++table;
    if (plan_.tables[table].frozen || (!trained.empty() && trained[i] == 0)) continue;
    renewed_keys_.push_back(keys.keys[i]);
    renewed_rows_.push_back(rows[i]);
  }
  if (renewed_keys_.empty()) return absl::OkStatus();
  aged_rows_ += std::ssize(renewed_keys_);
  return initial_rows_.Write(ctx, renewed_keys_, renewed_rows_);
}

void RowLife::NoteUpdate(const TableKeys& keys, std::span<const double> scores,
                         const LivingRows& living, std::span<const uint8_t> trained,
                         uint32_t step) {
  ages_of_rows_.BeginUpdate();
  scores_of_rows_.BeginUpdate();
  new_scores_.resize(scores.size());
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    if (!NotesMarks(t)) continue;
    const ScoreRule rule = plan_.tables[t].score;
    const auto end = static_cast<size_t>(keys.table_offsets[t + 1]);
    for (auto i = static_cast<size_t>(keys.table_offsets[t]); i < end; ++i) {
      if (!trained.empty() && trained[i] == 0) continue;
      const RowMark& before = living.marks[i];
      RowMark after = {.last_step = step};
      if (rule != ScoreRule::kNone) {
        after.score = ScoreAfter(rule, before.last_step == 0, before.score, scores[i]);
        new_scores_[i] = after.score;
      }
      if (ages_of_rows_.counts(t)) ages_of_rows_.Note(t, before.last_step, step);
      if (scores_of_rows_.counts(t)) scores_of_rows_.Note(t, before, after);
    }
  }
}

void RowLife::WriteScores(const TableKeys& keys, std::span<std::byte* const> rows,
                          std::span<const uint8_t> trained) const {
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    if (!plan_.tables[t].layout.scored()) continue;
    const int64_t score_offset = fields_[t].score_offset;
    const auto end = static_cast<size_t>(keys.table_offsets[t + 1]);
    for (auto i = static_cast<size_t>(keys.table_offsets[t]); i < end; ++i) {
      if (i + kPrefetchAhead < end) __builtin_prefetch(rows[i + kPrefetchAhead] + score_offset);
      if (!trained.empty() && trained[i] == 0) continue;
      std::memcpy(rows[i] + score_offset, &new_scores_[i], sizeof(float));
    }
  }
}

absl::Status RowLife::EndStep(uint32_t step) {
  steps_ = step;
  ++state_;
  // Those that go go last: that moves others.
  for (const NewCount& set : counts_) counters_.Set(set.key, set.from, set.count, step);
  for (const RowKey& key : joined_) counters_.Erase(key);
  counts_.clear();
  joined_.clear();
  rejected_keys_ += std::exchange(rejected_now_, 0);
  // The step to come.
  const uint64_t next = uint64_t{step} + 1;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    const auto ttl = static_cast<uint64_t>(ConfigOf(t).ttl_steps);
    if (limits(t) || ttl == 0 || next <= ttl) continue;
    lines_[t].age = std::max(lines_[t].age, static_cast<uint32_t>(next - ttl));
  }
  absl::Status moved;
  if (limits()) {
    ages_of_rows_.CommitUpdate();
    scores_of_rows_.CommitUpdate();
    if (step % static_cast<uint32_t>(options_.row_limit_steps) == 0) moved = KeepLimits(step);
  }
  if (forget_steps_min_ == 0 || counters_.size() == 0) return moved;
  counters_.Sweep(CeilDiv(kSweepsPerAge * counters_.slots_used(), forget_steps_min_),
                  [&](uint32_t table, uint32_t last_step) {
                    const Admission& admission = options_.tables[table].admission;
                    // What the step to come would not count.
                    return last_step < OldestOf(admission, static_cast<uint32_t>(std::min(
                                                               next, uint64_t{UINT32_MAX})));
                  });
  return moved;
}

absl::Status RowLife::KeepLimits(uint32_t step) {
  int64_t aged = 0;
  if (ages_of_rows_.any()) {
    HOTROW_RETURN_IF_ERROR(ages_of_rows_.MoveLines(step, shuffle_, lines_, &aged));
    looks_ += kLooksPerAgedRow * aged;
  }
  if (scores_of_rows_.any()) {
    HOTROW_RETURN_IF_ERROR(scores_of_rows_.AddLines(step, shuffle_, lines_, &aged));
    looks_ += kLooksPerAgedRow * aged;
  }
  return absl::OkStatus();
}

void RowLife::Erase(std::span<const RowKey> keys) {
  ++state_;
  for (const RowKey& key : keys) counters_.Erase(key);
}

float RowLife::FirstScore(size_t table, uint32_t last_step) const {
  const uint32_t least = lines_[table].LeastRange(last_step);
  return ScoreRange(0) < least ? LowestScoreOf(least) : 0;
}

void RowLife::CountWritten(size_t table, const RowMark& row, int64_t n) {
  ++state_;
  if (ages_of_rows_.counts(table)) ages_of_rows_.Add(table, row.last_step, n);
  if (scores_of_rows_.counts(table)) scores_of_rows_.Add(table, row, n);
}

void RowLife::ForgetRows(size_t table, std::span<const RowMark> rows) {
  ++state_;
  for (const RowMark& row : rows) {
    if (ages_of_rows_.counts(table)) ages_of_rows_.Remove(table, row.last_step);
    if (scores_of_rows_.counts(table)) scores_of_rows_.Remove(table, row);
  }
}

// --- Dropping

void RowLife::DropSome(uint32_t step, RowStore* store) {
  int64_t rows = 0;
  const bool any_aged = std::any_of(lines_.begin(), lines_.end(),
                                    [](const RowLines& lines) { return !lines.none(); });
  if (ttl_steps_min_ > 0 && any_aged) {
    if (step >= count_again_) {
      store_rows_ = store->Stats().rows;
      count_again_ = static_cast<uint32_t>(
          std::min<int64_t>(int64_t{step} + std::min(kCountEvery, ttl_steps_min_), UINT32_MAX));
    }
    // In whole numbers, so that slow rates add up.
    to_see_ += looks_per_age_ * store_rows_;
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
                     .lines = lines_[t],
                     .fields = fields_[t]});
  }
  store->SetAgeLines(lines);
  const absl::StatusOr<int64_t> dropped = store->DropAged(rows);
  if (!dropped.ok()) return;
  dropped_rows_ += *dropped;
  // Over all rows of the store, since it may drop them some calls later.
  looked_at_ += rows;
  had_aged_ += *dropped;
  if (looked_at_ < std::max(store_rows_, kDropRowsMin)) return;
  if (had_aged_ * kManyAged > looked_at_) {
    looks_per_age_ = std::min(2 * looks_per_age_, kLooksPerAgeMax);
  } else if (had_aged_ * kFewAged < looked_at_) {
    looks_per_age_ = std::max<int64_t>(looks_per_age_ / 2, 1);
  }
  looked_at_ = had_aged_ = 0;
}

// --- What is kept

std::vector<RowLines> RowLife::age_lines() const {
  std::vector<RowLines> out(options_.tables.size());
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    out[static_cast<size_t>(plan_.tables[t].config)] = lines_[t];
  }
  return out;
}

void RowLife::AddTo(EmbeddingStats* stats) const {
  stats->admission_rejected_keys = rejected_keys_;
  stats->admission_counters = counters_.size();
  stats->admission_counter_bytes = counters_.bytes();
  stats->row_count_bytes = ages_of_rows_.bytes() + scores_of_rows_.bytes();
  stats->aged_rows = aged_rows_;
  stats->dropped_rows = dropped_rows_;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    TableStats& table = stats->tables[static_cast<size_t>(plan_.tables[t].config)];
    if (ages_of_rows_.counts(t)) table.ages = ages_of_rows_.Ages(t, steps_);
    if (scores_of_rows_.counts(t)) {
      table.ages = scores_of_rows_.Ages(t, steps_);
      table.scores = scores_of_rows_.Scores(t);
    }
  }
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
