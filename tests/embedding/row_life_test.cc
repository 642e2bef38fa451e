// Admission, ageing, floors and capacities: against a plain map with the policies written out, over
// every store, cache, depth and number of ranks, with time, erasures, evaluation, steps that are
// cancelled, snapshots and kills in between.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/hash.h"
#include "base/philox.h"
#include "base/row_line_fields.h"
#include "base/status_macros.h"
#include "comm/thread_communicator.h"
#include "embedding/embedding_collection.h"
#include "embedding/rows/lookup_counters_impl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/rows/row_init.h"
#include "tests/embedding/store_kinds.h"
#include "tests/embedding/trainer.h"
#include "tests/embedding/training.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::Above;
using ::hotrow::test::Batch;
using ::hotrow::test::kMiB;
using ::hotrow::test::PutAbove;
using ::hotrow::test::PutStore;
using ::hotrow::test::RowsOf;
using ::hotrow::test::StatusIs;
using ::hotrow::test::Table;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kTables = 10;
constexpr int32_t kDims[kTables] = {4, 20, 4, 5, 4, 5, 6, 4, 3, 11};
constexpr int64_t kPooledDim = 66;
constexpr int64_t kRowLimitSteps = 2;
constexpr uint64_t kKeys = 300;   // of each table
constexpr int64_t kSamples = 24;  // of all ranks together, with one lookup in each table
constexpr float kLearningRate = 0.25f;

struct Policy {
  Admission admission;
  int64_t ttl_steps = 0;
  int64_t min_rows = 0;
  int64_t max_rows = 0;
  ScoreRule score = ScoreRule::kNone;
  RowOrder max_rows_by = RowOrder::kAge;
};
const Policy kPolicies[kTables] = {
    {{.rule = Admission::Rule::kLookups, .lookups = 3, .forget_steps = 6}, 7},
    {{.rule = Admission::Rule::kCoin, .probability = 0.4}, 5},
    {{.rule = Admission::Rule::kLookups, .lookups = 4}, 0},
    {{}, 4},
    {{}, 0, 0, 70},
    {{}, 3, 60, 80},
    {{.rule = Admission::Rule::kLookups, .lookups = 2, .forget_steps = 6}, 2, 30},
    {{}, 0, 0, 70, ScoreRule::kMax, RowOrder::kScore},
    {{.rule = Admission::Rule::kCoin, .probability = 0.6},
     0,
     0,
     40,
     ScoreRule::kSum,
     RowOrder::kScore},
    {{}, 5, 0, 90, ScoreRule::kLast}};

EmbeddingCollectionOptions LivingOptions() {
  EmbeddingCollectionOptions options = test::Options({});
  for (int t = 0; t < kTables; ++t) {
    TableConfig table =
        Table(absl::StrCat("t", t), kDims[t], {absl::StrCat("f", t)}, SparseOptimizerKind::kSgd);
    table.optimizer.learning_rate = kLearningRate;
    table.max_hotness = 1;
    table.admission = kPolicies[t].admission;
    table.ttl_steps = kPolicies[t].ttl_steps;
    table.min_rows = kPolicies[t].min_rows;
    table.max_rows = kPolicies[t].max_rows;
    table.score = kPolicies[t].score;
    table.max_rows_by = kPolicies[t].max_rows_by;
    options.tables.push_back(table);
  }
  options.admission_bytes = 64 << 10;
  options.row_limit_steps = kRowLimitSteps;
  return options;
}

std::vector<float> InitialRow(int table, uint64_t key) {
  const EmbeddingCollectionOptions options = LivingOptions();
  const RowLayout layout = RowLayout::For(kDims[table], SparseOptimizerKind::kSgd);
  std::vector<float> row(static_cast<size_t>(layout.row_bytes) / sizeof(float));
  auto* const bytes = reinterpret_cast<std::byte*>(row.data());
  HOTROW_EXPECT_OK(InitRows({}, {.initializer = options.tables[table].initializer,
                                 .layout = &layout,
                                 .seed = options.seed,
                                 .table = static_cast<uint32_t>(table),
                                 .num_rows = 1,
                                 .keys = &key,
                                 .rows = &bytes}));
  row.resize(static_cast<size_t>(kDims[table]));
  return row;
}

// --- The policies, written out -------------------------------------------------------------------

// What the lookups of a step bring to the scores; no lookup of some steps has one.
bool HasScores(int64_t step) { return step % 5 != 0; }
float ScoreOf(uint64_t key, int64_t step, int64_t sample) {
  return static_cast<float>(
      static_cast<int64_t>(key * 5 + static_cast<uint64_t>(step * 3 + sample * 7)) % 23 - 9);
}

class Model {
 public:
  // As a lookup of the step to come reads it.
  std::vector<float> Row(int table, uint64_t key) const {
    return Has(table, key) ? rows_[table].at(key).weights : InitialRow(table, key);
  }
  bool Has(int table, uint64_t key) const {
    const auto row = rows_[table].find(key);
    return row != rows_[table].end() && Lives(table, row->second);
  }
  int64_t size(int table) const {
    return std::count_if(rows_[table].begin(), rows_[table].end(),
                         [&](const auto& row) { return Lives(table, row.second); });
  }
  int64_t steps() const { return steps_; }

  // One that sums add exactly, in any order.
  static float Gradient(uint64_t key, int64_t step, int32_t column) {
    const auto kind = static_cast<uint64_t>(step) * 13 + key * 7 + static_cast<uint64_t>(column);
    return static_cast<float>(static_cast<int64_t>(kind % 11) - 4) / 64;
  }
  // One training step: the lookups of each table.
  void Step(const std::vector<std::vector<uint64_t>>& lookups) {
    const int64_t step = steps_ + 1;
    for (int t = 0; t < kTables; ++t) {
      std::map<uint64_t, int> counts;
      for (const uint64_t key : lookups[t]) ++counts[key];
      for (const auto& [key, count] : counts) {
        const bool begins = !Has(t, key);
        if (begins && !Joins(t, key, count, step)) continue;
        std::vector<float> weights = Row(t, key);
        for (int32_t c = 0; c < kDims[t]; ++c) {
          const float change = kLearningRate * (static_cast<float>(count) * Gradient(key, step, c));
          weights[c] = weights[c] - change;
        }
        const float score = begins ? 0 : rows_[t][key].score;
        rows_[t][key] = {std::move(weights), step, NextScore(t, lookups[t], key, begins, score)};
      }
    }
    steps_ = step;
    for (int t = 0; t < kTables; ++t) {
      MoveLine(t);
      KeepTheHighest(t);
    }
  }
  float score(int table, uint64_t key) const { return rows_[table].at(key).score; }
  int64_t last_step(int table, uint64_t key) const { return rows_[table].at(key).last_step; }
  // How often a floor kept rows that their age would have taken, and a capacity took some.
  int64_t floors() const { return floors_; }
  int64_t capacities() const { return capacities_; }
  // How often a capacity took rows by their scores, and how often also by the ages of one score.
  int64_t score_capacities() const { return score_capacities_; }
  int64_t score_ages() const { return score_ages_; }
  void Write(int table, uint64_t key, std::vector<float> row) {
    Erase(table, key);
    // A line of this very step is not to take it.
    const bool cut = cut_[table].step == steps_ && ScoreRange(0) < cut_[table].range;
    rows_[table][key] = {std::move(row), std::max<int64_t>(steps_, 1),
                         cut ? LowestScoreOf(cut_[table].range) : 0};
  }
  void Erase(int table, uint64_t key) {
    rows_[table].erase(key);
    counters_[table].erase(key);
  }

 private:
  struct RowState {
    std::vector<float> weights;
    int64_t last_step = 0;
    float score = 0;
  };
  struct Counter {
    int64_t count = 0;
    int64_t last_step = 0;
  };

