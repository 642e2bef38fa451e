#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/prefetch.h"
#include "ops/row_layout.h"
#include "ops/sparse_optimizer.h"
#include "ops/sparse_optimizer_impl.h"
#include "ops/vec8_impl.h"

namespace hotrow::internal {
namespace {

// One row as an optimizer sees it.
struct Row {
  float* weights;         // [D]
  float* state;           // as SparseOptimizerKind lists it
  const float* gradient;  // [D]
  int32_t dim;
  bool first_update;  // the row's last step is 0
};

// What all optimizers share. Weight decay wd acts in one of two places; the other one then has the
// number that does nothing:
//   L2         g <- g + l2 w      before the optimizer sees g
//   decoupled  w <- keep w        keep = 1 - lr wd, then the step
struct Common {
  float learning_rate;
  Vec8 l2;
  Vec8 keep;

  template <typename Lanes>
  Vec8 Gradient(const Row& row, int64_t d, Lanes lanes) const {
    return LoadLanes(row.gradient + d, lanes) + l2 * LoadLanes(row.weights + d, lanes);
  }
  // w <- keep w - change
  template <typename Lanes>
  void Move(const Row& row, int64_t d, Lanes lanes, Vec8 change) const {
    StoreLanes(keep * LoadLanes(row.weights + d, lanes) - change, row.weights + d, lanes);
  }
  // Mean over the columns of g^2. Lane i adds columns i, i + 8, ..., then the lanes are added in
  // order: an order that depends on D only.
  float MeanSquare(const Row& row) const {
    Vec8 sums = Vec8::Zero();
    ForEachVec8(row.dim, [&](int64_t d, auto lanes) {
      const Vec8 g = Gradient(row, d, lanes);
      sums = sums + g * g;
    });
    float lanes[8];
    sums.Store(lanes);
    return (((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
            ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))) /
           static_cast<float>(row.dim);
  }
};

// w -= lr g
struct SgdStep {
  Common common;

  void operator()(const Row& row) const {
    const Vec8 learning_rate = Vec8::Set(common.learning_rate);
    ForEachVec8(row.dim, [&](int64_t d, auto lanes) {
      common.Move(row, d, lanes, learning_rate * common.Gradient(row, d, lanes));
    });
  }
};

// m = b1 m + g;  w -= lr m     (torch.optim.SGD with momentum, dampening 0)
struct MomentumStep {
  Common common;
  Vec8 beta1;

  void operator()(const Row& row) const {
    const Vec8 learning_rate = Vec8::Set(common.learning_rate);
    ForEachVec8(row.dim, [&](int64_t d, auto lanes) {
      const Vec8 m = beta1 * LoadLanes(row.state + d, lanes) + common.Gradient(row, d, lanes);
      StoreLanes(m, row.state + d, lanes);
      common.Move(row, d, lanes, learning_rate * m);
    });
  }
};

// s += g^2;  w -= lr g / (sqrt(s) + eps)     (Duchi, Hazan & Singer 2011; eps outside of the root
// as in torch.optim.Adagrad)
struct AdagradStep {
  Common common;
  Vec8 eps;

  void operator()(const Row& row) const {
    const Vec8 learning_rate = Vec8::Set(common.learning_rate);
    ForEachVec8(row.dim, [&](int64_t d, auto lanes) {
      const Vec8 g = common.Gradient(row, d, lanes);
      const Vec8 s = LoadLanes(row.state + d, lanes) + g * g;
      StoreLanes(s, row.state + d, lanes);
      common.Move(row, d, lanes, learning_rate * g / (Vec8::Sqrt(s) + eps));
    });
  }
};

// s += mean(g^2);  w -= lr / (sqrt(s) + eps) g     (one s per row, as FBGEMM's
// EXACT_ROWWISE_ADAGRAD)
struct RowWiseAdagradStep {
  Common common;
  float eps;

  void operator()(const Row& row) const {
    const float s = row.state[0] + common.MeanSquare(row);
    row.state[0] = s;
    const Vec8 rate = Vec8::Set(common.learning_rate / (std::sqrt(s) + eps));
    ForEachVec8(row.dim, [&](int64_t d, auto lanes) {
      common.Move(row, d, lanes, rate * common.Gradient(row, d, lanes));
    });
  }
};

// What both Adams share. t is the table's step, so a row that is seen for the first time late is
// corrected as little as all others.
struct AdamConstants {
  Vec8 beta1;
  Vec8 one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float step_size;         // lr / (1 - b1^t)
  float root_correction2;  // sqrt(1 - b2^t)
  float eps;

