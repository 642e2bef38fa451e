#include "ops/layers/mlp.h"

#include <sys/time.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ops/layers/mlp_impl.h"
#include "ops/products/column_sums_impl.h"
#include "ops/vec8_impl.h"
#include "tests/ops/dense_network_passes.h"
#include "tests/ops/dense_test_util.h"
#include "tests/ops/mlp_reference.h"
#include "tests/support/gpu_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::kUnused;
using ::testing::HasSubstr;
using Problem = test::MlpProblem;
using Reference = test::MlpReference;
using Result = test::MlpResult;

std::unique_ptr<Mlp> NewMlp(const MlpOptions& options) {
  auto mlp = Mlp::Create(options);
  HOTROW_EXPECT_OK(mlp);
  return *std::move(mlp);
}

Mlp::ForwardArgs ForwardOf(const Problem& p, std::vector<float>& y) {
  return {.parameters = p.parameters.data(),
          .x = p.x.data(),
          .x_stride = p.x_stride(),
          .batch_size = p.batch_size,
          .y = y.data(),
          .y_stride = p.y_stride(),
          .training = p.training,
          .step = p.step};
}

// Without outputs.
Mlp::BackwardArgs BackwardOf(const Problem& p, std::vector<float>& dy) {
  return {.parameters = p.parameters.data(),
          .dy = dy.data(),
          .dy_stride = p.y_stride(),
          .dx_stride = p.x_stride()};
}

Result RunMlp(const ExecContext& ctx, Mlp& mlp, const Problem& p) {
  Result r;
  r.y.assign(static_cast<size_t>(p.batch_size * p.y_stride()), kUnused);
  r.dx.assign(static_cast<size_t>(p.batch_size * p.x_stride()), kUnused);
  r.parameter_gradients.assign(p.parameters.size(), kUnused);
  std::vector<float> dy = p.dy;
  HOTROW_EXPECT_OK(mlp.Forward(ctx, ForwardOf(p, r.y)));
  HOTROW_EXPECT_OK(mlp.Backward(ctx, {.parameters = p.parameters.data(),
                                      .dy = dy.data(),
                                      .dy_stride = p.y_stride(),
                                      .dx = r.dx.data(),
                                      .dx_stride = p.x_stride(),
                                      .parameter_gradients = r.parameter_gradients.data()}));
  return r;
}

// --- tests ---

// W^T, which larger batches read, is made once for a number; smaller ones read W.
TEST(MlpTest, CopiesOfParametersAreMadeOnceForEachNumber) {
  const MlpOptions options = {.sizes = {5, 3}, .max_batch_size = 64};
  const auto mlp = NewMlp(options);
  Problem p = test::RandomMlpProblem(*mlp, options, 64, 1);
  p.training = false;
  const auto outputs = [&](int64_t number) {
    std::vector<float> y(static_cast<size_t>(p.batch_size * p.y_stride()), kUnused);
    Mlp::ForwardArgs args = ForwardOf(p, y);
    args.parameters_number = number;
    HOTROW_EXPECT_OK(mlp->Forward({}, args));
    return y;
  };
  const std::vector<float> before = outputs(1);
  p.parameters[0] += 1;  // a caller must not
  EXPECT_EQ(outputs(1), before);
  const std::vector<float> after = outputs(2);
  EXPECT_NE(after, before);
  EXPECT_EQ(outputs(0), after);
  p.parameters[0] -= 1;
  EXPECT_EQ(outputs(2), before);  // nothing was kept of number 0
  p.parameters[0] += 1;
  EXPECT_EQ(outputs(1), after);
}

