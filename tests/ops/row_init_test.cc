#include "ops/rows/row_init.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "base/buffer.h"
#include "ops/rows/row_init_impl.h"
#include "ops/update/sparse_optimizer.h"
#include "tests/ops/half_reference.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using testing::Each;
using testing::HasSubstr;

constexpr uint64_t kMaxKey = std::numeric_limits<uint64_t>::max();

struct Table {
  Initializer initializer{.kind = InitializerKind::kUniform, .value = 0.5f};
  SparseOptimizerKind optimizer = SparseOptimizerKind::kSgd;
  int32_t dim = 17;
  float initial_accumulator = 0;
  uint64_t seed = 1;
  uint32_t table = 0;
  WeightsPrecision precision = WeightsPrecision::kFp32;
};

// [U][row_bytes]
std::vector<std::vector<std::byte>> Init(const Table& table, const std::vector<uint64_t>& keys,
                                         ThreadPool* pool = nullptr) {
  const RowLayout layout = RowLayout::For(table.dim, table.optimizer, table.precision);
  HostBuffer<std::byte> memory =
      std::move(HostBuffer<std::byte>::Create(static_cast<int64_t>(keys.size()) * layout.row_bytes))
          .value();
  std::fill(memory.begin(), memory.end(), std::byte{0xa5});
  std::vector<std::byte*> rows;
  for (size_t i = 0; i < keys.size(); ++i) {
    rows.push_back(memory.data() + static_cast<int64_t>(i) * layout.row_bytes);
  }
  EXPECT_THAT(InitRows({.pool = pool}, {.initializer = table.initializer,
                                        .layout = &layout,
                                        .initial_accumulator = table.initial_accumulator,
                                        .optimizer = table.optimizer,
                                        .seed = table.seed,
                                        .table = table.table,
                                        .num_rows = static_cast<int64_t>(keys.size()),
                                        .keys = keys.data(),
                                        .rows = rows.data()}),
              test::IsOk());
  std::vector<std::vector<std::byte>> result;
  for (const std::byte* row : rows) result.emplace_back(row, row + layout.row_bytes);
  return result;
}

std::vector<float> Floats(const std::vector<std::byte>& row, int64_t begin, int64_t n) {
  std::vector<float> floats(static_cast<size_t>(n));
  if (n > 0) std::memcpy(floats.data(), row.data() + begin * 4, floats.size() * 4);
  return floats;
}

std::vector<float> AllWeights(const Table& table, uint64_t num_keys) {
  std::vector<uint64_t> keys(num_keys);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<float> all;
  for (const std::vector<std::byte>& row : Init(table, keys)) {
    const std::vector<float> weights = Floats(row, 0, table.dim);
    all.insert(all.end(), weights.begin(), weights.end());
  }
  return all;
}

double Mean(const std::vector<float>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}
double MeanSquare(const std::vector<float>& x) {
  return std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size());
}

TEST(RowInitTest, UniformFillsItsRange) {
  const std::vector<float> w = AllWeights({.dim = 50}, 2000);
  // 100,000 numbers: five standard errors of the mean (0.5 / sqrt 3 / sqrt n) and of the mean
  // square (0.25 sqrt(1/5 - 1/9) / sqrt n).
  EXPECT_NEAR(Mean(w), 0, 5e-3);
  EXPECT_NEAR(MeanSquare(w), 0.25 / 3, 1.2e-3);
  const auto [low, high] = std::minmax_element(w.begin(), w.end());
  EXPECT_GE(*low, -0.5f);
  EXPECT_LT(*low, -0.4999f);
  EXPECT_LT(*high, 0.5f);
  EXPECT_GT(*high, 0.4999f);
}

TEST(RowInitTest, NormalHasItsMoments) {
  const std::vector<float> w =
      AllWeights({.initializer = {.kind = InitializerKind::kNormal, .value = 2}, .dim = 50}, 2000);
  EXPECT_NEAR(Mean(w), 0, 0.032);       // 5 * 2 / sqrt n
  EXPECT_NEAR(MeanSquare(w), 4, 0.09);  // 5 * 4 sqrt 2 / sqrt n
  double fourth = 0;
  for (const float x : w) fourth += std::pow(x / 2.0, 4);
  EXPECT_NEAR(fourth / static_cast<double>(w.size()), 3, 0.16);  // 5 * sqrt 96 / sqrt n
  // Neighbouring columns are independent: the mean of products has standard error 4 / sqrt n.
  double products = 0;
  for (size_t i = 1; i < w.size(); ++i) products += double{w[i]} * w[i - 1];
  EXPECT_NEAR(products / static_cast<double>(w.size()), 0, 0.064);
}