  bool Lives(int table, const RowState& row) const { return row.last_step >= lines_[table]; }
  void MoveLine(int table) {
    const Policy& policy = kPolicies[table];
    int64_t line = 0;
    if (policy.min_rows == 0 && (policy.max_rows == 0 || ByScore(table))) {
      if (policy.ttl_steps > 0) line = steps_ + 1 - policy.ttl_steps;
    } else if (steps_ % kRowLimitSteps == 0) {
      const auto living = [&](int64_t from) {
        return std::count_if(rows_[table].begin(), rows_[table].end(), [&](const auto& row) {
          return Lives(table, row.second) && row.second.last_step >= from;
        });
      };
      // The first step of a group.
      line = 1;
      while (policy.ttl_steps > 0 && line + kRowLimitSteps <= steps_ + 1 - policy.ttl_steps) {
        line += kRowLimitSteps;
      }
      const int64_t by_age = line;
      while (line > 1 && living(line) < policy.min_rows) line -= kRowLimitSteps;
      floors_ += line < by_age;
      const int64_t by_floor = line;
      while (policy.max_rows > 0 && line + kRowLimitSteps <= steps_ &&
             living(line) > policy.max_rows) {
        line += kRowLimitSteps;
      }
      capacities_ += line > std::max(by_floor, lines_[table]);
    }
    lines_[table] = std::max(lines_[table], line);
  }
  static bool ByScore(int table) { return kPolicies[table].max_rows_by == RowOrder::kScore; }
  float NextScore(int table, const std::vector<uint64_t>& lookups, uint64_t key, bool begins,
                  float score) const {
    const ScoreRule rule = kPolicies[table].score;
    if (rule == ScoreRule::kNone || !HasScores(steps_ + 1)) return score;
    for (size_t sample = 0; sample < lookups.size(); ++sample) {
      if (lookups[sample] != key) continue;
      const float brought = ScoreOf(key, steps_ + 1, static_cast<int64_t>(sample));
      const float joined = rule == ScoreRule::kSum ? score + brought : std::max(score, brought);
      score = begins || rule == ScoreRule::kLast ? brought : joined;
      begins = false;
    }
    return score;
  }
  // The first group of the largest aligned block of 2^n groups that has this one and ended 4 * 2^n
  // groups before the end of the present one; otherwise the group itself.
  static int64_t BlockOf(int64_t group, int64_t present) {
    int64_t first = group;
    for (int64_t size = 1; size <= present; size *= 2) {
      const int64_t begin = group / size * size;
      if (begin + size + 4 * size <= present + 1) first = begin;
    }
    return first;
  }
  // Takes the rows of the lowest ranges of scores, of one range the oldest block first.
  void KeepTheHighest(int table) {
    if (!ByScore(table) || steps_ % kRowLimitSteps != 0) return;
    const int64_t present = steps_ / kRowLimitSteps - 1;
    std::map<std::pair<uint32_t, int64_t>, std::vector<uint64_t>> cells;
    for (const auto& [key, row] : rows_[table]) {
      const int64_t block = BlockOf((row.last_step - 1) / kRowLimitSteps, present);
      cells[{ScoreRange(row.score), block}].push_back(key);
    }
    bool by_age = false;
    bool taken = false;
    uint32_t last = 0;
    while (std::ssize(rows_[table]) > kPolicies[table].max_rows && cells.size() > 1) {
      const uint32_t range = cells.begin()->first.first;
      for (const uint64_t key : cells.begin()->second) rows_[table].erase(key);
      cells.erase(cells.begin());
      taken = true;
      last = range;
      by_age = cells.begin()->first.first == range;
    }
    // The last cell stays also where it is too large.
    const bool stays = std::ssize(rows_[table]) > kPolicies[table].max_rows;
    if (stays) cut_[table] = {steps_, cells.begin()->first.first};
    if (taken && !stays) cut_[table] = {steps_, by_age ? last : last + 1};
    score_capacities_ += taken;
    score_ages_ += by_age;
  }
  bool Joins(int table, uint64_t key, int count, int64_t step) {
    const Admission& admission = kPolicies[table].admission;
    if (admission.rule == Admission::Rule::kAlways) return true;
    if (admission.rule == Admission::Rule::kCoin) {
      const uint64_t seed = LivingOptions().seed ^ Mix64(static_cast<uint64_t>(table) + 1);
      for (int i = 0; i < count; ++i) {
        const PhiloxBlock block =
            RandomBlock(seed, RandomPurpose::kAdmission, key, static_cast<uint32_t>(step),
                        static_cast<uint32_t>(i / 4));
        if (static_cast<double>(block.v[i % 4]) < admission.probability * 0x1p32) return true;
      }
      return false;
    }
    Counter& counter = counters_[table][key];
    const int64_t forget = admission.forget_steps;
    if (forget > 0 && step - counter.last_step > forget) counter.count = 0;
    counter = {counter.count + count, step};
    if (counter.count < admission.lookups) return false;
    counters_[table].erase(key);
    return true;
  }

  std::map<uint64_t, RowState> rows_[kTables];
  std::map<uint64_t, Counter> counters_[kTables];
  int64_t lines_[kTables] = {};
  struct Cut {
    int64_t step = -1;
    uint32_t range = 0;
  };
  Cut cut_[kTables];  // the last one of scores
  int64_t steps_ = 0;
  int64_t floors_ = 0;
  int64_t capacities_ = 0;
  int64_t score_capacities_ = 0;
  int64_t score_ages_ = 0;
};

// --- A life of tables between two kills ----------------------------------------------------------

// What a checkpoint has.
struct Saved {
  Model model;
  SnapshotId snapshot = 0;  // 0: there is none yet
  std::vector<std::string> dirs;
  std::vector<std::vector<std::byte>> counters;  // of each rank
  std::vector<RowLines> age_lines;
};

struct Totals {
  int64_t rejected = 0;
  int64_t aged = 0;
  int64_t dropped = 0;
  int64_t evictions = 0;
  int64_t floors = 0;
  int64_t capacities = 0;
  int64_t score_capacities = 0;
  int64_t score_ages = 0;
  int64_t moves = 0;  // lives that went on with what another number of ranks had left
};

// [tables][samples]; small keys more often, some of them several times.
std::vector<std::vector<uint64_t>> KeysOfStep(uint64_t seed, int64_t step) {
  RandomStream random(seed * 1000 + static_cast<uint64_t>(step), RandomPurpose::kTest);
  std::vector<std::vector<uint64_t>> keys(kTables);
  for (std::vector<uint64_t>& of_table : keys) {
    while (std::ssize(of_table) < kSamples) {
      const double u = random.Uniform();
      of_table.push_back(static_cast<uint64_t>(u * u * static_cast<double>(kKeys)));
    }
  }
  return keys;
}

// One rank's part; the seed tells all ranks the same.
class Life {
 public:
  Life(EmbeddingCollectionOptions options, int rank, int ranks, uint64_t seed, uint64_t life,
       const Saved& from)
      : options_(std::move(options)),
        rank_(rank),
        ranks_(ranks),
        seed_(seed),
        random_(seed, RandomPurpose::kTest, life + 1),
        model_(from.model),
        snapshots_(from.snapshot) {}

  absl::Status Run(const Saved& from, int operations) {
    options_.start.start_over = from.snapshot == 0;
    if (from.snapshot != 0) {
      for (const std::string& dir : from.dirs) {
        options_.start.from.push_back({.snapshot = from.snapshot, .dir = dir});
      }
      options_.start.steps = model_.steps();
      options_.start.age_lines = from.age_lines;
    }
    HOTROW_ASSIGN_OR_RETURN(tables_, EmbeddingCollection::Create(options_, {}));
    const absl::Status lived = [&]() -> absl::Status {
      for (const std::vector<std::byte>& part : from.counters) {
        HOTROW_RETURN_IF_ERROR(tables_->counters().Load(part));
      }
      return Live(operations);
    }();
    ahead_.clear();  // a kill: nothing is closed
    const EmbeddingStats stats = tables_->Stats();
    totals_ = {.rejected = stats.admission_rejected_keys,
               .aged = stats.aged_rows,
               .dropped = stats.dropped_rows,
               .evictions = stats.tiers[0].evictions,
               .floors = model_.floors(),
               .capacities = model_.capacities(),
               .score_capacities = model_.score_capacities(),
               .score_ages = model_.score_ages()};
    tables_.reset();
    return lived;
  }

  // What this rank has of the last snapshot, if one was taken.
  const Saved& saved() const { return saved_; }
  const Totals& totals() const { return totals_; }

 private:
  absl::Status Live(int operations) {
    HOTROW_RETURN_IF_ERROR(Check());
    for (int i = 0; i < operations; ++i) {
      const uint64_t what = random_.Below(12);
      if (what < 7) {
        HOTROW_RETURN_IF_ERROR(Step());
      } else if (what < 8) {
        HOTROW_RETURN_IF_ERROR(random_.Below(2) == 0 ? Erase() : WriteRows());
      } else if (what < 9) {
        HOTROW_RETURN_IF_ERROR(Check());
      } else if (what < 10) {
        HOTROW_RETURN_IF_ERROR(Evaluate());
      } else if (what < 11) {
        HOTROW_RETURN_IF_ERROR(Cancel());
      } else {
        HOTROW_RETURN_IF_ERROR(TakeSnapshot());
      }
    }
    return Check();
  }

  // step: whose scores the lookups have.
  Batch BatchOf(const std::vector<std::vector<uint64_t>>& keys, int64_t step) const {
    Batch batch;
    batch.batch_size = last_sample() - first_sample();
    for (const std::vector<uint64_t>& of_table : keys) {
      for (int64_t s = first_sample(); s < last_sample(); ++s) {
        batch.values.push_back(of_table[s]);
        if (HasScores(step)) batch.scores.push_back(ScoreOf(of_table[s], step, s));
        batch.offsets.push_back(std::ssize(batch.values));
      }
    }
    return batch;
  }

  // Every lookup reads what the model says.
  void Compare(const std::vector<std::vector<uint64_t>>& keys, const std::vector<float>& output,
               const char* what) const {
    for (int64_t s = first_sample(); s < last_sample(); ++s) {
      auto at = static_cast<size_t>((s - first_sample()) * kPooledDim);
      for (int t = 0; t < kTables; ++t) {
        const std::vector<float> row = model_.Row(t, keys[t][s]);
        for (int32_t c = 0; c < kDims[t]; ++c, ++at) {
          EXPECT_EQ(output[at], row[c])
              << what << ", step " << model_.steps() << " table " << t << " key " << keys[t][s];
        }
      }
    }
  }

