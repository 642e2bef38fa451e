#include "ops/update/sparse_optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/philox.h"
#include "ops/rows/row_layout.h"
#include "ops/update/sparse_optimizer_impl.h"
#include "ops/update/step_history.h"
#include "ops/update/step_history_impl.h"
#include "tests/ops/half_reference.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using testing::HasSubstr;
using Kind = SparseOptimizerKind;

std::vector<Kind> AllKinds() {
  std::vector<Kind> kinds;
  for (const SparseOptimizerFacts& facts : SparseOptimizers()) kinds.push_back(facts.kind);
  return kinds;
}

constexpr uint64_t kSeed = 11;
constexpr uint32_t kTable = 3;

// Some rows side by side in aligned memory.
class Rows {
 public:
  Rows(const SparseOptimizerConfig& config, int32_t dim, int64_t num_rows,
       WeightsPrecision precision = WeightsPrecision::kFp32)
      : config_(config),
        layout_(RowLayout::For(dim, config.kind, precision)),
        num_rows_(num_rows),
        memory_(std::move(HostBuffer<std::byte>::Create(num_rows * layout_.row_bytes)).value()) {
    const bool is_sum = config.kind == Kind::kAdagrad || config.kind == Kind::kRowWiseAdagrad;
    for (int64_t u = 0; u < num_rows; ++u) {
      for (int32_t i = 0; i < layout_.state_floats; ++i) {
        if (is_sum || (config.kind == Kind::kFtrl && i >= dim)) {
          state(u)[i] = config.initial_accumulator;
        }
      }
    }
  }

  const RowLayout& layout() const { return layout_; }
  std::byte* row(int64_t u) { return memory_.data() + u * layout_.row_bytes; }
  static uint64_t key(int64_t u) { return 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(u + 1); }
  float* weights(int64_t u) { return reinterpret_cast<float*>(row(u)); }  // of fp32
  float weight(int64_t u, int64_t d) { return test::LoadWeight(layout_.precision, row(u), d); }
  void SetWeight(int64_t u, int64_t d, float x) {
    test::StoreWeight(layout_.precision, /*stochastic=*/false, x, 0, row(u), d);
  }
  float* state(int64_t u) { return reinterpret_cast<float*>(row(u) + layout_.state_offset); }
  uint32_t last_step(int64_t u) {
    uint32_t step;
    std::memcpy(&step, row(u) + layout_.step_offset, sizeof(step));
    return step;
  }
  std::vector<std::byte> bytes() const { return {memory_.begin(), memory_.end()}; }

  // gradients: [num_rows, dim]
  absl::Status Update(const std::vector<float>& gradients, uint32_t step, float factor = 1,
                      ThreadPool* pool = nullptr) {
    std::vector<int64_t> all;
    for (int64_t u = 0; u < num_rows_; ++u) all.push_back(u);
    return UpdateSome(all, gradients, step, factor, pool);
  }
  // gradients: [which.size(), dim]
  absl::Status UpdateSome(const std::vector<int64_t>& which, const std::vector<float>& gradients,
                          uint32_t step, float factor = 1, ThreadPool* pool = nullptr,
                          const StepHistory* history = nullptr) {
    std::vector<std::byte*> rows;
    std::vector<const float*> gradient_rows;
    std::vector<uint64_t> keys;
    for (const int64_t u : which) {
      keys.push_back(key(u));
      gradient_rows.push_back(gradients.data() + static_cast<int64_t>(rows.size()) * layout_.dim);
      rows.push_back(row(u));
    }
    return SparseUpdate({.pool = pool}, {.config = config_,
                                         .layout = &layout_,
                                         .num_rows = static_cast<int64_t>(which.size()),
                                         .rows = rows.data(),
                                         .gradients = gradient_rows.data(),
                                         .learning_rate_factor = factor,
                                         .step = step,
                                         .seed = kSeed,
                                         .table = kTable,
                                         .keys = keys.data(),
                                         .history = history,
                                         .skip = skip_});
  }
  void set_skip(const uint32_t* skip) { skip_ = skip; }  // for updates from here on

 private:
  SparseOptimizerConfig config_;
  RowLayout layout_;
  int64_t num_rows_;
  HostBuffer<std::byte> memory_;
  const uint32_t* skip_ = nullptr;
};

// The same formulas in double, straight from the papers, one row.
struct ReferenceRow {
  std::vector<double> w;
  std::vector<double> s1;  // momentum1, z
  std::vector<double> s2;  // momentum2, n
  double row_s1 = 0;       // row-wise Adagrad
  double row_s2 = 0;       // partial row-wise Adam
  bool first = true;

  ReferenceRow(const SparseOptimizerConfig& c, const float* weights, int32_t dim)
      : w(weights, weights + dim),
        s1(dim, c.kind == Kind::kAdagrad ? c.initial_accumulator : 0),
        s2(dim, c.kind == Kind::kFtrl ? c.initial_accumulator : 0),
        row_s1(c.initial_accumulator) {}

  void Update(const SparseOptimizerConfig& c, const float* gradient, double factor, uint32_t step) {
    const double lr = c.learning_rate * factor;
    const bool decoupled = c.weight_decay_mode == WeightDecayMode::kDecoupled;
    const size_t dim = w.size();
    std::vector<double> g(gradient, gradient + dim);
    double mean_square = 0;
    for (size_t d = 0; d < dim; ++d) {
      if (!decoupled) g[d] += c.weight_decay * w[d];
      mean_square += g[d] * g[d] / static_cast<double>(dim);
    }
    const double b1 = c.beta1;
    const double b2 = c.beta2;
    const double correction1 = 1 - std::pow(b1, step);
    const double correction2 = 1 - std::pow(b2, step);
    row_s1 += mean_square;
    row_s2 = b2 * row_s2 + (1 - b2) * mean_square;
    const bool lamb = c.kind == Kind::kLamb || c.kind == Kind::kPartialRowWiseLamb;
    std::vector<double> direction(dim);  // LAMB's
    double weight_squares = 0;
    double direction_squares = 0;
    for (size_t d = 0; d < dim; ++d) {
      if (decoupled && !lamb) w[d] -= lr * c.weight_decay * w[d];
      switch (c.kind) {
        case Kind::kSgd:
          w[d] -= lr * g[d];
          break;
        case Kind::kMomentum:
          s1[d] = b1 * s1[d] + g[d];
          w[d] -= lr * s1[d];
          break;
        case Kind::kAdagrad:
          s1[d] += g[d] * g[d];
          w[d] -= lr * g[d] / (std::sqrt(s1[d]) + c.eps);
          break;
        case Kind::kRowWiseAdagrad:
          w[d] -= lr * g[d] / (std::sqrt(row_s1) + c.eps);
          break;
        case Kind::kAdam:
          s1[d] = b1 * s1[d] + (1 - b1) * g[d];
          s2[d] = b2 * s2[d] + (1 - b2) * g[d] * g[d];
          w[d] -= lr * (s1[d] / correction1) / (std::sqrt(s2[d] / correction2) + c.eps);
          break;
        case Kind::kPartialRowWiseAdam:
          s1[d] = b1 * s1[d] + (1 - b1) * g[d];
          w[d] -= lr * (s1[d] / correction1) / (std::sqrt(row_s2 / correction2) + c.eps);
          break;
        case Kind::kFtrl: {
          const double old = std::pow(s2[d], -c.lr_power) / lr;
          if (first) s1[d] = -old * w[d];
          s2[d] += g[d] * g[d];
          const double now = std::pow(s2[d], -c.lr_power) / lr;
          s1[d] += g[d] - (now - old) * w[d];
          const double sign = s1[d] < 0 ? -1 : 1;
          if (now + c.l2 > 0) {
            w[d] = std::abs(s1[d]) <= c.l1 ? 0 : -(s1[d] - sign * c.l1) / (now + c.l2);
          }
          break;
        }
        case Kind::kLamb:
        case Kind::kPartialRowWiseLamb: {
          s1[d] = b1 * s1[d] + (1 - b1) * g[d];
          s2[d] = b2 * s2[d] + (1 - b2) * g[d] * g[d];
          const double v = c.kind == Kind::kLamb ? s2[d] : row_s2;
          direction[d] = s1[d] / correction1 / (std::sqrt(v / correction2) + c.eps) +
                         (decoupled ? c.weight_decay * w[d] : 0);
          weight_squares += w[d] * w[d];
          direction_squares += direction[d] * direction[d];
          break;
        }
      }
    }
    if (lamb) {
      const double ratio = weight_squares > 0 && direction_squares > 0
                               ? std::sqrt(weight_squares) / std::sqrt(direction_squares)
                               : 1;
      for (size_t d = 0; d < dim; ++d) w[d] -= lr * ratio * direction[d];
    }
    first = false;
  }
};

