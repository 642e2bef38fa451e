#include "embedding/serving/serving_tables.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/embedding_collection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/open.h"
#include "tests/embedding/training.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::Batch;
using ::hotrow::test::FillGradient;
using ::hotrow::test::kMiB;
using ::hotrow::test::Options;
using ::hotrow::test::RandomBatch;
using ::hotrow::test::StatusIs;
using ::hotrow::test::Table;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kFeatures = 4;
constexpr uint64_t kRows = 60;

// Four features of three tables: two share one, and one is not pooled.
EmbeddingCollectionOptions FourFeatures(const std::string& dir) {
  EmbeddingCollectionOptions options =
      Options({Table("shared", 9, {"f0", "f1"}), Table("half", 16, {"f2"}),
               Table("unpooled", 5, {"f3"}, SparseOptimizerKind::kAdam)});
  options.tables[0].pooling = Pooling::kMean;
  options.tables[1].weights_precision = WeightsPrecision::kFp16;
  options.tables[2].pooling = Pooling::kNone;
  options.store = MemoryStorage{.memory_bytes = 64 * kMiB, .snapshot_dir = dir};
  return options;
}

struct Output {
  std::vector<float> pooled;
  std::vector<std::vector<float>> unpooled;
};

// Room for a batch, where the collection writes it.
EmbeddingOutput RoomFor(const EmbeddingCollection& tables, const Batch& batch, Output* out) {
  out->pooled.assign(static_cast<size_t>(batch.batch_size * tables.pooled_dim()), -7.0f);
  const int64_t* const last = batch.offsets.data() + 3 * batch.batch_size;
  const int64_t lookups = last[batch.batch_size] - last[0];
  out->unpooled.assign(1, std::vector<float>(static_cast<size_t>(lookups * 5), -7.0f));
  return {.pooled = {out->pooled.data(), batch.batch_size, tables.pooled_dim()},
          .unpooled = {{out->unpooled[0].data(), lookups, 5}}};
}

void TrainSteps(EmbeddingCollection& tables, int first, int steps, float factor) {
  for (int i = first; i < first + steps; ++i) {
    const Batch batch =
        RandomBatch(static_cast<uint64_t>(i), kFeatures, 24, 3, kRows, /*weighted=*/false);
    HOTROW_ASSERT_OK_AND_ASSIGN(EmbeddingStep step, tables.Prefetch(batch.view()));
    Output output;
    const EmbeddingOutput room = RoomFor(tables, batch, &output);
    HOTROW_ASSERT_OK(step.Lookup(room));
    std::vector<float> pooled, unpooled;
    FillGradient(output.pooled, static_cast<uint64_t>(i), &pooled);
    FillGradient(output.unpooled[0], static_cast<uint64_t>(i), &unpooled);
    HOTROW_ASSERT_OK(std::move(step).Update(
        {.pooled = MatrixView<float>(pooled.data(), room.pooled.rows, room.pooled.cols),
         .unpooled = {MatrixView<float>(unpooled.data(), room.unpooled[0].rows, 5)}},
        factor));
  }
}

ServingTablesOptions ServingOptions(const EmbeddingCollectionOptions& options) {
  ServingTablesOptions out = {.seed = options.seed, .memory_bytes = 8 * kMiB};
  for (const TableConfig& table : options.tables) {
    out.tables.push_back({.name = table.name,
                          .layout = RowLayout::For(table.embedding_dim, table.optimizer.kind,
                                                   table.weights_precision),
                          .optimizer = table.optimizer,
                          .initializer = table.initializer});
  }
  return out;
}

// The rows of snapshot 1.
absl::StatusOr<std::unique_ptr<const ServingTables>> FreezeSnapshot(
    const std::string& dir, const ServingTablesOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<SnapshotReader> reader,
                          OpenSnapshot(StoreKind::kMemory, {.path = dir, .snapshot = 1}));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<ServingTables::Builder> builder,
                          ServingTables::Builder::Create(options));
  HOTROW_RETURN_IF_ERROR(
      reader->Iterate([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
        return builder->Add(key, row);
      }));
  return builder->Finish();
}

// The rows of the collection, by way of a snapshot.
absl::StatusOr<std::unique_ptr<const ServingTables>> Freeze(EmbeddingCollection& tables,
                                                            const std::string& dir,
                                                            const ServingTablesOptions& options) {
  HOTROW_RETURN_IF_ERROR(tables.snapshots().Prepare(1));
  HOTROW_RETURN_IF_ERROR(tables.snapshots().Commit(1));
  return FreezeSnapshot(dir, options);
}

