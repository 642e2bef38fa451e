#include "ops/rows/pooled_lookup.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/ops/half_reference.h"
#include "tests/ops/jagged_problem.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::JaggedProblem;
using test::kUntouched;
using test::StatusIs;
using testing::ElementsAre;
using testing::HasSubstr;

absl::Status RunLookup(const JaggedProblem& p, ThreadPool* pool = nullptr) {
  const std::vector<const std::byte*> rows = p.row_pointers();
  return PooledLookup({.pool = pool}, {.features = p.features,
                                       .batch_size = p.batch_size,
                                       .offsets = p.offsets.data(),
                                       .weights = p.weights_or_null(),
                                       .inverse = p.inverse.data(),
                                       .rows = rows.data()});
}

// Two rows (1, 2) and (10, 20); bags {0, 1, 1}, {} and {1}.
JaggedProblem SmallProblem(Pooling pooling) {
  JaggedProblem p;
  p.batch_size = 3;
  p.features = {{.dim = 2, .pooling = pooling, .stride = 3}};
  p.offsets = {0, 3, 3, 4};
  p.inverse = {0, 1, 1, 1};
  p.row_dims = {2, 2};
  p.rows = {{1, 2}, {10, 20}};
  BindData(p);
  return p;
}

TEST(PooledLookupTest, HandWorkedSum) {
  JaggedProblem p = SmallProblem(Pooling::kSum);
  HOTROW_ASSERT_OK(RunLookup(p));
  EXPECT_THAT(p.data[0], ElementsAre(21, 42, kUntouched, 0, 0, kUntouched, 10, 20, kUntouched));
  p.weights = {2, 0.5, -1, 3};
  HOTROW_ASSERT_OK(RunLookup(p));
  EXPECT_THAT(p.data[0], ElementsAre(-3, -6, kUntouched, 0, 0, kUntouched, 30, 60, kUntouched));
}

TEST(PooledLookupTest, HandWorkedMean) {
  JaggedProblem p = SmallProblem(Pooling::kMean);
  HOTROW_ASSERT_OK(RunLookup(p));
  EXPECT_THAT(p.data[0], ElementsAre(7, 14, kUntouched, 0, 0, kUntouched, 10, 20, kUntouched));
  // With weights the sum is still divided by the number of lookups.
  p.weights = {2, 0.5, -1, 3};
  HOTROW_ASSERT_OK(RunLookup(p));
  EXPECT_THAT(p.data[0], ElementsAre(-1, -2, kUntouched, 0, 0, kUntouched, 30, 60, kUntouched));
}

TEST(PooledLookupTest, HandWorkedNone) {
  JaggedProblem p = SmallProblem(Pooling::kNone);
  HOTROW_ASSERT_OK(RunLookup(p));
  EXPECT_THAT(p.data[0], ElementsAre(1, 2, kUntouched, 10, 20, kUntouched, 10, 20, kUntouched, 10,
                                     20, kUntouched));
}

TEST(PooledLookupTest, EmptyBatchAndNoLookups) {
  HOTROW_EXPECT_OK(PooledLookup({}, {}));
  const JaggedFeature no_data{.dim = 4, .stride = 4};
  HOTROW_EXPECT_OK(PooledLookup({}, {.features = {&no_data, 1}}));
  // Two samples without lookups: no rows are needed to give zeros.
  float output[2] = {1, 1};
  const JaggedFeature feature{.dim = 1, .data = output, .stride = 1};
  const int64_t offsets[3] = {0, 0, 0};
  HOTROW_EXPECT_OK(
      PooledLookup({}, {.features = {&feature, 1}, .batch_size = 2, .offsets = offsets}));
  EXPECT_THAT(output, ElementsAre(0, 0));
}

