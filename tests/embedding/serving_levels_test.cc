// Rows on a disk that change: levels before the file of all rows, and their merging.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "embedding/serving/row_levels_impl.h"
#include "embedding/serving/serving_tables.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/embedding/serving_updates.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::Build;
using test::Change;
using test::ExpectShows;
using test::FaultyEnv;
using test::Model;
using test::OptionsOf;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kKiB = 1024;
constexpr char kDir[] = "/rows";

// Tables of version 0; merges run where a test asks for them.
ServingTablesOptions OnDisk(Env* env, ServingRows rows = ServingRows::kAsTrained) {
  ServingTablesOptions out = OptionsOf({5, 8}, rows);
  out.memory_bytes = 4096 * kKiB;
  out.rows_dir = kDir;
  out.rows_source = "v0";
  out.merge_bytes_per_second = 0;
  out.env = env;
  return out;
}

std::vector<ServingTables::Update::Size> SizesOf(const Change& change, const Model& after) {
  std::vector<ServingTables::Update::Size> out = change.sizes();
  for (ServingTables::Update::Size& size : out) size.rows_after = 0;
  for (const auto& [at, row] : after) ++out[at.first].rows_after;
  return out;
}

// An update to `after`, which is the rows of `source`.
absl::Status Apply(ServingTables* tables, const Change& change, const Model& after,
                   const std::string& source) {
  HOTROW_ASSIGN_OR_RETURN(const auto update,
                          ServingTables::Update::Begin(tables, SizesOf(change, after), source));
  HOTROW_RETURN_IF_ERROR(change.Fill(*tables, *update));
  HOTROW_RETURN_IF_ERROR(update->Stage().status());
  update->Fold();
  return absl::OkStatus();
}

// Version 0, with rows of half of the keys, and what the updates after it make of it. An update
// changes some per_mille of the keys, by default so many that it is merged with all rows.
struct History {
  explicit History(size_t updates, uint64_t per_mille = 350) {
    RandomStream random(1, RandomPurpose::kTest);
    versions.emplace_back();
    for (uint64_t key = 0; key < kKeys; ++key) {
      if (random.Below(2) == 0) continue;
      versions[0][{0, key}] = RowOf(5, 8, random);
      versions[0][{1, key}] = RowOf(8, 8, random);
    }
    for (uint32_t step = 9; step < 9 + updates; ++step) {
      Change change;
      for (const uint32_t t : {0u, 1u}) {
        for (uint64_t key = 0; key < kKeys; ++key) {
          const uint64_t what = random.Below(1000);
          if (what < per_mille * 3 / 4) {
            const uint32_t last_step = step - static_cast<uint32_t>(random.Below(4));
            change.sets.push_back({{key, t}, RowOf(t == 0 ? 5 : 8, last_step, random)});
          } else if (what < per_mille) {
            change.erases.push_back({key, t});
          }
        }
        change.lines.push_back(random.Below(2) == 0 ? step - 6 : 0);
      }
      versions.push_back(versions.back());
      change.ApplyTo(&versions.back());
      changes.push_back(std::move(change));
    }
  }
  static test::Row RowOf(int dim, uint32_t last_step, RandomStream& random) {
    test::Row out = {.weights = {}, .last_step = last_step};
    for (int d = 0; d < dim; ++d) {
      out.weights.push_back(static_cast<float>(random.Uniform()) - 0.5f);
    }
    return out;
  }
  absl::Status ApplyTo(ServingTables* tables, size_t version) const {
    return Apply(tables, changes[version - 1], versions[version], absl::StrCat("v", version));
  }
  static constexpr uint64_t kKeys = 300;
  std::vector<Model> versions;
  std::vector<Change> changes;
};

void ExpectVersion(const ServingTables& tables, const History& history, size_t version) {
  ExpectShows(tables, tables.view(), history.versions[version], History::kKeys);
  EXPECT_EQ(tables.rows(0) + tables.rows(1), std::ssize(history.versions[version]));
}