// What the collection's Evaluate gives of a batch, by ServingTables.
absl::StatusOr<Output> PoolAll(const ServingTables& tables, const Batch& batch) {
  constexpr uint32_t kTableOf[] = {0, 0, 1, 2};
  constexpr int64_t kPlaceOf[] = {0, 9, 18, 0};
  constexpr Pooling kPoolingOf[] = {Pooling::kMean, Pooling::kMean, Pooling::kSum, Pooling::kNone};
  constexpr int64_t kWidth = 34;
  Output out;
  out.pooled.assign(static_cast<size_t>(batch.batch_size * kWidth), -7.0f);
  ServingTables::Scratch scratch;
  for (size_t f = 0; f < kFeatures; ++f) {
    const std::span<const int64_t> offsets =
        std::span(batch.offsets)
            .subspan(f * static_cast<size_t>(batch.batch_size),
                     static_cast<size_t>(batch.batch_size) + 1);
    const auto begin = static_cast<size_t>(offsets.front());
    const auto lookups = static_cast<size_t>(offsets.back()) - begin;
    ServingLookup lookup = {.table = kTableOf[f],
                            .pooling = kPoolingOf[f],
                            .batch_size = batch.batch_size,
                            .keys = std::span(batch.values).subspan(begin, lookups),
                            .offsets = offsets};
    if (!batch.weights.empty()) lookup.weights = std::span(batch.weights).subspan(begin, lookups);
    if (lookup.pooling == Pooling::kNone) {
      out.unpooled.emplace_back(lookups * 5, -7.0f);
      lookup.output = {out.unpooled.back().data(), static_cast<int64_t>(lookups), 5};
    } else {
      lookup.output = {out.pooled.data() + kPlaceOf[f], batch.batch_size,
                       tables.tables()[kTableOf[f]].layout.dim, kWidth};
    }
    HOTROW_RETURN_IF_ERROR(tables.Pool(lookup, &scratch));
  }
  return out;
}

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i])) << i;
  }
}

// Twice as many keys as were trained, so half of them have no row; with weights and without.
void ExpectEvaluates(EmbeddingCollection& tables, const ServingTables& serving) {
  for (const bool weighted : {false, true}) {
    for (uint64_t seed = 900; seed < 904; ++seed) {
      const Batch batch = RandomBatch(seed, kFeatures, 33, 4, 2 * kRows, weighted);
      Output expected;
      const EmbeddingOutput room = RoomFor(tables, batch, &expected);
      HOTROW_ASSERT_OK(tables.Evaluate(batch.view(), room));
      HOTROW_ASSERT_OK_AND_ASSIGN(const Output found, PoolAll(serving, batch));
      ExpectSameBits(found.pooled, expected.pooled);
      ExpectSameBits(found.unpooled[0], expected.unpooled[0]);
    }
  }
}

TEST(ServingTablesTest, PoolsTheBitsOfEvaluation) {
  const std::string dir = test::TempDir();
  const EmbeddingCollectionOptions options = FourFeatures(dir);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  TrainSteps(*tables, 0, 8, 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto serving, Freeze(*tables, dir, ServingOptions(options)));
  EXPECT_GT(serving->rows(0), 30);
  EXPECT_GT(serving->rows(2), 30);
  EXPECT_GT(serving->bytes(), 0);
  ExpectEvaluates(*tables, *serving);
}

// Rows of a snapshot have missed steps, and keys without a row decay as if all rows did.
TEST(ServingTablesTest, RowsAndFirstValuesMakeUpForStepsOfTheWholeTable) {
  const std::string dir = test::TempDir();
  EmbeddingCollectionOptions options = FourFeatures(dir);
  for (TableConfig& table : options.tables) {
    table.optimizer.weight_decay = 0.05f;
    table.optimizer.weight_decay_mode = WeightDecayMode::kTable;
  }
  // A model that it goes on from, whose five steps nobody makes up for.
  const std::string before = test::TempDir();
  EmbeddingCollectionOptions first = options;
  std::get<MemoryStorage>(first.store).snapshot_dir = before;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto older, EmbeddingCollection::Create(first, {}));
  TrainSteps(*older, 20, 5, 1);
  HOTROW_ASSERT_OK(older->Settle());
  HOTROW_ASSERT_OK(older->snapshots().Prepare(1));
  options.start.from = {{.snapshot = 1, .dir = before}};
  options.start.steps = 5;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  TrainSteps(*tables, 0, 4, 1);
  TrainSteps(*tables, 4, 5, 0.5f);
  ServingTablesOptions serving_options = ServingOptions(options);
  serving_options.first_step = 5;
  const auto rates = tables->learning_rates();
  serving_options.learning_rates.assign(rates.begin(), rates.end());
  serving_options.rows_missed_steps = true;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto serving, Freeze(*tables, dir, serving_options));
  ExpectEvaluates(*tables, *serving);
}

