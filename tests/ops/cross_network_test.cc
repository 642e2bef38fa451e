#include "ops/layers/cross_network.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "tests/ops/cross_reference.h"
#include "tests/ops/dense_network_passes.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

using Problem = test::CrossProblem;
using Result = test::CrossResult;
using test::kCrossUnused;
using test::RandomCrossProblem;

std::unique_ptr<CrossNetwork> NewNetwork(const CrossNetworkOptions& options) {
  auto net = CrossNetwork::Create(options);
  HOTROW_EXPECT_OK(net);
  return *std::move(net);
}

CrossNetwork::ForwardArgs ForwardOf(const Problem& p, std::vector<float>& y) {
  return {.parameters = p.parameters.data(),
          .x = p.x.data(),
          .x_stride = p.stride,
          .batch_size = p.batch_size,
          .y = y.data(),
          .y_stride = p.stride,
          .training = true};
}

// Without outputs.
CrossNetwork::BackwardArgs BackwardOf(const Problem& p, std::vector<float>& dy) {
  return {.parameters = p.parameters.data(),
          .dy = dy.data(),
          .dy_stride = p.stride,
          .dx_stride = p.stride};
}

Result RunNetwork(const ExecContext& ctx, CrossNetwork& net, const Problem& p) {
  Result r;
  r.y.assign(p.x.size(), kCrossUnused);
  r.dx.assign(p.x.size(), kCrossUnused);
  r.parameter_gradients.assign(p.parameters.size(), kCrossUnused);
  std::vector<float> dy = p.dy;
  HOTROW_EXPECT_OK(net.Forward(ctx, ForwardOf(p, r.y)));
  HOTROW_EXPECT_OK(net.Backward(ctx, {.parameters = p.parameters.data(),
                                      .dy = dy.data(),
                                      .dy_stride = p.stride,
                                      .dx = r.dx.data(),
                                      .dx_stride = p.stride,
                                      .parameter_gradients = r.parameter_gradients.data()}));
  return r;
}

// --- tests ---

TEST(CrossNetworkTest, HandWorkedVectorLayers) {
  // x0 = (1, 2), w0 = (3, 4), b0 = (10, 20): x0 . w0 = 11, x1 = (11, 22) + (10, 20) + (1, 2) =
  // (22, 44). w1 = (1, -1), b1 = (0, 1): x1 . w1 = -22, x2 = (-22, -44) + (0, 1) + (22, 44) = (0,
  // 1).
  const auto net =
      NewNetwork({.kind = CrossKind::kVector, .width = 2, .num_layers = 2, .max_batch_size = 1});
  std::vector<float> w(static_cast<size_t>(net->num_parameters()));
  const auto set = [&](int64_t offset, float first, float second) {
    w[static_cast<size_t>(offset)] = first;
    w[static_cast<size_t>(offset) + 1] = second;
  };
  set(net->weight_offset(0), 3, 4);
  set(net->bias_offset(0), 10, 20);
  set(net->weight_offset(1), 1, -1);
  set(net->bias_offset(1), 0, 1);
  const test::SmallPass pass = test::RunSmallPass(*net, w, {1, 2}, {1, 10}, 1);
  EXPECT_EQ(pass.y, (std::vector<float>{0, 1}));

  // g2 = (1, 10): ds1 = g2 . x0 = 21, dw1 = 21 x1 = (462, 924), db1 = g2, dx0 = -22 g2 =
  // (-22, -220), g1 = g2 + 21 w1 = (22, -11). ds0 = g1 . x0 = 0, dw0 = 0, db0 = g1,
  // dx0 += 11 g1 = (220, -341), and g0 = g1: dx = (242, -352).
  EXPECT_EQ(pass.dx, (std::vector<float>{242, -352}));
  EXPECT_EQ(pass.Gradients(net->weight_offset(1), 2), (std::vector<float>{462, 924}));
  EXPECT_EQ(pass.Gradients(net->bias_offset(1), 2), (std::vector<float>{1, 10}));
  EXPECT_EQ(pass.Gradients(net->weight_offset(0), 2), (std::vector<float>{0, 0}));
  EXPECT_EQ(pass.Gradients(net->bias_offset(0), 2), (std::vector<float>{22, -11}));
  EXPECT_EQ(pass.parameter_gradients[2], 0.0f);  // padding
}

