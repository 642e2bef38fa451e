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
  int64_t end = 0;  // of the blocks so far
  const auto take = [&end](int64_t floats) {
    const int64_t offset = end;
    end += RoundUp(floats, kFloatsPerLine);
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
    layer.end = end;
  }
  return shape;
}

}  // namespace internal

struct CrossNetwork::Impl {
  CrossNetworkOptions options;
  internal::CrossShape shape;
};

CrossNetwork::CrossNetwork(std::unique_ptr<Impl> impl, Device device,
                           std::unique_ptr<internal::DenseEngine> engine)
    : DenseNetwork({.name = "CrossNetwork",
                    .input_columns = impl->shape.width,
                    .output_columns = impl->shape.width,
                    .max_batch_size = impl->shape.max_batch_size,
                    .layers = {impl->shape.layers.begin(), impl->shape.layers.end()},
                    .backward_uses_up = true,
                    .scores_only = impl->options.precision == DensePrecision::kInt8},
                   device, std::move(engine)),
      impl_(std::move(impl)) {}
CrossNetwork::~CrossNetwork() = default;

absl::StatusOr<std::unique_ptr<CrossNetwork>> CrossNetwork::Create(
    const CrossNetworkOptions& options, const ExecContext& ctx) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  HOTROW_RETURN_IF_ERROR(CheckDensePrecision(options.precision, ctx.device));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->shape = internal::ShapeOf(options);
  std::unique_ptr<internal::DenseEngine> engine;
  HOTROW_RETURN_IF_ERROR(internal::Dispatch(
      ctx,
      [&]() -> absl::Status {
        if (options.precision == DensePrecision::kInt8 && options.kind == CrossKind::kMatrix) {
          HOTROW_ASSIGN_OR_RETURN(engine, internal::NewCrossInt8(impl->shape));
        } else {
          HOTROW_ASSIGN_OR_RETURN(engine, internal::NewCrossCpu(impl->shape, options.precision));
        }
        return absl::OkStatus();
      },
      [&](auto stream) -> absl::Status {
        if (options.kind == CrossKind::kVector) {
          HOTROW_ASSIGN_OR_RETURN(engine, internal::NewCrossVectorCuda(impl->shape, stream));
        } else if (HasHalfFactors(options.precision)) {
          HOTROW_ASSIGN_OR_RETURN(
              engine, internal::NewCrossMatrixHalfCuda(impl->shape, options.precision, stream));
        } else {
          HOTROW_ASSIGN_OR_RETURN(
              engine, internal::NewCrossMatrixCuda(impl->shape, options.precision, stream));
        }
        return absl::OkStatus();
      }));
  return std::unique_ptr<CrossNetwork>(
      new CrossNetwork(std::move(impl), ctx.device, std::move(engine)));
}

int32_t CrossNetwork::width() const { return impl_->options.width; }
int32_t CrossNetwork::num_layers() const { return impl_->options.num_layers; }
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
  HOTROW_CHECK(static_cast<int64_t>(parameters.size()) == num_parameters());
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

}  // namespace hotrow