std::vector<std::string> Names(FaultyEnv& env) {
  auto names = env.ListDir(kDir);
  HOTROW_EXPECT_OK(names);
  return names.ok() ? *names : std::vector<std::string>();
}

class ServingLevelsTest : public testing::TestWithParam<ServingRows> {};

// Random updates against tables that were built in memory: staged, folded, given up, merged, and
// opened again, where the files of the last version are found.
TEST_P(ServingLevelsTest, EachVersionIsWhatABuildOfItsRowsIs) {
  for (const uint64_t seed : test::Seeds(2)) {
    SCOPED_TRACE(absl::StrCat("HOTROW_TEST_SEED=", seed));
    RandomStream random(seed, RandomPurpose::kTest);
    const uint64_t keys = 30 + random.Below(600);
    FaultyEnv env;
    env.ShuffleIo(seed);
    ServingTablesOptions options = OnDisk(&env, GetParam());
    if (seed % 2 == 0) options.memory_bytes = 480 * kKiB;  // a cache of some of the rows, or none
    Model model;
    for (int i = 0; i < 4; ++i) Change::Draw(options, keys, 8, random).ApplyTo(&model);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, Build(options, model));
    for (uint32_t step = 9; step < 29; ++step) {
      const Change change =
          Change::Draw(options, keys, step, random, random.Below(2) == 0 ? 20 : 300);
      Model after = model;
      change.ApplyTo(&after);
      const std::string source = absl::StrCat("v", step);
      HOTROW_ASSERT_OK_AND_ASSIGN(
          auto update, ServingTables::Update::Begin(tables.get(), SizesOf(change, after), source));
      HOTROW_ASSERT_OK(change.Fill(*tables, *update));
      HOTROW_ASSERT_OK_AND_ASSIGN(const ServingTables::View* staged, update->Stage());
      if (random.Below(4) == 0) {
        update.reset();
        ExpectShows(*tables, tables->view(), model, keys);
        continue;
      }
      ExpectShows(*tables, tables->view(), model, keys);
      model = std::move(after);
      options.rows_source = source;
      ExpectShows(*tables, *staged, model, keys);
      const ServingTables::View* const folded = update->Fold();
      ExpectShows(*tables, *staged, model, keys);
      ExpectShows(*tables, *folded, model, keys);
      update.reset();
      ExpectShows(*tables, tables->view(), model, keys);
      EXPECT_EQ(tables->rows(0) + tables->rows(1), std::ssize(model));
      if (random.Below(3) == 0) {
        HOTROW_ASSERT_OK(tables->MergeRows());
        ExpectShows(*tables, tables->view(), model, keys);
      }
      EXPECT_LE(tables->bytes(), options.memory_bytes);
      if (random.Below(5) == 0) {
        tables.reset();
        HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder, ServingTables::Builder::Create(options));
        ASSERT_TRUE(builder->has_rows());
        EXPECT_EQ(builder->rows_found(), size_t{0});
        HOTROW_ASSERT_OK_AND_ASSIGN(tables, builder->Finish());
        ExpectShows(*tables, tables->view(), model, keys);
        EXPECT_EQ(tables->rows(0) + tables->rows(1), std::ssize(model));
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, ServingLevelsTest,
                         testing::Values(ServingRows::kAsTrained, ServingRows::kBf16,
                                         ServingRows::kInt4),
                         [](const testing::TestParamInfo<ServingRows>& info) {
                           return std::string(WordOf(kServingRowsWords, info.param));
                         });

// A cache that has all rows has the new ones after an update: nothing is read but what is new.
TEST(ServingLevelsTests, TheCacheGetsTheChangedRows) {
  FaultyEnv env;
  Model model, after;
  Change change;
  change.lines = {0, 0};
  for (uint64_t key = 0; key < 500; ++key) {
    model[{0, key}] = {std::vector<float>(5, 1), 1};
    if (key % 10 != 0) continue;
    change.sets.push_back({{key, 0}, {std::vector<float>(5, 2), 2}});
  }
  after = model;
  change.ApplyTo(&after);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(OnDisk(&env), model));
  std::vector<uint64_t> keys(500);
  std::iota(keys.begin(), keys.end(), 0);
  ServingTables::Scratch scratch;
  test::Read(*tables, tables->view(), 0, keys, &scratch);
  const auto reads = [&] { return tables->read_stats().reads; };
  const int64_t before = reads();
  test::Read(*tables, tables->view(), 0, keys, &scratch);
  ASSERT_EQ(reads(), before);
  HOTROW_ASSERT_OK(Apply(tables.get(), change, after, "v1"));
  const std::vector<float> found = test::Read(*tables, tables->view(), 0, keys, &scratch);
  EXPECT_EQ(reads(), before);
  for (const uint64_t key : keys) ASSERT_EQ(found[5 * key], key % 10 == 0 ? 2 : 1) << key;

  // Where the level cannot be read back, they are read from the disk.
  for (auto& [key, row] : change.sets) row.weights.assign(5, 3);
  change.ApplyTo(&after);
  HOTROW_ASSERT_OK_AND_ASSIGN(
      auto update, ServingTables::Update::Begin(tables.get(), SizesOf(change, after), "v2"));
  HOTROW_ASSERT_OK(change.Fill(*tables, *update));
  HOTROW_ASSERT_OK(update->Stage());
  env.FailCall(env.calls(), absl::DataLossError("injected"));
  update->Fold();
  ASSERT_EQ(env.faults(), 1);
  update.reset();
  const std::vector<float> again = test::Read(*tables, tables->view(), 0, keys, &scratch);
  EXPECT_GT(reads(), before);
  for (const uint64_t key : keys) ASSERT_EQ(again[5 * key], key % 10 == 0 ? 3 : 1) << key;
}

