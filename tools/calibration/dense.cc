#include <algorithm>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "base/status_macros.h"
#include "ops/interactions/dot_interaction.h"
#include "ops/layers/mlp.h"
#include "tools/calibration/measure.h"
#include "tools/plan/workload.h"

namespace hotrow {
namespace {

// Seconds of measuring one part: less gives enough calls of small batches.
double SecondsOf(const CalibrationBench& bench, int64_t batch) {
  return (batch == kClickBatch ? 0.3 : 0.1) * bench.options.effort;
}

// Forward and backward of a batch.
absl::Status TimeMlp(CalibrationBench* bench, const std::vector<int32_t>& sizes, int64_t batch,
                     DensePrecision precision, double* seconds, double* flops) {
  HOTROW_ASSIGN_OR_RETURN(const auto mlp, Mlp::Create({.sizes = sizes,
                                                       .relu_on_output = true,
                                                       .max_batch_size = batch,
                                                       .precision = precision}));
  const auto parameters = static_cast<size_t>(mlp->num_parameters());
  std::vector<float> weights(parameters);
  std::vector<float> gradients(parameters);
  mlp->InitParameters(kCalibrationSeed, weights);
  const int64_t in = mlp->input_size();
  const int64_t out = mlp->output_size();
  std::vector<float> x(static_cast<size_t>(batch * in));
  std::vector<float> dx(x.size());
  std::vector<float> y(static_cast<size_t>(batch * out));
  RandomStream random(kCalibrationSeed, RandomPurpose::kTest, 2);
  for (float& value : x) value = static_cast<float>(random.Uniform()) - 0.5f;
  HOTROW_ASSIGN_OR_RETURN(
      const double median, MedianSeconds(SecondsOf(*bench, batch), [&]() -> absl::Status {
        HOTROW_RETURN_IF_ERROR(mlp->Forward(bench->ctx, {.parameters = weights.data(),
                                                         .x = x.data(),
                                                         .x_stride = in,
                                                         .batch_size = batch,
                                                         .y = y.data(),
                                                         .y_stride = out,
                                                         .training = true}));
        // Backward overwrites it, and numbers that fade to denormals are slow.
        std::fill(y.begin(), y.end(), 0.01f);
        return mlp->Backward(bench->ctx, {.parameters = weights.data(),
                                          .dy = y.data(),
                                          .dy_stride = out,
                                          .dx = dx.data(),
                                          .dx_stride = in,
                                          .parameter_gradients = gradients.data()});
      }));
  double macs = 0;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    macs += static_cast<double>(sizes[i]) * sizes[i + 1];
  }
  *seconds += median;
  *flops += kFlopsPerMac * macs * static_cast<double>(batch);
  return absl::OkStatus();
}

absl::StatusOr<double> DotFlops(CalibrationBench* bench, int32_t dim, int64_t batch) {
  constexpr int32_t kVectors = kClickTables + 1;
  const int64_t out = DotInteractionOutputSize(kClickTables, dim);
  std::vector<float> dense(static_cast<size_t>(batch * dim), 0.1f);
  std::vector<float> sparse(static_cast<size_t>(batch * dim * kClickTables), 0.1f);
  std::vector<float> output(static_cast<size_t>(batch * out));
  std::vector<float> output_gradient(output.size(), 0.01f);
  std::vector<float> dense_gradient(dense.size());
  std::vector<float> sparse_gradient(sparse.size());
  const DotInteractionArgs forward = {.batch_size = batch,
                                      .num_sparse = kClickTables,
                                      .dim = dim,
                                      .dense = dense.data(),
                                      .dense_stride = dim,
                                      .sparse = sparse.data(),
                                      .sparse_stride = int64_t{dim} * kClickTables,
                                      .output = output.data(),
                                      .output_stride = out};
  HOTROW_ASSIGN_OR_RETURN(
      const double seconds, MedianSeconds(SecondsOf(*bench, batch), [&]() -> absl::Status {
        HOTROW_RETURN_IF_ERROR(DotInteraction(bench->ctx, forward));
        return DotInteractionGrad(bench->ctx,
                                  {.forward = forward,
                                   .output_gradient = output_gradient.data(),
                                   .dense_gradient = dense_gradient.data(),
                                   .dense_gradient_stride = dim,
                                   .sparse_gradient = sparse_gradient.data(),
                                   .sparse_gradient_stride = int64_t{dim} * kClickTables});
      }));
  const double macs = kVectors * (kVectors - 1) / 2.0 * dim;
  return kFlopsPerMac * macs * static_cast<double>(batch) / seconds;
}

}  // namespace

absl::Status MeasureDense(CalibrationBench* bench, HardwareProfile* profile) {
  const auto rate = [&](const std::vector<std::vector<int32_t>>& mlps, int64_t batch,
                        double* flops_per_second,
                        DensePrecision precision = DensePrecision::kFp32) -> absl::Status {
    double seconds = 0;
    double flops = 0;
    for (const std::vector<int32_t>& sizes : mlps) {
      HOTROW_RETURN_IF_ERROR(TimeMlp(bench, sizes, batch, precision, &seconds, &flops));
    }
    *flops_per_second = flops / seconds;
    return absl::OkStatus();
  };
  const std::vector<std::vector<int32_t>> click_model = {{13, 512, 256, 64, 16},
                                                         {367, 512, 256, 1}};
  HOTROW_RETURN_IF_ERROR(rate(click_model, kClickBatch, &profile->dense_flops));
  if (CheckDensePrecision(DensePrecision::kBf16).ok()) {
    HOTROW_RETURN_IF_ERROR(
        rate(click_model, kClickBatch, &profile->dense_flops_16, DensePrecision::kBf16));
  }
  HardwareProfile::DenseRates large;
  for (const auto& [samples, rates] :
       {std::pair<double, HardwareProfile::DenseRates*>{HardwareProfile::kBatchLarge, &large},
        {HardwareProfile::kBatchMiddle, &profile->dense_middle},
        {HardwareProfile::kBatchSmall, &profile->dense_small}}) {
    const auto batch = static_cast<int64_t>(samples);
    for (const auto& [width, flops] :
         {std::pair<double, double*>{HardwareProfile::kNarrow, &rates->narrow},
          {HardwareProfile::kMiddle, &rates->middle},
          {HardwareProfile::kWide, &rates->wide}}) {
      const auto w = static_cast<int32_t>(width);
      HOTROW_RETURN_IF_ERROR(rate({{w, w, w, w}}, batch, flops));
    }
    HOTROW_ASSIGN_OR_RETURN(
        rates->dot_short, DotFlops(bench, static_cast<int32_t>(HardwareProfile::kDotShort), batch));
    HOTROW_ASSIGN_OR_RETURN(
        rates->dot_long, DotFlops(bench, static_cast<int32_t>(HardwareProfile::kDotLong), batch));
  }
  profile->dense_flops_narrow = large.narrow;
  profile->dense_flops_middle = large.middle;
  profile->dense_flops_wide = large.wide;
  profile->dot_flops_short = large.dot_short;
  profile->dot_flops_long = large.dot_long;
  return absl::OkStatus();
}

}  // namespace hotrow