TEST(MlpTest, HandWorkedTwoLayers) {
  // h = relu(x W0^T + b0), y = h W1^T + b1 with W0 = [[1, 2], [-1, 1]], b0 = [0.5, 0],
  // W1 = [[3, 4]], b1 = [-1]. For x = (1, 1): z = (3.5, 0), h = (3.5, 0), y = 9.5. For x = (1, 3):
  // z = (7.5, 2), y = 29.5.
  const auto mlp = NewMlp({.sizes = {2, 2, 1}, .max_batch_size = 2});
  std::vector<float> w(static_cast<size_t>(mlp->num_parameters()), 0.0f);
  const auto set = [&](int64_t offset, std::vector<float> values) {
    std::copy(values.begin(), values.end(), w.begin() + offset);
  };
  set(mlp->weight_offset(0), {1, 2, -1, 1});
  set(mlp->bias_offset(0), {0.5f, 0});
  set(mlp->weight_offset(1), {3, 4});
  set(mlp->bias_offset(1), {-1});
  const test::SmallPass pass = test::RunSmallPass(*mlp, w, {1, 1, 1, 3}, {1, 10}, 2);
  EXPECT_EQ(pass.y, (std::vector<float>{9.5f, 29.5f}));

  // dy = (1, 10): dh = (3, 4), (30, 40); z = 0 passes no gradient, so dz = (3, 0), (30, 40).
  EXPECT_EQ(pass.dx, (std::vector<float>{3, 6, -10, 100}));
  EXPECT_EQ(pass.Gradients(mlp->weight_offset(0), 4), (std::vector<float>{33, 93, 40, 120}));
  EXPECT_EQ(pass.Gradients(mlp->bias_offset(0), 2), (std::vector<float>{33, 40}));
  EXPECT_EQ(pass.Gradients(mlp->weight_offset(1), 2), (std::vector<float>{3.5f + 75, 20}));
  EXPECT_EQ(pass.Gradients(mlp->bias_offset(1), 1), (std::vector<float>{11}));
  EXPECT_EQ(pass.Gradients(mlp->weight_offset(0) + 4, 12),
            std::vector<float>(12, 0.0f));  // padding
}

TEST(MlpTest, MatchesADoubleReferenceForwardAndBackward) {
  const std::vector<std::vector<int32_t>> shapes = {
      {1, 1}, {13, 1}, {1, 17, 1}, {13, 33, 17, 16}, {367, 70, 1}, {16, 13, 5, 3, 2}, {600, 65, 9}};
  for (const uint64_t seed : test::Seeds(2)) {
    for (const std::vector<int32_t>& sizes : shapes) {
      for (const int64_t batch_size : {1, 64, 130}) {
        SCOPED_TRACE(testing::Message()
                     << "HOTROW_TEST_SEED=" << seed << " sizes=" << testing::PrintToString(sizes)
                     << " batch_size=" << batch_size);
        const MlpOptions options = {
            .sizes = sizes, .relu_on_output = seed % 2 == 0, .max_batch_size = batch_size};
        const auto mlp = NewMlp(options);
        const Problem p = test::RandomMlpProblem(*mlp, options, batch_size, seed);
        ASSERT_NO_FATAL_FAILURE(test::ExpectMlpMatches(*mlp, p, RunMlp({}, *mlp, p)));
      }
    }
  }
}

TEST(MlpTest, MatchesADoubleReferenceOnALargeBatch) {
  const MlpOptions options = {.sizes = {13, 32, 17, 1}, .max_batch_size = 2048};
  const auto mlp = NewMlp(options);
  ThreadPool pool(4);
  const Problem p = test::RandomMlpProblem(*mlp, options, 2048, 3);
  test::ExpectMlpMatches(*mlp, p, RunMlp(test::OnPool(&pool), *mlp, p));
}

TEST(MlpTest, DropoutMatchesTheDocumentedMaskInBothPasses) {
  const MlpOptions options = {.sizes = {13, 40, 17, 3},
                              .relu_on_output = true,
                              .dropout = 0.4f,
                              .seed = 99,
                              .first_layer_id = 10,
                              .max_batch_size = 300};
  const auto mlp = NewMlp(options);
  const Problem p = test::RandomMlpProblem(*mlp, options, 300, 6);
  test::ExpectMlpMatches(*mlp, p, RunMlp({}, *mlp, p));
}