  absl::Status PrefetchAhead() {
    while (std::ssize(ahead_) <= options_.prefetch_depth) {
      const int64_t before = model_.steps() + std::ssize(ahead_);
      const Batch batch = BatchOf(KeysOfStep(seed_, before), before + 1);
      HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables_->Prefetch(batch.view()));
      ahead_.push_back(std::move(step));
    }
    return absl::OkStatus();
  }

  absl::Status Lookup(EmbeddingStep* step) {
    std::vector<float> output(static_cast<size_t>(step->batch_size() * kPooledDim) + 1);
    HOTROW_RETURN_IF_ERROR(step->Lookup({.pooled = RowsOf(*tables_, step->batch_size(), output)}));
    Compare(KeysOfStep(seed_, model_.steps()), output, "lookup");
    return absl::OkStatus();
  }

  absl::Status Step() {
    HOTROW_RETURN_IF_ERROR(PrefetchAhead());
    EmbeddingStep step = std::move(ahead_.front());
    ahead_.pop_front();
    HOTROW_RETURN_IF_ERROR(Lookup(&step));
    const std::vector<std::vector<uint64_t>> keys = KeysOfStep(seed_, model_.steps());
    const int64_t samples = last_sample() - first_sample();
    std::vector<float> gradient(static_cast<size_t>(samples * kPooledDim) + 1);
    for (int64_t s = first_sample(); s < last_sample(); ++s) {
      auto at = static_cast<size_t>((s - first_sample()) * kPooledDim);
      for (int t = 0; t < kTables; ++t) {
        for (int32_t c = 0; c < kDims[t]; ++c, ++at) {
          gradient[at] = Model::Gradient(keys[t][s], model_.steps() + 1, c);
        }
      }
    }
    HOTROW_RETURN_IF_ERROR(std::move(step).Update({.pooled = RowsOf(*tables_, samples, gradient)}));
    model_.Step(keys);
    return absl::OkStatus();
  }

  // A step that was looked up goes away, and all behind it: nothing was counted.
  absl::Status Cancel() {
    HOTROW_RETURN_IF_ERROR(PrefetchAhead());
    HOTROW_RETURN_IF_ERROR(Lookup(&ahead_.front()));
    ahead_.clear();
    return absl::OkStatus();
  }

  absl::Status Evaluate() {
    const std::vector<std::vector<uint64_t>> keys = KeysOfStep(seed_ + 1, model_.steps());
    const Batch batch = BatchOf(keys, model_.steps() + 3);
    std::vector<float> output(static_cast<size_t>(batch.batch_size * kPooledDim) + 1);
    for (int times = 0; times < 3; ++times) {  // it counts nothing
      HOTROW_RETURN_IF_ERROR(
          tables_->Evaluate(batch.view(), {.pooled = RowsOf(*tables_, batch.batch_size, output)}));
    }
    Compare(keys, output, "evaluation");
    return absl::OkStatus();
  }

  absl::Status Erase() {
    const auto table = static_cast<int>(random_.Below(kTables));
    std::vector<uint64_t> mine;
    for (int rank = 0; rank < ranks_; ++rank) {
      for (uint64_t n = random_.Below(20); n > 0; --n) {
        const double u = random_.Uniform();
        const auto key = static_cast<uint64_t>(u * u * static_cast<double>(kKeys));
        if (rank == rank_) mine.push_back(key);
        model_.Erase(table, key);
      }
    }
    return tables_->Erase(absl::StrCat("t", table), mine);
  }

  absl::Status WriteRows() {
    ahead_.clear();
    const auto table = static_cast<int>(random_.Below(kTables));
    std::vector<uint64_t> mine;
    std::vector<float> weights;
    const uint64_t first = random_.Below(kKeys);
    for (uint64_t n = random_.Below(30); n > 0; --n) {
      const uint64_t key = (first + n) % kKeys;
      const std::vector<float> row(static_cast<size_t>(kDims[table]), static_cast<float>(key) / 8);
      if (static_cast<int>(n) % ranks_ == rank_) {
        mine.push_back(key);
        weights.insert(weights.end(), row.begin(), row.end());
      }
      model_.Write(table, key, row);
    }
    return tables_->WriteRows(absl::StrCat("t", table), mine,
                              {weights.data(), std::ssize(mine), kDims[table]});
  }

  absl::Status TakeSnapshot() {
    const SnapshotId snapshot = ++snapshots_;
    HOTROW_RETURN_IF_ERROR(tables_->snapshots().Begin(snapshot));
    Saved now;
    now.model = model_;
    now.snapshot = snapshot;
    now.age_lines = tables_->age_lines();
    HOTROW_ASSIGN_OR_RETURN(const HostBuffer<std::byte> counters, tables_->counters().Save());
    now.counters.emplace_back(counters.begin(), counters.end());
    for (uint64_t i = random_.Below(4); i > 0; --i) HOTROW_RETURN_IF_ERROR(Step());
    HOTROW_RETURN_IF_ERROR(tables_->snapshots().Wait());
    HOTROW_RETURN_IF_ERROR(tables_->snapshots().Commit(snapshot));
    saved_ = std::move(now);
    return absl::OkStatus();
  }

  // All keys, in an order of each rank's own.
  absl::Status Check() {
    for (int t = 0; t < kTables; ++t) {
      const std::string name = absl::StrCat("t", t);
      std::vector<uint64_t> keys(kKeys);
      std::iota(keys.begin(), keys.end(), 0);
      std::rotate(keys.begin(), keys.begin() + rank_ * 50, keys.end());
      std::vector<float> rows(kKeys * static_cast<size_t>(kDims[t]));
      const auto found = std::make_unique<bool[]>(kKeys);
      HOTROW_RETURN_IF_ERROR(
          tables_->ReadRows(name, keys, {rows.data(), kKeys, kDims[t]}, {found.get(), kKeys}));
      for (size_t i = 0; i < kKeys; ++i) {
        EXPECT_EQ(found[i], model_.Has(t, keys[i]))
            << "step " << model_.steps() << " table " << t << " key " << keys[i];
        const std::vector<float> row = model_.Row(t, keys[i]);
        EXPECT_TRUE(
            std::equal(row.begin(), row.end(), rows.begin() + static_cast<int64_t>(i) * kDims[t]))
            << "step " << model_.steps() << " table " << t << " key " << keys[i];
      }
      if (kPolicies[t].score != ScoreRule::kNone) HOTROW_RETURN_IF_ERROR(CheckMarks(t));
      if (ranks_ > 1) continue;
      int64_t visited = 0;
      HOTROW_RETURN_IF_ERROR(
          tables_->ForEachRow(name, [&](uint64_t key, std::span<const float> weights) {
            ++visited;
            const std::vector<float> row = model_.Row(t, key);
            EXPECT_TRUE(std::equal(row.begin(), row.end(), weights.begin())) << t << " " << key;
            return absl::OkStatus();
          }));
      EXPECT_EQ(visited, model_.size(t)) << t;
    }
    HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables_->Digest());
    for (int t = 0; t < kTables; ++t) EXPECT_EQ(digest.tables[t].rows, model_.size(t)) << t;
    return absl::OkStatus();
  }

  // Last steps and scores, of the rows that this rank keeps.
  absl::Status CheckMarks(int t) {
    int64_t asked = 0;
    const auto check = [&](const StoredRow& row) {
      ++asked;
      EXPECT_TRUE(model_.Has(t, row.key)) << "table " << t << " key " << row.key;
      if (!model_.Has(t, row.key)) return false;
      EXPECT_EQ(row.last_step, model_.last_step(t, row.key)) << t << " " << row.key;
      EXPECT_EQ(row.score, model_.score(t, row.key))
          << "step " << model_.steps() << " table " << t << " key " << row.key;
      return false;
    };
    HOTROW_RETURN_IF_ERROR(tables_->EraseIf(absl::StrCat("t", t), check).status());
    if (ranks_ == 1) {
      EXPECT_EQ(asked, model_.size(t)) << t;
    }
    return absl::OkStatus();
  }

  int64_t first_sample() const { return kSamples * rank_ / ranks_; }
  int64_t last_sample() const { return kSamples * (rank_ + 1) / ranks_; }

  EmbeddingCollectionOptions options_;
  const int rank_;
  const int ranks_;
  const uint64_t seed_;
  RandomStream random_;
  std::unique_ptr<EmbeddingCollection> tables_;
  std::deque<EmbeddingStep> ahead_;
  Model model_;
  SnapshotId snapshots_;
  Saved saved_;
  Totals totals_;
};

