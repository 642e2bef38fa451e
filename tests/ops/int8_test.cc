#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/exec_context.h"
#include "base/math.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/layers/cross_network.h"
#include "ops/layers/mlp.h"
#include "ops/products/dense_precision.h"
#include "ops/products/int8_gemm_impl.h"
#include "ops/products/int8_rows_impl.h"
#include "tests/ops/bf16_reference.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using internal::EncodeInt8Row;
using internal::Int8Row;
using test::Bits;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMost = std::numeric_limits<float>::max();

#define SKIP_WITHOUT_INT8()                             \
  if (!CheckDensePrecision(DensePrecision::kInt8).ok()) \
  GTEST_SKIP() << "this processor has no VNNI, or is kept from it"

TEST(Int8Test, AProcessorWithoutItIsRefusedWithFlagReasonAndRemedy) {
  HOTROW_EXPECT_OK(internal::CheckInt8(true, true, "oneDNN 2.6.3 avx512_core_vnni", ""));
  for (const bool onednn : {false, true}) {
    EXPECT_THAT(
        internal::CheckInt8(onednn, !onednn, "oneDNN 2.6.3 avx2", "--precision="),
        test::StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--precision=int8"), HasSubstr("AVX-512 VNNI"),
                             HasSubstr("oneDNN 2.6.3 avx2"), HasSubstr("--precision=fp32"))));
  }
  EXPECT_THAT(CheckDensePrecision(DensePrecision::kInt8, Device::kCuda),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("on the CPU")));
}

// --- rows ---

struct Encoded {
  Int8Row row;
  std::vector<uint8_t> codes;
};
Encoded Encode(const std::vector<float>& x) {
  const auto columns = static_cast<int64_t>(x.size());
  Encoded out = {.row = {}, .codes = std::vector<uint8_t>(RoundUp(columns, 64), 99)};
  out.row = EncodeInt8Row(x.data(), columns, std::ssize(out.codes), out.codes.data());
  return out;
}

TEST(Int8Test, ARowIsCodedFromItsLeastToItsLargestNumber) {
  SKIP_WITHOUT_INT8();
  const Encoded both = Encode({-1, 0, 1, 2});
  EXPECT_FLOAT_EQ(both.row.scale, 3 / 255.0f);
  EXPECT_EQ(both.row.zero, 85);
  EXPECT_THAT(std::span(both.codes).first(4), ::testing::ElementsAre(0, 85, 170, 255));
  // 0 is in the range, so that ReLU's zeros stay what they are.
  const Encoded above = Encode({2, 1.002f, 0.004f, 2});
  EXPECT_FLOAT_EQ(above.row.scale, 2 / 255.0f);
  EXPECT_EQ(above.row.zero, 0);
  EXPECT_THAT(std::span(above.codes).first(4), ::testing::ElementsAre(255, 128, 1, 255));
  const Encoded below = Encode({-5});
  EXPECT_EQ(below.row.zero, 255);
  EXPECT_EQ(below.codes[0], 0);
}

TEST(Int8Test, CodesAreWithinHalfAScale) {
  SKIP_WITHOUT_INT8();
  RandomStream random(3, RandomPurpose::kTest);
  std::vector<std::vector<float>> rows = {{kMost, -kMost, 1e30f}, {0x1p-118f, -0x1p-120f}};
  for (const int64_t columns : {1, 2, 15, 16, 17, 63, 64, 65, 130}) {
    for (const float scale : {1e-30f, 1.0f, 1e30f}) {
      rows.push_back(test::RandomFloats(random, columns, scale));
      rows.push_back(rows.back());
      for (float& x : rows.back()) x = std::abs(x);
    }
  }
  for (const std::vector<float>& x : rows) {
    const Encoded encoded = Encode(x);
    const double scale = encoded.row.scale;
    ASSERT_TRUE(scale > 0 && std::isfinite(scale));
    ASSERT_GE(encoded.row.zero, 0);
    ASSERT_LE(encoded.row.zero, 255);
    for (size_t k = 0; k < x.size(); ++k) {
      const double read = scale * (encoded.codes[k] - encoded.row.zero);
      // Near 255 the float product that is rounded errs by 2^-15.
      EXPECT_LE(std::abs(read - x[k]), scale * (0.5 + 0x1p-14)) << x.size() << " " << k;
    }
  }
}