TEST(CrossNetworkTest, HandWorkedMatrixLayerAndItsFactors) {
  // x0 = (1, 2), W = [[1, 2], [3, 6]] = (1, 3)^T (1, 2), b = (1, -1): W x0 + b = (6, 14),
  // x1 = (6, 28) + (1, 2) = (7, 30). With g = (1, 10): dt = (1, 20), dW = dt x0^T =
  // [[1, 2], [20, 40]], db = dt, dx = g o t + g + W^T dt = (6, 140) + (1, 10) + (61, 122).
  for (const int32_t rank : {0, 1}) {
    const auto net = NewNetwork({.width = 2, .num_layers = 1, .rank = rank, .max_batch_size = 1});
    std::vector<float> w(static_cast<size_t>(net->num_parameters()));
    const auto set = [&](int64_t offset, const std::vector<float>& values) {
      std::copy(values.begin(), values.end(), w.begin() + offset);
    };
    if (rank == 0) {
      set(net->weight_offset(0), {1, 2, 3, 6});
    } else {
      set(net->weight_offset(0), {1, 2});
      set(net->u_offset(0), {1, 3});
    }
    set(net->bias_offset(0), {1, -1});
    const test::SmallPass pass = test::RunSmallPass(*net, w, {1, 2}, {1, 10}, 1);
    EXPECT_EQ(pass.y, (std::vector<float>{7, 30}));
    EXPECT_EQ(pass.dx, (std::vector<float>{68, 272}));
    EXPECT_EQ(pass.Gradients(net->bias_offset(0), 2), (std::vector<float>{1, 20}));
    if (rank == 0) {
      EXPECT_EQ(pass.Gradients(net->weight_offset(0), 4), (std::vector<float>{1, 2, 20, 40}));
    } else {
      // h = V x0 = 5, dU = dt h, dh = U^T dt = 61, dV = dh x0^T.
      EXPECT_EQ(pass.Gradients(net->u_offset(0), 2), (std::vector<float>{5, 100}));
      EXPECT_EQ(pass.Gradients(net->weight_offset(0), 2), (std::vector<float>{61, 122}));
    }
  }
}

TEST(CrossNetworkTest, MatchesTheFormulasAndTheirFiniteDifferences) {
  struct Case {
    CrossKind kind;
    int32_t width;
    int32_t num_layers;
    int32_t rank;
  };
  const std::vector<Case> cases = {{CrossKind::kVector, 1, 1, 0},  {CrossKind::kVector, 1, 3, 0},
                                   {CrossKind::kVector, 7, 2, 0},  {CrossKind::kVector, 17, 3, 0},
                                   {CrossKind::kVector, 16, 1, 0}, {CrossKind::kMatrix, 1, 1, 0},
                                   {CrossKind::kMatrix, 1, 2, 1},  {CrossKind::kMatrix, 7, 3, 0},
                                   {CrossKind::kMatrix, 13, 2, 3}, {CrossKind::kMatrix, 16, 1, 16},
                                   {CrossKind::kMatrix, 17, 2, 0}, {CrossKind::kMatrix, 9, 3, 1}};
  for (const uint64_t seed : test::Seeds(2)) {
    for (const Case& c : cases) {
      for (const int64_t batch_size : {1, 6}) {
        SCOPED_TRACE(testing::Message()
                     << "HOTROW_TEST_SEED=" << seed << " kind=" << static_cast<int>(c.kind)
                     << " width=" << c.width << " layers=" << c.num_layers << " rank=" << c.rank);
        const CrossNetworkOptions options = {.kind = c.kind,
                                             .width = c.width,
                                             .num_layers = c.num_layers,
                                             .rank = c.rank,
                                             .max_batch_size = batch_size};
        const auto net = NewNetwork(options);
        const Problem p = RandomCrossProblem(*net, options, batch_size, seed);
        const Result r = RunNetwork({}, *net, p);
        ASSERT_NO_FATAL_FAILURE(test::ExpectCrossForward(*net, p, r));
        ASSERT_NO_FATAL_FAILURE(test::ExpectCrossBackward(*net, p, r));
      }
    }
  }
}