// An update of 1 % of the rows.
TEST(ServingLevelsTests, AnUpdateWritesWhatItChanges) {
  constexpr uint64_t kRows = 40'000;
  FaultyEnv env;
  ServingTablesOptions options = OnDisk(&env);
  options.tables.pop_back();
  options.tables[0].layout = RowLayout::For(16, SparseOptimizerKind::kSgd);
  Model model;
  Change change;
  change.lines = {0};
  for (uint64_t key = 0; key < kRows; ++key) {
    model[{0, key}] = {std::vector<float>(16, 1), 1};
    if (key % 100 == 0) change.sets.push_back({{key, 0}, {std::vector<float>(16, 2), 2}});
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(options, model));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string all,
                              ReadFileToString(env, absl::StrCat(kDir, "/", Names(env)[0])));
  const int64_t before = tables->bytes();
  HOTROW_ASSERT_OK(Apply(tables.get(), change, model, "v1"));
  const ServingReadStats stats = tables->read_stats();
  EXPECT_EQ(stats.levels, 1);
  EXPECT_GT(stats.written_bytes, 400 * (64 + 12));
  EXPECT_LT(stats.written_bytes, 3 * std::ssize(all) / 100);
  EXPECT_LE(tables->bytes(), before + 8 * kKiB);  // its filter and index, a page each
}

