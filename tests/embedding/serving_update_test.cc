// Rows for serving that change while others read them.

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/reader_slots.h"
#include "base/status_macros.h"
#include "embedding/serving/serving_tables.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/embedding/serving_updates.h"
#include "tests/support/faulty_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::BitsOf;
using ::hotrow::test::Build;
using ::hotrow::test::Change;
using ::hotrow::test::ExpectShows;
using ::hotrow::test::Model;
using ::hotrow::test::OptionsOf;
using ::hotrow::test::Read;
using ::hotrow::test::RowOf;
using ::hotrow::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ServingUpdateTest : public testing::TestWithParam<ServingRows> {};

// Random updates, each against tables that were built again: before it is folded and after. The
// view before it is what it was until then. An update that is given up changes nothing.
TEST_P(ServingUpdateTest, EachVersionIsWhatABuildOfItsRowsIs) {
  for (const uint64_t seed : test::Seeds(3)) {
    SCOPED_TRACE(absl::StrCat("HOTROW_TEST_SEED=", seed));
    RandomStream random(seed, RandomPurpose::kTest);
    const uint64_t keys = 30 + random.Below(900);
    const ServingTablesOptions options = OptionsOf({5, 8}, GetParam());
    Model model;
    Change::Draw(options, keys, 8, random).ApplyTo(&model);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(options, model));
    for (uint32_t step = 9; step < 29; ++step) {
      const Change change = Change::Draw(options, keys, step, random);
      HOTROW_ASSERT_OK_AND_ASSIGN(auto update,
                                  ServingTables::Update::Begin(tables.get(), change.sizes()));
      HOTROW_ASSERT_OK(change.Fill(*tables, *update));
      const int64_t before = tables->rows(0) + tables->rows(1);
      HOTROW_ASSERT_OK_AND_ASSIGN(const ServingTables::View* staged, update->Stage());
      if (random.Below(4) == 0) {
        update.reset();
        ExpectShows(*tables, tables->view(), model, keys);
        EXPECT_EQ(tables->rows(0) + tables->rows(1), before);
        continue;
      }
      ExpectShows(*tables, tables->view(), model, keys);
      const int64_t rows = std::ssize(model);
      change.ApplyTo(&model);
      ExpectShows(*tables, *staged, model, keys);
      EXPECT_EQ(update->rows(0) + update->rows(1), std::ssize(model));
      EXPECT_GE(update->rows_erased(), rows - std::ssize(model));
      const ServingTables::View* const folded = update->Fold();
      ExpectShows(*tables, *staged, model, keys);
      ExpectShows(*tables, *folded, model, keys);
      update.reset();
      ExpectShows(*tables, tables->view(), model, keys);
      EXPECT_EQ(tables->rows(0) + tables->rows(1), std::ssize(model));
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Without readers, row by row.
TEST_P(ServingUpdateTest, RowsThatAreSetOneByOneAreThoseOfABuild) {
  RandomStream random(5, RandomPurpose::kTest);
  const ServingTablesOptions options = OptionsOf({5, 8}, GetParam());
  Model model;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(options, model));
  for (uint32_t step = 9; step < 19; ++step) {
    Change change = Change::Draw(options, 400, step, random);
    change.lines = {0, 0};
    for (const auto& [key, row] : change.sets) {
      HOTROW_ASSERT_OK(
          tables->Set(key, RowOf(options.tables[key.table].layout, row.weights, row.last_step)));
    }
    for (const RowKey& key : change.erases) HOTROW_ASSERT_OK(tables->Erase(key));
    change.ApplyTo(&model);
    ExpectShows(*tables, tables->view(), model, 400);
    EXPECT_EQ(tables->rows(0) + tables->rows(1), std::ssize(model));
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, ServingUpdateTest,
                         testing::Values(ServingRows::kAsTrained, ServingRows::kFp16,
                                         ServingRows::kBf16, ServingRows::kInt8,
                                         ServingRows::kInt4),
                         [](const testing::TestParamInfo<ServingRows>& info) {
                           return std::string(WordOf(kServingRowsWords, info.param));
                         });

// Keys in [begin, end) get rows of `value`.
Change SetRange(uint64_t begin, uint64_t end, float value) {
  Change out;
  out.lines = {0};
  for (uint64_t key = begin; key < end; ++key) {
    out.sets.push_back({{key, 0}, {std::vector<float>(8, value), 1}});
  }
  return out;
}

absl::Status Apply(ServingTables* tables, const Change& change) {
  HOTROW_ASSIGN_OR_RETURN(const auto update, ServingTables::Update::Begin(tables, change.sizes()));
  HOTROW_RETURN_IF_ERROR(change.Fill(*tables, *update));
  HOTROW_RETURN_IF_ERROR(update->Stage().status());
  update->Fold();
  return absl::OkStatus();
}

// What an update takes is taken before it is visible, to the byte, and given back.
TEST(ServingUpdatesTest, BudgetsAreHard) {
  Model model;
  SetRange(0, 20'000, 1).ApplyTo(&model);
  ServingTablesOptions options = OptionsOf({8}, ServingRows::kAsTrained);
  options.expected_rows = {20'000};
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, Build(options, model));
  const int64_t level = tables->bytes();
  const Change change = SetRange(1000, 6000, 2);
  int64_t most = 0;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto update,
                                ServingTables::Update::Begin(tables.get(), change.sizes()));
    HOTROW_ASSERT_OK(change.Fill(*tables, *update));
    HOTROW_ASSERT_OK(update->Stage());
    most = tables->bytes();
    EXPECT_GT(most, level + 5000 * 48);
    EXPECT_LT(most, level + 5000 * (48 + 24) + 4096);
  }
  EXPECT_EQ(tables->bytes(), level);
  for (const int64_t budget : {most - 1, most}) {
    options.memory_bytes = budget;
    HOTROW_ASSERT_OK_AND_ASSIGN(tables, Build(options, model));
    const absl::Status status = Apply(tables.get(), change);
    EXPECT_EQ(tables->bytes(), level);
    ServingTables::Scratch scratch;
    const uint64_t key = 2000;
    const float found = Read(*tables, tables->view(), 0, {&key, 1}, &scratch)[0];
    if (budget == most) {
      HOTROW_EXPECT_OK(status);
      EXPECT_EQ(found, 2);
    } else {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                   AllOf(HasSubstr("memory_bytes"), HasSubstr("table \"t0\""),
                                         HasSubstr(absl::StrCat("the budget is ", budget)))));
      EXPECT_EQ(found, 1);
      // Less fits.
      HOTROW_EXPECT_OK(Apply(tables.get(), SetRange(1000, 4000, 3)));
      EXPECT_EQ(Read(*tables, tables->view(), 0, {&key, 1}, &scratch)[0], 3);
    }
  }
}