TEST(RowInitTest, ZerosAndConstant) {
  EXPECT_THAT(AllWeights({.initializer = {.kind = InitializerKind::kZeros, .value = 3}}, 3),
              Each(0));
  EXPECT_THAT(AllWeights({.initializer = {.kind = InitializerKind::kConstant, .value = -3}}, 3),
              Each(-3));
}

TEST(RowInitTest, NoValueRepeatsInsideARow) {
  for (const InitializerKind kind : {InitializerKind::kUniform, InitializerKind::kNormal}) {
    const Table table{.initializer = {.kind = kind, .value = 1}, .dim = 64};
    // By chance one pair in 2^24 is equal; 50 rows have 100,800 pairs, and this seed has none.
    for (const std::vector<std::byte>& row : Init(table, [] {
           std::vector<uint64_t> keys(50);
           std::iota(keys.begin(), keys.end(), 1000);
           return keys;
         }())) {
      const std::vector<float> w = Floats(row, 0, 64);
      EXPECT_EQ(std::set<float>(w.begin(), w.end()).size(), 64);
    }
  }
}

TEST(RowInitTest, DependsOnSeedTableKeyAndColumnOnly) {
  ThreadPool one(1);
  ThreadPool four(4);
  for (const int32_t dim : {1, 17, 64}) {
    const Table table{.dim = dim};
    std::vector<uint64_t> keys = {0, kMaxKey, 1, uint64_t{1} << 32};
    for (uint64_t k = 100; k < 400; ++k) keys.push_back(k);
    const auto rows = Init(table, keys);
    EXPECT_EQ(Init(table, keys, &one), rows);
    EXPECT_EQ(Init(table, keys, &four), rows);
    std::set<std::vector<float>> distinct;
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(Init(table, {keys[i]})[0], rows[i]);
      distinct.insert(Floats(rows[i], 0, dim));
    }
    EXPECT_EQ(distinct.size(), keys.size());
    EXPECT_NE(Init({.dim = dim, .seed = 2}, keys), rows);
    EXPECT_NE(Init({.dim = dim, .table = 1}, keys), rows);
  }
  // A wider row begins with the columns of a narrower one.
  EXPECT_EQ(Floats(Init({.dim = 64}, {7})[0], 0, 17), Floats(Init({.dim = 17}, {7})[0], 0, 17));
}

TEST(RowInitTest, WritesTheWholeRow) {
  using Kind = SparseOptimizerKind;
  for (const Kind kind : {Kind::kSgd, Kind::kMomentum, Kind::kAdagrad, Kind::kRowWiseAdagrad,
                          Kind::kAdam, Kind::kPartialRowWiseAdam, Kind::kFtrl}) {
    SCOPED_TRACE(std::string(SparseOptimizerName(kind)));
    const Table table{.optimizer = kind, .dim = 5, .initial_accumulator = 0.25f};
    const RowLayout layout = RowLayout::For(5, kind);
    const std::vector<std::byte> row = Init(table, {42})[0];
    EXPECT_EQ(Floats(row, 0, 5), Floats(Init({.dim = 5}, {42})[0], 0, 5));
    const std::vector<float> state = Floats(row, 5, layout.state_floats);
    for (int32_t i = 0; i < layout.state_floats; ++i) {
      const bool is_sum = kind == Kind::kAdagrad || kind == Kind::kRowWiseAdagrad ||
                          (kind == Kind::kFtrl && i >= 5);
      EXPECT_EQ(state[i], is_sum ? 0.25f : 0.0f) << i;
    }
    EXPECT_THAT(std::vector<std::byte>(row.begin() + layout.step_offset, row.end()),
                Each(std::byte{0}));
  }
}