class SparseOptimizerTest : public testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, SparseOptimizerTest, testing::ValuesIn(AllKinds()),
                         [](const testing::TestParamInfo<Kind>& info) {
                           return std::string(SparseOptimizerName(info.param));
                         });

TEST_P(SparseOptimizerTest, MatchesADoubleReferenceOverTenSteps) {
  for (const uint64_t seed : test::Seeds(24)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const int32_t dims[] = {1, 7, 8, 17, 64};
    const int32_t dim = dims[random.Below(5)];
    SparseOptimizerConfig config{.kind = GetParam(), .learning_rate = 0.05f};
    config.weight_decay = random.Below(2) == 0 ? 0 : 0.02f;
    if (GetParam() != Kind::kFtrl && random.Below(2) == 0) {
      config.weight_decay_mode = WeightDecayMode::kDecoupled;
    }
    config.initial_accumulator = random.Below(2) == 0 ? 0 : 0.1f;
    config.lr_power = random.Below(2) == 0 ? -0.5f : -0.7f;
    config.l1 = random.Below(2) == 0 ? 0 : 0.3f;
    config.l2 = random.Below(2) == 0 ? 0 : 0.2f;
    Rows rows(config, dim, 3);
    std::vector<ReferenceRow> reference;
    for (int64_t u = 0; u < 3; ++u) {
      for (int32_t d = 0; d < dim; ++d) rows.weights(u)[d] = random.Normal();
      reference.emplace_back(config, rows.weights(u), dim);
    }
    for (uint32_t step = 1; step <= 10; ++step) {
      std::vector<float> gradients(static_cast<size_t>(3 * dim));
      for (float& g : gradients) g = random.Normal();
      // FTRL has no meaning for a rate that changes (see the formulas), the others have.
      const float factor =
          GetParam() == Kind::kFtrl ? 1.0f : 1.0f - 0.05f * static_cast<float>(step);
      HOTROW_ASSERT_OK(rows.Update(gradients, step, factor));
      for (int64_t u = 0; u < 3; ++u) {
        reference[u].Update(config, gradients.data() + u * dim, factor, step);
        EXPECT_EQ(rows.last_step(u), step);
        for (int32_t d = 0; d < dim; ++d) {
          // Weights are of size 1 and a step rounds a dozen times; FTRL holds w in z, which is 20
          // times (1 / lr) as large, and so are its errors.
          const double tolerance = GetParam() == Kind::kFtrl ? 2e-5 : 3e-6;
          ASSERT_NEAR(rows.weights(u)[d], reference[u].w[d], tolerance)
              << "step " << step << " row " << u << " column " << d;
        }
      }
    }
  }
}

TEST_P(SparseOptimizerTest, RowsOutsideTheBatchDoNotMove) {
  const SparseOptimizerConfig config{.kind = GetParam(), .weight_decay = 0.1f};
  Rows rows(config, 17, 3);
  const std::vector<float> gradients(3 * 17, 0.5f);
  HOTROW_ASSERT_OK(rows.Update(gradients, 1));
  const std::vector<std::byte> before(rows.row(1), rows.row(2));
  HOTROW_ASSERT_OK(rows.UpdateSome({2, 0}, gradients, 2));
  EXPECT_EQ(std::vector<std::byte>(rows.row(1), rows.row(2)), before);
  EXPECT_EQ(rows.last_step(0), 2);
  EXPECT_EQ(rows.last_step(1), 1);
  EXPECT_EQ(rows.last_step(2), 2);
}

TEST_P(SparseOptimizerTest, AStepThatIsLeftOutChangesNothing) {
  Rows rows({.kind = GetParam(), .weight_decay = 0.1f}, 17, 3);
  const std::vector<float> gradients(3 * 17, 0.5f);
  HOTROW_ASSERT_OK(rows.Update(gradients, 1));
  const std::vector<std::byte> before = rows.bytes();
  uint32_t skip = 1;
  rows.set_skip(&skip);
  HOTROW_ASSERT_OK(rows.Update(gradients, 2));
  EXPECT_EQ(rows.bytes(), before);
  skip = 0;
  HOTROW_ASSERT_OK(rows.Update(gradients, 2));
  EXPECT_EQ(rows.last_step(0), 2);
}

TEST_P(SparseOptimizerTest, SameBitsOnAnyPoolAndInAnyOrder) {
  ThreadPool one(1);
  ThreadPool four(4);
  for (const auto& [dim, precision] :
       std::vector<std::pair<int32_t, WeightsPrecision>>{{1, WeightsPrecision::kFp32},
                                                         {17, WeightsPrecision::kFp32},
                                                         {64, WeightsPrecision::kFp32},
                                                         {17, WeightsPrecision::kFp16},
                                                         {64, WeightsPrecision::kBf16}}) {
    constexpr int64_t kRows = 700;
    RandomStream random(static_cast<uint64_t>(dim), RandomPurpose::kTest);
    std::vector<float> gradients(static_cast<size_t>(kRows * dim));
    for (float& g : gradients) g = random.Normal();
    const SparseOptimizerConfig config{.kind = GetParam()};
    Rows want(config, dim, kRows, precision);
    HOTROW_ASSERT_OK(want.Update(gradients, 1));
    HOTROW_ASSERT_OK(want.Update(gradients, 2));
    for (ThreadPool* pool : {&one, &four}) {
      Rows got(config, dim, kRows, precision);
      HOTROW_ASSERT_OK(got.Update(gradients, 1, 1, pool));
      HOTROW_ASSERT_OK(got.Update(gradients, 2, 1, pool));
      EXPECT_EQ(got.bytes(), want.bytes());
    }
    Rows reversed(config, dim, kRows, precision);
    std::vector<int64_t> which;
    std::vector<float> reversed_gradients;
    for (int64_t u = kRows - 1; u >= 0; --u) {
      which.push_back(u);
      reversed_gradients.insert(reversed_gradients.end(), gradients.begin() + u * dim,
                                gradients.begin() + (u + 1) * dim);
    }
    HOTROW_ASSERT_OK(reversed.UpdateSome(which, reversed_gradients, 1));
    HOTROW_ASSERT_OK(reversed.UpdateSome(which, reversed_gradients, 2));
    EXPECT_EQ(reversed.bytes(), want.bytes());
  }
}

