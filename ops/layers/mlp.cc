#include "ops/layers/mlp.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/dispatch.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "ops/layers/dropout.h"
#include "ops/layers/mlp_impl.h"
#include "ops/products/gemm_impl.h"
#include "ops/validate.h"

namespace hotrow {

using internal::kFloatsPerLine;

absl::Status MlpOptions::Validate() const {
  if (sizes.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "MlpOptions: sizes must have at least 2 entries (input, output), got ", sizes.size()));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("MlpOptions: sizes[", i, "] must be > 0, got ", sizes[i]));
    }
  }
  if (!(dropout >= 0 && dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("MlpOptions: dropout must be in [0, 1), got ", dropout));
  }
  if (first_layer_id < 0 ||
      first_layer_id + static_cast<int64_t>(sizes.size()) > int64_t{kMaxDropoutLayers}) {
    return absl::InvalidArgumentError(absl::StrCat(
        "MlpOptions: first_layer_id must be in [0, 2^28 - layers), got ", first_layer_id));
  }
  if (max_batch_size <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("MlpOptions: max_batch_size must be > 0, got ", max_batch_size));
  }
  return absl::OkStatus();
}

namespace internal {

MlpShape ShapeOf(const MlpOptions& options) {
  MlpShape shape = {.max_batch_size = options.max_batch_size, .seed = options.seed};
  int64_t end = 0;  // of the layers so far
  shape.layers.resize(options.sizes.size() - 1);
  for (size_t l = 0; l < shape.layers.size(); ++l) {
    MlpLayer& layer = shape.layers[l];
    layer.in = options.sizes[l];
    layer.out = options.sizes[l + 1];
    layer.out_stride = RoundUp(layer.out, kFloatsPerLine);
    layer.weight_offset = end;
    layer.bias_offset = layer.weight_offset + RoundUp(layer.in * layer.out, kFloatsPerLine);
    layer.end = layer.bias_offset + layer.out_stride;
    layer.last = l + 1 == shape.layers.size();
    layer.relu = !layer.last || options.relu_on_output;
    layer.dropout = layer.last ? 0 : options.dropout;
    layer.id = static_cast<uint32_t>(options.first_layer_id) + static_cast<uint32_t>(l);
    end = layer.end;
  }
  return shape;
}

void FinishBiasGradients(const MlpShape& shape, std::span<const BiasSums> sums, int64_t batch_size,
                         float* parameter_gradients) {
  const int64_t chunks = CeilDiv(batch_size, kGemmChunkRows);
  for (size_t l = 0; l < shape.layers.size(); ++l) {
    const MlpLayer& layer = shape.layers[l];
    float* const gradient = parameter_gradients + layer.bias_offset;
    std::fill_n(gradient, layer.out, 0.0f);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float* const sum = sums[l].data + chunk * sums[l].stride;
      for (int64_t i = 0; i < layer.out; ++i) gradient[i] += sum[i];
    }
    const int64_t weights_end = layer.weight_offset + layer.in * layer.out;
    std::fill_n(parameter_gradients + weights_end, layer.bias_offset - weights_end, 0.0f);
    std::fill_n(gradient + layer.out, layer.out_stride - layer.out, 0.0f);
  }
}

}  // namespace internal

struct Mlp::Impl {
  MlpOptions options;
  internal::MlpShape shape;
};

Mlp::Mlp(std::unique_ptr<Impl> impl, Device device, std::unique_ptr<internal::DenseEngine> engine)
    : DenseNetwork({.name = "Mlp",
                    .input_columns = impl->options.sizes.front(),
                    .output_columns = impl->options.sizes.back(),
                    .max_batch_size = impl->options.max_batch_size,
                    .layers = {impl->shape.layers.begin(), impl->shape.layers.end()},
                    .scores_only = impl->options.precision == DensePrecision::kInt8},
                   device, std::move(engine)),
      impl_(std::move(impl)) {}
Mlp::~Mlp() = default;

absl::StatusOr<std::unique_ptr<Mlp>> Mlp::Create(const MlpOptions& options,
                                                 const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  HOTROW_RETURN_IF_ERROR(CheckDensePrecision(options.precision, ctx.device));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->shape = internal::ShapeOf(options);
  std::unique_ptr<internal::DenseEngine> engine;
  HOTROW_RETURN_IF_ERROR(internal::Dispatch(
      ctx,
      [&]() -> absl::Status {
        if (options.precision == DensePrecision::kBf16) {
          HOTROW_ASSIGN_OR_RETURN(engine, internal::NewMlpBf16(impl->shape));
        } else if (options.precision == DensePrecision::kInt8) {
          HOTROW_ASSIGN_OR_RETURN(engine, internal::NewMlpInt8(impl->shape));
        } else {
          HOTROW_ASSIGN_OR_RETURN(engine, internal::NewMlpCpu(impl->shape));
        }
        return absl::OkStatus();
      },
      [&](auto stream) -> absl::Status {
        if (HasHalfFactors(options.precision)) {
          HOTROW_ASSIGN_OR_RETURN(engine,
                                  internal::NewMlpHalfCuda(impl->shape, options.precision, stream));
          return absl::OkStatus();
        }
        HOTROW_ASSIGN_OR_RETURN(engine,
                                internal::NewMlpCuda(impl->shape, options.precision, stream));
        return absl::OkStatus();
      }));
  return std::unique_ptr<Mlp>(new Mlp(std::move(impl), ctx.device, std::move(engine)));
}

int32_t Mlp::num_layers() const { return static_cast<int32_t>(impl_->shape.layers.size()); }
int64_t Mlp::weight_offset(int32_t layer) const {
  return impl_->shape.layers.at(static_cast<size_t>(layer)).weight_offset;
}
int64_t Mlp::bias_offset(int32_t layer) const {
  return impl_->shape.layers.at(static_cast<size_t>(layer)).bias_offset;
}
const MlpOptions& Mlp::options() const { return impl_->options; }
int32_t Mlp::input_size() const { return impl_->options.sizes.front(); }
int32_t Mlp::output_size() const { return impl_->options.sizes.back(); }

void Mlp::InitParameters(uint64_t seed, std::span<float> parameters) const {
  HOTROW_CHECK(static_cast<int64_t>(parameters.size()) == num_parameters());
  std::fill(parameters.begin(), parameters.end(), 0.0f);
  for (const internal::MlpLayer& layer : impl_->shape.layers) {
    const int64_t weights = layer.in * layer.out;
    const auto in = static_cast<double>(layer.in);
    const auto out = static_cast<double>(layer.out);
    const auto block = [&](int64_t offset, int64_t count) {
      return parameters.subspan(static_cast<size_t>(offset), static_cast<size_t>(count));
    };
    internal::DrawNormals(seed, layer.id, 0, static_cast<float>(std::sqrt(2 / (in + out))),
                          block(layer.weight_offset, weights));
    internal::DrawNormals(seed, layer.id, weights, static_cast<float>(std::sqrt(1 / out)),
                          block(layer.bias_offset, layer.out));
  }
}

}  // namespace hotrow