// Batches of more than one chunk, with W^T read instead of W, and blocks of several products:
// gradients of the whole batch are the sum over single samples.
TEST(CrossNetworkTest, ALargeBatchIsTheSumOfItsSamples) {
  for (const int32_t rank : {0, 20}) {
    for (const CrossKind kind : {CrossKind::kVector, CrossKind::kMatrix}) {
      if (kind == CrossKind::kVector && rank > 0) continue;
      const CrossNetworkOptions options = {
          .kind = kind, .width = 67, .num_layers = 2, .rank = rank, .max_batch_size = 300};
      const auto net = NewNetwork(options);
      const Problem p = RandomCrossProblem(*net, options, 300, 5);
      ThreadPool pool(4);
      const Result all = RunNetwork(test::OnPool(&pool), *net, p);
      ASSERT_NO_FATAL_FAILURE(test::ExpectCrossForward(*net, p, all));
      std::vector<double> sum(p.parameters.size());
      std::vector<double> magnitude(p.parameters.size());
      for (int64_t b = 0; b < 300; ++b) {
        Problem one = p;
        one.batch_size = 1;
        one.x.assign(p.x.begin() + b * p.stride, p.x.begin() + (b + 1) * p.stride);
        one.dy.assign(p.dy.begin() + b * p.stride, p.dy.begin() + (b + 1) * p.stride);
        const Result r = RunNetwork({}, *net, one);
        for (size_t i = 0; i < sum.size(); ++i) {
          sum[i] += r.parameter_gradients[i];
          magnitude[i] += std::abs(r.parameter_gradients[i]);
        }
        for (int64_t i = 0; i < 67; ++i) {
          const float want = r.dx[static_cast<size_t>(i)];
          ASSERT_NEAR(all.dx[static_cast<size_t>(b * p.stride + i)], want,
                      1e-4f * (1 + std::abs(want)));
        }
      }
      for (size_t i = 0; i < sum.size(); ++i) {
        ASSERT_NEAR(all.parameter_gradients[i], sum[i], 1e-5 * (1 + magnitude[i])) << i;
      }
    }
  }
}

TEST(CrossNetworkTest, EqualBitsOnAnyPool) {
  for (const CrossNetworkOptions& options :
       {CrossNetworkOptions{
            .kind = CrossKind::kVector, .width = 45, .num_layers = 3, .max_batch_size = 900},
        CrossNetworkOptions{.width = 45, .num_layers = 3, .max_batch_size = 900},
        CrossNetworkOptions{.width = 130, .num_layers = 2, .rank = 9, .max_batch_size = 900}}) {
    const auto net = NewNetwork(options);
    const Problem p = RandomCrossProblem(*net, options, 900, 2);
    const Result alone = RunNetwork({}, *net, p);
    for (const int threads : {1, 2, 4}) {
      ThreadPool pool(threads);
      EXPECT_TRUE(RunNetwork(test::OnPool(&pool), *net, p) == alone) << threads << " threads";
    }
  }
}

TEST(CrossNetworkTest, BatchSizesMayChangeBetweenCalls) {
  const CrossNetworkOptions options = {
      .width = 21, .num_layers = 2, .rank = 4, .max_batch_size = 400};
  const auto net = NewNetwork(options);
  for (const int64_t batch_size : {400, 7, 1, 0, 129, 400, 63, 64}) {
    SCOPED_TRACE(batch_size);
    const Problem p = RandomCrossProblem(*net, options, batch_size, 40);
    const auto fresh = NewNetwork(options);
    EXPECT_TRUE(RunNetwork({}, *net, p) == RunNetwork({}, *fresh, p));
  }
}

TEST(CrossNetworkTest, GradientsOfParametersDoNotNeedThoseOfTheInput) {
  for (const int32_t rank : {0, 3}) {
    for (const CrossKind kind : {CrossKind::kVector, CrossKind::kMatrix}) {
      const CrossNetworkOptions options = {.kind = kind,
                                           .width = 11,
                                           .num_layers = 2,
                                           .rank = kind == CrossKind::kVector ? 0 : rank,
                                           .max_batch_size = 9};
      const auto net = NewNetwork(options);
      const Problem p = RandomCrossProblem(*net, options, 9, 3);
      const Result want = RunNetwork({}, *net, p);
      std::vector<float> y(p.x.size());
      std::vector<float> dy = p.dy;
      std::vector<float> dw(p.parameters.size(), kCrossUnused);
      HOTROW_ASSERT_OK(net->Forward({}, ForwardOf(p, y)));
      HOTROW_ASSERT_OK(net->Backward({}, {.parameters = p.parameters.data(),
                                          .dy = dy.data(),
                                          .dy_stride = p.stride,
                                          .parameter_gradients = dw.data()}));
      EXPECT_EQ(test::Bits(dw), test::Bits(want.parameter_gradients));
    }
  }
}