// The formulas with one column to a lane, in the order in which the kernels use them, against the
// CPU's eight: the same bits.
template <typename Formula>
void UpdateRowByColumns(const internal::StepNumbers<float>& numbers, const RowLayout& layout,
                        const float* gradient, bool first_update, float* weights) {
  const int32_t dim = layout.dim;
  float* const state = weights + dim;
  // The sum of the values of all columns.
  const auto sum = [dim](auto&& value) {
    float sums[internal::kMeanSquareLanes] = {};
    for (int32_t d = 0; d < dim; ++d) sums[d % internal::kMeanSquareLanes] += value(d);
    for (int distance = 1; distance < internal::kMeanSquareLanes; distance *= 2) {
      float next[internal::kMeanSquareLanes];
      for (int i = 0; i < internal::kMeanSquareLanes; ++i) next[i] = sums[i] + sums[i ^ distance];
      std::copy(std::begin(next), std::end(next), sums);
    }
    return sums[3];
  };
  const auto columns = [&](int32_t d) {
    return internal::StepColumns<float>{weights[d], Formula::kColumnStates > 0 ? state[d] : 0,
                                        Formula::kColumnStates > 1 ? state[dim + d] : 0};
  };
  const auto gradient_at = [&](int32_t d) { return numbers.Gradient(gradient[d], weights[d]); };
  float rate = 0;
  if constexpr (Formula::kRowState) {
    const float squares = sum([&](int32_t d) { return gradient_at(d) * gradient_at(d); });
    rate = Formula::RowRate(numbers, squares / static_cast<float>(dim),
                            state + Formula::kColumnStates * dim);
  }
  float trust_rate = 0;
  if constexpr (Formula::kTrustRatio) {
    const float directions = sum([&](int32_t d) {
      internal::StepColumns<float> x = columns(d);
      const float direction = Formula::Direction(numbers, rate, gradient_at(d), x);
      return direction * direction;
    });
    trust_rate =
        numbers.learning_rate *
        internal::TrustRatio(sum([&](int32_t d) { return weights[d] * weights[d]; }), directions);
  }
  for (int32_t d = 0; d < dim; ++d) {
    internal::StepColumns<float> x = columns(d);
    if constexpr (Formula::kTrustRatio) {
      x.w = x.w - trust_rate * Formula::Direction(numbers, rate, gradient_at(d), x);
    } else {
      Formula::Apply(numbers, rate, first_update, gradient_at(d), x);
    }
    weights[d] = x.w;
    if constexpr (Formula::kColumnStates > 0) state[d] = x.s1;
    if constexpr (Formula::kColumnStates > 1) state[dim + d] = x.s2;
  }
}

TEST_P(SparseOptimizerTest, OneColumnToALaneGivesTheSameBits) {
  for (const uint64_t seed : test::Seeds(40)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const int32_t dims[] = {1, 3, 7, 16, 64, 100, 128, 1000};
    const int32_t dim = dims[random.Below(std::size(dims))];
    SparseOptimizerConfig config{.kind = GetParam(), .learning_rate = 0.05f};
    config.weight_decay = random.Below(2) == 0 ? 0 : 0.02f;
    if (GetParam() != Kind::kFtrl && random.Below(2) == 0) {
      config.weight_decay_mode = WeightDecayMode::kDecoupled;
    }
    config.initial_accumulator = random.Below(2) == 0 ? 0 : 0.1f;
    config.lr_power = random.Below(2) == 0 ? -0.5f : -0.7f;
    config.l1 = random.Below(2) == 0 ? 0 : 0.3f;
    config.l2 = random.Below(2) == 0 ? 0 : 0.2f;
    Rows rows(config, dim, 1);
    Rows by_columns(config, dim, 1);
    for (int32_t d = 0; d < dim; ++d) {
      rows.weights(0)[d] = by_columns.weights(0)[d] = random.Normal();
    }
    for (uint32_t step = 1; step <= 4; ++step) {
      std::vector<float> gradient(static_cast<size_t>(dim));
      for (float& g : gradient) g = random.Below(8) == 0 ? -0.0f : random.Normal();
      const SparseUpdateArgs args = {.config = config, .step = step};
      ASSERT_TRUE(internal::WithFormula(config, [&](auto formula) {
                    UpdateRowByColumns<decltype(formula)>(internal::NumbersOf(args), rows.layout(),
                                                          gradient.data(), step == 1,
                                                          by_columns.weights(0));
                    return absl::OkStatus();
                  }).ok());
      HOTROW_ASSERT_OK(rows.Update(gradient, step));
      const auto floats = static_cast<size_t>(dim + rows.layout().state_floats);
      ASSERT_EQ(std::memcmp(rows.weights(0), by_columns.weights(0), floats * sizeof(float)), 0)
          << "dim " << dim << " step " << step;
    }
  }
}

TEST_P(SparseOptimizerTest, CountsTheRowsThatAreNew) {
  ThreadPool four(4);
  constexpr int64_t kRows = 1000;
  const SparseOptimizerConfig config{.kind = GetParam()};
  Rows rows(config, 3, kRows);
  const std::vector<float> gradients(3 * kRows, 0.5f);
  std::vector<int64_t> some;
  for (int64_t u = 0; u < kRows; u += 3) some.push_back(u);
  HOTROW_ASSERT_OK(rows.UpdateSome(some, gradients, 1));
  int64_t new_rows = 7;
  for (const int64_t want : {7 + kRows - std::ssize(some), 7 + kRows - std::ssize(some)}) {
    std::vector<std::byte*> row_pointers;
    std::vector<const float*> gradient_pointers;
    for (int64_t u = 0; u < kRows; ++u) {
      row_pointers.push_back(rows.row(u));
      gradient_pointers.push_back(gradients.data() + 3 * u);
    }
    HOTROW_ASSERT_OK(SparseUpdate({.pool = &four}, {.config = config,
                                                    .layout = &rows.layout(),
                                                    .num_rows = kRows,
                                                    .rows = row_pointers.data(),
                                                    .gradients = gradient_pointers.data(),
                                                    .step = 2,
                                                    .new_rows = &new_rows}));
    EXPECT_EQ(new_rows, want);
  }
}

TEST_P(SparseOptimizerTest, PaddingStaysZero) {
  Rows rows({.kind = GetParam()}, 1, 1);
  HOTROW_ASSERT_OK(rows.Update({1}, 7));
  for (int64_t i = rows.layout().step_offset + 4; i < rows.layout().row_bytes; ++i) {
    EXPECT_EQ(rows.row(0)[i], std::byte{0});
  }
}