// The reference's own backward pass, against central differences of its forward pass.
TEST(MlpTest, ReferenceGradientsAreFiniteDifferences) {
  const MlpOptions options = {
      .sizes = {3, 5, 4, 2}, .dropout = 0.25f, .seed = 4, .max_batch_size = 3};
  const auto mlp = NewMlp(options);
  Problem p = test::RandomMlpProblem(*mlp, options, 3, 8);
  const Reference reference = test::ComputeMlp(*mlp, p);
  const auto loss = [&] {
    const Reference r = test::ComputeMlp(*mlp, p);
    double sum = 0;
    for (size_t b = 0; b < r.y.size(); ++b) {
      for (size_t n = 0; n < r.y[b].size(); ++n) {
        sum += r.y[b][n].value * p.dy[b * static_cast<size_t>(p.y_stride()) + n];
      }
    }
    return sum;
  };
  const auto slope = [&](float& parameter) {
    // A power of two, and the network is piecewise linear in each parameter: floats suffice.
    constexpr float kStep = 0x1p-12f;
    const float before = parameter;
    parameter = before + kStep;
    const double up_at = parameter;
    const double up = loss();
    parameter = before - kStep;
    const double down_at = parameter;
    const double down = loss();
    parameter = before;
    return (up - down) / (up_at - down_at);
  };
  for (int32_t l = 0; l < mlp->num_layers(); ++l) {
    const int64_t weights =
        int64_t{options.sizes[static_cast<size_t>(l)]} * options.sizes[static_cast<size_t>(l) + 1];
    for (int64_t i = 0; i < weights; ++i) {
      const auto at = static_cast<size_t>(mlp->weight_offset(l) + i);
      EXPECT_NEAR(slope(p.parameters[at]), reference.parameter_gradients[at].value, 1e-9);
    }
    for (int64_t i = 0; i < options.sizes[static_cast<size_t>(l) + 1]; ++i) {
      const auto at = static_cast<size_t>(mlp->bias_offset(l) + i);
      EXPECT_NEAR(slope(p.parameters[at]), reference.parameter_gradients[at].value, 1e-9);
    }
  }
  for (size_t b = 0; b < 3; ++b) {
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_NEAR(slope(p.x[b * static_cast<size_t>(p.x_stride()) + k]), reference.dx[b][k].value,
                  1e-9);
    }
  }
}

TEST(MlpTest, EqualBitsOnAnyPool) {
  const MlpOptions options = {
      .sizes = {13, 130, 64, 16}, .relu_on_output = true, .dropout = 0.1f, .max_batch_size = 1000};
  const auto mlp = NewMlp(options);
  const Problem p = test::RandomMlpProblem(*mlp, options, 1000, 2);
  const Result alone = RunMlp({}, *mlp, p);
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    EXPECT_TRUE(RunMlp(test::OnPool(&pool), *mlp, p) == alone) << threads << " threads";
  }
}

volatile std::sig_atomic_t signals_handled = 0;

// What a handler may do: use the stack below that of the interrupted function.
void UseStack(int) {
  volatile char bytes[4096];
  for (volatile char& byte : bytes) byte = 0x55;
  signals_handled = signals_handled + 1;
}

// oneDNN's products keep data below the stack pointer, so handlers must not run on top of them.
TEST(MlpTest, SignalHandlersOfTheProgramDisturbNoProduct) {
  const MlpOptions options = {.sizes = {367, 512, 256, 1}, .max_batch_size = 512};
  const auto mlp = NewMlp(options);
  const Problem p = test::RandomMlpProblem(*mlp, options, 512, 2);
  const Result want = RunMlp({}, *mlp, p);

  struct sigaction action = {};
  action.sa_handler = UseStack;
  action.sa_flags = SA_RESTART;
  struct sigaction action_before = {};
  ASSERT_EQ(sigaction(SIGALRM, &action, &action_before), 0);
  const itimerval often = {.it_interval = {0, 200}, .it_value = {0, 200}};
  itimerval timer_before = {};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, &timer_before), 0);
  signals_handled = 0;
  bool equal = true;
  for (int i = 0; i < 40 && equal; ++i) equal = RunMlp({}, *mlp, p) == want;
  ASSERT_EQ(setitimer(ITIMER_REAL, &timer_before, nullptr), 0);
  ASSERT_EQ(sigaction(SIGALRM, &action_before, nullptr), 0);
  EXPECT_TRUE(equal);
  EXPECT_GT(signals_handled, 40);  // between the products they do run
}