// Lives on so many ranks each; where their number stays, the stores are opened in place.
void Tell(StoreKind kind, uint64_t seed, const std::vector<int>& ranks_of_lives, int operations,
          Totals* totals) {
  RandomStream random(seed, RandomPurpose::kTest);
  Saved saved;
  std::vector<std::string> dirs;
  const std::string root = test::TempDir();
  for (size_t life = 0; life < ranks_of_lives.size(); ++life) {
    const int ranks = ranks_of_lives[life];
    SCOPED_TRACE(testing::Message()
                 << "HOTROW_TEST_SEED=" << seed << " life " << life << " on " << ranks << " ranks");
    if (saved.snapshot != 0 && std::ssize(saved.dirs) != ranks) ++totals->moves;
    // What a life left that took no snapshot is no place for a copy of another one's.
    if (std::ssize(dirs) != ranks || (saved.snapshot != 0 && saved.dirs != dirs)) {
      dirs.clear();
      for (int rank = 0; rank < ranks; ++rank) {
        dirs.push_back(absl::StrCat(root, "/", life, "-", rank));
      }
    }
    const auto depth = static_cast<int32_t>(random.Below(4));
    const auto above =
        static_cast<Above>(kind == StoreKind::kMemory ? random.Below(3) : 1 + random.Below(2));
    std::vector<std::unique_ptr<Life>> lives(static_cast<size_t>(ranks));
    const std::vector<absl::Status> lived = RunOnThreads(
        ranks, {.timeout_seconds = 60}, [&](Communicator& communicator) -> absl::Status {
          const int rank = communicator.rank();
          EmbeddingCollectionOptions options = LivingOptions();
          PutAbove(above, &options);
          PutStore(kind, dirs[static_cast<size_t>(rank)], &options);
          options.prefetch_depth = depth;
          options.ranks.communicator = &communicator;
          auto& own = lives[static_cast<size_t>(rank)];
          own = std::make_unique<Life>(options, rank, ranks, seed, life, saved);
          return own->Run(saved, operations);
        });
    for (const absl::Status& status : lived) HOTROW_ASSERT_OK(status);
    for (const std::unique_ptr<Life>& own : lives) {
      totals->rejected += own->totals().rejected;
      totals->aged += own->totals().aged;
      totals->dropped += own->totals().dropped;
      totals->evictions += own->totals().evictions;
      totals->floors += own->totals().floors;
      totals->capacities += own->totals().capacities;
      totals->score_capacities += own->totals().score_capacities;
      totals->score_ages += own->totals().score_ages;
    }
    if (lives[0]->saved().snapshot == 0) continue;
    saved = lives[0]->saved();
    saved.dirs = dirs;
    for (int rank = 1; rank < ranks; ++rank) {
      saved.counters.push_back(lives[static_cast<size_t>(rank)]->saved().counters[0]);
    }
  }
}

class RowLifeTest : public testing::TestWithParam<StoreKind> {};

INSTANTIATE_TEST_SUITE_P(All, RowLifeTest, testing::ValuesIn(test::StoreKinds()),
                         test::NameOfStoreKind);

TEST_P(RowLifeTest, TheTablesAreThoseOfAPlainMap) {
  Totals totals;
  for (const uint64_t seed : test::Seeds(test::RunsSlowTests() ? 20 : 1)) {
    Tell(GetParam(), seed, {1, 1, 1}, /*operations=*/40, &totals);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(totals.rejected, 0);
  EXPECT_GT(totals.aged, 0);
  EXPECT_GT(totals.floors, 0);
  EXPECT_GT(totals.capacities, 0);
  EXPECT_GT(totals.score_capacities, 0);
  EXPECT_GT(totals.score_ages, 0);
  // All rows of an SSD store this small lie in segments that are being written.
  if (GetParam() != StoreKind::kSsd) {
    EXPECT_GT(totals.dropped, 0);
  }
}

TEST_P(RowLifeTest, AnyNumberOfRanksHasTheTablesOfAPlainMap) {
  Totals totals;
  for (const uint64_t seed : test::Seeds(test::RunsSlowTests() ? 10 : 1)) {
    Tell(GetParam(), seed, {2, 3, 3, 1, 4}, /*operations=*/16, &totals);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(totals.rejected, 0);
  EXPECT_GT(totals.aged, 0);
  EXPECT_GT(totals.floors, 0);
  EXPECT_GT(totals.capacities, 0);
  EXPECT_GT(totals.score_capacities, 0);
  EXPECT_GT(totals.score_ages, 0);
  EXPECT_GT(totals.moves, 0);
}

// --- Same bits -----------------------------------------------------------------------------------

EmbeddingCollectionOptions BitsOptions() {
  EmbeddingCollectionOptions options =
      test::Options({Table("wide", 40, {"f0", "f1"}, SparseOptimizerKind::kAdam),
                     Table("narrow", 3, {"f2"}, SparseOptimizerKind::kAdagrad)});
  for (TableConfig& table : options.tables) table.max_hotness = 3;
  options.tables[0].admission = {
      .rule = Admission::Rule::kLookups, .lookups = 4, .forget_steps = 10};
  options.tables[0].ttl_steps = 6;
  options.tables[1].admission = {.rule = Admission::Rule::kCoin, .probability = 0.3};
  options.tables[1].ttl_steps = 4;
  options.tables[1].weights_precision = WeightsPrecision::kBf16;
  options.admission_bytes = 64 << 10;
  return options;
}

// The second table ages by capacity alone.
EmbeddingCollectionOptions CapacityOptions() {
  EmbeddingCollectionOptions options = BitsOptions();
  options.tables[0].min_rows = 100;
  options.tables[1].admission = {};
  options.tables[1].ttl_steps = 0;
  options.tables[1].max_rows = 40;
  options.row_limit_steps = 3;
  return options;
}

// Both by score.
EmbeddingCollectionOptions ScoreOptions() {
  EmbeddingCollectionOptions options = BitsOptions();
  for (TableConfig& table : options.tables) {
    table.ttl_steps = 0;
    table.max_rows_by = RowOrder::kScore;
  }
  options.tables[0].score = ScoreRule::kSum;
  options.tables[0].max_rows = 100;
  options.tables[1].score = ScoreRule::kLast;
  options.tables[1].max_rows = 40;
  options.row_limit_steps = 3;
  return options;
}

void ExpectTheSameBitsOnAllTiers(const EmbeddingCollectionOptions& living, bool scored = false) {
  const test::RunOptions run = {.steps = 30, .num_features = 3, .rows = 800, .scored = scored};
  const test::RunResult expected = test::Train(living, run);
  EXPECT_GT(expected.stats.admission_rejected_keys, 0);
  EXPECT_GT(expected.stats.aged_rows, 0);
  EXPECT_GT(expected.stats.dropped_rows, 0);
  HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t least, EmbeddingCollection::MinCacheBytes(living));
  for (const StoreKind kind : test::StoreKinds()) {
    for (const int64_t cache_bytes : {int64_t{0}, least, 6 * least}) {
      if (kind != StoreKind::kMemory && cache_bytes == 0) continue;
      for (const int32_t depth : {0, 3}) {
        SCOPED_TRACE(testing::Message()
                     << StoreKindName(kind) << " " << cache_bytes << " " << depth);
        EmbeddingCollectionOptions options = living;
        PutStore(kind, test::TempDir(), &options);
        options.cache.bytes = cache_bytes;
        options.prefetch_depth = depth;
        test::RunOptions other = run;
        other.threads = depth == 0 ? 1 : 4;
        other.evaluate_every = depth;
        const test::RunResult result = test::Train(options, other);
        EXPECT_EQ(result.digest.hash, expected.digest.hash);
        EXPECT_EQ(result.last_output, expected.last_output);
        EXPECT_EQ(result.stats.admission_rejected_keys, expected.stats.admission_rejected_keys);
      }
    }
  }
}

TEST(RowLifeBitsTest, AreTheSameWhateverTheTiers) { ExpectTheSameBitsOnAllTiers(BitsOptions()); }

TEST(RowLifeBitsTest, OfFloorsAndCapacitiesAreTheSameWhateverTheTiers) {
  ExpectTheSameBitsOnAllTiers(CapacityOptions());
}

TEST(RowLifeBitsTest, OfCapacitiesByScoreAreTheSameWhateverTheTiers) {
  ExpectTheSameBitsOnAllTiers(ScoreOptions(), /*scored=*/true);
}

TEST(RowLifeBitsTest, PoliciesThatNeverBiteChangeNothing) {
  const test::RunOptions run = {.steps = 12, .num_features = 3, .rows = 300};
  EmbeddingCollectionOptions plain = BitsOptions();
  for (TableConfig& table : plain.tables) {
    table.admission = {};
    table.ttl_steps = 0;
  }
  EmbeddingCollectionOptions patient = plain;
  for (TableConfig& table : patient.tables) table.ttl_steps = 12;
  patient.tables[0].admission = {.rule = Admission::Rule::kLookups, .lookups = 1};
  patient.tables[1].admission = {.rule = Admission::Rule::kCoin, .probability = 1};
  const test::RunResult expected = test::Train(plain, run);
  const test::RunResult result = test::Train(patient, run);
  EXPECT_EQ(result.digest.hash, expected.digest.hash);
  EXPECT_EQ(result.last_output, expected.last_output);
  EXPECT_EQ(result.stats.admission_rejected_keys, 0);
  EXPECT_EQ(result.stats.aged_rows, 0);
  EXPECT_EQ(result.stats.dropped_rows, 0);
}

// --- One table with one column, a lookup at a time -----------------------------------------------

class OneColumn {
 public:
  explicit OneColumn(const EmbeddingCollectionOptions& options) {
    auto created = EmbeddingCollection::Create(options, {});
    HOTROW_EXPECT_OK(created);
    tables_ = *std::move(created);
  }
  // Looks the keys up, one a sample, and gives all of them this gradient.
  absl::Status Step(const std::vector<uint64_t>& keys, float gradient,
                    const std::vector<float>& scores = {}) {
    Batch batch;
    batch.scores = scores;
    batch.batch_size = std::ssize(keys);
    batch.values = keys;
    for (size_t i = 0; i < keys.size(); ++i) batch.offsets.push_back(std::ssize(batch.offsets));
    HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables_->Prefetch(batch.view()));
    std::vector<float> floats(keys.size());
    HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = RowsOf(*tables_, batch.batch_size, floats)}));
    std::fill(floats.begin(), floats.end(), gradient);
    return std::move(step).Update({.pooled = RowsOf(*tables_, batch.batch_size, floats)});
  }
  float Weight(uint64_t key) {
    float weight = 0;
    HOTROW_EXPECT_OK(tables_->ReadRows("t", {&key, 1}, {&weight, 1, 1}));
    return weight;
  }
  // 0 where there is no row.
  float Score(uint64_t key) {
    float score = 0;
    HOTROW_EXPECT_OK(tables_->EraseIf("t", [&](const StoredRow& row) {
      if (row.key == key) score = row.score;
      return false;
    }));
    return score;
  }
  int64_t rows() {
    auto digest = tables_->Digest();
    HOTROW_EXPECT_OK(digest);
    return digest.ok() ? digest->tables[0].rows : -1;
  }
  EmbeddingCollection& tables() { return *tables_; }

 private:
  std::unique_ptr<EmbeddingCollection> tables_;
};