TEST_P(SparseOptimizerTest, ZeroLearningRateKeepsTheWeights) {
  Rows rows({.kind = GetParam(), .initial_accumulator = 0.1f}, 5, 1);
  for (int d = 0; d < 5; ++d) rows.weights(0)[d] = static_cast<float>(d) - 2;
  HOTROW_ASSERT_OK(rows.Update({1, 2, 3, 4, 5}, 1, /*factor=*/0));
  for (int d = 0; d < 5; ++d) EXPECT_EQ(rows.weights(0)[d], static_cast<float>(d) - 2);
}

// Runs `steps` on one row of two columns that starts at w0.
std::vector<float> Train(const SparseOptimizerConfig& config, std::vector<float> w0,
                         const std::vector<std::vector<float>>& gradients, uint32_t step = 1) {
  Rows rows(config, static_cast<int32_t>(w0.size()), 1);
  std::copy(w0.begin(), w0.end(), rows.weights(0));
  for (const std::vector<float>& gradient : gradients) {
    HOTROW_EXPECT_OK(rows.Update(gradient, step++));
  }
  return {rows.weights(0), rows.weights(0) + w0.size()};
}

testing::Matcher<std::vector<float>> Near(float a, float b) {
  return testing::ElementsAre(testing::FloatNear(a, 1e-6f), testing::FloatNear(b, 1e-6f));
}

TEST(SparseOptimizerHandWorkedTest, Sgd) {
  EXPECT_THAT(Train({.kind = Kind::kSgd, .learning_rate = 0.5f}, {1, 2}, {{1, -4}}), Near(0.5f, 4));
}

TEST(SparseOptimizerHandWorkedTest, WeightDecay) {
  // L2: g = 1 + 0.5 * 2 = 2, so sgd goes to 2 - 0.1 * 2. Decoupled with sgd is the same step.
  SparseOptimizerConfig config{.kind = Kind::kSgd, .learning_rate = 0.1f, .weight_decay = 0.5f};
  EXPECT_THAT(Train(config, {2, 0}, {{1, 0}}), Near(1.8f, 0));
  config.weight_decay_mode = WeightDecayMode::kDecoupled;
  EXPECT_THAT(Train(config, {2, 0}, {{1, 0}}), Near(1.8f, 0));
  // With Adagrad they differ: L2 divides the decay by sqrt(s) too.
  config.kind = Kind::kAdagrad;
  EXPECT_THAT(Train(config, {2, 0}, {{1, 0}}), Near(1.8f, 0));  // 2 * 0.95 - 0.1 * 1 / 1
  config.weight_decay_mode = WeightDecayMode::kL2;
  EXPECT_THAT(Train(config, {2, 0}, {{1, 0}}), Near(1.9f, 0));  // 2 - 0.1 * 2 / 2
}

TEST(SparseOptimizerHandWorkedTest, Momentum) {
  // m: 1, 0.5 + 1 = 1.5; w: 0 - 0.1 - 0.15.
  EXPECT_THAT(Train({.kind = Kind::kMomentum, .learning_rate = 0.1f, .beta1 = 0.5f}, {0, 1},
                    {{1, 0}, {1, 0}}),
              Near(-0.25f, 1));
}

TEST(SparseOptimizerHandWorkedTest, Adagrad) {
  // s: 9, 25; w: 1 - 3/3, then -4/5; with the accumulator at 16 the first s is 25.
  SparseOptimizerConfig config{.kind = Kind::kAdagrad, .learning_rate = 1};
  EXPECT_THAT(Train(config, {1, 1}, {{3, 0}, {4, 0}}), Near(-0.8f, 1));
  config.initial_accumulator = 16;
  EXPECT_THAT(Train(config, {1, 1}, {{3, 0}}), Near(0.4f, 1));
  // eps stands outside of the root: 3 / (3 + 3), not 3 / sqrt(9 + 3).
  EXPECT_THAT(Train({.kind = Kind::kAdagrad, .learning_rate = 1, .eps = 3}, {1, 1}, {{3, 0}}),
              Near(0.5f, 1));
}

TEST(SparseOptimizerHandWorkedTest, RowWiseAdagrad) {
  // Mean square of (1, 7) is 25, of (5, 5 sqrt(5)) is 75; their sum is 100.
  EXPECT_THAT(Train({.kind = Kind::kRowWiseAdagrad, .learning_rate = 1}, {0, 0}, {{1, 7}}),
              Near(-0.2f, -1.4f));
  EXPECT_THAT(Train({.kind = Kind::kRowWiseAdagrad, .learning_rate = 1}, {0.2f, 1.4f},
                    {{1, 7}, {5, 11.1803399f}}),
              Near(-0.5f, -1.11803399f));
}

TEST(SparseOptimizerHandWorkedTest, Adam) {
  // After one step mhat = g and vhat = g^2: a step of lr against the sign of g.
  EXPECT_THAT(Train({.kind = Kind::kAdam, .learning_rate = 0.1f}, {1, 1}, {{5, -0.01f}}),
              Near(0.9f, 1.1f));
  // b1 = 0.5, b2 = 0.75, g = 1 then 3. m: 0.5, 1.75; mhat = 1.75 / 0.75. v: 0.25, 0.1875 + 2.25 =
  // 2.4375; vhat = 2.4375 / 0.4375. w: -1, then - 2.333333 / 2.360387.
  EXPECT_THAT(Train({.kind = Kind::kAdam, .learning_rate = 1, .beta1 = 0.5f, .beta2 = 0.75f},
                    {0, 0}, {{1, 0}, {3, 0}}),
              Near(-1.988538f, 0));
  // A row first seen at the table's step 2 is corrected by step 2: m = 0.5, mhat = 0.5 / 0.75; v =
  // 0.25, vhat = 0.25 / 0.4375.
  EXPECT_THAT(Train({.kind = Kind::kAdam, .learning_rate = 1, .beta1 = 0.5f, .beta2 = 0.75f},
                    {0, 0}, {{1, 0}}, /*step=*/2),
              Near(-0.881917f, 0));
}

TEST(SparseOptimizerHandWorkedTest, PartialRowWiseAdam) {
  // After one step mhat = g and vhat = the mean square, 25.
  EXPECT_THAT(Train({.kind = Kind::kPartialRowWiseAdam, .learning_rate = 1}, {0, 0}, {{1, 7}}),
              Near(-0.2f, -1.4f));
}

TEST(SparseOptimizerHandWorkedTest, Lamb) {
  const SparseOptimizerConfig config{.kind = Kind::kLamb, .learning_rate = 0.1f};
  // After one step mhat = g and vhat = g^2, so r = (1, -1); |w| / |r| = 5 / sqrt(2).
  EXPECT_THAT(Train(config, {3, 4}, {{1, -1}}), Near(2.6464466f, 4.3535534f));
  // A row of zeros, and one whose gradient is zero: the ratio is 1.
  EXPECT_THAT(Train(config, {0, 0}, {{1, -1}}), Near(-0.1f, 0.1f));
  EXPECT_THAT(Train(config, {3, 4}, {{0, 0}}), Near(3, 4));
  // Decoupled decay is part of the direction: r = (1, -1) + 0.5 (3, 4) = (2.5, 1).
  EXPECT_THAT(Train({.kind = Kind::kLamb,
                     .learning_rate = 0.1f,
                     .weight_decay = 0.5f,
                     .weight_decay_mode = WeightDecayMode::kDecoupled},
                    {3, 4}, {{1, -1}}),
              Near(2.5357616f, 3.8143047f));
}