TEST(ServingLevelsTests, LevelsAreMergedWhereManyAreOfASize) {
  using internal::LevelsToMerge;
  const auto count = [](const std::vector<int64_t>& rows) {
    return static_cast<int>(LevelsToMerge(rows));
  };
  EXPECT_EQ(count({1000}), 0);
  EXPECT_EQ(count({10, 10, 10, 1000}), 0);
  EXPECT_EQ(count({10, 10, 10, 10, 1000}), 4);
  EXPECT_EQ(count({10, 10, 10, 10, 41, 1000}), 4);
  EXPECT_EQ(count({10, 10, 10, 10, 40, 1000}), 5);
  EXPECT_EQ(count({40, 10, 1000}), 0);
  EXPECT_EQ(count({10, 10, 230, 1000}), 4);  // a quarter of all
  EXPECT_EQ(count({1, 0}), 2);
  // Updates of 1 %, of 0.1 % and of 10 % of the rows, for long.
  for (const int64_t rows : {100, 10, 1000}) {
    std::vector<int64_t> files = {10'000};
    int64_t written = 0;
    size_t most = 0;
    const int64_t updates = 20'000 / rows;
    for (int64_t u = 0; u < updates; ++u) {
      files.insert(files.begin(), rows);
      written += rows;
      most = std::max(most, files.size() - 1);
      for (int merged_files = 0; (merged_files = count(files)) > 0;) {
        const bool all = merged_files == std::ssize(files);
        const auto end = files.begin() + merged_files;
        const int64_t merged = std::accumulate(files.begin(), end, int64_t{0});
        written += merged;
        files.erase(files.begin(), end);
        files.insert(files.begin(), all ? 10'000 : merged);
      }
    }
    EXPECT_LE(most, size_t{9}) << rows;
    EXPECT_LE(written, 10 * updates * rows) << rows;
  }
}

// After each merge the directory has the files that it lists and no other, and rows are the same;
// the age line and tombstones have taken effect where all rows are merged.
TEST(ServingLevelsTests, MergedFilesAreAllThatStays) {
  const History history(24, 28);  // so that levels are merged with each other, too
  FaultyEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(OnDisk(&env), history.versions[0]));
  int64_t merges = 0;
  for (size_t version = 1; version <= 24; ++version) {
    HOTROW_ASSERT_OK(history.ApplyTo(tables.get(), version));
    const int64_t written = tables->read_stats().written_bytes;
    HOTROW_ASSERT_OK(tables->MergeRows());
    merges += tables->read_stats().written_bytes > written ? 1 : 0;
    ExpectVersion(*tables, history, version);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto list, internal::ReadLevelsManifest(env, kDir));
    ASSERT_TRUE(list.has_value());
    size_t files = 1;  // the list
    for (const auto& table : list->tables) files += table.files.size();
    EXPECT_EQ(Names(env).size(), files);
    EXPECT_EQ(tables->read_stats().merges_failed, 0);
  }
  EXPECT_GT(merges, 5);
}