  // In double: 1 - b^t cancels in float while t is small.
  AdamConstants(const SparseUpdateArgs& args, double learning_rate)
      : beta1(Vec8::Set(args.config.beta1)),
        one_minus_beta1(Vec8::Set(static_cast<float>(1 - static_cast<double>(args.config.beta1)))),
        beta2(args.config.beta2),
        one_minus_beta2(static_cast<float>(1 - static_cast<double>(args.config.beta2))),
        step_size(static_cast<float>(
            learning_rate / (1 - std::pow(static_cast<double>(args.config.beta1), args.step)))),
        root_correction2(static_cast<float>(
            std::sqrt(1 - std::pow(static_cast<double>(args.config.beta2), args.step)))),
        eps(args.config.eps) {}
};

// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
// w -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)     (Kingma & Ba 2015)
struct AdamStep {
  Common common;
  AdamConstants adam;

  void operator()(const Row& row) const {
    const Vec8 beta2 = Vec8::Set(adam.beta2);
    const Vec8 one_minus_beta2 = Vec8::Set(adam.one_minus_beta2);
    const Vec8 step_size = Vec8::Set(adam.step_size);
    const Vec8 root_correction2 = Vec8::Set(adam.root_correction2);
    const Vec8 eps = Vec8::Set(adam.eps);
    float* const momentum1 = row.state;
    float* const momentum2 = row.state + row.dim;
    ForEachVec8(row.dim, [&](int64_t d, auto lanes) {
      const Vec8 g = common.Gradient(row, d, lanes);
      const Vec8 m = adam.beta1 * LoadLanes(momentum1 + d, lanes) + adam.one_minus_beta1 * g;
      const Vec8 v = beta2 * LoadLanes(momentum2 + d, lanes) + one_minus_beta2 * (g * g);
      StoreLanes(m, momentum1 + d, lanes);
      StoreLanes(v, momentum2 + d, lanes);
      common.Move(row, d, lanes, step_size * m / (Vec8::Sqrt(v) / root_correction2 + eps));
    });
  }
};

// Adam with one v per row: v = b2 v + (1 - b2) mean(g^2)     (FBGEMM's PARTIAL_ROWWISE_ADAM)
struct PartialRowWiseAdamStep {
  Common common;
  AdamConstants adam;

  void operator()(const Row& row) const {
    float* const momentum1 = row.state;
    float& momentum2 = row.state[row.dim];
    momentum2 = adam.beta2 * momentum2 + adam.one_minus_beta2 * common.MeanSquare(row);
    const Vec8 rate =
        Vec8::Set(adam.step_size / (std::sqrt(momentum2) / adam.root_correction2 + adam.eps));
    ForEachVec8(row.dim, [&](int64_t d, auto lanes) {
      const Vec8 g = common.Gradient(row, d, lanes);
      const Vec8 m = adam.beta1 * LoadLanes(momentum1 + d, lanes) + adam.one_minus_beta1 * g;
      StoreLanes(m, momentum1 + d, lanes);
      common.Move(row, d, lanes, rate * m);
    });
  }
};

// n^p for p = -lr_power >= 0.
struct SquareRoot {
  Vec8 operator()(Vec8 n) const { return Vec8::Sqrt(n); }
};
struct AnyPower {
  float p;
  Vec8 operator()(Vec8 n) const {
    float lanes[8];
    n.Store(lanes);
    for (float& x : lanes) x = std::pow(x, p);
    return Vec8::Load(lanes);
  }
};

// FTRL-proximal (McMahan et al. 2013, algorithm 1, with its beta = 0) where the rate of a column is
// lr / n^p, p = -lr_power, so that it falls as the squares add up:
//   n' = n + g^2;  sigma = (n'^p - n^p) / lr;  z += g - sigma w
//   w = |z| <= l1 ? 0 : -(z - sign(z) l1) / (n'^p / lr + l2)
// l2 is the paper's lambda_2, which stands for lambda_2 / 2 |w|^2 (TensorFlow's option is half of
// it).
//
// Start: the formulas above hold w in z, and know nothing of a weight that was drawn at random.
// TensorFlow begins with z = 0, which throws such a weight away to the share that the initial
// accumulator has of n'. Here the first update of a row takes the initial accumulator n_0 for an
// earlier step taken at w_0, with sigma_0 = n_0^p / lr: z = -sigma_0 w_0. So without l1 and l2 the
// first step moves from w_0 by -lr g / n'^p. A column that has seen no gradient at all (n' = 0) and
// has no l2 keeps its weight, since 0 / 0 says nothing.
template <typename Power>
struct FtrlStep {
  Common common;
  float l1;
  float l2;
  Power power;