TEST(SparseOptimizerHandWorkedTest, PartialRowWiseLamb) {
  // vhat = the mean square, 25: r = (0.2, 1.4), of norm sqrt(2).
  EXPECT_THAT(Train({.kind = Kind::kPartialRowWiseLamb, .learning_rate = 0.1f}, {3, 4}, {{1, 7}}),
              Near(2.9292893f, 3.5050253f));
}

TEST(SparseOptimizerHandWorkedTest, Ftrl) {
  SparseOptimizerConfig config{.kind = Kind::kFtrl, .learning_rate = 0.5f};
  // From w = 0: n = 9, z = 3, w = -3 / (3 / 0.5) = -0.5. Then g = 4: n = 25, sigma = (5 - 3) / 0.5
  // = 4, z = 3 + 4 + 4 * 0.5 = 9, w = -9 / 10.
  EXPECT_THAT(Train(config, {0, 0}, {{3, 0}}), Near(-0.5f, 0));
  EXPECT_THAT(Train(config, {0, 0}, {{3, 0}, {4, 0}}), Near(-0.9f, 0));
  // l1 = 1 leaves z = 3 - 1: w = -2 / 6; l2 = 2 makes the denominator 8.
  config.l1 = 1;
  EXPECT_THAT(Train(config, {0, 0}, {{3, 0.5f}}), Near(-1.0f / 3, 0));
  config.l1 = 0;
  config.l2 = 2;
  EXPECT_THAT(Train(config, {0, 0}, {{3, 0}}), Near(-0.375f, 0));
  // Both signs of z.
  config.l1 = 1;
  EXPECT_THAT(Train(config, {0, 0}, {{-3, 3}}), Near(0.25f, -0.25f));
}

// The fault others shipped: with the wrong sign of lr_power steps grow.
TEST(SparseOptimizerHandWorkedTest, FtrlStepsShrinkAsSquaresAddUp) {
  for (const float lr_power : {-0.5f, -0.3f, -0.8f}) {
    Rows rows({.kind = Kind::kFtrl, .learning_rate = 0.1f, .lr_power = lr_power}, 1, 1);
    float step_before = std::numeric_limits<float>::infinity();
    for (uint32_t step = 1; step <= 20; ++step) {
      const float before = rows.weights(0)[0];
      HOTROW_ASSERT_OK(rows.Update({2}, step));
      const float change = before - rows.weights(0)[0];
      EXPECT_GT(change, 0) << step;
      EXPECT_LT(change, step_before) << step;
      step_before = change;
    }
  }
  // lr_power = 0: the rate does not fall.
  EXPECT_THAT(Train({.kind = Kind::kFtrl, .learning_rate = 0.1f, .lr_power = 0}, {0, 0},
                    {{1, 2}, {1, 2}, {1, 2}}),
              Near(-0.3f, -0.6f));
}

TEST(SparseOptimizerHandWorkedTest, FtrlStartsFromTheInitialWeight) {
  // n: 16 -> 25: w moves by -lr g / sqrt(25) from where it is.
  EXPECT_THAT(Train({.kind = Kind::kFtrl, .learning_rate = 0.5f, .initial_accumulator = 16},
                    {2, -2}, {{3, -3}}),
              Near(2 - 0.3f, -2 + 0.3f));
  EXPECT_THAT(Train({.kind = Kind::kFtrl, .learning_rate = 0.5f}, {2, 7}, {{3, 0}}), Near(1.5f, 7));
  // l1 and l2 act on a weight that was drawn as on any other.
  EXPECT_THAT(
      Train({.kind = Kind::kFtrl, .learning_rate = 0.5f, .initial_accumulator = 16, .l1 = 100},
            {2, -2}, {{3, -3}}),
      Near(0, 0));
}

// Weights of 16 bits.

// Widen, do in float what fp32 does, round with the documented words: by columns, with its own
// rounding. All bytes are compared, so also state, last step and padding.
TEST_P(SparseOptimizerTest, HalfWeightsAreThoseOfTheReference) {
  for (const WeightsPrecision precision : test::kHalfPrecisions) {
    for (const int32_t dim : {1, 2, 3, 7, 8, 15, 17, 64, 130}) {
      SCOPED_TRACE(testing::Message() << WeightsPrecisionName(precision) << " dim " << dim);
      constexpr int64_t kRows = 3;
      RandomStream random(static_cast<uint64_t>(dim), RandomPurpose::kTest);
      SparseOptimizerConfig config{.kind = GetParam(), .learning_rate = 0.05f};
      config.weight_decay = 0.02f;
      config.initial_accumulator = dim % 2 == 0 ? 0 : 0.1f;
      Rows rows(config, dim, kRows, precision);
      const RowLayout& layout = rows.layout();
      // As fp32 lays a row out: weights, then state.
      std::vector<std::vector<float>> want(kRows);
      for (int64_t u = 0; u < kRows; ++u) {
        for (int32_t d = 0; d < dim; ++d) {
          rows.SetWeight(u, d, random.Normal());
          want[u].push_back(rows.weight(u, d));
        }
        want[u].insert(want[u].end(), rows.state(u), rows.state(u) + layout.state_floats);
      }
      for (uint32_t step = 1; step <= 4; ++step) {
        std::vector<float> gradients(static_cast<size_t>(kRows * dim));
        for (float& g : gradients) g = random.Below(8) == 0 ? -0.0f : random.Normal();
        HOTROW_ASSERT_OK(rows.Update(gradients, step));
        const SparseUpdateArgs args = {.config = config, .step = step};
        for (int64_t u = 0; u < kRows; ++u) {
          ASSERT_TRUE(internal::WithFormula(config, [&](auto formula) {
                        UpdateRowByColumns<decltype(formula)>(internal::NumbersOf(args), layout,
                                                              gradients.data() + u * dim, step == 1,
                                                              want[u].data());
                        return absl::OkStatus();
                      }).ok());
          std::vector<std::byte> row(static_cast<size_t>(layout.row_bytes));
          for (int32_t d = 0; d < dim; ++d) {
            const uint32_t word = test::UpdateWord(kSeed, step, kTable, Rows::key(u), d);
            test::StoreWeight(precision, /*stochastic=*/true, want[u][d], word, row.data(), d);
            want[u][d] = test::LoadWeight(precision, row.data(), d);
          }
          if (layout.state_floats > 0) {
            std::memcpy(row.data() + layout.state_offset, want[u].data() + dim,
                        static_cast<size_t>(layout.state_floats) * sizeof(float));
          }
          std::memcpy(row.data() + layout.step_offset, &step, sizeof(step));
          ASSERT_EQ(std::vector<std::byte>(rows.row(u), rows.row(u) + layout.row_bytes), row)
              << "step " << step << " row " << u;
        }
      }
    }
  }
}

