#include <cstdint>

#include "base/status_macros.h"
#include "ops/keys/key_rows_impl.h"
#include "ops/launch_impl.cuh"

namespace hotrow::internal {
namespace {

using TableChunk = ParameterChunk<uint32_t>;
using FloatRowsChunk = ParameterChunk<FloatRows>;
using ByteRowsChunk = ParameterChunk<ByteRows>;

// table_offsets are those of the chunk.
__global__ void __launch_bounds__(kThreadsPerBlock)
    MakeRowKeysKernel(const __grid_constant__ TableChunk tables, const uint64_t* values,
                      const int64_t* table_offsets, RowKey* keys) {
  const int64_t end = table_offsets[tables.size];
  for (int64_t u = table_offsets[0] + GridThread(); u < end; u += GridThreads()) {
    // The last table that begins at u or before: empty ones begin where the next one does.
    int32_t low = 0;
    int32_t high = tables.size - 1;
    while (low < high) {
      const int32_t middle = (low + high + 1) / 2;
      if (table_offsets[middle] <= u) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    keys[u] = {values[u], tables.v[low]};
  }
}

__global__ void __launch_bounds__(kThreadsPerBlock)
    AddressRunsKernel(const __grid_constant__ FloatRowsChunk runs, float** rows) {
  const int64_t end = runs.v[runs.size - 1].end;
  for (int64_t i = runs.v[0].begin + GridThread(); i < end; i += GridThreads()) {
    const FloatRows& run = runs.v[FindRange(runs, i)];
    rows[i] = run.first + (i - run.begin) * run.stride;
  }
}

__global__ void __launch_bounds__(kThreadsPerBlock)
    AddressByteRowsKernel(const __grid_constant__ ByteRowsChunk runs, const std::byte** rows) {
  const int64_t end = runs.v[runs.size - 1].end;
  for (int64_t i = runs.v[0].begin + GridThread(); i < end; i += GridThreads()) {
    const ByteRows& run = runs.v[FindRange(runs, i)];
    // Else in the gap before the run.
    if (i >= run.begin) rows[i] = run.first + (i - run.begin) * run.row_bytes;
  }
}

// Those of the late rows come from a list, so that each address has one writer.
__global__ void __launch_bounds__(kThreadsPerBlock)
    AddressSlotsKernel(const AddressSlotsArgs args) {
  const int64_t work = args.num_rows + args.num_late;
  for (int64_t i = GridThread(); i < work; i += GridThreads()) {
    if (i >= args.num_rows) {
      const int64_t late = i - args.num_rows;
      args.rows[args.late_positions[late]] = args.first + args.late_slots[late] * args.row_bytes;
      continue;
    }
    const int64_t slot = args.slots[i];
    if (slot >= 0) args.rows[i] = args.first + slot * args.row_bytes;
  }
}

// A block takes 32 samples, 32 features at a time: warps read samples of a feature side by side and
// write features of a sample side by side.
__global__ void __launch_bounds__(kThreadsPerBlock)
    AddressLookupsKernel(const AddressLookupsArgs args) {
  constexpr int kTile = kWarpThreads;
  constexpr int kWarps = kThreadsPerBlock / kWarpThreads;
  __shared__ const float* tile[kTile][kTile + 1];  // [sample, feature]
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  for (int64_t first_sample = int64_t{blockIdx.x} * kTile; first_sample < args.batch_size;
       first_sample += int64_t{gridDim.x} * kTile) {
    for (int64_t first = 0; first < args.num_features; first += kTile) {
      for (int f = warp; f < kTile && first + f < args.num_features; f += kWarps) {
        const int64_t b = first_sample + lane;
        if (b >= args.batch_size) continue;
        const int32_t u = args.inverse[(first + f) * args.batch_size + b];
        tile[lane][f] = reinterpret_cast<const float*>(args.rows[u]);
      }
      __syncthreads();
      for (int s = warp; s < kTile && first_sample + s < args.batch_size; s += kWarps) {
        const int64_t f = first + lane;
        if (f >= args.num_features) continue;
        args.lookups[(first_sample + s) * args.num_features + f] = tile[s][lane];
      }
      __syncthreads();
    }
  }
}

}  // namespace

absl::Status MakeRowKeysCuda(const MakeRowKeysArgs& args, CudaStream stream) {
  if (args.max_keys == 0) return absl::OkStatus();
  return ForEachChunk<
      TableChunk>(args.tables, [&](const TableChunk& tables, int64_t first) -> absl::Status {
    MakeRowKeysKernel<<<GridBlocks(args.max_keys, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
        tables, args.values, args.table_offsets + first, args.keys);
    return LastLaunch("MakeRowKeys");
  });
}

absl::Status AddressRunsCuda(const AddressRunsArgs& args, CudaStream stream) {
  return ForEachChunk<FloatRowsChunk>(
      args.runs, [&](const FloatRowsChunk& runs, int64_t) -> absl::Status {
        const int64_t n = runs.v[runs.size - 1].end - runs.v[0].begin;
        if (n == 0) return absl::OkStatus();
        AddressRunsKernel<<<GridBlocks(n, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
            runs, args.rows);
        return LastLaunch("AddressRuns");
      });
}

absl::Status AddressByteRowsCuda(const AddressByteRowsArgs& args, CudaStream stream) {
  return ForEachChunk<ByteRowsChunk>(
      args.runs, [&](const ByteRowsChunk& runs, int64_t) -> absl::Status {
        const int64_t n = runs.v[runs.size - 1].end - runs.v[0].begin;
        if (n == 0) return absl::OkStatus();
        AddressByteRowsKernel<<<GridBlocks(n, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
            runs, args.rows);
        return LastLaunch("AddressByteRows");
      });
}

absl::Status AddressSlotsCuda(const AddressSlotsArgs& args, CudaStream stream) {
  if (args.num_rows == 0) return absl::OkStatus();
  AddressSlotsKernel<<<GridBlocks(args.num_rows + args.num_late, kThreadsPerBlock),
                       kThreadsPerBlock, 0, stream>>>(args);
  return LastLaunch("AddressSlots");
}

absl::Status AddressLookupsCuda(const AddressLookupsArgs& args, CudaStream stream) {
  AddressLookupsKernel<<<GridBlocks(args.batch_size, kWarpThreads), kThreadsPerBlock, 0, stream>>>(
      args);
  return LastLaunch("AddressLookups");
}

}  // namespace hotrow::internal