TEST(MlpTest, BatchSizesMayChangeBetweenCalls) {
  MlpOptions options = {.sizes = {13, 40, 5}, .max_batch_size = 2048};
  const auto mlp = NewMlp(options);
  for (const int64_t batch_size : {2048, 7, 1, 0, 129, 128, 2048, 63, 64}) {
    SCOPED_TRACE(batch_size);
    const Problem p = test::RandomMlpProblem(*mlp, options, batch_size, 40);
    const auto fresh = NewMlp(options);
    EXPECT_TRUE(RunMlp({}, *mlp, p) == RunMlp({}, *fresh, p));
  }
}

TEST(MlpTest, StridesDoNotChangeResults) {
  const MlpOptions options = {.sizes = {13, 40, 5}, .max_batch_size = 200};
  const auto mlp = NewMlp(options);
  const Problem wide = test::RandomMlpProblem(*mlp, options, 200, 12);
  Problem dense = wide;
  dense.gap = 0;
  const auto pack = [](const std::vector<float>& from, int64_t columns, int64_t stride) {
    std::vector<float> to;
    for (size_t i = 0; i < from.size(); ++i) {
      if (static_cast<int64_t>(i) % stride < columns) to.push_back(from[i]);
    }
    return to;
  };
  dense.x = pack(wide.x, 13, wide.x_stride());
  dense.dy = pack(wide.dy, 5, wide.y_stride());
  const Result a = RunMlp({}, *mlp, wide);
  const Result b = RunMlp({}, *mlp, dense);
  EXPECT_EQ(test::Bits(pack(a.y, 5, wide.y_stride())), test::Bits(b.y));
  EXPECT_EQ(test::Bits(pack(a.dx, 13, wide.x_stride())), test::Bits(b.dx));
  EXPECT_EQ(test::Bits(a.parameter_gradients), test::Bits(b.parameter_gradients));
}

TEST(MlpTest, EvaluationDropsNothingAndTrainingMasksDependOnTheStep) {
  MlpOptions options = {.sizes = {8, 50, 50, 2}, .dropout = 0.5f, .max_batch_size = 100};
  const auto mlp = NewMlp(options);
  Problem p = test::RandomMlpProblem(*mlp, options, 100, 1);
  const auto forward = [&](Mlp& m) {
    std::vector<float> y(static_cast<size_t>(100 * p.y_stride()));
    HOTROW_EXPECT_OK(m.Forward({}, ForwardOf(p, y)));
    return y;
  };
  const std::vector<float> training = forward(*mlp);
  EXPECT_EQ(forward(*mlp), training);
  p.step += 1;
  EXPECT_NE(forward(*mlp), training);
  p.training = false;
  const std::vector<float> evaluation = forward(*mlp);
  options.dropout = 0;
  EXPECT_EQ(forward(*NewMlp(options)), evaluation);
  EXPECT_NE(evaluation, training);
}

TEST(MlpTest, LayerIdsTellTheDropoutOfTwoMlpsApart) {
  MlpOptions options = {.sizes = {4, 64, 8}, .dropout = 0.5f, .max_batch_size = 10};
  const auto first = NewMlp(options);
  const Problem p = test::RandomMlpProblem(*first, options, 10, 1);
  options.first_layer_id = 2;
  const auto second = NewMlp(options);
  EXPECT_FALSE(RunMlp({}, *first, p) == RunMlp({}, *second, p));
}

TEST(MlpTest, BackwardNeedsATrainingForwardJustBefore) {
  const MlpOptions options = {.sizes = {3, 4, 2}, .max_batch_size = 4};
  const auto mlp = NewMlp(options);
  Problem p = test::RandomMlpProblem(*mlp, options, 4, 1);
  std::vector<float> dw(p.parameters.size());
  const auto backward = [&] {
    std::vector<float> dy = p.dy;
    return mlp->Backward({}, {.parameters = p.parameters.data(),
                              .dy = dy.data(),
                              .dy_stride = p.y_stride(),
                              .parameter_gradients = dw.data()});
  };
  const auto precondition =
      test::StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("training"));
  EXPECT_THAT(backward(), precondition);
  const Result want = RunMlp({}, *mlp, p);
  HOTROW_EXPECT_OK(backward());  // without dx
  EXPECT_EQ(test::Bits(dw), test::Bits(want.parameter_gradients));
  p.training = false;
  std::vector<float> y(p.dy.size());
  HOTROW_EXPECT_OK(mlp->Forward({}, ForwardOf(p, y)));
  EXPECT_THAT(backward(), precondition);
}