// Rows of one table of 4 columns and no state, by hand.
ServingTablesOptions OneTable(int64_t memory_bytes) {
  SparseOptimizerConfig sgd;
  sgd.kind = SparseOptimizerKind::kSgd;
  return {.tables = {{.name = "t",
                      .layout = RowLayout::For(4, SparseOptimizerKind::kSgd),
                      .optimizer = sgd,
                      .initializer = {InitializerKind::kConstant, -1.0f}}},
          .memory_bytes = memory_bytes};
}

// Tells keys apart that differ in their upper or in their lower half.
float FirstWeight(uint64_t key) {
  return static_cast<float>(key % 8'000'009) + (key >> 63 != 0 ? 0.5f : 0.0f);
}

absl::Status AddRow(ServingTables::Builder& builder, uint64_t key) {
  alignas(16) std::byte row[32] = {};
  const float weights[] = {FirstWeight(key), 0, 0, 0};
  std::memcpy(row, weights, sizeof(weights));
  return builder.Add({key, 0}, row);
}

void AddRows(ServingTables::Builder& builder, const std::vector<uint64_t>& keys) {
  absl::Status status;
  for (const uint64_t key : keys) status.Update(AddRow(builder, key));
  HOTROW_EXPECT_OK(status);
}

// The first weights of keys.
std::vector<float> FirstOf(const ServingTables& tables, const std::vector<uint64_t>& keys) {
  std::vector<int64_t> offsets(keys.size() + 1);
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i);
  std::vector<float> out(4 * keys.size());
  ServingTables::Scratch scratch;
  HOTROW_EXPECT_OK(tables.Pool({.table = 0,
                                .batch_size = std::ssize(keys),
                                .keys = keys,
                                .offsets = offsets,
                                .output = {out.data(), std::ssize(keys), 4}},
                               &scratch));
  std::vector<float> firsts;
  for (size_t i = 0; i < keys.size(); ++i) firsts.push_back(out[4 * i]);
  return firsts;
}

// Buckets that are full pass keys on; every number of rows is some number of buckets. A table of
// 32-byte records has chunks of 131,072. What was expected may be wrong.
TEST(ServingTablesTest, FindsEveryKeyAndNoOther) {
  for (const auto& [rows, expected] :
       std::vector<std::pair<uint64_t, int64_t>>{{0, 0},
                                                 {1, 1},
                                                 {9, 4},
                                                 {10, 30},
                                                 {12, 0},
                                                 {13, 13},
                                                 {100, 0},
                                                 {5000, 100},
                                                 {140'000, 0},
                                                 {140'000, 131'080}}) {
    ServingTablesOptions options = OneTable(32 * kMiB);
    options.expected_rows = {expected};
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder, ServingTables::Builder::Create(options));
    std::vector<uint64_t> keys;
    for (uint64_t i = 0; i < rows; ++i) keys.push_back(i % 2 == 0 ? i / 2 : UINT64_MAX - i / 2);
    AddRows(*builder, keys);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, builder->Finish());
    EXPECT_EQ(tables->rows(0), static_cast<int64_t>(rows));
    const std::vector<float> found = FirstOf(*tables, keys);
    int64_t wrong = 0;
    for (size_t i = 0; i < keys.size(); ++i) wrong += found[i] == FirstWeight(keys[i]) ? 0 : 1;
    EXPECT_EQ(wrong, 0);
    std::vector<uint64_t> others;
    for (uint64_t i = 0; i < 200; ++i) others.push_back((uint64_t{1} << 40) + i);
    for (const float first : FirstOf(*tables, others)) ASSERT_EQ(first, -1.0f);
    std::ranges::sort(keys);
    EXPECT_EQ(tables->KeysOf(0), keys);
  }
}

TEST(ServingTablesTest, AKeyTwiceIsNamed) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder,
                              ServingTables::Builder::Create(OneTable(kMiB * 8)));
  for (const uint64_t key : {3, 4, 3}) HOTROW_ASSERT_OK(AddRow(*builder, key));
  EXPECT_THAT(builder->Finish(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("table \"t\" has two rows of key 3")));
}