TEST(PooledLookupTest, MatchesReferenceOnRandomBags) {
  for (const uint64_t seed : test::Seeds(60)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    JaggedProblem p = test::RandomJaggedProblem(seed);
    // want and bound: the sum and the sum of magnitudes of each output.
    std::vector<std::vector<double>> want;
    std::vector<std::vector<double>> bound;
    for (size_t f = 0; f < p.features.size(); ++f) {
      const auto n = static_cast<size_t>(p.output_rows(f) * p.features[f].dim);
      want.emplace_back(n, 0.0);
      bound.emplace_back(n, 0.0);
    }
    p.ForEachLookup([&](size_t f, int64_t b, int64_t j) {
      const int32_t dim = p.features[f].dim;
      const int64_t row = p.output_row(f, b, j);
      for (int32_t d = 0; d < dim; ++d) {
        const double term = p.scale(f, b, j) * p.rows[p.inverse[j]][d];
        want[f][row * dim + d] += term;
        bound[f][row * dim + d] += std::abs(term);
      }
    });
    HOTROW_ASSERT_OK(RunLookup(p));
    for (size_t f = 0; f < p.features.size(); ++f) {
      const JaggedFeature& feature = p.features[f];
      for (int64_t row = 0; row < p.output_rows(f); ++row) {
        for (int64_t d = 0; d < feature.stride; ++d) {
          const float got = p.data[f][row * feature.stride + d];
          if (d >= feature.dim) {
            ASSERT_EQ(got, kUntouched);
            continue;
          }
          // At most 11 products and sums and one division, each off by half an ulp (Higham 2002,
          // sec. 3.1): 13 * 2^-24 of the sum of magnitudes.
          const size_t i = static_cast<size_t>(row * feature.dim + d);
          ASSERT_NEAR(got, want[f][i], 13 * 0x1p-24 * bound[f][i]) << f << " " << row << " " << d;
        }
      }
    }
  }
}

// A bag long enough for the loop that takes four rows at a time must add in lookup order: the order
// of additions shows in the bits.
TEST(PooledLookupTest, AddsInLookupOrder) {
  JaggedProblem p;
  p.batch_size = 1;
  p.features = {{.dim = 1, .stride = 1}};
  p.offsets = {0, 11};
  float want = 0;
  for (int32_t i = 0; i < 11; ++i) {
    p.inverse.push_back(i);
    p.rows.push_back({i == 3 ? 0x1p25f : i == 8 ? -0x1p25f : 1.0f + 0.1f * static_cast<float>(i)});
    want += p.rows.back()[0];
  }
  BindData(p);
  HOTROW_ASSERT_OK(RunLookup(p));
  EXPECT_EQ(p.data[0][0], want);
  // The same bag in two parts.
  std::vector<const std::byte*> rows;
  for (const auto& row : p.rows) rows.push_back(reinterpret_cast<const std::byte*>(row.data()));
  float sum = 7;
  JaggedFeature feature = {.dim = 1, .data = &sum, .stride = 1};
  const auto add = [&](int64_t begin, int64_t end) {
    const int64_t offsets[] = {0, end - begin};
    return PooledLookup({}, {.features = {&feature, 1},
                             .batch_size = 1,
                             .offsets = offsets,
                             .inverse = p.inverse.data() + begin,
                             .rows = rows.data(),
                             .adds = begin > 0});
  };
  HOTROW_ASSERT_OK(add(0, 5));
  HOTROW_ASSERT_OK(add(5, 11));
  EXPECT_EQ(sum, want);
  feature.pooling = Pooling::kMean;
  EXPECT_THAT(add(5, 11), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kSum")));
}

TEST(PooledLookupTest, SameBitsOnAnyPool) {
  ThreadPool one(1);
  ThreadPool four(4);
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    JaggedProblem p = test::RandomJaggedProblem(seed);
    HOTROW_ASSERT_OK(RunLookup(p));
    const std::vector<std::vector<float>> want = p.data;
    for (ThreadPool* pool : {&one, &four}) {
      BindData(p);
      HOTROW_ASSERT_OK(RunLookup(p, pool));
      EXPECT_EQ(p.data, want);
    }
  }
}

