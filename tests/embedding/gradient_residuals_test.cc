#include "embedding/ranks/gradient_residuals_impl.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/hash.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::NotNull;

using Table = GradientResiduals::Table;

// So wide that the least budget has one set.
constexpr int32_t kWideDim = 1024;

std::unique_ptr<GradientResiduals> Make(const std::vector<Table>& tables, int64_t budget) {
  auto made = GradientResiduals::Create(tables, budget);
  HOTROW_EXPECT_OK(made);
  return made.ok() ? *std::move(made) : nullptr;
}

// Keys of one step: of each table in turn.
struct Keys {
  std::vector<RowRun> runs;
  std::vector<uint64_t> keys;

  void Add(const Table& table, const std::vector<uint64_t>& more) {
    const auto begin = static_cast<int64_t>(keys.size());
    keys.insert(keys.end(), more.begin(), more.end());
    runs.push_back({.begin = begin,
                    .end = static_cast<int64_t>(keys.size()),
                    .dim = table.dim,
                    .table = table.table});
  }
};

std::vector<float*> Find(GradientResiduals& residuals, const Keys& keys, uint32_t step,
                         ThreadPool* pool = nullptr) {
  std::vector<float*> rows(keys.keys.size());
  rows.reserve(1);
  HOTROW_EXPECT_OK(residuals.Find({.pool = pool}, keys.runs, keys.keys.data(), step, rows.data()));
  return rows;
}

// The same of one table.
std::vector<float*> Find(GradientResiduals& residuals, const std::vector<uint64_t>& keys,
                         uint32_t step, const Table& table) {
  Keys all;
  all.Add(table, keys);
  return Find(residuals, all, step);
}

std::vector<float> RowAt(const float* row, int32_t dim) { return {row, row + dim}; }

TEST(GradientResidualsTest, KeepWhatWasWrittenByTableAndKey) {
  const Table a = {0, 3};
  const Table b = {1, 3};
  const auto residuals = Make({a, b}, 1 << 20);
  Keys keys;
  keys.Add(b, {7, 8});
  keys.Add(a, {7});
  keys.Add(a, {9});  // of another rank
  for (uint32_t step = 1; step < 4; ++step) {
    const std::vector<float*> rows = Find(*residuals, keys, step);
    ASSERT_THAT(rows, Each(NotNull()));
    EXPECT_EQ(std::set<float*>(rows.begin(), rows.end()).size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_THAT(RowAt(rows[i], 3), Each(step == 1 ? 0.0f : static_cast<float>(10 * step + i)));
      std::fill_n(rows[i], 3, static_cast<float>(10 * (step + 1) + i));
    }
  }
  EXPECT_EQ(residuals->counts().keys, 12);
  EXPECT_EQ(residuals->counts().hits, 8);
  EXPECT_EQ(residuals->counts().replaced, 0);
  EXPECT_THAT(Find(*residuals, Keys{}, 9), testing::IsEmpty());
}

TEST(GradientResidualsTest, AnErasedKeyBeginsAnewAndTheOthersKeepTheirs) {
  const Table table = {5, kWideDim};
  const Table other = {6, kWideDim};
  const auto residuals =
      Make({table, other}, GradientResiduals::MinBytes(std::vector<Table>{table, other}));
  ASSERT_EQ(residuals->capacity_rows(), 4);
  float fill = 1;
  for (float* row : Find(*residuals, {1, 2, 3, 4}, 1, table)) std::fill_n(row, kWideDim, fill++);
  residuals->Erase(table.table, std::vector<uint64_t>{2, 9, 2});
  residuals->Erase(other.table, std::vector<uint64_t>{1});  // of another table: not there
  const std::vector<float*> rows = Find(*residuals, {1, 3, 4, 2}, 2, table);
  ASSERT_THAT(rows, Each(NotNull()));
  EXPECT_THAT(RowAt(rows[0], kWideDim), Each(1.0f));
  EXPECT_THAT(RowAt(rows[1], kWideDim), Each(3.0f));
  EXPECT_THAT(RowAt(rows[2], kWideDim), Each(4.0f));
  EXPECT_THAT(RowAt(rows[3], kWideDim), Each(0.0f));
  EXPECT_EQ(residuals->counts().replaced, 0);
}

