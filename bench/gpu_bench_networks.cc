// The dense half of click models on the GPU: networks, interactions and what stands between,
// forward and backward, beside the rate of a large product in the same precision or a copy's.

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/device_memory.h"
#include "base/status_macros.h"
#include "bench/gpu_bench.h"
#include "bench/gpu_bench_kernels.h"
#include "ops/interactions/fm_interaction.h"
#include "ops/interactions/padded_dot.h"
#include "ops/layers/cross_network.h"
#include "ops/layers/mlp.h"
#include "ops/products/dense_precision.h"

namespace hotrow::bench {
namespace {

constexpr DensePrecision kPrecisions[] = {DensePrecision::kFp32, DensePrecision::kTf32,
                                          DensePrecision::kBf16, DensePrecision::kFp16};

// Read as numbers of 16 bits they are some numbers as well, NaNs among them: no op looks at what it
// multiplies.
absl::StatusOr<DeviceBuffer<float>> Floats(GpuBench& bench, int64_t n, uint64_t seed) {
  HOTROW_ASSIGN_OR_RETURN(auto buffer, DeviceBuffer<float>::Create(n, bench.stream()));
  HOTROW_RETURN_IF_ERROR(FillSmallFloats(bench.stream(), buffer.data(), n, seed));
  return buffer;
}

// What an op does in a batch, each way.
struct Work {
  std::string name;
  std::string unit;  // "flop" or "bytes"
  std::string limit;
  double forward = 0;
  double backward = 0;
  bool only_chooses = false;  // runs once and measures nothing
  nlohmann::ordered_json more;
};

absl::Status MeasureBothWays(GpuBench& bench, const Work& work,
                             const std::function<absl::Status()>& forward,
                             const std::function<absl::Status()>& backward) {
  // The first passes choose algorithms and load kernels.
  HOTROW_RETURN_IF_ERROR(forward());
  HOTROW_RETURN_IF_ERROR(backward());
  if (work.only_chooses) return bench.Wait();
  HOTROW_ASSIGN_OR_RETURN(const Times there, bench.Measure([&](int64_t) { return forward(); }));
  // A backward pass uses up what the forward pass kept.
  HOTROW_ASSIGN_OR_RETURN(const Times back, bench.Measure([&](int64_t) { return backward(); },
                                                          [&](int64_t) -> absl::Status {
                                                            HOTROW_RETURN_IF_ERROR(forward());
                                                            return bench.Wait();
                                                          }));
  for (const bool is_forward : {true, false}) {
    nlohmann::ordered_json more = work.more;
    more["pass"] = is_forward ? "forward" : "backward";
    bench.Add({"dense", absl::StrCat(work.name, is_forward ? " forward" : " backward"),
               is_forward ? there : back, is_forward ? work.forward : work.backward, work.unit,
               work.limit, bench.limit(work.limit), std::move(more)});
  }
  return absl::OkStatus();
}

// Measures Mlp or CrossNetwork, which take the same calls.
template <typename Network>
absl::Status MeasureNetwork(GpuBench& bench, Network& network, int64_t batch, int64_t in,
                            int64_t out, const Work& work) {
  HOTROW_ASSIGN_OR_RETURN(auto parameters, Floats(bench, network.num_parameters(), 1));
  HOTROW_ASSIGN_OR_RETURN(auto x, Floats(bench, batch * in, 2));
  HOTROW_ASSIGN_OR_RETURN(auto y, Floats(bench, batch * out, 3));
  HOTROW_ASSIGN_OR_RETURN(auto dy, Floats(bench, batch * out, 4));
  HOTROW_ASSIGN_OR_RETURN(auto dx, Floats(bench, batch * in, 5));
  HOTROW_ASSIGN_OR_RETURN(auto gradients, Floats(bench, network.num_parameters(), 6));
  return MeasureBothWays(
      bench, work,
      [&] {
        return network.Forward(bench.Gpu(), {.parameters = parameters.data(),
                                             .x = x.data(),
                                             .x_stride = in,
                                             .batch_size = batch,
                                             .y = y.data(),
                                             .y_stride = out,
                                             .training = true});
      },
      [&] {
        return network.Backward(bench.Gpu(), {.parameters = parameters.data(),
                                              .dy = dy.data(),
                                              .dy_stride = out,
                                              .dx = dx.data(),
                                              .dx_stride = in,
                                              .parameter_gradients = gradients.data()});
      });
}

absl::Status MeasureMlp(GpuBench& bench, int64_t batch, const std::vector<int32_t>& sizes,
                        DensePrecision precision, std::set<std::string>* plans = nullptr) {
  HOTROW_ASSIGN_OR_RETURN(
      const auto mlp,
      Mlp::Create({.sizes = sizes, .max_batch_size = batch, .precision = precision}, bench.Gpu()));
  double macs = 0;
  for (size_t l = 0; l + 1 < sizes.size(); ++l) macs += double{1} * sizes[l] * sizes[l + 1];
  const double flop = 2 * macs * static_cast<double>(batch);
  const std::string precision_name(DensePrecisionName(precision));
  const std::string shape = absl::StrJoin(sizes, "-");
  HOTROW_RETURN_IF_ERROR(MeasureNetwork(
      bench, *mlp, batch, sizes.front(), sizes.back(),
      {absl::StrCat("mlp ", shape, " ", precision_name, " batch ", batch),
       "flop",
       ProductLimit(precision),
       flop,
       2 * flop,
       /*only_chooses=*/plans != nullptr,
       {{"op", "mlp"}, {"sizes", sizes}, {"batch", batch}, {"precision", precision_name}}}));
  return plans == nullptr ? absl::OkStatus() : MeasureNewPlans(bench, precision, *plans);
}

absl::Status MeasureCross(GpuBench& bench, int64_t batch, CrossKind kind, int32_t width,
                          int32_t rank, DensePrecision precision,
                          std::set<std::string>* plans = nullptr) {
  constexpr int32_t kLayers = 3;
  HOTROW_ASSIGN_OR_RETURN(const auto cross, CrossNetwork::Create({.kind = kind,
                                                                  .width = width,
                                                                  .num_layers = kLayers,
                                                                  .rank = rank,
                                                                  .max_batch_size = batch,
                                                                  .precision = precision},
                                                                 bench.Gpu()));
  const bool is_vector = kind == CrossKind::kVector;
  const std::string precision_name(is_vector ? "fp32" : DensePrecisionName(precision));
  const double samples = static_cast<double>(batch);
  const double macs = double{1} * kLayers * width * (rank > 0 ? 2 * rank : width);
  // Vectors: x_0 read, y written; x_0 and dy read twice, dx written (docs/gpu_dense.md).
  const double forward = is_vector ? 8.0 * width * samples : 2 * macs * samples;
  const double backward = is_vector ? 20.0 * width * samples : 4 * macs * samples;
  HOTROW_RETURN_IF_ERROR(
      MeasureNetwork(bench, *cross, batch, width, width,
                     {absl::StrCat("cross ", is_vector ? "vectors" : "matrices", " ", kLayers,
                                   " x ", width, rank > 0 ? absl::StrCat(" rank ", rank) : "", " ",
                                   precision_name, " batch ", batch),
                      is_vector ? "bytes" : "flop",
                      is_vector ? "copy" : ProductLimit(precision),
                      forward,
                      backward,
                      /*only_chooses=*/plans != nullptr,
                      {{"op", "cross"},
                       {"kind", is_vector ? "vector" : "matrix"},
                       {"width", width},
                       {"rank", rank},
                       {"layers", kLayers},
                       {"batch", batch},
                       {"precision", precision_name}}}));
  return plans == nullptr ? absl::OkStatus() : MeasureNewPlans(bench, precision, *plans);
}

absl::Status MeasureDot(GpuBench& bench, int64_t batch, int32_t sparse, int32_t dim,
                        DotPrecision precision) {
  const int64_t element = DotElementBytes(precision);
  const int64_t columns = PaddedDotColumns(sparse, dim);
  const auto elements = [&](int64_t n, uint64_t seed) {
    return Floats(bench, (n * element + 3) / 4, seed);
  };
  HOTROW_ASSIGN_OR_RETURN(auto dense, elements(batch * dim, 1));
  HOTROW_ASSIGN_OR_RETURN(auto rows, elements(batch * sparse * dim, 2));
  HOTROW_ASSIGN_OR_RETURN(auto output, elements(batch * columns, 3));
  HOTROW_ASSIGN_OR_RETURN(auto dense_gradient, elements(batch * dim, 4));
  HOTROW_ASSIGN_OR_RETURN(auto sparse_gradient, elements(batch * sparse * dim, 5));
  const PaddedDotArgs args = {.precision = precision,
                              .batch_size = batch,
                              .num_sparse = sparse,
                              .dim = dim,
                              .dense = dense.data(),
                              .dense_stride = dim,
                              .sparse = rows.data(),
                              .sparse_stride = int64_t{sparse} * dim,
                              .output = output.data(),
                              .output_stride = columns};
  const double inputs = static_cast<double>(batch * (sparse + 1) * dim * element);
  const double outputs = static_cast<double>(batch * columns * element);
  const std::string precision_name(DotPrecisionName(precision));
  return MeasureBothWays(
      bench,
      {absl::StrCat("dot ", sparse + 1, " x ", dim, " ", precision_name, " batch ", batch),
       "bytes",
       "copy",
       inputs + outputs,
       2 * inputs + outputs,
       /*only_chooses=*/false,
       {{"op", "dot"},
        {"vectors", sparse + 1},
        {"dim", dim},
        {"batch", batch},
        {"precision", precision_name}}},
      [&] { return PaddedDot(bench.Gpu(), args); },
      [&] {
        return PaddedDotGrad(bench.Gpu(), {.forward = args,
                                           .output_gradient = output.data(),
                                           .dense_gradient = dense_gradient.data(),
                                           .dense_gradient_stride = dim,
                                           .sparse_gradient = sparse_gradient.data(),
                                           .sparse_gradient_stride = int64_t{sparse} * dim});
      });
}

absl::Status MeasureFm(GpuBench& bench, int64_t batch, int32_t fields, int32_t dim) {
  const int64_t width = int64_t{fields} * (dim + 1);
  HOTROW_ASSIGN_OR_RETURN(auto x, Floats(bench, batch * width, 1));
  HOTROW_ASSIGN_OR_RETURN(auto y, Floats(bench, batch, 2));
  HOTROW_ASSIGN_OR_RETURN(auto dx, Floats(bench, batch * width, 3));
  const FmInteractionArgs args = {.batch_size = batch,
                                  .num_fields = fields,
                                  .dim = dim,
                                  .field_stride = dim + 1,
                                  .fields = x.data(),
                                  .fields_stride = width,
                                  .first_order_column = dim,
                                  .output = y.data(),
                                  .output_stride = 1};
  const double bytes = 4.0 * static_cast<double>(batch);
  return MeasureBothWays(
      bench,
      {absl::StrCat("fm ", fields, " x ", dim, " batch ", batch),
       "bytes",
       "copy",
       bytes * static_cast<double>(width + 1),
       bytes * static_cast<double>(2 * width + 1),
       /*only_chooses=*/false,
       {{"op", "fm"}, {"fields", fields}, {"dim", dim}, {"batch", batch}}},
      [&] { return FmInteraction(bench.Gpu(), args); },
      [&] {
        return FmInteractionGrad(bench.Gpu(), {.forward = args,
                                               .output_gradient = y.data(),
                                               .output_gradient_stride = 1,
                                               .fields_gradient = dx.data(),
                                               .fields_gradient_stride = width});
      });
}

}  // namespace

// What cublasLt's heuristics choose for the products of the models: MLPs of MLPerf's DLRM, of
// DeepFM and its like on 26 features of 16 columns, cross networks of DCN v2, a level of a CIN.
absl::Status MeasurePlans(GpuBench& bench) {
  const bool toy = bench.flags().toy;
  const int32_t wide = toy ? 32 : 1024;
  const std::vector<std::vector<int32_t>> mlps = {
      {13, wide / 2, wide / 4, wide / 8},
      {toy ? 15 : 479, wide, wide, wide / 2, wide / 4, 1},
      {toy ? 21 : 429, toy ? 20 : 400, toy ? 20 : 400, 1}};
  std::set<std::string> seen;
  for (const DensePrecision precision : kPrecisions) {
    HOTROW_RETURN_IF_ERROR(MeasureProductRate(bench, precision));
    for (const int64_t batch : bench.sizes().dense_batches) {
      for (const std::vector<int32_t>& sizes : mlps) {
        HOTROW_RETURN_IF_ERROR(MeasureMlp(bench, batch, sizes, precision, &seen));
      }
      HOTROW_RETURN_IF_ERROR(MeasureCross(bench, batch, CrossKind::kMatrix, toy ? 33 : 3456,
                                          toy ? 4 : 512, precision, &seen));
      HOTROW_RETURN_IF_ERROR(
          MeasureCross(bench, batch, CrossKind::kMatrix, toy ? 21 : 429, 0, precision, &seen));
      if (precision != DensePrecision::kFp32) continue;
      HOTROW_RETURN_IF_ERROR(MeasureMlp(bench, batch, {toy ? 26 : 676, 16}, precision, &seen));
    }
  }
  return absl::OkStatus();
}

// Sizes of the MLPerf DLRM and DCN v2, and of DeepFM on 26 features.
absl::Status MeasureDense(GpuBench& bench) {
  for (const DensePrecision precision : kPrecisions) {
    HOTROW_RETURN_IF_ERROR(MeasureProductRate(bench, precision));
  }
  const bool toy = bench.flags().toy;
  const int32_t wide = toy ? 32 : 1024;
  for (const int64_t batch : bench.sizes().dense_batches) {
    for (const DensePrecision precision : kPrecisions) {
      for (const std::vector<int32_t>& sizes :
           {std::vector<int32_t>{13, wide / 2, wide / 4, wide / 8},
            {toy ? 15 : 479, wide, wide, wide / 2, wide / 4, 1},
            {wide, wide, wide}}) {
        HOTROW_RETURN_IF_ERROR(MeasureMlp(bench, batch, sizes, precision));
      }
      const int32_t width = toy ? 33 : 3456;
      HOTROW_RETURN_IF_ERROR(
          MeasureCross(bench, batch, CrossKind::kMatrix, width, toy ? 4 : 512, precision));
      HOTROW_RETURN_IF_ERROR(
          MeasureCross(bench, batch, CrossKind::kMatrix, toy ? 21 : 429, 0, precision));
    }
    HOTROW_RETURN_IF_ERROR(
        MeasureCross(bench, batch, CrossKind::kVector, toy ? 21 : 429, 0, DensePrecision::kFp32));
    for (const DotPrecision precision :
         {DotPrecision::kFp32, DotPrecision::kTf32, DotPrecision::kBf16, DotPrecision::kFp16}) {
      HOTROW_RETURN_IF_ERROR(MeasureDot(bench, batch, toy ? 3 : 26, toy ? 16 : 128, precision));
    }
    HOTROW_RETURN_IF_ERROR(MeasureFm(bench, batch, toy ? 3 : 26, 16));
  }
  return absl::OkStatus();
}

}  // namespace hotrow::bench
