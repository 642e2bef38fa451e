#include "models/zoo/layers/batch_norm_layer.h"

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "models/onnx/onnx_graph.h"
#include "ops/dropout.h"

namespace hotrow {
namespace {

// A row is a microsecond or less of work.
constexpr int64_t kChunkRows = 64;

}  // namespace

BatchNormLayer::BatchNormLayer(const Options& options)
    : options_(options),
      block_sums_(2 * columns() * static_cast<size_t>(CeilDiv(options.max_batch_size, kBlockRows))),
      sums_(2 * columns() + 1),
      batch_mean_(columns()),
      batch_variance_(columns()),
      mean_(columns()),
      inverse_deviation_(columns()),
      gradients_(2 * columns()) {}

LayerTraits BatchNormLayer::traits() const {
  return {.inputs_until = LayerPhase::kBackwardInputs,
          .gradient_until = LayerPhase::kBackwardInputs,
          .overwrites_gradient = true};
}

void BatchNormLayer::InitParameters(uint64_t /*seed*/, std::span<float> parameters) const {
  std::fill_n(parameters.begin() + gamma_offset(), columns(), 1.0f);
  std::fill_n(parameters.begin() + variance_offset(), columns(), 1.0f);
}

float BatchNormLayer::InverseDeviation(double variance) const {
  return static_cast<float>(1 / std::sqrt(variance + kEpsilon));
}

// Operation by operation what Forward does, so that it rounds alike: of BatchNormalization, which
// ONNX has, each runtime chooses the order.
absl::StatusOr<std::string> BatchNormLayer::ToOnnx(const LayerOnnx& onnx) const {
  OnnxGraph& graph = *onnx.graph;
  const auto constant = [&](const char* name, const float* data) {
    return graph.Floats(onnx.name + name, {options_.columns}, {data, columns()});
  };
  std::vector<float> inverse(columns());
  for (size_t i = 0; i < columns(); ++i) {
    inverse[i] = InverseDeviation(onnx.parameters[static_cast<size_t>(variance_offset()) + i]);
  }
  const std::string mean = constant("/mean", onnx.parameters + mean_offset());
  const std::string deviation = constant("/inverse_deviation", inverse.data());
  const std::string gamma = constant("/gamma", onnx.parameters + gamma_offset());
  const std::string beta = constant("/beta", onnx.parameters + beta_offset());
  std::string y = graph.Add("Sub", onnx.name + "/centered", {onnx.inputs[0].name, mean});
  y = graph.Add("Mul", onnx.name + "/normalized", {y, deviation});
  y = graph.Add("Mul", onnx.name + "/scaled", {y, gamma});
  y = graph.Add("Add", onnx.name + "/sum", {y, beta});
  return options_.relu ? graph.Add("Relu", onnx.name + "/relu", {y}) : y;
}

void BatchNormLayer::Describe(bool /*reads_embeddings*/, DenseLayers* layers) const {
  layers->Add({.name = "batch_norm",
               .parameters = num_parameters() - num_untrained(),
               .macs = 4 * int64_t{options_.columns},  // two sums, then twice for each number
               .activations = options_.columns});
}

template <typename Add>
void BatchNormLayer::SumRows(const ExecContext& ctx, int64_t rows, const Add& add) {
  const size_t width = 2 * columns();
  ParallelFor(ctx.pool, rows, kBlockRows, [&](int64_t begin, int64_t end) {
    double* const to = block_sums_.data() + static_cast<size_t>(begin / kBlockRows) * width;
    std::fill_n(to, width, 0.0);
    for (int64_t r = begin; r < end; ++r) add(r, to, to + columns());
  });
  std::fill(sums_.begin(), sums_.end(), 0.0);
  for (int64_t block = 0; block < CeilDiv(rows, kBlockRows); ++block) {
    const double* const from = block_sums_.data() + static_cast<size_t>(block) * width;
    for (size_t i = 0; i < width; ++i) sums_[i] += from[i];
  }
}

absl::Status BatchNormLayer::Drop(const ExecContext& ctx, int64_t rows,
                                  const TensorView& data) const {
  if (options_.dropout == 0 || rows == 0) return absl::OkStatus();
  return Dropout(ctx, {.data = data.data,
                       .rows = rows,
                       .columns = options_.columns,
                       .stride = data.row_stride,
                       .rate = options_.dropout,
                       .seed = options_.seed,
                       .step = step_,
                       .layer = static_cast<uint32_t>(options_.layer_id),
                       .first_row = first_sample_});
}

absl::Status BatchNormLayer::Forward(const ExecContext& ctx, const LayerForward& pass) {
  const TensorView& x = pass.inputs[0];
  const size_t columns = this->columns();
  if (pass.training) {
    SumRows(ctx, pass.batch_size, [&](int64_t r, double* sum, double* squares) {
      const float* const row = x.data + r * x.row_stride;
      for (size_t i = 0; i < columns; ++i) {
        const double value = row[i];
        sum[i] += value;
        squares[i] += value * value;
      }
    });
    sums_.back() = static_cast<double>(pass.batch_size);
    if (pass.sum_over_slices) HOTROW_RETURN_IF_ERROR(pass.sum_over_slices(sums_));
    samples_ = std::llround(sums_.back());
    step_ = pass.step;
    first_sample_ = pass.first_sample;
    const double n = std::max(sums_.back(), 1.0);
    for (size_t i = 0; i < columns; ++i) {
      // Squares of floats are exact in double, so what cancels is far below the variance unless
      // that is 10^-14 of the squared mean. A NaN stays one.
      const double mean = sums_[i] / n;
      const double variance = sums_[columns + i] / n - mean * mean;
      batch_mean_[i] = mean;
      batch_variance_[i] = variance < 0 ? 0 : variance;
      mean_[i] = static_cast<float>(mean);
      inverse_deviation_[i] = InverseDeviation(batch_variance_[i]);
    }
  } else {
    for (size_t i = 0; i < columns; ++i) {
      mean_[i] = pass.parameters[static_cast<size_t>(mean_offset()) + i];
      inverse_deviation_[i] =
          InverseDeviation(pass.parameters[static_cast<size_t>(variance_offset()) + i]);
    }
  }
  const float* const gamma = pass.parameters + gamma_offset();
  const float* const beta = pass.parameters + beta_offset();
  ParallelFor(ctx.pool, pass.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const row = x.data + r * x.row_stride;
      float* const y = pass.output.data + r * pass.output.row_stride;
      for (size_t i = 0; i < columns; ++i) {
        const float z = gamma[i] * ((row[i] - mean_[i]) * inverse_deviation_[i]) + beta[i];
        y[i] = options_.relu && z < 0 ? 0.0f : z;
      }
    }
  });
  return pass.training ? Drop(ctx, pass.batch_size, pass.output) : absl::OkStatus();
}