TEST(MlpTest, ReportsTheGradientsOfEachLayerOnceFinalTheLastLayerFirst) {
  // Layers of 1 to 12 blocks, so that threads are at several layers at a time.
  const MlpOptions options = {
      .sizes = {70, 200, 600, 130, 1}, .dropout = 0.2f, .max_batch_size = 200};
  const auto mlp = NewMlp(options);
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t batch_size : {0, 1, 200}) {
      SCOPED_TRACE(testing::Message() << threads << " threads, batch of " << batch_size);
      const Problem p = test::RandomMlpProblem(*mlp, options, batch_size, 4);
      std::vector<float> y(p.dy.size());
      std::vector<float> dy = p.dy;
      test::ExpectLayersAreReported(test::OnPool(&pool), *mlp, ForwardOf(p, y), BackwardOf(p, dy),
                                    RunMlp({}, *mlp, p));
    }
  }
}

TEST(MlpTest, AnErrorOfTheReportIsTheErrorOfBackwardAndTheLastReport) {
  const MlpOptions options = {.sizes = {70, 200, 130, 1}, .max_batch_size = 200};
  const auto mlp = NewMlp(options);
  ThreadPool pool(3);
  for (const int64_t batch_size : {0, 200}) {
    const Problem p = test::RandomMlpProblem(*mlp, options, batch_size, 4);
    for (int fail_at = 0; fail_at < 3; ++fail_at) {
      std::vector<float> y(p.dy.size());
      std::vector<float> dy = p.dy;
      test::ExpectAFailedReportEndsBackward(test::OnPool(&pool), *mlp, ForwardOf(p, y),
                                            BackwardOf(p, dy), fail_at);
    }
  }
}

TEST(MlpTest, TheHalvesOfBackwardMakeTheWholeAndDxIsFinalInBetween) {
  const MlpOptions options = {.sizes = {30, 100, 3}, .max_batch_size = 150};
  const auto mlp = NewMlp(options);
  const Problem p = test::RandomMlpProblem(*mlp, options, 150, 2);
  const Result want = RunMlp({}, *mlp, p);
  Result got = want;
  std::fill(got.dx.begin(), got.dx.end(), kUnused);
  std::fill(got.parameter_gradients.begin(), got.parameter_gradients.end(), kUnused);
  std::vector<float> dy = p.dy;
  const Mlp::BackwardArgs args = {.parameters = p.parameters.data(),
                                  .dy = dy.data(),
                                  .dy_stride = p.y_stride(),
                                  .dx = got.dx.data(),
                                  .dx_stride = p.x_stride(),
                                  .parameter_gradients = got.parameter_gradients.data()};
  HOTROW_ASSERT_OK(mlp->Forward({}, ForwardOf(p, got.y)));
  const auto precondition =
      test::StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("BackwardInput"));
  EXPECT_THAT(mlp->BackwardParameters({}, args), precondition);
  HOTROW_ASSERT_OK(mlp->BackwardInput({}, args));
  EXPECT_EQ(test::Bits(got.dx), test::Bits(want.dx));
  std::fill(got.dx.begin(), got.dx.end(), 7.0f);  // the caller's from here on
  HOTROW_ASSERT_OK(mlp->BackwardParameters({}, args));
  EXPECT_EQ(test::Bits(got.parameter_gradients), test::Bits(want.parameter_gradients));
  EXPECT_EQ(got.dx, std::vector<float>(got.dx.size(), 7.0f));
  EXPECT_THAT(mlp->BackwardParameters({}, args), precondition);
}

