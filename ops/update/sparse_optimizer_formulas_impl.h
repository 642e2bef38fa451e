#ifndef HOTROW_OPS_UPDATE_SPARSE_OPTIMIZER_FORMULAS_IMPL_H_
#define HOTROW_OPS_UPDATE_SPARSE_OPTIMIZER_FORMULAS_IMPL_H_

#include <cmath>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "base/macros.h"
#include "ops/update/sparse_optimizer.h"

// To add an optimizer: a value of SparseOptimizerKind, a formula here, and its place in
// SparseFormulas at the end. Names, state, flags, reports and exports follow from it.
//
// The optimizers' formulas, written once for the lanes of every device: V is Vec8 on the CPU and
// float in a thread of a GPU. Both do the same operations on a column in the same order, each
// rounded on its own, so they give the same bits.
namespace hotrow::internal {

// What formulas ask of V beside + - * /. LaneMath<Vec8> stands in sparse_optimizer_cpu.cc.
template <typename V>
struct LaneMath;

template <>
struct LaneMath<float> {
  HOTROW_HOST_DEVICE static float Set(float x) { return x; }
  HOTROW_HOST_DEVICE static float Sqrt(float a) { return std::sqrt(a); }
  HOTROW_HOST_DEVICE static float Pow(float a, float p) { return std::pow(a, p); }
  // a < 0 ? 0 : a; a NaN stays one.
  HOTROW_HOST_DEVICE static float Relu(float a) { return 0.0f > a ? 0.0f : a; }
  // y <= 0 ? 0 : a; where y is NaN, a passes.
  HOTROW_HOST_DEVICE static float ReluGrad(float y, float a) { return y <= 0 ? 0.0f : a; }
};

// The numbers of one step, the same for all rows. Weight decay wd acts in one of two places; the
// other one then has the number that does nothing:
//   L2         g <- g + l2 w      before the optimizer sees g
//   decoupled  w <- keep w        keep = 1 - lr wd, then the step
template <typename V>
struct StepNumbers {
  V learning_rate;
  V l2;
  V keep;
  V eps;
  V beta1;
  V one_minus_beta1;
  V beta2;
  V one_minus_beta2;
  V step_size;         // lr / (1 - b1^t)
  V root_correction2;  // sqrt(1 - b2^t)
  V ftrl_l1;
  V ftrl_l2;
  V ftrl_power;           // -lr_power >= 0
  V ftrl_base;            // beta / lr
  V inverse_correction1;  // 1 / (1 - b1^t)
  V lamb_decay;           // wd where decoupled, else 0

