#ifndef HOTROW_MODELS_ZOO_MODEL_PARTS_H_
#define HOTROW_MODELS_ZOO_MODEL_PARTS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/device.h"
#include "models/zoo/ctr_model.h"
#include "models/zoo/layers/layer.h"
#include "models/zoo/layers/model_graph.h"
#include "ops/layers/columns.h"

// What the models of this folder share: checks in one wording, and calls that may be null.
namespace hotrow {

// --- options ---

// Errors: InvalidArgument when there are no layers or one without units; names the flag.
absl::Status CheckLayerSizes(std::string_view flag, const std::vector<int32_t>& sizes);
// The same, and the last layer must have size 1: the logit.
absl::Status CheckLogitLayerSizes(std::string_view flag, const std::vector<int32_t>& sizes);

// The options that every model has, but its layers. `name` is that of the struct: "DlrmOptions".
absl::Status CheckCommonOptions(std::string_view name, const ModelOptions& options);
// Those and the layers of the MLP that gives the logit.
absl::Status CheckDeepOptions(std::string_view name, const ModelOptions& options);

// --- columns ---

// The view for ops/layers/columns.h; T: float, or const float.
template <typename T>
Columns<T> ColumnsOf(const TensorView& view) {
  return {.data = view.data,
          .row_stride = view.row_stride,
          .dim = view.packed() ? static_cast<int32_t>(view.shape.width()) : view.shape.dim,
          .field_stride = view.field_stride};
}

// --- calls ---

// The error of a user who asked a model for a device that it does not know. part: the one of its
// parts that does not; empty: the model was made for another one.
absl::Status WorksOnlyOn(std::string_view model, Device works_on, Device asked,
                         std::string_view part = {});
// That the model computes on `device`.
absl::Status CheckDevice(const CtrModel& model, Device device);

// A batch of 0 to max_batch_size samples with room for its logits.
absl::Status CheckForward(const CtrModel& model, const CtrModel::Input& input,
                          int64_t max_batch_size, std::span<const float> logits);
// `input` is that of the last Forward.
absl::Status CheckBackward(const CtrModel& model, const CtrModel::Input& input,
                           std::span<const float> logit_gradient);

// Calls input.await_embeddings, if it is there.
absl::Status AwaitEmbeddings(const CtrModel::Input& input);
// Calls hooks.embedding_gradient_ready, if it is there.
absl::Status EmbeddingGradientReady(const CtrModel::BackwardHooks& hooks);
// Calls hooks.gradients_ready, if it is there.
absl::Status GradientsReady(const CtrModel::BackwardHooks& hooks, int64_t begin, int64_t end);
// The same as a function of a part (Mlp, CrossNetwork) whose gradients begin at `offset`; null
// where hooks.gradients_ready is. hooks must outlive it.
std::function<absl::Status(int64_t begin, int64_t end)> PartGradientsReady(
    const CtrModel::BackwardHooks& hooks, int64_t offset);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_MODEL_PARTS_H_
