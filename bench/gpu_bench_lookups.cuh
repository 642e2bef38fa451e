#ifndef HOTROW_BENCH_GPU_BENCH_LOOKUPS_CUH_
#define HOTROW_BENCH_GPU_BENCH_LOOKUPS_CUH_

// A batch of lookups on the GPU, as its table ops take it.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/status_macros.h"
#include "bench/gpu_bench.h"
#include "models/data/permutation.h"
#include "ops/keys/partition.h"
#include "ops/keys/unique.h"

namespace hotrow::bench {

template <typename T>
absl::StatusOr<DeviceBuffer<T>> ToDevice(GpuBench& bench, const std::vector<T>& host) {
  HOTROW_ASSIGN_OR_RETURN(
      auto device, DeviceBuffer<T>::Create(static_cast<int64_t>(host.size()), bench.stream()));
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(device.data(), host.data(), sizeof(T) * host.size(),
                                              cudaMemcpyHostToDevice, bench.stream()));
  HOTROW_RETURN_IF_ERROR(bench.Wait());
  return device;
}

// The ids and what Unique and Partition make of them.
class Lookups {
 public:
  static absl::StatusOr<std::unique_ptr<Lookups>> Create(GpuBench& bench, int64_t tables,
                                                         int64_t samples) {
    std::unique_ptr<Lookups> lookups(new Lookups(bench, tables, samples));
    HOTROW_RETURN_IF_ERROR(lookups->Allocate());
    HOTROW_RETURN_IF_ERROR(lookups->RunUnique());
    HOTROW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(&lookups->unique_count,
                                                lookups->table_offsets.data() + tables, 8,
                                                cudaMemcpyDeviceToHost, bench.stream()));
    HOTROW_RETURN_IF_ERROR(bench.Wait());
    if (lookups->unique_count < 1 || lookups->unique_count > lookups->n) {
      return absl::DataLossError(
          absl::StrCat("Unique found ", lookups->unique_count, " keys among ", lookups->n));
    }
    HOTROW_RETURN_IF_ERROR(lookups->AllocateParts());
    HOTROW_RETURN_IF_ERROR(lookups->RunPartition());
    HOTROW_RETURN_IF_ERROR(bench.Wait());
    return lookups;
  }

  absl::Status RunUnique() {
    return Unique(bench_.Gpu(), {.values = values.data(),
                                 .num_values = n,
                                 .segments = segments,
                                 .num_tables = static_cast<int32_t>(tables),
                                 .unique = unique.data(),
                                 .table_offsets = table_offsets.data(),
                                 .inverse = inverse.data(),
                                 .counts = counts.data(),
                                 .workspace = unique_workspace.data(),
                                 .workspace_bytes = unique_workspace.size()});
  }
  absl::Status RunPartition() {
    return Partition(bench_.Gpu(), {.part = inverse.data(),
                                    .num_items = n,
                                    .num_parts = unique_count,
                                    .offsets = row_offsets.data(),
                                    .order = order.data(),
                                    .workspace = partition_workspace.data(),
                                    .workspace_bytes = partition_workspace.size()});
  }
  nlohmann::ordered_json Describe() const {
    return {{"lookups", n}, {"unique", unique_count}, {"tables", tables}};
  }

  const int64_t tables;
  const int64_t samples;
  int64_t n = 0;
  int64_t unique_count = 0;
  std::vector<LookupSegment> segments;
  DeviceBuffer<uint64_t> values;
  DeviceBuffer<uint64_t> unique;
  DeviceBuffer<int64_t> table_offsets;
  DeviceBuffer<int32_t> inverse;
  DeviceBuffer<int32_t> counts;
  DeviceBuffer<std::byte> unique_workspace;
  DeviceBuffer<int64_t> row_offsets;
  DeviceBuffer<int32_t> order;
  DeviceBuffer<std::byte> partition_workspace;

 private:
  Lookups(GpuBench& bench, int64_t of_tables, int64_t of_samples)
      : tables(of_tables), samples(of_samples), bench_(bench) {}

  absl::Status Allocate() {
    const CudaStream stream = bench_.stream();
    n = tables * samples;
    for (int64_t t = 0; t < tables; ++t) {
      segments.push_back({t * samples, (t + 1) * samples, static_cast<int32_t>(t)});
    }
    HOTROW_ASSIGN_OR_RETURN(
        values,
        ToDevice(bench_, LookupIds(tables, samples, bench_.sizes().rows_per_table, kLookupZipf,
                                   static_cast<uint64_t>(bench_.flags().seed))));
    HOTROW_ASSIGN_OR_RETURN(unique, DeviceBuffer<uint64_t>::Create(n, stream));
    HOTROW_ASSIGN_OR_RETURN(table_offsets, DeviceBuffer<int64_t>::Create(tables + 1, stream));
    HOTROW_ASSIGN_OR_RETURN(inverse, DeviceBuffer<int32_t>::Create(n, stream));
    HOTROW_ASSIGN_OR_RETURN(counts, DeviceBuffer<int32_t>::Create(n, stream));
    HOTROW_ASSIGN_OR_RETURN(unique_workspace, DeviceBuffer<std::byte>::Create(
                                                  UniqueWorkspaceBytes(n, Device::kCuda), stream));
    return absl::OkStatus();
  }
  absl::Status AllocateParts() {
    const CudaStream stream = bench_.stream();
    HOTROW_ASSIGN_OR_RETURN(row_offsets, DeviceBuffer<int64_t>::Create(unique_count + 1, stream));
    HOTROW_ASSIGN_OR_RETURN(order, DeviceBuffer<int32_t>::Create(n, stream));
    HOTROW_ASSIGN_OR_RETURN(partition_workspace,
                            DeviceBuffer<std::byte>::Create(
                                PartitionWorkspaceBytes(Device::kCuda, n, unique_count), stream));
    return absl::OkStatus();
  }

  GpuBench& bench_;
};

