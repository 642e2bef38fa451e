#include "models/zoo/dcn_model.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "models/zoo/model_parts.h"

namespace hotrow {

int64_t DcnOptions::InputWidth() const {
  const bool has_bottom = num_dense > 0 && !dense_arch_layer_sizes.empty();
  const int64_t dense_width = has_bottom ? dense_arch_layer_sizes.back() : num_dense;
  return dense_width + int64_t{num_sparse} * embedding_dim;
}

absl::Status DcnOptions::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckCommonOptions("DcnOptions", {.num_dense = num_dense,
                                                           .num_sparse = num_sparse,
                                                           .embedding_dim = embedding_dim,
                                                           .dropout = dropout,
                                                           .max_batch_size = max_batch_size}));
  if (version != 1 && version != 2) {
    return absl::InvalidArgumentError(absl::StrCat("--dcn_version must be 1 or 2, is ", version));
  }
  if (num_cross_layers < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dcn_num_layers must be at least 1, is ", num_cross_layers));
  }
  if (num_dense > 0 && !dense_arch_layer_sizes.empty()) {
    HOTROW_RETURN_IF_ERROR(CheckLayerSizes("--dense_arch_layer_sizes", dense_arch_layer_sizes));
  }
  const int64_t width = InputWidth();
  if (width > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--embedding_dim=", embedding_dim, " gives ", width,
                     " inputs a sample, which is more than 2^31 - 1; lower it"));
  }
  if (low_rank_dim > 0 && version == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dcn_low_rank_dim=", low_rank_dim,
                     ": the cross layers of version 1 have no matrix to factor; use "
                     "--dcn_version=2 or --dcn_low_rank_dim=0"));
  }
  if (low_rank_dim < 0 || low_rank_dim > width) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dcn_low_rank_dim=", low_rank_dim, " must be at least 0 and at most ", width,
                     ", the number of features that are crossed; 0 takes full matrices"));
  }
  return CheckLogitLayerSizes("--over_arch_layer_sizes", over_arch_layer_sizes);
}

absl::StatusOr<std::unique_ptr<DcnModel>> DcnModel::Create(const DcnOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<DcnModel> model(new DcnModel(options));
  HOTROW_RETURN_IF_ERROR(model->CreateParts());
  HOTROW_RETURN_IF_ERROR(model->Allocate());
  return model;
}

// Layers are numbered through: bottom MLP, cross layers, over MLP.
absl::Status DcnModel::CreateParts() {
  int32_t num_layers = 0;
  width_ = options_.InputWidth();
  embedding_width_ = int64_t{options_.num_sparse} * options_.embedding_dim;
  dense_width_ = width_ - embedding_width_;
  MlpOptions mlp;
  mlp.dropout = options_.dropout;
  mlp.seed = options_.seed;
  mlp.max_batch_size = options_.max_batch_size;
  if (options_.num_dense > 0 && !options_.dense_arch_layer_sizes.empty()) {
    MlpOptions bottom = mlp;
    bottom.sizes = options_.dense_arch_layer_sizes;
    bottom.sizes.insert(bottom.sizes.begin(), options_.num_dense);
    bottom.relu_on_output = true;
    HOTROW_ASSIGN_OR_RETURN(bottom_, Mlp::Create(bottom));
    num_layers += bottom_->num_layers();
  }
  CrossNetworkOptions cross;
  cross.kind = options_.version == 1 ? CrossKind::kVector : CrossKind::kMatrix;
  cross.width = static_cast<int32_t>(width_);
  cross.num_layers = options_.num_cross_layers;
  cross.rank = options_.low_rank_dim;
  cross.first_layer_id = num_layers;
  cross.max_batch_size = options_.max_batch_size;
  HOTROW_ASSIGN_OR_RETURN(cross_, CrossNetwork::Create(cross));
  num_layers += cross.num_layers;

  MlpOptions over = mlp;
  over.sizes = options_.over_arch_layer_sizes;
  over.sizes.insert(over.sizes.begin(), static_cast<int32_t>(width_));
  over.first_layer_id = num_layers;
  HOTROW_ASSIGN_OR_RETURN(over_, Mlp::Create(over));
  return absl::OkStatus();
}