TEST(Int8Test, RowsWithoutACodeAreZeroOrNotANumber) {
  SKIP_WITHOUT_INT8();
  for (const std::vector<float>& x : {std::vector<float>(70), {-0.0f}, {1e-40f, -1e-39f}}) {
    const Encoded encoded = Encode(x);
    EXPECT_EQ(encoded.row.scale, 0);
    EXPECT_EQ(encoded.row.zero, 0);
    EXPECT_EQ(encoded.codes, std::vector<uint8_t>(encoded.codes.size()));
  }
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
    for (const size_t at : {size_t{0}, size_t{20}, size_t{69}}) {
      std::vector<float> x(70, 1.0f);
      x[at] = bad;
      EXPECT_TRUE(std::isnan(Encode(x).row.scale)) << bad << " " << at;
    }
  }
}

// --- a linear map ---

std::unique_ptr<Mlp> NewMlp(MlpOptions options, DensePrecision precision = DensePrecision::kInt8) {
  options.precision = precision;
  auto mlp = Mlp::Create(options);
  HOTROW_EXPECT_OK(mlp);
  return *std::move(mlp);
}

std::vector<float> Outputs(DenseNetwork& net, const std::vector<float>& parameters,
                           std::span<const float> x, int64_t in, int64_t out,
                           const ExecContext& ctx = {}, int64_t number = 0) {
  const int64_t rows = std::ssize(x) / in;
  std::vector<float> y(static_cast<size_t>(rows * out), 77);
  HOTROW_EXPECT_OK(net.Forward(ctx, {.parameters = parameters.data(),
                                     .x = x.data(),
                                     .x_stride = in,
                                     .batch_size = rows,
                                     .y = y.data(),
                                     .y_stride = out,
                                     .parameters_number = number}));
  return y;
}

std::vector<float> RandomParameters(const Mlp& mlp, uint64_t seed) {
  std::vector<float> out(static_cast<size_t>(mlp.num_parameters()));
  mlp.InitParameters(seed, out);
  return out;
}

// The codes of an output's weights, as int8_gemm_impl.h says.
struct WeightCodes {
  float scale = 0;
  std::vector<int32_t> codes;
};
WeightCodes CodesOf(std::span<const float> w) {
  WeightCodes out;
  float most = 0;
  for (const float x : w) most = std::max(most, std::abs(x));
  out.scale = most / 127;
  const float inverse = 1 / out.scale;
  for (const float x : w) out.codes.push_back(static_cast<int32_t>(std::nearbyint(x * inverse)));
  return out;
}

