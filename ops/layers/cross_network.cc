#include "ops/layers/cross_network.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/dispatch.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/layers/cross_network_impl.h"
#include "ops/products/gemm_impl.h"
#include "ops/validate.h"

namespace hotrow {
namespace {

using internal::kFloatsPerLine;

constexpr char kOp[] = "CrossNetwork";
constexpr int32_t kMaxLayers = 1 << 20;

}  // namespace

absl::Status CrossNetworkOptions::Validate() const {
  constexpr char kName[] = "CrossNetworkOptions";
  if (width <= 0) return internal::InvalidField(kName, "width", "must be > 0", width);
  if (num_layers <= 0 || num_layers > kMaxLayers) {
    return internal::InvalidField(kName, "num_layers", "must be in [1, 2^20]", num_layers);
  }
  if (rank < 0 || rank > width) {
    return internal::InvalidField(kName, "rank",
                                  absl::StrCat("must be in [0, width = ", width, "]"), rank);
  }
  if (rank > 0 && kind == CrossKind::kVector) {
    return internal::InvalidField(kName, "rank", "must be 0 with weight vectors", rank);
  }
  if (first_layer_id < 0) {
    return internal::InvalidField(kName, "first_layer_id", "must be >= 0", first_layer_id);
  }
  if (max_batch_size <= 0) {
    return internal::InvalidField(kName, "max_batch_size", "must be > 0", max_batch_size);
  }
  return absl::OkStatus();
}

namespace internal {

CrossShape ShapeOf(const CrossNetworkOptions& options) {
  CrossShape shape = {.kind = options.kind,
                      .width = options.width,
                      .rank = options.rank,
                      .stride = RoundUp(options.width, kFloatsPerLine),
                      .rank_stride = RoundUp(options.rank, kFloatsPerLine),
                      .max_batch_size = options.max_batch_size};
  const auto take = [&shape](int64_t floats) {
    const int64_t offset = shape.num_parameters;
    shape.num_parameters += RoundUp(floats, kFloatsPerLine);
    return offset;
  };
  shape.layers.resize(static_cast<size_t>(options.num_layers));
  for (CrossLayerShape& layer : shape.layers) {
    if (shape.kind == CrossKind::kVector) {
      layer.weight_offset = take(shape.width);
    } else if (shape.low_rank()) {
      layer.weight_offset = take(shape.rank * shape.width);
      layer.u_offset = take(shape.width * shape.rank);
    } else {
      layer.weight_offset = take(shape.width * shape.width);
    }
    layer.bias_offset = take(shape.width);
    layer.end = shape.num_parameters;
  }
  return shape;
}

absl::Status LayerReady(const CrossLayerShape& layer, const CrossNetwork::BackwardArgs& args) {
  if (args.gradients_ready == nullptr) return absl::OkStatus();
  return args.gradients_ready(layer.weight_offset, layer.end);
}

}  // namespace internal

struct CrossNetwork::Impl {
  // What Backward needs to know of the last Forward.
  struct LastForward {
    bool training = false;
    ForwardArgs args;
    bool inputs_done = false;  // by BackwardInput; BackwardParameters can follow
  };

  absl::Status CheckDevice(const ExecContext& ctx) const;
  absl::Status CheckArgs(const BackwardArgs& args) const;

  CrossNetworkOptions options;
  internal::CrossShape shape;
  Device device = Device::kCpu;
  std::unique_ptr<internal::CrossEngine> engine;
  LastForward last;
};

absl::Status CrossNetwork::Impl::CheckDevice(const ExecContext& ctx) const {
  if (ctx.device == device) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(kOp, ": made for device ", std::string(DeviceName(device)),
                   ", called with a context of ", std::string(DeviceName(ctx.device))));
}

absl::Status CrossNetwork::Impl::CheckArgs(const BackwardArgs& args) const {
  if (args.parameter_gradients == nullptr) return internal::NullField(kOp, "parameter_gradients");
  if (last.args.batch_size == 0) return absl::OkStatus();
  if (args.parameters == nullptr) return internal::NullField(kOp, "parameters");
  HOTROW_RETURN_IF_ERROR(internal::CheckMatrix(kOp, "dy", args.dy, args.dy_stride, shape.width));
  if (args.dx == nullptr) return absl::OkStatus();
  return internal::CheckMatrix(kOp, "dx", args.dx, args.dx_stride, shape.width);
}

