#include "ops/layers/dense_network.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/layers/dense_network_impl.h"
#include "ops/products/column_sums_impl.h"
#include "ops/products/gemm_impl.h"
#include "ops/validate.h"

namespace hotrow {

using internal::CheckMatrix;

struct DenseNetwork::State {
  absl::Status CheckDevice(const ExecContext& ctx) const;
  absl::Status CheckArgs(const BackwardArgs& args) const;
  absl::Status OutOfOrder(std::string_view what) const {
    return absl::FailedPreconditionError(
        absl::StrCat(std::string(shape.name), ": ", std::string(what)));
  }

  internal::DenseShape shape;
  Device device = Device::kCpu;
  std::unique_ptr<internal::DenseEngine> engine;
  ForwardArgs last;          // of the last Forward
  bool can_go_back = false;  // BackwardInput can follow
  bool inputs_done = false;  // by BackwardInput; BackwardParameters can follow
};

absl::Status DenseNetwork::State::CheckDevice(const ExecContext& ctx) const {
  if (ctx.device == device) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(shape.name), ": made for device ", std::string(DeviceName(device)),
                   ", called with a context of ", std::string(DeviceName(ctx.device))));
}

absl::Status DenseNetwork::State::CheckArgs(const BackwardArgs& args) const {
  if (args.parameter_gradients == nullptr) {
    return internal::NullField(shape.name, "parameter_gradients");
  }
  if (last.batch_size == 0) return absl::OkStatus();
  if (args.parameters == nullptr) return internal::NullField(shape.name, "parameters");
  HOTROW_RETURN_IF_ERROR(
      CheckMatrix(shape.name, "dy", args.dy, args.dy_stride, shape.output_columns));
  if (args.dx == nullptr) return absl::OkStatus();
  return CheckMatrix(shape.name, "dx", args.dx, args.dx_stride, shape.input_columns);
}

DenseNetwork::DenseNetwork(internal::DenseShape shape, Device device,
                           std::unique_ptr<internal::DenseEngine> engine)
    : state_(new State{.shape = std::move(shape), .device = device, .engine = std::move(engine)}) {}
DenseNetwork::~DenseNetwork() = default;

int64_t DenseNetwork::num_parameters() const { return state_->shape.layers.back().end; }

absl::Status DenseNetwork::Forward(const ExecContext& ctx, const ForwardArgs& args) {
  State& state = *state_;
  const internal::DenseShape& shape = state.shape;
  state.can_go_back = state.inputs_done = false;  // an error below leaves nothing for Backward
  HOTROW_RETURN_IF_ERROR(state.CheckDevice(ctx));
  if (args.batch_size < 0 || args.batch_size > shape.max_batch_size) {
    return internal::InvalidField(
        shape.name, "batch_size",
        absl::StrCat("must be in [0, max_batch_size = ", shape.max_batch_size, "]"),
        args.batch_size);
  }
  if (args.training && shape.scores_only) {
    return internal::InvalidField(shape.name, "training", "must be false with products of int8",
                                  "true");
  }
  if (args.first_row < 0) {
    return internal::InvalidField(shape.name, "first_row", "must be >= 0", args.first_row);
  }
  if (args.batch_size > 0) {
    if (args.parameters == nullptr) return internal::NullField(shape.name, "parameters");
    HOTROW_RETURN_IF_ERROR(
        CheckMatrix(shape.name, "x", args.x, args.x_stride, shape.input_columns));
    HOTROW_RETURN_IF_ERROR(
        CheckMatrix(shape.name, "y", args.y, args.y_stride, shape.output_columns));
  }
  HOTROW_RETURN_IF_ERROR(state.engine->Forward(ctx, args));
  state.last = args;
  state.can_go_back = args.training;
  return absl::OkStatus();
}

absl::Status DenseNetwork::Backward(const ExecContext& ctx, const BackwardArgs& args) {
  HOTROW_RETURN_IF_ERROR(BackwardInput(ctx, args));
  return BackwardParameters(ctx, args);
}

absl::Status DenseNetwork::BackwardInput(const ExecContext& ctx, const BackwardArgs& args) {
  State& state = *state_;
  HOTROW_RETURN_IF_ERROR(state.CheckDevice(ctx));
  if (!state.can_go_back) {
    return state.OutOfOrder("Backward needs a Forward with training = true right before");
  }
  HOTROW_RETURN_IF_ERROR(state.CheckArgs(args));
  state.inputs_done = false;
  state.can_go_back = !state.shape.backward_uses_up;
  HOTROW_RETURN_IF_ERROR(state.engine->BackwardInput(ctx, state.last, args));
  state.inputs_done = true;
  return absl::OkStatus();
}

absl::Status DenseNetwork::BackwardParameters(const ExecContext& ctx, const BackwardArgs& args) {
  State& state = *state_;
  HOTROW_RETURN_IF_ERROR(state.CheckDevice(ctx));
  if (!state.inputs_done) {
    return state.OutOfOrder("BackwardParameters needs a BackwardInput right before");
  }
  HOTROW_RETURN_IF_ERROR(state.CheckArgs(args));
  state.inputs_done = false;
  if (state.last.batch_size > 0) return state.engine->BackwardParameters(ctx, state.last, args);
  HOTROW_RETURN_IF_ERROR(internal::Dispatch(
      ctx,
      [&] {
        std::fill_n(args.parameter_gradients, num_parameters(), 0.0f);
        return absl::OkStatus();
      },
      [&](auto stream) {
        return internal::ZeroFloatsCuda(stream, args.parameter_gradients, num_parameters());
      }));
  for (size_t l = state.shape.layers.size(); l-- > 0;) {
    HOTROW_RETURN_IF_ERROR(internal::LayerReady(state.shape.layers[l], args));
  }
  return absl::OkStatus();
}

int64_t DenseNetwork::activation_bytes() const { return state_->engine->bytes(); }

std::vector<InnerLayer> DenseNetwork::inner_layers() const {
  std::vector<InnerLayer> layers;
  for (size_t l = 0; l < state_->shape.layers.size(); ++l) {
    layers.push_back({state_->shape.layers[l].end, state_->engine->Output(l)});
    layers.back().output.rows = state_->last.batch_size;
  }
  return layers;
}

}  // namespace hotrow