EmbeddingCollectionOptions OneColumnOptions(SparseOptimizerKind kind) {
  EmbeddingCollectionOptions options = test::Options({Table("t", 1, {"f"}, kind)});
  options.tables[0].initializer = {InitializerKind::kConstant, 1.0f};
  options.tables[0].optimizer.learning_rate = 0.5f;
  return options;
}

TEST(AgeingTest, AKeyThatComesBackBeginsWithFreshState) {
  EmbeddingCollectionOptions options = OneColumnOptions(SparseOptimizerKind::kMomentum);
  options.tables[0].ttl_steps = 3;
  OneColumn column(options);
  HOTROW_ASSERT_OK(column.Step({7}, 1));
  const float first = column.Weight(7);
  HOTROW_ASSERT_OK(column.Step({7}, 1));  // its momentum shows
  EXPECT_NE(column.Weight(7) - first, first - 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(column.Weight(7), 1) << i;
    HOTROW_ASSERT_OK(column.Step({8}, 1));
  }
  EXPECT_EQ(column.Weight(7), 1);
  EXPECT_EQ(column.rows(), 1);
  HOTROW_ASSERT_OK(column.Step({7}, 1));
  EXPECT_EQ(column.Weight(7), first);
  EXPECT_EQ(column.tables().Stats().aged_rows + column.tables().Stats().dropped_rows, 1);
}

TEST(AgeingTest, ALongerTtlBringsNoRowBack) {
  const std::string dir = test::TempDir();
  EmbeddingCollectionOptions options = OneColumnOptions(SparseOptimizerKind::kSgd);
  options.tables[0].ttl_steps = 2;
  options.cache.bytes = kMiB;  // rows that stay there are not dropped
  PutStore(StoreKind::kMemory, dir, &options);
  {
    OneColumn column(options);
    HOTROW_ASSERT_OK(column.Step({1, 2}, 1));
    for (int i = 0; i < 3; ++i) HOTROW_ASSERT_OK(column.Step({2}, 1));
    EXPECT_EQ(column.tables().age_lines(), std::vector<RowLines>{{.age = 3}});
    HOTROW_ASSERT_OK(column.tables().snapshots().Prepare(9));
    HOTROW_ASSERT_OK(column.tables().snapshots().Commit(9));
  }
  options.start.from = {{.snapshot = 9}};
  options.start.steps = 4;
  options.start.age_lines = {{.age = 3}};
  for (const int64_t ttl_steps : {int64_t{0}, int64_t{100}}) {
    options.tables[0].ttl_steps = ttl_steps;
    OneColumn column(options);
    EXPECT_EQ(column.rows(), 1) << ttl_steps;
    EXPECT_EQ(column.Weight(1), 1);
    HOTROW_ASSERT_OK(column.Step({1}, 1));
    EXPECT_EQ(column.Weight(1), 0.5f);
    EXPECT_EQ(column.tables().age_lines(), std::vector<RowLines>{{.age = 3}});
  }
}

// New keys in every step: what an SSD store has of old ones goes, though nothing is short.
TEST(AgeingTest, StoresDropWhatHasAged) {
  constexpr uint64_t kNew = 200;  // in a step
  constexpr uint64_t kSteps = 60;
  for (const StoreKind kind : test::StoreKinds()) {
    SCOPED_TRACE(StoreKindName(kind));
    EmbeddingCollectionOptions options =
        test::Options({Table("t", 250, {"f"}, SparseOptimizerKind::kSgd)});
    options.tables[0].max_hotness = 1;
    options.tables[0].ttl_steps = 3;
    options.max_batch_size = kNew;
    HOTROW_ASSERT_OK_AND_ASSIGN(options.cache.bytes, EmbeddingCollection::MinCacheBytes(options));
    PutStore(kind, test::TempDir(), &options);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
    std::vector<float> floats(kNew * 250);
    for (uint64_t step = 0; step < kSteps; ++step) {
      Batch batch;
      batch.batch_size = kNew;
      for (uint64_t i = 0; i < kNew; ++i) {
        batch.values.push_back(step * kNew + i);
        batch.offsets.push_back(std::ssize(batch.values));
      }
      HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep next, tables->Prefetch(batch.view()));
      HOTROW_ASSERT_OK(next.Lookup({.pooled = RowsOf(*tables, kNew, floats)}));
      HOTROW_ASSERT_OK(std::move(next).Update({.pooled = RowsOf(*tables, kNew, floats)}));
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
    EXPECT_EQ(digest.tables[0].rows, static_cast<int64_t>(3 * kNew));
    // Some are still in the cache, or in a segment that is being written.
    EXPECT_GT(tables->Stats().dropped_rows, static_cast<int64_t>(kSteps * kNew / 2));
  }
}

// --- Floors and capacities -----------------------------------------------------------------------

TEST(RowLimitTest, OfACapacityTheOldestRowsGoInGroupsOfSteps) {
  EmbeddingCollectionOptions options = OneColumnOptions(SparseOptimizerKind::kSgd);
  options.tables[0].max_rows = 5;
  options.row_limit_steps = 2;
  OneColumn column(options);
  HOTROW_ASSERT_OK(column.Step({1, 2}, 1));
  HOTROW_ASSERT_OK(column.Step({3}, 1));
  HOTROW_ASSERT_OK(column.Step({1, 4}, 1));  // key 1 is young again
  HOTROW_ASSERT_OK(column.Step({5}, 1));
  EXPECT_EQ(column.rows(), 5);
  HOTROW_ASSERT_OK(column.Step({6, 7}, 1));
  EXPECT_EQ(column.rows(), 7);  // until the group ends
  HOTROW_ASSERT_OK(column.Step({8}, 1));
  EXPECT_EQ(column.tables().age_lines(), std::vector<RowLines>{{.age = 5}});
  EXPECT_EQ(column.rows(), 3);  // 2 and 3 would have left six
  EXPECT_EQ(column.Weight(1), 1);
  EXPECT_NE(column.Weight(6), 1);
  // A step of more rows than the capacity keeps all of them.
  HOTROW_ASSERT_OK(column.Step({10, 11, 12, 13}, 1));
  HOTROW_ASSERT_OK(column.Step({14, 15, 16, 17}, 1));
  EXPECT_EQ(column.rows(), 8);
}

TEST(RowLimitTest, BelowAFloorNothingAges) {
  EmbeddingCollectionOptions options = OneColumnOptions(SparseOptimizerKind::kSgd);
  options.tables[0].ttl_steps = 2;
  options.tables[0].min_rows = 3;
  options.row_limit_steps = 1;
  OneColumn column(options);
  HOTROW_ASSERT_OK(column.Step({1, 2, 3}, 1));
  for (int i = 0; i < 20; ++i) HOTROW_ASSERT_OK(column.Step({3}, 1));
  EXPECT_EQ(column.rows(), 3);
  EXPECT_NE(column.Weight(1), 1);
  HOTROW_ASSERT_OK(column.Step({4, 5}, 1));
  EXPECT_EQ(column.rows(), 3);  // 3, 4 and 5
  EXPECT_EQ(column.Weight(1), 1);
}

