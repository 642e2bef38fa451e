#include "ops/update/sparse_optimizer.h"

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/rows/row_layout.h"
#include "ops/rows/row_layout_impl.h"
#include "ops/update/sparse_optimizer_impl.h"
#include "ops/update/step_history.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

// One entry a kind, which all its formulas share.
std::vector<SparseOptimizerFacts> ReadFormulas() {
  std::vector<SparseOptimizerFacts> facts;
  const auto add = [&facts](auto formula) {
    if (!facts.empty() && facts.back().kind == formula.kKind) return;
    HOTROW_CHECK(static_cast<size_t>(formula.kKind) == facts.size());
    facts.push_back({.kind = formula.kKind,
                     .name = formula.kName,
                     .column_states = formula.kColumnStates,
                     .row_state = formula.kRowState,
                     .accumulator = formula.kAccumulator});
  };
  std::apply([&](auto... formulas) { (add(formulas), ...); }, internal::SparseFormulas());
  return facts;
}

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

std::span<const SparseOptimizerFacts> SparseOptimizers() {
  static const auto* const facts = new std::vector<SparseOptimizerFacts>(ReadFormulas());
  return *facts;
}

const SparseOptimizerFacts& FactsOf(SparseOptimizerKind kind) {
  const auto index = static_cast<size_t>(kind);
  HOTROW_CHECK(index < SparseOptimizers().size());
  return SparseOptimizers()[index];
}

absl::StatusOr<SparseOptimizerKind> ParseSparseOptimizer(std::string_view name) {
  std::string expected;
  for (const SparseOptimizerFacts& known : SparseOptimizers()) {
    if (known.name == name) return known.kind;
    absl::StrAppend(&expected, expected.empty() ? "" : ", ", std::string(known.name));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown sparse optimizer \"", std::string(name),
                                                 "\"; expected one of ", expected));
}

std::string_view SparseOptimizerName(SparseOptimizerKind kind) { return FactsOf(kind).name; }

int32_t SparseStateFloats(SparseOptimizerKind kind, int32_t dim) {
  const SparseOptimizerFacts& facts = FactsOf(kind);
  return facts.column_states * dim + (facts.row_state ? 1 : 0);
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
  HOTROW_RETURN_IF_ERROR(CheckNotNegative("ftrl_beta", ftrl_beta));
  if (kind == SparseOptimizerKind::kFtrl && weight_decay_mode == WeightDecayMode::kDecoupled &&
      weight_decay != 0) {
    // FTRL computes weights again from its state in each step, so shrinking them beside it is
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
  const bool catches_up = config.weight_decay_mode == WeightDecayMode::kTable;
  if (catches_up && history == nullptr) return internal::NullField(kOp, "history");
  if (!catches_up && history != nullptr) {
    return absl::InvalidArgumentError(
        "SparseUpdate: history must be null where weight_decay_mode is not kTable");
  }
  if (catches_up && history->steps() + 1 != step) {
    return internal::InvalidField(
        kOp, "step", absl::StrCat("must follow the last of the history, ", history->steps()), step);
  }
  return absl::OkStatus();
}

absl::Status CatchUpArgs::Validate() const {
  constexpr char kOp[] = "CatchUp";
  HOTROW_RETURN_IF_ERROR(config.Validate());
  HOTROW_RETURN_IF_ERROR(internal::CheckRowLayout(kOp, layout, config.kind));
  if (config.weight_decay_mode != WeightDecayMode::kTable) {
    return absl::InvalidArgumentError("CatchUp: weight_decay_mode must be kTable");
  }
  if (history == nullptr) return internal::NullField(kOp, "history");
  if (num_rows < 0) return internal::InvalidField(kOp, "num_rows", "must be >= 0", num_rows);
  if (num_rows == 0) return absl::OkStatus();
  if (rows == nullptr) return internal::NullField(kOp, "rows");
  if (layout->precision != WeightsPrecision::kFp32 && keys == nullptr) {
    return internal::NullField(kOp, "keys");
  }
  return absl::OkStatus();
}

absl::Status SparseUpdate(const ExecContext& ctx, const SparseUpdateArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.num_rows == 0) return absl::OkStatus();
  if (args.history != nullptr && ctx.device != Device::kCpu) {
    return absl::UnimplementedError("SparseUpdate: weight_decay_mode kTable works on the CPU only");
  }
  return internal::Dispatch(
      ctx, [&] { return internal::SparseUpdateCpu(ctx, args); },
      [&](auto stream) { return internal::SparseUpdateCuda(args, stream); });
}

absl::Status CatchUp(const ExecContext& ctx, const CatchUpArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (ctx.device != Device::kCpu) {
    return absl::UnimplementedError("CatchUp: works on the CPU only");
  }
  if (args.num_rows == 0) return absl::OkStatus();
  return internal::CatchUpCpu(ctx, args);
}

}  // namespace hotrow