  static StepNumbers From(const StepNumbers<float>& n) {
    const auto set = [](float x) { return LaneMath<V>::Set(x); };
    return {.learning_rate = set(n.learning_rate),
            .l2 = set(n.l2),
            .keep = set(n.keep),
            .eps = set(n.eps),
            .beta1 = set(n.beta1),
            .one_minus_beta1 = set(n.one_minus_beta1),
            .beta2 = set(n.beta2),
            .one_minus_beta2 = set(n.one_minus_beta2),
            .step_size = set(n.step_size),
            .root_correction2 = set(n.root_correction2),
            .ftrl_l1 = set(n.ftrl_l1),
            .ftrl_l2 = set(n.ftrl_l2),
            .ftrl_power = set(n.ftrl_power),
            .ftrl_base = set(n.ftrl_base),
            .inverse_correction1 = set(n.inverse_correction1),
            .lamb_decay = set(n.lamb_decay)};
  }
  // The numbers of one step, worked out in double: 1 - b^t cancels in float while t is small.
  static StepNumbers<float> Of(const SparseOptimizerConfig& config, float learning_rate_factor,
                               uint32_t step) {
    const double learning_rate =
        static_cast<double>(config.learning_rate) * static_cast<double>(learning_rate_factor);
    const auto beta1 = static_cast<double>(config.beta1);
    const auto beta2 = static_cast<double>(config.beta2);
    const bool decoupled = config.weight_decay_mode == WeightDecayMode::kDecoupled;
    return {
        .learning_rate = static_cast<float>(learning_rate),
        .l2 = decoupled ? 0 : config.weight_decay,
        .keep = decoupled ? static_cast<float>(1 - learning_rate * config.weight_decay) : 1.0f,
        .eps = config.eps,
        .beta1 = config.beta1,
        .one_minus_beta1 = static_cast<float>(1 - beta1),
        .beta2 = config.beta2,
        .one_minus_beta2 = static_cast<float>(1 - beta2),
        .step_size = static_cast<float>(learning_rate / (1 - std::pow(beta1, step))),
        .root_correction2 = static_cast<float>(std::sqrt(1 - std::pow(beta2, step))),
        .ftrl_l1 = config.l1,
        .ftrl_l2 = config.l2,
        .ftrl_power = -config.lr_power,
        .ftrl_base =
            learning_rate == 0 ? 0.0f : static_cast<float>(config.ftrl_beta / learning_rate),
        .inverse_correction1 = static_cast<float>(1 / (1 - std::pow(beta1, step))),
        .lamb_decay = decoupled ? config.weight_decay : 0,
    };
  }
  // The gradient that the optimizer sees.
  HOTROW_HOST_DEVICE V Gradient(V gradient, V weight) const { return gradient + l2 * weight; }
};

// Some columns of a row: weights and what state there is for each column.
template <typename V>
struct StepColumns {
  V w;
  V s1;
  V s2;
};

// What a formula says of itself beside its kind and its name; most leave it at this.
struct FormulaDefaults {
  static constexpr int kColumnStates = 0;        // floats of state a column has, at state + k * D
  static constexpr bool kRowState = false;       // whether the row has one more, behind them
  static constexpr int kAccumulator = -1;        // which of these begins at initial_accumulator
  static constexpr bool kDividesByRate = false;  // without a learning rate rows stay as they are
  static constexpr bool kTrustRatio = false;     // the length of a row's step follows the row's
  // Whether it is the one for this configuration, where several formulas are of one kind.
  static constexpr bool Fits(const SparseOptimizerConfig&) { return true; }
};

// A formula then has
//   RowRate(n, mean, state)  with kRowState: moves the row's own state by the mean over its columns
//                            of g^2, and gives the number that Apply takes as `rate`
//   Apply(n, rate, first_update, g, x)  moves columns; g from Gradient(), first_update: the row's
//                                       last step is 0
// or, with kTrustRatio, instead of Apply
//   Direction(n, rate, g, x)  moves the columns' state and gives the direction r of their step;
//   then
//                             w -= lr TrustRatio(sum w^2, sum r^2) r

// w -= lr g
struct SgdFormula : FormulaDefaults {
  static constexpr auto kKind = SparseOptimizerKind::kSgd;
  static constexpr std::string_view kName = "sgd";

  template <typename V>
  HOTROW_HOST_DEVICE static void Apply(const StepNumbers<V>& n, V, bool, V g, StepColumns<V>& x) {
    x.w = n.keep * x.w - n.learning_rate * g;
  }
};

// m = b1 m + g;  w -= lr m     (torch.optim.SGD with momentum, dampening 0)
struct MomentumFormula : FormulaDefaults {
  static constexpr auto kKind = SparseOptimizerKind::kMomentum;
  static constexpr std::string_view kName = "momentum";
  static constexpr int kColumnStates = 1;

  template <typename V>
  HOTROW_HOST_DEVICE static void Apply(const StepNumbers<V>& n, V, bool, V g, StepColumns<V>& x) {
    x.s1 = n.beta1 * x.s1 + g;
    x.w = n.keep * x.w - n.learning_rate * x.s1;
  }
};

// s += g^2;  w -= lr g / (sqrt(s) + eps)     (Duchi, Hazan & Singer 2011; eps outside of the root
// as in torch.optim.Adagrad)
struct AdagradFormula : FormulaDefaults {
  static constexpr auto kKind = SparseOptimizerKind::kAdagrad;
  static constexpr std::string_view kName = "adagrad";
  static constexpr int kColumnStates = 1;
  static constexpr int kAccumulator = 0;

  template <typename V>
  HOTROW_HOST_DEVICE static void Apply(const StepNumbers<V>& n, V, bool, V g, StepColumns<V>& x) {
    x.s1 = x.s1 + g * g;
    x.w = n.keep * x.w - n.learning_rate * g / (LaneMath<V>::Sqrt(x.s1) + n.eps);
  }
};

// s += mean(g^2);  w -= lr / (sqrt(s) + eps) g     (one s per row, as FBGEMM's
// EXACT_ROWWISE_ADAGRAD)
struct RowWiseAdagradFormula : FormulaDefaults {
  static constexpr auto kKind = SparseOptimizerKind::kRowWiseAdagrad;
  static constexpr std::string_view kName = "rowwise_adagrad";
  static constexpr bool kRowState = true;
  static constexpr int kAccumulator = 0;