TEST(GradientResidualsTest, TheKeyLongestUnusedMakesRoomAndItsResidualIsLost) {
  const Table table = {5, kWideDim};
  const auto residuals = Make({table}, GradientResiduals::MinBytes({&table, 1}));
  ASSERT_EQ(residuals->capacity_rows(), 4);
  for (float* row : Find(*residuals, {1, 2, 3, 4}, 1, table)) std::fill_n(row, kWideDim, 1.0f);
  Find(*residuals, {2, 1, 4}, 2, table);
  const std::vector<float*> fifth = Find(*residuals, {5}, 3, table);
  EXPECT_THAT(RowAt(fifth[0], kWideDim), Each(0.0f));
  EXPECT_EQ(residuals->counts().replaced, 1);
  for (float* row : Find(*residuals, {1, 2, 4}, 4, table)) {
    EXPECT_THAT(RowAt(row, kWideDim), Each(1.0f));
  }
  // 3 was the one; it takes the place of 5 now.
  EXPECT_EQ(Find(*residuals, {3}, 5, table), fifth);
  EXPECT_THAT(RowAt(fifth[0], kWideDim), Each(0.0f));
}

TEST(GradientResidualsTest, KeysOfOneStepDoNotDriveEachOtherOut) {
  const Table table = {0, kWideDim};
  const auto residuals = Make({table}, GradientResiduals::MinBytes({&table, 1}));
  const std::vector<float*> rows = Find(*residuals, {1, 2, 3, 4, 5, 6}, 1, table);
  EXPECT_THAT(std::vector<float*>(rows.begin(), rows.begin() + 4), Each(NotNull()));
  EXPECT_EQ(rows[4], nullptr);
  EXPECT_EQ(rows[5], nullptr);
  EXPECT_EQ(residuals->counts().refused, 2);
  // What is there keeps its place from new ones before it.
  const std::vector<float*> later = Find(*residuals, {5, 6, 2, 7, 8, 9}, 2, table);
  EXPECT_EQ(later[2], rows[1]);
  EXPECT_EQ(std::vector<float*>(later.begin(), later.begin() + 4),
            (std::vector<float*>{rows[0], rows[2], rows[1], rows[3]}));
  EXPECT_EQ(later[4], nullptr);
  EXPECT_EQ(later[5], nullptr);
}

TEST(GradientResidualsTest, KeepTheBudget) {
  const std::vector<Table> tables = {{0, 16}, {1, 3}, {2, 16}, {3, 100}};
  const int64_t least = GradientResiduals::MinBytes(tables);
  EXPECT_THAT(GradientResiduals::Create(tables, least - 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(std::to_string(least))));
  for (const int64_t budget : {least, least + 5000, int64_t{1} << 20, int64_t{10} << 20}) {
    const auto residuals = Make(tables, budget);
    EXPECT_LE(residuals->bytes(), budget);
    EXPECT_GE(residuals->capacity_rows(), 12);
    if (budget >= 1 << 20) {
      // Rows of 16 + 4 D bytes, as many of each table; some is lost by rounding.
      EXPECT_GE(residuals->capacity_rows(), budget * 4 / (80 + 28 + 80 + 416) * 95 / 100);
    }
  }
}

// --- Against a plain model

struct Model {
  struct Entry {
    uint64_t key;
    uint32_t table;
    uint32_t step;
    std::vector<float> row;
  };
  std::vector<std::vector<Entry>> sets;

  std::vector<Entry>& SetOf(uint64_t key, const Table& table) {
    return sets[HashRowKey(key, table.table).bucket1(sets.size())];
  }
  // Null: it is not there.
  Entry* Find(uint64_t key, const Table& table) {
    for (Entry& entry : SetOf(key, table)) {
      if (entry.key == key && entry.table == table.table) return &entry;
    }
    return nullptr;
  }
  void Add(uint64_t key, const Table& table, uint32_t step) {
    std::vector<Entry>& set = SetOf(key, table);
    Entry fresh = {key, table.table, step, std::vector<float>(table.dim)};
    if (set.size() < 4) {
      set.push_back(std::move(fresh));
      return;
    }
    const auto oldest = std::min_element(
        set.begin(), set.end(), [](const Entry& a, const Entry& b) { return a.step < b.step; });
    if (oldest->step < step) *oldest = std::move(fresh);
  }
};