// Features of several precisions in one call give what their rows give when they are widened
// before: to the bit, for any width, pooling and bag length.
TEST(PooledLookupTest, HalfRowsAreThoseWidenedBefore) {
  const WeightsPrecision precisions[] = {WeightsPrecision::kBf16, WeightsPrecision::kFp32,
                                         WeightsPrecision::kFp16};
  constexpr int64_t kRowsEach = 30;
  ThreadPool four(4);
  for (const bool weighted : {false, true}) {
    RandomStream random(weighted ? 1 : 2, RandomPurpose::kTest);
    JaggedProblem p;
    p.batch_size = 300;  // more than one block of samples
    p.offsets.push_back(0);
    std::vector<std::vector<std::byte>> narrow;
    for (const int32_t dim : {1, 2, 3, 7, 8, 15, 17, 64, 130}) {
      for (const WeightsPrecision precision : precisions) {
        const auto first_row = static_cast<uint64_t>(p.rows.size());
        for (int64_t u = 0; u < kRowsEach; ++u) {
          std::vector<float>& row = p.rows.emplace_back(dim);
          // Normal, subnormal and negative zero.
          for (float& x : row) {
            x = random.Normal() * (random.Below(4) == 0 ? 1e-6f : 1.0f);
            if (random.Below(16) == 0) x = -0.0f;
          }
          p.row_dims.push_back(dim);
          narrow.push_back(test::NarrowedRow(precision, row));
        }
        p.features.push_back({.dim = dim,
                              .pooling = static_cast<Pooling>(p.features.size() % 3),
                              .stride = dim + 1,
                              .precision = precision});
        for (int64_t b = 0; b < p.batch_size; ++b) {
          for (uint64_t i = random.Below(12); i > 0; --i) {
            p.inverse.push_back(static_cast<int32_t>(first_row + random.Below(kRowsEach)));
            if (weighted) p.weights.push_back(random.Normal());
          }
          p.offsets.push_back(std::ssize(p.inverse));
        }
      }
    }
    JaggedProblem wide = p;
    for (JaggedFeature& feature : wide.features) feature.precision = WeightsPrecision::kFp32;
    BindData(wide);
    HOTROW_ASSERT_OK(RunLookup(wide));
    std::vector<const std::byte*> rows;
    for (const std::vector<std::byte>& row : narrow) rows.push_back(row.data());
    for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &four}) {
      BindData(p);
      HOTROW_ASSERT_OK(PooledLookup({.pool = pool}, {.features = p.features,
                                                     .batch_size = p.batch_size,
                                                     .offsets = p.offsets.data(),
                                                     .weights = p.weights_or_null(),
                                                     .inverse = p.inverse.data(),
                                                     .rows = rows.data()}));
      for (size_t f = 0; f < p.features.size(); ++f) {
        ASSERT_EQ(
            std::memcmp(p.data[f].data(), wide.data[f].data(), p.data[f].size() * sizeof(float)), 0)
            << "dim " << p.features[f].dim << " " << WeightsPrecisionName(p.features[f].precision);
      }
    }
  }
}

TEST(PooledLookupTest, ValidateNamesTheField) {
  JaggedProblem p = SmallProblem(Pooling::kSum);
  const std::vector<const std::byte*> rows = p.row_pointers();
  const PooledLookupArgs good{p.features,       3,          p.offsets.data(), nullptr,
                              p.inverse.data(), rows.data()};
  HOTROW_ASSERT_OK(PooledLookup({}, good));
  const auto expect = [&](auto change, const char* message) {
    const std::vector<JaggedFeature> saved = p.features;
    PooledLookupArgs args = good;
    change(args, p.features[0]);
    EXPECT_THAT(PooledLookup({}, args),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
    p.features = saved;
  };
  using Args = PooledLookupArgs;
  expect([](Args& a, JaggedFeature&) { a.batch_size = -1; }, "batch_size must be >= 0, got -1");
  expect([](Args& a, JaggedFeature&) { a.offsets = nullptr; }, "offsets must not be null");
  expect([](Args& a, JaggedFeature&) { a.inverse = nullptr; }, "inverse must not be null");
  expect([](Args& a, JaggedFeature&) { a.rows = nullptr; }, "rows must not be null");
  expect([](Args&, JaggedFeature& f) { f.dim = 0; }, "features[0].dim must be > 0, got 0");
  expect([](Args&, JaggedFeature& f) { f.stride = 1; },
         "features[0].stride must be >= dim = 2, got 1");
  expect([](Args&, JaggedFeature& f) { f.data = nullptr; }, "features[0].data must not be null");
  expect(
      [](Args&, JaggedFeature& f) {
        f.pooling = Pooling::kNone;
        f.data = nullptr;
      },
      "features[0].data must not be null");
}

}  // namespace
}  // namespace hotrow