TEST(ServingLevelsTests, AThreadMerges) {
  const History history(10);
  FaultyEnv env;
  ServingTablesOptions options = OnDisk(&env);
  options.merge_bytes_per_second = int64_t{1} << 40;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, Build(options, history.versions[0]));
  for (size_t version = 1; version <= 10; ++version) {
    HOTROW_ASSERT_OK(history.ApplyTo(tables.get(), version));
    ExpectVersion(*tables, history, version);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (tables->read_stats().levels > 4 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LE(tables->read_stats().levels, 4);
  ExpectVersion(*tables, history, 10);
  tables.reset();
  options.rows_source = "v10";
  HOTROW_ASSERT_OK_AND_ASSIGN(tables, Build(options, {}));
  ExpectVersion(*tables, history, 10);
}

// A merge so slow that it is waiting when the tables go.
TEST(ServingLevelsTests, AMergeThatWaitsEnds) {
  FaultyEnv env;
  ServingTablesOptions options = OnDisk(&env);
  options.merge_bytes_per_second = 1;
  Model model;
  Change change;
  change.lines = {0, 0};
  for (uint64_t key = 0; key < 12'000; ++key) {
    model[{1, key}] = {std::vector<float>(8, 1), 1};
    if (key % 3 == 0) change.sets.push_back({{key, 1}, {std::vector<float>(8, 2), 2}});
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, Build(options, model));
  HOTROW_ASSERT_OK(Apply(tables.get(), change, model, "v1"));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(tables->read_stats().levels, 1);
  tables.reset();
  options.rows_source = "v1";
  options.merge_bytes_per_second = 0;
  HOTROW_ASSERT_OK_AND_ASSIGN(tables, Build(options, {}));
  HOTROW_ASSERT_OK(tables->MergeRows());
  EXPECT_EQ(tables->read_stats().levels, 0);
  EXPECT_EQ(tables->rows(1), 12'000);
}

// Killed, or without power, at any call of two updates and their merges: the next open finds the
// rows of a version, never has to write them all, and makes the newest of them.
TEST(ServingLevelsTests, AKillAnywhereLeavesAVersion) {
  const History history(2);
  int64_t older = 0;
  for (int64_t k = 0;; k += test::ForSanitizer(1, 3)) {
    SCOPED_TRACE(k);
    FaultyEnv env;
    ServingTablesOptions options = OnDisk(&env);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, Build(options, history.versions[0]));
    env.FailFrom(env.calls() + k, absl::DataLossError("killed"));
    int64_t applied = 0;
    const auto work = [&]() -> absl::Status {
      for (size_t version = 1; version <= 2; ++version) {
        HOTROW_RETURN_IF_ERROR(history.ApplyTo(tables.get(), version));
        ++applied;
        HOTROW_RETURN_IF_ERROR(tables->MergeRows());
      }
      return absl::OkStatus();
    };
    const absl::Status worked = work();
    const bool is_last = env.faults() == 0;
    EXPECT_TRUE(worked.ok() || !is_last);
    tables.reset();
    env.FailFrom(INT64_MAX, absl::OkStatus());
    if (k % 3 == 0) env.DropUnsyncedData();
    if (k % 3 == 1) env.LosePower(static_cast<uint64_t>(k));
    options.rows_source = "v2";
    options.older_sources = {"v1", "v0"};
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder, ServingTables::Builder::Create(options));
    ASSERT_TRUE(builder->has_rows());
    const size_t behind = builder->rows_found();
    EXPECT_LE(behind, static_cast<size_t>(2 - applied));
    older += behind > 0 ? 1 : 0;
    HOTROW_ASSERT_OK_AND_ASSIGN(tables, builder->Finish());
    for (size_t version = 3 - behind; version <= 2; ++version) {
      HOTROW_ASSERT_OK(history.ApplyTo(tables.get(), version));
    }
    ExpectVersion(*tables, history, 2);
    HOTROW_ASSERT_OK(tables->MergeRows());
    ExpectVersion(*tables, history, 2);
    if (testing::Test::HasFailure() || is_last) break;
  }
  EXPECT_GT(older, 10);
}

// Each call fails once: there is an error and the old version, or the new one; and the same update,
// or merge, is right the next time.
TEST(ServingLevelsTests, AFailedCallLeavesTheOldVersion) {
  const History history(1);
  int64_t failed = 0;
  for (int64_t k = 0;; k += test::ForSanitizer(1, 3)) {
    SCOPED_TRACE(k);
    FaultyEnv env;
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(OnDisk(&env), history.versions[0]));
    env.FailCall(env.calls() + k, absl::DataLossError("injected"));
    const absl::Status applied = history.ApplyTo(tables.get(), 1);
    if (!applied.ok()) {
      ++failed;
      EXPECT_THAT(applied, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("injected")));
      ExpectVersion(*tables, history, 0);
      HOTROW_ASSERT_OK(history.ApplyTo(tables.get(), 1));
    }
    const absl::Status merged = tables->MergeRows();
    if (env.faults() == 0) break;
    ExpectVersion(*tables, history, 1);
    if (!merged.ok()) {
      EXPECT_EQ(tables->read_stats().merges_failed, 1);
      HOTROW_ASSERT_OK(tables->MergeRows());
      ExpectVersion(*tables, history, 1);
    }
    EXPECT_EQ(tables->read_stats().levels, 0);
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(failed, 10);
}

// What the pages of all files take.
int64_t DiskBytes(FaultyEnv& env) {
  int64_t out = 0;
  for (const std::string& name : Names(env)) {
    const auto text = ReadFileToString(env, absl::StrCat(kDir, "/", name));
    HOTROW_EXPECT_OK(text);
    if (text.ok()) out += RoundUp(std::ssize(*text), 4096);
  }
  return out;
}