TEST(ServingTablesTest, BudgetsAreHard) {
  const auto exhausted = [](const char* what) {
    return StatusIs(absl::StatusCode::kResourceExhausted,
                    AllOf(HasSubstr("memory_bytes"), HasSubstr(what)));
  };
  // Known before: refused before the first row.
  ServingTablesOptions known = OneTable(100'000);
  known.expected_rows = {5000};
  EXPECT_THAT(ServingTables::Builder::Create(known), exhausted("the budget is 100000"));
  // Not known: refused at the row, or the index, that does not fit.
  for (const int64_t budget : {int64_t{100'000}, 5 * kMiB}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder,
                                ServingTables::Builder::Create(OneTable(budget)));
    absl::Status status;
    for (uint64_t key = 0; status.ok() && key < 1'000'000; ++key) status = AddRow(*builder, key);
    EXPECT_THAT(status, exhausted("table \"t\""));
  }
  // A budget of exactly what is taken is enough.
  int64_t taken = 0;
  for (const int64_t budget : {32 * kMiB, int64_t{0}}) {
    ServingTablesOptions options = OneTable(budget > 0 ? budget : taken);
    options.expected_rows = {200'000};
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder, ServingTables::Builder::Create(options));
    std::vector<uint64_t> keys(200'000);
    std::iota(keys.begin(), keys.end(), 0);
    AddRows(*builder, keys);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, builder->Finish());
    EXPECT_TRUE(taken == 0 || taken == tables->bytes());
    taken = tables->bytes();
    // A record, its place in the index, and pages of 2 MiB begun.
    EXPECT_LE(taken, (int64_t{32} + 8) * 200'000 + 3 * 2 * kMiB);
  }
}

TEST(ServingTablesTest, MalformedRowsAreNamed) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder,
                              ServingTables::Builder::Create(OneTable(8 * kMiB)));
  const std::vector<std::byte> row(16);
  EXPECT_THAT(builder->Add({1, 0}, row), StatusIs(absl::StatusCode::kInvalidArgument,
                                                  HasSubstr("a row of 16 bytes, expected 32")));
  EXPECT_THAT(builder->Add({1, 1}, row),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a row of table 1")));
}

// Codes stand for other numbers, near by; first values are read as rows are.
TEST(ServingTablesTest, CodesAreNearWhatWasTrained) {
  const std::string dir = test::TempDir();
  EmbeddingCollectionOptions options = FourFeatures(dir);
  options.tables[1].weights_precision = WeightsPrecision::kFp32;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  TrainSteps(*tables, 0, 8, 1);
  const Batch batch = RandomBatch(900, kFeatures, 33, 4, 2 * kRows, false);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto as_trained, Freeze(*tables, dir, ServingOptions(options)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const Output expected, PoolAll(*as_trained, batch));
  for (const auto& [rows, error] :
       std::vector<std::pair<ServingRows, float>>{{ServingRows::kFp16, 0.01f},
                                                  {ServingRows::kBf16, 0.08f},
                                                  {ServingRows::kInt8, 0.08f},
                                                  {ServingRows::kInt4, 1.2f}}) {
    SCOPED_TRACE(static_cast<int>(rows));
    ServingTablesOptions coded = ServingOptions(options);
    for (ServingTable& table : coded.tables) table.rows = rows;
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto serving, FreezeSnapshot(dir, coded));
    HOTROW_ASSERT_OK_AND_ASSIGN(const Output found, PoolAll(*serving, batch));
    float largest = 0;
    for (size_t i = 0; i < found.pooled.size(); ++i) {
      largest = std::max(largest, std::abs(found.pooled[i] - expected.pooled[i]));
    }
    for (size_t i = 0; i < found.unpooled[0].size(); ++i) {
      largest = std::max(largest, std::abs(found.unpooled[0][i] - expected.unpooled[0][i]));
    }
    EXPECT_LT(largest, error);
    EXPECT_GT(largest, 0);
    EXPECT_LE(serving->bytes(), as_trained->bytes());
  }
}

// 64 columns: 256 bytes of weights, 8 of key, 7 of index, and what fills 16 bytes up.
TEST(ServingTablesTest, CodesTakeWhatTheySay) {
  constexpr int64_t kManyRows = 20'000;
  for (const auto& [rows, row_bytes] :
       std::vector<std::pair<ServingRows, int64_t>>{{ServingRows::kAsTrained, 272},
                                                    {ServingRows::kFp16, 144},
                                                    {ServingRows::kInt8, 76},
                                                    {ServingRows::kInt4, 44}}) {
    ServingTablesOptions options = OneTable(16 * kMiB);
    options.tables[0].layout = RowLayout::For(64, SparseOptimizerKind::kSgd);
    options.tables[0].rows = rows;
    options.expected_rows = {kManyRows};
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder, ServingTables::Builder::Create(options));
    std::vector<std::byte> row(static_cast<size_t>(options.tables[0].layout.row_bytes));
    absl::Status added;
    for (uint64_t key = 0; key < kManyRows; ++key) added.Update(builder->Add({key, 0}, row));
    HOTROW_ASSERT_OK(added);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, builder->Finish());
    EXPECT_GE(tables->bytes(), row_bytes * kManyRows);
    // The last piece of rows may be mapped in pages of 2 MiB.
    EXPECT_LE(tables->bytes(), (row_bytes + 8) * kManyRows + 2 * kMiB);
  }
}