  HOTROW_HOST_DEVICE static float RowRate(const StepNumbers<float>& n, float mean, float* state) {
    const float s = *state + mean;
    *state = s;
    return n.learning_rate / (std::sqrt(s) + n.eps);
  }
  template <typename V>
  HOTROW_HOST_DEVICE static void Apply(const StepNumbers<V>& n, V rate, bool, V g,
                                       StepColumns<V>& x) {
    x.w = n.keep * x.w - rate * g;
  }
};

// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
// w -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)     (Kingma & Ba 2015)
// t is the table's step, so a row that is seen for the first time late is corrected as little as
// all others; so it is with one v per row.
struct AdamFormula : FormulaDefaults {
  static constexpr auto kKind = SparseOptimizerKind::kAdam;
  static constexpr std::string_view kName = "adam";
  static constexpr int kColumnStates = 2;

  template <typename V>
  HOTROW_HOST_DEVICE static void Apply(const StepNumbers<V>& n, V, bool, V g, StepColumns<V>& x) {
    x.s1 = n.beta1 * x.s1 + n.one_minus_beta1 * g;
    x.s2 = n.beta2 * x.s2 + n.one_minus_beta2 * (g * g);
    x.w =
        n.keep * x.w - n.step_size * x.s1 / (LaneMath<V>::Sqrt(x.s2) / n.root_correction2 + n.eps);
  }
};

// Adam with one v per row: v = b2 v + (1 - b2) mean(g^2)     (FBGEMM's PARTIAL_ROWWISE_ADAM)
struct PartialRowWiseAdamFormula : FormulaDefaults {
  static constexpr auto kKind = SparseOptimizerKind::kPartialRowWiseAdam;
  static constexpr std::string_view kName = "partial_rowwise_adam";
  static constexpr int kColumnStates = 1;
  static constexpr bool kRowState = true;

  HOTROW_HOST_DEVICE static float RowRate(const StepNumbers<float>& n, float mean, float* state) {
    const float v = n.beta2 * *state + n.one_minus_beta2 * mean;
    *state = v;
    return n.step_size / (std::sqrt(v) / n.root_correction2 + n.eps);
  }
  template <typename V>
  HOTROW_HOST_DEVICE static void Apply(const StepNumbers<V>& n, V rate, bool, V g,
                                       StepColumns<V>& x) {
    x.s1 = n.beta1 * x.s1 + n.one_minus_beta1 * g;
    x.w = n.keep * x.w - rate * x.s1;
  }
};

// n^p for p = -lr_power >= 0.
struct SquareRoot {
  static bool Fits(float lr_power) { return lr_power == -0.5f; }
  template <typename V>
  HOTROW_HOST_DEVICE static V Of(V n, V) {
    return LaneMath<V>::Sqrt(n);
  }
};
struct AnyPower {
  static bool Fits(float) { return true; }
  template <typename V>
  HOTROW_HOST_DEVICE static V Of(V n, V p) {
    return LaneMath<V>::Pow(n, p);
  }
};

// FTRL-proximal (McMahan et al. 2013, algorithm 1) where the rate of a column is
// lr / (beta + n^p), p = -lr_power, so that it falls as the squares add up:
//   n' = n + g^2;  sigma = (n'^p - n^p) / lr;  z += g - sigma w
//   w = |z| <= l1 ? 0 : -(z - sign(z) l1) / ((beta + n'^p) / lr + l2)
// l2 is the paper's lambda_2, which stands for lambda_2 / 2 |w|^2 (TensorFlow's option is half of
// it).
//
// Start: the formulas above hold w in z, and know nothing of a weight that was drawn at random.
// TensorFlow begins with z = 0, which throws such a weight away to the share that the initial
// accumulator has of n'. Here the first update of a row takes the initial accumulator n_0 for an
// earlier step taken at w_0, with sigma_0 = (beta + n_0^p) / lr: z = -sigma_0 w_0. So without l1
// and l2 the first step moves from w_0 by -lr g / (beta + n'^p). A column that has seen no gradient
// at all (n' = 0) and has neither beta nor l2 keeps its weight, since 0 / 0 says nothing.
//
// The formulas divide by lr; the limit lr -> 0 is a row that stays.
template <typename Power>
struct FtrlFormula : FormulaDefaults {
  static constexpr auto kKind = SparseOptimizerKind::kFtrl;
  static constexpr std::string_view kName = "ftrl";
  static constexpr int kColumnStates = 2;  // z, n
  static constexpr bool kDividesByRate = true;
  static constexpr int kAccumulator = 1;
  static bool Fits(const SparseOptimizerConfig& config) { return Power::Fits(config.lr_power); }