// Rows come and go for long: records are used again, the index stays as it has to be.
TEST(ServingUpdatesTest, MemoryStaysWhereRowsComeAndGo) {
  Model model;
  SetRange(0, 3000, 1).ApplyTo(&model);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables,
                              Build(OptionsOf({8}, ServingRows::kAsTrained), model));
  std::vector<int64_t> levels;
  for (uint64_t round = 0; round < 60; ++round) {
    Change change = SetRange(3000 + 500 * round, 3500 + 500 * round, 2);
    for (uint64_t key = 500 * round; key < 500 * (round + 1); ++key) {
      change.erases.push_back({key, 0});
    }
    HOTROW_ASSERT_OK(Apply(tables.get(), change));
    EXPECT_EQ(tables->rows(0), 3000);
    levels.push_back(tables->bytes());
  }
  EXPECT_EQ(*std::max_element(levels.begin() + 10, levels.end()), levels.back());
  EXPECT_LT(levels.back(), int64_t{4000} * (48 + 12));
  std::vector<uint64_t> keys(500);
  std::iota(keys.begin(), keys.end(), 32'500);
  ServingTables::Scratch scratch;
  for (const float weight : Read(*tables, tables->view(), 0, keys, &scratch)) {
    ASSERT_EQ(weight, 2);
  }
}

