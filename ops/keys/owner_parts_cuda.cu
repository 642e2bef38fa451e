#include <cstdint>

#include "base/status_macros.h"
#include "ops/keys/owner_parts_impl.h"
#include "ops/launch_impl.cuh"

namespace hotrow::internal {
namespace {

using TableChunk = ParameterChunk<uint32_t>;

// table_offsets are those of the chunk, whose first table is `first_table` of num_tables.
__global__ void __launch_bounds__(kThreadsPerBlock)
    OwnerPartsKernel(const __grid_constant__ TableChunk tables, const uint64_t* values,
                     const int64_t* table_offsets, int32_t first_table, int32_t num_tables,
                     int32_t world_size, int32_t* parts) {
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
    parts[u] = OwnerOfKey(values[u], tables.v[low], world_size) * num_tables + first_table + low;
  }
}

__global__ void __launch_bounds__(kThreadsPerBlock) PickWordsKernel(const PickWordsArgs args) {
  for (int64_t i = GridThread(); i < args.num_words; i += GridThreads()) {
    args.to[i] = args.from[args.positions[i]];
  }
}

__global__ void __launch_bounds__(kThreadsPerBlock) PutWordsKernel(const PutWordsArgs args) {
  for (int64_t i = GridThread(); i < args.num_words; i += GridThreads()) {
    args.to[args.positions[i]] = args.from[i];
  }
}

}  // namespace

absl::Status OwnerPartsCuda(const OwnerPartsArgs& args, CudaStream stream) {
  return ForEachChunk<
      TableChunk>(args.tables, [&](const TableChunk& tables, int64_t first) -> absl::Status {
    OwnerPartsKernel<<<GridBlocks(args.num_keys, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
        tables, args.values, args.table_offsets + first, static_cast<int32_t>(first),
        static_cast<int32_t>(args.tables.size()), args.world_size, args.parts);
    return LastLaunch("OwnerParts");
  });
}

absl::Status PickWordsCuda(const PickWordsArgs& args, CudaStream stream) {
  PickWordsKernel<<<GridBlocks(args.num_words, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
      args);
  return LastLaunch("PickWords");
}

absl::Status PutWordsCuda(const PutWordsArgs& args, CudaStream stream) {
  PutWordsKernel<<<GridBlocks(args.num_words, kThreadsPerBlock), kThreadsPerBlock, 0, stream>>>(
      args);
  return LastLaunch("PutWords");
}

}  // namespace hotrow::internal