// U rows that lie scattered, as in a cache, and their addresses.
struct ScatteredRows {
  static absl::StatusOr<ScatteredRows> Create(GpuBench& bench, int64_t count, int64_t row_bytes) {
    ScatteredRows rows;
    HOTROW_ASSIGN_OR_RETURN(rows.data,
                            DeviceBuffer<std::byte>::Create(count * row_bytes, bench.stream()));
    HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(
        rows.data.data(), 0, static_cast<size_t>(rows.data.bytes()), bench.stream()));
    const Permutation scatter(static_cast<uint64_t>(count),
                              static_cast<uint64_t>(bench.flags().seed), 2, 0);
    std::vector<std::byte*> pointers;
    pointers.reserve(static_cast<size_t>(count));
    for (int64_t u = 0; u < count; ++u) {
      pointers.push_back(rows.data.data() +
                         static_cast<int64_t>(scatter(static_cast<uint64_t>(u))) * row_bytes);
    }
    HOTROW_ASSIGN_OR_RETURN(rows.pointers, ToDevice(bench, pointers));
    return rows;
  }
  DeviceBuffer<std::byte> data;
  DeviceBuffer<std::byte*> pointers;
};

// Bags of `hotness` lookups; the last one of a feature has what is left.
inline absl::StatusOr<DeviceBuffer<int64_t>> BagOffsets(GpuBench& bench, const Lookups& lookups,
                                                        int64_t hotness = 1) {
  std::vector<int64_t> offsets;
  for (int64_t t = 0; t < lookups.tables; ++t) {
    for (int64_t i = 0; i < lookups.samples; i += hotness) {
      offsets.push_back(t * lookups.samples + i);
    }
  }
  offsets.push_back(lookups.n);
  return ToDevice(bench, offsets);
}

}  // namespace hotrow::bench

#endif  // HOTROW_BENCH_GPU_BENCH_LOOKUPS_CUH_
