#include "ops/sparse_optimizer.h"

#include <array>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/row_layout.h"
#include "ops/row_layout_impl.h"
#include "ops/sparse_optimizer_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

struct KindName {
  SparseOptimizerKind kind;
  std::string_view name;
};
constexpr std::array<KindName, 7> kKindNames = {{
    {SparseOptimizerKind::kSgd, "sgd"},
    {SparseOptimizerKind::kMomentum, "momentum"},
    {SparseOptimizerKind::kAdagrad, "adagrad"},
    {SparseOptimizerKind::kRowWiseAdagrad, "rowwise_adagrad"},
    {SparseOptimizerKind::kAdam, "adam"},
    {SparseOptimizerKind::kPartialRowWiseAdam, "partial_rowwise_adam"},
    {SparseOptimizerKind::kFtrl, "ftrl"},
}};

constexpr char kConfig[] = "SparseOptimizerConfig";

absl::Status CheckNotNegative(std::string_view field, float value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return internal::InvalidField(kConfig, field, "must be finite and >= 0", value);
}

absl::Status CheckBeta(std::string_view field, float value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return internal::InvalidField(kConfig, field, "must lie in [0, 1)", value);
}

}  // namespace

absl::StatusOr<SparseOptimizerKind> ParseSparseOptimizer(std::string_view name) {
  std::string expected;
  for (const KindName& known : kKindNames) {
    if (known.name == name) return known.kind;
    absl::StrAppend(&expected, expected.empty() ? "" : ", ", std::string(known.name));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown sparse optimizer \"", std::string(name),
                                                 "\"; expected one of ", expected));
}

std::string_view SparseOptimizerName(SparseOptimizerKind kind) {
  for (const KindName& known : kKindNames) {
    if (known.kind == kind) return known.name;
  }
  HOTROW_CHECK(false);
}

int32_t SparseStateFloats(SparseOptimizerKind kind, int32_t dim) {
  switch (kind) {
    case SparseOptimizerKind::kSgd:
      return 0;
    case SparseOptimizerKind::kMomentum:
    case SparseOptimizerKind::kAdagrad:
      return dim;
    case SparseOptimizerKind::kRowWiseAdagrad:
      return 1;
    case SparseOptimizerKind::kPartialRowWiseAdam:
      return dim + 1;
    case SparseOptimizerKind::kAdam:
    case SparseOptimizerKind::kFtrl:
      return 2 * dim;
  }
  HOTROW_CHECK(false);
}

absl::Status SparseOptimizerConfig::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckNotNegative("learning_rate", learning_rate));
  // A column that has only seen zero gradients divides by eps alone.
  if (!(eps > 0) || !std::isfinite(eps)) {
    return internal::InvalidField(kConfig, "eps", "must be finite and > 0", eps);
  }
  HOTROW_RETURN_IF_ERROR(CheckBeta("beta1", beta1));
  HOTROW_RETURN_IF_ERROR(CheckBeta("beta2", beta2));
  HOTROW_RETURN_IF_ERROR(CheckNotNegative("weight_decay", weight_decay));
  HOTROW_RETURN_IF_ERROR(CheckNotNegative("initial_accumulator", initial_accumulator));
  if (!(lr_power <= 0) || !std::isfinite(lr_power)) {
    return internal::InvalidField(kConfig, "lr_power", "must be finite and <= 0", lr_power);
  }
  HOTROW_RETURN_IF_ERROR(CheckNotNegative("l1", l1));
  HOTROW_RETURN_IF_ERROR(CheckNotNegative("l2", l2));
  if (kind == SparseOptimizerKind::kFtrl && weight_decay_mode == WeightDecayMode::kDecoupled &&
      weight_decay != 0) {
    // FTRL computes weights anew from its state in each step, so shrinking them beside it is
    // undone.
    return internal::InvalidField(kConfig, "weight_decay",
                                  "must be 0 with ftrl in decoupled mode (use l2)", weight_decay);
  }
  return absl::OkStatus();
}

absl::Status SparseUpdateArgs::Validate() const {
  constexpr char kOp[] = "SparseUpdate";
  HOTROW_RETURN_IF_ERROR(config.Validate());
  HOTROW_RETURN_IF_ERROR(internal::CheckRowLayout(kOp, layout, config.kind));
  if (!(learning_rate_factor >= 0) || !std::isfinite(learning_rate_factor)) {
    return internal::InvalidField(kOp, "learning_rate_factor", "must be finite and >= 0",
                                  learning_rate_factor);
  }
  if (step == 0) return internal::InvalidField(kOp, "step", "must be >= 1", step);
  if (num_rows < 0) return internal::InvalidField(kOp, "num_rows", "must be >= 0", num_rows);
  if (num_rows == 0) return absl::OkStatus();
  if (rows == nullptr) return internal::NullField(kOp, "rows");
  if (gradients == nullptr) return internal::NullField(kOp, "gradients");
  if (layout->precision != WeightsPrecision::kFp32 && keys == nullptr) {
    return internal::NullField(kOp, "keys");
  }
  return absl::OkStatus();
}

namespace internal {

StepNumbers<float> NumbersOf(const SparseUpdateArgs& args) {
  const SparseOptimizerConfig& config = args.config;
  const double learning_rate =
      static_cast<double>(config.learning_rate) * static_cast<double>(args.learning_rate_factor);
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
      .step_size = static_cast<float>(learning_rate / (1 - std::pow(beta1, args.step))),
      .root_correction2 = static_cast<float>(std::sqrt(1 - std::pow(beta2, args.step))),
      .ftrl_l1 = config.l1,
      .ftrl_l2 = config.l2,
      .ftrl_power = -config.lr_power,
  };
}

}  // namespace internal

absl::Status SparseUpdate(const ExecContext& ctx, const SparseUpdateArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.num_rows == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::SparseUpdateCpu(ctx, args); },
      [&](auto stream) { return internal::SparseUpdateCuda(args, stream); });
}

}  // namespace hotrow
