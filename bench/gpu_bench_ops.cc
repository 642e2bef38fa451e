// The sparse ops over one batch: 10 features, each with its own table, one lookup a sample;
// for lookups also the same ids in longer bags.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "bench/gpu_bench.h"
#include "bench/gpu_bench_kernels.h"
#include "bench/gpu_bench_lookups.cuh"
#include "ops/rows/pooled_lookup.h"
#include "ops/rows/row_layout.h"
#include "ops/update/fused_sparse_update.h"
#include "ops/update/gradient_segment_sum.h"
#include "ops/update/sparse_optimizer.h"

namespace hotrow::bench {
namespace {

// Narrower rows of one batch stay in the L2, so they would say nothing about the memory.
constexpr int kOpDims[] = {32, 128};

// Small finite floats: products of the words' bits would not be.
absl::Status FillFloats(GpuBench& bench, float* data, int64_t count) {
  std::vector<float> host(static_cast<size_t>(count));
  RandomStream random(static_cast<uint64_t>(bench.flags().seed), RandomPurpose::kTest);
  for (float& value : host) value = UniformFloat(random.Next32()) - 0.5f;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(data, host.data(), sizeof(float) * host.size(),
                                              cudaMemcpyHostToDevice, bench.stream()));
  return bench.Wait();
}

void AddBytes(GpuBench& bench, const char* part, std::string name, Times times, int64_t bytes,
              nlohmann::ordered_json more) {
  bench.Add({part, std::move(name), times, static_cast<double>(bytes), "bytes", "copy",
             bench.limit("copy"), std::move(more)});
}

std::string OfLookups(const Lookups& lookups) {
  return absl::StrCat(lookups.n, " lookups, ", lookups.unique_count, " unique");
}

// The 10 features over a [B, 10 * dim] matrix.
std::vector<JaggedFeature> Features(float* data, int dim) {
  std::vector<JaggedFeature> features;
  for (int64_t f = 0; f < kLookupTables; ++f) {
    features.push_back({.dim = dim,
                        .pooling = Pooling::kSum,
                        .data = data + f * dim,
                        .stride = kLookupTables * dim});
  }
  return features;
}

}  // namespace

absl::Status MeasureUnique(GpuBench& bench) {
  HOTROW_ASSIGN_OR_RETURN(const auto lookups,
                          Lookups::Create(bench, kLookupTables, bench.sizes().samples));
  HOTROW_ASSIGN_OR_RETURN(const Times times,
                          bench.Measure([&](int64_t) { return lookups->RunUnique(); }));
  AddBytes(bench, "unique", OfLookups(*lookups), times,
           UniqueBytes(lookups->n, lookups->unique_count), lookups->Describe());
  return absl::OkStatus();
}

absl::Status MeasurePartition(GpuBench& bench) {
  HOTROW_ASSIGN_OR_RETURN(const auto lookups,
                          Lookups::Create(bench, kLookupTables, bench.sizes().samples));
  HOTROW_ASSIGN_OR_RETURN(const Times times,
                          bench.Measure([&](int64_t) { return lookups->RunPartition(); }));
  AddBytes(bench, "partition", OfLookups(*lookups), times,
           PartitionBytes(lookups->n, lookups->unique_count), lookups->Describe());
  return absl::OkStatus();
}

