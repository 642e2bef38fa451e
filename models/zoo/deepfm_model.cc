#include "models/zoo/deepfm_model.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "models/zoo/model_parts.h"

namespace hotrow {

absl::Status DeepFmOptions::Validate() const {
  HOTROW_RETURN_IF_ERROR(CheckCommonOptions("DeepFmOptions", {.num_dense = num_dense,
                                                              .num_sparse = num_sparse,
                                                              .embedding_dim = embedding_dim,
                                                              .dropout = dropout,
                                                              .max_batch_size = max_batch_size}));
  const int64_t width = int64_t{num_sparse} * TableColumns(embedding_dim) + num_dense;
  if (width > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--embedding_dim=", embedding_dim, " gives ", width,
                     " inputs a sample, which is more than 2^31 - 1; lower it"));
  }
  return CheckLogitLayerSizes("--over_arch_layer_sizes", over_arch_layer_sizes);
}

absl::StatusOr<std::unique_ptr<DeepFmModel>> DeepFmModel::Create(const DeepFmOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<DeepFmModel> model(new DeepFmModel(options));
  MlpOptions mlp;
  mlp.sizes = options.over_arch_layer_sizes;
  mlp.sizes.insert(mlp.sizes.begin(),
                   options.num_sparse * options.embedding_dim + options.num_dense);
  mlp.dropout = options.dropout;
  mlp.seed = options.seed;
  mlp.max_batch_size = options.max_batch_size;
  HOTROW_ASSIGN_OR_RETURN(model->mlp_, Mlp::Create(mlp));
  HOTROW_RETURN_IF_ERROR(model->Allocate());
  return model;
}

DenseLayers DeepFmModel::layers() const {
  return {.bottom = {}, .top = options_.over_arch_layer_sizes};
}

absl::Status DeepFmModel::Allocate() {
  const int64_t b_max = options_.max_batch_size;
  mlp_offset_ = RoundUp(int64_t{options_.num_dense} + 1, kFloatsPerLine);
  const int64_t num_parameters = mlp_offset_ + mlp_->num_parameters();
  HOTROW_ASSIGN_OR_RETURN(parameters_, HostBuffer<float>::Create(num_parameters, HugePages::kTry));
  HOTROW_ASSIGN_OR_RETURN(gradients_, HostBuffer<float>::Create(num_parameters, HugePages::kTry));
  mlp_->InitParameters(options_.seed, parameters_.span().subspan(mlp_offset_));

  deep_stride_ = RoundUp(mlp_->input_size(), kFloatsPerLine);
  HOTROW_ASSIGN_OR_RETURN(deep_input_,
                          HostBuffer<float>::Create(b_max * deep_stride_, HugePages::kTry));
  HOTROW_ASSIGN_OR_RETURN(deep_gradient_,
                          HostBuffer<float>::Create(b_max * deep_stride_, HugePages::kTry));
  HOTROW_ASSIGN_OR_RETURN(interaction_terms_, HostBuffer<float>::Create(b_max));
  return absl::OkStatus();
}

// Of the batch in input_.
FmInteractionArgs DeepFmModel::InteractionArgs() {
  const auto field_stride =
      static_cast<int32_t>(DeepFmOptions::TableColumns(options_.embedding_dim));
  return {.batch_size = input_.batch_size,
          .num_fields = options_.num_sparse,
          .dim = options_.embedding_dim,
          .field_stride = field_stride,
          .fields = input_.embeddings,
          .fields_stride = int64_t{options_.num_sparse} * field_stride,
          .first_order_column = options_.embedding_dim,
          .output = interaction_terms_.data()};
}

