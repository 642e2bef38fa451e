#include "models/zoo/dlrm_model.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/buffer.h"
#include "base/device_stream.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "models/zoo/model_parts.h"

namespace hotrow {
namespace {

// `sizes` with the last one replaced: what the user meant to type.
std::string WithLast(std::vector<int32_t> sizes, int32_t last) {
  sizes.back() = last;
  return absl::StrJoin(sizes, "-");
}

}  // namespace

absl::Status DlrmOptions::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckCommonOptions("DlrmOptions", {.num_dense = num_dense,
                                                            .num_sparse = num_sparse,
                                                            .embedding_dim = embedding_dim,
                                                            .dropout = dropout,
                                                            .max_batch_size = max_batch_size}));
  if (num_dense > 0) {
    HOTROW_RETURN_IF_ERROR(CheckLayerSizes("--dense_arch_layer_sizes", dense_arch_layer_sizes));
    if (dense_arch_layer_sizes.back() != embedding_dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("--dense_arch_layer_sizes ends in ", dense_arch_layer_sizes.back(),
                       " but --embedding_dim is ", embedding_dim,
                       ": the two vectors meet in dot products and must be equally long; use "
                       "--dense_arch_layer_sizes=",
                       WithLast(dense_arch_layer_sizes, embedding_dim),
                       " or --embedding_dim=", dense_arch_layer_sizes.back()));
    }
  }
  return CheckLogitLayerSizes("--over_arch_layer_sizes", over_arch_layer_sizes);
}

absl::StatusOr<std::unique_ptr<DlrmModel>> DlrmModel::Create(const DlrmOptions& options,
                                                             const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<DlrmModel> model(new DlrmModel(options, ctx.device));

  int32_t num_bottom_layers = 0;
  if (options.num_dense > 0) {
    MlpOptions bottom;
    bottom.sizes = options.dense_arch_layer_sizes;
    bottom.sizes.insert(bottom.sizes.begin(), options.num_dense);
    bottom.relu_on_output = true;
    bottom.dropout = options.dropout;
    bottom.seed = options.seed;
    bottom.max_batch_size = options.max_batch_size;
    bottom.tf32 = options.tf32;
    HOTROW_ASSIGN_OR_RETURN(model->bottom_, Mlp::Create(bottom, ctx));
    num_bottom_layers = model->bottom_->num_layers();
  }

  const int32_t num_sparse = options.num_dense > 0 ? options.num_sparse : options.num_sparse - 1;
  MlpOptions top;
  top.sizes = options.over_arch_layer_sizes;
  top.sizes.insert(top.sizes.begin(), static_cast<int32_t>(DotInteractionOutputSize(
                                          num_sparse, options.embedding_dim)));
  top.dropout = options.dropout;
  top.seed = options.seed;
  top.first_layer_id = num_bottom_layers;
  top.max_batch_size = options.max_batch_size;
  top.tf32 = options.tf32;
  HOTROW_ASSIGN_OR_RETURN(model->top_, Mlp::Create(top, ctx));

  HOTROW_RETURN_IF_ERROR(model->Allocate(ctx));
  HOTROW_RETURN_IF_ERROR(model->InitParameters(ctx));
  return model;
}

DenseLayers DlrmModel::layers() const {
  DenseLayers out;
  if (bottom_ != nullptr) out.bottom = options_.dense_arch_layer_sizes;
  out.top = options_.over_arch_layer_sizes;
  out.interaction = "dot";
  return out;
}

absl::Status DlrmModel::Allocate(const ExecContext& ctx) {
  const auto allocate = [&](int64_t floats, DeviceMemory<float>* memory) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(
        *memory, DeviceMemory<float>::Create(floats, {ctx.device, ctx.stream, HugePages::kTry}));
    return absl::OkStatus();
  };
  top_offset_ = bottom_ == nullptr ? 0 : bottom_->num_parameters();  // whole cache lines
  const int64_t num_parameters = top_offset_ + top_->num_parameters();
  HOTROW_RETURN_IF_ERROR(allocate(num_parameters, &parameters_));
  HOTROW_RETURN_IF_ERROR(allocate(num_parameters, &gradients_));

  const int64_t b_max = options_.max_batch_size;
  interaction_stride_ = RoundUp(top_->input_size(), kFloatsPerLine);
  HOTROW_RETURN_IF_ERROR(allocate(b_max * interaction_stride_, &interactions_));
  HOTROW_RETURN_IF_ERROR(allocate(b_max * interaction_stride_, &interactions_gradient_));
  if (bottom_ == nullptr) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(allocate(b_max * options_.embedding_dim, &dense_vectors_));
  return allocate(b_max * options_.embedding_dim, &dense_gradient_);
}