  template <typename V>
  HOTROW_HOST_DEVICE static void Apply(const StepNumbers<V>& c, V, bool first_update, V g,
                                       StepColumns<V>& x) {
    using Math = LaneMath<V>;
    const V zero = Math::Set(0);
    const V n = x.s2 + g * g;
    const V strength_old = Power::Of(x.s2, c.ftrl_power) / c.learning_rate;
    const V strength = Power::Of(n, c.ftrl_power) / c.learning_rate;
    const V z_old = first_update ? zero - (strength_old + c.ftrl_base) * x.w : x.s1;
    const V z = z_old + (g - (strength - strength_old) * x.w);
    x.s1 = z;
    x.s2 = n;
    // -sign(z) max(|z| - l1, 0)
    const V pull = Math::Relu(zero - z - c.ftrl_l1) - Math::Relu(z - c.ftrl_l1);
    const V denominator = strength + c.ftrl_base + c.ftrl_l2;
    // ReluGrad(y, a) is a where y > 0, else 0: w_new where there is a denominator, else w.
    const V kept = x.w - Math::ReluGrad(denominator, x.w);
    x.w = Math::ReluGrad(denominator, pull / denominator) + kept;
  }
};

// LAMB (You et al. 2020, algorithm 2), each row a layer, as FBGEMM has it:
//   m and v as Adam;  r = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + wd w
//   w -= lr |w| / |r| r
// where a ratio of 1 stands for that of norms of which one is 0, as in TensorFlow Addons: a row of
// zeros would never move otherwise.
HOTROW_HOST_DEVICE inline float TrustRatio(float weight_squares, float direction_squares) {
  const float weight_norm = std::sqrt(weight_squares);
  const float direction_norm = std::sqrt(direction_squares);
  return weight_norm > 0 && direction_norm > 0 ? weight_norm / direction_norm : 1.0f;
}

struct LambFormula : FormulaDefaults {
  static constexpr auto kKind = SparseOptimizerKind::kLamb;
  static constexpr std::string_view kName = "lamb";
  static constexpr int kColumnStates = 2;
  static constexpr bool kTrustRatio = true;

  template <typename V>
  HOTROW_HOST_DEVICE static V Direction(const StepNumbers<V>& n, V, V g, StepColumns<V>& x) {
    x.s1 = n.beta1 * x.s1 + n.one_minus_beta1 * g;
    x.s2 = n.beta2 * x.s2 + n.one_minus_beta2 * (g * g);
    return n.inverse_correction1 * x.s1 / (LaneMath<V>::Sqrt(x.s2) / n.root_correction2 + n.eps) +
           n.lamb_decay * x.w;
  }
};

// LAMB with one v per row: v = b2 v + (1 - b2) mean(g^2)     (FBGEMM's PARTIAL_ROWWISE_LAMB)
struct PartialRowWiseLambFormula : FormulaDefaults {
  static constexpr auto kKind = SparseOptimizerKind::kPartialRowWiseLamb;
  static constexpr std::string_view kName = "partial_rowwise_lamb";
  static constexpr int kColumnStates = 1;
  static constexpr bool kRowState = true;
  static constexpr bool kTrustRatio = true;

  HOTROW_HOST_DEVICE static float RowRate(const StepNumbers<float>& n, float mean, float* state) {
    const float v = n.beta2 * *state + n.one_minus_beta2 * mean;
    *state = v;
    return n.inverse_correction1 / (std::sqrt(v) / n.root_correction2 + n.eps);
  }
  template <typename V>
  HOTROW_HOST_DEVICE static V Direction(const StepNumbers<V>& n, V rate, V g, StepColumns<V>& x) {
    x.s1 = n.beta1 * x.s1 + n.one_minus_beta1 * g;
    return rate * x.s1 + n.lamb_decay * x.w;
  }
};

// All of them, in the order of SparseOptimizerKind; of those of one kind the first that fits.
using SparseFormulas =
    std::tuple<SgdFormula, MomentumFormula, AdagradFormula, RowWiseAdagradFormula, AdamFormula,
               PartialRowWiseAdamFormula, FtrlFormula<SquareRoot>, FtrlFormula<AnyPower>,
               LambFormula, PartialRowWiseLambFormula>;

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_UPDATE_SPARSE_OPTIMIZER_FORMULAS_IMPL_H_