TEST(RowLimitTest, ErasedRowsDoNotCount) {
  EmbeddingCollectionOptions options = OneColumnOptions(SparseOptimizerKind::kSgd);
  options.tables[0].max_rows = 3;
  options.row_limit_steps = 1;
  OneColumn column(options);
  HOTROW_ASSERT_OK(column.Step({1, 2}, 1));
  const uint64_t erased[] = {1, 9};
  HOTROW_ASSERT_OK(column.tables().Erase("t", erased));
  HOTROW_ASSERT_OK(column.Step({3, 4}, 1));
  EXPECT_EQ(column.rows(), 3);
  HOTROW_ASSERT_OK(column.Step({5}, 1));
  EXPECT_EQ(column.rows(), 3);
  EXPECT_EQ(column.Weight(2), 1);
}

// What a store holds of rows beyond a capacity stays a share of it.
TEST(RowLimitTest, StoresDropWhatIsBeyondACapacity) {
  constexpr uint64_t kNew = 200;  // in a step
  constexpr uint64_t kSteps = 240;
  constexpr int64_t kCapacity = 4000;
  EmbeddingCollectionOptions options = OneColumnOptions(SparseOptimizerKind::kSgd);
  options.tables[0].max_rows = kCapacity;
  options.row_limit_steps = 8;
  options.max_batch_size = kNew;
  OneColumn column(options);
  int64_t most = 0;
  for (uint64_t step = 0; step < kSteps; ++step) {
    std::vector<uint64_t> keys(kNew);
    std::iota(keys.begin(), keys.end(), step * kNew);
    HOTROW_ASSERT_OK(column.Step(keys, 1));
    const auto made = static_cast<int64_t>((step + 1) * kNew);
    most = std::max(most, made - column.tables().Stats().dropped_rows);
  }
  EXPECT_LE(column.rows(), kCapacity);
  EXPECT_GT(column.rows(), kCapacity - 8 * static_cast<int64_t>(kNew) - 1);
  EXPECT_LT(most, 2 * kCapacity);
}

TEST(RowLimitTest, ARowYoungerThanTheCollectionIsRefused) {
  const std::string dir = test::TempDir();
  EmbeddingCollectionOptions options = OneColumnOptions(SparseOptimizerKind::kSgd);
  PutStore(StoreKind::kMemory, dir, &options);
  {
    OneColumn column(options);
    for (int i = 0; i < 3; ++i) HOTROW_ASSERT_OK(column.Step({2}, 1));
    HOTROW_ASSERT_OK(column.tables().snapshots().Prepare(9));
    HOTROW_ASSERT_OK(column.tables().snapshots().Commit(9));
  }
  options.start.from = {{.snapshot = 9}};
  options.start.steps = 2;
  options.tables[0].max_rows = 10;
  EXPECT_THAT(EmbeddingCollection::Create(options, {}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("key 2"), HasSubstr("step 3"), HasSubstr("start.steps"))));
}

// --- Scores --------------------------------------------------------------------------------------

EmbeddingCollectionOptions ScoredOptions(ScoreRule rule, int64_t max_rows = 0) {
  EmbeddingCollectionOptions options = OneColumnOptions(SparseOptimizerKind::kSgd);
  options.tables[0].score = rule;
  options.tables[0].max_rows = max_rows;
  if (max_rows > 0) options.tables[0].max_rows_by = RowOrder::kScore;
  options.row_limit_steps = 1;
  return options;
}

TEST(RowScoreTest, IsTheHighestTheSumOrTheLastOfWhatLookupsBrought) {
  constexpr float kMost = std::numeric_limits<float>::max();
  struct Case {
    ScoreRule rule;
    std::vector<float> after;  // of key 7, behind each step
  };
  for (const Case& c : {Case{ScoreRule::kMax, {-2, -2, 3, 3, kMost}},
                        Case{ScoreRule::kSum, {-7, -7, -3, -4, kMost}},
                        Case{ScoreRule::kLast, {-5, -5, 1, -1, kMost}}}) {
    SCOPED_TRACE(ScoreRuleName(c.rule));
    OneColumn column(ScoredOptions(c.rule));
    HOTROW_ASSERT_OK(column.Step({7, 8, 7}, 1, {-2, 9, -5}));
    EXPECT_EQ(column.Score(7), c.after[0]);
    HOTROW_ASSERT_OK(column.Step({7}, 1));  // none brought one
    EXPECT_EQ(column.Score(7), c.after[1]);
    HOTROW_ASSERT_OK(column.Step({7, 7}, 1, {3, 1}));
    EXPECT_EQ(column.Score(7), c.after[2]);
    HOTROW_ASSERT_OK(column.Step({7, 8}, 1, {-1, -0.0f}));
    EXPECT_EQ(column.Score(7), c.after[3]);
    HOTROW_ASSERT_OK(column.Step({7, 7}, 1, {kMost, kMost}));
    EXPECT_EQ(column.Score(7), c.after[4]);
    HOTROW_ASSERT_OK(column.Step({9}, 1));  // begins with none
    EXPECT_EQ(column.Score(9), 0);
    EXPECT_FALSE(std::signbit(column.Score(8)));
  }
}

// Sums of a step are taken in double: the small ones are not lost beside the large.
TEST(RowScoreTest, ASumOfAStepIsExact) {
  OneColumn column(ScoredOptions(ScoreRule::kSum));
  HOTROW_ASSERT_OK(column.Step({7, 7, 7, 7}, 1, {0x1p30f, 1, 1, -0x1p30f}));
  EXPECT_EQ(column.Score(7), 2);
}

TEST(RowScoreTest, OfACapacityTheLowestGo) {
  OneColumn column(ScoredOptions(ScoreRule::kLast, 3));
  HOTROW_ASSERT_OK(column.Step({1, 2, 3}, 1, {5, -1, 3}));
  EXPECT_EQ(column.rows(), 3);
  HOTROW_ASSERT_OK(column.Step({4}, 1, {4}));
  EXPECT_EQ(column.rows(), 3);
  EXPECT_EQ(column.Weight(2), 1);
  // A key that comes back begins again, also where the store still has its row.
  HOTROW_ASSERT_OK(column.Step({2}, 1, {6}));
  EXPECT_EQ(column.Score(2), 6);
  EXPECT_EQ(column.Weight(2), 0.5f);
  EXPECT_EQ(column.rows(), 3);
  EXPECT_EQ(column.Weight(3), 1);
  // Below the line of before, but younger.
  HOTROW_ASSERT_OK(column.Step({1, 2, 4}, 1, {-9, -8, -7}));
  EXPECT_EQ(column.rows(), 3);
  EXPECT_EQ(column.tables().age_lines()[0].scores.size(), 1);
}

TEST(RowScoreTest, OfOneScoreTheOldestGo) {
  OneColumn column(ScoredOptions(ScoreRule::kSum, 4));
  for (uint64_t key = 0; key < 8; ++key) HOTROW_ASSERT_OK(column.Step({key, 100}, 1, {1, 1}));
  EXPECT_EQ(column.rows(), 4);
  for (uint64_t key = 0; key < 8; ++key) EXPECT_EQ(column.Weight(key) != 1, key > 4) << key;
  EXPECT_EQ(column.Score(100), 8);
  // What a single step brings stays, as with a capacity by age, where nothing is above.
  HOTROW_ASSERT_OK(column.Step({11, 12, 13, 14, 15, 16}, 1, {99, 99, 99, 99, 99, 99}));
  EXPECT_EQ(column.rows(), 6);
  HOTROW_ASSERT_OK(column.Step({17}, 1, {99}));
  EXPECT_EQ(column.rows(), 1);
}

// Rows long past are counted in blocks of ages, of which the older ones are larger.
TEST(RowScoreTest, OldRowsOfOneScoreGoInBlocks) {
  constexpr uint64_t kSteps = 300;
  constexpr int64_t kCapacity = 200;
  OneColumn column(ScoredOptions(ScoreRule::kLast, kCapacity));
  for (uint64_t key = 0; key < kSteps; ++key) {
    HOTROW_ASSERT_OK(column.Step({key}, 1, {1}));
    const int64_t rows = column.rows();
    ASSERT_LE(rows, kCapacity);
    // A block has at most a fourth of its age.
    if (key >= static_cast<uint64_t>(kCapacity)) {
      ASSERT_GE(rows, kCapacity * 4 / 5) << key;
    }
  }
  // Those that are left are the youngest.
  const auto rows = static_cast<uint64_t>(column.rows());
  for (uint64_t key = 0; key < kSteps; ++key) {
    EXPECT_EQ(column.Weight(key) != 1, key >= kSteps - rows) << key;
  }
}

