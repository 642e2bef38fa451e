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
  HOTROW_ASSIGN_OR_RETURN(
      const auto mlp,
      Mlp::Create(
          {.sizes = sizes, .relu_on_output = true, .max_batch_size = batch, .precision = precision},
          bench->ctx));
  const int64_t in = mlp->input_size();
  const int64_t out = mlp->output_size();
  std::vector<float> drawn(static_cast<size_t>(mlp->num_parameters()));
  mlp->InitParameters(kCalibrationSeed, drawn);
  HOTROW_ASSIGN_OR_RETURN(auto weights, bench->OnDevice(drawn));
  HOTROW_ASSIGN_OR_RETURN(auto gradients, bench->OnDevice(drawn));
  drawn.resize(static_cast<size_t>(batch * in));
  RandomStream random(kCalibrationSeed, RandomPurpose::kTest, 2);
  for (float& value : drawn) value = static_cast<float>(random.Uniform()) - 0.5f;
  HOTROW_ASSIGN_OR_RETURN(auto x, bench->OnDevice(drawn));
  HOTROW_ASSIGN_OR_RETURN(auto dx, bench->OnDevice(drawn));
  drawn.resize(static_cast<size_t>(batch * out));
  HOTROW_ASSIGN_OR_RETURN(auto y, bench->OnDevice(drawn));
  HOTROW_ASSIGN_OR_RETURN(
      const double median, MedianSeconds(SecondsOf(*bench, batch), [&]() -> absl::Status {
        HOTROW_RETURN_IF_ERROR(mlp->Forward(bench->ctx, {.parameters = weights.data(),
                                                         .x = x.data(),
                                                         .x_stride = in,
                                                         .batch_size = batch,
                                                         .y = y.data(),
                                                         .y_stride = out,
                                                         .training = true}));
        // Backward overwrites it, and numbers that fade to denormals are slow on a CPU.
        if (!bench->on_gpu()) std::fill(y.data(), y.data() + y.size(), 0.01f);
        HOTROW_RETURN_IF_ERROR(
            mlp->Backward(bench->ctx, {.parameters = weights.data(),
                                       .dy = y.data(),
                                       .dy_stride = out,
                                       .dx = dx.data(),
                                       .dx_stride = in,
                                       .parameter_gradients = gradients.data()}));
        return WaitForStream(bench->ctx);
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

absl::Status MeasureDenseOnGpu(CalibrationBench* bench, HardwareProfile* profile) {
  constexpr int kLayers = 3;
  const int64_t batch = bench->Scaled(16'384);
  // Seconds for each number that a layer of this width puts out, forward and backward.
  const auto output_seconds = [&](int64_t width,
                                  DensePrecision precision) -> absl::StatusOr<double> {
    const std::vector<int32_t> sizes(kLayers + 1, static_cast<int32_t>(width));
    double seconds = 0;
    double flops = 0;
    HOTROW_RETURN_IF_ERROR(TimeMlp(bench, sizes, batch, precision, &seconds, &flops));
    return seconds / static_cast<double>(kLayers * batch * width);
  };
  const int64_t narrow = std::max<int64_t>(16, bench->Scaled(256));
  const int64_t wide = std::max<int64_t>(32, bench->Scaled(2048));
  HOTROW_ASSIGN_OR_RETURN(const double least, output_seconds(narrow, DensePrecision::kBf16));
  HOTROW_ASSIGN_OR_RETURN(const double most, output_seconds(wide, DensePrecision::kBf16));
  HOTROW_ASSIGN_OR_RETURN(const double tf32, output_seconds(wide, DensePrecision::kTf32));
  // A line in the width: products, and what each number takes beside them.
  const EngineCost line =
      LineThrough(static_cast<double>(narrow), least, static_cast<double>(wide), most);
  const double products = std::max(most - line.seconds, most / 10);
  profile->dense_flops_16 = kFlopsPerMac * static_cast<double>(wide) / products;
  profile->dense_flops =
      kFlopsPerMac * static_cast<double>(wide) / std::max(tf32 - line.seconds, products);
  profile->activation_bytes = std::max(1.0, line.seconds * profile->hbm_bytes_per_second);
  return absl::OkStatus();
}

}  // namespace hotrow