TEST(CrossNetworkTest, BackwardNeedsATrainingForwardJustBefore) {
  const CrossNetworkOptions options = {.width = 3, .num_layers = 1, .max_batch_size = 4};
  const auto net = NewNetwork(options);
  const Problem p = RandomCrossProblem(*net, options, 4, 1);
  std::vector<float> dw(p.parameters.size());
  std::vector<float> y(p.x.size());
  const auto backward = [&] {
    std::vector<float> dy = p.dy;
    return net->Backward({}, {.parameters = p.parameters.data(),
                              .dy = dy.data(),
                              .dy_stride = p.stride,
                              .parameter_gradients = dw.data()});
  };
  const auto precondition =
      test::StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("training"));
  EXPECT_THAT(backward(), precondition);
  HOTROW_ASSERT_OK(net->Forward({}, ForwardOf(p, y)));
  HOTROW_EXPECT_OK(backward());
  EXPECT_THAT(backward(), precondition);  // what was kept is used up
  CrossNetwork::ForwardArgs evaluation = ForwardOf(p, y);
  evaluation.training = false;
  HOTROW_ASSERT_OK(net->Forward({}, evaluation));
  EXPECT_THAT(backward(), precondition);
}

TEST(CrossNetworkTest, ReportsTheGradientsOfEachLayerOnceFinalTheLastLayerFirst) {
  for (CrossNetworkOptions options :
       {CrossNetworkOptions{.kind = CrossKind::kVector}, CrossNetworkOptions{.rank = 0},
        CrossNetworkOptions{.rank = 70}}) {
    options.width = 150;  // 3 blocks of a matrix
    options.num_layers = 3;
    options.max_batch_size = 140;
    const auto net = NewNetwork(options);
    for (const int threads : {1, 4}) {
      ThreadPool pool(threads);
      const ExecContext ctx = test::OnPool(&pool);
      for (const int64_t batch_size : {0, 140}) {
        SCOPED_TRACE(testing::Message() << "rank " << options.rank << ", " << threads
                                        << " threads, batch of " << batch_size);
        const Problem p = RandomCrossProblem(*net, options, batch_size, 4);
        const Result want = RunNetwork({}, *net, p);
        std::vector<float> y(p.x.size());
        std::vector<float> dy = p.dy;
        test::ExpectLayersAreReported(ctx, *net, ForwardOf(p, y), BackwardOf(p, dy), want);
        dy = p.dy;
        test::ExpectAFailedReportEndsBackward(ctx, *net, ForwardOf(p, y), BackwardOf(p, dy), 1);
      }
    }
  }
}

TEST(CrossNetworkTest, TheHalvesOfBackwardMakeTheWholeAndTheSecondDoesNotReadDy) {
  for (const CrossNetworkOptions& options :
       {CrossNetworkOptions{
            .kind = CrossKind::kVector, .width = 20, .num_layers = 2, .max_batch_size = 150},
        CrossNetworkOptions{.width = 20, .num_layers = 2, .max_batch_size = 150},
        CrossNetworkOptions{.width = 20, .num_layers = 2, .rank = 3, .max_batch_size = 150}}) {
    const auto net = NewNetwork(options);
    const Problem p = RandomCrossProblem(*net, options, 150, 2);
    const Result want = RunNetwork({}, *net, p);
    Result got = want;
    std::fill(got.dx.begin(), got.dx.end(), kCrossUnused);
    std::fill(got.parameter_gradients.begin(), got.parameter_gradients.end(), kCrossUnused);
    std::vector<float> dy = p.dy;
    const CrossNetwork::BackwardArgs args = {.parameters = p.parameters.data(),
                                             .dy = dy.data(),
                                             .dy_stride = p.stride,
                                             .dx = got.dx.data(),
                                             .dx_stride = p.stride,
                                             .parameter_gradients = got.parameter_gradients.data()};
    HOTROW_ASSERT_OK(net->Forward({}, ForwardOf(p, got.y)));
    const auto precondition =
        test::StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("BackwardInput"));
    EXPECT_THAT(net->BackwardParameters({}, args), precondition);
    HOTROW_ASSERT_OK(net->BackwardInput({}, args));
    EXPECT_EQ(test::Bits(got.dx), test::Bits(want.dx));
    std::fill(dy.begin(), dy.end(), std::nanf(""));
    std::fill(got.dx.begin(), got.dx.end(), std::nanf(""));
    HOTROW_ASSERT_OK(net->BackwardParameters({}, args));
    EXPECT_EQ(test::Bits(got.parameter_gradients), test::Bits(want.parameter_gradients));
    EXPECT_THAT(net->BackwardParameters({}, args), precondition);
  }
}