TEST(RowScoreTest, WrongScoresAreNamed) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  OneColumn column(ScoredOptions(ScoreRule::kMax));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(column.Step({1, 2}, 1, {1, nan}),
              StatusIs(kInvalid, AllOf(HasSubstr("\"f\""), HasSubstr("sample 1"),
                                       HasSubstr("score is nan"))));
  EXPECT_THAT(column.Step({1, 2}, 1, {1}), StatusIs(kInvalid, HasSubstr("scores: expected")));
  OneColumn none(OneColumnOptions(SparseOptimizerKind::kSgd));
  EXPECT_THAT(none.Step({1}, 1, {1}), StatusIs(kInvalid, HasSubstr("scores: no table keeps any")));
}

TEST(RowScoreTest, FeaturesApartBringTheirOwn) {
  EmbeddingCollectionOptions options =
      test::Options({Table("t", 1, {"f", "g"}, SparseOptimizerKind::kSgd),
                     Table("plain", 1, {"h"}, SparseOptimizerKind::kSgd)});
  options.tables[0].score = ScoreRule::kSum;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, EmbeddingCollection::Create(options, {}));
  const std::vector<uint64_t> keys = {3, 4};
  const std::vector<int32_t> lengths = {1, 1};
  const std::vector<float> scores = {2, 5};
  const auto step = [&](int scored) -> absl::Status {
    std::vector<FeatureBags> bags(3, {.values = keys, .lengths = lengths});
    bags[static_cast<size_t>(scored)].scores = scores;
    HOTROW_ASSIGN_OR_RETURN(EmbeddingStep next,
                            tables->Prefetch(FeatureBatch{.batch_size = 2, .features = bags}));
    std::vector<float> floats(6);
    HOTROW_RETURN_IF_ERROR(next.Lookup({.pooled = RowsOf(*tables, 2, floats)}));
    return std::move(next).Update({.pooled = RowsOf(*tables, 2, floats)});
  };
  HOTROW_ASSERT_OK(step(1));
  HOTROW_ASSERT_OK(step(0));
  EXPECT_THAT(step(2), StatusIs(absl::StatusCode::kInvalidArgument,
                                AllOf(HasSubstr("\"h\""), HasSubstr("keeps none"))));
  float sum = 0;
  HOTROW_ASSERT_OK(tables->EraseIf("t", [&](const StoredRow& row) {
    EXPECT_EQ(row.score, row.key == 3 ? 4 : 10);
    sum += row.score;
    return row.score > 5;
  }));
  EXPECT_EQ(sum, 14);
  HOTROW_ASSERT_OK_AND_ASSIGN(const CollectionDigest digest, tables->Digest());
  EXPECT_EQ(digest.tables[0].rows, 1);
}

// With the sums of a step counted as they are.
TEST(AdmissionTest, TheStepOfTheNthLookupMovesTheRowAsAWhole) {
  EmbeddingCollectionOptions options = OneColumnOptions(SparseOptimizerKind::kSgd);
  options.tables[0].admission = {.rule = Admission::Rule::kLookups, .lookups = 4};
  options.admission_bytes = kMiB;
  OneColumn column(options);
  HOTROW_ASSERT_OK(column.Step({5, 5, 6}, 1));
  EXPECT_EQ(column.Weight(5), 1);
  EXPECT_EQ(column.tables().Stats().admission_counters, 2);
  HOTROW_ASSERT_OK(column.Step({5, 6, 5, 5}, 1));  // its 3rd to 5th
  EXPECT_EQ(column.Weight(5), 1 - 3 * 0.5f);
  EXPECT_EQ(column.Weight(6), 1);
  EXPECT_EQ(column.tables().Stats().admission_counters, 1);
  EXPECT_EQ(column.tables().Stats().admission_rejected_keys, 3);
  EXPECT_EQ(column.rows(), 1);
}

TEST(AdmissionTest, FullCountersRefuseTheStepAndChangeNothing) {
  EmbeddingCollectionOptions options = OneColumnOptions(SparseOptimizerKind::kSgd);
  options.tables[0].admission = {.rule = Admission::Rule::kLookups, .lookups = 3};
  options.admission_bytes = 16 * internal::LookupCounters::kBytesPerSlot;  // of 14 keys
  OneColumn column(options);
  std::vector<uint64_t> keys(12);
  std::iota(keys.begin(), keys.end(), 0);
  HOTROW_ASSERT_OK(column.Step(keys, 1));
  // Also keys that would join, and whose counters would go.
  EXPECT_THAT(column.Step({0, 0, 100, 101, 102}, 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("admission_bytes"), HasSubstr("12 are being counted"),
                             HasSubstr("count for fewer steps"))));
  EXPECT_EQ(column.tables().steps(), 1);
  EXPECT_EQ(column.Weight(0), 1);
  EXPECT_EQ(column.tables().Stats().admission_counters, 12);
  HOTROW_ASSERT_OK(column.Step({0, 0}, 1));
  EXPECT_EQ(column.Weight(0), 0);
  HOTROW_ASSERT_OK(column.Step({100, 101, 102}, 1));
  EXPECT_EQ(column.tables().Stats().admission_counters, 14);
}

TEST(AdmissionTest, ForgottenCountersMakeRoom) {
  EmbeddingCollectionOptions options = OneColumnOptions(SparseOptimizerKind::kSgd);
  options.tables[0].admission = {
      .rule = Admission::Rule::kLookups, .lookups = 3, .forget_steps = 4};
  options.admission_bytes = 64 * internal::LookupCounters::kBytesPerSlot;  // of 56 keys
  OneColumn column(options);
  for (uint64_t i = 0; i < 200; ++i) {
    HOTROW_ASSERT_OK(column.Step({5 * i, 5 * i + 1, 5 * i + 2, 5 * i + 3, 5 * i + 4}, 1));
  }
  EXPECT_GE(column.tables().Stats().admission_counters, 20);
  EXPECT_EQ(column.rows(), 0);
}

// A gradient that is dropped does not shorten the others.
TEST(AdmissionTest, RejectedKeysDoNotCountInAClippedNorm) {
  float weights[2];
  for (const bool with_rejected : {false, true}) {
    EmbeddingCollectionOptions options = OneColumnOptions(SparseOptimizerKind::kSgd);
    options.max_gradient_norm = 0.25f;
    options.admission_bytes = kMiB;
    options.tables[0].admission = {.rule = Admission::Rule::kLookups, .lookups = 2};
    OneColumn column(options);
    HOTROW_ASSERT_OK(column.Step({3}, 1));
    HOTROW_ASSERT_OK(
        column.Step(with_rejected ? std::vector<uint64_t>{3, 4, 5} : std::vector<uint64_t>{3}, 1));
    weights[with_rejected ? 1 : 0] = column.Weight(3);
  }
  EXPECT_EQ(weights[0], 1 - 0.5f * 0.25f);
  EXPECT_EQ(weights[1], weights[0]);
}

// --- Options -------------------------------------------------------------------------------------