  void operator()(const Row& row) const {
    // The formulas divide by lr: the limit lr -> 0 is a row that stays.
    if (common.learning_rate == 0) return;
    const Vec8 learning_rate = Vec8::Set(common.learning_rate);
    const Vec8 threshold = Vec8::Set(l1);
    const Vec8 shrinkage = Vec8::Set(l2);
    const Vec8 zero = Vec8::Zero();
    float* const z_state = row.state;
    float* const n_state = row.state + row.dim;
    ForEachVec8(row.dim, [&](int64_t d, auto lanes) {
      const Vec8 w = LoadLanes(row.weights + d, lanes);
      const Vec8 g = common.Gradient(row, d, lanes);
      const Vec8 n_old = LoadLanes(n_state + d, lanes);
      const Vec8 n = n_old + g * g;
      const Vec8 strength_old = power(n_old) / learning_rate;
      const Vec8 strength = power(n) / learning_rate;
      const Vec8 z_old = row.first_update ? zero - strength_old * w : LoadLanes(z_state + d, lanes);
      const Vec8 z = z_old + (g - (strength - strength_old) * w);
      StoreLanes(n, n_state + d, lanes);
      StoreLanes(z, z_state + d, lanes);
      // -sign(z) max(|z| - l1, 0)
      const Vec8 pull = Vec8::Relu(zero - z - threshold) - Vec8::Relu(z - threshold);
      const Vec8 denominator = strength + shrinkage;
      // ReluGrad(y, a) is a where y > 0, else 0: w_new where there is a denominator, else w.
      const Vec8 kept = w - Vec8::ReluGrad(denominator, w);
      StoreLanes(Vec8::ReluGrad(denominator, pull / denominator) + kept, row.weights + d, lanes);
    });
  }
};

template <typename Step>
absl::Status UpdateRows(const ExecContext& ctx, const SparseUpdateArgs& args, const Step& update) {
  constexpr int64_t kRowsPerBlock = 128;
  const RowLayout& layout = *args.layout;
  // Rows lie scattered. Gradients usually lie side by side, where asking for them here got in the
  // way of the hardware's prefetcher and doubled the time of an update (measured).
  const auto prefetch = [&](int64_t u) { PrefetchForWrite(args.rows[u], layout.row_bytes); };
  ParallelFor(ctx.pool, args.num_rows, kRowsPerBlock, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < std::min(begin + kPrefetchRowsAhead, end); ++u) prefetch(u);
    for (int64_t u = begin; u < end; ++u) {
      if (u + kPrefetchRowsAhead < end) prefetch(u + kPrefetchRowsAhead);
      std::byte* const row = args.rows[u];
      HOTROW_DCHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0);
      uint32_t last_step;
      std::memcpy(&last_step, row + layout.step_offset, sizeof(last_step));
      auto* const weights = reinterpret_cast<float*>(row);
      update(Row{.weights = weights,
                 .state = weights + layout.dim,
                 .gradient = args.gradients[u],
                 .dim = layout.dim,
                 .first_update = last_step == 0});
      std::memcpy(row + layout.step_offset, &args.step, sizeof(args.step));
    }
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status SparseUpdateCpu(const ExecContext& ctx, const SparseUpdateArgs& args) {
  const SparseOptimizerConfig& config = args.config;
  const double learning_rate =
      static_cast<double>(config.learning_rate) * static_cast<double>(args.learning_rate_factor);
  const bool decoupled = config.weight_decay_mode == WeightDecayMode::kDecoupled;
  const Common common = {
      .learning_rate = static_cast<float>(learning_rate),
      .l2 = Vec8::Set(decoupled ? 0 : config.weight_decay),
      .keep =
          Vec8::Set(decoupled ? static_cast<float>(1 - learning_rate * config.weight_decay) : 1.0f),
  };
  switch (config.kind) {
    case SparseOptimizerKind::kSgd:
      return UpdateRows(ctx, args, SgdStep{common});
    case SparseOptimizerKind::kMomentum:
      return UpdateRows(ctx, args, MomentumStep{common, Vec8::Set(config.beta1)});
    case SparseOptimizerKind::kAdagrad:
      return UpdateRows(ctx, args, AdagradStep{common, Vec8::Set(config.eps)});
    case SparseOptimizerKind::kRowWiseAdagrad:
      return UpdateRows(ctx, args, RowWiseAdagradStep{common, config.eps});
    case SparseOptimizerKind::kAdam:
      return UpdateRows(ctx, args, AdamStep{common, AdamConstants(args, learning_rate)});
    case SparseOptimizerKind::kPartialRowWiseAdam:
      return UpdateRows(ctx, args,
                        PartialRowWiseAdamStep{common, AdamConstants(args, learning_rate)});
    case SparseOptimizerKind::kFtrl:
      if (config.lr_power == -0.5f) {
        return UpdateRows(ctx, args,
                          FtrlStep<SquareRoot>{common, config.l1, config.l2, SquareRoot{}});
      }
      return UpdateRows(
          ctx, args, FtrlStep<AnyPower>{common, config.l1, config.l2, AnyPower{-config.lr_power}});
  }
  HOTROW_CHECK(false);
}

}  // namespace hotrow::internal