TEST(CrossNetworkTest, EmptyBatchGivesZeroGradientsAndNeedsNoPointers) {
  for (const CrossKind kind : {CrossKind::kVector, CrossKind::kMatrix}) {
    const auto net = NewNetwork({.kind = kind, .width = 3, .num_layers = 2, .max_batch_size = 4});
    std::vector<float> dw(static_cast<size_t>(net->num_parameters()), kCrossUnused);
    HOTROW_ASSERT_OK(net->Forward({}, {.batch_size = 0, .training = true}));
    HOTROW_ASSERT_OK(net->Backward({}, {.parameter_gradients = dw.data()}));
    EXPECT_EQ(dw, std::vector<float>(dw.size(), 0.0f));
  }
}

TEST(CrossNetworkTest, BlocksOfParametersAreAlignedAndDoNotOverlap) {
  const auto vector =
      NewNetwork({.kind = CrossKind::kVector, .width = 17, .num_layers = 2, .max_batch_size = 1});
  EXPECT_EQ(vector->weight_offset(0), 0);
  EXPECT_EQ(vector->bias_offset(0), 32);
  EXPECT_EQ(vector->weight_offset(1), 64);
  EXPECT_EQ(vector->num_parameters(), 128);
  EXPECT_EQ(vector->width(), 17);
  EXPECT_EQ(vector->num_layers(), 2);
  const auto full = NewNetwork({.width = 5, .num_layers = 2, .max_batch_size = 1});
  EXPECT_EQ(full->bias_offset(0), 32);  // 25
  EXPECT_EQ(full->weight_offset(1), 48);
  EXPECT_EQ(full->num_parameters(), 96);
  const auto thin = NewNetwork({.width = 5, .num_layers = 1, .rank = 4, .max_batch_size = 1});
  EXPECT_EQ(thin->weight_offset(0), 0);
  EXPECT_EQ(thin->u_offset(0), 32);  // 20
  EXPECT_EQ(thin->bias_offset(0), 64);
  EXPECT_EQ(thin->num_parameters(), 80);
  // V^T [5, 16], U^T [4, 16], t, h, dh and the sums of b: one row each.
  EXPECT_EQ(thin->activation_bytes(), 4 * (5 * 16 + 4 * 16 + 16 + 16 + 16 + 16));
}

TEST(CrossNetworkTest, InitialParametersAreNormalWithTheDocumentedScaleAndCounters) {
  const auto net = NewNetwork(
      {.width = 300, .num_layers = 2, .rank = 100, .first_layer_id = 3, .max_batch_size = 1});
  std::vector<float> w(static_cast<size_t>(net->num_parameters()), kCrossUnused);
  net->InitParameters(42, w);
  const double scale = std::sqrt(2.0 / 400);
  for (int32_t l = 0; l < 2; ++l) {
    for (const int64_t offset : {net->weight_offset(l), net->u_offset(l)}) {
      double sum = 0;
      double squares = 0;
      constexpr double kCount = 300 * 100;
      for (int64_t i = 0; i < 300 * 100; ++i) {
        const double z = w[static_cast<size_t>(offset + i)] / scale;
        sum += z;
        squares += z * z;
      }
      EXPECT_NEAR(sum / kCount, 0, 6 / std::sqrt(kCount));          // six standard deviations
      EXPECT_NEAR(squares / kCount, 1, 6 * std::sqrt(2 / kCount));  // of mean and variance
    }
    for (int64_t i = 0; i < 304; ++i) {
      ASSERT_EQ(w[static_cast<size_t>(net->bias_offset(l) + i)], 0.0f);
    }
  }
  // Element 5 of V and element 2 of U of layer 1.
  const PhiloxBlock v = RandomBlock(42, RandomPurpose::kDenseInit, 1, 4, 0);
  EXPECT_FLOAT_EQ(w[static_cast<size_t>(net->weight_offset(1) + 5)],
                  NormalFloats(v.v[0], v.v[1]).second * static_cast<float>(scale));
  const PhiloxBlock u = RandomBlock(42, RandomPurpose::kDenseInit, 300 * 100 / 4, 4, 0);
  EXPECT_FLOAT_EQ(w[static_cast<size_t>(net->u_offset(1) + 2)],
                  NormalFloats(u.v[2], u.v[3]).first * static_cast<float>(scale));
}

