#include "ops/training/dense_optimizer.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/parse_word.h"
#include "base/status_macros.h"
#include "ops/training/dense_optimizer_impl.h"

namespace hotrow {
namespace {

constexpr EnumWord<DenseOptimizerKind> kDenseOptimizers[] = {
    {"sgd", DenseOptimizerKind::kSgd},
    {"adagrad", DenseOptimizerKind::kAdagrad},
    {"adam", DenseOptimizerKind::kAdam}};

absl::Status CheckField(bool good, std::string_view field, std::string_view limit, float got) {
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("DenseOptimizerConfig: ", std::string(field),
                                                 " must be ", std::string(limit), ", got ", got));
}

absl::Status CheckLength(size_t tensor, std::string_view field, size_t want, size_t got) {
  if (want == got) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("DenseUpdate: tensors[", tensor, "].",
                                                 std::string(field), " must have ", want,
                                                 " elements, got ", got));
}

absl::Status ValidateTensors(const DenseOptimizerConfig& config,
                             std::span<const DenseTensor> tensors) {
  const int32_t arrays = DenseStateArrays(config.kind);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const DenseTensor& t = tensors[i];
    const size_t n = t.parameters.size();
    HOTROW_RETURN_IF_ERROR(CheckLength(i, "gradients", n, t.gradients.size()));
    HOTROW_RETURN_IF_ERROR(CheckLength(i, "momentum1", arrays >= 1 ? n : 0, t.momentum1.size()));
    HOTROW_RETURN_IF_ERROR(CheckLength(i, "momentum2", arrays >= 2 ? n : 0, t.momentum2.size()));
    HOTROW_RETURN_IF_ERROR(
        CheckLength(i, "average", config.average_decay > 0 ? n : 0, t.average.size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DenseOptimizerKind> ParseDenseOptimizer(std::string_view name) {
  return ParseWord(kDenseOptimizers, "dense optimizer", name);
}
std::string_view DenseOptimizerName(DenseOptimizerKind kind) {
  return WordOf(kDenseOptimizers, kind);
}

int32_t DenseStateArrays(DenseOptimizerKind kind) {
  switch (kind) {
    case DenseOptimizerKind::kSgd:
      return 0;
    case DenseOptimizerKind::kAdagrad:
      return 1;
    case DenseOptimizerKind::kAdam:
      return 2;
  }
  return 0;
}

absl::Status DenseOptimizerConfig::Validate() const {
  // Every comparison is false for a NaN, so each check also refuses those.
  HOTROW_RETURN_IF_ERROR(CheckField(learning_rate >= 0 && std::isfinite(learning_rate),
                                    "learning_rate", "finite and >= 0", learning_rate));
  // With eps = 0 an element whose gradients were all zero would become 0/0.
  HOTROW_RETURN_IF_ERROR(CheckField(eps > 0 && std::isfinite(eps), "eps", "finite and > 0", eps));
  HOTROW_RETURN_IF_ERROR(CheckField(beta1 >= 0 && beta1 < 1, "beta1", "in [0, 1)", beta1));
  HOTROW_RETURN_IF_ERROR(CheckField(beta2 >= 0 && beta2 < 1, "beta2", "in [0, 1)", beta2));
  HOTROW_RETURN_IF_ERROR(CheckField(average_decay >= 0 && average_decay < 1, "average_decay",
                                    "in [0, 1)", average_decay));
  return CheckField(weight_decay >= 0 && std::isfinite(weight_decay), "weight_decay",
                    "finite and >= 0", weight_decay);
}

absl::Status DenseUpdate(const ExecContext& ctx, const DenseOptimizerConfig& config,
                         std::span<const DenseTensor> tensors, float learning_rate_factor,
                         uint32_t step, const float* gradient_scale, const uint32_t* skip) {
  HOTROW_RETURN_IF_ERROR(config.Validate());
  HOTROW_RETURN_IF_ERROR(ValidateTensors(config, tensors));
  if (!(learning_rate_factor >= 0 && std::isfinite(learning_rate_factor))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "DenseUpdate: learning_rate_factor must be finite and >= 0, got ", learning_rate_factor));
  }
  if (step == 0) return absl::InvalidArgumentError("DenseUpdate: step must be >= 1, got 0");
  return internal::Dispatch(
      ctx,
      [&] {
        if (skip != nullptr && *skip != 0) return absl::OkStatus();
        return internal::DenseUpdateCpu(ctx.pool, config, tensors, learning_rate_factor, step,
                                        gradient_scale == nullptr ? 1 : *gradient_scale);
      },
      [&](auto stream) {
        return internal::DenseUpdateCuda(stream, config, tensors, learning_rate_factor, step,
                                         gradient_scale, skip);
      });
}

}  // namespace hotrow