// Distinct keys, small ones more often.
std::vector<uint64_t> RandomKeys(RandomStream& random, int64_t count, uint64_t rows) {
  std::set<uint64_t> keys;
  for (int64_t i = 0; i < count; ++i) {
    const double u = random.Uniform();
    keys.insert(static_cast<uint64_t>(u * u * static_cast<double>(rows)));
  }
  std::vector<uint64_t> out(keys.begin(), keys.end());
  for (size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[random.Below(i)]);
  return out;
}

TEST(GradientResidualsTest, AreAFunctionOfKeysAndSteps) {
  const std::vector<Table> tables = {{0, 5}, {1, 5}, {2, 5}};
  ThreadPool pool(3);
  for (const uint64_t seed : test::Seeds(3)) {
    RandomStream random(seed, RandomPurpose::kTest);
    const auto alone = Make(tables, 64 << 10);
    const auto threaded = Make(tables, 64 << 10);
    Model model;
    model.sets.resize(alone->capacity_rows() / 4);
    for (uint32_t step = 1; step <= 30; ++step) {
      Keys keys;
      for (const Table& table : tables) {
        // Twice of each: of two ranks.
        const std::vector<uint64_t> all = RandomKeys(random, 600, 4000);
        const auto half = static_cast<int64_t>(random.Below(all.size() + 1));
        keys.Add(table, {all.begin(), all.begin() + half});
        keys.Add(table, {all.begin() + half, all.end()});
      }
      const std::vector<float*> a = Find(*alone, keys, step);
      const std::vector<float*> b = Find(*threaded, keys, step, &pool);
      for (const bool known : {true, false}) {
        for (const RowRun& run : keys.runs) {
          for (int64_t i = run.begin; i < run.end; ++i) {
            Model::Entry* const entry = model.Find(keys.keys[i], tables[run.table]);
            if (known && entry != nullptr) entry->step = step;
            if (!known && entry == nullptr) model.Add(keys.keys[i], tables[run.table], step);
          }
        }
      }
      for (const RowRun& run : keys.runs) {
        for (int64_t i = run.begin; i < run.end; ++i) {
          Model::Entry* const entry = model.Find(keys.keys[i], tables[run.table]);
          ASSERT_EQ(a[i] == nullptr, entry == nullptr) << "step " << step << " row " << i;
          ASSERT_EQ(b[i] == nullptr, entry == nullptr);
          if (entry == nullptr) continue;
          ASSERT_EQ(RowAt(a[i], 5), entry->row) << "step " << step << " row " << i;
          ASSERT_EQ(RowAt(b[i], 5), entry->row);
          for (float& x : entry->row) x += static_cast<float>(random.Uniform());
          std::copy(entry->row.begin(), entry->row.end(), a[i]);
          std::copy(entry->row.begin(), entry->row.end(), b[i]);
        }
      }
    }
    EXPECT_GT(alone->counts().replaced, 100);
    EXPECT_GT(alone->counts().refused, 100);
    EXPECT_GT(alone->counts().hits, 1000);
    EXPECT_EQ(threaded->counts().hits, alone->counts().hits);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto bytes, alone->Save({}));
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto same, threaded->Save({.pool = &pool}));
    ASSERT_EQ(bytes.size(), same.size());
    EXPECT_EQ(std::memcmp(bytes.data(), same.data(), bytes.size()), 0);
  }
}

// --- Bytes

const std::vector<Table>& TwoWidths() {
  static const auto* const kTables = new std::vector<Table>{{0, 5}, {1, 16}, {2, 5}};
  return *kTables;
}

// The rows of step `step`, changed.
std::vector<std::vector<float>> Step(GradientResiduals& residuals, uint32_t step) {
  RandomStream random(step, RandomPurpose::kTest);
  Keys keys;
  for (const Table& table : TwoWidths()) keys.Add(table, RandomKeys(random, 300, 2000));
  const std::vector<float*> rows = Find(residuals, keys, step);
  std::vector<std::vector<float>> out;
  for (const RowRun& run : keys.runs) {
    for (int64_t i = run.begin; i < run.end; ++i) {
      out.push_back(rows[i] == nullptr ? std::vector<float>() : RowAt(rows[i], run.dim));
      for (int32_t c = 0; rows[i] != nullptr && c < run.dim; ++c) {
        rows[i][c] = 0.5f * rows[i][c] + static_cast<float>(random.Uniform());
      }
    }
  }
  return out;
}