absl::Status DlrmModel::InitParameters(const ExecContext& ctx) {
  HostBuffer<float> drawn;  // on another device: where they are drawn
  std::span<float> host = parameters();
  if (ctx.device != Device::kCpu) {
    HOTROW_ASSIGN_OR_RETURN(drawn, HostBuffer<float>::Create(parameters_.size()));
    host = drawn.span();
  }
  if (bottom_ != nullptr) {
    bottom_->InitParameters(options_.seed, host.first(static_cast<size_t>(top_offset_)));
  }
  top_->InitParameters(options_.seed, host.subspan(static_cast<size_t>(top_offset_)));
  if (ctx.device == Device::kCpu) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(ctx.device));
  HOTROW_RETURN_IF_ERROR(stream.RunAfter(ctx.stream));  // which the memory comes from
  HOTROW_RETURN_IF_ERROR(stream.Copy(parameters_.data(), host.data(), drawn.bytes()));
  return stream.Wait();
}

// Of the batch in input_. Without a bottom MLP the first of the embeddings is the dense vector and
// the others, which lie right behind it, are the sparse ones.
DotInteractionArgs DlrmModel::InteractionArgs() {
  const int64_t dim = options_.embedding_dim;
  const int64_t width = options_.num_sparse * dim;
  const bool has_dense = bottom_ != nullptr;
  return {.batch_size = input_.batch_size,
          .num_sparse = has_dense ? options_.num_sparse : options_.num_sparse - 1,
          .dim = options_.embedding_dim,
          .dense = has_dense ? dense_vectors_.data() : input_.embeddings,
          .dense_stride = has_dense ? dim : width,
          .sparse = has_dense ? input_.embeddings : input_.embeddings + dim,
          .sparse_stride = width,
          .output = interactions_.data(),
          .output_stride = interaction_stride_};
}

absl::Status DlrmModel::Forward(const ExecContext& ctx, const Input& input,
                                std::span<float> logits) {
  input_ = {};
  HOTROW_RETURN_IF_ERROR(CheckDevice(*this, ctx.device));
  HOTROW_RETURN_IF_ERROR(CheckForward("DlrmModel", input, options_.max_batch_size, logits));
  input_ = KeptInput(input);
  if (bottom_ != nullptr) {
    HOTROW_RETURN_IF_ERROR(bottom_->Forward(ctx, {.parameters = parameters_.data(),
                                                  .x = input.dense,
                                                  .x_stride = options_.num_dense,
                                                  .batch_size = input.batch_size,
                                                  .y = dense_vectors_.data(),
                                                  .y_stride = options_.embedding_dim,
                                                  .training = input.training,
                                                  .step = input.step,
                                                  .first_row = input.first_sample}));
  }
  HOTROW_RETURN_IF_ERROR(AwaitEmbeddings(input));
  if (input.batch_size > 0) HOTROW_RETURN_IF_ERROR(DotInteraction(ctx, InteractionArgs()));
  HOTROW_RETURN_IF_ERROR(top_->Forward(ctx, {.parameters = parameters_.data() + top_offset_,
                                             .x = interactions_.data(),
                                             .x_stride = interaction_stride_,
                                             .batch_size = input.batch_size,
                                             .y = logits.data(),
                                             .y_stride = 1,
                                             .training = input.training,
                                             .step = input.step,
                                             .first_row = input.first_sample}));
  input_.training = input.training;
  return absl::OkStatus();
}

absl::Status DlrmModel::Backward(const ExecContext& ctx, std::span<float> logit_gradient,
                                 float* embedding_gradient, const BackwardHooks& hooks) {
  HOTROW_RETURN_IF_ERROR(CheckDevice(*this, ctx.device));
  HOTROW_RETURN_IF_ERROR(CheckBackward("DlrmModel", input_, logit_gradient));
  const Mlp::BackwardArgs top = {.parameters = parameters_.data() + top_offset_,
                                 .dy = logit_gradient.data(),
                                 .dy_stride = 1,
                                 .dx = interactions_gradient_.data(),
                                 .dx_stride = interaction_stride_,
                                 .parameter_gradients = gradients_.data() + top_offset_,
                                 .gradients_ready = PartGradientsReady(hooks, top_offset_)};
  HOTROW_RETURN_IF_ERROR(top_->BackwardInput(ctx, top));
  const int64_t dim = options_.embedding_dim;
  if (input_.batch_size > 0) {
    const int64_t width = options_.num_sparse * dim;
    const bool has_dense = bottom_ != nullptr;
    HOTROW_RETURN_IF_ERROR(DotInteractionGrad(
        ctx, {.forward = InteractionArgs(),
              .output_gradient = interactions_gradient_.data(),
              .dense_gradient = has_dense ? dense_gradient_.data() : embedding_gradient,
              .dense_gradient_stride = has_dense ? dim : width,
              .sparse_gradient = has_dense ? embedding_gradient : embedding_gradient + dim,
              .sparse_gradient_stride = width}));
  }
  HOTROW_RETURN_IF_ERROR(EmbeddingGradientReady(hooks));
  HOTROW_RETURN_IF_ERROR(top_->BackwardParameters(ctx, top));
  if (bottom_ == nullptr) return absl::OkStatus();
  return bottom_->Backward(ctx, {.parameters = parameters_.data(),
                                 .dy = dense_gradient_.data(),
                                 .dy_stride = dim,
                                 .dx = nullptr,
                                 .dx_stride = 0,
                                 .parameter_gradients = gradients_.data(),
                                 .gradients_ready = PartGradientsReady(hooks, 0)});
}

}  // namespace hotrow