// What fp32 leaves as it is, a rounding must not move.
TEST_P(SparseOptimizerTest, HalfWeightsStayWhereNothingIsLearned) {
  for (const WeightsPrecision precision : test::kHalfPrecisions) {
    Rows rows({.kind = GetParam()}, 17, 1, precision);
    for (int32_t d = 0; d < 17; ++d) rows.SetWeight(0, d, 0.1f * static_cast<float>(d - 8));
    const std::vector<std::byte> before(rows.row(0), rows.row(0) + 34);
    for (uint32_t step = 1; step <= 50; ++step) {
      HOTROW_ASSERT_OK(rows.Update(std::vector<float>(17, 0.0f), step));
      ASSERT_EQ(std::vector<std::byte>(rows.row(0), rows.row(0) + 34), before) << step;
    }
    for (uint32_t step = 51; step <= 100; ++step) {
      HOTROW_ASSERT_OK(rows.Update(std::vector<float>(17, 0.5f), step, /*factor=*/0));
      ASSERT_EQ(std::vector<std::byte>(rows.row(0), rows.row(0) + 34), before) << step;
    }
  }
}

// The distance between 1 and the next larger number.
double StepAtOne(WeightsPrecision precision) {
  return precision == WeightsPrecision::kFp16 ? 0x1p-10 : 0x1p-7;
}

// As many of many weights at 1.5 that move by a part of a step are rounded up as makes the
// mean right, over keys and columns at one step and over steps at one key.
TEST(SparseUpdateHalfTest, TheMeanIsTheValue) {
  constexpr int32_t kDim = 50;
  constexpr int64_t kRows = 200;
  constexpr double kCount = kDim * kRows;
  for (const WeightsPrecision precision : test::kHalfPrecisions) {
    const double format_step = StepAtOne(precision);
    for (const double part : {0.03, 0.3, 0.5, 0.9}) {
      SCOPED_TRACE(testing::Message() << WeightsPrecisionName(precision) << " " << part);
      // Sgd with a rate of 1 adds -g, a float that is exact to 2^-23 of 1.5.
      const auto gradient = static_cast<float>(-part * format_step);
      const double want = static_cast<double>(1.5f - gradient);
      // A weight is up with probability p: its standard deviation is sqrt(p (1 - p)) steps. Five
      // standard errors of the mean; the nearest number is off by at least 0.03 steps, six of them
      // or more.
      const double p = (want - 1.5) / format_step;
      const double bound = 5 * format_step * std::sqrt(p * (1 - p) / kCount);
      ASSERT_LT(bound, 0.029 * format_step);
      const SparseOptimizerConfig config{.kind = Kind::kSgd, .learning_rate = 1};
      const auto mean_after = [&](int64_t rows_each, auto first_step) {
        double sum = 0;
        for (int64_t i = 0; i < kRows / rows_each; ++i) {
          Rows rows(config, kDim, rows_each, precision);
          for (int64_t u = 0; u < rows_each; ++u) {
            for (int32_t d = 0; d < kDim; ++d) rows.SetWeight(u, d, 1.5f);
          }
          const std::vector<float> gradients(static_cast<size_t>(rows_each * kDim), gradient);
          HOTROW_EXPECT_OK(rows.Update(gradients, first_step(i)));
          for (int64_t u = 0; u < rows_each; ++u) {
            for (int32_t d = 0; d < kDim; ++d) {
              const double w = rows.weight(u, d);
              EXPECT_TRUE(w == 1.5 || w == 1.5 + format_step) << w;
              sum += w;
            }
          }
        }
        return sum / kCount;
      };
      EXPECT_NEAR(mean_after(kRows, [](int64_t) { return 7u; }), want, bound);
      EXPECT_NEAR(mean_after(1, [](int64_t i) { return static_cast<uint32_t>(i + 1); }), want,
                  bound);
    }
  }
}

// A hundred updates of a hundredth of a step each move a weight by one step on average. To the
// nearest, none would ever move it.
TEST(SparseUpdateHalfTest, SmallUpdatesAddUp) {
  constexpr int32_t kDim = 40;
  constexpr int64_t kRows = 100;
  constexpr int kSteps = 100;
  for (const WeightsPrecision precision : test::kHalfPrecisions) {
    const double format_step = StepAtOne(precision);
    Rows rows({.kind = Kind::kSgd, .learning_rate = 1}, kDim, kRows, precision);
    for (int64_t u = 0; u < kRows; ++u) {
      for (int32_t d = 0; d < kDim; ++d) rows.SetWeight(u, d, 1.5f);
    }
    const std::vector<float> gradients(kDim * kRows, static_cast<float>(-0.01 * format_step));
    for (uint32_t step = 1; step <= kSteps; ++step) HOTROW_ASSERT_OK(rows.Update(gradients, step));
    double sum = 0;
    for (int64_t u = 0; u < kRows; ++u) {
      for (int32_t d = 0; d < kDim; ++d) sum += rows.weight(u, d);
    }
    // Each step adds a variance of at most 0.01 steps^2; 0.01 steps as floats are off by less than
    // 2^-23, which is 2^-13 (fp16) of a step each time.
    const double bound =
        format_step * (5 * std::sqrt(kSteps * 0.01 / (kDim * kRows)) + kSteps * 0x1p-13);
    EXPECT_NEAR(sum / (kDim * kRows), 1.5 + format_step, bound) << WeightsPrecisionName(precision);
  }
}

TEST(SparseUpdateHalfTest, RoundingDependsOnSeedTableKeyAndStep) {
  const RowLayout layout = RowLayout::For(64, Kind::kSgd, WeightsPrecision::kBf16);
  const std::vector<float> gradient(64, -0.3f * 0x1p-7f);
  const auto run = [&](uint64_t seed, uint32_t table, uint64_t key, uint32_t step) {
    HostBuffer<std::byte> memory =
        std::move(HostBuffer<std::byte>::Create(layout.row_bytes)).value();
    for (int32_t d = 0; d < 64; ++d) {
      test::StoreWeight(layout.precision, false, 1.5f, 0, memory.data(), d);
    }
    std::byte* const rows[1] = {memory.data()};
    const float* const gradients[1] = {gradient.data()};
    EXPECT_THAT(SparseUpdate({}, {.config = {.kind = Kind::kSgd, .learning_rate = 1},
                                  .layout = &layout,
                                  .num_rows = 1,
                                  .rows = rows,
                                  .gradients = gradients,
                                  .step = step,
                                  .seed = seed,
                                  .table = table,
                                  .keys = &key}),
                test::IsOk());
    return std::vector<std::byte>(memory.data(), memory.data() + 128);
  };
  const std::vector<std::byte> base = run(1, 2, 3, 4);
  EXPECT_EQ(run(1, 2, 3, 4), base);
  EXPECT_NE(run(9, 2, 3, 4), base);
  EXPECT_NE(run(1, 9, 3, 4), base);
  EXPECT_NE(run(1, 2, 9, 4), base);
  EXPECT_NE(run(1, 2, 3 + (uint64_t{1} << 32), 4), base);
  EXPECT_NE(run(1, 2, 3, 9), base);
}

