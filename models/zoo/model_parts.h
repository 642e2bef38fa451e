#ifndef HOTROW_MODELS_ZOO_MODEL_PARTS_H_
#define HOTROW_MODELS_ZOO_MODEL_PARTS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/buffer.h"
#include "base/thread_pool.h"
#include "models/zoo/ctr_model.h"

// What the models of this folder share: checks in one wording, and the small loops between the ops.
namespace hotrow {

inline constexpr int64_t kFloatsPerLine = kBufferAlignment / static_cast<int64_t>(sizeof(float));

// --- options ---

// Errors: InvalidArgument when there are no layers or one without units; names the flag.
absl::Status CheckLayerSizes(std::string_view flag, const std::vector<int32_t>& sizes);
// The same, and the last layer must have size 1: the logit.
absl::Status CheckLogitLayerSizes(std::string_view flag, const std::vector<int32_t>& sizes);

// The options that every model has. `options` names the struct: "DlrmOptions".
struct CommonOptions {
  int32_t num_dense = 0;
  int32_t num_sparse = 0;
  int32_t embedding_dim = 0;
  float dropout = 0;
  int64_t max_batch_size = 0;
};
absl::Status CheckCommonOptions(std::string_view options, const CommonOptions& common);

// --- calls ---

// That the model computes on `device`. The error is that of a user who asked for another one.
absl::Status CheckDevice(const CtrModel& model, Device device);

// A batch of 0 to max_batch_size samples with room for its logits. `model` names the class.
absl::Status CheckForward(std::string_view model, const CtrModel::Input& input,
                          int64_t max_batch_size, std::span<const float> logits);
// `input` is that of the last Forward.
absl::Status CheckBackward(std::string_view model, const CtrModel::Input& input,
                           std::span<const float> logit_gradient);

// What a model keeps of an input: all but await_embeddings, and with training = false. The model
// sets training when Forward has ended well, so that Backward refuses to follow one that has not.
CtrModel::Input KeptInput(const CtrModel::Input& input);

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

// --- loops; rows are samples, strides are in floats, all on the CPU ---

struct RowsView {
  const float* data = nullptr;  // [rows, columns]
  int64_t stride = 0;
};
struct MutableRowsView {
  float* data = nullptr;
  int64_t stride = 0;
};

// to[r, i] = from[r, i] for `columns` columns of `rows` rows.
void CopyColumns(ThreadPool* pool, int64_t rows, int64_t columns, RowsView from,
                 MutableRowsView to);
// to[r, i] += from[r, i].
void AddColumns(ThreadPool* pool, int64_t rows, int64_t columns, RowsView from, MutableRowsView to);

// Linear terms of a logit: logits[r] += x_r . w, a row's products summed in the order of columns.
void AddLinearTerms(ThreadPool* pool, int64_t rows, int64_t columns, RowsView x,
                    const float* weights, float* logits);
// Its gradients: weight_gradient[i] = sum_r g_r x_ri in the order of rows, the same bits on any
// pool.
void LinearWeightGradient(ThreadPool* pool, int64_t rows, int64_t columns, RowsView x,
                          const float* logit_gradient, float* weight_gradient);
// to[r, i] = g_r w_i.
void LinearInputGradient(ThreadPool* pool, int64_t rows, int64_t columns,
                         const float* logit_gradient, const float* weights, MutableRowsView to);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_MODEL_PARTS_H_