TEST(Int8Test, AMapHasTheBitsOfItsCodesAndIsNearADoubleOne) {
  SKIP_WITHOUT_INT8();
  const std::vector<std::vector<int32_t>> shapes = {{64, 16},   {65, 17},   {70, 130}, {128, 64},
                                                    {479, 100}, {1100, 70}, {1, 1},    {1, 300},
                                                    {13, 129},  {63, 16},   {200, 15}, {300, 1}};
  for (const std::vector<int32_t>& sizes : shapes) {
    for (const int64_t batch : {1, 9, 130}) {
      SCOPED_TRACE(testing::Message() << sizes[0] << " " << sizes[1] << " " << batch);
      const int64_t in = sizes[0];
      const int64_t out = sizes[1];
      const auto mlp = NewMlp({.sizes = sizes, .max_batch_size = batch});
      const std::vector<float> parameters = RandomParameters(*mlp, 5);
      const std::span<const float> w = std::span(parameters).subspan(mlp->weight_offset(0));
      const std::span<const float> bias = std::span(parameters).subspan(mlp->bias_offset(0));
      RandomStream random(batch, RandomPurpose::kTest);
      const std::vector<float> x = test::RandomFloats(random, batch * in);
      const std::vector<float> y = Outputs(*mlp, parameters, x, in, out);
      const bool coded = in > internal::kFewInputs && out > internal::kFewOutputs;
      std::vector<WeightCodes> weights;
      for (int64_t o = 0; o < out; ++o) weights.push_back(CodesOf(w.subspan(o * in, in)));
      for (int64_t b = 0; b < batch; ++b) {
        const std::span<const float> row = std::span(x).subspan(b * in, in);
        const Encoded encoded = Encode({row.begin(), row.end()});
        const double s = coded ? encoded.row.scale : 0;
        for (int64_t o = 0; o < out; ++o) {
          const WeightCodes& column = weights[static_cast<size_t>(o)];
          const double c = coded ? column.scale : 0;
          double exact = bias[o];
          double magnitude = std::abs(bias[o]);
          double lost = 0;
          int64_t sum = 0;
          for (int64_t k = 0; k < in; ++k) {
            const double xk = row[k];
            const double wk = w[o * in + k];
            exact += xk * wk;
            magnitude += std::abs(xk * wk);
            lost += std::abs(xk) * c / 2 + std::abs(wk) * s / 2 + s * c / 4;
            sum += (encoded.codes[static_cast<size_t>(k)] - encoded.row.zero) *
                   column.codes[static_cast<size_t>(k)];
          }
          const float got = y[static_cast<size_t>(b * out + o)];
          if (coded) {
            const float product = static_cast<float>(sum) * (encoded.row.scale * column.scale);
            EXPECT_EQ(got, product + bias[o]);
          }
          const double roundings = coded ? 5 : static_cast<double>(in) + 2;
          EXPECT_NEAR(got, exact, lost * 1.001 + test::Gamma(roundings) * (magnitude + lost));
        }
      }
    }
  }
}

TEST(Int8Test, OnlyWhatHoldsSomethingThatIsNotFiniteIsNotANumber) {
  SKIP_WITHOUT_INT8();
  constexpr int64_t kIn = 100;
  constexpr int64_t kOut = 40;
  for (const bool relu : {false, true}) {
    const auto mlp = NewMlp({.sizes = {kIn, kOut}, .relu_on_output = relu, .max_batch_size = 4});
    std::vector<float> parameters = RandomParameters(*mlp, 6);
    RandomStream random(6, RandomPurpose::kTest);
    std::vector<float> x = test::RandomFloats(random, 4 * kIn);
    std::fill_n(x.begin(), kIn, 0.0f);  // row 0
    x[1 * kIn + 99] = kNan;
    x[2 * kIn] = -kInfinity;
    std::fill_n(x.begin() + 3 * kIn, kIn, 0.0f);
    x[3 * kIn + 7] = kMost;
    parameters[static_cast<size_t>(mlp->weight_offset(0) + 3 * kIn + 5)] = kInfinity;
    std::fill_n(parameters.begin() + mlp->weight_offset(0) + 4 * kIn, kIn, 0.0f);
    parameters[static_cast<size_t>(mlp->weight_offset(0) + 5 * kIn + 7)] = 1e-3f;
    const std::vector<float> y = Outputs(*mlp, parameters, x, kIn, kOut);
    for (int64_t b = 0; b < 4; ++b) {
      for (int64_t o = 0; o < kOut; ++o) {
        const float got = y[static_cast<size_t>(b * kOut + o)];
        EXPECT_EQ(std::isnan(got), b == 1 || b == 2 || o == 3) << b << " " << o << ": " << got;
        const float bias = parameters[static_cast<size_t>(mlp->bias_offset(0) + o)];
        if (o != 3 && (b == 0 || (o == 4 && b == 3))) {
          EXPECT_EQ(got, relu ? std::max(bias, 0.0f) : bias) << b << " " << o;
        }
        if (b == 3 && o != 3) {
          EXPECT_TRUE(std::isfinite(got)) << o;
        }
      }
    }
  }
}