TEST(ServingTablesTest, AWeightWithoutACodeIsNamed) {
  ServingTablesOptions options = OneTable(8 * kMiB);
  options.tables[0].rows = ServingRows::kInt8;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder, ServingTables::Builder::Create(options));
  std::vector<std::byte> row(32);
  const float weights[] = {1, 2, std::numeric_limits<float>::infinity(), 4};
  std::memcpy(row.data(), weights, sizeof(weights));
  EXPECT_THAT(builder->Add({5, 0}, row),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("table \"t\": the row of key 5 has weights that are not finite")));
}

TEST(ServingTablesTest, ThreadsReadTheSame) {
  const std::string dir = test::TempDir();
  const EmbeddingCollectionOptions options = FourFeatures(dir);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto tables, EmbeddingCollection::Create(options, {}));
  TrainSteps(*tables, 0, 4, 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto serving, Freeze(*tables, dir, ServingOptions(options)));
  const Batch batch = RandomBatch(900, kFeatures, 64, 4, 2 * kRows, false);
  HOTROW_ASSERT_OK_AND_ASSIGN(const Output expected, PoolAll(*serving, batch));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        HOTROW_ASSERT_OK_AND_ASSIGN(const Output found, PoolAll(*serving, batch));
        ExpectSameBits(found.pooled, expected.pooled);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A call that is larger than a Scratch: bags that lie across its parts, one that is longer than
// several, rows that are not pooled. Sums are those of rows one by one, in order.
TEST(ServingTablesTest, LargeCallsGoPartByPartToTheSameBits) {
  ServingTablesOptions options = OneTable(32 * kMiB);
  const int64_t n = 3 * ServingTables::ScratchBytes(options) / 64;
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto builder, ServingTables::Builder::Create(options));
  std::vector<uint64_t> keys(static_cast<size_t>(n));
  std::vector<float> weights;
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = i % 5000;
    weights.push_back(1.0f / static_cast<float>(i % 7 + 1));
  }
  AddRows(*builder, {keys.begin(), keys.begin() + 4000});  // a fifth has first values
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, builder->Finish());
  const std::vector<int64_t> offsets = {0, 3, 3, 2000, n - 900, n - 899, n};
  for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kNone}) {
    const int64_t rows = pooling == Pooling::kNone ? n : std::ssize(offsets) - 1;
    std::vector<float> out(static_cast<size_t>(4 * rows), -7.0f);
    ServingTables::Scratch scratch;
    HOTROW_ASSERT_OK(tables->Pool({.table = 0,
                                   .pooling = pooling,
                                   .batch_size = std::ssize(offsets) - 1,
                                   .keys = keys,
                                   .offsets = offsets,
                                   .weights = weights,
                                   .output = {out.data(), rows, 4}},
                                  &scratch));
    const auto term = [&](int64_t j) {
      const auto i = static_cast<size_t>(j);
      return weights[i] * (keys[i] < 4000 ? FirstWeight(keys[i]) : -1.0f);
    };
    for (int64_t row = 0; row < rows; ++row) {
      const auto bag = static_cast<size_t>(row);
      const int64_t begin = pooling == Pooling::kNone ? row : offsets[bag];
      const int64_t end = pooling == Pooling::kNone ? row + 1 : offsets[bag + 1];
      float want = begin == end ? 0 : term(begin);
      for (int64_t j = begin + 1; j < end; ++j) want += term(j);
      if (pooling == Pooling::kMean && end - begin > 1) want /= static_cast<float>(end - begin);
      ASSERT_EQ(out[static_cast<size_t>(4 * row)], want) << row;
    }
  }
}

}  // namespace
}  // namespace hotrow