TEST(ServingLevelsTests, AFullDiskIsNamedAndTheOldVersionStays) {
  const History history(1);
  FaultyEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(OnDisk(&env), history.versions[0]));
  const std::vector<std::string> files = Names(env);
  const int64_t taken = DiskBytes(env);
  const auto is_full = StatusIs(absl::StatusCode::kResourceExhausted,
                                AllOf(HasSubstr(kDir), HasSubstr("rows_dir /rows needs room")));
  int64_t tries = 0;
  int64_t room = 0;
  for (;; room += 4096, ++tries) {
    ASSERT_LT(tries, 100);
    env.SetCapacity(taken + room);
    const absl::Status applied = history.ApplyTo(tables.get(), 1);
    if (applied.ok()) break;
    EXPECT_THAT(applied, is_full);
    ExpectVersion(*tables, history, 0);
  }
  EXPECT_GT(tries, 3);
  ExpectVersion(*tables, history, 1);
  // No room to merge in.
  env.SetCapacity(DiskBytes(env));
  EXPECT_THAT(tables->MergeRows(), is_full);
  EXPECT_THAT(tables->MergeRows(), is_full);
  EXPECT_EQ(tables->read_stats().merges_failed, 2);
  ExpectVersion(*tables, history, 1);
  env.SetCapacity(INT64_MAX);
  HOTROW_ASSERT_OK(tables->MergeRows());
  ExpectVersion(*tables, history, 1);
  EXPECT_EQ(Names(env).size(), files.size() + 1);  // the list
}

// An update that was staged and given up is what the next open finds, also where the same update
// has failed since.
TEST(ServingLevelsTests, AFailedTryTakesNoFileOfTheList) {
  const History history(1);
  FaultyEnv env;
  ServingTablesOptions options = OnDisk(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, Build(options, history.versions[0]));
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const auto update,
        ServingTables::Update::Begin(tables.get(), SizesOf(history.changes[0], history.versions[1]),
                                     "v1"));
    HOTROW_ASSERT_OK(history.changes[0].Fill(*tables, *update));
    HOTROW_ASSERT_OK(update->Stage());
  }
  env.SetCapacity(DiskBytes(env));
  EXPECT_THAT(history.ApplyTo(tables.get(), 1),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(kDir)));
  env.SetCapacity(INT64_MAX);
  ExpectVersion(*tables, history, 0);
  tables.reset();
  options.rows_source = "v1";
  options.older_sources = {"v0"};
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder, ServingTables::Builder::Create(options));
  ASSERT_TRUE(builder->has_rows());
  EXPECT_EQ(builder->rows_found(), size_t{0});
  HOTROW_ASSERT_OK_AND_ASSIGN(tables, builder->Finish());
  ExpectVersion(*tables, history, 1);
}

// Where nothing is merged, updates end with an error that says so, until it is.
TEST(ServingLevelsTests, TooManyLevelsTakeNoMore) {
  const History history(1);
  FaultyEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(OnDisk(&env), history.versions[0]));
  absl::Status status;
  size_t updates = 0;
  for (; status.ok() && updates < 100; ++updates) {
    status = Apply(tables.get(), history.changes[0], history.versions[1],
                   absl::StrCat("again ", updates));
  }
  EXPECT_EQ(updates, internal::kLevelsMax + 1);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               AllOf(HasSubstr(kDir), HasSubstr("24 levels of rows"))));
  ExpectVersion(*tables, history, 1);
  HOTROW_ASSERT_OK(tables->MergeRows());
  HOTROW_ASSERT_OK(history.ApplyTo(tables.get(), 1));
  ExpectVersion(*tables, history, 1);
}