absl::Status MeasureLookup(GpuBench& bench) {
  HOTROW_ASSIGN_OR_RETURN(const auto lookups,
                          Lookups::Create(bench, kLookupTables, bench.sizes().samples));
  for (const int64_t hotness : {int64_t{1}, kLookupHotness}) {
    HOTROW_ASSIGN_OR_RETURN(const auto offsets, BagOffsets(bench, *lookups, hotness));
    const int64_t bags = CeilDiv(lookups->samples, hotness);  // of a feature
    for (const int dim : kOpDims) {
      HOTROW_ASSIGN_OR_RETURN(auto rows,
                              ScatteredRows::Create(bench, lookups->unique_count, 4 * dim));
      HOTROW_RETURN_IF_ERROR(FillFloats(bench, reinterpret_cast<float*>(rows.data.data()),
                                        lookups->unique_count * dim));
      HOTROW_ASSIGN_OR_RETURN(
          auto output, DeviceBuffer<float>::Create(kLookupTables * bags * dim, bench.stream()));
      const std::vector<JaggedFeature> features = Features(output.data(), dim);
      const PooledLookupArgs args = {.features = features,
                                     .batch_size = bags,
                                     .offsets = offsets.data(),
                                     .inverse = lookups->inverse.data(),
                                     .rows = rows.pointers.data()};
      HOTROW_ASSIGN_OR_RETURN(const Times times, bench.Measure([&](int64_t) {
        return PooledLookup(bench.Gpu(), args);
      }));
      nlohmann::ordered_json more = lookups->Describe();
      more["dim"] = dim;
      if (hotness > 1) more["hotness"] = hotness;
      const std::string name = hotness > 1 ? absl::StrCat("bags of ", hotness, ", ") : "";
      AddBytes(bench, "lookup", absl::StrCat("pooled lookup, ", name, "dim ", dim), times,
               PooledLookupBytes(lookups->n, lookups->unique_count, dim, kLookupTables * bags),
               std::move(more));
    }
  }
  return absl::OkStatus();
}

absl::Status MeasureGradientSum(GpuBench& bench) {
  HOTROW_ASSIGN_OR_RETURN(const auto lookups,
                          Lookups::Create(bench, kLookupTables, bench.sizes().samples));
  HOTROW_ASSIGN_OR_RETURN(const auto offsets, BagOffsets(bench, *lookups));
  for (const int dim : kOpDims) {
    HOTROW_ASSIGN_OR_RETURN(auto sums,
                            ScatteredRows::Create(bench, lookups->unique_count, 4 * dim));
    HOTROW_ASSIGN_OR_RETURN(auto gradient,
                            DeviceBuffer<float>::Create(lookups->n * dim, bench.stream()));
    HOTROW_RETURN_IF_ERROR(FillFloats(bench, gradient.data(), lookups->n * dim));
    HOTROW_ASSIGN_OR_RETURN(
        auto workspace,
        DeviceBuffer<std::byte>::Create(
            GradientSegmentSumWorkspaceBytes(lookups->n, Device::kCuda, dim), bench.stream()));
    const std::vector<JaggedFeature> features = Features(gradient.data(), dim);
    const GradientSegmentSumArgs args = {
        .features = features,
        .batch_size = lookups->samples,
        .offsets = offsets.data(),
        .row_offsets = lookups->row_offsets.data(),
        .lookup_order = lookups->order.data(),
        .num_rows = lookups->unique_count,
        .gradients = reinterpret_cast<float* const*>(sums.pointers.data()),
        .num_lookups = lookups->n,
        .workspace = workspace.data(),
        .workspace_bytes = workspace.size()};
    HOTROW_ASSIGN_OR_RETURN(const Times times, bench.Measure([&](int64_t) {
      return GradientSegmentSum(bench.Gpu(), args);
    }));
    nlohmann::ordered_json more = lookups->Describe();
    more["dim"] = dim;
    AddBytes(bench, "gradient_sum", absl::StrCat("gradient sum, dim ", dim), times,
             GradientSegmentSumBytes(lookups->n, lookups->unique_count, dim), std::move(more));
  }
  return absl::OkStatus();
}

