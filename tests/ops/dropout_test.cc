#include "ops/layers/dropout.h"

#include <cmath>
#include <limits>
#include <vector>

#include "ops/layers/dropout_impl.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

// The mask as the header defines it, one element at a time.
bool Kept(const DropoutArgs& args, int64_t element) {
  const PhiloxBlock block = RandomBlock(args.seed, RandomPurpose::kDropout,
                                        static_cast<uint64_t>(element / 4), args.step, args.layer);
  return block.v[element % 4] >= std::floor(static_cast<double>(args.rate) * 0x1p32);
}

TEST(DropoutTest, MatchesTheDocumentedMaskOnAnyShapeAndLeavesGapsAlone) {
  RandomStream random(1, RandomPurpose::kTest);
  for (const int64_t rows : {1, 2, 5, 130}) {
    for (const int64_t columns : {1, 3, 4, 13, 17, 32, 64, 100}) {
      for (const int64_t gap : {0, 3}) {
        const int64_t stride = columns + gap;
        const std::vector<float> before = test::RandomFloats(random, rows * stride);
        std::vector<float> data = before;
        const DropoutArgs args = {.data = data.data(),
                                  .rows = rows,
                                  .columns = columns,
                                  .stride = stride,
                                  .rate = 0.3f,
                                  .seed = 0x123456789abcdefULL,
                                  .step = 77,
                                  .layer = 5};
        HOTROW_ASSERT_OK(Dropout({}, args));
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < stride; ++c) {
            const auto i = static_cast<size_t>(r * stride + c);
            const float want = c >= columns                  ? before[i]
                               : Kept(args, r * columns + c) ? before[i] / (1.0f - 0.3f)
                                                             : 0.0f;
            ASSERT_EQ(data[i], want) << rows << "x" << columns << " at " << r << "," << c;
          }
        }
      }
    }
  }
}

TEST(DropoutTest, EightElementsAreKeptAsOneByOne) {
  for (const int64_t columns : {8, 13, 18, 64}) {
    const DropoutArgs args = {
        .columns = columns, .rate = 0.4f, .seed = 9, .step = 3, .layer = 2, .first_row = 5};
    for (int64_t row = 0; row < 9; ++row) {
      for (int64_t column = 0; column < columns; column += 8) {
        const uint32_t kept =
            internal::DropoutKeepsOfEight(args, internal::DropoutThreshold(args.rate), row, column);
        for (int i = 0; i < 8; ++i) {
          EXPECT_EQ((kept >> i & 1) != 0, Kept(args, (5 + row) * columns + column + i))
              << columns << " columns, " << row << ", " << column << " + " << i;
        }
        EXPECT_EQ(kept >> 8, 0u);
      }
    }
  }
}

TEST(DropoutTest, KeepsTheRightShareAndTheMean) {
  for (const float rate : {0.1f, 0.5f, 0.9f}) {
    constexpr int64_t kRows = 1000;
    constexpr int64_t kColumns = 1000;
    std::vector<float> data(kRows * kColumns, 1.0f);
    HOTROW_ASSERT_OK(Dropout({}, {.data = data.data(),
                                  .rows = kRows,
                                  .columns = kColumns,
                                  .stride = kColumns,
                                  .rate = rate,
                                  .seed = 9,
                                  .step = 1}));
    double kept = 0;
    double sum = 0;
    for (const float x : data) {
      kept += x != 0;
      sum += x;
    }
    // Six standard deviations of a binomial share of n = 10^6.
    const double n = static_cast<double>(data.size());
    const double limit = 6 * std::sqrt(rate * (1 - rate) / n);
    EXPECT_NEAR(kept / n, 1 - rate, limit);
    EXPECT_NEAR(sum / n, 1, limit / (1 - rate));
  }
}

TEST(DropoutTest, SameCallGivesTheSameMaskAndEveryCounterPartMatters) {
  const auto mask = [](uint64_t seed, uint32_t step, uint32_t layer) {
    std::vector<float> data(4096, 1.0f);
    HOTROW_EXPECT_OK(Dropout({}, {.data = data.data(),
                                  .rows = 64,
                                  .columns = 64,
                                  .stride = 64,
                                  .rate = 0.5f,
                                  .seed = seed,
                                  .step = step,
                                  .layer = layer}));
    return data;
  };
  const auto differing = [](const std::vector<float>& a, const std::vector<float>& b) {
    int64_t n = 0;
    for (size_t i = 0; i < a.size(); ++i) n += a[i] != b[i];
    return n;
  };
  const std::vector<float> base = mask(1, 2, 3);
  EXPECT_EQ(mask(1, 2, 3), base);
  // Two independent masks differ in half of the places.
  EXPECT_NEAR(differing(base, mask(2, 2, 3)), 2048, 300);
  EXPECT_NEAR(differing(base, mask(1, 3, 3)), 2048, 300);
  EXPECT_NEAR(differing(base, mask(1, 2, 4)), 2048, 300);
  EXPECT_NEAR(differing(base, mask(1ULL << 40 | 1, 2, 3)), 2048, 300);
}

TEST(DropoutTest, EqualBitsOnAnyPool) {
  const auto run = [](const ExecContext& ctx) {
    std::vector<float> data(300 * 117, 3.0f);
    HOTROW_EXPECT_OK(Dropout(ctx, {.data = data.data(),
                                   .rows = 300,
                                   .columns = 113,
                                   .stride = 117,
                                   .rate = 0.25f,
                                   .seed = 5}));
    return data;
  };
  const std::vector<float> alone = run({});
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    EXPECT_EQ(run(test::OnPool(&pool)), alone);
  }
}