// The output is the hidden layer and dx is what comes back through it, number by number: they are
// the same bits for any sizes of the products.
TEST(MlpTest, SlicesDropWhatTheWholeBatchDrops) {
  constexpr int32_t kSize = 24;
  constexpr int64_t kBatch = 300;
  const MlpOptions options = {
      .sizes = {kSize, kSize, kSize}, .dropout = 0.3f, .seed = 6, .max_batch_size = kBatch};
  const auto mlp = NewMlp(options);
  std::vector<float> identity(static_cast<size_t>(mlp->num_parameters()), 0.0f);
  for (int32_t l = 0; l < 2; ++l) {
    for (int64_t i = 0; i < kSize; ++i) {
      identity[static_cast<size_t>(mlp->weight_offset(l) + i * kSize + i)] = 1;
    }
  }
  RandomStream random(8, RandomPurpose::kTest);
  std::vector<float> x = test::RandomFloats(random, kBatch * kSize);
  for (float& value : x) value = std::abs(value) + 0.1f;  // ReLU lets them through
  const std::vector<float> dy = test::RandomFloats(random, kBatch * kSize);
  const auto run = [&](int64_t world_size) {
    std::vector<float> all(2 * x.size(), kUnused);  // y, then dx
    std::vector<float> scratch = dy;
    std::vector<float> dw(identity.size());
    for (int64_t rank = 0; rank < world_size; ++rank) {
      const int64_t begin = kBatch * rank / world_size;
      const int64_t end = kBatch * (rank + 1) / world_size;
      HOTROW_EXPECT_OK(mlp->Forward({}, {.parameters = identity.data(),
                                         .x = x.data() + begin * kSize,
                                         .x_stride = kSize,
                                         .batch_size = end - begin,
                                         .y = all.data() + begin * kSize,
                                         .y_stride = kSize,
                                         .training = true,
                                         .step = 3,
                                         .first_row = begin}));
      HOTROW_EXPECT_OK(mlp->Backward({}, {.parameters = identity.data(),
                                          .dy = scratch.data() + begin * kSize,
                                          .dy_stride = kSize,
                                          .dx = all.data() + x.size() + begin * kSize,
                                          .dx_stride = kSize,
                                          .parameter_gradients = dw.data()}));
    }
    return all;
  };
  const std::vector<float> whole = run(1);
  EXPECT_GT(std::count(whole.begin(), whole.begin() + kBatch * kSize, 0.0f), kBatch * kSize / 5);
  for (const int64_t world_size : {2, 3, 7, 299}) EXPECT_EQ(run(world_size), whole);
}

TEST(MlpTest, OutputMayBeOverwrittenBeforeBackward) {
  const MlpOptions options = {.sizes = {5, 6, 7}, .relu_on_output = true, .max_batch_size = 50};
  const auto mlp = NewMlp(options);
  const Problem p = test::RandomMlpProblem(*mlp, options, 50, 1);
  const Result want = RunMlp({}, *mlp, p);
  std::vector<float> y(p.dy.size());
  std::vector<float> dw(p.parameters.size());
  HOTROW_ASSERT_OK(mlp->Forward({}, ForwardOf(p, y)));
  y = p.dy;  // the gradient takes the place of the output
  HOTROW_ASSERT_OK(mlp->Backward({}, {.parameters = p.parameters.data(),
                                      .dy = y.data(),
                                      .dy_stride = p.y_stride(),
                                      .parameter_gradients = dw.data()}));
  EXPECT_EQ(test::Bits(dw), test::Bits(want.parameter_gradients));
}

TEST(MlpTest, EmptyBatchGivesZeroGradientsAndNeedsNoPointers) {
  const auto mlp = NewMlp({.sizes = {3, 4, 2}, .max_batch_size = 4});
  std::vector<float> dw(static_cast<size_t>(mlp->num_parameters()), kUnused);
  HOTROW_ASSERT_OK(mlp->Forward({}, {.batch_size = 0, .training = true}));
  HOTROW_ASSERT_OK(mlp->Backward({}, {.parameter_gradients = dw.data()}));
  EXPECT_EQ(dw, std::vector<float>(dw.size(), 0.0f));
}

TEST(MlpTest, NaNReachesTheOutput) {
  const MlpOptions options = {.sizes = {13, 20, 2}, .max_batch_size = 2};
  const auto mlp = NewMlp(options);
  Problem p = test::RandomMlpProblem(*mlp, options, 2, 1);
  p.x[0] = std::numeric_limits<float>::quiet_NaN();
  const Result r = RunMlp({}, *mlp, p);
  EXPECT_TRUE(std::isnan(r.y[0]));
  EXPECT_FALSE(std::isnan(r.y[static_cast<size_t>(p.y_stride())]));
}