TEST(Int8Test, SumsThatMightNotFitAreRefused) {
  SKIP_WITHOUT_INT8();
  const MlpOptions options = {
      .sizes = {65'537, 16}, .max_batch_size = 1, .precision = DensePrecision::kInt8};
  EXPECT_THAT(Mlp::Create(options),
              test::StatusIs(absl::StatusCode::kInvalidArgument,
                             AllOf(HasSubstr("65537 inputs"), HasSubstr("65536"))));
  // All of them at their ends: 2^16 codes of 255 and 127.
  const auto mlp = NewMlp({.sizes = {65'536, 16}, .max_batch_size = 1});
  std::vector<float> parameters(static_cast<size_t>(mlp->num_parameters()));
  std::fill_n(parameters.begin() + mlp->weight_offset(0), 65'536 * 16, -1.0f);
  const std::vector<float> x(65'536, 2.0f);
  for (const float y : Outputs(*mlp, parameters, x, 65'536, 16)) EXPECT_NEAR(y, -131'072, 0.1);
}

// --- networks ---

TEST(Int8Test, ARowHasTheSameBitsInEveryBatchAndOnAnyNumberOfThreads) {
  SKIP_WITHOUT_INT8();
  constexpr int64_t kIn = 20;
  constexpr int64_t kOut = 3;
  constexpr int64_t kBatch = 300;
  const auto mlp = NewMlp({.sizes = {kIn, 200, 70, 9, 130, kOut}, .max_batch_size = kBatch});
  const std::vector<float> parameters = RandomParameters(*mlp, 7);
  RandomStream random(7, RandomPurpose::kTest);
  const std::vector<float> x = test::RandomFloats(random, kBatch * kIn);
  const std::vector<float> want = Outputs(*mlp, parameters, x, kIn, kOut);
  for (const int64_t piece : {1, 8, 9, 127, 200}) {
    std::vector<float> got;
    for (int64_t begin = 0; begin < kBatch; begin += piece) {
      const int64_t rows = std::min(piece, kBatch - begin);
      const std::vector<float> y = Outputs(
          *mlp, parameters, std::span(x).subspan(begin * kIn, rows * kIn), kIn, kOut, {}, piece);
      got.insert(got.end(), y.begin(), y.end());
    }
    EXPECT_EQ(Bits(got), Bits(want)) << piece;
  }
  ThreadPool pool(3);
  EXPECT_EQ(Bits(Outputs(*mlp, parameters, x, kIn, kOut, test::OnPool(&pool))), Bits(want));

  // Near fp32, and not the same.
  const auto fp32 = NewMlp({.sizes = {kIn, 200, 70, 9, 130, kOut}, .max_batch_size = kBatch},
                           DensePrecision::kFp32);
  const std::vector<float> exact = Outputs(*fp32, parameters, x, kIn, kOut);
  const double error = test::RelativeError(want, std::vector<double>(exact.begin(), exact.end()));
  EXPECT_LT(error, 0.03);
  EXPECT_GT(error, 1e-6);
}

TEST(Int8Test, CodesAreMadeOnceForEachNumberOfParameters) {
  SKIP_WITHOUT_INT8();
  for (const std::vector<int32_t>& sizes : {std::vector<int32_t>{64, 16}, {5, 16}}) {
    const auto mlp = NewMlp({.sizes = sizes, .max_batch_size = 2});
    std::vector<float> parameters = RandomParameters(*mlp, 8);
    const std::vector<float> x(static_cast<size_t>(2 * sizes[0]), 1.0f);
    const auto outputs = [&](int64_t number) {
      return Outputs(*mlp, parameters, x, sizes[0], sizes[1], {}, number);
    };
    const std::vector<float> before = outputs(1);
    parameters[0] += 1;  // a caller must not
    EXPECT_EQ(outputs(1), before);
    const std::vector<float> after = outputs(2);
    EXPECT_NE(after, before);
    EXPECT_EQ(outputs(0), after);
  }
}

TEST(Int8Test, TrainingIsRefused) {
  SKIP_WITHOUT_INT8();
  const auto mlp = NewMlp({.sizes = {64, 16}, .max_batch_size = 1});
  const auto cross = *CrossNetwork::Create(
      {.width = 64, .num_layers = 1, .max_batch_size = 1, .precision = DensePrecision::kInt8});
  const std::vector<float> parameters(64 * 66), x(64);
  std::vector<float> y(64);
  for (DenseNetwork* const net :
       {static_cast<DenseNetwork*>(mlp.get()), static_cast<DenseNetwork*>(cross.get())}) {
    EXPECT_THAT(net->Forward({}, {.parameters = parameters.data(),
                                  .x = x.data(),
                                  .x_stride = 64,
                                  .batch_size = 1,
                                  .y = y.data(),
                                  .y_stride = 64,
                                  .training = true}),
                test::StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("training"), HasSubstr("int8"))));
    EXPECT_THAT(net->Backward({}, {.parameters = parameters.data()}),
                test::StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Backward")));
  }
}

// --- cross layers ---

TEST(Int8Test, CrossLayersStayNearFp32WithTheSameBitsInEveryBatch) {
  SKIP_WITHOUT_INT8();
  constexpr int64_t kWidth = 100;
  constexpr int64_t kBatch = 150;
  RandomStream random(9, RandomPurpose::kTest);
  const std::vector<float> x = test::RandomFloats(random, kBatch * kWidth);
  for (const int32_t rank : {0, 5, 20, 64}) {
    SCOPED_TRACE(rank);
    CrossNetworkOptions options = {
        .width = kWidth, .num_layers = 3, .rank = rank, .max_batch_size = kBatch};
    const auto fp32 = *CrossNetwork::Create(options);
    options.precision = DensePrecision::kInt8;
    const auto int8 = *CrossNetwork::Create(options);
    std::vector<float> parameters(static_cast<size_t>(fp32->num_parameters()));
    fp32->InitParameters(3, parameters);
    for (int32_t l = 0; l < 3; ++l) {  // they begin at zero
      std::fill_n(parameters.begin() + fp32->bias_offset(l), kWidth, 0.1f);
    }
    const std::vector<float> want = Outputs(*fp32, parameters, x, kWidth, kWidth);
    const std::vector<float> got = Outputs(*int8, parameters, x, kWidth, kWidth);
    const double error = test::RelativeError(got, std::vector<double>(want.begin(), want.end()));
    EXPECT_LT(error, 0.03);
    if (rank != 5) {  // both of whose maps are narrow
      EXPECT_GT(error, 1e-6);
    }
    std::vector<float> pieces;
    for (int64_t b = 0; b < kBatch; ++b) {
      const std::vector<float> y = Outputs(
          *int8, parameters, std::span(x).subspan(b * kWidth, kWidth), kWidth, kWidth, {}, 1);
      pieces.insert(pieces.end(), y.begin(), y.end());
    }
    EXPECT_EQ(Bits(pieces), Bits(got));
    ThreadPool pool(2);
    EXPECT_EQ(Bits(Outputs(*int8, parameters, x, kWidth, kWidth, test::OnPool(&pool))), Bits(got));
  }
  CrossNetworkOptions vectors = {
      .kind = CrossKind::kVector, .width = kWidth, .num_layers = 2, .max_batch_size = kBatch};
  const auto fp32 = *CrossNetwork::Create(vectors);
  vectors.precision = DensePrecision::kInt8;
  const auto int8 = *CrossNetwork::Create(vectors);
  std::vector<float> parameters(static_cast<size_t>(fp32->num_parameters()));
  fp32->InitParameters(3, parameters);
  EXPECT_EQ(Bits(Outputs(*int8, parameters, x, kWidth, kWidth)),
            Bits(Outputs(*fp32, parameters, x, kWidth, kWidth)));
}

}  // namespace
}  // namespace hotrow