// An open that has to make an update of so many levels: it does not wait for a thread.
TEST(ServingLevelsTests, TooManyLevelsAreMergedByTheFirstUpdate) {
  const History history(1);
  FaultyEnv env;
  ServingTablesOptions options = OnDisk(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, Build(options, history.versions[0]));
  for (size_t update = 0; update < internal::kLevelsMax; ++update) {
    options.rows_source = absl::StrCat("again ", update);
    HOTROW_ASSERT_OK(
        Apply(tables.get(), history.changes[0], history.versions[1], options.rows_source));
  }
  tables.reset();
  options.merge_bytes_per_second = int64_t{1} << 40;
  HOTROW_ASSERT_OK_AND_ASSIGN(tables, Build(options, {}));
  ASSERT_EQ(tables->read_stats().levels, static_cast<int64_t>(internal::kLevelsMax));
  HOTROW_ASSERT_OK(history.ApplyTo(tables.get(), 1));
  ExpectVersion(*tables, history, 1);
}

TEST(ServingLevelsTests, ADamagedListIsNamed) {
  const History history(1);
  FaultyEnv env;
  ServingTablesOptions options = OnDisk(&env);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(options, history.versions[0]));
    HOTROW_ASSERT_OK(history.ApplyTo(tables.get(), 1));
  }
  options.rows_source = "v1";
  const std::string path = absl::StrCat(kDir, "/", internal::kLevelsName);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(env, path));
  const auto is_named =
      StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(path), HasSubstr("remove the file")));
  for (int64_t byte = 0; byte < std::ssize(bytes); ++byte) {
    const int64_t bit = 8 * byte + byte % 8;
    HOTROW_ASSERT_OK(env.FlipBit(path, bit));
    EXPECT_THAT(ServingTables::Builder::Create(options), is_named) << byte;
    HOTROW_ASSERT_OK(env.FlipBit(path, bit));
  }
  for (const size_t cut : {size_t{0}, size_t{47}, size_t{48}, bytes.size() - 1}) {
    HOTROW_ASSERT_OK(WriteFileAtomically(env, path, bytes.substr(0, cut)));
    EXPECT_THAT(ServingTables::Builder::Create(options), is_named) << cut;
  }
  // The remedy: rows of v0 are there, those of v1 are not.
  HOTROW_ASSERT_OK(env.Remove(path));
  options.older_sources = {"v0"};
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder, ServingTables::Builder::Create(options));
  EXPECT_TRUE(builder->has_rows());
  EXPECT_EQ(builder->rows_found(), size_t{1});
}

// The real file system, whose locks count.
TEST(ServingLevelsTests, OneChangesRowsAtATime) {
  const History history(2);
  ServingTablesOptions options = OnDisk(&PosixEnv());
  options.rows_dir = test::TempDir();
  HOTROW_ASSERT_OK_AND_ASSIGN(auto first, Build(options, history.versions[0]));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto second, Build(options, history.versions[0]));
  HOTROW_ASSERT_OK(history.ApplyTo(first.get(), 1));
  const auto refused = [&](const char* what) {
    return StatusIs(absl::StatusCode::kFailedPrecondition,
                    AllOf(HasSubstr(options.rows_dir), HasSubstr(what)));
  };
  EXPECT_THAT(second->LockRows(), refused("rows.lock"));
  EXPECT_THAT(history.ApplyTo(second.get(), 1), refused("rows.lock"));
  ExpectVersion(*second, history, 0);
  HOTROW_ASSERT_OK(first->MergeRows());
  EXPECT_EQ(first->read_stats().levels, 0);
  first->UnlockRows();
  // Its files are gone; it reads on.
  EXPECT_THAT(second->LockRows(), refused("has written other rows"));
  ExpectVersion(*second, history, 0);
  options.rows_source = "v1";
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto third, Build(options, {}));
  HOTROW_ASSERT_OK(history.ApplyTo(third.get(), 2));
  ExpectVersion(*third, history, 2);
  EXPECT_THAT(first->LockRows(), refused("rows.lock"));
}

}  // namespace
}  // namespace hotrow
