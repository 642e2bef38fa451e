#include "models/zoo/model_parts.h"

#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

void DenseLayers::Add(Part part) {
  for (Part& earlier : parts) {
    part.count = earlier.count;
    if (part == earlier) {
      ++earlier.count;
      return;
    }
  }
  part.count = 1;
  parts.push_back(std::move(part));
}

absl::Status CheckLayerSizes(std::string_view flag, const std::vector<int32_t>& sizes) {
  if (sizes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        Absl(flag), " is empty: give the output size of each layer, as in 512-256-16"));
  }
  for (const int32_t size : sizes) {
    if (size <= 0) {
      return absl::InvalidArgumentError(absl::StrCat(Absl(flag), "=", absl::StrJoin(sizes, "-"),
                                                     ": every layer needs a size of at least 1"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLogitLayerSizes(std::string_view flag, const std::vector<int32_t>& sizes) {
  HOTROW_RETURN_IF_ERROR(CheckLayerSizes(flag, sizes));
  if (sizes.back() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(flag), " ends in ", sizes.back(),
                     " but the model's output is one logit: append a layer of size 1, ", Absl(flag),
                     "=", absl::StrJoin(sizes, "-"), "-1"));
  }
  return absl::OkStatus();
}

absl::Status CheckCommonOptions(std::string_view name, const ModelOptions& options) {
  if (options.num_dense < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(name), ".num_dense: must not be negative, is ", options.num_dense));
  }
  if (options.num_sparse < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(name), ".num_sparse: must be at least 1, is ", options.num_sparse));
  }
  if (options.embedding_dim <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--embedding_dim must be at least 1, is ", options.embedding_dim));
  }
  // Tables have up to one column more.
  if (options.embedding_dim == std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--embedding_dim must be less than 2^31 - 1, is ", options.embedding_dim));
  }
  if (options.max_batch_size <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        Absl(name), ".max_batch_size: must be at least 1, is ", options.max_batch_size));
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dropout must be at least 0 and less than 1, is ", options.dropout));
  }
  return absl::OkStatus();
}

absl::Status CheckDeepOptions(std::string_view name, const ModelOptions& options) {
  HOTROW_RETURN_IF_ERROR(CheckCommonOptions(name, options));
  return CheckLogitLayerSizes("--over_arch_layer_sizes", options.over_arch_layer_sizes);
}

absl::Status WorksOnlyOn(std::string_view model, Device works_on, Device asked,
                         std::string_view part) {
  const absl::string_view name = Absl(DeviceName(works_on));
  return absl::InvalidArgumentError(
      absl::StrCat("--device=", Absl(DeviceName(asked)), ": this ", Absl(model), " works on the ",
                   name, " only; use --device=", name, part.empty() ? "" : " (its part \"",
                   Absl(part), part.empty() ? "" : "\" knows no other)"));
}

absl::Status CheckDevice(const CtrModel& model, Device device) {
  if (model.device() == device) return absl::OkStatus();
  return WorksOnlyOn(model.name(), model.device(), device);
}

absl::Status CheckForward(const CtrModel& model, const CtrModel::Input& input,
                          int64_t max_batch_size, std::span<const float> logits) {
  const absl::string_view name = Absl(model.name());
  if (input.batch_size < 0 || input.batch_size > max_batch_size ||
      static_cast<int64_t>(logits.size()) < input.batch_size * model.num_tasks()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": a batch of ", input.batch_size,
                                                   " samples with room for ", logits.size(),
                                                   " logits; max_batch_size is ", max_batch_size));
  }
  if (input.first_sample < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": first_sample must not be negative, is ", input.first_sample));
  }
  return absl::OkStatus();
}

absl::Status CheckBackward(const CtrModel& model, const CtrModel::Input& input,
                           std::span<const float> logit_gradient) {
  const absl::string_view name = Absl(model.name());
  if (!input.training) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": Backward needs a Forward for training first"));
  }
  if (static_cast<int64_t>(logit_gradient.size()) < input.batch_size * model.num_tasks()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", logit_gradient.size(),
                                                   " logit gradients for a batch of ",
                                                   input.batch_size, " samples"));
  }
  return absl::OkStatus();
}

absl::Status AwaitEmbeddings(const CtrModel::Input& input) {
  return input.await_embeddings == nullptr ? absl::OkStatus() : input.await_embeddings();
}

absl::Status EmbeddingGradientReady(const CtrModel::BackwardHooks& hooks) {
  if (hooks.embedding_gradient_ready == nullptr) return absl::OkStatus();
  return hooks.embedding_gradient_ready();
}

absl::Status GradientsReady(const CtrModel::BackwardHooks& hooks, int64_t begin, int64_t end) {
  if (hooks.gradients_ready == nullptr) return absl::OkStatus();
  return hooks.gradients_ready(begin, end);
}

std::function<absl::Status(int64_t begin, int64_t end)> PartGradientsReady(
    const CtrModel::BackwardHooks& hooks, int64_t offset) {
  if (hooks.gradients_ready == nullptr) return nullptr;
  return [&hooks, offset](int64_t begin, int64_t end) {
    return hooks.gradients_ready(offset + begin, offset + end);
  };
}

}  // namespace hotrow