namespace {

constexpr int kUpdateDim = 128;

void AddUpdate(GpuBench& bench, const Lookups& lookups, const RowLayout& layout,
               SparseOptimizerKind kind, bool fused, Times times) {
  const std::string optimizer(SparseOptimizerName(kind));
  nlohmann::ordered_json more = lookups.Describe();
  more["dim"] = layout.dim;
  more["optimizer"] = optimizer;
  more["row_bytes"] = layout.row_bytes;
  if (fused) more["fused"] = true;
  AddBytes(bench, "update",
           absl::StrCat("update", fused ? " fused with the sum" : "", ", dim ", layout.dim, ", ",
                        optimizer),
           times,
           fused ? FusedUpdateBytes(lookups.n, lookups.unique_count, layout.dim, layout.row_bytes)
                 : SparseUpdateBytes(lookups.unique_count, layout.dim, layout.row_bytes),
           std::move(more));
}

absl::Status MeasureSparseUpdate(GpuBench& bench, const Lookups& lookups) {
  const int64_t count = lookups.unique_count;
  HOTROW_ASSIGN_OR_RETURN(auto gradients, ScatteredRows::Create(bench, count, 4 * kUpdateDim));
  HOTROW_RETURN_IF_ERROR(
      FillFloats(bench, reinterpret_cast<float*>(gradients.data.data()), count * kUpdateDim));
  for (const SparseOptimizerFacts& facts : SparseOptimizers()) {
    const RowLayout layout = RowLayout::For(kUpdateDim, facts.kind);
    // All zeros: weights, state and last step of rows that start at 0.
    HOTROW_ASSIGN_OR_RETURN(auto rows, ScatteredRows::Create(bench, count, layout.row_bytes));
    HOTROW_ASSIGN_OR_RETURN(const Times times, bench.Measure([&](int64_t r) {
      SparseUpdateArgs args;
      args.config.kind = facts.kind;
      args.layout = &layout;
      args.num_rows = count;
      args.rows = rows.pointers.data();
      args.gradients = reinterpret_cast<const float* const*>(gradients.pointers.data());
      args.step = static_cast<uint32_t>(r + 1);
      return SparseUpdate(bench.Gpu(), args);
    }));
    AddUpdate(bench, lookups, layout, facts.kind, /*fused=*/false, times);
  }
  return absl::OkStatus();
}

absl::Status MeasureFusedUpdate(GpuBench& bench, const Lookups& lookups) {
  const int64_t count = lookups.unique_count;
  HOTROW_ASSIGN_OR_RETURN(const auto offsets, BagOffsets(bench, lookups));
  HOTROW_ASSIGN_OR_RETURN(auto gradient,
                          DeviceBuffer<float>::Create(lookups.n * kUpdateDim, bench.stream()));
  HOTROW_RETURN_IF_ERROR(FillFloats(bench, gradient.data(), lookups.n * kUpdateDim));
  const std::vector<JaggedFeature> features = Features(gradient.data(), kUpdateDim);
  HOTROW_ASSIGN_OR_RETURN(auto workspace, DeviceBuffer<std::byte>::Create(
                                              FusedSparseUpdateWorkspaceBytes(
                                                  std::ssize(features), lookups.n, kUpdateDim),
                                              bench.stream()));
  for (const SparseOptimizerFacts& facts : SparseOptimizers()) {
    const RowLayout layout = RowLayout::For(kUpdateDim, facts.kind);
    HOTROW_ASSIGN_OR_RETURN(auto rows, ScatteredRows::Create(bench, count, layout.row_bytes));
    const FusedTable table = {.config = {.kind = facts.kind},
                              .layout = &layout,
                              .row_end = count,
                              .num_lookups = lookups.n};
    FusedSparseUpdateArgs args = {.features = features,
                                  .batch_size = lookups.samples,
                                  .offsets = offsets.data(),
                                  .inverse = lookups.inverse.data(),
                                  .row_offsets = lookups.row_offsets.data(),
                                  .lookup_order = lookups.order.data(),
                                  .num_rows = count,
                                  .num_lookups = lookups.n,
                                  .tables = {&table, 1},
                                  .rows = rows.pointers.data(),
                                  .workspace = workspace.data(),
                                  .workspace_bytes = workspace.size()};
    HOTROW_ASSIGN_OR_RETURN(const Times times, bench.Measure([&](int64_t r) {
      args.step = static_cast<uint32_t>(r + 1);
      return FusedSparseUpdate(bench.Gpu(), args);
    }));
    AddUpdate(bench, lookups, layout, facts.kind, /*fused=*/true, times);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureUpdate(GpuBench& bench) {
  HOTROW_ASSIGN_OR_RETURN(const auto lookups,
                          Lookups::Create(bench, kLookupTables, bench.sizes().samples));
  HOTROW_RETURN_IF_ERROR(MeasureSparseUpdate(bench, *lookups));
  return MeasureFusedUpdate(bench, *lookups);
}

}  // namespace hotrow::bench