absl::Status DeepFmModel::Forward(const ExecContext& ctx, const Input& input,
                                  std::span<float> logits) {
  input_ = {};
  HOTROW_RETURN_IF_ERROR(CheckDevice(*this, ctx.device));
  HOTROW_RETURN_IF_ERROR(CheckForward("DeepFmModel", input, options_.max_batch_size, logits));
  input_ = KeptInput(input);
  const int64_t rows = input.batch_size;
  const int64_t dim = options_.embedding_dim;
  const RowsView dense = {input.dense, options_.num_dense};
  if (options_.num_dense > 0) {
    CopyColumns(ctx.pool, rows, options_.num_dense, dense,
                {deep_input_.data() + options_.num_sparse * dim, deep_stride_});
  }
  HOTROW_RETURN_IF_ERROR(AwaitEmbeddings(input));
  if (rows > 0) {
    HOTROW_RETURN_IF_ERROR(FmInteraction(ctx, InteractionArgs()));
    const int64_t field_stride = DeepFmOptions::TableColumns(dim);
    const int64_t fields_stride = options_.num_sparse * field_stride;
    for (int64_t s = 0; s < options_.num_sparse; ++s) {
      CopyColumns(ctx.pool, rows, dim, {input.embeddings + s * field_stride, fields_stride},
                  {deep_input_.data() + s * dim, deep_stride_});
    }
  }
  HOTROW_RETURN_IF_ERROR(mlp_->Forward(ctx, {.parameters = parameters_.data() + mlp_offset_,
                                             .x = deep_input_.data(),
                                             .x_stride = deep_stride_,
                                             .batch_size = rows,
                                             .y = logits.data(),
                                             .y_stride = 1,
                                             .training = input.training,
                                             .step = input.step,
                                             .first_row = input.first_sample}));
  const float bias = parameters_[bias_offset()];
  for (int64_t b = 0; b < rows; ++b) {
    logits[static_cast<size_t>(b)] += interaction_terms_[b] + bias;
  }
  if (options_.num_dense > 0) {
    AddLinearTerms(ctx.pool, rows, options_.num_dense, dense, parameters_.data(), logits.data());
  }
  input_.training = input.training;
  return absl::OkStatus();
}

absl::Status DeepFmModel::Backward(const ExecContext& ctx, std::span<float> logit_gradient,
                                   float* embedding_gradient, const BackwardHooks& hooks) {
  HOTROW_RETURN_IF_ERROR(CheckDevice(*this, ctx.device));
  HOTROW_RETURN_IF_ERROR(CheckBackward("DeepFmModel", input_, logit_gradient));
  const int64_t rows = input_.batch_size;
  // All that reads logit_gradient comes before the MLP, which takes it as scratch.
  const FmInteractionArgs interaction = InteractionArgs();
  if (rows > 0) {
    HOTROW_RETURN_IF_ERROR(
        FmInteractionGrad(ctx, {.forward = interaction,
                                .output_gradient = logit_gradient.data(),
                                .fields_gradient = embedding_gradient,
                                .fields_gradient_stride = interaction.fields_stride}));
  }
  std::fill_n(gradients_.data(), mlp_offset_, 0.0f);
  if (options_.num_dense > 0) {
    LinearWeightGradient(ctx.pool, rows, options_.num_dense, {input_.dense, options_.num_dense},
                         logit_gradient.data(), gradients_.data());
  }
  for (int64_t b = 0; b < rows; ++b) {
    gradients_[bias_offset()] += logit_gradient[static_cast<size_t>(b)];
  }
  const Mlp::BackwardArgs mlp = {.parameters = parameters_.data() + mlp_offset_,
                                 .dy = logit_gradient.data(),
                                 .dy_stride = 1,
                                 .dx = deep_gradient_.data(),
                                 .dx_stride = deep_stride_,
                                 .parameter_gradients = gradients_.data() + mlp_offset_,
                                 .gradients_ready = PartGradientsReady(hooks, mlp_offset_)};
  HOTROW_RETURN_IF_ERROR(mlp_->BackwardInput(ctx, mlp));
  const int64_t dim = options_.embedding_dim;
  for (int64_t s = 0; rows > 0 && s < options_.num_sparse; ++s) {
    AddColumns(ctx.pool, rows, dim, {deep_gradient_.data() + s * dim, deep_stride_},
               {embedding_gradient + s * interaction.field_stride, interaction.fields_stride});
  }
  HOTROW_RETURN_IF_ERROR(EmbeddingGradientReady(hooks));
  HOTROW_RETURN_IF_ERROR(mlp_->BackwardParameters(ctx, mlp));
  return GradientsReady(hooks, 0, mlp_offset_);
}

}  // namespace hotrow