TEST(RowLifeOptionsTest, WhatDoesNotGoTogetherIsNamed) {
  const auto error = [](auto&& change) {
    EmbeddingCollectionOptions options = OneColumnOptions(SparseOptimizerKind::kSgd);
    options.admission_bytes = kMiB;
    change(&options, &options.tables[0]);
    return EmbeddingCollection::Create(options, {}).status();
  };
  using O = EmbeddingCollectionOptions;
  using T = TableConfig;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(error([](O*, T* t) { t->ttl_steps = -1; }),
              StatusIs(kInvalid, AllOf(HasSubstr("\"t\""), HasSubstr("ttl_steps"))));
  EXPECT_THAT(error([](O*, T* t) {
                t->admission.rule = Admission::Rule::kCoin;
                t->admission.probability = 0;
              }),
              StatusIs(kInvalid, HasSubstr("admission.probability")));
  EXPECT_THAT(error([](O* o, T* t) {
                t->admission.rule = Admission::Rule::kLookups;
                o->admission_bytes = 0;
              }),
              StatusIs(kInvalid, HasSubstr("admission_bytes")));
  EXPECT_THAT(error([](O*, T* t) {
                t->ttl_steps = 5;
                t->read_only_features = {"f"};
              }),
              StatusIs(kInvalid, HasSubstr("read only")));
  EXPECT_THAT(error([](O*, T* t) {
                t->admission.rule = Admission::Rule::kLookups;
                t->read_only_features = {"f"};
              }),
              StatusIs(kInvalid, HasSubstr("read_only_features")));
  EXPECT_THAT(error([](O*, T* t) {
                t->ttl_steps = 5;
                t->optimizer.weight_decay_mode = WeightDecayMode::kTable;
              }),
              StatusIs(kInvalid, HasSubstr("weight_decay_mode")));
  EXPECT_THAT(error([](O*, T* t) { t->max_rows = -1; }), StatusIs(kInvalid, HasSubstr("max_rows")));
  EXPECT_THAT(error([](O*, T* t) { t->min_rows = 5; }),
              StatusIs(kInvalid, AllOf(HasSubstr("min_rows"), HasSubstr("ttl_steps"))));
  EXPECT_THAT(error([](O*, T* t) {
                t->ttl_steps = 5;
                t->min_rows = 5;
                t->max_rows = 4;
              }),
              StatusIs(kInvalid, AllOf(HasSubstr("min_rows"), HasSubstr("max_rows, 4"))));
  EXPECT_THAT(error([](O*, T* t) {
                t->max_rows = 5;
                t->read_only_features = {"f"};
              }),
              StatusIs(kInvalid, HasSubstr("read only")));
  EXPECT_THAT(error([](O*, T* t) { t->max_rows_by = RowOrder::kScore; }),
              StatusIs(kInvalid, HasSubstr("score is none")));
  EXPECT_THAT(error([](O*, T* t) {
                t->score = ScoreRule::kMax;
                t->max_rows_by = RowOrder::kScore;
              }),
              StatusIs(kInvalid, HasSubstr("max_rows is 0")));
  EXPECT_THAT(error([](O*, T* t) {
                t->score = ScoreRule::kMax;
                t->max_rows = 9;
                t->ttl_steps = 9;
                t->max_rows_by = RowOrder::kScore;
              }),
              StatusIs(kInvalid, HasSubstr("neither ttl_steps, 9")));
  EXPECT_THAT(error([](O*, T* t) {
                t->score = ScoreRule::kMax;
                t->read_only_features = {"f"};
              }),
              StatusIs(kInvalid, HasSubstr("read_only_features")));
  EXPECT_THAT(error([](O* o, T* t) {
                t->score = ScoreRule::kMax;
                o->cache.device_bytes = kMiB;
              }),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("score")));
  EXPECT_THAT(error([](O* o, T*) { o->start.age_lines = {{.scores = {{.step = 0, .range = 5}}}}; }),
              StatusIs(kInvalid, HasSubstr("its score is none")));
  EXPECT_THAT(error([](O* o, T* t) {
                t->score = ScoreRule::kMax;
                o->start.age_lines = {{.scores = {{.step = 1, .range = 5}}}};
              }),
              StatusIs(kInvalid, HasSubstr("none may lie above start.steps")));
  EXPECT_THAT(error([](O* o, T* t) {
                t->max_rows = 5;
                o->cache.device_bytes = kMiB;
              }),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("max_rows")));
  for (const int64_t steps : {int64_t{0}, int64_t{2} << 20}) {
    EXPECT_THAT(error([&](O* o, T*) { o->row_limit_steps = steps; }),
                StatusIs(kInvalid, HasSubstr("row_limit_steps")));
  }
  EXPECT_THAT(error([](O* o, T*) {
                o->start.age_lines = {{}, {}};
              }),
              StatusIs(kInvalid, HasSubstr("age_lines")));
  EXPECT_THAT(error([](O* o, T*) { o->start.age_lines = {{.age = 5}}; }),
              StatusIs(kInvalid, HasSubstr("age_lines")));
  EXPECT_THAT(error([](O* o, T* t) {
                t->ttl_steps = 5;
                o->cache.device_bytes = kMiB;
              }),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("ttl_steps")));
}

TEST(RowLifeOptionsTest, RulesAreReadAsTheyAreWritten) {
  for (const char* const text : {"always", "lookups:3", "lookups:3:100000", "coin:0.1", "coin:1",
                                 "coin:2.3283064365386963e-10"}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const Admission admission, ParseAdmission(text));
    EXPECT_EQ(AdmissionText(admission), text);
  }
  for (const char* const text :
       {"", "never", "always:1", "lookups", "lookups:0", "lookups:x", "lookups:3:-1",
        "lookups:3:4:5", "coin", "coin:0", "coin:1.5", "coin:nan"}) {
    EXPECT_FALSE(ParseAdmission(text).ok()) << text;
  }
}

// --- Counters ------------------------------------------------------------------------------------

TEST(LookupCountersTest, AreThoseOfAPlainMap) {
  using internal::LookupCounters;
  struct Counter {
    uint32_t count;
    uint32_t step;
  };
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const auto slots = static_cast<int64_t>(8 + random.Below(200));
    HOTROW_ASSERT_OK_AND_ASSIGN(LookupCounters counters,
                                LookupCounters::Create(slots * LookupCounters::kBytesPerSlot));
    ASSERT_EQ(counters.slots(), slots);
    std::map<std::pair<uint32_t, uint64_t>, Counter> expected;
    // Where searches ended since the last counter went: where others may begin.
    std::map<std::pair<uint32_t, uint64_t>, LookupCounters::Slot> searched;
    for (uint32_t step = 1; step < 2000; ++step) {
      const RowKey key = {random.Below(300), static_cast<uint32_t>(random.Below(2))};
      const auto at = expected.find({key.table, key.key});
      const uint32_t oldest = step < 50 ? 0 : step - 50;
      const bool there = at != expected.end();
      const auto grown = [&, slots_before = counters.slots_used()] {
        return counters.slots_used() != slots_before;
      };
      if (random.Below(4) != 0) counters.MakeRoom(1);
      if (grown()) searched.clear();
      const auto before = searched.find({key.table, key.key});
      const LookupCounters::Slot from =
          before == searched.end() ? counters.PrefetchHome(key) : before->second;
      const LookupCounters::Found found = counters.Find(key, from, oldest);
      EXPECT_EQ(found.has_slot, there);
      EXPECT_EQ(found.count, there && at->second.step >= oldest ? at->second.count : 0);
      EXPECT_EQ(counters.Find(key, oldest).slot, found.slot);
      searched[{key.table, key.key}] = found.slot;
      const uint64_t what = random.Below(8);
      if (what < 5 && (there || counters.CheckRoom(1).ok())) {
        const auto count = static_cast<uint32_t>(1 + random.Below(9));
        // Others may have taken the slot that the search ended at.
        ASSERT_FALSE(searched.empty());
        const auto any = searched.begin();
        const RowKey other = {any->first.second, any->first.first};
        if (expected.contains(any->first)) {
          counters.Set(other, any->second, expected[any->first].count, step);
          expected[any->first].step = step;
        }
        counters.Set(key, found.slot, count, step);
        expected[{key.table, key.key}] = {count, step};
      } else if (what < 7) {
        searched.clear();
        counters.Erase(key);
        expected.erase({key.table, key.key});
      } else if (what == 7 && random.Below(10) == 0) {
        searched.clear();
        counters.Sweep(slots,
                       [&](uint32_t table, uint32_t last) { return table == 1 && last < oldest; });
        std::erase_if(expected, [&](const auto& entry) {
          return entry.first.first == 1 && entry.second.step < oldest;
        });
      }
      if (grown()) searched.clear();  // Set lets it grow, too
      ASSERT_EQ(counters.size(), std::ssize(expected));
      EXPECT_EQ(counters.CheckRoom(1).ok(), counters.size() < slots / 8 * 7);
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const HostBuffer<std::byte> bytes, counters.Save(2000));
    HOTROW_ASSERT_OK_AND_ASSIGN(LookupCounters copy,
                                LookupCounters::Create(300 * LookupCounters::kBytesPerSlot));
    HOTROW_ASSERT_OK(
        copy.Load(bytes.span(), 2000, [](const RowKey& key) { return key.table == 0; }));
    int64_t kept = 0;
    for (const auto& [name, counter] : expected) {
      const RowKey key = {name.second, name.first};
      EXPECT_EQ(copy.Find(key, counter.step).count, key.table == 0 ? counter.count : 0);
      kept += key.table == 0 ? 1 : 0;
    }
    EXPECT_EQ(copy.size(), kept);
  }
}

TEST(LookupCountersTest, DamageIsNamed) {
  using internal::LookupCounters;
  HOTROW_ASSERT_OK_AND_ASSIGN(LookupCounters counters, LookupCounters::Create(10000));
  counters.Set({5, 1}, 3, 7);
  counters.Set({6, 1}, 1, 9);
  HOTROW_ASSERT_OK_AND_ASSIGN(const HostBuffer<std::byte> saved, counters.Save(9));
  const auto all = [](const RowKey&) { return true; };
  const auto load = [&](std::vector<std::byte> bytes, uint32_t step) {
    auto empty = LookupCounters::Create(10000);
    HOTROW_EXPECT_OK(empty);
    return empty->Load(bytes, step, all);
  };
  const std::vector<std::byte> good(saved.begin(), saved.end());
  HOTROW_EXPECT_OK(load(good, 9));
  constexpr auto kLoss = absl::StatusCode::kDataLoss;
  EXPECT_THAT(load(good, 8), StatusIs(kLoss, HasSubstr("of step 9")));
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(load({good.begin(), good.begin() + static_cast<int64_t>(size)}, 9),
                StatusIs(kLoss, HasSubstr("counters")));
  }
  std::vector<std::byte> twice = good;
  std::copy_n(twice.begin() + 24, 20, twice.begin() + 44);
  EXPECT_THAT(load(twice, 9), StatusIs(kLoss, HasSubstr("twice")));
  std::vector<std::byte> zero = good;
  std::fill_n(zero.begin() + 24 + 12, 4, std::byte{0});
  EXPECT_THAT(load(zero, 9), StatusIs(kLoss, HasSubstr("count 0")));
}

}  // namespace
}  // namespace hotrow