TEST(SparseUpdateHalfTest, TheEndsOfTheFormats) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto run = [](WeightsPrecision precision, std::vector<float> weights,
                      const std::vector<float>& gradient) {
    Rows rows({.kind = Kind::kSgd, .learning_rate = 1}, static_cast<int32_t>(weights.size()), 1,
              precision);
    for (size_t d = 0; d < weights.size(); ++d) {
      rows.SetWeight(0, static_cast<int64_t>(d), weights[d]);
    }
    HOTROW_EXPECT_OK(rows.Update(gradient, 1));
    for (size_t d = 0; d < weights.size(); ++d)
      weights[d] = rows.weight(0, static_cast<int64_t>(d));
    return weights;
  };
  using testing::ElementsAre;
  using testing::IsNan;
  // Beyond the largest number, either way; what is not finite in float is not made so.
  EXPECT_THAT(run(WeightsPrecision::kFp16, {65504, -65504, 60000, 1, 1, 1},
                  {-1, 1e6f, -1e30f, -kInf, kInf, kNan}),
              ElementsAre(65504, -65504, 65504, kInf, -kInf, IsNan()));
  const float bf16_max = test::WidenedHalf(WeightsPrecision::kBf16, test::kBf16Largest);
  EXPECT_THAT(run(WeightsPrecision::kBf16, {bf16_max, -bf16_max, 1, 1, 1},
                  {-1e36f, 1e36f, -kInf, kInf, kNan}),
              ElementsAre(bf16_max, -bf16_max, kInf, -kInf, IsNan()));
  // Subnormals of fp16 are multiples of 2^-24: sums of them are exact, halves of one go to one side
  // or the other.
  EXPECT_THAT(run(WeightsPrecision::kFp16, {0x1p-24f, 0x3p-24f, 0x1p-14f, -0.0f},
                  {-0x1p-24f, 0x5p-24f, 0x1p-24f, 0}),
              ElementsAre(0x2p-24f, -0x2p-24f, 0x3ffp-24f, 0));
  const std::vector<float> halves = run(WeightsPrecision::kFp16, std::vector<float>(1000, 0x4p-24f),
                                        std::vector<float>(1000, -0x1p-25f));
  const int64_t up = std::count(halves.begin(), halves.end(), 0x5p-24f);
  EXPECT_EQ(up + std::count(halves.begin(), halves.end(), 0x4p-24f), 1000);
  EXPECT_NEAR(static_cast<double>(up), 500, 80);  // five standard deviations of sqrt(1000) / 2
}

TEST(SparseOptimizerNamesTest, RoundTrip) {
  for (const Kind kind : AllKinds()) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const Kind parsed, ParseSparseOptimizer(SparseOptimizerName(kind)));
    EXPECT_EQ(parsed, kind);
  }
  EXPECT_THAT(ParseSparseOptimizer("adagard"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"adagard\"; expected one of sgd, momentum, adagrad, "
                                 "rowwise_adagrad, adam, partial_rowwise_adam, ftrl")));
}

// --- Whole tables decay

// Rows of both, some of which a step touches: `dense` updates all rows in each step, with a
// gradient of zeros where the step does not touch them; `lazy` only those that it touches.
TEST_P(SparseOptimizerTest, LazyTableDecayHasTheBitsOfUpdatingEveryRow) {
  constexpr int64_t kRows = 6;
  for (const WeightsPrecision precision :
       {WeightsPrecision::kFp32, WeightsPrecision::kFp16, WeightsPrecision::kBf16}) {
    for (const int32_t dim : {3, 8, 19}) {
      SCOPED_TRACE(testing::Message() << WeightsPrecisionName(precision) << ", dim " << dim);
      SparseOptimizerConfig config{.kind = GetParam(), .learning_rate = 0.05f};
      config.weight_decay = 0.02f;
      config.initial_accumulator = 0.1f;
      Rows dense(config, dim, kRows, precision);
      config.weight_decay_mode = WeightDecayMode::kTable;
      Rows lazy(config, dim, kRows, precision);
      RandomStream random(7, RandomPurpose::kTest);
      for (int64_t u = 0; u < kRows; ++u) {
        for (int32_t d = 0; d < dim; ++d) {
          const float w = random.Normal();
          dense.SetWeight(u, d, w);
          lazy.SetWeight(u, d, w);
        }
      }
      StepHistory history(config);
      uint32_t step = 0;
      const auto check = [&](bool mark) {
        const std::vector<std::byte> before = lazy.bytes();
        std::vector<std::byte*> all;
        std::vector<uint64_t> keys;
        for (int64_t u = 0; u < kRows; ++u) {
          all.push_back(lazy.row(u));
          keys.push_back(Rows::key(u));
        }
        HOTROW_ASSERT_OK(CatchUp({}, {.config = config,
                                      .layout = &lazy.layout(),
                                      .history = &history,
                                      .num_rows = kRows,
                                      .rows = all.data(),
                                      .seed = kSeed,
                                      .table = kTable,
                                      .keys = keys.data(),
                                      .mark = mark}));
        for (int64_t u = 0; u < kRows; ++u) {
          if (mark && lazy.last_step(u) == 0) continue;
          EXPECT_EQ(std::memcmp(lazy.row(u), dense.row(u),
                                static_cast<size_t>(lazy.layout().step_offset)),
                    0)
              << "row " << u << " after step " << step;
        }
        // As a read does, which works on copies.
        if (!mark) std::copy(before.begin(), before.end(), lazy.row(0));
      };
      for (step = 1; step <= 200; ++step) {
        const float factor = step < 5 ? 0.25f * static_cast<float>(step) : step == 90 ? 0 : 1;
        std::vector<float> dense_gradients(static_cast<size_t>(kRows * dim));
        std::vector<int64_t> touched;
        std::vector<float> gradients;
        // Row 0 at the start and the end, row 5 late for the first time, row 4 never.
        for (int64_t u = 0; u < kRows; ++u) {
          const bool touches = u == 0   ? step == 1 || step == 200
                               : u == 4 ? false
                               : u == 5 ? step > 150 && random.Below(4) == 0
                                        : random.Below(8) == 0;
          if (!touches) continue;
          touched.push_back(u);
          for (int32_t d = 0; d < dim; ++d) {
            const float g = random.Normal();
            dense_gradients[static_cast<size_t>(u * dim + d)] = g;
            gradients.push_back(g);
          }
        }
        HOTROW_ASSERT_OK(dense.Update(dense_gradients, step, factor));
        HOTROW_ASSERT_OK(lazy.UpdateSome(touched, gradients, step, factor, nullptr, &history));
        history.Append(factor);
        if (step % 50 == 20) check(/*mark=*/false);
        if (step == 130) check(/*mark=*/true);
      }
      step = 200;
      check(/*mark=*/true);
      check(/*mark=*/true);  // again changes nothing
      EXPECT_EQ(lazy.last_step(0), 200u);
      EXPECT_EQ(lazy.last_step(4), 0u);
    }
  }
}

TEST(TableDecayTest, StepsBeforeTheBaseAreNotMadeUpFor) {
  SparseOptimizerConfig config{.kind = Kind::kSgd, .learning_rate = 0.5f, .weight_decay = 0.5f};
  config.weight_decay_mode = WeightDecayMode::kTable;
  Rows rows(config, 1, 1);
  rows.SetWeight(0, 0, 1);
  StepHistory history(config, /*base=*/10);
  history.Append(1);
  // Step 11 is made up for, at 1 - 0.5 * 0.5, then step 12 with a gradient of 0.
  HOTROW_ASSERT_OK(rows.UpdateSome({0}, {0}, 12, 1, nullptr, &history));
  EXPECT_EQ(rows.weight(0, 0), 0.75f * 0.75f);
  EXPECT_EQ(history.steps(), 11u);
}

