#include "ops/training/dense_optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/training/dense_optimizer_impl.h"
#include "tests/ops/dense_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

constexpr DenseOptimizerKind kKinds[] = {DenseOptimizerKind::kSgd, DenseOptimizerKind::kAdagrad,
                                         DenseOptimizerKind::kAdam};

// Tensors of the given lengths with their own storage.
struct Model {
  Model(const std::vector<int64_t>& lengths, DenseOptimizerKind kind, uint64_t seed) {
    RandomStream random(seed, RandomPurpose::kTest);
    for (const int64_t n : lengths) {
      parameters.push_back(test::RandomFloats(random, n));
      gradients.push_back(test::RandomFloats(random, n));
      const auto state = static_cast<size_t>(n);
      momentum1.emplace_back(DenseStateArrays(kind) >= 1 ? state : 0, 0.0f);
      momentum2.emplace_back(DenseStateArrays(kind) >= 2 ? state : 0, 0.0f);
    }
  }
  std::vector<DenseTensor> Tensors() {
    std::vector<DenseTensor> tensors;
    for (size_t i = 0; i < parameters.size(); ++i) {
      tensors.push_back({parameters[i], gradients[i], momentum1[i], momentum2[i], {}});
    }
    return tensors;
  }
  std::vector<std::vector<float>> parameters, gradients, momentum1, momentum2;
};

// One element in double, written from the documentation of torch.optim.
struct Element {
  double w = 0;
  double m1 = 0;
  double m2 = 0;

  void Step(const DenseOptimizerConfig& c, double g, double factor, uint32_t step) {
    const double lr = static_cast<double>(c.learning_rate) * factor;
    g += static_cast<double>(c.weight_decay) * w;
    switch (c.kind) {
      case DenseOptimizerKind::kSgd:
        w -= lr * g;
        break;
      case DenseOptimizerKind::kAdagrad:
        m1 += g * g;
        w -= lr * g / (std::sqrt(m1) + static_cast<double>(c.eps));
        break;
      case DenseOptimizerKind::kAdam: {
        const double b1 = c.beta1;
        const double b2 = c.beta2;
        m1 = b1 * m1 + (1 - b1) * g;
        m2 = b2 * m2 + (1 - b2) * g * g;
        const double m_hat = m1 / (1 - std::pow(b1, step));
        const double v_hat = m2 / (1 - std::pow(b2, step));
        w -= lr * m_hat / (std::sqrt(v_hat) + static_cast<double>(c.eps));
        break;
      }
    }
  }
};

TEST(DenseOptimizerTest, SgdHandWorked) {
  std::vector<float> w = {1.0f, -2.0f};
  const std::vector<float> g = {0.5f, 4.0f};
  const std::vector<DenseTensor> tensors = {{w, g, {}, {}, {}}};
  HOTROW_ASSERT_OK(DenseUpdate({}, {.learning_rate = 0.25f}, tensors, 1.0f, 1));
  EXPECT_EQ(w, (std::vector<float>{0.875f, -3.0f}));
  // g + 0.5 w = 0.9375, 2.5; times lr 0.25 times 2.
  HOTROW_ASSERT_OK(
      DenseUpdate({}, {.learning_rate = 0.25f, .weight_decay = 0.5f}, tensors, 2.0f, 2));
  EXPECT_EQ(w, (std::vector<float>{0.40625f, -4.25f}));
}

TEST(DenseOptimizerTest, TheAverageFollowsTheParameters) {
  std::vector<float> w = {1.0f, -2.0f};
  std::vector<float> average = w;
  const std::vector<float> g = {0.5f, 4.0f};
  const DenseTensor tensor = {
      .parameters = w, .gradients = g, .momentum1 = {}, .momentum2 = {}, .average = average};
  const auto step = [&](float decay, uint32_t number) {
    HOTROW_ASSERT_OK(DenseUpdate({}, {.learning_rate = 0.25f, .average_decay = decay}, {&tensor, 1},
                                 1.0f, number));
  };
  // The first step counts as if the decay were 2 / 11.
  step(0.75f, 1);
  EXPECT_EQ(w, (std::vector<float>{0.875f, -3.0f}));
  EXPECT_FLOAT_EQ(average[0], 1 + 9.0f / 11 * -0.125f);
  EXPECT_FLOAT_EQ(average[1], -2 + 9.0f / 11 * -1);
  // From the 26th on it is what it is: (1 + 26) / (10 + 26) = 0.75.
  average = {1.0f, -2.0f};
  step(0.75f, 26);
  EXPECT_EQ(average, (std::vector<float>{1 + 0.25f * -0.25f, -2 + 0.25f * -2}));
}