// With xhat the normalized x, g the gradient of gamma xhat + beta and mean() over the whole batch:
//   dx = gamma / deviation (g - mean(g) - xhat mean(g xhat))
absl::Status BatchNormLayer::BackwardInputs(const ExecContext& ctx, const LayerBackward& pass) {
  const TensorView& x = pass.inputs[0];
  const TensorView& dy = pass.output_gradient;
  const TensorView& dx = pass.input_gradients[0];
  const size_t columns = this->columns();
  const float* const gamma = pass.parameters + gamma_offset();
  const float* const beta = pass.parameters + beta_offset();
  HOTROW_RETURN_IF_ERROR(Drop(ctx, pass.batch_size, dy));
  SumRows(ctx, pass.batch_size, [&](int64_t r, double* of_gamma, double* of_beta) {
    const float* const row = x.data + r * x.row_stride;
    float* const g = dy.data + r * dy.row_stride;
    for (size_t i = 0; i < columns; ++i) {
      const float normalized = (row[i] - mean_[i]) * inverse_deviation_[i];
      if (options_.relu && gamma[i] * normalized + beta[i] <= 0) g[i] = 0;
      of_gamma[i] += static_cast<double>(g[i]) * normalized;
      of_beta[i] += g[i];
    }
  });
  for (size_t i = 0; i < 2 * columns; ++i) gradients_[i] = static_cast<float>(sums_[i]);
  if (pass.sum_over_slices) HOTROW_RETURN_IF_ERROR(pass.sum_over_slices(sums_));
  if (dx.data == nullptr) return absl::OkStatus();
  const double n = std::max<double>(static_cast<double>(samples_), 1.0);
  std::vector<float> mean_of_products(columns), mean_of_gradients(columns);
  for (size_t i = 0; i < columns; ++i) {
    mean_of_products[i] = static_cast<float>(sums_[i] / n);
    mean_of_gradients[i] = static_cast<float>(sums_[columns + i] / n);
  }
  ParallelFor(ctx.pool, pass.batch_size, kChunkRows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const row = x.data + r * x.row_stride;
      const float* const g = dy.data + r * dy.row_stride;
      float* const to = dx.data + r * dx.row_stride;
      for (size_t i = 0; i < columns; ++i) {
        const float normalized = (row[i] - mean_[i]) * inverse_deviation_[i];
        to[i] = gamma[i] * inverse_deviation_[i] *
                (g[i] - mean_of_gradients[i] - normalized * mean_of_products[i]);
      }
    }
  });
  return absl::OkStatus();
}

absl::Status BatchNormLayer::BackwardParameters(const ExecContext& /*ctx*/,
                                                const LayerBackward& pass) {
  std::copy(gradients_.begin(), gradients_.end(), pass.gradients);
  std::fill_n(pass.gradients + mean_offset(), num_untrained(), 0.0f);
  return absl::OkStatus();
}

void BatchNormLayer::EndStep(float* parameters) {
  if (samples_ == 0) return;
  const auto n = static_cast<double>(samples_);
  const double unbiased = samples_ > 1 ? n / (n - 1) : 1;
  float* const mean = parameters + mean_offset();
  float* const variance = parameters + variance_offset();
  for (size_t i = 0; i < columns(); ++i) {
    mean[i] = static_cast<float>((1 - kMomentum) * mean[i] + kMomentum * batch_mean_[i]);
    variance[i] = static_cast<float>((1 - kMomentum) * variance[i] +
                                     kMomentum * unbiased * batch_variance_[i]);
  }
}

}  // namespace hotrow