DenseLayers DcnModel::layers() const {
  DenseLayers out;
  if (bottom_ != nullptr) out.bottom = options_.dense_arch_layer_sizes;
  out.top = options_.over_arch_layer_sizes;
  out.interaction = "cross";
  out.cross_layers = options_.num_cross_layers;
  out.cross_rank = options_.version == 1 ? 1 : options_.low_rank_dim;
  return out;
}

absl::Status DcnModel::Allocate() {
  const int64_t bottom_parameters = bottom_ == nullptr ? 0 : bottom_->num_parameters();
  cross_offset_ = bottom_parameters;  // an MLP's parameters fill whole cache lines
  cross_logit_offset_ = cross_offset_ + cross_->num_parameters();
  over_offset_ = cross_logit_offset_ + (parallel() ? RoundUp(width_, kFloatsPerLine) : 0);
  const int64_t num_parameters = over_offset_ + over_->num_parameters();
  HOTROW_ASSIGN_OR_RETURN(parameters_, HostBuffer<float>::Create(num_parameters, HugePages::kTry));
  HOTROW_ASSIGN_OR_RETURN(gradients_, HostBuffer<float>::Create(num_parameters, HugePages::kTry));
  // The weights of x_L stay zero at first: they find their sign in one step.
  if (bottom_ != nullptr) {
    bottom_->InitParameters(options_.seed, parameters_.span().first(bottom_parameters));
  }
  cross_->InitParameters(options_.seed,
                         parameters_.span().subspan(cross_offset_, cross_->num_parameters()));
  over_->InitParameters(options_.seed, parameters_.span().subspan(over_offset_));

  stride_ = RoundUp(width_, kFloatsPerLine);
  for (HostBuffer<float>* const buffer :
       {&inputs_, &crossed_, &inputs_gradient_, &crossed_gradient_}) {
    HOTROW_ASSIGN_OR_RETURN(
        *buffer, HostBuffer<float>::Create(options_.max_batch_size * stride_, HugePages::kTry));
  }
  return absl::OkStatus();
}

absl::Status DcnModel::Forward(const ExecContext& ctx, const Input& input,
                               std::span<float> logits) {
  input_ = {};
  HOTROW_RETURN_IF_ERROR(CheckDevice(*this, ctx.device));
  HOTROW_RETURN_IF_ERROR(CheckForward("DcnModel", input, options_.max_batch_size, logits));
  input_ = KeptInput(input);
  const int64_t rows = input.batch_size;
  if (bottom_ != nullptr) {
    HOTROW_RETURN_IF_ERROR(bottom_->Forward(ctx, {.parameters = parameters_.data(),
                                                  .x = input.dense,
                                                  .x_stride = options_.num_dense,
                                                  .batch_size = rows,
                                                  .y = inputs_.data(),
                                                  .y_stride = stride_,
                                                  .training = input.training,
                                                  .step = input.step,
                                                  .first_row = input.first_sample}));
  } else if (dense_width_ > 0) {
    CopyColumns(ctx.pool, rows, dense_width_, {input.dense, dense_width_},
                {inputs_.data(), stride_});
  }
  HOTROW_RETURN_IF_ERROR(AwaitEmbeddings(input));
  CopyColumns(ctx.pool, rows, embedding_width_, {input.embeddings, embedding_width_},
              {inputs_.data() + dense_width_, stride_});
  HOTROW_RETURN_IF_ERROR(cross_->Forward(ctx, {.parameters = parameters_.data() + cross_offset_,
                                               .x = inputs_.data(),
                                               .x_stride = stride_,
                                               .batch_size = rows,
                                               .y = crossed_.data(),
                                               .y_stride = stride_,
                                               .training = input.training}));
  HOTROW_RETURN_IF_ERROR(over_->Forward(ctx, {.parameters = parameters_.data() + over_offset_,
                                              .x = parallel() ? inputs_.data() : crossed_.data(),
                                              .x_stride = stride_,
                                              .batch_size = rows,
                                              .y = logits.data(),
                                              .y_stride = 1,
                                              .training = input.training,
                                              .step = input.step,
                                              .first_row = input.first_sample}));
  if (parallel()) {
    AddLinearTerms(ctx.pool, rows, width_, {crossed_.data(), stride_},
                   parameters_.data() + cross_logit_offset_, logits.data());
  }
  input_.training = input.training;
  return absl::OkStatus();
}