TEST(DenseOptimizerTest, AnAverageChangesNothingElse) {
  for (const DenseOptimizerKind kind : kKinds) {
    Model plain({3, 0, 40'000}, kind, 9);
    Model averaged({3, 0, 40'000}, kind, 9);
    std::vector<std::vector<float>> averages = averaged.parameters;
    for (uint32_t step = 1; step <= 3; ++step) {
      std::vector<DenseTensor> tensors = averaged.Tensors();
      for (size_t i = 0; i < tensors.size(); ++i) tensors[i].average = averages[i];
      HOTROW_ASSERT_OK(DenseUpdate({}, {.kind = kind}, plain.Tensors(), 1.0f, step));
      const std::vector<std::vector<float>> before = averages;
      HOTROW_ASSERT_OK(DenseUpdate({}, {.kind = kind, .average_decay = 0.9f}, tensors, 1.0f, step));
      const double decay = std::min(0.9, (1.0 + step) / (10.0 + step));
      for (size_t i = 0; i < averages.size(); ++i) {
        for (size_t j = 0; j < averages[i].size(); ++j) {
          const double w = averaged.parameters[i][j];
          ASSERT_NEAR(averages[i][j], decay * before[i][j] + (1 - decay) * w, 1e-6);
        }
      }
    }
    EXPECT_EQ(averaged.parameters, plain.parameters);
    EXPECT_EQ(averaged.momentum1, plain.momentum1);
    EXPECT_EQ(averaged.momentum2, plain.momentum2);
  }
}

TEST(DenseOptimizerTest, GradientsAreScaledBeforeAnythingElse) {
  // As 20 gradients of half the length, also in the state, and not in the weight decay.
  RandomStream random(11, RandomPurpose::kTest);
  const std::vector<float> start = test::RandomFloats(random, 20);
  const std::vector<float> g = test::RandomFloats(random, 20);
  std::vector<float> half = g;
  for (float& x : half) x *= 0.5f;
  const float scale = 0.5f;
  for (const DenseOptimizerKind kind : kKinds) {
    const DenseOptimizerConfig config = {
        .kind = kind, .learning_rate = 0.1f, .eps = 1e-3f, .weight_decay = 0.25f};
    std::vector<float> w[2] = {start, start};
    std::vector<float> m1[2], m2[2];
    for (int i = 0; i < 2; ++i) {
      m1[i].resize(DenseStateArrays(kind) >= 1 ? 20 : 0);
      m2[i].resize(DenseStateArrays(kind) >= 2 ? 20 : 0);
    }
    const DenseTensor scaled = {w[0], g, m1[0], m2[0], {}};
    const DenseTensor halved = {w[1], half, m1[1], m2[1], {}};
    for (uint32_t step = 1; step <= 2; ++step) {
      HOTROW_ASSERT_OK(DenseUpdate({}, config, {&scaled, 1}, 1.0f, step, &scale));
      HOTROW_ASSERT_OK(DenseUpdate({}, config, {&halved, 1}, 1.0f, step));
    }
    EXPECT_EQ(w[0], w[1]);
    EXPECT_NE(w[0], start);
    EXPECT_EQ(m1[0], m1[1]);
    EXPECT_EQ(m2[0], m2[1]);
  }
}

TEST(DenseOptimizerTest, AdagradHandWorked) {
  std::vector<float> w = {1.0f};
  std::vector<float> s = {0.0f};
  std::vector<float> g = {3.0f};
  const std::vector<DenseTensor> tensors = {{w, g, s, {}, {}}};
  const DenseOptimizerConfig config = {
      .kind = DenseOptimizerKind::kAdagrad, .learning_rate = 0.5f, .eps = 1e-10f};
  HOTROW_ASSERT_OK(DenseUpdate({}, config, tensors, 1.0f, 1));
  EXPECT_EQ(s[0], 9.0f);
  EXPECT_FLOAT_EQ(w[0], 0.5f);  // 1 - 0.5 * 3 / 3
  g[0] = 4.0f;
  HOTROW_ASSERT_OK(DenseUpdate({}, config, tensors, 1.0f, 2));
  EXPECT_EQ(s[0], 25.0f);
  EXPECT_FLOAT_EQ(w[0], 0.1f);  // 0.5 - 0.5 * 4 / 5
}

TEST(DenseOptimizerTest, AdamHandWorked) {
  std::vector<float> w = {1.0f};
  std::vector<float> m = {0.0f};
  std::vector<float> v = {0.0f};
  std::vector<float> g = {2.0f};
  const std::vector<DenseTensor> tensors = {{w, g, m, v, {}}};
  const DenseOptimizerConfig config = {.kind = DenseOptimizerKind::kAdam,
                                       .learning_rate = 0.125f,
                                       .eps = 1e-12f,
                                       .beta1 = 0.5f,
                                       .beta2 = 0.75f};
  // Bias correction makes the first step lr * sign(g).
  HOTROW_ASSERT_OK(DenseUpdate({}, config, tensors, 1.0f, 1));
  EXPECT_EQ(m[0], 1.0f);
  EXPECT_EQ(v[0], 1.0f);
  EXPECT_FLOAT_EQ(w[0], 0.875f);
  // m = 0.5 + 0.5 * -4 = -1.5, m_hat = -1.5 / 0.75 = -2; v = 0.75 + 0.25 * 16 = 4.75, v_hat = 4.75
  // / (1 - 0.5625) = 10.857...
  g[0] = -4.0f;
  HOTROW_ASSERT_OK(DenseUpdate({}, config, tensors, 1.0f, 2));
  EXPECT_FLOAT_EQ(m[0], -1.5f);
  EXPECT_FLOAT_EQ(v[0], 4.75f);
  EXPECT_FLOAT_EQ(w[0], static_cast<float>(0.875 + 0.125 * 2 / std::sqrt(4.75 / 0.4375)));
}

TEST(DenseOptimizerTest, FollowsADoubleReferenceOverManySteps) {
  const std::vector<int64_t> lengths = {1, 0, 13, 17, 64, 1000};
  for (const DenseOptimizerKind kind : kKinds) {
    for (const uint64_t seed : test::Seeds(3)) {
      SCOPED_TRACE(testing::Message()
                   << "HOTROW_TEST_SEED=" << seed << " " << DenseOptimizerName(kind));
      const DenseOptimizerConfig config = {
          .kind = kind, .learning_rate = 0.02f, .weight_decay = 0.01f};
      Model model(lengths, kind, seed);
      std::vector<std::vector<Element>> reference;
      for (const std::vector<float>& p : model.parameters) {
        auto& tensor = reference.emplace_back();
        for (const float w : p) tensor.push_back({.w = w});
      }
      RandomStream random(seed, RandomPurpose::kTest, 1);
      for (uint32_t step = 1; step <= 20; ++step) {
        for (size_t t = 0; t < lengths.size(); ++t) {
          model.gradients[t] = test::RandomFloats(random, lengths[t]);
          for (size_t i = 0; i < reference[t].size(); ++i) {
            reference[t][i].Step(config, model.gradients[t][i], 0.5, step);
          }
        }
        HOTROW_ASSERT_OK(DenseUpdate({}, config, model.Tensors(), 0.5f, step));
      }
      for (size_t t = 0; t < lengths.size(); ++t) {
        for (size_t i = 0; i < reference[t].size(); ++i) {
          // About ten roundings a step of numbers no larger than |w| + 1.
          const double limit = 20 * 10 * 0x1p-24 * (std::abs(reference[t][i].w) + 1);
          ASSERT_NEAR(model.parameters[t][i], reference[t][i].w, limit) << t << "," << i;
        }
      }
    }
  }
}

TEST(DenseOptimizerTest, EqualBitsHoweverThreadsAndTensorsCutTheElements) {
  // Longer than one chunk, with borders that are no multiples of eight.
  const std::vector<int64_t> lengths = {40001, 3, 0, 16384, 7, 50000};
  for (const DenseOptimizerKind kind : kKinds) {
    const auto run = [&](ThreadPool* pool, bool one_by_one) {
      Model model(lengths, kind, 7);
      const DenseOptimizerConfig config = {.kind = kind, .weight_decay = 0.1f};
      const std::vector<DenseTensor> tensors = model.Tensors();
      if (one_by_one) {
        for (const DenseTensor& t : tensors) {
          HOTROW_EXPECT_OK(DenseUpdate(test::OnPool(pool), config, {&t, 1}, 1.0f, 1));
        }
      } else {
        HOTROW_EXPECT_OK(DenseUpdate(test::OnPool(pool), config, tensors, 1.0f, 1));
      }
      std::vector<std::vector<float>> all = model.parameters;
      all.insert(all.end(), model.momentum1.begin(), model.momentum1.end());
      all.insert(all.end(), model.momentum2.begin(), model.momentum2.end());
      return all;
    };
    const auto alone = run(nullptr, false);
    EXPECT_EQ(run(nullptr, true), alone);
    for (const int threads : {1, 4}) {
      ThreadPool pool(threads);
      EXPECT_EQ(run(&pool, false), alone);
    }
  }
}

TEST(DenseOptimizerTest, ZeroGradientsOfFreshStateMoveNothing) {
  for (const DenseOptimizerKind kind : kKinds) {
    Model model({20}, kind, 1);
    const std::vector<float> before = model.parameters[0];
    model.gradients[0].assign(20, 0.0f);
    HOTROW_ASSERT_OK(DenseUpdate({}, {.kind = kind}, model.Tensors(), 1.0f, 1));
    EXPECT_EQ(model.parameters[0], before);
  }
  HOTROW_EXPECT_OK(DenseUpdate({}, {}, {}, 1.0f, 1));
}

TEST(DenseOptimizerTest, NamesRoundTripAndUnknownOnesAreListed) {
  for (const DenseOptimizerKind kind : kKinds) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const DenseOptimizerKind parsed,
                                ParseDenseOptimizer(DenseOptimizerName(kind)));
    EXPECT_EQ(parsed, kind);
  }
  EXPECT_THAT(ParseDenseOptimizer("lamb"),
              test::StatusIs(absl::StatusCode::kInvalidArgument,
                             testing::AllOf(HasSubstr("lamb"), HasSubstr("sgd"),
                                            HasSubstr("adagrad"), HasSubstr("adam"))));
}

TEST(DenseOptimizerTest, ErrorsNameTheField) {
  const auto code = absl::StatusCode::kInvalidArgument;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto config_error = [&](DenseOptimizerConfig config, const char* field) {
    EXPECT_THAT(config.Validate(), test::StatusIs(code, HasSubstr(field)));
    EXPECT_THAT(DenseUpdate({}, config, {}, 1.0f, 1), test::StatusIs(code, HasSubstr(field)));
  };
  config_error({.learning_rate = -1}, "learning_rate must be finite and >= 0, got -1");
  config_error({.learning_rate = nan}, "learning_rate");
  config_error({.eps = 0}, "eps");
  config_error({.beta1 = 1}, "beta1");
  config_error({.beta2 = -0.5f}, "beta2");
  config_error({.weight_decay = -1}, "weight_decay");
  config_error({.average_decay = 1}, "average_decay must be in [0, 1), got 1");

  std::vector<float> w(3), g(2), s(3);
  const auto update = [&](DenseOptimizerKind kind, DenseTensor tensor, float factor = 1.0f,
                          uint32_t step = 1) {
    return DenseUpdate({}, {.kind = kind}, {&tensor, 1}, factor, step);
  };
  const auto [sgd, adagrad, adam] = kKinds;
  EXPECT_THAT(update(sgd, {w, g, {}, {}, {}}),
              test::StatusIs(code, HasSubstr("tensors[0].gradients must have 3 elements, got 2")));
  EXPECT_THAT(update(adagrad, {w, s, {}, {}, {}}), test::StatusIs(code, HasSubstr("momentum1")));
  EXPECT_THAT(update(adam, {w, s, s, {}, {}}), test::StatusIs(code, HasSubstr("momentum2")));
  EXPECT_THAT(update(sgd, {w, s, s, {}, {}}), test::StatusIs(code, HasSubstr("momentum1")));
  EXPECT_THAT(update(sgd, {w, s, {}, {}, s}), test::StatusIs(code, HasSubstr("average")));
  EXPECT_THAT(update(sgd, {w, s, {}, {}, {}}, nan), test::StatusIs(code, HasSubstr("factor")));
  EXPECT_THAT(update(sgd, {w, s, {}, {}, {}}, 1.0f, 0), test::StatusIs(code, HasSubstr("step")));
}

// What a GPU does with each number.
TEST(DenseOptimizerTest, TheFormulasOfOneNumberAreThoseOfEight) {
  for (const DenseOptimizerKind kind : kKinds) {
    const DenseOptimizerConfig config = {
        .kind = kind, .learning_rate = 0.03f, .eps = 1e-3f, .weight_decay = 0.02f};
    Model want({37}, kind, 4);
    Model got({37}, kind, 4);
    for (uint32_t step = 1; step <= 3; ++step) {
      HOTROW_ASSERT_OK(DenseUpdate({}, config, want.Tensors(), 0.7f, step));
      HOTROW_ASSERT_OK(internal::WithDenseStep(
          config, 0.7f, step, [](float x) { return x; },
          [&](const auto& formula) {
            for (size_t i = 0; i < 37; ++i) {
              float none = 0;
              formula(got.parameters[0][i], got.gradients[0][i],
                      formula.kStates >= 1 ? got.momentum1[0][i] : none,
                      formula.kStates >= 2 ? got.momentum2[0][i] : none);
            }
            return absl::OkStatus();
          }));
    }
    EXPECT_EQ(test::Bits(got.parameters[0]), test::Bits(want.parameters[0]));
    EXPECT_EQ(test::Bits(got.momentum1[0]), test::Bits(want.momentum1[0]));
    EXPECT_EQ(test::Bits(got.momentum2[0]), test::Bits(want.momentum2[0]));
  }
}

TEST(DenseOptimizerTest, AnyNumberOfTensorsFitsIntoLaunches) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 3 * internal::kDenseTensorsPerLaunch; ++i) lengths.push_back(i % 3);
  Model model(lengths, DenseOptimizerKind::kAdam, 1);
  const std::vector<DenseTensor> tensors = model.Tensors();
  std::vector<const float*> seen;
  int launches = 0;
  for (std::span<const DenseTensor> left = tensors; !left.empty(); ++launches) {
    internal::DenseTensorViews views;
    const size_t taken = internal::ViewTensors(left, &views);
    ASSERT_GT(taken, 0u);
    left = left.subspan(taken);
    int64_t end = 0;
    for (int32_t i = 0; i < views.size; ++i) {
      const internal::DenseTensorView& view = views.v[i];
      const auto index =
          static_cast<size_t>(std::find_if(tensors.begin(), tensors.end(),
                                           [&](const DenseTensor& t) {
                                             return t.parameters.data() == view.parameters;
                                           }) -
                              tensors.begin());
      ASSERT_LT(index, tensors.size());
      EXPECT_EQ(view.gradients, model.gradients[index].data());
      EXPECT_EQ(view.momentum1, model.momentum1[index].data());
      EXPECT_EQ(view.momentum2, model.momentum2[index].data());
      end += lengths[index];
      EXPECT_EQ(view.end, end);
      seen.push_back(view.parameters);
    }
  }
  EXPECT_EQ(seen.size(), 2 * static_cast<size_t>(internal::kDenseTensorsPerLaunch));
  EXPECT_EQ(launches, 2);
  // In order, each once.
  size_t next = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (lengths[i] == 0) continue;
    EXPECT_EQ(seen[next++], model.parameters[i].data());
  }
}

TEST(DenseOptimizerTest, AStepThatIsLeftOutChangesNothing) {
  const std::vector<float> gradients = {1, 2, 3};
  std::vector<float> parameters = {4, 5, 6}, momentum1 = {7, 8, 9}, momentum2 = {1, 1, 1};
  const DenseTensor tensor = {parameters, gradients, momentum1, momentum2};
  const DenseOptimizerConfig adam = {.kind = DenseOptimizerKind::kAdam};
  const uint32_t skips[] = {0, 1};
  HOTROW_ASSERT_OK(DenseUpdate({}, adam, {&tensor, 1}, 1, 1, nullptr, &skips[1]));
  EXPECT_EQ(parameters, (std::vector<float>{4, 5, 6}));
  EXPECT_EQ(momentum1, (std::vector<float>{7, 8, 9}));
  EXPECT_EQ(momentum2, (std::vector<float>{1, 1, 1}));
  HOTROW_ASSERT_OK(DenseUpdate({}, adam, {&tensor, 1}, 1, 1, nullptr, &skips[0]));
  EXPECT_NE(parameters[0], 4);
}

}  // namespace
}  // namespace hotrow