CrossNetwork::CrossNetwork(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CrossNetwork::~CrossNetwork() = default;

absl::StatusOr<std::unique_ptr<CrossNetwork>> CrossNetwork::Create(
    const CrossNetworkOptions& options, const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->shape = internal::ShapeOf(options);
  impl->device = ctx.device;
  HOTROW_RETURN_IF_ERROR(internal::Dispatch(
      ctx,
      [&]() -> absl::Status {
        HOTROW_RETURN_IF_ERROR(CheckDensePrecision(options.precision));
        HOTROW_ASSIGN_OR_RETURN(impl->engine,
                                internal::NewCrossCpu(impl->shape, options.precision));
        return absl::OkStatus();
      },
      [&](auto stream) -> absl::Status {
        if (options.kind == CrossKind::kVector) {
          HOTROW_ASSIGN_OR_RETURN(impl->engine, internal::NewCrossVectorCuda(impl->shape, stream));
        } else if (HasHalfFactors(options.precision)) {
          HOTROW_ASSIGN_OR_RETURN(impl->engine, internal::NewCrossMatrixHalfCuda(
                                                    impl->shape, options.precision, stream));
        } else {
          HOTROW_ASSIGN_OR_RETURN(
              impl->engine, internal::NewCrossMatrixCuda(impl->shape, options.precision, stream));
        }
        return absl::OkStatus();
      }));
  return std::unique_ptr<CrossNetwork>(new CrossNetwork(std::move(impl)));
}

int32_t CrossNetwork::width() const { return impl_->options.width; }
int32_t CrossNetwork::num_layers() const { return impl_->options.num_layers; }
int64_t CrossNetwork::num_parameters() const { return impl_->shape.num_parameters; }
int64_t CrossNetwork::weight_offset(int32_t layer) const {
  return impl_->shape.layers.at(static_cast<size_t>(layer)).weight_offset;
}
int64_t CrossNetwork::u_offset(int32_t layer) const {
  HOTROW_CHECK(impl_->shape.low_rank());
  return impl_->shape.layers.at(static_cast<size_t>(layer)).u_offset;
}
int64_t CrossNetwork::bias_offset(int32_t layer) const {
  return impl_->shape.layers.at(static_cast<size_t>(layer)).bias_offset;
}

void CrossNetwork::InitParameters(uint64_t seed, std::span<float> parameters) const {
  HOTROW_CHECK(static_cast<int64_t>(parameters.size()) == impl_->shape.num_parameters);
  std::fill(parameters.begin(), parameters.end(), 0.0f);
  const int64_t width = impl_->shape.width;
  const int64_t rank = impl_->shape.rank;
  for (size_t l = 0; l < impl_->shape.layers.size(); ++l) {
    const internal::CrossLayerShape& layer = impl_->shape.layers[l];
    const auto draw = [&](int64_t first_element, int64_t in, int64_t out, int64_t offset) {
      const double scale = std::sqrt(2 / static_cast<double>(in + out));
      internal::DrawNormals(
          seed, static_cast<uint32_t>(impl_->options.first_layer_id) + static_cast<uint32_t>(l),
          first_element, static_cast<float>(scale),
          parameters.subspan(static_cast<size_t>(offset), static_cast<size_t>(in * out)));
    };
    if (impl_->shape.kind == CrossKind::kVector) {
      draw(0, width, 1, layer.weight_offset);
    } else if (impl_->shape.low_rank()) {
      draw(0, width, rank, layer.weight_offset);
      draw(width * rank, rank, width, layer.u_offset);
    } else {
      draw(0, width, width, layer.weight_offset);
    }
  }
}

absl::Status CrossNetwork::Forward(const ExecContext& ctx, const ForwardArgs& args) {
  Impl& impl = *impl_;
  impl.last = {};  // an error below leaves nothing for Backward
  HOTROW_RETURN_IF_ERROR(impl.CheckDevice(ctx));
  if (args.batch_size < 0 || args.batch_size > impl.options.max_batch_size) {
    return internal::InvalidField(
        kOp, "batch_size",
        absl::StrCat("must be in [0, max_batch_size = ", impl.options.max_batch_size, "]"),
        args.batch_size);
  }
  if (args.batch_size > 0) {
    if (args.parameters == nullptr) return internal::NullField(kOp, "parameters");
    HOTROW_RETURN_IF_ERROR(
        internal::CheckMatrix(kOp, "x", args.x, args.x_stride, impl.shape.width));
    HOTROW_RETURN_IF_ERROR(
        internal::CheckMatrix(kOp, "y", args.y, args.y_stride, impl.shape.width));
  }
  HOTROW_RETURN_IF_ERROR(impl.engine->Forward(ctx, args));
  impl.last = {.training = args.training, .args = args};
  return absl::OkStatus();
}

absl::Status CrossNetwork::Backward(const ExecContext& ctx, const BackwardArgs& args) {
  HOTROW_RETURN_IF_ERROR(BackwardInput(ctx, args));
  return BackwardParameters(ctx, args);
}

absl::Status CrossNetwork::BackwardInput(const ExecContext& ctx, const BackwardArgs& args) {
  Impl& impl = *impl_;
  HOTROW_RETURN_IF_ERROR(impl.CheckDevice(ctx));
  if (!impl.last.training) {
    return absl::FailedPreconditionError(
        "CrossNetwork: Backward needs a Forward with training = true right before");
  }
  HOTROW_RETURN_IF_ERROR(impl.CheckArgs(args));
  impl.last.training = false;  // what was kept is used up
  HOTROW_RETURN_IF_ERROR(impl.engine->BackwardInput(ctx, impl.last.args, args));
  impl.last.inputs_done = true;
  return absl::OkStatus();
}

absl::Status CrossNetwork::BackwardParameters(const ExecContext& ctx, const BackwardArgs& args) {
  Impl& impl = *impl_;
  HOTROW_RETURN_IF_ERROR(impl.CheckDevice(ctx));
  if (!impl.last.inputs_done) {
    return absl::FailedPreconditionError(
        "CrossNetwork: BackwardParameters needs a BackwardInput right before");
  }
  HOTROW_RETURN_IF_ERROR(impl.CheckArgs(args));
  impl.last.inputs_done = false;
  return impl.engine->BackwardParameters(ctx, impl.last.args, args);
}

int64_t CrossNetwork::activation_bytes() const { return impl_->engine->bytes(); }

}  // namespace hotrow