absl::Status DcnModel::Backward(const ExecContext& ctx, std::span<float> logit_gradient,
                                float* embedding_gradient, const BackwardHooks& hooks) {
  HOTROW_RETURN_IF_ERROR(CheckDevice(*this, ctx.device));
  HOTROW_RETURN_IF_ERROR(CheckBackward("DcnModel", input_, logit_gradient));
  const int64_t rows = input_.batch_size;
  const CrossNetwork::BackwardArgs cross = {
      .parameters = parameters_.data() + cross_offset_,
      .dy = crossed_gradient_.data(),
      .dy_stride = stride_,
      .dx = inputs_gradient_.data(),
      .dx_stride = stride_,
      .parameter_gradients = gradients_.data() + cross_offset_,
      .gradients_ready = PartGradientsReady(hooks, cross_offset_)};
  const Mlp::BackwardArgs over = {.parameters = parameters_.data() + over_offset_,
                                  .dy = logit_gradient.data(),
                                  .dy_stride = 1,
                                  .dx = crossed_gradient_.data(),
                                  .dx_stride = stride_,
                                  .parameter_gradients = gradients_.data() + over_offset_,
                                  .gradients_ready = PartGradientsReady(hooks, over_offset_)};
  // First the gradient of x_0, then those of the parameters.
  if (parallel()) {
    float* const weight_gradient = gradients_.data() + cross_logit_offset_;
    std::fill(weight_gradient + width_, gradients_.data() + over_offset_, 0.0f);
    LinearWeightGradient(ctx.pool, rows, width_, {crossed_.data(), stride_}, logit_gradient.data(),
                         weight_gradient);
    LinearInputGradient(ctx.pool, rows, width_, logit_gradient.data(),
                        parameters_.data() + cross_logit_offset_,
                        {crossed_gradient_.data(), stride_});
    HOTROW_RETURN_IF_ERROR(cross_->BackwardInput(ctx, cross));
  }
  // In the parallel structure it overwrites the gradient of x_L, which the cross layers have read.
  HOTROW_RETURN_IF_ERROR(over_->BackwardInput(ctx, over));
  if (parallel()) {
    AddColumns(ctx.pool, rows, width_, {crossed_gradient_.data(), stride_},
               {inputs_gradient_.data(), stride_});
  } else {
    HOTROW_RETURN_IF_ERROR(cross_->BackwardInput(ctx, cross));
  }
  CopyColumns(ctx.pool, rows, embedding_width_, {inputs_gradient_.data() + dense_width_, stride_},
              {embedding_gradient, embedding_width_});
  HOTROW_RETURN_IF_ERROR(EmbeddingGradientReady(hooks));

  HOTROW_RETURN_IF_ERROR(over_->BackwardParameters(ctx, over));
  if (parallel()) {
    HOTROW_RETURN_IF_ERROR(GradientsReady(hooks, cross_logit_offset_, over_offset_));
  }
  HOTROW_RETURN_IF_ERROR(cross_->BackwardParameters(ctx, cross));
  if (bottom_ == nullptr) return absl::OkStatus();
  return bottom_->Backward(ctx, {.parameters = parameters_.data(),
                                 .dy = inputs_gradient_.data(),
                                 .dy_stride = stride_,
                                 .dx = nullptr,
                                 .dx_stride = 0,
                                 .parameter_gradients = gradients_.data(),
                                 .gradients_ready = PartGradientsReady(hooks, 0)});
}

}  // namespace hotrow