TEST(DropoutTest, SlicesDropWhatTheWholeBatchDrops) {
  RandomStream random(2, RandomPurpose::kTest);
  constexpr int64_t kRows = 37;
  for (const int64_t columns : {1, 3, 16, 33, 100}) {
    for (const int64_t gap : {0, 5}) {
      const int64_t stride = columns + gap;
      // Far into a batch, too: the counter of the last elements takes more than 32 bits.
      for (const int64_t first_row : {int64_t{0}, int64_t{1} << 36}) {
        const std::vector<float> before = test::RandomFloats(random, kRows * stride);
        const auto run = [&](int64_t begin, int64_t end, std::vector<float>* data) {
          HOTROW_ASSERT_OK(Dropout({}, {.data = data->data() + begin * stride,
                                        .rows = end - begin,
                                        .columns = columns,
                                        .stride = stride,
                                        .rate = 0.4f,
                                        .seed = 3,
                                        .step = 9,
                                        .layer = 1,
                                        .first_row = first_row + begin}));
        };
        std::vector<float> whole = before;
        run(0, kRows, &whole);
        for (const int64_t world_size : {2, 3, 8, 40}) {
          std::vector<float> slices = before;
          for (int64_t rank = 0; rank < world_size; ++rank) {
            run(kRows * rank / world_size, kRows * (rank + 1) / world_size, &slices);
          }
          ASSERT_EQ(test::Bits(slices), test::Bits(whole)) << columns << " columns, " << gap;
        }
        const DropoutArgs counter = {.rate = 0.4f, .seed = 3, .step = 9, .layer = 1};
        for (int64_t r = 0; r < kRows; ++r) {
          ASSERT_EQ(whole[static_cast<size_t>(r * stride)] != 0,
                    Kept(counter, (first_row + r) * columns));
        }
      }
    }
  }
}

TEST(DropoutTest, RateZeroAndEmptyShapesChangeNothing) {
  std::vector<float> data = {1, std::numeric_limits<float>::quiet_NaN()};
  const std::vector<uint32_t> before = test::Bits(data);
  HOTROW_EXPECT_OK(Dropout({}, {.data = data.data(), .rows = 1, .columns = 2, .stride = 2}));
  EXPECT_EQ(test::Bits(data), before);
  HOTROW_EXPECT_OK(Dropout({}, {.rows = 0, .columns = 2, .stride = 2, .rate = 0.5f}));
  HOTROW_EXPECT_OK(Dropout({}, {.rows = 2, .columns = 0, .stride = 0, .rate = 0.5f}));
}

TEST(DropoutTest, DroppedInfinityBecomesZero) {
  std::vector<float> data(64, std::numeric_limits<float>::infinity());
  HOTROW_ASSERT_OK(
      Dropout({}, {.data = data.data(), .rows = 1, .columns = 64, .stride = 64, .rate = 0.5f}));
  int zeros = 0;
  for (const float x : data) {
    EXPECT_FALSE(std::isnan(x));
    zeros += x == 0;
  }
  EXPECT_GT(zeros, 10);
}

TEST(DropoutTest, ErrorsNameTheField) {
  const auto code = absl::StatusCode::kInvalidArgument;
  float x = 1;
  const DropoutArgs good = {.data = &x, .rows = 1, .columns = 1, .stride = 1, .rate = 0.5f};
  const auto expect = [&](const auto& change, const char* field) {
    DropoutArgs args = good;
    change(args);
    EXPECT_THAT(Dropout({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  expect([](DropoutArgs& a) { a.rows = -1; }, "rows");
  expect([](DropoutArgs& a) { a.columns = -1; }, "columns");
  expect([](DropoutArgs& a) { a.stride = 0; }, "stride");
  expect([](DropoutArgs& a) { a.rate = 1; }, "rate");
  expect([](DropoutArgs& a) { a.rate = -0.1f; }, "rate");
  expect([](DropoutArgs& a) { a.rate = std::nanf(""); }, "rate");
  expect([](DropoutArgs& a) { a.layer = kMaxDropoutLayers; }, "layer");
  expect([](DropoutArgs& a) { a.first_row = -1; }, "first_row must be >= 0, got -1");
  expect([](DropoutArgs& a) { a.data = nullptr; }, "data");
  HOTROW_EXPECT_OK(Dropout({}, good));
}

// What the threads of a GPU do, one after the other.
TEST(DropoutTest, GroupsOfElementsMakeTheWhole) {
  for (const int64_t columns : {1, 3, 4, 7, 33}) {
    for (const int64_t rows : {1, 2, 9}) {
      for (const int64_t first_row : {0, 1, 5}) {
        for (const int64_t gap : {0, 2}) {
          SCOPED_TRACE(testing::Message() << columns << " columns, " << rows << " rows from "
                                          << first_row << ", gap " << gap);
          const auto size = static_cast<size_t>(rows * (columns + gap));
          std::vector<float> want(size, 3.0f);
          std::vector<float> got(size, 3.0f);
          DropoutArgs args = {.data = want.data(),
                              .rows = rows,
                              .columns = columns,
                              .stride = columns + gap,
                              .rate = 0.3f,
                              .seed = 5,
                              .step = 2,
                              .layer = 1,
                              .first_row = first_row};
          HOTROW_ASSERT_OK(Dropout({}, args));
          args.data = got.data();
          for (int64_t group = internal::DropoutFirstGroup(args);
               group < internal::DropoutEndGroup(args); ++group) {
            internal::DropoutGroup(args, internal::DropoutThreshold(args.rate), group);
          }
          EXPECT_EQ(test::Bits(got), test::Bits(want));
        }
      }
    }
  }
}

}  // namespace
}  // namespace hotrow