TEST(MlpTest, BlocksOfParametersAreAlignedAndDoNotOverlap) {
  const auto mlp = NewMlp({.sizes = {13, 17, 1}, .max_batch_size = 1});
  EXPECT_EQ(mlp->num_layers(), 2);
  EXPECT_EQ(mlp->input_size(), 13);
  EXPECT_EQ(mlp->output_size(), 1);
  EXPECT_EQ(mlp->weight_offset(0), 0);
  EXPECT_EQ(mlp->bias_offset(0), 224);    // 13 * 17 = 221
  EXPECT_EQ(mlp->weight_offset(1), 256);  // 17
  EXPECT_EQ(mlp->bias_offset(1), 288);    // 17
  EXPECT_EQ(mlp->num_parameters(), 304);  // 1
  // y_0 and its gradient [1, 32], W^T [13, 32] and [17, 16], one row of bias sums each.
  EXPECT_EQ(mlp->activation_bytes(), 4 * (32 + 32 + 13 * 32 + 17 * 16 + 32 + 16));
}

TEST(MlpTest, InitialParametersAreNormalWithTheDocumentedScaleAndCounters) {
  const auto mlp = NewMlp({.sizes = {300, 200, 100}, .first_layer_id = 3, .max_batch_size = 1});
  std::vector<float> w(static_cast<size_t>(mlp->num_parameters()), kUnused);
  mlp->InitParameters(42, w);
  for (int32_t l = 0; l < 2; ++l) {
    const int64_t in = l == 0 ? 300 : 200;
    const int64_t out = l == 0 ? 200 : 100;
    const double scale = std::sqrt(2.0 / static_cast<double>(in + out));
    double sum = 0;
    double squares = 0;
    for (int64_t i = 0; i < in * out; ++i) {
      const double x = w[static_cast<size_t>(mlp->weight_offset(l) + i)] / scale;
      sum += x;
      squares += x * x;
    }
    const auto n = static_cast<double>(in * out);
    EXPECT_NEAR(sum / n, 0, 6 / std::sqrt(n));          // six standard deviations of the mean
    EXPECT_NEAR(squares / n, 1, 6 * std::sqrt(2 / n));  // and of the variance
  }
  // Element 5 of layer 0, and the first bias, which is element 300 * 200.
  const PhiloxBlock block = RandomBlock(42, RandomPurpose::kDenseInit, 1, 3, 0);
  EXPECT_FLOAT_EQ(
      w[5], NormalFloats(block.v[0], block.v[1]).second * static_cast<float>(std::sqrt(2.0 / 500)));
  const PhiloxBlock bias = RandomBlock(42, RandomPurpose::kDenseInit, 300 * 200 / 4, 3, 0);
  EXPECT_FLOAT_EQ(
      w[static_cast<size_t>(mlp->bias_offset(0))],
      NormalFloats(bias.v[0], bias.v[1]).first * static_cast<float>(std::sqrt(1.0 / 200)));
  // The padding after b_0 (200 floats, stored in 208).
  for (int64_t i = 200; i < 208; ++i) {
    EXPECT_EQ(w[static_cast<size_t>(mlp->bias_offset(0) + i)], 0.0f);
  }
}