TEST(ServingUpdatesTest, WhatCannotBeIsNamedAndChangesNothing) {
  Model model;
  SetRange(0, 10, 1).ApplyTo(&model);
  ServingTablesOptions options = OptionsOf({8}, ServingRows::kInt8);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(options, model));
  const int64_t level = tables->bytes();
  const auto refused = [&](const Change& change) {
    const absl::Status status = Apply(tables.get(), change);
    EXPECT_EQ(tables->bytes(), level);
    EXPECT_EQ(tables->rows(0), 10);
    return std::string(status.message());
  };
  Change change = SetRange(3, 5, 2);
  change.erases = {{3, 0}};
  EXPECT_THAT(refused(change), HasSubstr("table \"t0\" has key 3 twice in one update"));
  change = SetRange(3, 5, 2);
  change.sets[1].second.weights[2] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(refused(change), HasSubstr("the row of key 4 has weights that are not finite"));
  change = SetRange(3, 5, 2);
  change.sets[0].first.table = 1;
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto update,
      ServingTables::Update::Begin(tables.get(), std::vector<ServingTables::Update::Size>{{2, 1}}));
  const std::vector<std::byte> row = RowOf(options.tables[0].layout, std::vector<float>(8, 1), 1);
  EXPECT_THAT(update->Set({1, 1}, row),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a row of table 1")));
  HOTROW_ASSERT_OK(update->Set({1, 0}, row));
  HOTROW_ASSERT_OK(update->Set({2, 0}, row));
  EXPECT_THAT(update->Set({3, 0}, row),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more rows in an update")));
  HOTROW_ASSERT_OK(update->Erase({4, 0}));
  EXPECT_THAT(update->Erase({5, 0}), StatusIs(absl::StatusCode::kInvalidArgument,
                                              HasSubstr("more erased keys in an update")));
}

// --- Readers and a writer at once

// What version `version` has of a key: the version that has written its row, or 0: it has none.
// Each touches some three of seven keys, and erases some one of eleven.
uint32_t WrittenBy(uint32_t version, uint64_t key) {
  for (uint32_t v = version; v > 0; --v) {
    const uint64_t draw = (key * 2654435761u + v * 40503u) >> 7;
    if (draw % 11 == 0) return 0;
    if (draw % 7 < 3) return v;
  }
  return 0;
}

// Column 0 has the key, the last one a checksum of all before it, those between the version.
std::vector<float> ChecksummedRow(uint64_t key, uint32_t version, int32_t dim) {
  std::vector<float> out(static_cast<size_t>(dim), static_cast<float>(version));
  out[0] = static_cast<float>(key);
  out.back() = std::accumulate(out.begin(), out.end() - 1, 0.0f);
  return out;
}

struct Version {
  const ServingTables::View* view = nullptr;
  uint32_t number = 0;
};

// One thread makes `versions` versions (0: until the rows are read), readers look at random keys
// until that and rows_to_read of them have been read. Every row that a call reads must be that of
// the version it has taken, whole. env: of rows on a disk, whose levels are merged meanwhile; null:
// memory has them.
void Stress(ServingRows rows, int readers, uint32_t versions, int64_t rows_to_read,
            Env* env = nullptr) {
  constexpr uint64_t kKeys = 3000;
  constexpr int32_t kDim = 24;
  constexpr size_t kBatch = 256;
  constexpr uint32_t kVersionsMax = 700'000;  // whose checksums are exact
  ServingTablesOptions options = OptionsOf({kDim}, rows);
  options.tables[0].initializer = {InitializerKind::kConstant, -1};
  const auto row_of = [rows](uint64_t key, uint32_t number) {
    std::vector<float> row = ChecksummedRow(key, number, kDim);
    for (size_t d = 0; rows != ServingRows::kAsTrained && d < row.size(); ++d) {
      row[d] = ((number >> (d % 12)) & 1) != 0 ? 1.0f : 0.0f;
    }
    return row;
  };
  uint32_t number = 0;
  Model model;
  if (env != nullptr) {
    options.rows_dir = "/rows";
    options.env = env;
    options.readers = readers;
    options.memory_bytes = int64_t{2} << 20;
    options.merge_bytes_per_second = int64_t{1} << 40;
    number = 1;  // with rows, so that there is a cache
    for (uint64_t key = 0; key < kKeys; ++key) {
      if (WrittenBy(number, key) == number) model[{0, key}] = {row_of(key, number), number};
    }
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, Build(options, model));
  ReaderSlots slots(readers);
  Version first = {&tables->view(), number};
  std::atomic<const Version*> current = &first;
  std::atomic<bool> written = false;
  std::atomic<int64_t> rows_read = 0;
  std::atomic<int64_t> torn = 0;
  std::atomic<int64_t> versions_read = 0;
  std::vector<std::thread> threads;
  for (int r = 0; r < readers; ++r) {
    threads.emplace_back([&, r] {
      RandomStream random(static_cast<uint64_t>(r), RandomPurpose::kTest);
      ServingTables::Scratch scratch;
      std::vector<uint64_t> keys(kBatch);
      uint32_t last = 0;
      while (!written || rows_read < rows_to_read) {
        for (uint64_t& key : keys) key = random.Below(kKeys);
        const int32_t slot = slots.Take();
        const Version* const version = current.load();
        const uint32_t number = version->number;
        const std::vector<float> found = Read(*tables, *version->view, 0, keys, &scratch);
        slots.GiveBack(slot);
        versions_read += number != last ? 1 : 0;
        last = number;
        for (size_t i = 0; i < kBatch; ++i) {
          const std::span<const float> row(found.data() + i * kDim, kDim);
          const uint32_t by = WrittenBy(number, keys[i]);
          bool whole = true;
          if (by == 0) {
            for (const float x : row) whole = whole && x == -1;
          } else if (rows == ServingRows::kAsTrained) {
            whole = row[0] == static_cast<float>(keys[i]) && row[1] == static_cast<float>(by) &&
                    std::accumulate(row.begin(), row.end() - 1, 0.0f) == row.back();
          } else {
            // A code has 1 and the version in its columns, and nothing between.
            for (int32_t d = 0; d < kDim; ++d) {
              whole =
                  whole && (row[static_cast<size_t>(d)] > 0.5f) == (((by >> (d % 12)) & 1) != 0);
            }
          }
          if (!whole) ++torn;
        }
        rows_read += kBatch;
      }
    });
  }
  std::unique_ptr<const Version> owner;
  const auto publish = [&](const Version& next) {
    auto made = std::make_unique<const Version>(next);
    current.store(made.get());
    slots.AwaitReaders();
    owner = std::move(made);
  };
  absl::Status status;
  const auto begin = std::chrono::steady_clock::now();
  while (status.ok() && (versions > 0 ? number < versions : rows_read < rows_to_read) &&
         number < kVersionsMax) {
    ++number;
    status = [&]() -> absl::Status {
      std::vector<uint64_t> set, erased;
      for (uint64_t key = 0; key < kKeys; ++key) {
        const uint32_t before = WrittenBy(number - 1, key);
        const uint32_t after = WrittenBy(number, key);
        if (after == number) set.push_back(key);
        if (after == 0 && before != 0) erased.push_back(key);
      }
      const std::vector<ServingTables::Update::Size> sizes = {
          {.rows = std::ssize(set), .erased = std::ssize(erased)}};
      auto begun = ServingTables::Update::Begin(tables.get(), sizes);
      while (absl::IsUnavailable(begun.status())) {  // merges are behind
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        begun = ServingTables::Update::Begin(tables.get(), sizes);
      }
      HOTROW_ASSIGN_OR_RETURN(const auto update, std::move(begun));
      for (const uint64_t key : erased) HOTROW_RETURN_IF_ERROR(update->Erase({key, 0}));
      for (const uint64_t key : set) {
        HOTROW_RETURN_IF_ERROR(
            update->Set({key, 0}, RowOf(options.tables[0].layout, row_of(key, number), number)));
      }
      HOTROW_ASSIGN_OR_RETURN(const ServingTables::View* const staged, update->Stage());
      publish({staged, number});
      publish({update->Fold(), number});
      return absl::OkStatus();
    }();
  }
  written = true;
  for (std::thread& thread : threads) thread.join();
  HOTROW_EXPECT_OK(status);
  EXPECT_EQ(torn, 0);
  EXPECT_GE(rows_read, rows_to_read);
  EXPECT_GT(versions_read, 1);
  if (env != nullptr) {
    EXPECT_EQ(tables->read_stats().merges_failed, 0);
    EXPECT_GT(tables->read_stats().hits, 0);
    EXPECT_LE(tables->bytes(), options.memory_bytes);
  }
  std::printf("%s: %lld rows read in %lld changes of version, %u versions, %lld torn, %.1f s\n",
              std::string(WordOf(kServingRowsWords, rows)).c_str(),
              static_cast<long long>(rows_read), static_cast<long long>(versions_read), number,
              static_cast<long long>(torn),
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

TEST(ServingStressTest, NoReaderSeesAPartOfAVersion) {
  for (const EnumWord<ServingRows>& word : kServingRowsWords) {
    SCOPED_TRACE(std::string(word.name));
    Stress(word.value, 3, test::ForSanitizer<uint32_t>(60, 25), 0);
  }
}

TEST(ServingStressTest, NoReaderOfADiskSeesAPartOfAVersion) {
  for (const ServingRows rows : {ServingRows::kAsTrained, ServingRows::kInt8}) {
    test::FaultyEnv env;
    Stress(rows, 3, test::ForSanitizer<uint32_t>(40, 15), 0, &env);
  }
}

// HOTROW_SOAK_ROWS: how many rows are read; 10^8 without.
TEST(ServingStressSlowTest, NoReaderSeesAPartOfAVersionForLong) {
  const char* const text = std::getenv("HOTROW_SOAK_ROWS");
  Stress(ServingRows::kAsTrained, 3, 0, text != nullptr ? std::atoll(text) : 100'000'000);
}

}  // namespace
}  // namespace hotrow