TEST(TableDecayTest, StepsAtOneRateAreOneRunUnlessTheyCorrectABias) {
  for (const SparseOptimizerFacts& facts : SparseOptimizers()) {
    SCOPED_TRACE(std::string(facts.name));
    const bool corrects = facts.kind == Kind::kAdam || facts.kind == Kind::kPartialRowWiseAdam ||
                          facts.kind == Kind::kLamb || facts.kind == Kind::kPartialRowWiseLamb;
    StepHistory history({.kind = facts.kind, .weight_decay_mode = WeightDecayMode::kTable});
    for (int step = 0; step < 50; ++step) history.Append(1);
    EXPECT_EQ(history.runs().size(), corrects ? 50u : 1u);
    for (int step = 0; step < 50; ++step) history.Append(0.5f);
    EXPECT_EQ(history.runs().size(), corrects ? 100u : 2u);
    EXPECT_EQ(history.steps(), 100u);
  }
}

TEST(TableDecayTest, HistoryMustBeThere) {
  SparseOptimizerConfig config{.kind = Kind::kSgd};
  config.weight_decay_mode = WeightDecayMode::kTable;
  Rows rows(config, 1, 1);
  EXPECT_THAT(rows.UpdateSome({0}, {0}, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("history")));
  StepHistory history(config);
  EXPECT_THAT(rows.UpdateSome({0}, {0}, 2, 1, nullptr, &history),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("step must follow the last of the history, 0")));
  config.weight_decay_mode = WeightDecayMode::kL2;
  Rows others(config, 1, 1);
  EXPECT_THAT(others.UpdateSome({0}, {0}, 1, 1, nullptr, &history),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("history must be null")));
}

// Algorithm 1 of McMahan et al. 2013 as it stands there, in double: z and n begin at 0, and so does
// w, which the algorithm works out from them before the gradient is taken.
TEST(FtrlTest, MatchesThePublishedAlgorithmWithBeta) {
  constexpr double kAlpha = 0.3;
  constexpr double kBeta = 1;
  constexpr double kLambda1 = 0.05;
  constexpr double kLambda2 = 0.1;
  const SparseOptimizerConfig config{.kind = Kind::kFtrl,
                                     .learning_rate = static_cast<float>(kAlpha),
                                     .l1 = static_cast<float>(kLambda1),
                                     .l2 = static_cast<float>(kLambda2),
                                     .ftrl_beta = static_cast<float>(kBeta)};
  Rows rows(config, 1, 1);
  RandomStream random(3, RandomPurpose::kTest);
  double z = 0;
  double n = 0;
  const auto weight = [&] {
    if (std::abs(z) <= kLambda1) return 0.0;
    const double sign = z < 0 ? -1 : 1;
    return -(z - sign * kLambda1) / ((kBeta + std::sqrt(n)) / kAlpha + kLambda2);
  };
  for (uint32_t step = 1; step <= 50; ++step) {
    const float g = 0.3f * random.Normal() + 0.1f;
    const double w = weight();
    const double squares = static_cast<double>(g) * static_cast<double>(g);
    const double sigma = (std::sqrt(n + squares) - std::sqrt(n)) / kAlpha;
    z += static_cast<double>(g) - sigma * w;
    n += squares;
    HOTROW_ASSERT_OK(rows.Update({g}, step));
    EXPECT_NEAR(rows.weight(0, 0), weight(), 1e-5) << "step " << step;
  }
  EXPECT_GT(std::abs(weight()), 0.1);  // the test has seen more than zeros
}

TEST(SparseOptimizerConfigTest, ValidateNamesTheField) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  HOTROW_EXPECT_OK(SparseOptimizerConfig{}.Validate());
  const auto expect = [](const SparseOptimizerConfig& config, const char* message) {
    EXPECT_THAT(config.Validate(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect({.learning_rate = -1}, "learning_rate must be finite and >= 0, got -1");
  expect({.learning_rate = kNan}, "learning_rate");
  expect({.eps = 0}, "eps must be finite and > 0, got 0");
  expect({.beta1 = 1}, "beta1 must lie in [0, 1), got 1");
  expect({.beta2 = kNan}, "beta2");
  expect({.weight_decay = -1}, "weight_decay");
  expect({.initial_accumulator = kInf}, "initial_accumulator");
  expect({.lr_power = 0.5f}, "lr_power must be finite and <= 0, got 0.5");
  expect({.l1 = -1}, "l1 must");
  expect({.l2 = -1}, "l2 must");
  expect(
      {.kind = Kind::kFtrl, .weight_decay = 0.1f, .weight_decay_mode = WeightDecayMode::kDecoupled},
      "weight_decay must be 0 with ftrl in decoupled mode");
}

TEST(SparseUpdateTest, ValidateNamesTheField) {
  RowLayout layout = RowLayout::For(2, Kind::kAdam);
  alignas(16) std::byte row[48] = {};
  std::byte* const rows[1] = {row};
  const float gradient[2] = {1, 1};
  const float* const gradients[1] = {gradient};
  const SparseUpdateArgs good{.config = {.kind = Kind::kAdam},
                              .layout = &layout,
                              .num_rows = 1,
                              .rows = rows,
                              .gradients = gradients,
                              .step = 1};
  HOTROW_ASSERT_OK(SparseUpdate({}, good));
  using Args = SparseUpdateArgs;
  const auto expect = [&](auto change, const char* message) {
    Args args = good;
    change(args);
    EXPECT_THAT(SparseUpdate({}, args),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect([](Args& a) { a.config.eps = 0; }, "eps");
  expect([](Args& a) { a.layout = nullptr; }, "layout must not be null");
  expect([](Args& a) { a.config.kind = Kind::kSgd; },
         "layout->state_floats must be 0, as the optimizer sgd with weights of fp32 needs, got 4");
  expect([](Args& a) { a.learning_rate_factor = -1; }, "learning_rate_factor");
  expect([](Args& a) { a.step = 0; }, "step must be >= 1, got 0");
  expect([](Args& a) { a.num_rows = -1; }, "num_rows must be >= 0, got -1");
  expect([](Args& a) { a.rows = nullptr; }, "rows must not be null");
  expect([](Args& a) { a.gradients = nullptr; }, "gradients must not be null");
  layout.dim = 0;
  expect([](Args&) {}, "layout->dim must lie in [1, 2^30), got 0");
  layout = RowLayout::For(2, Kind::kAdam);
  layout.precision = WeightsPrecision::kBf16;
  expect([](Args&) {},
         "layout->state_offset must be 4, as the optimizer adam with weights of bf16");
  layout = RowLayout::For(2, Kind::kAdam);
  layout.step_offset += 4;
  expect([](Args&) {}, "layout->step_offset must be 24");
  layout = RowLayout::For(2, Kind::kAdam);
  layout.row_bytes -= 16;
  expect([](Args&) {}, "layout->row_bytes must be 32");
  // Rounding needs to know whose row it is.
  layout = RowLayout::For(2, Kind::kAdam, WeightsPrecision::kFp16);
  expect([](Args&) {}, "SparseUpdate: keys must not be null");
  layout = RowLayout::For(2, Kind::kAdam);
  HOTROW_EXPECT_OK(SparseUpdate({}, {.config = good.config, .layout = &layout, .step = 1}));
}

}  // namespace
}  // namespace hotrow