TEST(MlpTest, ErrorsNameTheField) {
  const auto code = absl::StatusCode::kInvalidArgument;
  const auto create_error = [&](MlpOptions options, const char* field) {
    EXPECT_THAT(Mlp::Create(options), test::StatusIs(code, HasSubstr(field)));
  };
  create_error({.sizes = {3}, .max_batch_size = 1}, "sizes");
  create_error({.sizes = {3, 0, 2}, .max_batch_size = 1}, "sizes[1] must be > 0, got 0");
  create_error({.sizes = {3, 2}, .dropout = 1, .max_batch_size = 1}, "dropout");
  create_error({.sizes = {3, 2}, .first_layer_id = -1, .max_batch_size = 1}, "first_layer_id");
  create_error({.sizes = {3, 2}, .first_layer_id = 1 << 28, .max_batch_size = 1}, "first_layer_id");
  create_error({.sizes = {3, 2}}, "max_batch_size");

  const MlpOptions options = {.sizes = {3, 2}, .max_batch_size = 4};
  const auto mlp = NewMlp(options);
  const Problem p = test::RandomMlpProblem(*mlp, options, 4, 1);
  std::vector<float> y(p.dy.size());
  const auto forward_error = [&](const auto& change, const char* field) {
    Mlp::ForwardArgs args = ForwardOf(p, y);
    change(args);
    EXPECT_THAT(mlp->Forward({}, args), test::StatusIs(code, HasSubstr(field)));
  };
  forward_error([](auto& a) { a.batch_size = 5; }, "batch_size must be in [0, max_batch_size = 4]");
  forward_error([](auto& a) { a.batch_size = -1; }, "batch_size");
  forward_error([](auto& a) { a.parameters = nullptr; }, "parameters");
  forward_error([](auto& a) { a.x = nullptr; }, "x must not be null");
  forward_error([](auto& a) { a.x_stride = 2; }, "x_stride must be >= 3, got 2");
  forward_error([](auto& a) { a.y = nullptr; }, "y must not be null");
  forward_error([](auto& a) { a.y_stride = 1; }, "y_stride");
  forward_error([](auto& a) { a.first_row = -1; }, "first_row must be >= 0, got -1");

  HOTROW_ASSERT_OK(mlp->Forward({}, ForwardOf(p, y)));
  std::vector<float> dy = p.dy;
  std::vector<float> dw(p.parameters.size());
  const auto backward_error = [&](const auto& change, const char* field) {
    Mlp::BackwardArgs args = {.parameters = p.parameters.data(),
                              .dy = dy.data(),
                              .dy_stride = p.y_stride(),
                              .parameter_gradients = dw.data()};
    change(args);
    EXPECT_THAT(mlp->Backward({}, args), test::StatusIs(code, HasSubstr(field)));
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

TEST(MlpTest, ACallOnAnotherDeviceIsRefused) {
  const auto mlp = NewMlp({.sizes = {3, 2}, .max_batch_size = 1});
  EXPECT_THAT(mlp->Forward({.device = Device::kCuda}, {.batch_size = 0}),
              test::StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("made for device cpu, called with a context of cuda")));
  std::vector<float> dw(static_cast<size_t>(mlp->num_parameters()));
  HOTROW_ASSERT_OK(mlp->Forward({}, {.batch_size = 0, .training = true}));
  EXPECT_THAT(mlp->Backward({.device = Device::kCuda}, {.parameter_gradients = dw.data()}),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("context of cuda")));
}

TEST(MlpTest, AGpuThatIsNotThereIsNamed) {
  if (test::UsableGpu().ok()) GTEST_SKIP() << "there is a GPU";
  const auto mlp = Mlp::Create({.sizes = {3, 2}, .max_batch_size = 1}, {.device = Device::kCuda});
  EXPECT_THAT(mlp.status().message(),
              ::testing::AnyOf(HasSubstr("no CUDA"), HasSubstr("no usable GPU")));
}

TEST(MlpTest, ReluOfANumberIsThatOfEight) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {0.0f, -0.0f, 1.5f, -1.5f, 1e-45f, -1e-45f, kInfinity, -kInfinity, kNaN}) {
    float eight[8];
    internal::Vec8::Relu(internal::Vec8::Set(x)).Store(eight);
    EXPECT_EQ(test::Bits({internal::Relu(x)}), test::Bits({eight[3]})) << x;
    for (const float g : {2.0f, -0.0f, kNaN}) {
      internal::Vec8::ReluGrad(internal::Vec8::Set(x), internal::Vec8::Set(g)).Store(eight);
      const float passed = internal::PassesRelu(x) ? g : 0.0f;
      EXPECT_EQ(test::Bits({passed}), test::Bits({eight[3]})) << x << " " << g;
    }
  }
}

TEST(MlpTest, SumsOfBiasesNeedARowForEachBegunChunk) {
  EXPECT_EQ(internal::ChunkSumsSize(1, 48), 48);
  EXPECT_EQ(internal::ChunkSumsSize(internal::kSumChunkRows, 16), 16);
  EXPECT_EQ(internal::ChunkSumsSize(internal::kSumChunkRows + 1, 16), 32);
}

}  // namespace
}  // namespace hotrow