TEST(GradientResidualsTest, GoOnFromTheirBytes) {
  constexpr int64_t kBudget = 96 << 10;
  const auto residuals = Make(TwoWidths(), kBudget);
  for (uint32_t step = 1; step <= 20; ++step) Step(*residuals, step);
  ASSERT_GT(residuals->counts().replaced, 0);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto bytes, residuals->Save({}));
  EXPECT_LE(bytes.size(), residuals->bytes() + 100);
  EXPECT_GT(bytes.size(), residuals->bytes() / 2);
  const auto loaded = Make(TwoWidths(), kBudget);
  Step(*loaded, 3);  // is no longer there afterwards
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool taken, loaded->Load(bytes.span(), 20));
  EXPECT_TRUE(taken);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto again, loaded->Save({}));
  ASSERT_EQ(again.size(), bytes.size());
  EXPECT_EQ(std::memcmp(again.data(), bytes.data(), bytes.size()), 0);
  for (uint32_t step = 21; step <= 40; ++step) {
    EXPECT_EQ(Step(*loaded, step), Step(*residuals, step)) << step;
  }
}

TEST(GradientResidualsTest, OfAnotherBudgetOrOtherTablesTheyAreNotTaken) {
  const auto residuals = Make(TwoWidths(), 96 << 10);
  Step(*residuals, 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto bytes, residuals->Save({}));
  const std::vector<std::pair<std::vector<Table>, int64_t>> others = {
      {TwoWidths(), 200 << 10},
      {{{0, 5}, {1, 17}, {2, 5}}, 96 << 10},
      {{{0, 5}, {1, 5}, {2, 5}}, 96 << 10}};
  for (const auto& [tables, budget] : others) {
    const auto other = Make(tables, budget);
    HOTROW_ASSERT_OK_AND_ASSIGN(const bool taken, other->Load(bytes.span(), 1));
    EXPECT_FALSE(taken);
    for (float* row : Find(*other, {1, 2, 3}, 1, tables[0])) {
      EXPECT_THAT(RowAt(row, tables[0].dim), Each(0.0f));
    }
  }
}

TEST(GradientResidualsTest, DamagedBytesAreRefusedAndNothingIsTaken) {
  const std::vector<Table> tables = {{2, 4}};
  const auto residuals = Make(tables, 16 << 10);
  Find(*residuals, {1, 2, 3, 4, 5}, 6, tables[0]);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto whole, residuals->Save({}));
  const std::vector<std::byte> good(whole.begin(), whole.end());
  // Header of 16 bytes, one width of 24, five slots of 16, five rows of 16.
  ASSERT_EQ(good.size(), 16u + 24 + 5 * 16 + 5 * 16);
  const auto fresh = Make(tables, 16 << 10);
  const auto expect_refused = [&](const std::vector<std::byte>& bytes, const std::string& what) {
    const absl::StatusOr<bool> loaded = fresh->Load(bytes, 6);
    if (loaded.ok()) {
      // Another number of widths, columns or sets is that of another budget.
      EXPECT_FALSE(*loaded) << what;
    } else {
      EXPECT_THAT(loaded.status(),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("residuals of gradients: ")))
          << what;
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto now, fresh->Save({}));
    EXPECT_EQ(now.size(), 40) << what;
  };
  for (size_t size = 0; size < good.size(); ++size) {
    expect_refused({good.begin(), good.begin() + static_cast<int64_t>(size)},
                   "cut off at " + std::to_string(size));
  }
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  expect_refused(longer, "one byte more");
  for (const size_t at : {0, 7, 8, 12, 16, 24, 32, 39}) {
    for (const int bit : {0, 6}) {
      std::vector<std::byte> bad = good;
      bad[at] ^= std::byte{1} << bit;
      expect_refused(bad, "byte " + std::to_string(at));
    }
  }
  for (size_t slot = 0; slot < 5; ++slot) {
    // A table that is not there, steps that have not been, and none.
    for (const auto& [at, value] : {std::pair<size_t, int>{8, 1}, {8, 77}, {12, 7}, {12, 0}}) {
      std::vector<std::byte> bad = good;
      bad[40 + slot * 16 + at] = static_cast<std::byte>(value);
      expect_refused(bad, "slot " + std::to_string(slot) + " byte " + std::to_string(at));
    }
  }
  // One key twice.
  std::vector<std::byte> bad = good;
  std::copy_n(good.begin() + 40, 16, bad.begin() + 56);
  expect_refused(bad, "a key twice");
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool taken, fresh->Load(good, 6));
  EXPECT_TRUE(taken);
}

}  // namespace
}  // namespace hotrow::internal