// Weights of 16 bits are those of fp32 rounded to the nearest; the rest is as with fp32, and what
// lies between is zero.
TEST(RowInitTest, HalfWeightsAreRoundedToTheNearest) {
  using Kind = SparseOptimizerKind;
  for (const WeightsPrecision precision : test::kHalfPrecisions) {
    for (const Initializer& initializer :
         {Initializer{InitializerKind::kZeros, 3}, Initializer{InitializerKind::kConstant, -0.3f},
          Initializer{InitializerKind::kConstant, 1e6f},
          Initializer{InitializerKind::kUniform, 0.3f},
          Initializer{InitializerKind::kUniform, 1e-6f},
          Initializer{InitializerKind::kNormal, 0.5f}}) {
      for (const Kind kind : {Kind::kSgd, Kind::kAdagrad, Kind::kRowWiseAdagrad, Kind::kFtrl}) {
        for (const int32_t dim : {1, 2, 3, 7, 8, 15, 17, 64, 130}) {
          SCOPED_TRACE(testing::Message()
                       << WeightsPrecisionName(precision) << " "
                       << static_cast<int>(initializer.kind) << " of " << initializer.value << " "
                       << SparseOptimizerName(kind) << " dim " << dim);
          Table table{.initializer = initializer,
                      .optimizer = kind,
                      .dim = dim,
                      .initial_accumulator = 0.25f};
          const RowLayout wide_layout = RowLayout::For(dim, kind);
          const std::vector<std::byte> wide = Init(table, {42})[0];
          std::vector<float> weights = Floats(wide, 0, dim);
          table.precision = precision;
          const RowLayout layout = RowLayout::For(dim, kind, precision);
          std::vector<std::byte> want = test::NarrowedRow(precision, weights);
          want.resize(static_cast<size_t>(layout.state_offset));
          want.insert(want.end(), wide.begin() + wide_layout.state_offset,
                      wide.begin() + wide_layout.payload_bytes);
          want.resize(static_cast<size_t>(layout.row_bytes));
          ASSERT_EQ(Init(table, {42})[0], want);
        }
      }
    }
  }
}

TEST(RowInitTest, AccumulatorsLieInTheState) {
  using Kind = SparseOptimizerKind;
  for (const Kind kind : {Kind::kSgd, Kind::kMomentum, Kind::kAdagrad, Kind::kRowWiseAdagrad,
                          Kind::kAdam, Kind::kPartialRowWiseAdam, Kind::kFtrl}) {
    for (const int32_t dim : {1, 5, 1000}) {
      const auto range = internal::AccumulatorRange::For(kind, dim);
      EXPECT_LE(range.begin, range.end);
      EXPECT_LE(range.end, SparseStateFloats(kind, dim));
    }
  }
}

TEST(RowInitTest, UniformOfRows) {
  const Initializer initializer = Initializer::UniformOfRows(10'000);
  EXPECT_EQ(initializer.kind, InitializerKind::kUniform);
  EXPECT_EQ(initializer.value, 0.01f);
}

TEST(RowInitTest, ValidateNamesTheField) {
  RowLayout layout = RowLayout::For(4, SparseOptimizerKind::kAdam);
  const uint64_t keys[1] = {0};
  alignas(16) std::byte row[64];
  std::byte* const rows[1] = {row};
  const RowInitArgs good{.layout = &layout,
                         .optimizer = SparseOptimizerKind::kAdam,
                         .num_rows = 1,
                         .keys = keys,
                         .rows = rows};
  HOTROW_ASSERT_OK(InitRows({}, good));
  const auto expect = [&](auto change, const char* message) {
    RowInitArgs args = good;
    change(args);
    EXPECT_THAT(InitRows({}, args),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  using Args = RowInitArgs;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  expect([](Args& a) { a.initializer.value = -1; }, "value must be >= 0, got -1");
  expect(
      [](Args& a) {
        a.initializer = {InitializerKind::kConstant, kNan};
      },
      "value must be finite");
  expect([](Args& a) { a.initial_accumulator = -1; }, "initial_accumulator");
  expect([](Args& a) { a.initial_accumulator = kNan; }, "initial_accumulator");
  expect([](Args& a) { a.layout = nullptr; }, "layout must not be null");
  expect([](Args& a) { a.optimizer = SparseOptimizerKind::kSgd; },
         "layout->state_floats must be 0, as the optimizer sgd with weights of fp32 needs, got 8");
  expect([](Args& a) { a.num_rows = -1; }, "num_rows must be >= 0, got -1");
  expect([](Args& a) { a.keys = nullptr; }, "keys must not be null");
  expect([](Args& a) { a.rows = nullptr; }, "rows must not be null");
  layout.dim = 0;
  expect([](Args&) {}, "layout->dim");
  HOTROW_EXPECT_OK((Initializer{InitializerKind::kConstant, -1}.Validate()));
}

}  // namespace
}  // namespace hotrow