TEST(CrossNetworkTest, ErrorsNameTheField) {
  const auto code = absl::StatusCode::kInvalidArgument;
  const auto create_error = [&](const CrossNetworkOptions& options, const char* field) {
    EXPECT_THAT(CrossNetwork::Create(options), test::StatusIs(code, HasSubstr(field)));
  };
  create_error({.width = 0, .num_layers = 1, .max_batch_size = 1}, "width must be > 0, got 0");
  create_error({.width = 3, .num_layers = 0, .max_batch_size = 1}, "num_layers");
  create_error({.width = 3, .num_layers = 1, .rank = 4, .max_batch_size = 1},
               "rank must be in [0, width = 3], got 4");
  create_error(
      {.kind = CrossKind::kVector, .width = 3, .num_layers = 1, .rank = 1, .max_batch_size = 1},
      "rank must be 0 with weight vectors");
  create_error({.width = 3, .num_layers = 1, .first_layer_id = -1, .max_batch_size = 1},
               "first_layer_id");
  create_error({.width = 3, .num_layers = 1}, "max_batch_size");

  const CrossNetworkOptions options = {.width = 3, .num_layers = 1, .max_batch_size = 4};
  const auto net = NewNetwork(options);
  const Problem p = RandomCrossProblem(*net, options, 4, 1);
  std::vector<float> y(p.x.size());
  const auto forward_error = [&](const auto& change, const char* field) {
    CrossNetwork::ForwardArgs args = ForwardOf(p, y);
    change(args);
    EXPECT_THAT(net->Forward({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  forward_error([](auto& a) { a.batch_size = 5; }, "batch_size must be in [0, max_batch_size = 4]");
  forward_error([](auto& a) { a.batch_size = -1; }, "batch_size");
  forward_error([](auto& a) { a.parameters = nullptr; }, "parameters");
  forward_error([](auto& a) { a.x = nullptr; }, "x must not be null");
  forward_error([](auto& a) { a.x_stride = 2; }, "x_stride must be >= 3, got 2");
  forward_error([](auto& a) { a.y = nullptr; }, "y must not be null");
  forward_error([](auto& a) { a.y_stride = 1; }, "y_stride");
  HOTROW_ASSERT_OK(net->Forward({}, ForwardOf(p, y)));
  std::vector<float> dy = p.dy;
  std::vector<float> dw(p.parameters.size());
  const auto backward_error = [&](const auto& change, const char* field) {
    CrossNetwork::BackwardArgs args = {.parameters = p.parameters.data(),
                                       .dy = dy.data(),
                                       .dy_stride = p.stride,
                                       .parameter_gradients = dw.data()};
    change(args);
    EXPECT_THAT(net->Backward({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  backward_error([](auto& a) { a.parameters = nullptr; }, "parameters");
  backward_error([](auto& a) { a.dy = nullptr; }, "dy must not be null");
  backward_error([](auto& a) { a.dy_stride = 1; }, "dy_stride");
  backward_error([](auto& a) { a.parameter_gradients = nullptr; }, "parameter_gradients");
  backward_error(
      [&](auto& a) {
        a.dx = dw.data();
        a.dx_stride = 2;
      },
      "dx_stride");
}

TEST(CrossNetworkTest, AGpuThatIsNotThereIsNamed) {
  if (test::UsableGpu().ok()) GTEST_SKIP() << "there is a GPU";
  const auto net = CrossNetwork::Create({.width = 3, .num_layers = 1, .max_batch_size = 1},
                                        {.device = Device::kCuda});
  EXPECT_THAT(net.status().message(),
              ::testing::AnyOf(HasSubstr("no CUDA"), HasSubstr("no usable GPU")));
}

TEST(CrossNetworkTest, ACallOnAnotherDeviceIsRefused) {
  const auto net = NewNetwork({.width = 3, .num_layers = 1, .max_batch_size = 1});
  EXPECT_THAT(net->Forward({.device = Device::kCuda}, {.batch_size = 0}),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("made for device cpu")));
}

}  // namespace
}  // namespace hotrow
